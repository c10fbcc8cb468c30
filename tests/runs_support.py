"""Stored runs for tests of approvals."""

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

from onetool.runs.model import CallState, DurableCall, DurableRunRecord, RunState
from onetool.runs.run_store import RunStore


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
