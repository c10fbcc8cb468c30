"""Append messages of `ot.notify` to the file of the first matching topic.

Each message is one YAML document, written atomically even if several processes write at once. The
settings define the topics; a message cannot reach any other file. The number and size of messages
and the size of files are limited, because `ot.notify` needs no permission and must not fill the
disk.
"""

import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from onetool.errors import ArgumentError, BudgetExceeded, StorageError, ToolError
from onetool.settings import paths
from onetool.settings.model import Topic
from onetool.state.memory import Counters
from onetool.util.atomic import locked
from onetool.util.clock_watch import Clock
from onetool.util.render import render
from onetool.util.time_format import in_utc

MAX_TOPIC_CHARS = 500
MAX_MESSAGE_CHARS = 100_000
DEFAULT_MAX_FILE_BYTES = 10 << 20
RATE_SECONDS = 60.0
NO_TOPIC = "SKIP: no matching topic"

# O_NONBLOCK (POSIX) avoids blocking on a pipe; O_BINARY (Windows) keeps line breaks unchanged.
_FLAGS = (
    os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
)


def count_message(counters: Counters, agent: str, per_minute: int) -> None:
    """Count one message. Raise BudgetExceeded if the agent has sent too many. May block."""
    if seconds := counters.take(f"notices {agent}", per_minute, RATE_SECONDS):
        raise BudgetExceeded(
            f"too many messages: notify.per_minute is {per_minute}; try again in {seconds:.0f} s",
            retry_after_seconds=round(seconds, 1),
        )


def publish(
    topics: Sequence[Topic], notices: "NoticeFiles", topic: str, message: Any, now: Clock
) -> str:
    """Append the message to the file of the topic and return a one-line summary.

    Blocks on the disk and on a lock.
    """
    if len(topic) > MAX_TOPIC_CHARS:
        raise ArgumentError(f"topic too long: {len(topic)} characters (maximum {MAX_TOPIC_CHARS})")
    found = next((each for each in topics if _matches(each.pattern, topic)), None)
    if found is None:
        return NO_TOPIC
    notices.append(found.file, _document(topic, message, now()))
    return f"OK: {topic} -> {found.file}"


def _matches(pattern: str, topic: str) -> bool:
    """Match with dynamic programming, because a regular expression could take exponential time."""
    reached = [True] + [False] * len(topic)
    for step in re.findall(r"\*\*|.", pattern, re.DOTALL):
        is_wildcard = step in {"*", "**"}
        row = [is_wildcard and reached[0]]
        for index, character in enumerate(topic):
            extends = row[index] and (step == "**" or character != ":")
            row.append(
                reached[index + 1] or extends
                if is_wildcard
                else reached[index] and character == step
            )
        reached = row
    return reached[-1]


def _document(topic: str, message: Any, seconds: float) -> bytes:
    size = len(render(message, "json"))
    if size > MAX_MESSAGE_CHARS:
        raise ToolError(f"message too long: {size} characters (maximum {MAX_MESSAGE_CHARS})")
    time = in_utc(seconds, "seconds")
    text = render({"topic": topic, "time": time, "message": message}, "yml_h").removesuffix("\n")
    return f"---\n{text}\n".encode()


class _FileFull(OSError):
    """The file has no room for the message."""


class NoticeFiles:
    """Files of messages. Each is appended completely or not at all.

    Relative names are resolved against `directory`.
    """

    def __init__(self, directory: Path, max_file_bytes: int = DEFAULT_MAX_FILE_BYTES) -> None:
        self._directory = directory
        self._max_file_bytes = max_file_bytes

    def append(self, name: str, document: bytes) -> None:
        path = paths.resolve_path(name, self._directory, Path.home())
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with locked(path.with_name(f"{path.name}.lock")):
                descriptor = os.open(path, _FLAGS, 0o600)
                try:
                    _write_document(descriptor, document, self._max_file_bytes)
                finally:
                    os.close(descriptor)
        except (OSError, ValueError) as error:  # ValueError: the name is not a valid file name
            reason = getattr(error, "strerror", "") or error
            hint = "move or delete the file" if isinstance(error, _FileFull) else ""
            raise StorageError(
                f"cannot write the message to {path}: {reason}", hint=hint, file=str(path)
            ) from None


def _write_document(descriptor: int, document: bytes, max_file_bytes: int) -> None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise OSError("not a regular file")
    if status.st_size + len(document) > max_file_bytes:
        raise _FileFull(f"the file is full (notify.max_file_bytes is {max_file_bytes})")
    try:
        data = _line_break(descriptor, status.st_size) + document
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    except OSError:
        with suppress(OSError):
            os.ftruncate(descriptor, status.st_size)
        raise


def _line_break(descriptor: int, size: int) -> bytes:
    """Return the line break that a file without a final one needs."""
    if size == 0:
        return b""
    os.lseek(descriptor, size - 1, os.SEEK_SET)
    return b"" if os.read(descriptor, 1) == b"\n" else b"\n"
