"""A child that is started as a program of its own: its pipes are a channel, what it prints is for the log.

What it has started ends with it: a guard inside of it (`ot_child.guard`) sees to that, and where there is none, or one
that was stopped, the server does.
"""

import asyncio
import codecs
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import anyio.to_thread

from ot.children.channel import Channel
from ot_child.guard import end_family

PRINTED_KEPT = 4000
READ_SIZE = 1 << 16  # asyncio's own, four times as much, is mapped and unmapped anew for every read
AFTER_KILL_SECONDS = 1.0
OnPrinted = Callable[[str], None]


class Process(asyncio.SubprocessProtocol):
    def __init__(self, channel: Channel, on_printed: OnPrinted, *, guarded: bool) -> None:
        self._channel, self._on_printed, self._guarded = channel, on_printed, guarded
        self._transport: asyncio.SubprocessTransport
        self.last_words = ""  # the end of what it printed
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
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
        guarded: bool = False,
    ) -> "Process":
        """`guarded` is whether the child begins with a guard, which can be asked to end what is below it."""
        child = cls(channel, on_printed, guarded=guarded)
        start = asyncio.get_running_loop().subprocess_exec
        await start(lambda: child, *command, env=dict(env), cwd=cwd, start_new_session=True)
        return child

    @property
    def pid(self) -> int:
        return self._transport.get_pid()

    def kill(self) -> None:
        """End it at once, with all that it has started: by its guard, or without asking."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if sys.platform == "win32":
                self._transport.kill()
            elif not self.ended.done():  # the transport's own kill would reap the child behind asyncio's back
                os.killpg(self.pid, signal.SIGTERM if self._guarded else signal.SIGKILL)

    async def end(self, seconds: float) -> None:
        """Give it so long to leave by itself, then make sure that nothing of it is left."""
        if not await self._has_ended_within(seconds):
            self.kill()
        if not await self._has_ended_within(AFTER_KILL_SECONDS) and sys.platform != "win32":
            await anyio.to_thread.run_sync(end_family, self.pid, self.pid)
            await self._has_ended_within(AFTER_KILL_SECONDS)
        self._transport.close()

    async def _has_ended_within(self, seconds: float) -> bool:
        await asyncio.wait([self.ended], timeout=seconds)
        return self.ended.done()

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
        text = self._decode(data)
        self.last_words = (self.last_words + text)[-PRINTED_KEPT:]
        self._on_printed(text)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._channel.connection_lost(exc)

    def connection_lost(self, _exc: Exception | None) -> None:
        """It has ended, and all that it wrote has been read."""
        if not self.ended.done():
            self.ended.set_result(self._transport.get_returncode())
