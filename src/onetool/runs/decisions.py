"""Decisions of people, from commands and requests: about which runs, patterns of grants, and
unknown outcomes.
"""

import ast
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from types import EllipsisType

from onetool.errors import ArgumentError, Interrupted, describe
from onetool.runs.questions import ANY
from onetool.settings.access import Issuer, Token
from onetool.state.run_records import CallState, Decision, Grant, RunRecord
from onetool.util.token_ids import SUBJECT_PREFIX, TOKEN_ID_CHARS, identify_issuer
from onetool_child.json_types import JsonObject

MAX_DAYS = 30
MAX_SECONDS = MAX_DAYS * 86_400
TOOL_PATTERN = re.compile(r"[\w.*?\[\]!-]{1,200}")
EXAMPLE = 'gh.create_issue(repo="me/*", title=...)'
_NOT_HAPPENED = json.dumps(
    {"error": describe(Interrupted("the call was interrupted and did not happen"))}
)
OUTCOMES = {
    "happened": (CallState.DONE, '{"value": null}'),
    "not-happened": (CallState.FAILED, _NOT_HAPPENED),
    "repeat": (CallState.APPROVED, None),
}


def parse_pattern(text: str) -> tuple[str, JsonObject, tuple[str, ...]]:
    """Return the tool, the patterns and the varying arguments of `gh.create_issue(repo="me/*",
    title=...)`.

    Without parentheses, there are neither. `gh.*(...)` varies all arguments.
    """
    tool, parenthesis, rest = text.strip().partition("(")
    try:
        patterns, varying = _parse_arguments(f"_({rest}") if parenthesis else ({}, ())
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
        raise ArgumentError(
            f"invalid pattern {text!r}: expected a call such as {EXAMPLE}"
        ) from None
    if not TOOL_PATTERN.fullmatch(tool.strip()):
        raise ArgumentError(
            f"invalid tool {tool!r} in the pattern: expected a name or pattern, such as {EXAMPLE}"
        )
    return tool.strip(), patterns, varying


def _parse_arguments(call: str) -> tuple[JsonObject, tuple[str, ...]]:
    expression = ast.parse(call, mode="eval").body
    if not isinstance(expression, ast.Call) or not isinstance(expression.func, ast.Name):
        raise TypeError("not a call")
    values = {
        str(keyword.arg): ast.literal_eval(keyword.value)
        for keyword in expression.keywords
        if keyword.arg
    }
    varying = [name for name, value in values.items() if isinstance(value, EllipsisType)]
    patterns = {name: value for name, value in values.items() if name not in varying}
    json.dumps(patterns)  # raises if a value is not data
    for argument in expression.args:
        if not isinstance(ast.literal_eval(argument), EllipsisType):
            raise TypeError("an argument has no name")
        varying.append(ANY)
    if len(values) < len(expression.keywords):
        raise SyntaxError("unpacking is not supported, or a name occurs twice")
    return patterns, tuple(varying)


def complete(decision: Decision, run: RunRecord, expires: float) -> Decision:
    """Return the decision with the agent, the run and the expiry of its grants.

    Those of a run end then.
    """
    grants: list[Grant] = []
    for grant in decision.grants:
        if grant.expires:
            grants.append(replace(grant, agent=run.agent, by=decision.by))
        else:
            grants.append(
                replace(grant, agent=run.agent, by=decision.by, run=run.id, expires=expires)
            )
    return replace(decision, grants=tuple(grants))


def is_revoked(run: RunRecord, tokens: Iterable[Token], issuers: Iterable[Issuer]) -> bool:
    """Return whether the token, or the issuer of the subject, that started the run is no longer
    accepted.

    A token or JWT that has expired since does not count: calls may wait for a person longer than it
    is valid.
    """
    if not run.token_id:  # the owner, or a client over stdio
        return False
    if run.token_id.startswith(SUBJECT_PREFIX):
        return not any(run.token_id.startswith(identify_issuer(entry.issuer)) for entry in issuers)
    # The value of a token in an environment variable may be unknown to this process, but its name
    # is not.
    return not any(
        (
            token.hash[:TOKEN_ID_CHARS].lower() == run.token_id
            if token.hash
            else f"token {token.name}" == run.actor
        )
        for token in tokens
    )
