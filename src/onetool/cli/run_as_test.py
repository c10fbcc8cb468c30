"""A recorded run as a Python test, which replays it without network, servers or settings."""

import ast
import json
from collections.abc import Callable, Iterable
from pprint import pformat
from typing import Any

from onetool.errors import ToolError
from onetool.runs.replay import check_replayable, list_answered
from onetool.state.run_records import DurableCall, RunOutcome, RunRecord
from onetool.util.time_format import in_utc
from onetool_child.json_types import JsonObject

WIDTH = 110
SPECIAL_FLOATS = frozenset({"inf", "nan"})  # as pformat writes them
LINE_BREAK = "\n"
TEST = '''\
"""Run {run} of {started}, written by `onetool runs show {run} --as-test`. No tool is called."""

{imports}
CODE = {code}
CALLS = {calls}
{expected}


def test_run_{short}() -> None:
{body}
'''
PASSES = "    assert replay(CODE, CALLS, seed={seed!r}, started={started!r}) == VALUE"
# NaN is not equal to itself, but its text is.
PASSES_WITH_NAN = (
    "    assert repr(replay(CODE, CALLS, seed={seed!r}, started={started!r})) == repr(VALUE)"
)
FAILS = """\
    with pytest.raises(Exception) as raised:  # noqa: PT011 - the message is checked below
        replay(CODE, CALLS, seed={seed!r}, started={started!r})
    assert ERROR in str(raised.value)"""


def write_test(
    run: RunRecord,
    calls: Iterable[DurableCall],
    redact: Callable[[Any], Any],
    code: str | None = None,
) -> str:
    """Return the source of the test.

    Secrets are redacted in the code, the arguments and the results alike.

    Raise if the replay ends differently than the run. It takes about a second and starts an event
    loop.
    """
    answered = list_answered(calls)
    check_replayable(run, answered)
    outcome = RunOutcome.read(run)
    recorded = [
        {
            "tool": call.tool,
            "arguments": redact(json.loads(call.arguments)),
            "result": redact(json.loads(call.result or "{}")),
            "clock": call.clock,
        }
        for call in answered
    ]
    error = outcome.error
    code = redact(run.code if code is None else code)
    value = redact(outcome.value)
    message = (
        None if error is None else redact(str(error.get("message", "")).partition(LINE_BREAK)[0])
    )
    _check_replay(run, code, recorded, value, message)
    written_calls = _write_value(recorded)
    if message is None:
        expected = f"VALUE = {_write_value(value)}"
        body = PASSES
    else:
        expected = f"ERROR = {message!r}"
        body = FAILS
    special_floats = _find_names(f"{written_calls}\n{expected}") & SPECIAL_FLOATS
    if "nan" in _find_names(expected):
        body = PASSES_WITH_NAN
    imports = "from onetool.integrations.testing import replay\n"
    if error is not None:
        imports = f"import pytest\n\n{imports}"
    if special_floats:
        imports = f"from math import {', '.join(sorted(special_floats))}\n\n{imports}"
    return TEST.format(
        run=run.id,
        short=run.id.removeprefix("r_")[:8],
        started=in_utc(run.at, "seconds"),
        imports=imports,
        code=_write_text(code),
        calls=written_calls,
        expected=expected,
        body=body.format(seed=run.id, started=run.at),
    )


def _check_replay(
    run: RunRecord, code: str, calls: list[JsonObject], value: Any, message: str | None
) -> None:
    """Raise unless the replay returns this value, or raises an error with this message."""
    from onetool.integrations.testing import replay

    try:
        replayed = replay(code, calls, seed=run.id, started=run.at)
    except Exception as error:  # noqa: BLE001 - of the code
        if message is not None and message in str(error):
            return
        difference = f"raises {type(error).__name__}: {str(error).partition(LINE_BREAK)[0]}"
    else:
        if message is None and (replayed == value or repr(replayed) == repr(value)):
            return
        difference = "returns another value" if message is None else "raises no error"
    raise ToolError(
        f"cannot write a test of {run.id}: without tools and settings, the code {difference}"
    )


def _write_value(value: Any) -> str:
    return pformat(value, width=WIDTH, sort_dicts=False)


def _find_names(source: str) -> set[str]:
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise ToolError(f"cannot write a test: {error.msg} in a value") from None
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _write_text(text: str) -> str:
    """Return a string literal, on several lines if every character can be shown as it is."""
    lines = text.strip("\n").split("\n")
    if (
        '"""' in text
        or "\\" in text
        or text.endswith('"')
        or not all(line.isprintable() for line in lines)
    ):
        return repr(text)
    return '"""\\\n' + "\n".join(lines) + '\n"""' if len(lines) > 1 else repr(text)
