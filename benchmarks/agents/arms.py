"""The four ways to reach the same tools: `direct`, `search`, `code` and `code-cold`.

Each arm plays a task with its known calls against real servers and counts what a model would have
received. It makes the fewest rounds that the answers allow. After the calls of a turn, one more
request reads the last answers.
"""

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

from benchmarks.agents.context_meter import ContextMeter
from benchmarks.agents.tasks import GoldCall, PlannedRun, Task, group_calls, plan_runs, write_call
from mcp import Client

from onetool.errors import ToolError

HANDLE = re.compile(r"handle[\"'=:\s]+([\w-]{8,})")


class Arm(ABC):
    """One way to reach the tools of a world.

    `fixed` is what every request carries: definitions and instructions.
    """

    name: ClassVar[str]

    def __init__(self, client: Client, pack: str, fixed: list[str]) -> None:
        self._client, self._pack, self._fixed = client, pack, fixed
        self.meter = ContextMeter(fixed)
        self.seconds = 0.0  # in tool calls

    async def play(self, task: Task) -> ContextMeter:
        self.meter = ContextMeter(self._fixed)
        await self._play(task)
        return self.meter

    @abstractmethod
    async def _play(self, task: Task) -> None: ...

    async def _call(self, tool: str, arguments: dict[str, Any]) -> str:
        self.meter.add_call(tool, arguments)
        started = time.perf_counter()
        result = await self._client.call_tool(tool, arguments)
        self.seconds += time.perf_counter() - started
        text = "\n".join(getattr(block, "text", "") for block in result.content)
        if result.is_error:
            raise ToolError(f"{self.name}: {tool} failed: {text}")
        self.meter.add(text)
        return text


class DirectArm(Arm):
    """All definitions are in the context. Independent calls of a turn are sent in one round."""

    name = "direct"

    async def _play(self, task: Task) -> None:
        for turn, groups in zip(task.turns, group_calls(task), strict=True):
            self.meter.add(turn.text)
            for group in groups:
                self.meter.request()
                for call in group:
                    await self._call(call.tool, dict(call.arguments))
            self.meter.request()


class OneToolArm(Arm):
    """An arm that has only the tool `run`."""

    async def _run(self, code: str) -> str:
        return await self._call("run", {"command": code})

    async def _run_round(self, code: str) -> str:
        self.meter.request()
        return await self._run(code)

    async def _show(self, values: Iterable[str]) -> None:
        """Look up values that the model has to read and that are only in a stored result."""
        hidden = [value for value in dict.fromkeys(values) if value not in self.meter.text]
        handles = HANDLE.findall(self.meter.text)
        if hidden and handles:
            await self._run_round(
                "\n".join(
                    f"print(ot.result(handle={handles[-1]!r}, search={re.escape(each)!r}))"
                    for each in hidden
                )
            )

    async def _play_runs(self, runs: list[PlannedRun]) -> None:
        for run in runs:
            await self._show(run.read)
            await self._run_round(run.write(self._pack))


class CodeArm(OneToolArm):
    """The model knows the signatures, from its instructions or from earlier work, and writes one
    script per turn.
    """

    name = "code"

    async def _play(self, task: Task) -> None:
        for turn, runs in zip(task.turns, plan_runs(task), strict=True):
            self.meter.add(turn.text)
            await self._play_runs(runs)
            self.meter.request()


class DiscoveringArm(OneToolArm):
    """An arm that may use only names which an answer has shown."""

    def _is_shown(self, call: GoldCall) -> bool:
        return re.search(rf"\b{self._pack}\.{call.tool.lower()}\b", self.meter.text) is not None

    def _has_arguments(self, call: GoldCall) -> bool:
        """Return whether an answer has shown the names of all arguments of the call beside the name
        of the tool.
        """
        lines = [
            line
            for line in self.meter.text.splitlines()
            if f"{self._pack}.{call.tool.lower()}(" in line
        ]
        return any(
            all(re.search(rf"\b{name.lower()}\b", line) for name in call.arguments)
            for line in lines
        )

    def _list_unknown(self, calls: Iterable[GoldCall]) -> list[GoldCall]:
        return list({call.tool: call for call in calls if not self._is_shown(call)}.values())

    def _check_shown(self, calls: Iterable[GoldCall]) -> None:
        if missing := self._list_unknown(calls):
            names = ", ".join(f"{self._pack}.{call.tool}" for call in missing)
            raise ToolError(f"{self.name}: search did not show {names}")


class SearchArm(DiscoveringArm):
    """OneTool used like a search gateway: search, describe, then one call at a time, independent
    ones in one round.
    """

    name = "search"

    async def _play(self, task: Task) -> None:
        described: set[str] = set()
        for turn, groups in zip(task.turns, group_calls(task), strict=True):
            self.meter.add(turn.text)
            if self._list_unknown(turn.calls):
                await self._run_round(f"ot.search(query={turn.text!r})")
            if missing := self._list_unknown(turn.calls):
                self.meter.request()
                for call in missing:
                    await self._run(f"ot.search(query={split_name(call.tool)!r})")
                self._check_shown(turn.calls)
            await self._describe([call for call in turn.calls if call.tool not in described])
            described.update(call.tool for call in turn.calls)
            for group in groups:
                self.meter.request()
                for call in group:
                    await self._run(write_call(self._pack, call))
            self.meter.request()

    async def _describe(self, calls: list[GoldCall]) -> None:
        if calls:
            self.meter.request()
        for tool in dict.fromkeys(call.tool for call in calls):
            await self._run(f"ot.help(query='{self._pack}.{tool}')")


class ColdArm(DiscoveringArm):
    """The model knows nothing: it searches first, asks for help if a hit lacks an argument, then
    writes scripts.
    """

    name = "code-cold"

    async def _play(self, task: Task) -> None:
        for turn, runs in zip(task.turns, plan_runs(task), strict=True):
            self.meter.add(turn.text)
            await self._discover(turn.text, turn.calls)
            await self._play_runs(runs)
            self.meter.request()

    async def _discover(self, text: str, calls: tuple[GoldCall, ...]) -> None:
        if self._list_unknown(calls):
            await self._run_round(f"ot.search(query={text!r})")
        if missing := self._list_unknown(calls):
            queries = [split_name(call.tool) for call in missing]
            await self._run_round(f"[ot.search(query=each, limit=3) for each in {queries!r}]")
            self._check_shown(calls)
        if vague := list(
            dict.fromkeys(call.tool for call in calls if not self._has_arguments(call))
        ):
            names = [f"{self._pack}.{tool}" for tool in vague]
            await self._run_round(f"for name in {names!r}: print(ot.help(query=name))")


def split_name(tool: str) -> str:
    """Return the words of a name: `displayCarStatus` and `place_order` become "display car status",
    "place order".
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", tool).lower()


ARMS: tuple[type[Arm], ...] = (DirectArm, SearchArm, CodeArm, ColdArm)
