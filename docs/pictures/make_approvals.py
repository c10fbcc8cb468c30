# ruff: noqa: INP001, S602 - a script, not part of a package; the shell runs the commands below
"""Record thirty issues that one approval creates: `uv run python docs/pictures/make_approvals.py
[DIRECTORY]`.

A real MCP client starts a real server, a person approves in a real terminal, and the server is
killed in between. The script needs no network. It fails if an issue is missing or was created
twice, and writes `approvals.svg`.
"""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap
from typing import Final

HERE: Final = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))  # for the helpers of the tests

from docs.pictures.terminal_svg import render_svg  # noqa: E402
from tests.runs_support import answer_in_terminal, read_states  # noqa: E402
from tests.support import (  # noqa: E402 - after the path is set
    PROGRAM,
    Connection,
    configure,
    connect,
    environment,
    eventually,
    get_texts,
)

MAX_LINE_CHARS: Final = 109
ISSUES, ISSUES_BEFORE_KILL = 30, 12
SETTINGS: Final = """\
agents: {default: {permissions: [read, write], policy: ask-writes}}
approvals: {wait: 0.5}
"""
PACK: Final = '''\
from pathlib import Path
from onetool import tool

@tool(effects=["write"])
def create(title: str, repo: str) -> None:
    """Create an issue."""
    with Path(__file__).parents[3].joinpath("issues.txt").open("a") as file:
        file.write(f"{repo}: {title}\\n")
'''
CODE: Final = f"""\
import time
for number in range(1, {ISSUES + 1}):
    issues.create(repo="me/shop", title=f"Check page {{number}}")
    time.sleep(0.2)
f"{{number}} issues"
"""


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as home:
        lines = list(Recording(Path(home)).play())
    (folder / "approvals.svg").write_text(
        render_svg("Thirty issues from one approval", lines), encoding="utf-8"
    )


class Recording:
    """The lines of a terminal, as they happen."""

    def __init__(self, home: Path) -> None:
        self._home, self._issues = home, home / "issues.txt"
        configure(home, SETTINGS)
        pack = home / ".onetool" / "tools" / "issues"
        pack.mkdir(parents=True)
        (pack / "issues_tools.py").write_text(PACK, encoding="utf-8")
        self._variables = {**environment(home), "PATH": f"{Path(PROGRAM).parent}:/usr/bin:/bin"}

    def play(self) -> Iterator[str]:
        with connect(self._home) as assistant:
            yield from _comment("the assistant runs code; policy: ask-writes")
            paused, *shown = self._run(assistant, CODE)
            yield from shown
            run_id = paused.split()[2]
            yield ""
            yield from _comment("you, in a terminal")
            grant = ("--grant", 'issues.create(repo="me/shop")', "--count", str(ISSUES - 1))
            yield from self._approve(run_id[:10], *grant)
            if not eventually(lambda: self._is_between_calls(run_id)):
                raise SystemExit("the run does not continue")
            yield from self._type("wc -l issues.txt")
            yield from self._type(f"kill -9 {assistant.server}")
            yield from self._type("onetool runs")
        yield ""
        yield from _comment("the assistant starts the server again")
        with connect(self._home) as assistant:
            value, *shown = self._run(assistant, f'ot.run_result("{run_id}", wait=20)')
            yield from shown
        yield ""
        yield from _comment("30 issues, none twice")
        yield from self._type("wc -l issues.txt")
        yield from self._type("sort issues.txt | uniq -d | wc -l")
        titles = self._issues.read_text(encoding="utf-8").splitlines()
        if value != f"{ISSUES} issues" or len(titles) != ISSUES or len(set(titles)) != ISSUES:
            raise SystemExit(f"{value}\n{len(titles)} issues, {len(set(titles))} different")

    def _is_between_calls(self, run_id: str) -> bool:
        """Return whether the run sleeps after enough issues.

        Killed during a call, it would halt and ask again.
        """
        states = read_states(self._home / ".onetool", run_id)
        return len(states) >= ISSUES_BEFORE_KILL and set(states) == {"done"}

    def _run(self, client: Connection, code: str) -> list[str]:
        """Run code as the assistant does. Return the answer, and the lines to show."""
        (answer,) = get_texts(client.run(code))
        marks = ("\033[2m>>>\033[0m", *["\033[2m...\033[0m"] * code.count("\n"))
        typed = [f"{mark} {line}" for mark, line in zip(marks, code.splitlines(), strict=False)]
        return [answer, *typed, *wrap(answer, MAX_LINE_CHARS)]

    def _approve(self, *arguments: str) -> Iterator[str]:
        status, shown = answer_in_terminal(
            self._home, "y", "approve", *arguments, variables=self._variables
        )
        if status:
            raise SystemExit(shown)
        yield from _prompt(f"onetool approve {shlex.join(arguments)}")
        yield from _wrap(shown)

    def _type(self, command: str) -> Iterator[str]:
        done = subprocess.run(
            command,
            shell=True,
            cwd=self._home,
            env=self._variables,
            capture_output=True,
            text=True,
            check=True,
        )
        yield from _prompt(command)
        yield from _wrap(done.stdout)


def _comment(text: str) -> Iterator[str]:
    yield f"\033[32m# {text}\033[0m"


def _prompt(command: str) -> Iterator[str]:
    yield f"\033[2m$\033[0m \033[1m{command}\033[0m"


def _wrap(text: str) -> Iterator[str]:
    for line in text.splitlines():
        yield from wrap(line, MAX_LINE_CHARS, subsequent_indent="  ", replace_whitespace=False) or [
            ""
        ]


if __name__ == "__main__":
    main()
