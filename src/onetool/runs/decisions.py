"""Decisions of people, from commands and requests: patterns of grants, and calls whose outcome is unknown."""

import ast
import json
import re
import secrets
from typing import Any, Final

from onetool.errors import ArgumentError, Interrupted, ToolError, ToolNotFound, describe
from onetool.runs.model import CallState, DurableRunRecord, Grant
from onetool.storage import RunStorage

DEFAULT_COUNT: Final = 100
MAX_COUNT: Final = 100_000
MAX_DAYS: Final = 30
MAX_SECONDS: Final = MAX_DAYS * 86_400
TOOL_PATTERN: Final = re.compile(r"[\w.*?\[\]!-]{1,200}")
EXAMPLE: Final = 'gh.create_issue(repo="me/*") or gh.*'
_NOT_HAPPENED: Final = json.dumps({"error": describe(Interrupted("the call was interrupted and did not happen"))})
OUTCOMES: Final = {
    "happened": (CallState.DONE, '{"value": null}'),
    "not-happened": (CallState.FAILED, _NOT_HAPPENED),
    "repeat": (CallState.APPROVED, None),
}


def parse_pattern(text: str) -> tuple[str, dict[str, Any]]:
    """Return the pattern of tools and the patterns of arguments of a text such as `gh.create_issue(repo="me/*")`."""
    tool, parenthesis, rest = text.strip().partition("(")
    try:
        keywords = _parse_keywords(f"_({rest}") if parenthesis else {}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ArgumentError(f"invalid pattern {text!a}: expected a call such as {EXAMPLE}") from None
    if not TOOL_PATTERN.fullmatch(tool.strip()):
        raise ArgumentError(f"invalid tool {tool!a} in the pattern: expected a name or pattern, such as {EXAMPLE}")
    return tool.strip(), keywords


def _parse_keywords(call: str) -> dict[str, Any]:
    expression = ast.parse(call, mode="eval").body
    if not isinstance(expression, ast.Call) or not isinstance(expression.func, ast.Name) or expression.args:
        raise ValueError("not a call with named arguments")
    if any(keyword.arg is None for keyword in expression.keywords):
        raise ValueError("unpacking is not supported")
    return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in expression.keywords}


def make_grant(
    run: DurableRunRecord, tool: str, arguments: dict[str, Any], *, count: int, until: float | None, by: str
) -> Grant:
    """Return a grant for calls of this run or, with `until`, for all runs of its agent until then."""
    if not 0 < count <= MAX_COUNT:
        raise ArgumentError(f"invalid count {count}: expected 1 to {MAX_COUNT:,} calls")
    return Grant(
        id=f"g_{secrets.token_hex(8)}",
        tool=tool,
        arguments=arguments,
        left=count,
        run=run.id if until is None else None,
        agent=run.agent,
        expires=run.expires if until is None else until,
        by=by,
    )


def resolve_call(store: RunStorage, run_id: str, number: int, outcome: str, by: str) -> None:
    """Record what a person says about a call that was sent: `happened`, `not-happened` or `repeat`."""
    if outcome not in OUTCOMES:
        raise ToolError(f"invalid outcome {outcome!a}: expected {', '.join(OUTCOMES)}")
    state, result = OUTCOMES[outcome]
    if not store.resolve(run_id, number, state, by=by, result=result):
        raise ToolNotFound(f"call {number} of run {run_id} does not wait for this answer")
