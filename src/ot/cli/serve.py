"""Run the MCP server on standard input and output, for an assistant to talk to."""

import argparse
import sys

from ot.app import OneTool
from ot.cli.opening import with_onetool

STATUS = """\
onetool {version}: this is an MCP server, it waits for an assistant on standard input.
{tools} tools in {packs} packs are ready.

Type instead:
  onetool demo          see what it does
  onetool run 'CODE'    run code as an assistant would
  onetool tools         list the tools
  onetool doctor        check the installation
  onetool --help        everything else\
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


def main(options: argparse.Namespace) -> int:
    return with_onetool(options, _status if sys.stdin.isatty() else _serve)


async def _serve(app: OneTool) -> int:
    from ot.faces.mcp_server import serve_stdio

    await serve_stdio(app)
    return 0


async def _status(app: OneTool) -> int:
    from ot.version import __version__

    print(STATUS.format(version=__version__, tools=len(app.registry), packs=len(app.registry.packs())))
    return 0
