"""Upstream servers over stdio: the process and its messages.

Messages are checked before they are parsed, and read slowly if there are many.

Files in the working directory must not decide what a server of the user's settings runs. It starts
in a private directory. With `cwd: project` it starts in the working directory, where Python, npm
and uv ignore the files. A server of a trusted project may run the project's code, but npx does not
look for packages there.
"""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from anyio.to_thread import run_sync as run_in_thread

from onetool.processes.channel import END_BYTES, Collector, Pace, find_id
from onetool.processes.process import GUARD, Process, Variables
from onetool.settings.load import Loaded
from onetool.settings.model import Server
from onetool.settings.programs import (
    NPM,
    PROJECT,
    ignores_packages,
    imports_from_directory,
    private_directory,
    start_directory,
    uv_settings,
)
from onetool_child.json_types import JsonObject
from onetool_child.messages import MAX_VALUES, TooLarge, has_few_values, parse_without_gc

READ_SIZE = 1 << 16
MAX_UNSENT_BYTES = 1 << 20
ROOM_SECONDS = 0.01
END_SECONDS = 2.0  # for a server to exit after its input is closed
MAX_UPSTREAM_BYTES = 8 << 20  # a message cannot be split, and images are large
MAX_ITEMS = 10_000  # in a list of a result; the SDK validates each one
MIN_CHARGED_BYTES = 1 << 12  # handling even a short message costs time
METHOD = b'"method"'  # in requests and notifications, not in responses
SAFE_PATH_VARIABLES = {
    "PYTHONSAFEPATH": "1"
}  # Python does not import from the directory it starts in
FALLBACK_DIRECTORY = Path("/")


# --- Launch ---------------------------------------------------------------------------------------


class ServerLaunch(NamedTuple):
    """Parameters to start a server.

    `private` is its private directory, if it uses one; created on demand.
    """

    command: tuple[str, ...]
    directory: Path
    environment: Variables
    private: Path | None = None

    def has_program(self) -> bool:
        """Return whether the program exists; a path with a slash starts at the directory."""
        program = self.command[0]
        path = self.directory / program if "/" in program else program
        return shutil.which(path, path=self.environment.get("PATH")) is not None

    def prepare_directory(self) -> Path:
        """Create and return the start directory.

        If the home directory is not writable, return another one.
        """
        try:
            if self.private is not None:
                self.private.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            return FALLBACK_DIRECTORY if self.directory == self.private else self.directory
        return self.directory


def plan_launch(name: str, server: Server, loaded: Loaded, environment: Variables) -> ServerLaunch:
    """Return how to start a server under these settings."""
    directory = start_directory(name, server, loaded)
    private = private_directory(name, loaded.directories)
    is_user_server = name in loaded.user_servers and not (
        server.cwd and Path(server.cwd).expanduser().is_absolute()
    )
    ignores_files = is_user_server or server.cwd == PROJECT
    variables = {**environment, **uv_settings(environment)}
    if directory != private and (ignores_files or not imports_from_directory(server, directory)):
        variables |= SAFE_PATH_VARIABLES
    command = str(server.command)
    if not (ignores_files or ignores_packages(server)):
        return ServerLaunch((command, *server.args), directory, {**variables, **server.env})
    # npm and npx read `.npmrc` and `node_modules/.bin` from the prefix only.
    options = ("--prefix", str(private)) if PurePath(command).name in NPM else ()
    return ServerLaunch(
        (command, *options, *server.args), directory, {**variables, **server.env}, private
    )


# --- Message limits -------------------------------------------------------------------------------


def admit(message: bytes, problem: str | None) -> bytes:
    """Return the message, or an error response in its place; nothing if it is not a response.

    `problem` is a problem that is already known. Raise TooLarge if the id of the request is
    unknown.
    """
    if problem is None and not has_few_values(message):
        problem = f"the message has more than {MAX_VALUES} values"
    return message if problem is None else reject(message, problem)


def reject(message: bytes, problem: str) -> bytes:
    if METHOD in message[:END_BYTES]:
        return b""
    ident = find_id(message)
    if ident is None:
        raise TooLarge(problem)
    return json.dumps(error_response(ident, problem)).encode()


def error_response(ident: int | str, reason: str) -> JsonObject:
    return {"jsonrpc": "2.0", "id": ident, "error": {"code": -32603, "message": reason}}


def has_too_many_items(result: Any) -> bool:
    return isinstance(result, dict) and any(
        isinstance(part, list) and len(part) > MAX_ITEMS for part in result.values()
    )


# --- Streams --------------------------------------------------------------------------------------


class _Pipes:
    """A process's standard input and output, as an endpoint for `Process`."""

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
    """The server program is not installed. The message is its name."""


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
