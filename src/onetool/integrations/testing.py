"""Tests of recorded runs: `onetool runs show RUN --as-test` writes them, and `replay` executes
them.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from onetool.app import OneTool
from onetool.core.names import python_name
from onetool.state.run_records import CallState, DurableCall, RunRecord, RunState
from onetool.util.logging import Log

__all__ = ["replay"]


def replay(
    code: str, calls: Sequence[Mapping[str, Any]], *, seed: str = "", started: float = 0.0
) -> Any:
    """Run code in a cell, answer its calls from `calls`, and return its value.

    Raise the error of failed code.

    Each call has `tool`, `arguments` and `result` (`{"value": ...}` or `{"error": {...}}`). No tool
    is called, and no settings are read. The code sees the random numbers of `seed`, and the time
    `started`.
    """
    return asyncio.run(_replay(code, calls, seed, started))


async def _replay(code: str, calls: Sequence[Mapping[str, Any]], seed: str, started: float) -> Any:
    recorded = [
        DurableCall(
            number=number,
            tool=call["tool"],
            arguments=json.dumps(call["arguments"]),
            key="",
            occurrence=0,
            state=CallState.DONE,
            result=json.dumps(call["result"]),
            clock=call.get("clock", started),
        )
        for number, call in enumerate(calls, 1)
    ]
    run = RunRecord(seed, "default", code, at=started, state=RunState.DONE)
    with TemporaryDirectory(prefix="onetool-replay-") as folder:
        async with OneTool({"stats": {"enabled": False}}, folder=Path(folder), log=Log()) as app:
            for name in {python_name(call.tool) for call in recorded}:
                if app.registry.get(name) is None:
                    app.bus.register_tool(_make_placeholder(), name=name)
            answer = await app.runs.replay(run, recorded, code, app.context())
            return answer.unwrap()


def _make_placeholder() -> Any:
    """Return a function for the name of a recorded tool. A replay never calls it."""

    def answer_from_record(**arguments: Any) -> Any:
        """Return a recorded answer."""
        raise AssertionError(arguments)

    return answer_from_record
