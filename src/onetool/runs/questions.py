"""Questions to people about calls that wait, their answers, and the grants that these give.

Everything in a call is hostile text.
"""

import ast
import json
import re
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from glob import escape, has_magic
from types import EllipsisType
from typing import TYPE_CHECKING, Any, NamedTuple

from onetool.errors import ArgumentError, Interrupted, describe
from onetool.state.run_records import CallState, Decision, DurableCall, Grant, RunRecord
from onetool.util.invisible import escape_invisible
from onetool.util.text import pluralize
from onetool.util.token_ids import SUBJECT_PREFIX, TOKEN_ID_CHARS, identify_issuer
from onetool_child.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from onetool.settings.access import Issuer, Token

MAX_COUNT = 100_000  # of calls that a grant allows
MAX_QUESTION_CHARS = 20_000
MAX_ARGUMENTS = 50  # that a person is shown; a call with more is rejected
MAX_EXAMPLES = 3  # values of an argument
MAX_EXAMPLE_CHARS = 60
APPROVE = "approve"
APPROVE_SIMILAR = "approve_similar"
REJECT = "reject"
STOP = "stop"
COUNT = "count"
VARYING = "varying"
MEANING = (
    f"{APPROVE}: make these calls. {APPROVE_SIMILAR}: also allow further calls with the same"
    f" arguments, in this run. {REJECT}: the code gets an error. {STOP}: end the run."
)
# the decision is required: some clients accept empty forms by themselves
APPROVAL_FORM: JsonObject = {
    "type": "object",
    "properties": {
        "decision": {
            "type": "string",
            "title": "Decision",
            "description": MEANING,
            "enum": [APPROVE, APPROVE_SIMILAR, REJECT, STOP],
        },
        "reason": {
            "type": "string",
            "title": "Reason",
            "description": "Reason, if you reject the calls",
        },
        COUNT: {
            "type": "integer",
            "title": "Further calls",
            "description": f"With {APPROVE_SIMILAR}: how many of each further call are allowed",
            "minimum": 1,
            "maximum": MAX_COUNT,
            "default": 1,
        },
        VARYING: {
            "type": "string",
            "title": "Arguments that may differ",
            "description": (
                f"With {APPROVE_SIMILAR}: names of arguments that may have any value, separated by"
                " commas; all others stay the same."
            ),
        },
    },
    "required": ["decision"],
}
ANY = "*"  # among the names of varying arguments: all others
MAX_VALUE_CHARS = 2000
ACCOUNT_ARGUMENT = "@account"  # the account of a call, among its recorded arguments
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


class Approver(NamedTuple):
    """A person whose answers count. `ask` shows a question; None means that the person declined."""

    ask: Callable[["Question"], Awaitable[JsonMapping | None]]
    name: str  # for the records
    transport: str  # `stdio`, `http` or `cli`
    via: str = "client"  # one of the places of `approvals.via`


class Question:
    """One question about the calls of a run that wait now: as many as can be shown.

    The others are asked about next.

    Create it in a thread: arguments may have megabytes.
    """

    def __init__(self, run_id: str, agent: str, calls: Sequence[DurableCall]) -> None:
        self.run_id = run_id
        self._agent = agent
        self._texts: list[str] = []
        for index, call in enumerate(calls, 1):
            text = describe_call(index, call)
            if self._texts and sum(map(len, self._texts)) + len(text) > MAX_QUESTION_CHARS:
                break
            self._texts.append(text)
        self.calls = tuple(calls[: len(self._texts)])
        self._hidden = len(calls) - len(self.calls)
        self.form = self._make_form()

    @property
    def text(self) -> str:
        """The question as plain text."""
        head = (
            f"Approve {pluralize(len(self.calls), 'call')} of agent {self._agent}"
            f" ({summarize(self.calls)})?"
        )
        lines = [escape_invisible(head), *self._texts]
        if self._hidden:
            lines.append(f"You will be asked about {pluralize(self._hidden, 'more call')} next.")
        return "\n".join(lines)

    @property
    def state(self) -> str:
        """The identity of the question, from which it can be read again after a restart."""
        calls = {call.number: identify(call) for call in self.calls}
        return json.dumps({"run": self.run_id, "calls": calls})

    def _make_form(self) -> JsonObject:
        """Return the JSON Schema of the answer, with examples of what a person may allow to differ."""
        properties = APPROVAL_FORM["properties"]
        description = (
            f"{properties[VARYING]['description']} In these calls: {self._list_examples()}"
        )
        varying = {**properties[VARYING], "description": escape_invisible(description)}
        return {**APPROVAL_FORM, "properties": {**properties, VARYING: varying}}

    def _list_examples(self) -> str:
        """Return the values of each argument, for a person who chooses which may differ."""
        values: dict[str, dict[str, None]] = {}
        for call in self.calls:
            for name, value in json.loads(call.arguments).items():
                values.setdefault(show_name(name), {})[show_value(value, MAX_EXAMPLE_CHARS)] = None
        return "; ".join(
            f"{name}: {', '.join(list(shown)[:MAX_EXAMPLES])}" for name, shown in values.items()
        )

    def read(self, answer: JsonMapping | None, by: str) -> Decision:
        """Return the decision in an answer; None means that the person declined."""
        numbers = tuple(call.number for call in self.calls)
        choice = REJECT if answer is None else answer.get("decision")
        reason = str((answer or {}).get("reason") or "")
        if choice == APPROVE_SIMILAR:
            return Decision(True, by, numbers, reason, self._make_grants(answer or {}))
        if choice == APPROVE:
            return Decision(True, by, numbers, reason)
        return Decision(False, by, numbers, reason, stops_run=choice == STOP)

    def _make_grants(self, answer: JsonMapping) -> tuple[Grant, ...]:
        names = [name.strip() for name in str(answer.get(VARYING) or "").split(",")]
        varying = [name for name in names if name]
        grants: list[Grant] = []
        for tool in dict.fromkeys(call.tool for call in self.calls):
            grants += make_grants(
                self.calls, escape(tool), varying=varying, count=answer.get(COUNT) or 1
            )
        return tuple(grants)


def identify(call: DurableCall) -> str:
    """Return what a person was asked about: the call, its arguments and the tool definition."""
    return f"{call.key} {call.definition}"


def summarize(calls: Iterable[DurableCall]) -> str:
    """Return the tools with their counts, such as `gh.create_issue ×3, gh.close_issue`."""  # noqa: RUF002
    counts = Counter(call.tool for call in calls)
    return ", ".join(tool if count == 1 else f"{tool} ×{count}" for tool, count in counts.items())  # noqa: RUF001


def describe_pause(run_id: str, calls: Iterable[DurableCall]) -> str:
    """Return the answer to the model for a run that waits. It never says what a person has to type."""
    waiting = list(calls)
    verb = "to approve"
    end = ""
    if any(call.state is CallState.UNKNOWN for call in waiting):
        verb = "to say whether"
        end = " happened"
    calls_text = f"{pluralize(len(waiting), 'call')} ({summarize(waiting)}){end}"
    return f"paused: run {run_id} waits for a person {verb} {calls_text}. {continue_later(run_id)}"


def continue_later(run_id: str) -> str:
    return f'Continue with other work, then call ot.run_result("{run_id}").'


def describe_call(index: int, call: DurableCall) -> str:
    """Return the call with its arguments, one per line."""
    lines = [
        f"{index}. {call.tool} ({', '.join(call.effects)})",
        *([f"   {call.reason}"] if call.reason else []),
    ]
    arguments = json.loads(call.arguments)
    limit = min(MAX_VALUE_CHARS, MAX_QUESTION_CHARS // max(1, len(arguments)))
    lines += [
        f"   {show_name(name)}: {show_value(value, limit)}" for name, value in arguments.items()
    ]
    return "\n".join(map(escape_invisible, lines))


def describe_difference(before: JsonMapping, now: JsonMapping) -> str:
    """Return which arguments of a call have changed, with their earlier values."""
    changed = [
        name
        for name in (*before, *(name for name in now if name not in before))
        if before.get(name) != now.get(name)
    ]
    return ", ".join(
        f"{name} was {show_value(before[name])}" if name in before else f"{name} is new"
        for name in changed
    )


def show_name(name: str) -> str:
    """Return the name of an argument, in quotes if it could look like other lines of the question."""
    return name if name.isidentifier() else show_value(name)


# --- grants ---------------------------------------------------------------------------------------


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
    """Return the grant as text, such as `up to 9 more calls of gh.create_issue, any title`."""
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


# --- decisions ------------------------------------------------------------------------------------


def parse_pattern(text: str) -> tuple[str, JsonObject, tuple[str, ...]]:
    """Return tool, patterns and varying arguments of `gh.create_issue(repo="me/*", title=...)`.

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


def is_revoked(run: RunRecord, tokens: "Iterable[Token]", issuers: "Iterable[Issuer]") -> bool:
    """Return whether the token or issuer behind the run is no longer accepted.

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
