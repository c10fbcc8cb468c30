"""Grants: further calls that a person allowed, by tool and argument patterns, count and expiry."""

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from glob import escape
from typing import Any

from onetool.runs.model import DurableCall, Grant

SIMILAR_CALLS = 100  # that one answer allows


def covers(grant: Grant, tool: str, arguments: Mapping[str, Any]) -> bool:
    """Return whether the grant allows this call."""
    return fnmatchcase(tool, grant.tool) and matches(grant.arguments, arguments)


def matches(patterns: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """Return whether each argument with a pattern is present and matches it."""
    return all(name in arguments and _is_match(arguments[name], pattern) for name, pattern in patterns.items())


def _is_match(value: Any, pattern: Any) -> bool:
    if isinstance(pattern, str):
        return isinstance(value, str) and fnmatchcase(value, pattern)
    return type(value) is type(pattern) and value == pattern


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
        if all(name in other and type(other[name]) is type(value) and other[name] == value for other in rest)
    }
    return {name: escape(value) if isinstance(value, str) else value for name, value in common.items()}


def describe_grant(grant: Grant) -> str:
    """Return the grant as text, such as `up to 100 more calls of gh.create_issue with repo='me/app'`."""
    given = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in grant.arguments.items())
    with_ = f" with {given}" if given else " with any arguments"
    return f"up to {grant.left} more calls of {grant.tool}{with_}"
