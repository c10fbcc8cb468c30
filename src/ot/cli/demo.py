"""See the whole idea in a few seconds: real runs, real tools, and what a model would see of each."""

import argparse
import sys
import time

from ot.app import OneTool
from ot.cli.opening import with_onetool
from ot.render import render

SEVERAL = """\
cpu, memory, disk = machine.cpu(), machine.memory(unit='GiB'), machine.disk()
{'cores': cpu['cores'], 'memory_free': memory['available'], 'disk_free': disk['free']}\
"""
STEPS = (
    ("The model asks what there is.", "ot.tools(info='list')"),
    ("It writes a little Python: three tools, one answer, and only what it wants of it.", SEVERAL),
    ("Code may compute: it is full Python.", "from statistics import mean\nmean(n * n for n in range(10))"),
    ("Only tools may act: code has no files, no network, no programs.", "open('/etc/passwd').read()"),
    ("A mistake says what to write instead.", "machine.dsk()"),
)
NEXT = """\
Next: connect your assistant. In its MCP configuration, add a server with the command `onetool`.
Or go on by hand: onetool run 'ot.help()'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print what happened as JSON")


def main(options: argparse.Namespace) -> int:
    return with_onetool(options, lambda app: _demonstrate(app, as_json=options.json))


async def _demonstrate(app: OneTool, *, as_json: bool) -> int:
    seen = []
    for title, code in STEPS:
        started = time.perf_counter()
        answer = await app.run(code)
        seen.append({"title": title, "code": code, "answer": answer.text, "is_error": answer.is_error})
        if not as_json:
            _show(title, code, answer.text, time.perf_counter() - started)
    print(render(seen, "json") if as_json else f"In force here: {(await app.health())['isolation']}\n\n{NEXT}")
    return 0


def _show(title: str, code: str, answer: str, seconds: float) -> None:
    bold, dim, plain = ("\033[1m", "\033[2m", "\033[0m") if sys.stdout.isatty() else ("", "", "")
    print(f"{bold}{title}{plain}")
    print("\n".join(f"  >>> {line}" for line in code.splitlines()))
    print("\n".join(f"  {line}" for line in answer.splitlines()))
    print(f"{dim}  ({seconds * 1000:.0f} ms){plain}\n")
