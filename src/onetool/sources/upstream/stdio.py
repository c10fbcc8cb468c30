"""Upstream servers over stdio. Message sizes are checked before parsing, and reading is paced."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from anyio.to_thread import run_sync as run_in_thread

from onetool.processes.collector import Collector
from onetool.processes.pace import Pace
from onetool.processes.process import GUARD, Process
from onetool.sources.upstream.message_limits import (
    MAX_UPSTREAM_BYTES,
    MIN_CHARGED_BYTES,
    admit,
    reject,
)
from onetool.sources.upstream.server_launch import ServerLaunch
from onetool_child.messages import TooLarge, parse_without_gc

READ_SIZE = 1 << 16
MAX_UNSENT_BYTES = 1 << 20
ROOM_SECONDS = 0.01
END_SECONDS = 2.0  # for a server to exit after its input is closed


class _Pipes:
    """The standard input and output of the process, as an endpoint of `Process`."""

    def __init__(self) -> None:
        self.output = asyncio.StreamReader(limit=READ_SIZE)
        self._input: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._input = transport

    def reads_from(self, transport: Any) -> None:
        self.output.set_transport(transport)

    def data_received(self, data: bytes) -> None:
        self.output.feed_data(data)

    def connection_lost(self, _error: Exception | None) -> None:
        self.output.feed_eof()

    async def send(self, data: bytes) -> None:
        """Write, and wait while the server does not read."""
        if self._input.is_closing():
            self.output.feed_eof()
            return
        self._input.write(data)
        while self._input.get_write_buffer_size() > MAX_UNSENT_BYTES:  # noqa: ASYNC110 - the transport has no event for it
            await asyncio.sleep(ROOM_SECONDS)

    def close(self) -> None:
        self._input.close()


class MissingProgram(Exception):
    """The program of the server is not installed. The message is its name."""


@asynccontextmanager
async def stdio_streams(
    launch: ServerLaunch,
) -> AsyncIterator[tuple[Process, MemoryObjectReceiveStream[Any], MemoryObjectSendStream[Any]]]:
    """Start the server and yield it with its two message streams for the SDK; end it afterwards."""
    from mcp.client.stdio import get_default_environment

    if not await run_in_thread(launch.has_program):
        raise MissingProgram(launch.command[0])
    pipes = _Pipes()
    guard = GUARD if hasattr(os, "fork") else ()
    process = await Process.start(
        [*guard, *launch.command],
        pipes,
        lambda _text: None,
        env={**get_default_environment(), **launch.environment},
        cwd=await run_in_thread(launch.prepare_directory),
        guarded=bool(guard),
    )
    to_session, incoming = anyio.create_memory_object_stream[Any](0)
    outgoing, from_session = anyio.create_memory_object_stream[Any](0)
    tasks = [
        asyncio.ensure_future(_read(pipes, to_session)),
        asyncio.ensure_future(_write(pipes, from_session)),
    ]
    try:
        yield process, incoming, outgoing
    finally:
        with anyio.CancelScope(shield=True):
            incoming.close()
            outgoing.close()
            pipes.close()
            await process.end(END_SECONDS)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _read(pipes: _Pipes, to_session: MemoryObjectSendStream[Any]) -> None:
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, TooLarge):
        async with to_session:
            await _read_messages(pipes, to_session)
    while await pipes.output.read(READ_SIZE):  # a server blocked in a write could not exit
        pass


async def _read_messages(pipes: _Pipes, to_session: MemoryObjectSendStream[Any]) -> None:
    collector = Collector(MAX_UPSTREAM_BYTES)
    pace = Pace()
    while chunk := await pipes.output.read(READ_SIZE):
        *ends, start = chunk.split(b"\n")
        for end in ends:
            collector.add(end)
            started = pace.now()
            line = admit(*collector.take())
            if line.strip():
                message = parse_without_gc(_parse, line)
                pause = pace.charge(started, max(len(line), MIN_CHARGED_BYTES))
                await to_session.send(message)
                if pause:
                    await asyncio.sleep(pause)
        collector.add(start)


def _parse(line: bytes) -> Any:
    """Parse a message.

    For an invalid line, return an error response to its request, or an error the SDK ignores.
    """
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    try:
        return SessionMessage(
            jsonrpc_message_adapter.validate_json(line.decode("utf-8", "replace"), by_name=False)
        )
    except ValueError as error:
        try:
            response = reject(line, "the server sent a message that is not valid JSON-RPC")
        except TooLarge:
            return error
        return _parse(response) if response else error


async def _write(pipes: _Pipes, from_session: MemoryObjectReceiveStream[Any]) -> None:
    async with from_session:
        async for message in from_session:
            await pipes.send(
                message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
            )
