"""Determines the command with which a client starts the running OneTool.

It is the absolute path of the executable, because desktop clients do not know the PATH of the
user's shell. If uvx runs OneTool, the executable is in a cache that uv may delete, so the command
is uvx with the same source. No other command installs from a registry, so that no client ever
starts a package of somebody else.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

PROGRAM = "onetool"
DISTRIBUTION = "onetool-run"  # it also installs a command of this name, which is what uvx runs
_UV_CACHE = re.compile(r"(?:archive|environments|builds)-v[0-9]+")

Which = Callable[[str], str | None]


class OneToolCommand(NamedTuple):
    command: str
    args: tuple[str, ...] = ()
    note: str = ""


def find_start_command(
    interpreter: Path, direct_url: str | None, which: Which = shutil.which
) -> OneToolCommand:
    """Return the command.

    `interpreter` is Python's path, `direct_url` what direct_url.json contains.
    """
    names = (interpreter.parent / PROGRAM, interpreter.parent / f"{PROGRAM}.exe")
    beside = next(filter(Path.is_file, names), None)
    if beside is not None and not is_in_uv_cache(beside):
        return OneToolCommand(str(beside))
    found = which(PROGRAM)
    if found is not None and not is_in_uv_cache(Path(found)):
        return OneToolCommand(os.path.abspath(found))  # noqa: PTH100 - keeps links, whose targets change with updates
    if is_in_uv_cache(interpreter):
        return _build_uvx_command(direct_url, which)
    return OneToolCommand(
        str(interpreter), ("-c", "from onetool.cli.main import main; raise SystemExit(main())")
    )


def is_in_uv_cache(path: Path) -> bool:
    """Return whether the path is in a cache of uv."""
    return any(_UV_CACHE.fullmatch(part) for part in path.parts)


def _build_uvx_command(direct_url: str | None, which: Which) -> OneToolCommand:
    uvx = which("uvx")
    stable = uvx if uvx is not None and not is_in_uv_cache(Path(uvx)) else None
    args: tuple[str, ...] = (DISTRIBUTION,)
    if direct_url is not None:
        data = json.loads(direct_url)
        vcs = f"{data['vcs_info']['vcs']}+" if "vcs_info" in data else ""
        args = ("--from", f"{vcs}{data['url']}", PROGRAM)
    note = "" if stable else "uvx must be on the PATH that your assistant sees"
    return OneToolCommand(stable or "uvx", args, note)
