"""A child that is started as a program of its own: its pipes are a channel, what it prints is for the log.

It leads a process group, so that whatever it has started can be ended with it.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ot.children.channel import Channel

PRINTED_KEPT = 4000
READ_SIZE = 1 << 16  # asyncio's own, four times as much, is mapped and unmapped anew for every read
AFTER_KILL_SECONDS = 1.0
OnPrinted = Callable[[str], None]


class Process(asyncio.SubprocessProtocol):
    def __init__(self, channel: Channel, on_printed: OnPrinted) -> None:
        self._channel, self._on_printed = channel, on_printed
        self._transport: asyncio.SubprocessTransport
        self.last_words = ""  # the end of what it printed
        self.ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        channel: Channel,
        on_printed: OnPrinted,
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
    ) -> "Process":
        child = cls(channel, on_printed)
        start = asyncio.get_running_loop().subprocess_exec
        await start(lambda: child, *command, env=dict(env), cwd=cwd, start_new_session=True)
        return child

    @property
    def pid(self) -> int:
        return self._transport.get_pid()

    def kill(self) -> None:
        """End it, and all it has started that is still in its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if sys.platform == "win32":
                self._transport.kill()
            else:  # the transport's own kill would reap the child behind asyncio's back
                os.killpg(self.pid, signal.SIGKILL)

    async def end(self, seconds: float) -> None:
        """Give it so long to leave by itself, then make sure that nothing of it is left."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self.ended), seconds)
        self.kill()
        with contextlib.suppress(TimeoutError):  # what it started may have left its group, and keep its pipes open
            await asyncio.wait_for(asyncio.shield(self.ended), AFTER_KILL_SECONDS)
        self._transport.close()

    # --- asyncio.SubprocessProtocol ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport
        to_child, from_child = transport.get_pipe_transport(0), transport.get_pipe_transport(1)
        assert to_child is not None
        assert isinstance(from_child, asyncio.ReadTransport)
        from_child.max_size = READ_SIZE  # type: ignore[attr-defined]
        self._channel.reads_from(from_child)
        self._channel.connection_made(to_child)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 1:
            self._channel.data_received(data)
            return
        text = data.decode(errors="replace")
        self.last_words = (self.last_words + text)[-PRINTED_KEPT:]
        self._on_printed(text)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._channel.connection_lost(exc)

    def connection_lost(self, _exc: Exception | None) -> None:
        """It has ended, and all that it wrote has been read."""
        if not self.ended.done():
            self.ended.set_result(self._transport.get_returncode())
