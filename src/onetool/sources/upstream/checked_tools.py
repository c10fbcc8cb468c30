"""An upstream server's tools, made from its definitions and compared with their pins.

Pins are the accepted definitions. A model reads a description as if it were an instruction, so a
changed description can steer it. Changes are reported; with `pin: strict` a new or changed tool is
rejected until a person accepts it.
"""

import difflib
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from onetool.core.foreign_schema import ForeignSchema
from onetool.core.policy.effects import (
    PRIVATE,
    Hints,
    describe_claims,
    get_implied_permissions,
    read_hints,
)
from onetool.core.schema import ANY_OBJECT, Schema
from onetool.core.tool import Tool
from onetool.errors import ToolError
from onetool.settings.model import Server
from onetool.sources.upstream.definitions import Definition, Definitions, UpstreamSchema
from onetool.state.documents import Documents
from onetool.state.storage import Pinned
from onetool.util.context import Permission
from onetool.util.invisible import replace_in_name
from onetool.util.problem import PROBLEM, WARNING, Problem, limit_problems
from onetool.util.sanitize import clean, clean_schema
from onetool.util.text import count_common, pluralize
from onetool_child.json_types import JsonMapping

if TYPE_CHECKING:
    from onetool.sources.upstream.upstream import Upstream

REQUIRED_PERMISSIONS = frozenset({Permission.NETWORK})
INVALID_NAME_CHARS = re.compile(r"[\s@.\x00-\x1f]")
MAX_NAME_CHARS = 200
MAX_DIFF_CHARS = 4000
Refresh = Callable[[], Awaitable[None]]
ACCEPTED = (  # key in a pin: the origin of the annotations, if a person has accepted them
    "hints_accepted"
)
MAX_DIFF_LINES = 40
MAX_COMPARED_LINES = 500


# --- Pins -----------------------------------------------------------------------------------------


class Differences(NamedTuple):
    """Differences between a server's definitions and pins, as text by tool."""

    changed: dict[str, str]
    new: dict[str, str]


def compare(
    pins: Documents, server: str, definitions: Iterable[Definition], *, is_strict: bool = False
) -> Differences:
    """Compare definitions with the pins. A server's first list is pinned as it is.

    Tools that appear later are pinned at once, unless `is_strict`: then they are new until a person
    accepts them.
    """

    def add(stored: Pinned | None) -> Pinned:
        if stored is None or not is_strict:
            return {**current, **(stored or {})}
        return stored

    current = {definition.name: asdict(definition) for definition in definitions}
    pinned = pins.get(server)
    if pinned is None or not (is_strict or current.keys() <= pinned.keys()):
        pinned = pins.update(server, add)
    differences = Differences({}, {})
    for name, definition in current.items():
        if name not in pinned:
            differences.new[name] = _describe_difference({}, definition)
            continue
        pin = {key: value for key, value in pinned[name].items() if key != ACCEPTED}
        if pin != definition:
            differences.changed[name] = _describe_difference(pin, definition)
    return differences


def accept(
    pins: Documents,
    server: str,
    definitions: Iterable[Definition],
    origin: str,
    hints: Mapping[str, str] | None = None,
) -> None:
    """Replace a server's pins by these definitions, which come from `origin`.

    `hints` are the claims that a person has seen and accepts, by tool; see `list_claims`.
    """

    def replace(stored: Pinned | None) -> Pinned:
        pinned = {}
        for definition in definitions:
            pin = (stored or {}).get(definition.name, {})
            claims = describe_claims(definition.annotations)
            is_accepted_now = claims != "" and (hints or {}).get(definition.name) == claims
            pinned[definition.name] = asdict(definition)
            if is_accepted_now or _accepts_hints(pin, definition, origin):
                pinned[definition.name][ACCEPTED] = origin
        return pinned

    pins.update(server, replace)


def list_claims(pinned: Pinned, definitions: Iterable[Definition], origin: str) -> dict[str, str]:
    """Return annotation claims by tool that lower effects and that nobody accepted."""
    claims = {
        definition.name: describe_claims(definition.annotations)
        for definition in definitions
        if not _accepts_hints(pinned.get(definition.name, {}), definition, origin)
    }
    return {name: text for name, text in claims.items() if text}


def _accepts_hints(pin: JsonMapping, definition: Definition, origin: str) -> bool:
    """Return whether a person has accepted the annotations from this origin."""
    return pin.get(ACCEPTED) == origin and pin.get("annotations") == definition.annotations


def _describe_difference(before: JsonMapping, after: JsonMapping) -> str:
    old = _to_lines(before)
    new = _to_lines(after)
    start = max(0, count_common(old, new) - 1)
    # The common end is left out too, because difflib takes quadratic time, and a server chooses the
    # lines.
    common_end = max(0, count_common(old[:start:-1], new[:start:-1]) - 1)
    old = old[start : len(old) - common_end][:MAX_COMPARED_LINES]
    new = new[start : len(new) - common_end][:MAX_COMPARED_LINES]
    lines = list(difflib.unified_diff(old, new, "pinned", "current", lineterm="", n=1))
    if len(lines) > MAX_DIFF_LINES:
        lines[MAX_DIFF_LINES:] = [f"… {pluralize(len(lines) - MAX_DIFF_LINES, 'more line')}"]
    return "\n".join(lines)


def _to_lines(data: JsonMapping) -> list[str]:
    return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False).splitlines()


# --- Tools ----------------------------------------------------------------------------------------


class CheckedTools(NamedTuple):
    """The tools that a server offers, and how they differ from their pins."""

    definitions: Definitions = ()
    tools: Sequence[Tool] = ()
    offered: Mapping[str, Definition] = {}  # by the name of the tool
    rejected: Mapping[str, str] = {}  # why tools cannot be called, by name
    differences: Differences = Differences({}, {})
    claims: Mapping[
        str, str
    ] = {}  # of hints that no person has accepted, by the name of the definition
    problem: ToolError | None = None  # why changes cannot be detected


def check_tools(
    upstream: "Upstream", definitions: Definitions, pins: Documents, refresh: Refresh
) -> CheckedTools:
    """Compare a server's definitions with its pins and create the tools. Reads the disk."""
    server = upstream.server
    is_strict = server.pin == "strict"
    chosen = [definition for definition in definitions if is_chosen(definition.name, server)]
    pinned: JsonMapping = {}
    differences = Differences({}, {})
    claims: Mapping[str, str] = {}
    problem = None
    if server.pin != "off":
        try:
            differences = compare(pins, upstream.name, definitions, is_strict=is_strict)
            pinned = pins.get(upstream.name) or {}
            claims = list_claims(pinned, chosen, upstream.origin)
        except (
            OSError,
            ToolError,
        ) as error:  # a problem with one file must not affect other servers
            problem = error if isinstance(error, ToolError) else ToolError(str(error))
    differences = _select_differences(differences, {definition.name for definition in chosen})
    pending = {*differences.changed, *differences.new} if is_strict else set()
    # Of two definitions with the same tool name, the accepted one comes last and wins.
    chosen.sort(key=lambda definition: definition.name not in pending)
    offered = {
        _make_name(upstream.name, definition.name): definition
        for definition in chosen
        if definition.name
    }
    tools = []
    rejected: dict[str, str] = {}
    for name, definition in offered.items():
        is_pending = definition.name in pending
        pin = pinned.get(definition.name, {})
        tools.append(_make_tool(upstream, name, definition, pin, refresh, is_pending=is_pending))
        if problem is not None:
            rejected[name] = f"cannot check whether {name} has changed: {problem}"
        elif is_pending:
            reason = "is new" if definition.name in differences.new else "has changed"
            rejected[name] = (
                f"{name} {reason} since its server was accepted, and pin is strict. ot.health()"
                f" shows it; a person can accept it with `onetool servers accept {upstream.name}`"
            )
    return CheckedTools(definitions, tools, offered, rejected, differences, claims, problem)


def list_problems(upstream: "Upstream") -> list[Problem]:
    """Return a server's first definition problems: invalid schemas and changes."""
    unsound = limit_problems(list(_find_unsound(upstream)), upstream.name)
    return unsound + limit_problems(list(_find_differences(upstream)), upstream.name)


def _find_unsound(upstream: "Upstream") -> Iterator[Problem]:
    """Yield problems with unused input schemas and unchecked patterns."""
    hint = f"report it to the authors of {upstream.name}"
    for definition in upstream.tools.definitions:
        problem = definition.pattern_problem
        if not definition.is_sound:
            problem = problem or "an invalid input schema: its arguments are not validated"
        if problem:
            yield Problem(f"{upstream.name}.{definition.name} has {problem}", hint, level=WARNING)


def _find_differences(upstream: "Upstream") -> Iterator[Problem]:
    is_strict = upstream.server.pin == "strict"
    suffix = ", rejected until accepted" if is_strict else ""
    hint = f"review it, then run: onetool servers accept {upstream.name}"
    changed, new = upstream.tools.differences
    for subject, texts in (("changed definition of", changed), ("new tool, not accepted:", new)):
        for tool, text in texts.items():
            message = f"{subject} {upstream.name}.{tool}{suffix}\n{text}"
            yield Problem(message, hint, level=PROBLEM if is_strict else WARNING)


def is_chosen(name: str, server: Server) -> bool:
    """Return whether the server settings include this tool, resource or prompt."""
    is_included = not server.tools.include or any(
        fnmatchcase(name, pattern) for pattern in server.tools.include
    )
    return is_included and not any(fnmatchcase(name, pattern) for pattern in server.tools.exclude)


def _select_differences(differences: Differences, names: set[str]) -> Differences:
    """Return these tools' differences without invisible characters."""
    changed, new = (
        {name: clean(text, MAX_DIFF_CHARS) for name, text in texts.items() if name in names}
        for texts in differences
    )
    return Differences(changed, new)


def _make_name(server: str, tool: str) -> str:
    """Return the tool name in OneTool, without dots, white space and invisible characters."""
    return f"{server}.{replace_in_name(INVALID_NAME_CHARS.sub('_', tool))[:MAX_NAME_CHARS]}"


def _make_tool(
    upstream: "Upstream",
    name: str,
    definition: Definition,
    pin: JsonMapping,
    refresh: Refresh,
    *,
    is_pending: bool,
) -> Tool:
    """Create the tool.

    The description of a tool that is not accepted is hidden, because it could steer a model.

    Hints can add effects; only those that a person has accepted can remove them.
    """
    hints = read_hints(definition.annotations)
    pinned_hints = read_hints(pin.get("annotations"))
    # Unlike effects, permissions follow from what hints tell: a tool without hints needs the
    # network only.
    permissions = get_implied_permissions(hints.effects) | get_implied_permissions(
        pinned_hints.effects
    )
    hints = hints.combine(pinned_hints if pin.get(ACCEPTED) == upstream.origin else Hints())
    if is_pending:
        description = (
            "Not accepted: new, or changed since it was accepted. Hint: onetool servers accept"
            f" {upstream.name}"
        )
        definition = Definition(definition.name, description, ANY_OBJECT)
    return Tool(
        name=name,
        backend=upstream,
        input=UpstreamSchema.from_json(
            clean_schema(definition.input_schema) if definition.is_sound else ANY_OBJECT
        ),
        output=_make_output_schema(definition),
        description=clean(definition.description),
        permissions=REQUIRED_PERMISSIONS | permissions,
        effects=hints.effects,
        is_idempotent=hints.is_idempotent,
        labels=hints.labels | ({PRIVATE} if _has_private_data(upstream.server) else set()),
        source=f"proxy:{upstream.name}",
        refresh=refresh,
    )


def _make_output_schema(definition: Definition) -> Schema | None:
    schema = definition.output_schema
    if schema is None:
        return None
    if definition.is_wrapped:
        definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
        schema = {**schema.get("properties", {}).get("result", {}), **definitions}
    return ForeignSchema.from_json(schema)


def _has_private_data(server: Server) -> bool:
    """Return whether a server can read private data, not just the public internet."""
    has_credentials = bool(server.headers) or server.auth is not None or bool(server.accounts)
    return server.url is None or not server.url.startswith("https://") or has_credentials
