"""Run `onetool` as far as possible as on Windows: `python -m tests.e2e.without_posix ARGUMENTS [,
ARGUMENTS]...`.

The commands run one after the other in this process, which prints their exit statuses. Cells run
without POSIX too. The dependencies are imported first and stay as they are. So this finds imports
and calls that Windows lacks; the GitHub workflow runs the real thing.
"""

import importlib
import itertools
import pkgutil
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

import anyio._backends._asyncio
import anyio.to_thread
import cryptography.hazmat.primitives.ciphers.aead
import mcp
import starlette.applications
import uvicorn
from tests.e2e.posix_remover import remove_posix

PRELOADED = (anyio, cryptography, mcp, starlette, uvicorn, webbrowser)
# The daemon, and the process that forks cells, exist only on POSIX.
POSIX_ONLY = ("onetool.server.daemon.", "onetool_child.zygote")
IN_CHILDREN = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import posix_remover;"
    " sys.path.pop(0); posix_remover.remove_posix(); "
)


def remove_posix_in_cells() -> None:
    from onetool.runs import launch

    command_for = launch.command_for

    def command_without_posix(module: str, arguments: Sequence[str]) -> list[str]:
        command = command_for(module, arguments)
        command[command.index("-c") + 1] = IN_CHILDREN + command[command.index("-c") + 1]
        return command

    vars(launch)["command_for"] = command_without_posix


def import_everything() -> None:
    for package in map(importlib.import_module, ("onetool", "onetool_child")):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.startswith(POSIX_ONLY) and not found.name.endswith("__main__"):
                importlib.import_module(found.name)


def main(arguments: Sequence[str]) -> None:
    remove_posix()
    remove_posix_in_cells()
    import_everything()
    from onetool.cli.main import main as run_command

    commands = [
        list(group) for is_comma, group in itertools.groupby(arguments, ",".__eq__) if not is_comma
    ]
    sys.stdout.write(f"{[run_command(command) for command in commands]}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
