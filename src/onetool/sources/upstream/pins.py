"""Pins: the accepted tool definitions of each upstream server, and how the current ones differ from
them.

A model reads a description as if it were an instruction, so a changed description can steer it.
Changes are reported; with `pin: strict` a new or changed tool is rejected until a person accepts
it.
"""

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import NamedTuple

from onetool.core.policy.effects import describe_claims
from onetool.sources.upstream.definitions import Definition
from onetool.state.documents import Documents
from onetool.state.storage import Pinned
from onetool.util.text import count_common, pluralize
from onetool_child.json_types import JsonMapping

ACCEPTED = (  # key in a pin: the origin of the annotations, if a person has accepted them
    "hints_accepted"
)
MAX_DIFF_LINES = 40
MAX_COMPARED_LINES = 500


class Differences(NamedTuple):
    """The differences between the definitions of a server and its pins, as text by tool."""

    changed: dict[str, str]
    new: dict[str, str]


def compare(
    pins: Documents, server: str, definitions: Iterable[Definition], *, is_strict: bool = False
) -> Differences:
    """Compare definitions with the pins. The first list of a server is pinned as it is.

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
    """Replace the pins of a server by these definitions, which come from `origin`.

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
    """Return the claims of annotations that would lower effects, and that no person has accepted,
    by tool.
    """
    claims = {
        definition.name: describe_claims(definition.annotations)
        for definition in definitions
        if not _accepts_hints(pinned.get(definition.name, {}), definition, origin)
    }
    return {name: text for name, text in claims.items() if text}


def _accepts_hints(pin: JsonMapping, definition: Definition, origin: str) -> bool:
    """Return whether a person has accepted the annotations of the definition from this origin."""
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
