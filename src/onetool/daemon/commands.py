"""Commands of the command line that run in the daemon."""

import argparse
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from onetool.app import OneTool
from onetool.cli.serve import add_arguments
from onetool.daemon.handshake import ClientRequest, NotServed

MAX_FRAME_CHARS: Final = 1 << 20


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
    if rest or options.http or options.host or options.port or options.json or options.standalone:
        raise NotServed("unknown arguments")
    return options.config, tuple(options.expose)


async def run_command(app: OneTool, connection: socket.socket, request: ClientRequest) -> None:
    raise NotServed("not yet")
