"""What the definitions of a server were when they were first used, and what has changed since.

A description is read by a model as if it were an instruction, so that a server that changes one unseen could say
anything. Changes are told; with `pin: strict` a tool that has changed is refused until a person accepts it.
"""

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ot import atomic
from ot.errors import ToolError
from ot.locks import locked
from ot.newer import refuse_newer
from ot.proxy.definitions import Definition

VERSION = 1
MOST_LINES = 40
Tools = dict[str, dict[str, Any]]  # definitions by name
Pinned = dict[str, Tools]


class Pins:
    def __init__(self, file: Path) -> None:
        self._file = file

    def changes(self, server: str, definitions: Iterable[Definition]) -> dict[str, str]:
        """For each tool that is not what it was, the difference. What was never seen is pinned as it is now."""
        now = {each.name: asdict(each) for each in definitions}
        pinned = self._read().get(server, {})
        if now.keys() - pinned.keys():
            pinned = self._write(server, lambda known: {**now, **known})
        return {name: _difference(pinned[name], each) for name, each in now.items() if pinned.get(name, each) != each}

    def accept(self, server: str, definitions: Iterable[Definition]) -> None:
        self._write(server, lambda _: {each.name: asdict(each) for each in definitions})

    def _read(self) -> Pinned:
        """As they are now: a person accepts changes in another process."""
        try:
            pinned: Any = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise ToolError(f"{self._file} cannot be read: {error}. Mend it, or delete it to pin anew.") from None
        if isinstance(pinned, dict) and isinstance(pinned.get("version"), int):  # older ones hold the servers alone
            refuse_newer(pinned["version"], VERSION, self._file)
            pinned = pinned.get("servers")
        if not isinstance(pinned, dict) or not all(isinstance(tools, dict) for tools in pinned.values()):
            raise ToolError(f"{self._file} does not hold pins. Delete it to pin anew.")
        return dict(pinned)

    def _write(self, server: str, change: Callable[[Tools], Tools]) -> Tools:
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locked(self._file.with_name(f"{self._file.name}.lock")):
            pinned = self._read()
            pinned[server] = change(pinned.get(server, {}))
            data = {"version": VERSION, "servers": pinned}
            atomic.write(self._file, json.dumps(data, indent=1, sort_keys=True), durable=True)
        return pinned[server]


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    old, new = (json.dumps(each, indent=1, sort_keys=True, ensure_ascii=False).splitlines() for each in (before, after))
    lines = list(difflib.unified_diff(old, new, "as it was", "as it is now", lineterm="", n=1))
    more = [f"… {len(lines) - MOST_LINES} more lines"] if len(lines) > MOST_LINES else []
    return "\n".join([*lines[:MOST_LINES], *more])
