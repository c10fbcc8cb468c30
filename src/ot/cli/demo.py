"""See the whole idea in a few seconds: real runs, real tools, and what a model would see of each."""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from ot import scaffold
from ot.app import OneTool
from ot.render import render

SEVERAL = """\
cpu, memory, disk = machine.cpu(), machine.memory(unit='GiB'), machine.disk()
{'cores': cpu['cores'], 'memory_free': memory['available'], 'disk_free': disk['free']}\
"""
LARGE = """\
[{'day': day, 'reading': day * 37 % 101} for day in range(5000)]\
"""
STEPS = (
    ("The model asks for what it needs.", "ot.search(query='how much disk space is free', limit=2)"),
    ("It writes a little Python: three tools, one answer, and only what it wants of it.", SEVERAL),
    ("Code may compute: it is full Python.", "from statistics import mean\nmean(n * n for n in range(10))"),
    ("Only tools may act: code has no files, no network, no programs.", "open('/etc/passwd').read()"),
    ("A large result stays out of its context: it gets a summary and a handle.", LARGE),
    ("A tool of your own is a function in a file; uv brings the package it needs.", "hello.since(day='2024-02-29')"),
    ("A mistake says what to write instead.", "machine.dsk()"),
)
NEXT = """\
Write a tool of your own: onetool init, then edit the file that it names.
Next: connect your assistant: onetool connect claude-code (`onetool connect --help` lists the others).
Or go on by hand: onetool run 'ot.help()'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print what happened as JSON")


def main(options: argparse.Namespace) -> int:
    """In a folder of its own, with the example that `onetool init` writes."""
    with tempfile.TemporaryDirectory(prefix="onetool-demo-") as place:
        folder = Path(place)
        scaffold.write_folder(folder)
        return asyncio.run(_opened(folder, as_json=options.json))


async def _opened(folder: Path, *, as_json: bool) -> int:
    async with OneTool(folder=folder) as app:
        return await _demonstrate(app, as_json=as_json)


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
