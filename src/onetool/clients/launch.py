"""How a client starts the OneTool that is running now.

The absolute path of the executable: clients that are no terminal programs do not know the person's PATH. Run by
uvx, the executable lies in a cache that uv may empty at any time; then it is uvx again, with the source it was given.
Nothing else is ever taken from a registry: nobody is to start a stranger's package because of us.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PROGRAM = "onetool"
DISTRIBUTION = "onetool-run"  # it also installs a command of this name, which is what uvx runs
_UV_CACHE = re.compile(r"(?:archive|environments|builds)-v[0-9]+")

Which = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Launch:
    command: str
    args: tuple[str, ...] = ()
    note: str = ""


def launch(interpreter: Path, direct_url: str | None, which: Which = shutil.which) -> Launch:
    """`interpreter` is Python's own path, `direct_url` the installer's note on where this package came from."""
    names = (interpreter.parent / PROGRAM, interpreter.parent / f"{PROGRAM}.exe")
    beside = next(filter(Path.is_file, names), None)
    if beside is not None and not is_passing(beside):
        return Launch(str(beside))
    found = which(PROGRAM)
    if found is not None and not is_passing(Path(found)):
        return Launch(os.path.abspath(found))  # noqa: PTH100 - a link is kept: what it leads to changes with updates
    if is_passing(interpreter):
        return _by_uvx(direct_url, which)
    return Launch(str(interpreter), ("-c", "from onetool.cli.main import main; raise SystemExit(main())"))


def is_passing(path: Path) -> bool:
    """Whether the path lies where uv keeps what it may delete."""
    return any(_UV_CACHE.fullmatch(part) for part in path.parts)


def _by_uvx(direct_url: str | None, which: Which) -> Launch:
    uvx = which("uvx")
    stable = uvx if uvx is not None and not is_passing(Path(uvx)) else None
    args: tuple[str, ...] = (DISTRIBUTION,)
    if direct_url is not None:
        data = json.loads(direct_url)
        vcs = f"{data['vcs_info']['vcs']}+" if "vcs_info" in data else ""
        args = ("--from", f"{vcs}{data['url']}", PROGRAM)
    note = "" if stable else "uvx must be on the PATH that your assistant sees"
    return Launch(stable or "uvx", args, note)
