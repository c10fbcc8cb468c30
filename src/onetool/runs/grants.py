"""Grants: further calls that a person allowed, by tool and argument patterns, count and expiry."""

import json
import secrets
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from glob import escape, has_magic
from typing import Any

from onetool.errors import ArgumentError
from onetool.state.run_records import DurableCall, Grant
from onetool_child.json_types import JsonMapping, JsonObject

ANY = "*"  # among the names of varying arguments: all others
MAX_COUNT = 100_000  # of calls that a grant allows
MAX_VALUE_CHARS = 2000
ACCOUNT_ARGUMENT = "@account"  # the account of a call, among its recorded arguments


def covers(grant: Grant, tool: str, arguments: JsonMapping, definition: str = "") -> bool:
    """Return whether the grant allows this call. The account of a call must be part of the grant."""
    if not fnmatchcase(tool, grant.tool) or grant.definition not in {"", definition}:
        return False
    for name, value in arguments.items():
        if name in grant.arguments:
            is_covered = _is_match(value, grant.arguments[name])
        else:
            is_covered = name != ACCOUNT_ARGUMENT and not {name, ANY}.isdisjoint(grant.varying)
        if not is_covered:
            return False
    return all(name in arguments for name in grant.arguments)


def _is_match(value: Any, pattern: Any) -> bool:
    if isinstance(pattern, str):
        return isinstance(value, str) and fnmatchcase(value, pattern)
    return _is_same(value, pattern)


def _is_same(value: Any, other: Any) -> bool:
    """Return whether two values are the same JSON: 1, 1.0 and true are not."""
    return value == other and json.dumps(value, sort_keys=True) == json.dumps(other, sort_keys=True)


def make_grants(
    calls: Iterable[DurableCall],
    tool: str,
    patterns: JsonMapping | None = None,
    varying: Iterable[str] = (),
    *,
    count: int = 1,
    expires: float = 0.0,
) -> tuple[Grant, ...]:
    """Return grants for further calls like those of `calls` whose tool matches.

    All arguments stay as they are, except those with a pattern or a name in `varying`. Raise
    ArgumentError if no call matches, so that nothing says what the other arguments are.
    """
    if not 0 < count <= MAX_COUNT:
        raise ArgumentError(f"invalid count {count}: expected 1 to {MAX_COUNT:,} calls")
    names = tuple(dict.fromkeys(varying))
    grants: dict[str, Grant] = {}
    for call in calls:
        if fnmatchcase(call.tool, tool):
            fixed = _fix(json.loads(call.arguments), names)
            arguments = {**fixed, **(patterns or {})}
            definition = "" if has_magic(tool) else call.definition
            key = json.dumps([arguments, definition], sort_keys=True)
            grants[key] = Grant(
                _new_id(), tool, arguments, names, definition, count, expires=expires
            )
    if not grants and ANY in names:
        return (Grant(_new_id(), tool, patterns or {}, names, left=count, expires=expires),)
    if not grants:
        raise ArgumentError(
            f"cannot allow further calls of {tool!r}: none of the calls matches, so their arguments"
            " are unknown",
            hint=f"to allow any arguments, use '{tool}(...)'",
        )
    return tuple(grants.values())


def _fix(arguments: JsonMapping, varying: Collection[str]) -> JsonObject:
    """Return patterns that match exactly these values, without those of varying arguments."""
    fixed: JsonObject = {}
    for name, value in arguments.items():
        if name == ACCOUNT_ARGUMENT or {name, ANY}.isdisjoint(varying):
            fixed[name] = escape(value) if isinstance(value, str) else value
    return fixed


def _new_id() -> str:
    return f"g_{secrets.token_hex(8)}"


def describe_grant(grant: Grant) -> str:
    """Return the grant as text, such as `up to 9 more calls of gh.create_issue with repo="me/app",
    any title`.
    """
    parts = [f"{name}={show_value(value)}" for name, value in grant.arguments.items()]
    parts += ["any other arguments" if name == ANY else f"any {name}" for name in grant.varying]
    count = "1 more call" if grant.left == 1 else f"up to {grant.left:,} more calls"
    return f"{count} of {grant.tool} with {', '.join(parts) or 'no arguments'}"


def show_value(value: Any, limit: int = MAX_VALUE_CHARS) -> str:
    """Return a value as JSON on one line; if it is longer than the limit, say how much is hidden."""
    text = json.dumps(value, ensure_ascii=False)
    return (
        text
        if len(text) <= limit
        else f"{text[:limit]}… ({len(text) - limit:,} more characters not shown)"
    )
