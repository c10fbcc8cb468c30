"""Jobs of queues without a database: every call is rejected."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext

from onetool.errors import ConfigError
from onetool.state.storage import JobRequest, JobStatus, QueueStatus
from onetool.util.problem import Problem


class NoJobs:
    """Queues need a database, which workers on other machines can reach."""

    def find_problems(self, queues: Mapping[str, str], /) -> Iterator[Problem]:
        return (Problem.of(make_store_error(pack)) for pack in queues)

    def watch(self, _job: str, _listener: Callable[[], object], /) -> AbstractContextManager[None]:
        return nullcontext()

    def add(self, request: JobRequest, /) -> None:
        raise make_store_error(request.pack)

    def read(self, _job: str, _after: int, /) -> JobStatus:
        return JobStatus("lost")

    def cancel(self, job: str, /) -> None:
        """Do nothing: there is no job."""

    def recover(self, job: str, is_repeatable: bool, /) -> None:
        """Do nothing: there is no job."""

    def delete(self, job: str, /) -> None:
        """Do nothing: there is no job."""

    def list_queues(self, _names: Collection[str] = (), /) -> list[QueueStatus]:
        return []


def make_store_error(pack: str) -> ConfigError:
    message = f"tools.{pack}.queue needs a database: workers of queues get their calls from it"
    hint = "set store in ~/.onetool/onetool.yaml, or ONETOOL_STORE, to a postgresql:// URL, or remove the queue"
    return ConfigError(message, hint=hint)
