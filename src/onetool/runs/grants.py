"""Grants: further calls that a person allowed, by tool and argument patterns, count and expiry."""

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from glob import escape
from typing import Any

from onetool.runs.model import DurableCall, Grant

SIMILAR_CALLS = 100  # that one answer allows
MAX_VALUE_CHARS = 2000
ACCOUNT_ARGUMENT = "@account"  # the account of a call, among its recorded arguments


def covers(grant: Grant, tool: str, arguments: Mapping[str, Any]) -> bool:
    """Return whether the grant allows this call. The account of a call must be part of the grant."""
    if ACCOUNT_ARGUMENT in arguments and ACCOUNT_ARGUMENT not in grant.arguments:
        return False
    return fnmatchcase(tool, grant.tool) and matches(grant.arguments, arguments)


def matches(patterns: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """Return whether each argument with a pattern is present and matches it."""
    return all(name in arguments and _is_match(arguments[name], pattern) for name, pattern in patterns.items())


def _is_match(value: Any, pattern: Any) -> bool:
    if isinstance(pattern, str):
        return isinstance(value, str) and fnmatchcase(value, pattern)
    return _is_same(value, pattern)


def _is_same(value: Any, other: Any) -> bool:
    """Return whether two values are the same JSON: 1, 1.0 and true are not."""
    return value == other and json.dumps(value, sort_keys=True) == json.dumps(other, sort_keys=True)


def suggest_grants(calls: Sequence[DurableCall], earlier: Iterable[DurableCall]) -> tuple[Grant, ...]:
    """Return a grant for calls like these, for each tool: arguments that are the same in all examples stay fixed.

    `earlier` are calls that were approved before. A single example fixes nothing.
    """
    examples: dict[str, list[dict[str, Any]]] = {}
    for call in (*earlier, *calls):
        examples.setdefault(call.tool, []).append(json.loads(call.arguments))
    return tuple(
        Grant(
            id=f"g_{secrets.token_hex(8)}",
            tool=escape(tool),
            arguments=_find_common(examples[tool]),
            left=SIMILAR_CALLS,
        )
        for tool in dict.fromkeys(call.tool for call in calls)
    )


def _find_common(examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if len(examples) < 2:  # noqa: PLR2004 - nothing to compare with
        return {}
    first, *rest = examples
    common = {
        name: value
        for name, value in first.items()
        if all(name in other and _is_same(other[name], value) for other in rest)
    }
    return {name: escape(value) if isinstance(value, str) else value for name, value in common.items()}


def describe_grant(grant: Grant) -> str:
    """Return the grant as text, such as `up to 100 more calls of gh.create_issue with any arguments`."""
    given = ", ".join(f"{name}={show_value(value)}" for name, value in grant.arguments.items())
    with_ = f" with {given} and any other arguments" if given else " with any arguments"
    return f"up to {grant.left} more calls of {grant.tool}{with_}"


def show_value(value: Any, limit: int = MAX_VALUE_CHARS) -> str:
    """Return a value as JSON on one line; if it is longer than the limit, say how much is hidden."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit:,} more characters not shown)"
