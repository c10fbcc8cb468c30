"""Tools and packs that a person has disabled, stored in one small file.

Bundles store their own state (`onetool.bundles`). Several processes may share the file: it is read again after changes.
If it cannot be read, all tools are disabled, because any of them may have been disabled by a person.
"""

import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from shlex import quote
from typing import Final

from onetool.errors import BundleError
from onetool.util import atomic
from onetool.util.locks import locked
from onetool.util.problem import STORAGE, Problem, storage_problem
from onetool.util.storage_errors import storage_error
from onetool.util.versioning import NewerVersion, check_version

FILE = "switches.json"
VERSION = 1
EVERYTHING: Final = "*"  # not a valid name of a tool or pack
OWNER_MARK: Final = "owner:"  # before the name or ID of what an owner disabled; not a part of a valid name


def list_owner_marks(off: Iterable[str]) -> frozenset[str]:
    """Return the names and IDs that an owner disabled; `EVERYTHING` if that is unknown."""
    marks = (name.removeprefix(OWNER_MARK) for name in off if name == EVERYTHING or name.startswith(OWNER_MARK))
    return frozenset(marks)


class Switches:
    """The stored state of tools and packs: enabled or disabled."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / FILE
        self._stamp: object = ()
        self._off: frozenset[str] = frozenset()
        self.problem: Problem | None = None

    def off(self) -> frozenset[str]:
        """Return the names of disabled tools and packs; `EVERYTHING` if the file cannot be read."""
        stamp = self._read_stamp()
        if stamp != self._stamp:
            self._stamp, self._off = stamp, self._read()
        return self._off

    def set(self, *names: str, on: bool) -> None:
        """Enable or disable tools and packs. Blocks on the disk."""
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with locked(self._file.with_name(f"{FILE}.lock")):
                current = self._read()
                if EVERYTHING in current:  # a new file would enable what the old one disables
                    assert self.problem is not None
                    details = {"file": str(self._file)}
                    raise BundleError(self.problem.message, hint=self.problem.hint, code=STORAGE, details=details)
                wanted = current.difference(names) if on else current.union(names)
                if wanted != current:
                    atomic.write(
                        self._file, json.dumps({"version": VERSION, "off": sorted(wanted)}, indent=2), durable=True
                    )
        except OSError as error:
            raise storage_error(self._file.parent, error) from error

    def _read_stamp(self) -> object:
        try:
            facts = self._file.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            return error.errno
        return facts.st_mtime_ns, facts.st_size, facts.st_ino

    def _read(self) -> frozenset[str]:
        self.problem = None
        try:
            data = json.loads(self._read_bytes())
            check_version(data.get("version"), VERSION, self._file)
            names = data["off"]
            if isinstance(names, list) and all(isinstance(name, str) for name in names):
                return frozenset(names)
            self.problem = self._unreadable("it is damaged")
        except FileNotFoundError:
            return frozenset()
        except NewerVersion as error:
            self.problem = storage_problem(f"all tools are disabled: {error.message}", self._file, error.hint)
        except OSError as error:
            self.problem = self._unreadable(error.strerror or str(error))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self.problem = self._unreadable("it is damaged")
        return frozenset({EVERYTHING})

    def _read_bytes(self) -> bytes:
        """Read the file without blocking on a pipe."""
        with os.fdopen(os.open(self._file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError("it is not a regular file")
            return file.read()

    def _unreadable(self, reason: str) -> Problem:
        hint = f"restore the file, or delete it to enable every tool: `rm {quote(str(self._file))}`"
        return storage_problem(f"all tools are disabled: cannot read {self._file}: {reason}", self._file, hint)
