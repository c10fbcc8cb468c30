"""Messages that a model leaves for people: appended to the file of the first topic that matches.

Every message is one YAML document, written whole or not at all, also when several processes write at once. Which
topics there are is configuration; a message can choose among them and reach no other file. Messages are bounded in size
and number, and files in size: an agent that needs no permission for it must not fill the disk.
"""

import os
import re
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from onetool import paths
from onetool.config.model import Topic
from onetool.errors import ArgumentError, BudgetExceeded, StorageError, ToolError
from onetool.render import render
from onetool.storage import NoticeStorage
from onetool.util.locks import locked
from onetool.util.moments import in_utc

MAX_TOPIC = 500
MAX_MESSAGE = 100_000
DEFAULT_MAX_FILE_BYTES = 10 << 20
RATE_SECONDS = 60.0

# Not to wait for the other end of a pipe, and not to change line breaks; each system knows one of the two.
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class RateLimit:
    """How many messages each agent has sent in the last minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._sent: dict[str, deque[float]] = {}

    def take(self, agent: str, per_minute: int) -> None:
        """Count one message. Raise BudgetExceeded if the agent has sent too many."""
        now = self._clock()
        with self._lock:
            sent = self._sent.setdefault(agent, deque())
            while sent and now - sent[0] >= RATE_SECONDS:
                sent.popleft()
            if len(sent) >= per_minute:
                wait = RATE_SECONDS - (now - sent[0]) if sent else RATE_SECONDS
                raise BudgetExceeded(
                    f"too many messages: notify.per_minute is {per_minute}; try again in {wait:.0f} s",
                    retry_after_seconds=round(wait, 1),
                )
            sent.append(now)


def publish(topics: Sequence[Topic], notices: NoticeStorage, topic: str, message: Any, now: Callable[[], float]) -> str:
    """Append the message to the file of the topic; what was done, in a line. Waits for the disk and for a lock."""
    if len(topic) > MAX_TOPIC:
        raise ArgumentError(f"a topic has at most {MAX_TOPIC} characters, this one has {len(topic)}")
    found = next((each for each in topics if _matches(each.pattern, topic)), None)
    if found is None:
        return "SKIP: no matching topic"
    notices.append(found.file, _document(topic, message, now()))
    return f"OK: {topic} -> {found.file}"


def _matches(pattern: str, topic: str) -> bool:
    """Step by step over all beginnings of the topic at once: a regular expression could be made to take for ever."""
    reached = [True] + [False] * len(topic)
    for step in re.findall(r"\*\*|.", pattern, re.DOTALL):
        is_star = step in {"*", "**"}
        row = [is_star and reached[0]]
        for index, character in enumerate(topic):
            goes_on = row[index] and (step == "**" or character != ":")
            row.append(reached[index + 1] or goes_on if is_star else reached[index] and character == step)
        reached = row
    return reached[-1]


def _document(topic: str, message: Any, seconds: float) -> bytes:
    size = len(render(message, "json"))
    if size > MAX_MESSAGE:
        raise ToolError(f"a message has at most {MAX_MESSAGE} characters, this one has {size}")
    time = in_utc(seconds, "seconds")
    text = render({"topic": topic, "time": time, "message": message}, "yml_h").removesuffix("\n")
    return f"---\n{text}\n".encode()


class _FileFull(OSError):
    """The file has no room for the message."""


class NoticeFiles:
    """Files of messages. `folder` is where names that are not absolute begin."""

    def __init__(self, folder: Path, max_file_bytes: int = DEFAULT_MAX_FILE_BYTES) -> None:
        self._folder, self._max_file_bytes = folder, max_file_bytes

    def append(self, name: str, document: bytes) -> None:
        path = paths.placed(name, self._folder, Path.home())
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with locked(path.with_name(f"{path.name}.lock")):
                descriptor = os.open(path, _FLAGS, 0o600)
                try:
                    _write_whole(descriptor, document, self._max_file_bytes)
                finally:
                    os.close(descriptor)
        except (OSError, ValueError) as error:  # a ValueError where the name is none that a file can have
            reason = getattr(error, "strerror", "") or error
            hint = "move or delete the file" if isinstance(error, _FileFull) else ""
            raise StorageError(f"the message was not written to {path}: {reason}", hint=hint, file=str(path)) from None


def _write_whole(descriptor: int, document: bytes, max_file_bytes: int) -> None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise OSError("it is no regular file")
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
    """What a person's last line needs, if they ended it without one."""
    if size == 0:
        return b""
    os.lseek(descriptor, size - 1, os.SEEK_SET)
    return b"" if os.read(descriptor, 1) == b"\n" else b"\n"
