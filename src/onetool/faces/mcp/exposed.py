"""What `--expose` publishes one to one beside `run`: tools, and the resources and prompts of whole servers.

Everything goes the one path: tools through the bus, resources and prompts as `ot.resources` and `ot.prompt` do. What a
server answers is passed on as it is, without secrets; what it asks is passed on too (`relaying`).
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import anyio.to_thread
import mcp_types as types
from mcp import MCPError

from onetool._tool import Result, Tool
from onetool.app import OneTool
from onetool.bus.authorise import authorise
from onetool.errors import ToolError
from onetool.faces.mcp.callers import caller_of
from onetool.faces.mcp.publishing import as_wire, cleaned, definition, named, of_error, of_value, with_texts
from onetool.faces.mcp.relaying import Relaying
from onetool.proxy.relay import RELAY, Relay
from onetool.proxy.upstream import Upstream
from onetool.registry import Registry, nearest, python_name
from onetool.sanitise import sanitise
from onetool.util.invisible import find_in_name
from onetool_child.errors import message_of

CONNECT_SECONDS = 10.0
RESOURCES, PROMPTS = "ot.resources", "ot.prompt"
OWN_ERRORS = {types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT}  # that the SDK makes itself
Answer = types.InputRequiredResult | dict[str, Any]
Given = TypeVar("Given")


class Exposed:
    """`on_change` is told what has changed about servers that are published."""

    def __init__(self, app: OneTool, on_change: Callable[[str, str], None]) -> None:
        self._app, self._on_change = app, on_change
        self._wanted = {form for name in app.exposed for form in (name, python_name(name))}
        self._stored: list[Tool] = []
        self._named: tuple[object, dict[str, Tool]] = (None, {})
        self._relaying = Relaying()
        self._mark()

    def __bool__(self) -> bool:
        return bool(self._wanted)

    def close(self) -> None:
        self._relaying.close()

    # --- tools ------------------------------------------------------------------------------------------------------

    def tools(self) -> Mapping[str, Tool]:
        """What is published now, by the names that clients use."""
        version = (self._app.registry.version, self._stored)
        if self._named[0] != version:
            found = (*self._app.registry, *self._stored)
            self._named = (version, named(tool for tool in found if self._is_wanted(tool)))
        return self._named[1]

    def schema(self, name: str) -> Mapping[str, Any] | None:
        """Of the arguments, for the SDK to compare headers with."""
        tool = self.tools().get(name) if self._wanted else None
        return tool.input.json if tool is not None else None

    async def listed(self, context: Any) -> list[types.Tool]:
        """What this client may call, in the order of the names."""
        if not self._wanted:
            return []
        await self._ready()
        caller = caller_of(self._app, context)
        found = sorted(self.tools().items())
        return [definition(name, tool) for name, tool in found if caller.admits(tool) and _may_be_read(tool)]

    async def find(self, context: Any, name: str) -> Tool | None:
        if not self._wanted:
            return None
        if name not in self.tools():
            await self._ready()
        tool = self.tools().get(name)
        return tool if tool is not None and caller_of(self._app, context).admits(tool) else None

    async def call(self, context: Any, tool: Tool, params: types.CallToolRequestParams) -> Answer:
        answer = await self._answer(context, params, tool.pack, tool.name, dict(params.arguments or {}))
        if not isinstance(answer, Result):
            return answer
        made = of_error(answer.error) if answer.error is not None else of_value(answer.value)
        return as_wire(made, self._app.redact)

    async def _sent(self, context: Any, name: str, arguments: Mapping[str, Any], relay: Relay) -> Result:
        caller = caller_of(self._app, context)
        caller = replace(caller, metadata={**caller.metadata, RELAY: relay})
        return await self._app.bus.call_tool(name, arguments, caller)

    def _is_wanted(self, tool: Tool) -> bool:
        return not self._wanted.isdisjoint((tool.name, tool.pack, python_name(tool.name), python_name(tool.pack)))

    # --- resources and prompts of whole servers ---------------------------------------------------------------------

    @property
    def _servers(self) -> list[str]:
        return [name for name, server in self._app.settings.servers.items() if name in self._wanted and server.enabled]

    async def resources(self, context: Any) -> tuple[list[types.Resource], list[types.ResourceTemplate]]:
        found = await self._of_all(context, RESOURCES)
        resources = [cleaned(each) for _, (some, _) in found for each in some]
        return resources, [cleaned(each) for _, (_, some) in found for each in some]

    async def prompts(self, context: Any) -> dict[str, tuple[str, types.Prompt]]:
        """By the names that clients use, with the server of each; two of one name are told apart by their servers."""
        found = [(server, each) for server, some in await self._of_all(context, PROMPTS) for each in some]
        counted = Counter([*(each.name for _, each in found), *self._app.settings.snippets])
        return {
            each.name if counted[each.name] == 1 else f"{server}_{each.name}": (server, cleaned(each))
            for server, each in found
            if not find_in_name(each.name)
        }

    async def read(self, context: Any, params: types.ReadResourceRequestParams) -> Answer | None:
        """None where there is no server to ask. What is for anybody there is for this agent here."""
        refusal: MCPError | None = None
        for server in await self._holders(context, params.uri):
            try:
                answer = await self._given(context, params, RESOURCES, {"server": server, "uri": params.uri})
            except MCPError as error:
                refusal = error
                continue
            return {**answer, "cacheScope": "private"} if isinstance(answer, dict) else answer
        if refusal is not None:
            raise refusal
        return None

    async def prompt(self, context: Any, params: types.GetPromptRequestParams) -> Answer | None:
        """None where it is no server's."""
        server, name = await self._home_of(context, params.name)
        if server is None:
            return None
        arguments = {"server": server, "name": name, "arguments": dict(params.arguments or {})}
        return await self._given(context, params, PROMPTS, arguments)

    async def complete(self, context: Any, params: types.CompleteRequestParams) -> types.CompleteResult | None:
        """None where it is about nothing that is published."""
        ref, server = params.ref, None
        if isinstance(ref, types.PromptReference):
            server, name = await self._home_of(context, ref.name)
            ref = ref.model_copy(update={"name": name})
        else:
            found = await self._of_all(context, RESOURCES)
            server = next((name for name, (_, some) in found if any(t.uri_template == ref.uri for t in some)), None)
        if server is None:
            return None
        self._allow(context, PROMPTS)
        known = dict(params.context.arguments or {}) if params.context is not None else None
        feature = ref.name if isinstance(ref, types.PromptReference) else ref.uri
        upstream, caller = self._app.servers.upstream(server), caller_of(self._app, context)
        completing = upstream.complete(feature, caller, ref, params.argument.model_dump(), known)
        completed: types.CompleteResult | ToolError | None = await _caught(completing)
        if isinstance(completed, ToolError):
            raise MCPError(types.INVALID_PARAMS, self._app.redact(completed.message))
        return completed

    async def watch(self, context: Any, uri: str) -> Callable[[], Awaitable[None]] | None:
        """What takes it back; None where no server has it, or this client may not have it."""
        try:
            self._allow(context, RESOURCES)
        except MCPError:
            return None
        for server in await self._holders(context, uri):
            upstream = self._app.servers.upstream(server)
            with suppress(ToolError):
                await upstream.watch_for(uri, caller_of(self._app, context))
                return partial(upstream.unwatch, uri)
        return None

    async def _home_of(self, context: Any, prompt: str) -> tuple[str | None, str]:
        """The server of a prompt, and its name there."""
        servers = self._servers
        if not servers or prompt.removeprefix("$") in self._app.settings.snippets:
            return None, prompt
        if len(servers) == 1 and not prompt.startswith(f"{servers[0]}_"):
            return servers[0], prompt
        found = (await self.prompts(context)).get(prompt)
        return (found[0], found[1].name) if found is not None else (None, prompt)

    async def _holders(self, context: Any, uri: str) -> list[str]:
        """The servers that list it; else those that may have it unlisted, which are all."""
        if len(self._servers) <= 1:
            return self._servers
        found = await self._of_all(context, RESOURCES)
        listing = [server for server, (some, _) in found if any(str(each.uri) == uri for each in some)]
        return listing or self._servers

    async def _of_all(self, context: Any, name: str) -> list[tuple[str, Any]]:
        """What each server lists; of one that fails, or is not for this client, nothing."""

        async def asked(server: str) -> Any:
            relay = Relay(client=None, ask=_nobody, log=_nobody)
            await self._sent(context, name, {"server": server}, relay)
            return relay.result

        servers = self._servers
        self._mark()
        found = await asyncio.gather(*map(asked, servers))
        return [(server, some) for server, some in zip(servers, found, strict=True) if some]

    def _allow(self, context: Any, name: str) -> None:
        try:
            authorise(self._app.registry.find(name), {}, caller_of(self._app, context))
        except ToolError as error:
            raise MCPError(types.INVALID_PARAMS, self._app.redact(error.message)) from None

    async def _answer(
        self, context: Any, params: Any, server: str, name: str, arguments: Mapping[str, Any]
    ) -> Answer | Result:
        """What a server gave, without secrets, or the error that it gave; the result of the call if it gave nothing."""
        outcome = await self._relaying.outcome(context, params, partial(self._sent, context, name, arguments))
        if isinstance(outcome, types.InputRequiredResult):
            return outcome
        relay, result = outcome
        redact, error, settings = self._app.redact, relay.error, self._app.settings
        if relay.result is None:
            if result.error is not None and isinstance(error, MCPError) and error.code not in OWN_ERRORS:
                raise MCPError(error.code, redact(error.message), redact.in_data(error.data))
            return result
        answer = as_wire(relay.result, redact)
        upstream = settings.servers.get(server)
        is_marked = upstream is not None and (upstream.sanitize or settings.output.sanitize)
        return with_texts(answer, lambda text: sanitise(text, server)) if is_marked else answer

    async def _given(self, context: Any, params: Any, name: str, arguments: Mapping[str, Any]) -> Answer:
        """The same for resources and prompts, which nobody but a server can give."""
        answer = await self._answer(context, params, arguments["server"], name, arguments)
        if isinstance(answer, Result):
            assert answer.error is not None
            raise MCPError(types.INVALID_PARAMS, self._app.redact(message_of(answer.error)))
        return answer

    # --- servers ----------------------------------------------------------------------------------------------------

    def _mark(self) -> None:
        """Also those that a reload has made."""
        for upstream in _upstreams(self._app, self._wanted):
            upstream.publish(self._on_change)

    async def _ready(self) -> None:
        """Have the servers tell their tools in all their words, which is more than what is kept of them."""
        self._mark()
        await self._app.discover({name.partition(".")[0] for name in self._wanted})
        self._stored = await anyio.to_thread.run_sync(stored_tools, self._app.registry, self._wanted)
        upstreams = _upstreams(self._app, self._wanted)
        unheard = [each for each in upstreams if each.server.enabled and not each.raw_tools]
        if unheard:
            connecting = [asyncio.ensure_future(_caught(each.connection())) for each in unheard]
            await asyncio.wait(connecting, timeout=CONNECT_SECONDS)


async def check(app: OneTool) -> None:
    """Raises what is wrong with the names; servers that were never asked are asked now."""
    for upstream in _upstreams(app, app.exposed):
        upstream.publish(lambda _what, _uri: None)  # before it is connected
    for name in app.exposed:
        await app.discover({python_name(name).partition(".")[0]})
        registry = app.registry
        known = [*(tool.name for tool in registry), *registry.packs(), *app.settings.servers]
        if name in known or python_name(name) in known:
            continue
        if await anyio.to_thread.run_sync(registry.get, name) is None:
            near = nearest(name, [*known, *(await anyio.to_thread.run_sync(registry.nearest, name))])
            guess = f" Did you mean {' or '.join(near)}?" if near else " Type `onetool tools` to see all."
            raise ToolError(f"--expose {name}: there is no tool, pack or server of this name.{guess}")


def stored_tools(registry: Registry, wanted: Iterable[str]) -> list[Tool]:
    """The stored tools of these names, and those of these packs. It waits for the disk."""
    names = [*wanted, *(entry.name for pack in wanted for entry in registry.entries(pack))]
    found = (registry.known(name) for name in dict.fromkeys(names))
    return [tool for tool in found if tool is not None and tool.name not in registry]


def _upstreams(app: OneTool, names: Iterable[str]) -> list[Upstream]:
    packs = {python_name(name).partition(".")[0] for name in names}
    return [app.servers.upstream(name) for name in app.settings.servers if python_name(name) in packs]


def _may_be_read(tool: Tool) -> bool:
    """Not what is off, nor what nobody has looked at since it became another."""
    return tool.enabled and not (isinstance(tool.backend, Upstream) and tool.name in tool.backend.refused)


async def _nobody(_what: Any) -> Any:
    return types.ErrorData(code=types.INVALID_REQUEST, message="there is nobody to ask")


async def _caught(work: Awaitable[Given]) -> Given | ToolError:
    """The error as a value, so that nobody else is kept from going on."""
    try:
        return await work
    except ToolError as error:
        return error
