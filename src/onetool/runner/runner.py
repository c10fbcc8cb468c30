"""One run, from the text that came in to the text that goes out.

It orchestrates and does nothing itself: fences are `fence_processor`, processes are `cells`, what code sees of
tools is `onetool_child.pack_proxy`, text is `render`, and the words of an error are `explain`.
"""

import re
import time
import unicodedata
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import anyio.to_thread

from onetool import snippets
from onetool._tool import Result
from onetool.bus.bus import ToolBus
from onetool.children.channel import RemoteError
from onetool.config.model import Settings
from onetool.context import ToolContext
from onetool.errors import BudgetExceeded, ToolError, ToolNotFound, error_type
from onetool.registry import MAX_NAME_LENGTH, Registry, check_name, python_name
from onetool.runner import explain, fence_processor
from onetool.runner.answer import Answer, Journal, Live, Presenter, in_thread_if
from onetool.runner.cells import Cells
from onetool_child.messages import UTF8
from onetool_child.names import OWN_PACK, PROJECTS, is_reserved

ASKED_FOR_EACH_CALL = 10  # looking a name up is a request too
MAX_NAMES = 1000
NAMED = {"pack": "pack", "list": "pack", "snippet": "snippet"}  # what the name of a request means; else a tool
LONG = 50_000  # characters of code that are better looked through by a thread
IDENTIFIER = re.compile(r"[^\W\d]\w*")


class Runner:
    """`projects` are the folders of `proj` by name, absolute."""

    def __init__(
        self,
        bus: ToolBus,
        cells: Cells,
        settings: Settings,
        presenter: Presenter,
        *,
        projects: Mapping[str, str],
    ) -> None:
        self.bus, self.settings = bus, settings
        self._cells, self._presenter, self._projects = cells, presenter, projects

    async def run(
        self,
        command: object,
        context: ToolContext,
        journal: Journal | None = None,
        preset_format: str | None = None,
    ) -> Answer:
        """Run the command; `preset_format` is what `__format__` is where the code does not set it."""
        journal = journal if journal is not None else Journal()
        journal.tell("start", context.correlation_id)
        live = self._presenter.live(journal)
        sanitize: object = None
        snippet = ""
        try:
            code = await in_thread_if(isinstance(command, str) and len(command) > LONG, partial(self._code, command))
            if snippets.is_snippet(code):
                snippet = code.split(maxsplit=1)[0]
                code = await anyio.to_thread.run_sync(snippets.expand, code, self.settings.snippets)
                self._refuse_too_long(code)
            names = await self._names_in(code)
            host = _Host(self, context, journal, live)
            result = await self._cells.run({"code": code, "names": names, "format": preset_format}, host)
            if result["bytes"] > self.settings.execution.max_output_bytes:
                raise _too_large(self.settings.execution.max_output_bytes)
            live.end()
            return await self._presenter.success(journal, result, context)
        except RemoteError as error:
            await self._discover_suspects(error.data)
            registry, known = self.bus.registry, self.settings.snippets
            explained = partial(explain.failure, error.data, journal.calls, registry, snippet, known)
            text = await anyio.to_thread.run_sync(explained)  # it may compare an unknown name with all others
            kind, sanitize = str(error.data.get("type")), error.data.get("sanitize")
        except ToolError as error:
            text, kind = explain.refusal(error, journal.calls), error_type(error)
        live.end()
        return await self._presenter.failure(journal, text, kind, context, sanitize=sanitize)

    async def expansion(self, name: str, values: dict[str, Any]) -> Result:
        """The code of a snippet that code calls, and what it has words for."""
        try:
            code = await anyio.to_thread.run_sync(snippets.expand_call, name, values, self.settings.snippets)
            self._refuse_too_long(code)
        except ToolError as error:
            return Result(ok=False, error=error)
        return Result(ok=True, value={"code": code, "names": await self._names_in(code)})

    def _code(self, command: object) -> str:
        if not isinstance(command, str):
            raise ToolError(f"command must be a string of Python code, not {type(command).__name__}. {explain.EXAMPLE}")
        self._refuse_too_long(command)
        return fence_processor.strip(command)

    def _refuse_too_long(self, code: str) -> None:
        size, most = len(code.encode("utf-8", "surrogatepass")), self.settings.execution.max_command_bytes
        if size > most:
            raise ToolError(
                f"the command has {size} bytes, the limit is {most}. "
                "Keep data out of the code: let a tool read it, or raise execution.max_command_bytes."
            )

    async def names(self, names: Collection[str], used: Collection[str], journal: Journal) -> dict[str, Any]:
        """Return what these names mean, also those that appeared since anybody looked.

        A server that was never asked what it has is started for this, which may take a while.
        """
        if asked := set(names).intersection(map(python_name, self.settings.servers)):
            journal.note(f"asking {', '.join(sorted(asked))} for tools")
        await self.bus.registry.refresh(names)
        known = known_names(names, used, self.bus.registry, self._projects)
        for name in set(names).intersection(self.bus.registry.problems()):
            known["packs"].setdefault(name, [])  # asked for a tool, it says what is wrong
        return known

    async def _discover_suspects(self, error: Mapping[str, Any]) -> None:
        """Load the packs that an error may be about, so that it can say so; without waiting for any server."""
        servers = set(map(python_name, self.settings.servers))
        with suppress(ToolError):
            if suspects := explain.suspects(error) - servers:
                await self.bus.registry.refresh(suspects)

    async def _names_in(self, code: str) -> dict[str, Any]:
        return await in_thread_if(len(code) > LONG, partial(names_in, code, self.bus.registry, self._projects))


def _too_large(most: int) -> BudgetExceeded:
    return BudgetExceeded(f"the value has more than {most} bytes; return a part of it")


def names_in(code: str, registry: Registry, projects: Mapping[str, str]) -> dict[str, Any]:
    """Return the known packs, tools, aliases and projects whose names occur in the code, wherever.

    They are sent along with the code, so that the cost follows the code and not the catalog. What a name in the code
    means is decided by Python, which binds it like any other; for a name that is unknown here the cell asks.
    """
    words = set(IDENTIFIER.findall(code if code.isascii() else unicodedata.normalize("NFKC", code)))
    return known_names(words, words, registry, projects)


def known_names(
    names: Collection[str], used: Collection[str], registry: Registry, projects: Mapping[str, str]
) -> dict[str, Any]:
    """Return what these names mean in code. Reserved names, like those of Python's builtins, are never bound."""
    used, free = set(used), [name for name in names if not is_reserved(name)]
    own = [OWN_PACK] if OWN_PACK in names else []
    packs = {name: sorted(registry.words(name, used)) for name in (*own, *free) if registry.is_pack(name)}
    aliases = {name: registry.aliases[name] for name in free if name in registry.aliases and name not in packs}
    bare = {name: tool.name for name in registry.words("", set(free)) if (tool := registry.peek(name)) is not None}
    proj = {"projects": dict(projects)} if PROJECTS in names else {}
    return {"packs": packs, "tools": {**bare, **aliases}, **proj}


class _Host:
    """What the code of one run may ask for."""

    def __init__(self, runner: Runner, context: ToolContext, journal: Journal, live: Live) -> None:
        self._runner, self._context, self._journal, self._live = runner, context, journal, live
        self._bus, execution = runner.bus, runner.settings.execution
        self._max_calls, self._max_output = execution.max_tool_calls, execution.max_output_bytes
        self._asked = 0

    async def request(self, method: str, params: dict[str, Any]) -> Result:
        self._asked += 1
        if self._asked > ASKED_FOR_EACH_CALL * self._max_calls:
            raise BudgetExceeded("the run asked for more than any run needs and was ended")
        try:
            check_name(str(params.get("name", params.get("pack", ""))), NAMED.get(method, "tool"))
        except ToolNotFound as error:
            return Result(ok=False, error=error)
        except AttributeError:
            raise TypeError("the parameters of a request must be an object") from None
        match method:
            case "call":
                return await self._call(str(params["name"]), list(params["args"]), dict(params["kwargs"]))
            case "snippet":
                return await self._runner.expansion(str(params["name"]), dict(params["values"]))
            case "names" | "pack" | "find" | "list":
                return await self._look_up(method, params)
        return Result(ok=False, error=ToolError(f"a run cannot ask for {method!r}"))

    def output(self, data: bytes) -> None:
        self._journal.printed_bytes += len(data)
        if self._journal.printed_bytes > self._max_output:
            what = f"the run printed more than {self._max_output} bytes and was ended"
            raise BudgetExceeded(what, hint="print less, or raise execution.max_output_bytes in onetool.yaml")
        text = data.decode(*UTF8)
        self._journal.printed.append(text)
        self._live.add(text)

    @property
    def has_acted(self) -> bool:
        """Whether the run has done anything that anybody could have noticed."""
        return bool(self._journal.calls or self._journal.printed or self._journal.value)

    def value(self, data: bytes) -> None:
        """Take a piece of a value that is too large for one message, rendered already."""
        self._journal.value_bytes += len(data)
        if self._journal.value_bytes > self._max_output:
            raise _too_large(self._max_output)
        self._journal.value.append(data.decode(*UTF8))

    async def _call(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Result:
        calls = self._journal.calls
        if len(calls) >= self._max_calls:
            what = f"a run may make {self._max_calls} tool calls, this one made them all"
            hint = "make fewer in one run, or raise execution.max_tool_calls in onetool.yaml"
            return Result(ok=False, error=BudgetExceeded(what, hint=hint))
        tool = self._bus.registry.peek(name) if kwargs else None
        if tool is not None and tool.continues(kwargs):
            return await self._bus.call_tool(name, kwargs, self._context, positional=args, raw=True)
        place, started = len(calls), time.perf_counter()
        calls.append((name, "under way"))
        self._journal.sources.add(name)
        self._journal.tell("call", {"state": "began", "number": place, "name": name})
        result = await self._bus.call_tool(name, kwargs, self._context, positional=args, raw=True)
        error = None if result.error is None else error_type(result.error)
        calls[place] = (name, error or "ok")
        milliseconds = round((time.perf_counter() - started) * 1000, 1)
        ended = {"state": "ended", "number": place, "name": name, "durationMs": milliseconds, "error": error}
        self._journal.tell("call", ended)
        return result

    async def _look_up(self, method: str, params: dict[str, Any]) -> Result:
        try:
            match method:
                case "names":
                    return Result(ok=True, value=await self._names(params["names"], params["used"]))
                case "pack":
                    return Result(ok=True, value=await self._pack(str(params["name"])))
                case "find":
                    return Result(ok=True, value=(await self._bus.resolve(str(params["name"]))).name)
            in_pack = await anyio.to_thread.run_sync(self._bus.registry.in_pack, str(params["pack"]))
            return Result(ok=True, value=sorted(in_pack))
        except ToolError as error:
            return Result(ok=False, error=error)

    async def _names(self, names: list[Any], used: list[Any]) -> dict[str, Any]:
        wanted, others = (
            [each for each in map(str, some[:MAX_NAMES]) if len(each) <= MAX_NAME_LENGTH and each.isidentifier()]
            for some in (names, used)
        )
        return await self._runner.names(wanted, others, self._journal)

    async def _pack(self, name: str) -> str:
        """Find a pack by its name, as it is or as code would write it."""
        pack, registry = python_name(name), self._bus.registry
        if not registry.is_pack(pack):
            await registry.refresh({pack})
        if registry.is_pack(pack) or pack in registry.problems():
            return pack
        raise registry.pack_not_found(name)
