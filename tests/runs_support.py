"""Stored runs, and people who answer in a terminal, for tests of approvals."""

import hashlib
import json
import os
import pty
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.support import PROGRAM, TIMEOUT_SECONDS, environment

from onetool.runs.model import CallState, DurableCall, DurableRunRecord, RunState
from onetool.state.run_store import RunStore

# The first terminal that the leader of a session opens becomes its controlling terminal.
IN_TERMINAL = ("/bin/sh", "-c", 'exec 3<>"$0"; exec "$@"')


def make_call(number: int, tool: str, state: CallState = CallState.PENDING, **arguments: Any) -> DurableCall:
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
    given = {"agent": "default", "state": RunState.WAITING, "client": "test", "directory": str(folder), **fields}
    code = "for n in range(3):\n    gh.create_issue(n=n)"
    store.put_run(DurableRunRecord(run_id, code=code, started=now, expires=now + 3600, **given), calls)
    store.close()
    return run_id


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
    """Run a command with a controlling terminal, in which a person answers; standard input says yes."""
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
