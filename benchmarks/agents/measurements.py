"""Play the same tasks with known calls, directly and through OneTool, without a language model.

All arms use the same task server. Each process of it has the state of one task: `direct` has its
own, and the one of the other arms is behind OneTool, which runs as a separate process with empty
settings of its own.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.agents.arms import ARMS, Arm, DirectArm
from benchmarks.agents.task_process import Control, World
from benchmarks.agents.tasks import Task
from mcp import Client, StdioServerParameters

from onetool.errors import ToolError
from onetool.settings.paths import CONFIG, FOLDER

REFRESH_SECONDS = 60
LIST_TOOLS = """
import hashlib
names = [name for name in ot.tools(pattern="{pack}.", info="list") if name.startswith("{pack}.")]
hashlib.sha256("\\n".join(sorted(names)).encode()).hexdigest()
"""


@dataclass(frozen=True, slots=True)
class Measurement:
    """The needs of one arm for one task.

    `calls` says whether the tools received exactly the expected calls.
    """

    world: str
    tools: int
    arm: str
    task: str
    rounds: int
    tokens: int
    cached_tokens: float
    bytes: int
    seconds: float
    state: bool
    calls: bool
    one_by_one: int  # rounds if every call had its own


@dataclass(frozen=True, slots=True)
class _Side:
    """A client, and the control of the task server that it reaches."""

    client: Client
    control: Control


async def measure_world(
    world: World, sizes: Sequence[int], limit: int, arms: Sequence[str], directory: Path
) -> list[Measurement]:
    """Play tasks of a world with catalogs of these sizes, in these arms."""
    async with open_direct(world, directory) as direct, open_onetool(world, directory) as ours:
        catalog = await direct.control.get_catalog()
        tasks = [await direct.control.get_task(name) for name in catalog.sample(limit)]
        found: list[Measurement] = []
        failure: ToolError | None = None
        try:
            for size in catalog.limit_sizes(sizes):
                for task in tasks:
                    names = catalog.choose_tools(task, size)
                    await publish(world.name, names, ours)
                    shown = [
                        json.dumps(catalog.definitions[name], ensure_ascii=False) for name in names
                    ]
                    ours_shown = await describe_client(ours.client)
                    for kind in (kind for kind in ARMS if kind.name in arms):
                        side, fixed = (direct, shown) if kind is DirectArm else (ours, ours_shown)
                        arm = kind(side.client, world.name, fixed)
                        found.append(await _play(arm, task, side.control, world.name, size))
        except ToolError as error:  # raised again outside of the task groups of the clients
            failure = error
    if failure is not None:
        raise failure
    return found


async def _play(arm: Arm, task: Task, control: Control, world: str, size: int) -> Measurement:
    await control.request("load", task=task.name)
    try:
        meter = await arm.play(task)
    except ToolError as error:
        raise ToolError(f"{task.name}: {error}") from None
    check = await control.request("check")
    return Measurement(
        world=world,
        tools=size,
        arm=arm.name,
        task=task.name,
        rounds=meter.rounds,
        tokens=meter.tokens,
        cached_tokens=round(meter.cached_tokens, 1),
        bytes=meter.bytes,
        seconds=arm.seconds,
        state=check["state"],
        calls=check["calls"],
        one_by_one=len(task.calls) + len(task.turns),
    )


@asynccontextmanager
async def open_direct(world: World, directory: Path) -> AsyncIterator[_Side]:
    socket = directory / f"{world.name}-direct"
    server = StdioServerParameters(**world.command("--control", str(socket)))
    async with Client(server) as client, connect(socket) as control:
        yield _Side(client, control)


@asynccontextmanager
async def open_onetool(world: World, directory: Path) -> AsyncIterator[_Side]:
    socket, home = directory / f"{world.name}-onetool", directory / f"{world.name}-home"
    write_settings(home, world.name, world.command("--control", str(socket)))
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            Client(StdioServerParameters(**onetool_command(home), cwd=home))
        )
        await client.list_tools()
        await client.call_tool("run", {"command": f"{world.name} and 0"})  # starts the server
        yield _Side(client, await stack.enter_async_context(connect(socket)))


def write_settings(home: Path, name: str, server: dict[str, Any]) -> None:
    """Write the settings of a OneTool with one server, which stays connected."""
    (home / FOLDER).mkdir(parents=True)
    settings = {"servers": {name: server}}
    (home / FOLDER / CONFIG).write_text(json.dumps(settings), encoding="utf-8")


def onetool_command(home: Path) -> dict[str, Any]:
    start = "from onetool.cli.main import main; raise SystemExit(main())"
    variables = {"HOME": str(home), "ONETOOL_STANDALONE": "1"}
    return {"command": sys.executable, "args": ["-c", start, "serve"], "env": variables}


@asynccontextmanager
async def connect(socket: Path) -> AsyncIterator[Control]:
    control = Control(socket)
    await control.connect()
    try:
        yield control
    finally:
        control.close()


async def publish(pack: str, names: list[str], side: _Side) -> None:
    """Publish these tools, and wait until OneTool knows them."""
    await side.control.request("offer", tools=names)
    expected = sha256("\n".join(sorted(f"{pack}.{name}" for name in names)).encode()).hexdigest()
    deadline = time.monotonic() + REFRESH_SECONDS
    while True:
        result = await side.client.call_tool("run", {"command": LIST_TOOLS.format(pack=pack)})
        if expected in "".join(getattr(block, "text", "") for block in result.content):
            return
        if time.monotonic() > deadline:
            raise ToolError(
                f"OneTool did not list the published tools of {pack} within {REFRESH_SECONDS} s"
            )
        await asyncio.sleep(0.01)


async def describe_client(client: Client) -> list[str]:
    """Return what a client puts into every request: the definitions of the tools, and the
    instructions.
    """
    listed = await client.list_tools()
    tools = [
        tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed.tools
    ]
    return [*(json.dumps(tool, ensure_ascii=False) for tool in tools), client.instructions or ""]
