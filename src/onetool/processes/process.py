"""Child processes: their pipes form a channel, and their output on standard error goes to the log.

Descendants end with the process: its guard (`onetool_child.guard`) kills them, or the server does
if there is no guard or if it was stopped.
"""

import asyncio
import codecs
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from anyio.to_thread import run_sync as run_in_thread

from onetool_child import guard

# of the output of a process
MAX_KEPT_CHARS = 4000
MAX_QUOTED_CHARS = 1500
MAX_LINE_CHARS = 8000  # a longer line is passed on incomplete
GUARD = (
    sys.executable,
    "-I",
    "-S",
    str(Path(guard.__file__)),
)  # followed by the command of the process
READ_BYTES = (
    1 << 16
)  # the default of asyncio is four times as large and mapped again for every read
AFTER_KILL_SECONDS = 1.0
STDERR = 2
PRINTED = ". It last printed:"  # between the reason of a failure and the output
OnPrinted = Callable[[str], None]
Variables = Mapping[str, str]  # of an environment, by name


class Endpoint(Protocol):
    """A receiver for process output, such as `Channel`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def reads_from(self, transport: Any) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...


class Printed:
    """The last complete lines that a process printed: since `clear` was called, and in total."""

    def __init__(
        self, on_lines: OnPrinted = lambda _text: None, *, max_chars: int = MAX_KEPT_CHARS
    ) -> None:
        self._on_lines = on_lines
        self._max_chars = max_chars
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._lines = ""
        self._line = ""  # not complete yet
        self._cleared = 0  # characters of `_lines` from before the last `clear`

    def add(self, data: bytes, *, final: bool = False) -> None:
        text = self._line + self._decode(data, final)
        end = text.rfind("\n") + 1
        if final or len(text) - end >= MAX_LINE_CHARS:
            end = len(text)
        lines = text[:end]
        self._line = text[end:]
        kept = _last_lines(self._lines + lines, self._max_chars)
        self._cleared = max(0, self._cleared + len(kept) - len(self._lines) - len(lines))
        self._lines = kept
        if lines:
            self._on_lines(lines)

    def clear(self) -> None:
        self._cleared = len(self._lines)

    @property
    def shown(self) -> str:
        return _last_lines((self._lines[self._cleared :] + self._line).strip(), MAX_QUOTED_CHARS)

    @property
    def tail(self) -> str:
        """The last lines, whatever they are about."""
        return _last_lines(self._lines + self._line, self._max_chars).strip()

    @property
    def sentence(self) -> str:
        """The output, to end an error message; empty if nothing was printed."""
        return f"{PRINTED}\n{self.shown}\n" if self.shown else ""


def describe_status(status: int) -> str:
    """Return the signal name or the status.

    A killed process has -9 in Python, 137 in shells and our guard.
    """
    number = -status if status < 0 else status - guard.SIGNAL_STATUS_OFFSET
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"status {status}"


def _last_lines(text: str, size: int) -> str:
    """Return the last complete lines that fit; if a single line is too long, its end."""
    if len(text) <= size:
        return text
    end = text[-size:]
    return end if text[-size - 1] == "\n" or "\n" not in end[:-1] else end.partition("\n")[2]


class Process(asyncio.SubprocessProtocol):
    def __init__(self, channel: Endpoint, on_printed: OnPrinted, *, guarded: bool) -> None:
        self._channel = channel
        self._guarded = guarded
        self._transport: asyncio.SubprocessTransport
        self.printed = Printed(on_printed)
        self.ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        channel: Endpoint,
        on_printed: OnPrinted,
        *,
        env: Variables,
        cwd: Path | None = None,
        guarded: bool = False,
    ) -> "Process":
        """Start a process.

        `guarded` means that it starts with a guard, which ends its descendants on SIGTERM.
        """
        child = cls(channel, on_printed, guarded=guarded)
        start = asyncio.get_running_loop().subprocess_exec
        await start(lambda: child, *command, env=dict(env), cwd=cwd, start_new_session=True)
        return child

    @property
    def pid(self) -> int:
        return self._transport.get_pid()

    def kill(self) -> None:
        """Kill the process and its descendants, by its guard if it has one."""
        with suppress(ProcessLookupError, PermissionError):
            if sys.platform == "win32":
                self._transport.kill()
            elif (
                not self.ended.done()
            ):  # the kill() of the transport would reap the child behind asyncio's back
                os.killpg(self.pid, signal.SIGTERM if self._guarded else signal.SIGKILL)

    async def end(self, seconds: float) -> None:
        """Wait for the process to exit, then kill it and its descendants."""
        if not await self._wait_until_ended(seconds):
            self.kill()
        if not await self._wait_until_ended(AFTER_KILL_SECONDS) and sys.platform != "win32":
            await run_in_thread(guard.kill_descendants, self.pid, self.pid)
            await self._wait_until_ended(AFTER_KILL_SECONDS)
        self._transport.close()

    async def _wait_until_ended(self, seconds: float) -> bool:
        await asyncio.wait([self.ended], timeout=seconds)
        return self.ended.done()

    # --- asyncio.SubprocessProtocol ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport
        to_child = transport.get_pipe_transport(0)
        from_child = transport.get_pipe_transport(1)
        assert to_child is not None
        assert isinstance(from_child, asyncio.ReadTransport)
        from_child.max_size = READ_BYTES  # type: ignore[attr-defined]
        self._channel.reads_from(from_child)
        self._channel.connection_made(to_child)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 1:
            self._channel.data_received(data)
        else:
            self.printed.add(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._channel.connection_lost(exc)
        elif fd == STDERR:
            self.printed.add(b"", final=True)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Record the exit status. All output has been read by now."""
        if not self.ended.done():
            self.ended.set_result(self._transport.get_returncode())
        self._transport.close()
