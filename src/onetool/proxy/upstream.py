"""The backend of the tools, resources and prompts of one upstream server.

`connection_manager` connects to it.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any
from urllib.parse import unquote

import anyio.to_thread

from onetool._tool import Tool
from onetool.bus.authorize import authorize
from onetool.config.model import Server
from onetool.context import Foreign, Permission, ToolContext
from onetool.errors import ArgumentError, Cancelled, PermissionDenied, ToolError
from onetool.foreign_schema import ForeignSchema, check_arguments
from onetool.oauth.credential import Identity
from onetool.oauth.sign_ins import identify
from onetool.proxy import content
from onetool.proxy.connection import Connection
from onetool.proxy.connection_manager import ConnectionManager
from onetool.proxy.definitions import Definition, UpstreamSchema, digest
from onetool.proxy.relay import MAX_CALL_SECONDS, Relay, get_relay, is_question
from onetool.schema import ANY_OBJECT

AMBIGUOUS_NAME = re.compile(r"[\x00-\x1f\x7f-\x9f\\]|(?:^|[/?#;:])\.{1,2}(?:$|[/?#;:])")
MAX_DECODINGS = 3
REQUIRED_PERMISSIONS = frozenset({Permission.NETWORK})
META_KEY = "_meta"  # of ToolContext.metadata: the metadata of the client's request


class Upstream(ConnectionManager):
    """An upstream server. `apply_disabled` returns the tool, disabled if a person has disabled it."""

    def __init__(
        self,
        *args: Any,
        apply_disabled: Callable[[Tool], Tool],
        make_other: "Callable[[Identity], Upstream] | None" = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._apply_disabled, self._make_other = apply_disabled, make_other
        self._others: dict[Identity, Upstream] = {}  # the same server with other sign-ins

    @property
    def accounts(self) -> tuple[str, ...]:
        return tuple(self.server.accounts)

    async def _choose(self, context: ToolContext) -> "Upstream":
        """Return the connection with the sign-in of the caller. Agents and accounts never share one by accident."""
        if self.source is None or self._make_other is None:
            if context.account and self.source is None:
                raise ArgumentError(f"{self.name} has no accounts", hint=f"add servers.{self.name}.accounts")
            return self
        identity = self.source.identity
        wanted = identify(identity.target, context.account, context.agent_id)
        if wanted == identity or (identity.target.is_optional and not await self.source.is_target_used()):
            return self
        if wanted not in self._others:
            self._others[wanted] = self._make_other(wanted)
        other = self._others[wanted]
        other.on_change = self.on_change
        if not other.is_known:
            other.definitions, other.offered, other.rejected = self.definitions, self.offered, self.rejected
        return other

    async def list_as(self, identity: Identity) -> int:
        """Connect with a sign-in and list the tools. Return their number."""
        upstream: Upstream = self
        if self.source is not None and identity != self.source.identity and self._make_other is not None:
            if identity not in self._others:
                self._others[identity] = self._make_other(identity)
            upstream = self._others[identity]
        await upstream.connection(only_list=True)
        return len(upstream.definitions)

    async def unwatch(self, uri: str) -> None:
        watching = next((each for each in self._others.values() if each.is_watching(uri)), None)
        await (super().unwatch(uri) if watching is None else watching.unwatch(uri))

    async def stop(self) -> None:
        await asyncio.gather(super().stop(), *(each.stop() for each in self._others.values()))

    async def close(self) -> None:
        await asyncio.gather(super().close(), *(each.close() for each in self._others.values()))

    def identify(self, tool: Tool) -> Any:
        """Return the program or URL of the server, and the definition that each sign-in gets."""
        offered = (each.offered.get(tool.name) for each in (self, *self._others.values()))
        definitions = {digest([each] if each is not None else []) for each in offered}
        return [self.key, sorted(definitions)]

    async def warm_up(self, context: ToolContext) -> None:
        """Connect, which lists the tools."""
        await (await self._choose(context)).connection(context.on_progress)

    async def invoke(self, tool: Tool, args: Mapping[str, Any], context: ToolContext) -> Any:
        if (other := await self._choose(context)) is not self:
            return await other.invoke(tool, args, context)
        before = self._definition(tool.name)
        connection = await self.connection(context.on_progress)
        definition = self._definition(tool.name)  # connecting may have changed it
        if definition != before and definition.is_sound:
            args = await check_arguments(ForeignSchema.from_json(definition.input_schema), dict(args))
        self._was_called = True
        relay = get_relay(context)
        ask = partial(connection.client.session.call_tool if relay else connection.client.call_tool, definition.name)
        result = await self._send(tool.name, partial(ask, dict(args)), connection, context, timed=True)
        work = partial(self._convert, tool.name, result, definition, context)
        return await anyio.to_thread.run_sync(work) if content.is_expensive(result) else work()

    def _convert(self, tool: str, result: Any, definition: Definition, context: ToolContext) -> Any:
        """Return the value of a result; pass other content to the listener of the context."""
        store_media = self._make_media_store(context)
        self._report(tool, result, context, content.find_omitted(result, definition, store_media))
        return content.convert_result(result, definition, store_media)

    async def _send(
        self,
        subject: str,
        ask: Callable[..., Awaitable[Any]],
        connection: Connection,
        context: ToolContext,
        *,
        timed: bool,
    ) -> Any:
        """Send a request and return the result. A question is left to the transport, which can relay it."""
        relay = get_relay(context)
        meta = dict(context.metadata.get(META_KEY) or {})
        if relay is None:
            progress = {"progress_callback": _make_progress_callback(self.name, context.on_progress)} if timed else {}
            ask = partial(ask, meta=meta or None, **progress)
            return await self._request(subject, partial(_take_turn, connection, None, ask), connection)
        if timed:
            callback = relay.report_progress if relay.progress is not None else None
            ask = partial(ask, progress_callback=callback, read_timeout_seconds=MAX_CALL_SECONDS)
        await self._set_log_level(relay, connection)
        ask = partial(ask, meta={**meta, **relay.meta}, allow_input_required=True)
        exchange = partial(relay.exchange, ask, self.server.timeout)
        result = await self._request(subject, partial(_take_turn, connection, relay, exchange), connection, relay)
        if is_question(result):
            raise Cancelled(f"{subject} requires more input")
        return result

    async def _set_log_level(self, relay: Relay, connection: Connection) -> None:
        """Set the log level on a server before 2026; newer ones get it with each request."""
        if connection.relays is None or connection.is_modern or connection.client.server_capabilities.logging is None:
            return
        if (level := connection.relays.needs_level(relay)) is not None:
            from mcp_types import EmptyResult, SetLevelRequest, SetLevelRequestParams

            request = SetLevelRequest(params=SetLevelRequestParams.model_validate({"level": level}))
            await self._request(
                "its log", partial(connection.client.session.send_request, request, EmptyResult), connection
            )

    def _definition(self, tool: str) -> Definition:
        if tool in self.rejected:
            raise PermissionDenied(self.rejected[tool], tool=tool)
        if tool not in self.offered:
            raise ToolError(
                f"{self.name} no longer has the tool {tool}", hint=f"ot.tools(pattern='{self.name}.') lists its tools"
            )
        return self.offered[tool]

    def _report(self, subject: str, result: Any, context: ToolContext, media: Sequence[Any] = ()) -> None:
        details = {**(result.meta or {}), **({"media": list(media)} if media else {})}
        if context.on_foreign_value is not None and (details or self.server.sanitize):
            context.on_foreign_value(Foreign(subject, details, self.server.sanitize))

    def _make_media_store(self, context: ToolContext) -> content.StoreMedia:
        """Return the function that stores media. A relay gets the result unchanged and needs no handles."""
        if get_relay(context) is not None:
            return lambda _data, _mime_type: ""
        return lambda data, mime_type: self._media().put(data, mime_type, context.agent_id, context.token_id)

    async def list_resources(self, context: ToolContext) -> list[dict[str, Any]]:
        """List the resources and templates that the agent may read."""
        self._authorize("", context)
        if (other := await self._choose(context)) is not self:
            return await other.list_resources(context)
        client = (connection := await self.connection(context.on_progress)).client
        if client.server_capabilities.resources is None:
            return []
        found = await self._request(
            "its resources", partial(self._list_all, client.list_resources, "resources"), connection
        )
        ask = partial(self._list_all, client.list_resource_templates, "resource_templates", optional=True)
        templates = await self._request("its resources", ask, connection)
        found = [each for each in found if self._is_allowed(str(each.uri), context)]
        templates = [each for each in templates if self._is_allowed(each.uri_template, context)]
        _set_relay_result(context, (found, templates))
        return self._to_plain([*found, *templates], context)

    async def read_resource(self, uri: str, context: ToolContext) -> Any:
        self._authorize(uri, context)
        if (other := await self._choose(context)) is not self:
            return await other.read_resource(uri, context)
        connection = await self.connection(context.on_progress)
        relay, client = get_relay(context), connection.client
        ask = (
            partial(client.session.read_resource, uri)
            if relay
            else partial(client.read_resource, uri, cache_mode="bypass")
        )
        found = await self._send(uri, ask, connection, context, timed=False)
        self._report(f"{self.name} {uri}", found, context)
        store_media = self._make_media_store(context)
        parts = await anyio.to_thread.run_sync(
            lambda: [content.convert_resource(each, store_media) for each in found.contents]
        )
        return parts[0] if len(parts) == 1 else parts

    async def list_prompts(self, context: ToolContext) -> list[dict[str, Any]]:
        """List the prompts that the agent may use."""
        self._authorize("", context)
        if (other := await self._choose(context)) is not self:
            return await other.list_prompts(context)
        client = (connection := await self.connection(context.on_progress)).client
        if client.server_capabilities.prompts is None:
            return []
        found = await self._request("its prompts", partial(self._list_all, client.list_prompts, "prompts"), connection)
        found = [each for each in found if self._is_allowed(each.name, context)]
        _set_relay_result(context, found)
        return self._to_plain(found, context)

    async def get_prompt(self, name: str, arguments: Mapping[str, str], context: ToolContext) -> dict[str, Any]:
        self._authorize(name, context)
        if (other := await self._choose(context)) is not self:
            return await other.get_prompt(name, arguments, context)
        connection = await self.connection(context.on_progress)
        client = connection.client.session if get_relay(context) else connection.client
        ask = partial(client.get_prompt, name, dict(arguments))
        found = await self._send(name, ask, connection, context, timed=False)
        self._report(f"{self.name} {name}", found, context)
        return await anyio.to_thread.run_sync(content.convert_prompt, found, self._make_media_store(context))

    async def complete(self, feature: str, context: ToolContext, *arguments: Any) -> Any:
        """Complete an argument of a prompt or resource template; `arguments` are those of the SDK's `complete`."""
        self._authorize(feature, context)
        if (other := await self._choose(context)) is not self:
            return await other.complete(feature, context, *arguments)
        connection = await self.connection()
        if connection.client.server_capabilities.completions is None:
            return None
        return await self._request("completing", partial(connection.client.complete, *arguments), connection)

    async def watch_for(self, uri: str, context: ToolContext) -> None:
        """Watch a resource that the agent may read."""
        self._authorize(uri, context)
        await (await self._choose(context)).watch(uri)

    def _authorize(self, feature: str, context: ToolContext) -> None:
        """Apply the rules for tools to a resource or prompt; an empty name stands for a list of them."""
        name, chosen = self.name, self.server.tools
        is_restricted = bool(chosen.include or chosen.exclude or context.tools is not None)
        if is_restricted and _has_other_spelling(feature):
            raise PermissionDenied(
                f"ambiguous name {feature!r}: {name} may resolve it to another resource. Remove `.` and `..` segments, "
                "backslashes, outer white space, control characters and repeated percent-encoding",
                server=name,
            )
        # Another spelling of an excluded URI is excluded too.
        spellings = {form.casefold() for form in _decode_repeatedly(feature)}
        excluded = (fnmatchcase(form, pattern.casefold()) for form in spellings for pattern in chosen.exclude)
        if feature and (not is_chosen(feature, self.server) or any(excluded)):
            raise PermissionDenied(f"{feature} of {name} is not allowed: servers.{name}.tools excludes it", server=name)
        if not feature and context.admits_pack(name):
            context = replace(context, tools=None)  # each listed item is checked on its own
        target, schema = f"{name}.{feature or '*'}", UpstreamSchema.from_json(ANY_OBJECT)
        authorize(
            self._apply_disabled(_Feature(name=target, backend=self, input=schema, permissions=REQUIRED_PERMISSIONS)),
            {},
            context,
        )

    def _is_allowed(self, feature: str, context: ToolContext) -> bool:
        try:
            self._authorize(feature, context)
        except ToolError:
            return False
        return True

    def _to_plain(self, models: list[Any], context: ToolContext) -> list[dict[str, Any]]:
        if context.on_foreign_value is not None and self.server.sanitize:
            context.on_foreign_value(Foreign(self.name, {}, is_untrusted=True))
        return [content.to_plain(each) for each in models]


async def _take_turn(connection: Connection, relay: Relay | None, ask: Callable[[], Awaitable[Any]]) -> Any:
    if connection.relays is None:
        return await ask()
    async with connection.relays.track(relay):
        return await ask()


def _set_relay_result(context: ToolContext, result: Any) -> None:
    if (relay := get_relay(context)) is not None:
        relay.result = result


def _make_progress_callback(name: str, report_line: Callable[[str], None] | None) -> Any:
    if report_line is None:
        return None

    async def report(progress: float, total: float | None, message: str | None) -> None:
        done = f"{progress:g} of {total:g}" if total else f"{progress:g}"
        report_line(f"{name}: {message or done}")

    return report


@dataclass(frozen=True, slots=True)
class _Feature(Tool):
    """A resource or prompt, checked by the rules for tools. Its name may contain dots."""

    @property
    def pack(self) -> str:
        return self.name.partition(".")[0]


def is_chosen(tool: str, server: Server) -> bool:
    included = not server.tools.include or any(fnmatchcase(tool, pattern) for pattern in server.tools.include)
    return included and not any(fnmatchcase(tool, pattern) for pattern in server.tools.exclude)


def _has_other_spelling(feature: str) -> bool:
    """Return whether a server may resolve the name to another one, which the include and exclude lists would miss."""
    forms = _decode_repeatedly(feature)
    return forms[-1] != unquote(forms[-1]) or any(
        form != form.strip() or AMBIGUOUS_NAME.search(form) is not None for form in forms
    )


def _decode_repeatedly(feature: str) -> list[str]:
    """Return the name, and the name percent-decoded once, twice and so on."""
    forms = [feature]
    while len(forms) <= MAX_DECODINGS and unquote(forms[-1]) != forms[-1]:
        forms.append(unquote(forms[-1]))
    return forms
