"""Make .onetool/ in this folder: a configuration to fill in and an example pack. Files that exist stay as they are."""

import argparse
import os
from pathlib import Path

from ot import paths, scaffold
from ot.config.trust import trust
from ot.errors import ToolError

NEXT = """\
Try it:    onetool run 'hello.greet(name="Ada")'
Edit it:   {example}
Look at:   onetool tools hello --info full
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")


def main(options: argparse.Namespace) -> int:
    working_dir = paths.placed(os.environ.get("OT_CWD", ""), Path.cwd(), Path.home())
    folder, user = working_dir / paths.FOLDER, Path.home() / paths.FOLDER
    written = scaffold.write_folder(folder)
    if folder.resolve() != user.resolve():
        _trust(folder, user)
    if options.json:
        from ot.render import render

        print(render({"folder": str(folder), "written": list(map(str, written))}, "json"))
        return 0
    print("\n".join(f"wrote {file}" for file in written) or f"{folder} has all of it already")
    print(f"\n{NEXT.format(example=scaffold.extension_file(folder, scaffold.EXAMPLE_PACK))}", end="")
    return 0


def _trust(folder: Path, user: Path) -> None:
    """Whoever makes a folder knows what is in it."""
    try:
        trust(folder, user)
    except OSError as error:
        reason = error.strerror or error
        raise ToolError(f"{folder} is made but not trusted, because {user} cannot be written: {reason}") from None
