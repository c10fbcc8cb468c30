"""Play the tasks of `benchmarks/agents/run.py` with a real client, started by a command line for
each task and arm.

The command gets the messages of the user as one prompt, and a file with the MCP server to use: the
task server itself (`direct`), or OneTool with the task server behind it (`code`). The task server
writes the comparison of its state.
"""

import asyncio
import json
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.agents.measurements import onetool_command, open_direct, write_settings
from benchmarks.agents.task_process import World
from benchmarks.agents.tasks import Task

from onetool.errors import ToolError

PLACEHOLDERS = ("{config}", "{prompt}")
TASK_SECONDS = 900


async def measure_client(
    command: str, world: World, sizes: Sequence[int], limit: int, directory: Path
) -> list[dict[str, Any]]:
    """Return one row per catalog, task and arm: whether the state is the expected one, and the time
    it took.
    """
    if any(each not in command for each in PLACEHOLDERS):
        raise ToolError(f"the command of the client must contain {' and '.join(PLACEHOLDERS)}")
    async with open_direct(world, directory) as direct:
        catalog = await direct.control.get_catalog()
        tasks = [await direct.control.get_task(name) for name in catalog.sample(limit)]
    rows = []
    for size in catalog.limit_sizes(sizes):
        for task in tasks:
            names = catalog.choose_tools(task, size)
            for arm in ("direct", "code"):
                place = directory / f"{world.name}-{size}-{task.name}-{arm}"
                config, result = await asyncio.to_thread(_prepare, world, task, names, arm, place)
                row = await _play(command, task, config, result)
                rows.append(
                    {"world": world.name, "tools": size, "task": task.name, "arm": arm, **row}
                )
    return rows


def _prepare(
    world: World, task: Task, names: list[str], arm: str, place: Path
) -> tuple[Path, Path]:
    """Write the files of one attempt. Return those of the client's servers and of the result."""
    place.mkdir()
    result, config = place / "result.json", place / "mcp.json"
    server = world.command("--task", task.name, "--result", str(result), "--tools", *names)
    if arm == "code":
        write_settings(place / "home", world.name, server)
        server = onetool_command(place / "home")
    config.write_text(json.dumps({"mcpServers": {world.name: server}}), encoding="utf-8")
    return config, result


async def _play(command: str, task: Task, config: Path, result: Path) -> dict[str, Any]:
    started = time.monotonic()
    status = await _run(command, config, write_prompt(task))
    seconds = round(time.monotonic() - started, 2)
    check = await asyncio.to_thread(_read_result, result)
    return {
        "state_equal": check["state"],
        "calls_equal": check["calls"],
        "seconds": seconds,
        "exit_status": status,
    }


def _read_result(result: Path) -> dict[str, Any]:
    """Return what the task server wrote; it is missing if the client did not start the server."""
    missing = {"state": False, "calls": False}
    check: dict[str, Any] = (
        json.loads(result.read_text(encoding="utf-8")) if result.exists() else missing
    )
    return check


async def _run(command: str, config: Path, prompt: str) -> int | None:
    """Run the client. Return its exit status, or None if it took too long."""
    words = [
        word.replace("{config}", str(config)).replace("{prompt}", prompt)
        for word in shlex.split(command)
    ]
    with config.with_name("output.txt").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *words,
            cwd=config.parent,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            return await asyncio.wait_for(process.wait(), TASK_SECONDS)
        except TimeoutError:
            return None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def write_prompt(task: Task) -> str:
    """Return the messages of the user as one prompt."""
    steps = [f"{number}. {turn.text}" for number, turn in enumerate(task.turns, 1)]
    return "Do the following steps in order, with the tools that you have.\n\n" + "\n".join(steps)
