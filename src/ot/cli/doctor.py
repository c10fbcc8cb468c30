"""Check everything and say what to do; the exit status is 1 where something is wrong."""

import argparse
import importlib.metadata
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from ot.app import OneTool
from ot.cli.opening import with_onetool
from ot.render import render
from ot.version import __version__

MARKS = {"ok": "ok  ", "warning": "warn", "problem": "FAIL"}
FULL = "landlock+seccomp"
CHECK = "sum(range(10))"


@dataclass(frozen=True, slots=True)
class Finding:
    level: str
    what: str
    advice: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def main(options: argparse.Namespace) -> int:
    findings = with_onetool(options, _examine)
    if options.json:
        listed = [{"level": found.level, "what": found.what, "advice": found.advice} for found in findings]
        print(render({"findings": listed}, "json"))
    else:
        print("\n".join(_line(found) for found in findings))
    return int(any(found.level == "problem" for found in findings))


def _line(found: Finding) -> str:
    return f"{MARKS[found.level]}  {found.what}" + (f"\n      -> {found.advice}" if found.advice else "")


async def _examine(app: OneTool) -> list[Finding]:
    health = await app.health()
    return [
        Finding(
            "ok",
            f"onetool {__version__} on Python {platform.python_version()}, {platform.system()} {platform.release()}",
        ),
        *_packages(),
        *(Finding("problem", problem) for problem in health["problems"]),
        Finding("ok", f"{health['registry']['tool_count']} tools"),
        await _run(app),
        _isolation(health["isolation"]["sandbox"], app.settings.execution.isolation),
    ]


async def _run(app: OneTool) -> Finding:
    if app.config_error is not None:
        return Finding("problem", "nothing runs while the configuration is wrong", "correct the lines above")
    answer = await app.run(CHECK)
    works = not answer.is_error and answer.blocks[-1] == "45"
    return Finding("ok", "a run works") if works else Finding("problem", f"a run fails: {answer.text}")


def _packages() -> Iterator[Finding]:
    yield Finding("ok", f"mcp {importlib.metadata.version('mcp')}")
    if shutil.which("uv") is None:
        yield Finding("warning", "uv is not on the path; extension tools will need it", "pip install uv")


def _isolation(sandbox: str, wanted: str) -> Finding:
    if wanted == "off":
        return Finding("warning", "isolation is off: code runs with your own rights", "set execution.isolation to auto")
    if sandbox == FULL:
        return Finding("ok", f"code is confined: {sandbox}")
    advice = (
        "Linux 5.13 or newer has both layers" if sys.platform == "linux" else "Linux has them; use a container or WSL"
    )
    return Finding("warning", f"code runs in a process of its own, but this machine offers only: {sandbox}", advice)
