# ruff: noqa: INP001, S603 - a script, not part of a package; it runs the commands below
"""Record three assistants that share one server: `uv run python docs/pictures/make_shared_server.py
[DIRECTORY]`.

Real clients start a real server in two projects. The script needs no network, and writes
`shared-server.svg`.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

HERE: Final = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))  # for the helpers of the tests

from docs.pictures.terminal_svg import render_svg  # noqa: E402
from tests.daemon_support import CLIENT, StdioClient, make_environment  # noqa: E402

ASSISTANTS: Final = (("claude-code", "shop"), ("cursor", "shop"), ("codex", "blog"))
SHOWN_HOME: Final = (
    "/home/babbage"  # as long as the path of the temporary directory, so that columns stay aligned
)
HEADING: Final = re.compile(r"^(?:client|application) .*")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="", dir="/tmp") as home:
        lines = list(_play(Path(home)))
    (folder / "shared-server.svg").write_text(
        render_svg("Three assistants, one server", lines), encoding="utf-8"
    )


def _play(home: Path) -> Iterator[str]:
    with ExitStack() as stack:
        for name, project in ASSISTANTS:
            (home / project).mkdir(exist_ok=True)
            client = StdioClient(home, home / project, name)
            stack.callback(client.close)
        yield "\033[32m# three assistants run; one server\033[0m"
        yield from _type(home, "onetool daemon status")
        yield ""
        yield "\033[32m# commands use it too\033[0m"
        yield from _type(home, "onetool run '[n ** 2 for n in range(5)]'")
        _run(home, "onetool daemon stop")


def _type(home: Path, command: str) -> Iterator[str]:
    yield f"\033[2m$\033[0m \033[1m{command}\033[0m"
    for line in _run(home, command).replace(str(home), SHOWN_HOME).splitlines():
        yield HEADING.sub(lambda found: f"\033[2m{found[0]}\033[0m", line)


def _run(home: Path, command: str) -> str:
    words = [*CLIENT, *shlex.split(command)[1:]]
    return subprocess.run(
        words,
        cwd=home / "shop",
        env=make_environment(home),
        capture_output=True,
        text=True,
        check=True,
    ).stdout


if __name__ == "__main__":
    main()
