"""One run, from the text that came in to the text that goes out.

It orchestrates and does nothing itself: fences are `fence_processor`, processes are `cells`, what code sees of
tools is `ot_child.pack_proxy`, text is `render`, and the words of an error are `explain`.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio.to_thread

from ot.bus.bus import ToolBus
from ot.context import ToolContext
from ot.errors import BudgetExceeded, ToolError, ToolNotFound, error_type
from ot.registry import Registry
from ot.render import render
from ot.runner import explain, fence_processor
from ot.runner.cells import Cells
from ot.runner.channel import RemoteError
from ot.tool import Result

T = TypeVar("T")
NO_VALUE = "Done: the code ran and has no value. End it with an expression, or use return, to see one."
ASKED_FOR_EACH_CALL = 10  # looking a name up is a request too
LONGEST_NAME = 1000
LARGE_ANSWER, LARGEST_YAML = 1 << 16, 1 << 21  # YAML takes a second a megabyte
LONG = 50_000  # characters of code that are better looked through by a thread
IDENTIFIER = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client sees: the printed text where there is any, then the value or the error."""

    blocks: tuple[str, ...]
    is_error: bool = False
    error: str | None = None

    @property
    def text(self) -> str:
        return "\n".join(self.blocks)


@dataclass(slots=True)
class Journal:
    """What has happened in a run so far, for whoever shows its progress."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    printed_bytes: int = 0
    value: list[str] = field(default_factory=list)
    value_bytes: int = 0


class Runner:
    def __init__(
        self,
        bus: ToolBus,
        cells: Cells,
        *,
        max_command_bytes: int,
        max_tool_calls: int,
        max_output_bytes: int,
    ) -> None:
        self._bus, self._cells = bus, cells
        self._max_command, self._max_calls, self._max_output = (
            max_command_bytes,
            max_tool_calls,
            max_output_bytes,
        )

    async def run(
        self,
        command: object,
        context: ToolContext,
        journal: Journal | None = None,
        preset_format: str | None = None,
    ) -> Answer:
        """Run the command; `preset_format` is what `__format__` is where the code does not set it."""
        journal = journal if journal is not None else Journal()
        try:
            code = await _in_thread_if_long(command, self._code)
            host = _Host(self._bus, context, journal, self._max_calls, self._max_output)
            names = await _in_thread_if_long(code, lambda text: names_in(text, self._bus.registry))
            result = await self._cells.run({"code": code, "names": names, "format": preset_format}, host)
            return Answer(_blocks(journal, "".join(journal.value) or await _rendered(result)))
        except RemoteError as error:
            text, kind = (
                explain.failure(error.data, journal.calls, self._bus.registry),
                str(error.data.get("type")),
            )
        except ToolError as error:
            text, kind = explain.refusal(error, journal.calls), error_type(error)
        return Answer(_blocks(journal, text), is_error=True, error=kind)

    def _code(self, command: object) -> str:
        if not isinstance(command, str):
            raise ToolError(f"command must be a string of Python code, not {type(command).__name__}. {explain.EXAMPLE}")
        size = len(command.encode("utf-8", "surrogatepass"))
        if size > self._max_command:
            raise ToolError(
                f"the command has {size} bytes, the limit is {self._max_command}. "
                "Keep data out of the code: let a tool read it, or raise execution.max_command_bytes."
            )
        return fence_processor.strip(command)


async def _in_thread_if_long(text: Any, work: Callable[[Any], T]) -> T:
    if isinstance(text, str) and len(text) > LONG:
        return await anyio.to_thread.run_sync(work, text)
    return work(text)


def names_in(code: str, registry: Registry) -> dict[str, Any]:
    """The packs, tools and aliases that the code can be about: those whose names occur in it, wherever.

    It only decides what is sent along, so that the cost follows the code and not the catalogue. What a name in the code
    means is decided by Python, which binds it like any other.
    """
    words = set(IDENTIFIER.findall(code if code.isascii() else unicodedata.normalize("NFKC", code)))
    packs = {word: sorted(words & registry.in_pack(word).keys()) for word in words if registry.is_pack(word)}
    aliases = {word: registry.aliases[word] for word in words if word in registry.aliases}
    bare = {word: registry.in_pack("")[word] for word in words if word in registry.in_pack("")}
    return {"packs": packs, "tools": {**bare, **aliases}}


async def _rendered(result: dict[str, Any]) -> str | None:
    """The code may have forged the answer: nothing in it is certain but its size."""
    return await anyio.to_thread.run_sync(_shown, result) if result["bytes"] > LARGE_ANSWER else _shown(result)


def _shown(result: dict[str, Any]) -> str | None:
    if not result.get("has_value"):
        return None
    chosen = result.get("format")
    if result["bytes"] > LARGEST_YAML:
        return render(result.get("value"), "json")
    return render(result.get("value"), chosen if isinstance(chosen, str) else None, flow=bool(result.get("from_ot")))


def _blocks(journal: Journal, value: str | None) -> tuple[str, ...]:
    printed = "".join(journal.printed)
    blocks = [printed] if printed else []
    if value is not None:
        blocks.append(value)
    return tuple(blocks) or (NO_VALUE,)


class _Host:
    """What the code of one run may ask for."""

    def __init__(self, bus: ToolBus, context: ToolContext, journal: Journal, max_calls: int, max_output: int) -> None:
        self._bus, self._context, self._journal = bus, context, journal
        self._max_calls, self._max_output = max_calls, max_output
        self._asked = 0

    async def request(self, method: str, params: dict[str, Any]) -> Result:
        self._asked += 1
        if self._asked > ASKED_FOR_EACH_CALL * self._max_calls:
            raise BudgetExceeded("the run asked for more than any run needs and was ended")
        match method:
            case "call":
                return await self._call(str(params["name"]), list(params["args"]), dict(params["kwargs"]))
            case "find":
                return self._find(str(params["name"]))
            case "list":
                return Result(ok=True, value=sorted(self._bus.registry.in_pack(str(params["pack"]))))
        return Result(ok=False, error=ToolError(f"a run cannot ask for {method!r}"))

    def output(self, text: str) -> None:
        self._journal.printed_bytes += len(text.encode("utf-8", "surrogatepass"))
        if self._journal.printed_bytes > self._max_output:
            raise BudgetExceeded(f"the run printed more than {self._max_output} bytes and was ended")
        self._journal.printed.append(text)

    @property
    def has_acted(self) -> bool:
        """Whether the run has done anything that anybody could have noticed."""
        return bool(self._asked or self._journal.printed or self._journal.value)

    def value(self, text: str) -> None:
        """A piece of a value that is too large for one message, rendered already."""
        self._journal.value_bytes += len(text.encode("utf-8", "surrogatepass"))
        if self._journal.value_bytes > self._max_output:
            raise BudgetExceeded(f"the value has more than {self._max_output} bytes; return a part of it")
        self._journal.value.append(text)

    async def _call(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Result:
        calls = self._journal.calls
        if len(name) > LONGEST_NAME:
            return Result(ok=False, error=ToolNotFound(f"no tool has a name of {len(name)} characters"))
        if len(calls) >= self._max_calls:
            return Result(
                ok=False,
                error=BudgetExceeded(f"a run may make {self._max_calls} tool calls, this one made them all"),
            )
        place = len(calls)
        calls.append((name, "under way"))
        result = await self._bus.call_tool(name, kwargs, self._context, positional=args)
        calls[place] = (name, "ok" if result.error is None else error_type(result.error))
        return result

    def _find(self, name: str) -> Result:
        try:
            return Result(ok=True, value=self._bus.registry.find(name).name)
        except ToolError as error:
            return Result(ok=False, error=error)
