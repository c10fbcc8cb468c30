"""Pins: the accepted tool definitions of each upstream server, and how the current ones differ from them.

A model reads a description as if it were an instruction, so a changed description can steer it. Changes are reported;
with `pin: strict` a new or changed tool is rejected until a person accepts it.
"""

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from onetool.errors import StorageError, ToolError
from onetool.policy.hints import describe_claims
from onetool.problem import STORAGE, Location
from onetool.proxy.definitions import Definition
from onetool.storage import Pinned, PinStorage
from onetool.util import atomic
from onetool.util.locks import locked
from onetool.util.storage_errors import storage_error
from onetool.util.text import count_common, pluralize
from onetool.util.versioning import reject_newer

VERSION = 1
ACCEPTED = "hints_accepted"  # key in a pin: the origin of the annotations, if a person has accepted them
MAX_DIFF_LINES, MAX_COMPARED_LINES = 40, 500


class Differences(NamedTuple):
    """The differences between the definitions of a server and its pins, as text by tool."""

    changed: dict[str, str]
    new: dict[str, str]


def compare(
    pins: PinStorage, server: str, definitions: Iterable[Definition], *, is_strict: bool = False
) -> Differences:
    """Compare definitions with the pins. The first list of a server is pinned as it is.

    Tools that appear later are pinned at once, unless `is_strict`: then they are new until a person accepts them.
    """
    now = {each.name: asdict(each) for each in definitions}
    pinned = pins.get(server)
    if pinned is None or any(_is_incomplete(pinned.get(name), each, is_strict) for name, each in now.items()):
        pinned = pins.update(server, lambda known: _complete(known, now, is_strict))
    known = {name: {key: pin[key] for key in pin if key != ACCEPTED} for name, pin in pinned.items()}
    changed = {name: _difference(known[name], now[name]) for name in known if now.get(name, known[name]) != known[name]}
    return Differences(changed, {name: _difference({}, now[name]) for name in now if name not in pinned})


def accept(
    pins: PinStorage,
    server: str,
    definitions: Iterable[Definition],
    origin: str,
    hints: Mapping[str, str] | None = None,
) -> None:
    """Replace the pins of a server by these definitions, which come from `origin`.

    `hints` are the claims that a person has seen and accepts, by tool; see `list_claims`.
    """

    def change(known: Pinned | None) -> Pinned:
        pinned = {each.name: asdict(each) for each in definitions}
        for name, pin in pinned.items():
            annotations = pin["annotations"]
            claims = describe_claims(annotations)
            is_new = claims != "" and (hints or {}).get(name) == claims
            if is_new or _is_accepted((known or {}).get(name, {}), annotations, origin):
                pin[ACCEPTED] = origin
        return pinned

    pins.update(server, change)


def _is_accepted(pin: Mapping[str, Any], annotations: Mapping[str, Any] | None, origin: str) -> bool:
    return pin.get(ACCEPTED) == origin and pin.get("annotations") == annotations


def list_claims(pinned: Pinned, definitions: Iterable[Definition], origin: str) -> dict[str, str]:
    """Return the claims of annotations that would lower effects, and that no person has accepted, by tool."""
    claims: dict[str, str] = {}
    for definition in definitions:
        is_accepted = _is_accepted(pinned.get(definition.name, {}), definition.annotations, origin)
        text = "" if is_accepted else describe_claims(definition.annotations)
        if text:
            claims[definition.name] = text
    return claims


class Pins:
    """The pins of all servers, in one file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def get(self, server: str) -> Pinned | None:
        """Return the pins as they are now: a person accepts changes in another process."""
        return self._read().get(server)

    def servers(self) -> list[str]:
        return sorted(self._read())

    def update(self, server: str, change: Callable[[Pinned | None], Pinned]) -> Pinned:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with locked(self._file.with_name(f"{self._file.name}.lock")):
                pinned = self._read()
                pinned[server] = change(pinned.get(server))
                data = {"version": VERSION, "servers": pinned}
                atomic.write(self._file, json.dumps(data, indent=1, sort_keys=True), durable=True)
        except OSError as error:
            raise storage_error(self._file.parent, error, StorageError) from error
        return pinned[server]

    def _read(self) -> dict[str, Pinned]:
        try:
            pinned: Any = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise self._unreadable(str(error)) from None
        if isinstance(pinned, dict) and isinstance(pinned.get("version"), int):  # older files contain only the servers
            reject_newer(pinned["version"], VERSION, self._file)
            pinned = pinned.get("servers")
        tools = pinned.values() if isinstance(pinned, dict) else [None]
        if not all(isinstance(each, dict) and all(isinstance(pin, dict) for pin in each.values()) for each in tools):
            raise self._unreadable("not a valid pin file")
        return dict(pinned)

    def _unreadable(self, reason: str) -> ToolError:
        hint, location = "fix it, or delete it to pin all servers again", Location(str(self._file))
        return ToolError(f"cannot read {self._file}: {reason}", hint=hint, location=location, code=STORAGE)


def _is_incomplete(pin: Mapping[str, Any] | None, definition: Mapping[str, Any], is_strict: bool) -> bool:
    """Return whether the pin is missing, or was written by a version that recorded fewer fields."""
    return not is_strict if pin is None else bool(definition.keys() - pin.keys())


def _complete(known: Pinned | None, now: Pinned, is_strict: bool) -> Pinned:
    """Add missing fields to the pins, and pins for tools that need no acceptance."""
    if known is None:
        return now
    completed = {name: {**now.get(name, {}), **pin} for name, pin in known.items()}
    return completed if is_strict else {**now, **completed}


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    old, new = (json.dumps(each, indent=1, sort_keys=True, ensure_ascii=False).splitlines() for each in (before, after))
    start = max(0, count_common(old, new) - 1)
    old, new = old[start:], new[start:]
    end = max(0, count_common(old[::-1], new[::-1]) - 1)
    # difflib takes quadratic time, and a server chooses the lines.
    old, new = (side[: len(side) - end][:MAX_COMPARED_LINES] for side in (old, new))
    lines = list(difflib.unified_diff(old, new, "pinned", "current", lineterm="", n=1))
    omitted = [f"… {pluralize(len(lines) - MAX_DIFF_LINES, 'more line')}"] if len(lines) > MAX_DIFF_LINES else []
    return "\n".join([*lines[:MAX_DIFF_LINES], *omitted])
