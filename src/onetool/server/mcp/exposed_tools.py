"""Tools, resources and prompts that `--expose` and `expose` publish in addition to `run`.

All calls go through the bus: tools directly, resources and prompts as `ot.resources` and
`ot.prompt`. Results of upstream servers are passed through with secrets redacted; their requests to
the client go through `relay`.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import mcp_types as types
from anyio.to_thread import run_sync as run_in_thread
from mcp import MCPError

from onetool.app import OneTool
from onetool.core.agents import authorize
from onetool.core.names import nearest, python_name
from onetool.core.registry import Registry
from onetool.core.tool import Tool
from onetool.errors import OutputInvalid, ToolError
from onetool.runs.answer import find_media
from onetool.server.mcp.client_identity import build_context, make_approver, session_key
from onetool.server.mcp.publish import (
    Exposure,
    assign_names,
    clean_texts,
    cut_large_result,
    dump,
    load_media,
    mark_result,
    render_error,
    render_value,
    to_wire,
)
from onetool.server.mcp.relay import ClientMessages, ClientRelay
from onetool.sources.upstream.relay import RELAY_KEY, Relay
from onetool.sources.upstream.upstream import Upstream
from onetool.util.bounded_dict import BoundedDict
from onetool.util.context import CallClient, Result, ToolContext
from onetool.util.invisible import find_in_name
from onetool.util.large_data import is_large, run_in_thread_if
from onetool.util.text import did_you_mean
from onetool_child.errors import get_message
from onetool_child.json_types import JsonMapping, JsonObject

CONNECT_SECONDS = 10.0
MAX_SELECTIONS = 16  # different choices of `auto` whose names are kept
RESOURCES = "ot.resources"
PROMPTS = "ot.prompt"
SDK_ERRORS = {types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT}  # raised by the SDK itself
ServerResult = types.InputRequiredResult | JsonObject


class ExposedTools:
    """The exposed tools and servers. `on_change` is called when an exposed server changes."""

    def __init__(self, app: OneTool, on_change: Callable[[str, str], None]) -> None:
        self._app = app
        self._on_change = on_change
        self.exposure = Exposure(app)
        self._stored_tools: dict[str, Tool] = {}
        # By the tools that `auto` chose.
        self._published: BoundedDict[frozenset[str], tuple[object, dict[str, Tool]]] = BoundedDict(
            MAX_SELECTIONS
        )
        self._client_relay = ClientRelay()
        self._publish_servers()

    def __bool__(self) -> bool:
        return bool(self.exposure)

    def close(self) -> None:
        self._client_relay.close()

    # --- tools ------------------------------------------------------------------------------------

    def tools(self, chosen: frozenset[str] = frozenset()) -> Mapping[str, Tool]:
        """Return the exposed tools by their published names; `chosen` are those of `auto`."""
        published = self.exposure.published_names
        stored = self._stored_tools
        version = (self._app.registry.version, stored, published)
        cached = self._published.get(chosen)
        if cached is None or cached[0] != version:
            tools = [
                tool
                for tool in (*self._app.registry, *stored.values())
                if tool.name in chosen
                or not published.isdisjoint((tool.name, tool.pack, *_to_python_names(tool)))
            ]
            cached = self._published[chosen] = version, assign_names(tools)
        return cached[1]

    def schema(self, name: str) -> JsonMapping | None:
        """Return the input schema, which the SDK compares with request headers."""
        published = (tools for _, tools in self._published.values())
        tool = next((tools[name] for tools in published if name in tools), None) if self else None
        return tool.input.json if tool is not None else None

    async def list_tools(self, context: Any) -> list[tuple[str, Tool]]:
        """Return the tools that this client may call, sorted by their published names."""
        if not self:
            return []
        caller = build_context(self._app, context)
        chosen = await self._choose(context)
        await self._connect_servers(chosen)
        tools = sorted(self.tools(chosen).items())
        return [(name, tool) for name, tool in tools if self.exposure.is_shown(tool, caller)]

    async def find(self, context: Any, name: str) -> Tool | None:
        if not self:
            return None
        chosen = await self._choose(context)
        if name not in self.tools(chosen):
            await self._connect_servers(chosen)
        tool = self.tools(chosen).get(name)
        return tool if tool is not None and build_context(self._app, context).admits(tool) else None

    async def _choose(self, context: Any) -> frozenset[str]:
        return await self.exposure.choose(
            session_key(self._app, context), build_context(self._app, context)
        )

    async def call(
        self, context: Any, tool: Tool, params: types.CallToolRequestParams
    ) -> ServerResult:
        call_tool = self._call_bus if isinstance(tool.backend, Upstream) else self._call_own
        call = partial(call_tool, context, tool.name, dict(params.arguments or {}))
        outcome = await self._client_relay.run(context, params, call)
        if isinstance(outcome, types.InputRequiredResult):
            return outcome
        relay, result = outcome
        answer = await self._read_answer(relay, result)
        if answer is None:
            answer = await self._render(context, result)
            source = tool.name
            is_untrusted = relay.is_untrusted
        else:
            source = tool.pack
            is_untrusted = self._is_untrusted(source)
        caller = build_context(self._app, context)
        answer = await cut_large_result(self._app, tool, caller, answer, is_untrusted=is_untrusted)
        if is_untrusted:
            return await _mark(answer, source, keeps_data=tool.output is not None)
        return answer

    async def _render(self, context: Any, answer: Result) -> JsonObject:
        """Return the result of a call as MCP content."""
        if answer.error is not None:
            return to_wire(render_error(answer.error), self._app.redact)
        caller = build_context(self._app, context)
        needs_thread = is_large(answer.value)
        media = await run_in_thread_if(needs_thread, partial(find_media, answer.value))
        blocks = await load_media(self._app, media, caller.agent_id, caller.token_id)
        result = await run_in_thread_if(
            needs_thread,
            lambda: to_wire(render_value(answer.value, is_media=bool(blocks)), self._app.redact),
        )
        result["content"] += map(dump, blocks)
        return result

    async def _call_bus(
        self, context: Any, name: str, arguments: JsonMapping, relay: Relay
    ) -> Result:
        client = ClientMessages(relay, self._app.redact, name)
        caller = self._build_context(context, relay, client)
        caller = replace(caller, metadata={**caller.metadata, RELAY_KEY: relay})
        return await self._app.bus.call_tool(name, arguments, caller)

    async def _call_own(
        self, context: Any, name: str, arguments: JsonMapping, relay: Relay
    ) -> Result:
        """Call a tool that does not belong to an upstream server.

        It can send messages to the client.
        """
        client = ClientMessages(relay, self._app.redact, name)
        caller = self._build_context(context, relay, client)
        write_log = caller.client.log

        def log(message: str, level: str) -> None:
            if write_log is not None:
                write_log(message, level)
            client.log(message, level)

        report = None if relay.progress is None else client.report_progress
        caller = replace(
            caller,
            client=CallClient(
                progress=report,
                log=log,
                ask=client.ask,
                send_request=relay.ask if "sampling" in relay.capabilities else None,
            ),
            run=caller.run._replace(record_foreign=relay.record_foreign),
        )
        result = await self._app.bus.call_tool(name, arguments, caller)
        await client.flush()
        return result

    def _build_context(self, context: Any, relay: Relay, client: ClientMessages) -> ToolContext:
        can_ask = "elicitation" in relay.capabilities
        return build_context(
            self._app,
            context,
            make_approver(self._app, context, client.approve) if can_ask else None,
        )

    # --- resources and prompts of whole servers ---------------------------------------------------

    @property
    def _servers(self) -> list[str]:
        published = self.exposure.published_names
        return [
            name
            for name, server in self._app.settings.servers.items()
            if name in published and server.enabled
        ]

    async def resources(
        self, context: Any
    ) -> tuple[list[types.Resource], list[types.ResourceTemplate]]:
        resources: list[types.Resource] = []
        templates: list[types.ResourceTemplate] = []
        for _, lists in await self._list_servers(context, RESOURCES):
            resources += await run_in_thread(_clean_all, lists[0])
            templates += await run_in_thread(_clean_all, lists[1])
        return resources, templates

    async def prompts(self, context: Any) -> dict[str, tuple[str, types.Prompt]]:
        """Return prompts with their servers by published name.

        Duplicate names get the server as a prefix.
        """
        return await run_in_thread(self._name_prompts, await self._list_servers(context, PROMPTS))

    def _name_prompts(
        self, lists: Iterable[tuple[str, Any]]
    ) -> dict[str, tuple[str, types.Prompt]]:
        prompts = [(server, prompt) for server, (items,) in lists for prompt in items]
        counted = Counter([*(prompt.name for _, prompt in prompts), *self._app.settings.snippets])
        published = {}
        for server, prompt in prompts:
            names = [prompt.name, *(argument.name for argument in prompt.arguments or ())]
            if not any(map(find_in_name, names)):
                name = prompt.name if counted[prompt.name] == 1 else f"{server}_{prompt.name}"
                published[name] = server, clean_texts(prompt)
        return published

    async def read(
        self, context: Any, params: types.ReadResourceRequestParams
    ) -> ServerResult | None:
        """Read a resource; return None if no server is exposed.

        The result may be cached for this agent only.
        """
        failure: MCPError | None = None
        for server in await self._find_servers(context, params.uri):
            try:
                answer = await self._require_answer(
                    context, params, RESOURCES, {"server": server, "uri": params.uri}
                )
            except MCPError as error:
                failure = error
                continue
            return {**answer, "cacheScope": "private"} if isinstance(answer, dict) else answer
        if failure is not None:
            raise failure
        return None

    async def prompt(
        self, context: Any, params: types.GetPromptRequestParams
    ) -> ServerResult | None:
        """Get a prompt; return None if it does not belong to an exposed server."""
        server, name = await self._find_prompt(context, params.name)
        if server is None:
            return None
        arguments = {"server": server, "name": name, "arguments": dict(params.arguments or {})}
        return await self._require_answer(context, params, PROMPTS, arguments)

    async def complete(
        self, context: Any, params: types.CompleteRequestParams
    ) -> types.CompleteResult | None:
        """Complete an argument; return None if the reference does not belong to an exposed server."""
        ref = params.ref
        server = None
        if isinstance(ref, types.PromptReference):
            server, name = await self._find_prompt(context, ref.name)
            ref = ref.model_copy(update={"name": name})
        else:
            for name, (_, templates) in await self._list_servers(context, RESOURCES):
                if server is None and any(
                    template.uri_template == ref.uri for template in templates
                ):
                    server = name
        if server is None:
            return None
        self._authorize(context, PROMPTS)
        arguments = dict(params.context.arguments or {}) if params.context is not None else None
        feature = ref.name if isinstance(ref, types.PromptReference) else ref.uri
        upstream = self._app.servers.upstream(server)
        caller = build_context(self._app, context)
        completing = upstream.complete(
            feature, caller, ref, params.argument.model_dump(), arguments
        )
        with self._convert_errors():
            completed: types.CompleteResult | None = await completing
        return completed

    async def watch(self, context: Any, uri: str) -> Callable[[], Awaitable[None]] | None:
        """Subscribe to a resource.

        Return the function that unsubscribes, or None if it is not available.
        """
        try:
            self._authorize(context, RESOURCES)
        except MCPError:
            return None
        for server in await self._find_servers(context, uri):
            upstream = self._app.servers.upstream(server)
            with suppress(ToolError):
                return await upstream.watch(uri, build_context(self._app, context))
        return None

    async def _find_prompt(self, context: Any, prompt: str) -> tuple[str | None, str]:
        """Return the server of a prompt and the prompt's name on that server."""
        servers = self._servers
        if not servers or prompt.removeprefix("$") in self._app.settings.snippets:
            return None, prompt
        if len(servers) == 1 and not prompt.startswith(f"{servers[0]}_"):
            return servers[0], prompt
        published = (await self.prompts(context)).get(prompt)
        return (published[0], published[1].name) if published is not None else (None, prompt)

    async def _find_servers(self, context: Any, uri: str) -> list[str]:
        """Return the servers that list the resource, or all servers if none lists it."""
        servers = self._servers
        if len(servers) <= 1:
            return servers
        lists = await self._list_servers(context, RESOURCES)
        return [
            server for server, (items, _) in lists if uri in {str(item.uri) for item in items}
        ] or servers

    async def _list_servers(self, context: Any, name: str) -> list[tuple[str, Any]]:
        """Return what each server lists, without servers that fail or are not permitted."""

        async def list_server(server: str) -> Any:
            relay = Relay(client=None, ask=_reject_request, log=_reject_request)
            await self._call_bus(context, name, {"server": server}, relay)
            return relay.result

        servers = self._servers
        self._publish_servers()
        lists = await asyncio.gather(*map(list_server, servers))
        return [(server, items) for server, items in zip(servers, lists, strict=True) if items]

    def _authorize(self, context: Any, name: str) -> None:
        with self._convert_errors():
            authorize(self._app.registry.find(name), {}, build_context(self._app, context))

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        try:
            yield
        except ToolError as error:
            raise MCPError(types.INVALID_PARAMS, self._app.redact(error.message)) from None

    async def _read_answer(self, relay: Relay, result: Result) -> JsonObject | None:
        """Return the redacted server result, or None if only the call's result counts."""
        redact = self._app.redact
        error = relay.error
        if relay.result is not None and not isinstance(result.error, OutputInvalid):
            return await run_in_thread_if(
                is_large(relay.result), partial(to_wire, relay.result, redact)
            )
        if (
            result.error is not None
            and isinstance(error, MCPError)
            and error.code not in SDK_ERRORS
        ):
            raise MCPError(error.code, redact(error.message), redact.redact_data(error.data))
        return None

    def _is_untrusted(self, server: str) -> bool:
        """Return whether the texts of a server are marked and defused."""
        settings = self._app.settings
        upstream = settings.servers.get(server)
        return upstream is not None and (upstream.sanitize or settings.output.sanitize)

    async def _require_answer(
        self, context: Any, params: Any, name: str, arguments: JsonMapping
    ) -> ServerResult:
        """Return the server's result for a resource or prompt. Raise if the server returned none."""
        call = partial(self._call_bus, context, name, arguments)
        outcome = await self._client_relay.run(context, params, call)
        if isinstance(outcome, types.InputRequiredResult):
            return outcome
        relay, result = outcome
        answer = await self._read_answer(relay, result)
        if answer is None:
            assert result.error is not None
            raise MCPError(types.INVALID_PARAMS, self._app.redact(get_message(result.error)))
        server = arguments["server"]
        return (
            await _mark(answer, server, keeps_data=False) if self._is_untrusted(server) else answer
        )

    # --- servers ----------------------------------------------------------------------------------

    def _publish_servers(self) -> None:
        """Mark the upstream servers as exposed, including those that a reload added."""
        for upstream in _list_upstreams(self._app, self.exposure.published_names):
            upstream.publish(self._on_change)

    async def _connect_servers(self, chosen: frozenset[str]) -> None:
        """Connect the exposed servers, whose cached definitions are incomplete.

        `auto` uses cached definitions.
        """
        self._publish_servers()
        await self._app.discover({name.partition(".")[0] for name in self.exposure.published_names})
        published = self.exposure.published_names  # a pack may be loaded only now
        names = published.union(chosen, *self._published)
        tools = await run_in_thread(find_stored_tools, self._app.registry, names)
        stored = {tool.name: tool for tool in tools}
        if stored != self._stored_tools:
            self._stored_tools = stored
        upstreams = _list_upstreams(self._app, published)
        unlisted = [
            upstream
            for upstream in upstreams
            if upstream.server.enabled and not upstream.main.raw_tools
        ]
        if unlisted:
            connecting = [asyncio.ensure_future(_connect(upstream)) for upstream in unlisted]
            await asyncio.wait(connecting, timeout=CONNECT_SECONDS)


async def check(app: OneTool) -> None:
    """Raise if a name in `--expose` is unknown. Connects servers whose tools were never listed."""
    for upstream in _list_upstreams(app, app.exposed):
        upstream.publish(lambda _request, _uri: None)  # before it connects
    for name in app.exposed:
        await app.discover({python_name(name).partition(".")[0]})
        registry = app.registry
        names = [*(tool.name for tool in registry), *registry.packs(), *app.settings.servers]
        if name in names or python_name(name) in names:
            continue
        if await run_in_thread(registry.get, name) is None:
            near = nearest(name, [*names, *(await run_in_thread(registry.nearest, name))])
            hint = did_you_mean(near).strip() or "list all tools with `onetool tools`"
            raise ToolError(
                f"invalid value for --expose: no tool, pack or server named {name!r}", hint=hint
            )


def _clean_all(items: Iterable[Any]) -> list[Any]:
    return [clean_texts(item) for item in items]


async def _mark(answer: JsonObject, source: str, *, keeps_data: bool) -> JsonObject:
    return await run_in_thread_if(
        is_large(answer), partial(mark_result, answer, source, keeps_data=keeps_data)
    )


def find_stored_tools(registry: Registry, names: Collection[str]) -> list[Tool]:
    """Return the stored tools with these names or in these packs. Reads the disk."""
    all_names = dict.fromkeys(
        [*names, *(entry.name for pack in names for entry in registry.entries(pack))]
    )
    tools = map(registry.find_exact, all_names)
    return [tool for tool in tools if tool is not None and tool.name not in registry]


def _to_python_names(tool: Tool) -> tuple[str, str]:
    return python_name(tool.name), python_name(tool.pack)


def _list_upstreams(app: OneTool, names: Iterable[str]) -> list[Upstream]:
    packs = {python_name(name).partition(".")[0] for name in names}
    return [
        app.servers.upstream(name) for name in app.settings.servers if python_name(name) in packs
    ]


async def _connect(upstream: Upstream) -> None:
    with suppress(ToolError):
        await upstream.main.connect()


async def _reject_request(_request: Any) -> Any:
    return types.ErrorData(code=types.INVALID_REQUEST, message="no client to ask")
