"""Pictures, sounds and other bytes that tools gave: kept on disk for a while, known to code by a handle.

Code passes the handle on; a run that returns it shows its client the real thing.
"""

import json
import os
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ot.errors import ToolError
from ot.newer import refuse_newer

VERSION = 1
HANDLE = re.compile("[0-9a-f]{32}")
OURS = re.compile(rf"media-{HANDLE.pattern}\.(?:bin|json)")


class Content(NamedTuple):
    data: bytes
    mime_type: str


class Media:
    def __init__(self, folder: Path, ttl: float, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._ttl, self._clock = folder, ttl, clock

    def keep(self, data: bytes, mime_type: str, agent: str) -> str:
        """The handle under which this agent finds it again."""
        handle = secrets.token_hex(16)
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._clean()
            self._write(handle, "bin", data)
            about = {"version": VERSION, "mime_type": mime_type, "agent": agent}
            self._write(handle, "json", json.dumps(about).encode())
        except OSError as error:
            raise ToolError(f"{mime_type} could not be kept in {self._folder}: {error.strerror or error}") from None
        return handle

    def read(self, handle: object, agent: str) -> Content:
        missing = ToolError(f"there is no media {str(handle)[:50]!r}, or it has expired; run the call again")
        if not isinstance(handle, str) or not HANDLE.fullmatch(handle):
            raise missing
        try:
            about = json.loads(self._file(handle, "json").read_bytes())
            refuse_newer(about.get("version"), VERSION, f"the media {handle}")
            if about["agent"] != agent or self._is_over(self._file(handle, "bin").stat()):
                raise missing
            return Content(self._file(handle, "bin").read_bytes(), str(about["mime_type"]))
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            raise missing from None

    def _write(self, handle: str, part: str, data: bytes) -> None:
        descriptor = os.open(self._file(handle, part), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)

    def _clean(self) -> None:
        for entry in os.scandir(self._folder):
            with suppress(FileNotFoundError):  # another process cleans too
                if OURS.fullmatch(entry.name) and self._is_over(entry.stat(follow_symlinks=False)):
                    Path(entry.path).unlink()

    def _is_over(self, found: os.stat_result) -> bool:
        return self._clock() - found.st_mtime > self._ttl

    def _file(self, handle: str, part: str) -> Path:
        return self._folder / f"media-{handle}.{part}"
