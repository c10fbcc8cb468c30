"""Checks of queues: packs whose queue has no database, or no worker."""

from collections.abc import Iterator

from onetool.errors import ToolError
from onetool.extensions.packs import Extensions
from onetool.extensions.queue_backend import make_store_error
from onetool.state.storage import JobStorage
from onetool.util.problem import Problem


def problems(extensions: Extensions, jobs: JobStorage | None) -> Iterator[Problem]:
    queues = extensions.queues
    if jobs is None:
        yield from (Problem.of(make_store_error(pack)) for pack in queues)
        return
    if not queues:
        return
    try:
        found = jobs.list_queues(set(queues.values()))
    except ToolError:  # the check of the store reports it
        return
    for queue in found:
        packs = ", ".join(pack for pack, name in queues.items() if name == queue.name)
        if packs and not queue.workers:
            message = f"no worker serves the queue {queue.name}, so calls of {packs} fail"
            yield Problem(message, f"onetool worker --queue {queue.name}", code="no_worker")
