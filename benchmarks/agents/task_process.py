"""The control connection to a task server: tasks, the published tools, and the check of the state."""

import asyncio
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.agents.tasks import Task

from onetool.errors import ToolError

SCRIPT = Path(__file__).with_name("task_server")
START_SECONDS = 60
MAX_LINE_BYTES = 1 << 28  # all tasks are one line


@dataclass(frozen=True, slots=True)
class World:
    """A set of tasks: its name, which is the name of the server, and the command that serves it."""

    name: str
    python: str
    directory: str = ""

    def command(self, *options: str) -> dict[str, Any]:
        """Return the command of the server, as clients configure it."""
        return {"command": self.python, "args": [str(SCRIPT), self.name, self.directory, *options]}


def tau_worlds(directory: Path) -> list[World]:
    """Return the domains of tau-bench in a directory with its source."""
    domains = [
        name for name in ("retail", "airline") if (directory / "tau_bench" / "envs" / name).is_dir()
    ]
    if not domains:
        hint = "clone https://github.com/sierra-research/tau-bench and name its directory"
        raise ToolError(f"{directory} does not contain tau-bench", hint=hint)
    return [World(name, sys.executable, str(directory.resolve())) for name in domains]


class Control:
    """A connection to the control socket of a task server that another process started."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def connect(self) -> None:
        """Wait until the server listens."""
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while True:
            try:
                self._streams = await asyncio.open_unix_connection(
                    os.fspath(self._path), limit=MAX_LINE_BYTES
                )
            except (FileNotFoundError, ConnectionRefusedError):
                if asyncio.get_running_loop().time() > deadline:
                    raise ToolError(
                        f"the task server did not start within {START_SECONDS} s"
                    ) from None
                await asyncio.sleep(0.02)
            else:
                return

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()

    async def request(self, command: str, **fields: Any) -> Any:
        assert self._streams is not None
        reader, writer = self._streams
        writer.write(json.dumps({"do": command, **fields}).encode() + b"\n")
        await writer.drain()
        line = await reader.readline()
        if not line:
            raise ToolError("the task server ended; see its output above")
        return json.loads(line)

    async def get_catalog(self) -> "Catalog":
        definitions = {each["name"]: each for each in await self.request("definitions")}
        return Catalog(definitions, await self.request("outline"))

    async def get_task(self, name: str) -> Task:
        return Task.from_dict(await self.request("describe", task=name))


@dataclass(frozen=True, slots=True)
class Catalog:
    """The tools of a world: their definitions, and the tools that each task calls."""

    definitions: dict[str, dict[str, Any]]
    outline: dict[str, list[str]]

    def limit_sizes(self, sizes: Iterable[int]) -> list[int]:
        return sorted({min(size, len(self.definitions)) for size in sizes})

    def sample(self, limit: int) -> list[str]:
        """Return the names of `limit` tasks, evenly spaced over all; 0 for all."""
        names = list(self.outline)
        count = min(limit or len(names), len(names))
        return [names[number * len(names) // count] for number in range(count)]

    def choose_tools(self, task: Task, size: int) -> list[str]:
        """Return the names of a catalog of `size` tools that has all tools of the task.

        A catalog that can hold the tools of all tasks is the same for all. A smaller one has the
        tools of the task and other tools of the same servers.
        """
        common = list(dict.fromkeys(tool for tools in self.outline.values() for tool in tools))
        first = common if size >= len(common) else [*task.tools, *task.siblings]
        return list(dict.fromkeys([*first, *self.definitions]))[: max(size, len(task.tools))]
