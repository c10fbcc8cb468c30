"""Stored runs, applications that run no code, and people who answer in a terminal, for tests of
approvals.
"""

import hashlib
import json
import os
import pty
import subprocess
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from anyio.to_thread import run_sync
from tests.support import PROGRAM, TIMEOUT_SECONDS, environment

from onetool.core.agents import Agents
from onetool.core.bus.bus import ToolBus
from onetool.runs.answer import Presenter
from onetool.runs.cells import CellLimits, Cells
from onetool.runs.results.blobs import Media
from onetool.runs.results.store import StoredResults
from onetool.runs.runner import Runner
from onetool.runs.runs import Runs
from onetool.settings.access import Agent
from onetool.settings.model import Settings
from onetool.settings.settings_reader import wrap_settings
from onetool.state.changes import Changes
from onetool.state.opening import open_files
from onetool.state.run_records import CallState, DurableCall, RunRecord, RunState
from onetool.state.run_store import RunStore
from onetool.util.logging import Log
from onetool.util.redact import Redactor

# The first terminal that the leader of a session opens becomes its controlling terminal.
NOWHERE = Path("/nowhere")  # a data directory in which nothing is stored
IN_TERMINAL = ("/bin/sh", "-c", 'exec 3<>"$0"; exec "$@"')


def make_call(
    number: int, tool: str, state: CallState = CallState.PENDING, **arguments: Any
) -> DurableCall:
    text = json.dumps(arguments, sort_keys=True)
    return DurableCall(
        number=number,
        tool=tool,
        arguments=text,
        key=hashlib.sha256(f"{tool}{text}".encode()).hexdigest(),
        occurrence=0,
        state=state,
        effects=("write", "external"),
        reason="policy ask-writes",
        at=time.time(),
    )


def store_run(folder: Path, *calls: DurableCall, run_id: str = "", **fields: Any) -> str:
    """Store a run in the data directory, as a server does that waits, and return its id."""
    run_id = run_id or f"r_{os.urandom(16).hex()}"
    store = RunStore(folder)
    now = time.time()
    given = {
        "agent": "default",
        "state": RunState.WAITING,
        "client": "test",
        "directory": str(folder),
        **fields,
    }
    code = "for n in range(3):\n    gh.create_issue(n=n)"
    store.put_run(RunRecord(run_id, code=code, at=now, expires=now + 3600, **given), calls)
    store.close()
    return run_id


async def ignore_decision(**_: Any) -> None:
    """Record nothing."""


def open_runs(
    store: Any,
    bus: ToolBus,
    agent: Agent,
    *,
    kind: type[Runs] = Runs,
    log: Log | None = None,
    **options: Any,
) -> Runs:
    """Return the runs of an application without settings files and tools, whose cells are never
    started.
    """
    settings = Settings(agents={"default": agent})
    loaded = wrap_settings(settings, NOWHERE)
    agents = Agents(lambda *_: None)
    agents.configure(loaded, {})
    redact = Redactor()
    state = open_files(loaded.directories)
    presenter = Presenter(settings.output, StoredResults.open(state, settings.output), redact)
    runner = Runner(
        bus, Cells(CellLimits()), settings, presenter, projects={}, saved_snippets=state.snippets
    )
    changes = Changes()
    changes.poll("runs", partial(run_sync, store.version))
    runs = kind(bus, agents, changes, None, set)
    runs.configure(
        *(loaded, runner, store, Media.open(state, settings.output)),
        redact=redact,
        log=log or Log(),
        environment={},
        is_revoked=lambda _: False,
        record_decision=ignore_decision,
        **options,
    )
    return runs


def read_states(folder: Path, run_id: str) -> list[str]:
    store = RunStore(folder)
    try:
        return [str(call.state) for call in store.list_calls(run_id)]
    finally:
        store.close()


def answer_in_terminal(
    directory: Path,
    answer: str,
    *arguments: str,
    variables: Mapping[str, str] | None = None,
    on_question: Callable[[], object] = lambda: None,
) -> tuple[int, str]:
    """Run a command with a controlling terminal, in which a person answers; standard input says
    yes.
    """
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*IN_TERMINAL, os.ttyname(theirs), PROGRAM, *arguments],
        cwd=directory,
        env=variables or environment(directory),
        stdin=subprocess.PIPE,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    assert process.stdin is not None
    process.stdin.write(b"y\ny\n")
    process.stdin.close()
    shown = b""
    while part := _read_terminal(ours):
        shown += part
        if shown.endswith(b"[y/N] "):
            on_question()
            os.write(ours, f"{answer}\n".encode())
    os.close(ours)
    return process.wait(TIMEOUT_SECONDS), shown.decode().replace("\r\n", "\n")


def _read_terminal(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the program has ended
        return b""
