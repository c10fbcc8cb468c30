"""One upstream server: the backend of its tools, and its resources and prompts.

A server has a session for each sign-in that calls it. `Upstream` decides which session a call uses,
what the agent may use, and how requests and results are passed on; the session connects.
"""

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

from anyio.to_thread import run_sync as run_in_thread

from onetool.core.agents import authorize
from onetool.core.foreign_schema import ForeignSchema, check_arguments
from onetool.core.schema import ANY_OBJECT
from onetool.core.tool import Tool
from onetool.errors import Cancelled, PermissionDenied, ToolError
from onetool.net.oauth.credential import Identity
from onetool.net.oauth.sign_ins import SignIns, identify, make_server_target
from onetool.net.oauth.token_source import TokenSource
from onetool.processes.supervised import SharedPool
from onetool.runs.results.blobs import Media
from onetool.settings.model import Server
from onetool.sources.upstream.checked_tools import REQUIRED_PERMISSIONS, CheckedTools, is_chosen
from onetool.sources.upstream.connection import Connection
from onetool.sources.upstream.definitions import (
    Definition,
    Definitions,
    StoreMedia,
    ToolLists,
    UpstreamSchema,
    cache_key,
    convert_prompt,
    convert_resources,
    convert_result,
    digest,
    find_omitted,
    identify_origin,
    is_expensive,
    to_plain,
)
from onetool.sources.upstream.relay import MAX_CALL_SECONDS, Relay, get_relay, is_question
from onetool.sources.upstream.session import UpstreamSession
from onetool.sources.upstream.stdio import ServerLaunch
from onetool.util.context import Foreign, ToolContext
from onetool_child.interface import MAX_PROGRESS_CHARS
from onetool_child.json_types import JsonMapping, JsonObject

AMBIGUOUS_NAME = re.compile(r"[\x00-\x1f\x7f-\x9f\\]|(?:^|[/?#;:])\.{1,2}(?:$|[/?#;:])")
MAX_DECODINGS = 3
META_KEY = "_meta"  # of ToolContext.metadata: the metadata of the client's request
OnChange = Callable[
    [str, str], None
]  # kind (tools, prompts, resources or resource), and the URI of a resource
Install = Callable[[UpstreamSession, Definitions], Awaitable[None]]


class UpstreamServices(NamedTuple):
    """Application services for its upstream servers.

    `apply_disabled` returns a tool, disabled if a person has disabled it. With `shared`, other
    applications may use the same connections.
    """

    apply_disabled: Callable[[Tool], Tool]
    log: Callable[..., None]
    media: Callable[[], Media]
    sign_ins: SignIns
    shared: SharedPool[Connection] | None = None


class Upstream:
    """An upstream server.

    `main` is the session with the default sign-in, whose tools are in the registry.

    `install` creates the tools of a session.
    """

    def __init__(
        self,
        name: str,
        server: Server,
        services: UpstreamServices,
        *,
        launch: ServerLaunch,
        lists: ToolLists,
        install: Install,
    ) -> None:
        self.name = name
        self.server = server
        self.services = services
        self.accounts = server.accounts
        self.key = cache_key(server)
        self.origin = identify_origin(server)
        self.lists = lists
        self.install = install
        self._launch = launch
        self._on_change: OnChange | None = None  # set by a transport that publishes this server
        self._sessions: dict[
            Identity | None, UpstreamSession
        ] = {}  # by sign-in; None for servers that need none
        target = make_server_target(name, server)
        self.main = self._get_session(None if target is None else identify(target))

    @property
    def tools(self) -> CheckedTools:
        """The tools in the registry."""
        return self.main.tools

    @property
    def is_published(self) -> bool:
        """Whether clients see its tools, so that its requests and changes are relayed to them."""
        return self._on_change is not None

    # --- sessions ---------------------------------------------------------------------------------

    async def _choose_session(self, context: ToolContext) -> UpstreamSession:
        """Return the session with the caller's sign-in.

        Agents and accounts never share one by accident.
        """
        source = self.main.source
        if source is None:
            return self.main
        target = source.identity.target
        identity = identify(target, context.account, context.agent_id)
        if identity == source.identity or (
            target.is_optional and not await source.is_target_used()
        ):
            return self.main
        session = self._get_session(identity)
        if not session.is_known:
            session.tools = self.main.tools
        return session

    def _get_session(self, identity: Identity | None) -> UpstreamSession:
        if identity not in self._sessions:
            source = None if identity is None else self.services.sign_ins.get_source(identity)
            self._sessions[identity] = UpstreamSession(self, source)
        return self._sessions[identity]

    def get_connection(self, source: TokenSource | None) -> Connection:
        """Return a new connection, or another application's.

        Questions of a server to clients are never shared.
        """
        make = partial(Connection, self.server, self._launch, source, is_relayed=self.is_published)
        shared = self.services.shared
        if shared is None or self.is_published or not self.server.is_shared:
            return make()
        identity = None if source is None else source.identity
        return shared.get((self.server, self._launch, identity), make)

    def publish(self, on_change: OnChange) -> None:
        """Relay server requests and changes to clients from now on.

        Connections without relays are closed.
        """
        self._on_change = on_change
        for session in self._sessions.values():
            session.disconnect_unrelayed()

    def report_change(self, kind: str, uri: str) -> None:
        if self._on_change is not None:
            self._on_change(kind, uri)

    async def list_as(self, identity: Identity) -> int:
        """Connect with a sign-in and list the tools. Return their number."""
        session = self.main if self.main.source is None else self._get_session(identity)
        await session.connect(only_list=True)
        return len(session.tools.definitions)

    async def stop(self) -> None:
        """Disconnect. Calls in flight fail, and the next call connects again."""
        await asyncio.gather(*(session.stop() for session in self._sessions.values()))

    async def close(self) -> None:
        await asyncio.gather(*(session.close() for session in self._sessions.values()))

    # --- calls ------------------------------------------------------------------------------------

    def identify(self, tool: Tool) -> Any:
        """Return the server's program or URL, and the definition that each sign-in gets."""
        definitions = [session.tools.offered.get(tool.name) for session in self._sessions.values()]
        return [
            self.key,
            sorted({digest(filter(None, [definition])) for definition in definitions}),
        ]

    async def warm_up(self, context: ToolContext) -> None:
        """Connect, which lists the tools."""
        session = await self._choose_session(context)
        await session.connect(context.client.progress)

    async def invoke(self, tool: Tool, args: JsonMapping, context: ToolContext) -> Any:
        session = await self._choose_session(context)
        before = session.get_definition(tool.name)
        connection = await session.connect(context.client.progress)
        definition = session.get_definition(tool.name)  # connecting may have changed it
        if definition != before and definition.is_sound:
            args = await check_arguments(
                ForeignSchema.from_json(definition.input_schema), dict(args)
            )
        session.idle_seconds = math.inf
        arguments = (definition.name, dict(args))
        result = await self._send(
            tool.name, "call_tool", arguments, session, connection, context=context
        )
        convert = partial(self._convert, tool.name, result, definition, context)
        return await run_in_thread(convert) if is_expensive(result) else convert()

    def _convert(self, tool: str, result: Any, definition: Definition, context: ToolContext) -> Any:
        """Return a result's value; pass other content to the context's listener."""
        store_media = self._make_media_store(context)
        self._report(tool, result, context, find_omitted(result, definition, store_media))
        return convert_result(result, definition, store_media)

    async def _send(
        self,
        subject: str,
        method: str,
        arguments: Sequence[Any],
        session: UpstreamSession,
        connection: Connection,
        *,
        context: ToolContext,
    ) -> Any:
        """Send a request and return the result.

        A question is left to the transport, which can relay it.
        """
        relay = get_relay(context)
        is_call = method == "call_tool"
        meta = dict(context.metadata.get(META_KEY) or {})
        if relay is None:
            ask = partial(getattr(connection.client, method), *arguments, meta=meta or None)
            if is_call:
                ask = partial(
                    ask,
                    progress_callback=_make_progress_callback(self.name, context.client.progress),
                )
            async with session.request(subject, connection), connection.take_turn(Relay()):
                return await ask()
        ask = partial(
            getattr(connection.client.session, method), *arguments, meta={**meta, **relay.meta}
        )
        if is_call:
            progress_callback = relay.report_progress if relay.progress is not None else None
            ask = partial(
                ask, progress_callback=progress_callback, read_timeout_seconds=MAX_CALL_SECONDS
            )
        async with session.request("its log", connection):
            await connection.set_log_level(relay)
        async with session.request(subject, connection), connection.take_turn(relay):
            result = await relay.exchange(
                partial(ask, allow_input_required=True), self.server.timeout
            )
        if is_question(result):
            raise Cancelled(f"{subject} requires more input")
        return result

    def _report(
        self, subject: str, result: Any, context: ToolContext, media: Sequence[Any] = ()
    ) -> None:
        details = dict(result.meta or {})
        if media:
            details["media"] = list(media)
        if details or self.server.sanitize:
            context.run.record_foreign(Foreign(subject, details, self.server.sanitize))

    def _make_media_store(self, context: ToolContext) -> StoreMedia:
        """Return the function that stores media.

        A relay gets the result unchanged and needs no handles.
        """
        if get_relay(context) is not None:
            return lambda _data, _mime_type: ""
        return lambda data, mime_type: self.services.media().put(
            data, mime_type, context.agent_id, context.token_id
        )

    # --- resources and prompts --------------------------------------------------------------------

    async def list_resources(self, context: ToolContext) -> list[JsonObject]:
        """List the resources and templates that the agent may read."""
        return await self._list("resources", ("resources", "resource_templates"), context)

    async def list_prompts(self, context: ToolContext) -> list[JsonObject]:
        """List the prompts that the agent may use."""
        return await self._list("prompts", ("prompts",), context)

    async def _list(
        self, capability: str, parts: Sequence[str], context: ToolContext
    ) -> list[JsonObject]:
        """Return these server lists as one, without what the agent may not use.

        A relay gets them unchanged.
        """
        session, connection = await self._connect("", context)
        if getattr(connection.client.server_capabilities, capability) is None:
            return []
        async with session.request(f"its {capability}", connection):
            lists = [await connection.list_all(part) for part in parts]
        lists = await run_in_thread(self._select_allowed, lists, context)
        relay = get_relay(context)
        if relay is not None:
            relay.result = lists
        if self.server.sanitize:
            context.run.record_foreign(Foreign(self.name, {}, is_untrusted=True))
        return await run_in_thread(lambda: [to_plain(item) for items in lists for item in items])

    def _select_allowed(
        self, lists: Iterable[Sequence[Any]], context: ToolContext
    ) -> list[list[Any]]:
        return [
            [item for item in items if self._is_allowed(_get_key(item), context)] for items in lists
        ]

    async def read_resource(self, uri: str, context: ToolContext) -> Any:
        return await self._get(uri, "read_resource", (uri,), convert_resources, context)

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str], context: ToolContext
    ) -> Any:
        return await self._get(name, "get_prompt", (name, dict(arguments)), convert_prompt, context)

    async def _get(
        self,
        feature: str,
        method: str,
        arguments: Sequence[Any],
        convert: Callable[..., Any],
        context: ToolContext,
    ) -> Any:
        session, connection = await self._connect(feature, context)
        result = await self._send(feature, method, arguments, session, connection, context=context)
        self._report(f"{self.name} {feature}", result, context)
        return await run_in_thread(convert, result, self._make_media_store(context))

    async def complete(self, feature: str, context: ToolContext, *arguments: Any) -> Any:
        """Complete a prompt or template argument; `arguments` are the SDK's."""
        session, connection = await self._connect(feature, context)
        if connection.client.server_capabilities.completions is None:
            return None
        async with session.request("completing", connection):
            return await connection.client.complete(*arguments)

    async def watch(self, uri: str, context: ToolContext) -> Callable[[], Awaitable[None]]:
        """Report changes in a resource that the agent may read. Return a function to end it."""
        self._authorize(uri, context)
        session = await self._choose_session(context)
        await session.watch(uri)
        return partial(session.unwatch, uri)

    async def _connect(
        self, feature: str, context: ToolContext
    ) -> tuple[UpstreamSession, Connection]:
        """Connect to use a resource or prompt, or to list them if the name is empty."""
        self._authorize(feature, context)
        session = await self._choose_session(context)
        return session, await session.connect(context.client.progress)

    def _is_allowed(self, feature: str, context: ToolContext) -> bool:
        try:
            self._authorize(feature, context)
        except ToolError:
            return False
        return True

    def _authorize(self, feature: str, context: ToolContext) -> None:
        """Apply tool rules to a resource or prompt; an empty name stands for a list."""
        name = self.name
        excludes = self.server.tools.exclude
        spellings = _decode_repeatedly(feature)
        is_restricted = bool(self.server.tools.include or excludes or context.tools is not None)
        if is_restricted and _is_ambiguous(spellings):
            raise PermissionDenied(
                f"ambiguous name {feature!r}: {name} may resolve it to another resource. Remove `.`"
                " and `..` segments, backslashes, outer white space, control characters and"
                " repeated percent-encoding",
                server=name,
            )
        # Another spelling of an excluded URI is excluded too.
        is_excluded = any(
            fnmatchcase(form.casefold(), glob.casefold()) for form in spellings for glob in excludes
        )
        if feature and (is_excluded or not is_chosen(feature, self.server)):
            raise PermissionDenied(
                f"{feature} of {name} is not allowed: servers.{name}.tools excludes it", server=name
            )
        if not feature and context.admits_pack(name):
            context = replace(context, tools=None)  # each listed item is checked on its own
        schema = UpstreamSchema.from_json(ANY_OBJECT)
        tool = _Feature(f"{name}.{feature or '*'}", self, schema, permissions=REQUIRED_PERMISSIONS)
        authorize(self.services.apply_disabled(tool), {}, context)


@dataclass(frozen=True, slots=True)
class _Feature(Tool):
    """A resource or prompt, checked by the rules for tools. Its name may contain dots."""

    @property
    def pack(self) -> str:
        return self.name.partition(".")[0]


def _get_key(item: Any) -> str:
    """Return a resource's URI, a template's URI template, or a prompt's name."""
    return str(getattr(item, "uri", None) or getattr(item, "uri_template", None) or item.name)


def _decode_repeatedly(feature: str) -> list[str]:
    """Return the name, and the name percent-decoded once, twice and so on."""
    spellings = [feature]
    while len(spellings) <= MAX_DECODINGS and unquote(spellings[-1]) != spellings[-1]:
        spellings.append(unquote(spellings[-1]))
    return spellings


def _is_ambiguous(spellings: list[str]) -> bool:
    """Return whether a server may resolve the name to one that the lists would miss."""
    if spellings[-1] != unquote(spellings[-1]):
        return True
    return any(
        form != form.strip() or AMBIGUOUS_NAME.search(form) is not None for form in spellings
    )


def _make_progress_callback(name: str, report_line: Callable[[str], None] | None) -> Any:
    if report_line is None:
        return None

    async def report(progress: float, total: float | None, message: str | None) -> None:
        done = f"{progress:g} of {total:g}" if total else f"{progress:g}"
        report_line(f"{name}: {(message or done)[:MAX_PROGRESS_CHARS]}")

    return report
