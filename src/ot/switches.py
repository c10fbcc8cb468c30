"""What a person has switched off, tool by tool or pack by pack, whatever kind it is. Kept in one small file.

Stored tools and bundles have switches of their own in their files (`ot.bundles`); the configuration says what is on to
begin with. Several processes may use one file: it is read again when it has changed.
"""

import json
from pathlib import Path

from ot import atomic
from ot.errors import ToolError
from ot.locks import locked
from ot.newer import Newer, refuse_newer

FILE = "switches.json"
VERSION = 1


class Switches:
    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._stamp: object = ()
        self._off: frozenset[str] = frozenset()
        self.problem: str | None = None
        self._is_newer = False  # then it is not ours to write

    def off(self) -> frozenset[str]:
        """The names of tools and packs that are switched off at this moment."""
        stamp = self._stamp_now()
        if stamp != self._stamp:
            self._stamp, self._off = stamp, self._read()
        return self._off

    def set(self, name: str, *, on: bool) -> None:
        """It waits for the disk."""
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locked(self._file.with_name(f"{FILE}.lock")):
            now = self._read()
            if self._is_newer:
                raise ToolError(self.problem or "")
            wanted = now - {name} if on else now | {name}
            if wanted != now:
                atomic.write(self._file, json.dumps(_as_kept(wanted), indent=2), durable=True)

    def _stamp_now(self) -> object:
        try:
            facts = self._file.stat()
        except OSError:
            return None
        return facts.st_mtime_ns, facts.st_size, facts.st_ino

    def _read(self) -> frozenset[str]:
        self.problem, self._is_newer = None, False
        try:
            data = json.loads(self._file.read_bytes())
            refuse_newer(data.get("version"), VERSION, self._file)
            kept = data["off"]
            return frozenset(name for name in kept if isinstance(name, str))
        except FileNotFoundError:
            return frozenset()
        except Newer as error:
            self.problem, self._is_newer = f"nothing counts as switched off: {error.message}", True
            return frozenset()
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self.problem = f"{self._file} is damaged, so that nothing counts as switched off: mend or delete it"
            return frozenset()


def _as_kept(off: frozenset[str]) -> dict[str, object]:
    return {"version": VERSION, "off": sorted(off)}
