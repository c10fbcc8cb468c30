"""Commands of the command line that run in the daemon."""

import argparse
import asyncio
import contextlib
import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onetool.app import OneTool
from onetool.cli.remote import STDERR, STDOUT, NotRemote, RemoteOutput, execute
from onetool.cli.serve import add_arguments
from onetool.daemon.handshake import ClientRequest, NotServed
from onetool.daemon_client import CONFIRMATION

MAX_FRAME_CHARS = 1 << 20
STREAMS = {STDOUT: "out", STDERR: "err"}


def parse_serve(arguments: Sequence[str]) -> tuple[Path | None, tuple[str, ...]]:
    """Return the settings file and the published names of a client over stdio. Raise NotServed for anything else."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--config", type=Path)
    add_arguments(parser)
    given = arguments[1:] if arguments[:1] == ("serve",) else arguments
    try:
        options, rest = parser.parse_known_args(given)
    except (argparse.ArgumentError, SystemExit):
        raise NotServed("unknown arguments") from None
    if rest or options.http or options.host or options.port or options.standalone:
        raise NotServed("unknown arguments")
    return options.config, tuple(options.expose)


async def run_command(app: OneTool, connection: socket.socket, request: ClientRequest) -> None:
    """Run a command and send its output, then its exit status. A client that disconnects cancels it.

    Nothing runs before the client confirms that it still waits: it may have run the command itself.
    """
    reader, writer = await asyncio.open_connection(sock=connection)
    if await reader.read(1) != CONFIRMATION:
        writer.close()
        return

    def send(message: dict[str, Any]) -> None:
        writer.write(json.dumps(message).encode() + b"\n")

    def send_text(stream: int, text: str) -> None:
        for start in range(0, len(text), MAX_FRAME_CHARS):
            send({STREAMS[stream]: text[start : start + MAX_FRAME_CHARS]})

    output = RemoteOutput(send_text, request.terminals, request.environment, request.columns)
    running = asyncio.ensure_future(execute(app, list(request.argv), output, request.stdin))
    gone = asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait([running, gone], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            try:
                send({"exit": running.result()})
            except NotRemote:
                send({"here": True})
        await writer.drain()
    finally:
        for task in (running, gone):
            task.cancel()
        await asyncio.gather(running, gone, return_exceptions=True)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
