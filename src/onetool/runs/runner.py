"""Orchestration of a run, from the command to the answer.

`fence_processor` extracts the code, `tool_loader` finds its tools, `cells` runs it,
`onetool_child.pack_proxy` gives it the tools in the cell, `answer` renders the result and `explain`
renders errors.
"""

import time
import weakref
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from anyio.to_thread import run_sync as run_in_thread

from onetool.core.bus.bus import ToolBus
from onetool.core.names import MAX_NAME_LENGTH, check_name, python_name
from onetool.core.registry import find_hidden_error
from onetool.core.signature import describe_signature
from onetool.errors import (
    BudgetExceeded,
    PermissionDenied,
    SignInRequired,
    ToolError,
    ToolNotFound,
    describe,
    error_type,
)
from onetool.processes.channel import RemoteError, Reply
from onetool.runs import explain, fence_processor, snippets, tool_loader
from onetool.runs.answer import Answer, LiveOutput, Presenter
from onetool.runs.cells import CellSource
from onetool.runs.gate import Gate
from onetool.runs.plan import PlanGate
from onetool.runs.replay import ReplayGate
from onetool.runs.run_output import FailedToolCall, RunOutput
from onetool.settings.model import Settings
from onetool.state.document_kinds import SavedSnippets
from onetool.util.context import Result, ToolContext
from onetool.util.large_data import run_in_thread_if
from onetool.util.text import pluralize
from onetool_child.errors import get_message
from onetool_child.json_types import JsonMapping, JsonObject
from onetool_child.media import MAX_MEDIA, detect_type
from onetool_child.messages import UTF8
from onetool_child.names import is_reserved

if TYPE_CHECKING:
    from onetool.runs.cell_process import RunTimer

REQUESTS_PER_CALL = 10  # looking up a name is a request too
MAX_NAMES = 1000
MAX_ACCOUNT_CHARS = 200
NAME_KINDS = {
    "pack": "pack",
    "list": "pack",
    "snippet": "snippet",
}  # the name in other requests is a tool
LONG_CODE_CHARS = 50_000  # longer code is scanned in a thread


class Runner:
    """A runner of commands. `projects` maps the names of `proj` to absolute directories."""

    def __init__(
        self,
        bus: ToolBus,
        cells: CellSource,
        settings: Settings,
        presenter: Presenter,
        *,
        projects: Mapping[str, str],
        saved_snippets: SavedSnippets,
    ) -> None:
        self.bus = bus
        self.cells = cells
        self.settings = settings
        self.saved_snippets = saved_snippets
        self._presenter = presenter
        self._projects = projects
        self.has_secret = presenter.has_secret

    async def run(
        self,
        command: object,
        context: ToolContext,
        output: RunOutput | None = None,
        preset_format: str | None = None,
    ) -> Answer:
        """Run the command; `preset_format` is the default of `__format__`."""
        output = output if output is not None else RunOutput()
        channel = output.channel
        if channel.hidden:
            context = replace(context, run=context.run._replace(hidden=channel.hidden))
        channel.emit("start", context.correlation_id)
        live = self._presenter.open_stream(output)
        snippet = ""
        try:
            code = await run_in_thread_if(
                isinstance(command, str) and len(command) > LONG_CODE_CHARS,
                partial(self._extract_code, command),
            )
            if snippets.is_snippet(code):
                snippet = code.split(maxsplit=1)[0]
                code = await run_in_thread(self._expand, snippets.expand, code, context.agent_id)
                self._check_length(code)
            names = await self._find_names(code)
            host = _Host(self, self.cells, context, output, live)
            repeatable = {} if context.run.gate is None else context.run.gate.cell_params
            result = await self.cells.run(
                {"code": code, "names": names, "format": preset_format, **repeatable}, host
            )
            if result["bytes"] > self.settings.execution.max_output_bytes:
                raise _size_error(self.settings.execution.max_output_bytes)
            await live.end()
            return await self._presenter.render_success(output, result, context)
        except RemoteError as error:
            if (
                error.data.get("class") == "SyntaxError"
                and not snippet
                and (hint := fence_processor.find_hint(code))
            ):
                error.data["hint"] = hint
            await self._discover_suspects(error.data)
            registry = self.bus.registry
            store_names = partial(self._presenter.store_names, context)
            render = partial(
                explain.render_failure, snippet=snippet, snippets=self.settings.snippets
            )
            # It may compare an unknown name with all others.
            text = await run_in_thread(render, error.data, output, registry, store_names)
            data = {**error.data, "line": None} if snippet else error.data
        except ToolError as error:
            text = explain.render_error(error, output.calls)
            data = describe(error)
        await live.end()
        return await self._presenter.render_failure(output, text, data, context)

    def _expand(self, expand: Callable[..., str], code: str, agent: str) -> str:
        """Expand with the snippets that the agent can use. Blocks on disk access."""
        return expand(code, self.saved_snippets.merge(self.settings.snippets, agent))

    async def expand_snippet(self, name: str, values: JsonObject, agent: str) -> Result:
        """Return the code of a snippet that code calls, and the names in it."""
        try:
            expand = lambda name, known: snippets.expand_call(name, values, known)  # noqa: E731 - as `snippets.expand`
            code = await run_in_thread(self._expand, expand, name, agent)
            self._check_length(code)
        except ToolError as error:
            return Result(ok=False, error=error)
        return Result(ok=True, value={"code": code, "names": await self._find_names(code)})

    def _extract_code(self, command: object) -> str:
        if not isinstance(command, str):
            raise ToolError(
                f"the command must be a string of Python code, not {type(command).__name__}."
                f" {explain.EXAMPLE}"
            )
        self._check_length(command)
        return fence_processor.strip(command)

    def _check_length(self, code: str) -> None:
        size = len(code.encode("utf-8", "surrogatepass"))
        limit = self.settings.execution.max_command_bytes
        if size > limit:
            raise ToolError(
                f"the command has {size} bytes, the limit is {limit}",
                hint=(
                    "let a tool read the data instead of putting it in code, or raise"
                    " execution.max_command_bytes"
                ),
            )

    async def resolve_names(
        self, names: Collection[str], used: Collection[str], output: RunOutput
    ) -> JsonObject:
        """Return the meaning of these names after refreshing their sources.

        An upstream server that was never listed is started for this, which may take a while.
        """
        registry = self.bus.registry
        packs = set(registry.match_packs(names).values())
        if servers := packs.intersection(map(python_name, self.settings.servers)):
            output.report_progress(f"listing the tools of {', '.join(sorted(servers))}")
        await registry.refresh(packs)
        bindings = tool_loader.bind_names(names, used, registry, self._projects)
        for name in set(names).intersection(registry.problems()):
            bindings["packs"].setdefault(name, [])  # calling one of its tools raises the problem
        left = [
            name
            for name in names
            if name not in bindings["packs"] and name not in bindings["tools"]
        ]
        matched = registry.match_packs([name for name in left if not is_reserved(name)])
        spelled = {name: pack for name, pack in matched.items() if pack != name}
        bindings["packs"] |= {name: [] for name in spelled}
        return {**bindings, "spelled": spelled} if spelled else bindings

    async def _discover_suspects(self, error: JsonMapping) -> None:
        """Load the packs that an error may refer to, so that its message can name them.

        Never waits for servers.
        """
        servers = set(map(python_name, self.settings.servers))
        with suppress(ToolError):
            if suspects := explain.find_suspects(error) - servers:
                await self.bus.registry.refresh(suspects)
            if error.get("class") in {"NameError", "ModuleNotFoundError"}:
                await self.bus.registry.load_pack_names()

    async def _find_names(self, code: str) -> JsonObject:
        return await run_in_thread_if(
            len(code) > LONG_CODE_CHARS,
            partial(tool_loader.find_names, code, self.bus.registry, self._projects),
        )


def _size_error(limit: int) -> BudgetExceeded:
    return BudgetExceeded(f"the value is larger than {limit} bytes; return a part of it")


def _add_clock(result: Result) -> Result:
    """Return the result with the time that a replayable run sees from now on."""
    if not result.clock:
        return result
    members = {"clock": result.clock, "replayed": result.is_replayed}
    return Reply(result.ok, result.value, result.error, result.ran, members=members)


def _pause(host: "weakref.ref[_Host]") -> AbstractContextManager[None]:
    """Stop the clock of a run while a person is asked.

    The context of the run must not keep the host alive.
    """
    running = host()
    return nullcontext() if running is None or running.timer is None else running.timer.paused()


def _split_memory(host: "weakref.ref[_Host]", cells: CellSource) -> int:
    running = host()
    return 0 if running is None else cells.split_memory(running)


class _Host:
    """The requests that the code of one run may make."""

    def __init__(
        self,
        runner: Runner,
        cells: CellSource,
        context: ToolContext,
        output: RunOutput,
        live: LiveOutput,
    ) -> None:
        self._runner = runner
        self._output = output
        self._live = live
        self.timer: RunTimer | None = None  # set when the code starts
        own = weakref.ref(self)
        split_memory = partial(_split_memory, own, cells)
        gate = context.run.gate
        if gate is not None:
            context = context.stop_timers(partial(_pause, own))
            context = replace(context, run=context.run._replace(split_memory=split_memory))
        self._context = context
        self._bus = runner.bus
        execution = runner.settings.execution
        self._max_calls = execution.max_tool_calls
        self._max_output = execution.max_output_bytes
        self._request_count = 0
        self._plan = gate if isinstance(gate, PlanGate) else None
        self._replay = gate if isinstance(gate, ReplayGate) else None

    async def request(self, method: str, params: JsonObject) -> Result:
        self._request_count += 1
        if self._request_count > REQUESTS_PER_CALL * self._max_calls:
            raise BudgetExceeded("the run made too many requests and was ended")
        try:
            check_name(
                str(params.get("name", params.get("pack", ""))), NAME_KINDS.get(method, "tool")
            )
        except ToolNotFound as error:
            return Result(ok=False, error=error)
        except AttributeError:
            raise TypeError("request parameters must be an object") from None
        match method:
            case "call":
                account = str(params.get("account", ""))[:MAX_ACCOUNT_CHARS]
                call = self._call(
                    str(params["name"]), list(params["args"]), dict(params["kwargs"]), account
                )
                return _add_clock(await call)
            case "snippet":
                return await self._runner.expand_snippet(
                    str(params["name"]), dict(params["values"]), self._context.agent_id
                )
            case "inspect" if self._plan is not None:
                raise self._plan.end_at_use(params.get("data"), params.get("line"))
            case "media":
                return await self._store_media()
            case "names" | "pack" | "find" | "list" | "describe":
                return await self._look_up(method, params)
        return Result(ok=False, error=ToolError(f"unknown request {method!r}"))

    def output(self, data: bytes) -> None:
        self._output.printed_bytes += len(data)
        if self._output.printed_bytes > self._max_output:
            message = f"the run printed more than {self._max_output} bytes and was ended"
            raise BudgetExceeded(
                message, hint="print less, or raise execution.max_output_bytes in onetool.yaml"
            )
        text = data.decode(*UTF8)
        self._output.printed.append(text)
        self._live.add(text)

    @property
    def has_acted(self) -> bool:
        """Whether the run has called a tool, printed, or sent a value."""
        output = self._output
        return bool(output.calls or output.printed or output.value or output.media_bytes)

    def value(self, data: bytes) -> None:
        """Add a rendered piece of a value that is too large for one message."""
        self._output.value_bytes += len(data)
        if self._output.value_bytes > self._max_output:
            raise _size_error(self._max_output)
        self._output.value.append(data.decode(*UTF8))

    def media(self, data: bytes) -> None:
        """Add a piece of an image or of audio in the value."""
        self._output.media_bytes += len(data)
        if self._output.media_bytes > self._max_output:
            raise _size_error(self._max_output)
        self._output.media += data

    async def _store_media(self) -> Result:
        """Store the received image or audio and return its handle; None if it cannot be shown."""
        output = self._output
        store = self._context.run.store_media
        data = bytes(output.media)
        output.media = bytearray()
        mime_type = detect_type(data[:16])  # the code may have forged the one in the request
        output.media_count += 1
        if store is None or not mime_type or output.media_count > MAX_MEDIA:
            return Result(ok=True, value=None)
        try:
            if await run_in_thread(self._runner.has_secret, data):
                return Result(ok=True, value=None)  # as text, it is redacted
            return Result(ok=True, value=await run_in_thread(store, data, mime_type))
        except ToolError as error:
            return Result(ok=False, error=error)

    async def _call(
        self, name: str, args: list[Any], kwargs: JsonObject, account: str = ""
    ) -> Result:
        calls = self._output.calls
        if len(calls) >= self._max_calls:
            message = f"the run exceeded its limit of {pluralize(self._max_calls, 'tool call')}"
            hint = "make fewer calls in one run, or raise execution.max_tool_calls in onetool.yaml"
            return Result(ok=False, error=BudgetExceeded(message, hint=hint))
        tool = self._bus.registry.peek(name) if kwargs else None
        if tool is not None and tool.continues(kwargs):
            return await self._call_tool(name, args, kwargs, account)
        index = len(calls)
        started = time.perf_counter()
        calls.append((name, "under way"))
        self._output.sources.add(name)
        self._output.channel.emit("call", {"state": "began", "number": index, "name": name})
        result = await self._call_tool(name, args, kwargs, account)
        error = None if result.error is None else error_type(result.error)
        if result.error is not None:
            self._output.failed_call = FailedToolCall(index, get_message(result.error))
        calls[index] = (name, error or "ok")
        milliseconds = round((time.perf_counter() - started) * 1000, 1)
        ended = {
            "state": "ended",
            "number": index,
            "name": name,
            "duration_ms": milliseconds,
            "error": error,
        }
        self._output.channel.emit("call", ended)
        return result

    async def _call_tool(
        self, name: str, args: list[Any], kwargs: JsonObject, account: str
    ) -> Result:
        if self._context.run.hidden and (error := await self._find_hidden(name)) is not None:
            return Result(ok=False, error=error)
        context = replace(self._context, account=account) if account else self._context
        if self._plan is not None:
            return await self._plan.call(self._bus, name, args, kwargs, context)
        if self._replay is not None:
            return self._replay.answer(name, args, kwargs)
        result = await self._bus.call_tool(name, kwargs, context, positional=args, raw=True)
        if isinstance(result.error, SignInRequired) and await self._sign_in(result.error, context):
            return await self._bus.call_tool(name, kwargs, context, positional=args, raw=True)
        gate = context.run.gate
        if result.error is not None and not result.ran and isinstance(gate, Gate):
            gate.record_refusal(name, args, kwargs, result.error)
        return result

    @staticmethod
    async def _sign_in(error: SignInRequired, context: ToolContext) -> bool:
        """Ask the person at the client to sign in, if possible.

        A run that can be replayed does not ask.
        """
        is_replayable = context.run.gate is not None and context.run.gate.is_replayable
        if context.client.send_request is None or context.system is None or is_replayable:
            return False
        return await context.system.sign_ins.ask_client(error, context)

    async def _find_hidden(self, name: str) -> ToolError | None:
        """Return the error for a tool that code cannot call."""
        try:
            return find_hidden_error(await self._bus.resolve(name), self._context)
        except ToolError:
            return None  # the call itself reports it

    async def _look_up(self, method: str, params: JsonObject) -> Result:
        try:
            match method:
                case "names":
                    return Result(
                        ok=True, value=await self._resolve_names(params["names"], params["used"])
                    )
                case "pack":
                    return Result(ok=True, value=await self._resolve_pack(str(params["name"])))
                case "find":
                    return Result(ok=True, value=await self._find_tool(str(params["name"])))
                case "describe":
                    return Result(ok=True, value=await self._describe_tool(str(params["name"])))
            names = await run_in_thread(self._bus.registry.map_python_names, str(params["pack"]))
            return Result(ok=True, value=sorted(names))
        except ToolError as error:
            return Result(ok=False, error=error)

    async def _find_tool(self, name: str) -> str:
        """Return the name of the tool; its server may require a sign-in before it lists its tools."""
        try:
            return (await self._bus.resolve(name)).name
        except SignInRequired as error:
            if not await self._sign_in(error, self._context):
                raise
            return (await self._bus.resolve(name)).name

    async def _resolve_names(self, names: list[Any], used: list[Any]) -> JsonObject:
        unbound = _select_names(names)
        others = _select_names(used)
        return await self._runner.resolve_names(unbound, others, self._output)

    async def _describe_tool(self, name: str) -> JsonObject:
        """Return the parameters of a tool that the agent may call."""
        tool = await self._bus.resolve(name)
        if not self._context.admits(tool):
            raise PermissionDenied(f"agent {self._context.agent_id!r} may not call {tool.name}")
        return describe_signature(tool)

    async def _resolve_pack(self, name: str) -> str:
        """Return the Python name of a pack; raise an error if it does not exist."""
        registry = self._bus.registry
        pack = registry.match_pack(python_name(name))
        if not registry.is_pack(pack):
            await registry.refresh({pack})
        if registry.is_pack(pack) or pack in registry.problems():
            return pack
        await registry.load_pack_names()
        raise registry.pack_not_found(name)


def _select_names(names: list[Any]) -> list[str]:
    """Return the names that can be names of packs or tools."""
    texts = map(str, names[:MAX_NAMES])
    return [text for text in texts if len(text) <= MAX_NAME_LENGTH and text.isidentifier()]
