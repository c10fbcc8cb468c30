"""Overhead of `grep` over ripgrep: the same search in a large tree, by the tool and by the program."""

import asyncio
import random
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.lib import Row, WrongAnswer, interleave_async

from onetool.core.bus.bus import ToolBus
from onetool.sources.builtin import grep_tools
from onetool.util.context import Permission, ToolContext

FOLDERS, FILES, LINES = 200, 100, 120
WORDS = {"needle": 50, "common": 1000}  # number of files that contain each word
SANDBOX = {"enabled": True, "denied_patterns": [".env*", "**/*.secret"]}


def measure(rounds: int) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="onetool-bench-") as name:
        root = Path(name)
        make_tree(root)
        samples = asyncio.run(measure_all(rounds, root))
    about = f"in {FOLDERS * FILES:,} files, against rg itself"
    return [
        Row(f"grep {about}", samples["needle"], samples["bare needle"], target=1.2),
        Row(
            f"the same with a match in {WORDS['common']:,} of them",
            samples["common"],
            samples["bare common"],
        ),
    ]


def make_tree(root: Path) -> None:
    chance = random.Random(1)
    words = ["".join(chance.choices("abcdefghijklmnop", k=7)) for _ in range(2000)]
    for number in range(FOLDERS * FILES):
        lines = [" ".join(chance.choices(words, k=8)) for _ in range(LINES)]
        for word in (word for word, files in WORDS.items() if number < files):
            lines[chance.randrange(LINES)] += f" {word}"
        file = root / f"folder{number % FOLDERS}" / f"file{number}.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(lines))


async def measure_all(rounds: int, root: Path) -> dict[str, list[float]]:
    bus = ToolBus()
    bus.register_tool(grep_tools.grep)
    context = ToolContext(
        permissions=frozenset({Permission.READ}), working_dir=root, sandbox=SANDBOX
    )
    contestants = {
        word: partial(time_tool, bus, context, word, files) for word, files in WORDS.items()
    }
    bare = {
        f"bare {word}": partial(time_ripgrep, root, word, files) for word, files in WORDS.items()
    }
    return await interleave_async(rounds, {**contestants, **bare})


async def time_tool(bus: ToolBus, context: ToolContext, word: str, expected: int) -> float:
    started = time.perf_counter()
    result = await bus.call_tool("grep", {"pattern": word, "max_results": expected}, context)
    seconds = time.perf_counter() - started
    if not result.ok or result.value["total_matches"] != expected:
        raise WrongAnswer(str(result.error or result.value["total_matches"]))
    return seconds * 1000


async def time_ripgrep(root: Path, word: str, expected: int) -> float:
    """Run ripgrep from the command line and read all of its output."""
    command = [
        grep_tools.find_ripgrep()[0],
        "--no-config",
        "--line-number",
        "-e",
        word,
        "--",
        str(root),
    ]
    started = time.perf_counter()
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    output, _ = await process.communicate()
    seconds = time.perf_counter() - started
    if output.count(b"\n") != expected:
        raise WrongAnswer("rg found something else")
    return seconds * 1000
