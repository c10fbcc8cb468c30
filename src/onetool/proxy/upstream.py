"""One configured server, as the backend of its tools: what is asked of it, and what becomes of its answers.

How it is connected and left is the business of `link`.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any
from urllib.parse import unquote

import anyio.to_thread

from onetool._tool import Tool
from onetool.bus.authorise import authorise
from onetool.config.model import Server
from onetool.context import Foreign, Permission, ToolContext
from onetool.errors import Cancelled, PermissionDenied, ToolError
from onetool.proxy import content
from onetool.proxy.connection import Connection
from onetool.proxy.definitions import Definition, TheirSchema
from onetool.proxy.link import Link, every_page
from onetool.proxy.relay import LONGEST_CALL, Relay, is_question, relay_of
from onetool.schema import ANY_OBJECT, Schema

NO_PLAIN_NAME = re.compile(r"[\x00-\x1f\x7f-\x9f\\]|(?:^|[/?#;:])\.{1,2}(?:$|[/?#;:])")
MAX_UNQUOTINGS = 3
NEEDS = frozenset({Permission.NETWORK})
META = "_meta"  # of ToolContext.metadata: what a client said about its request


class Upstream(Link):
    """`switched` is the tool, disabled if a person has switched it off."""

    def __init__(self, *args: Any, switched: Callable[[Tool], Tool], **options: Any) -> None:
        super().__init__(*args, **options)
        self._switched = switched

    async def invoke(self, tool: Tool, args: Mapping[str, Any], context: ToolContext) -> Any:
        before = self._definition(tool.name)
        connection = await self.connection(context.progress)
        definition = self._definition(tool.name)  # it may have become another by connecting
        if definition != before and definition.is_sound:
            Schema.from_json(definition.input_schema).check(dict(args))
        self._was_called = True
        relay = relay_of(context)
        ask = partial(connection.client.session.call_tool if relay else connection.client.call_tool, definition.name)
        result = await self._sent(tool.name, partial(ask, dict(args)), connection, context, timed=True)
        work = partial(self._taken, tool.name, result, definition, context)
        return await anyio.to_thread.run_sync(work) if content.is_work(result) else work()

    def _taken(self, tool: str, result: Any, definition: Definition, context: ToolContext) -> Any:
        """Its value. What else came with it is told to whoever listens."""
        keep = self._keeper(context)
        self._tell(tool, result, context, content.left_out(result, definition, keep))
        return content.value_of(result, definition, keep)

    async def _sent(
        self,
        what: str,
        ask: Callable[..., Awaitable[Any]],
        connection: Connection,
        context: ToolContext,
        *,
        timed: bool,
    ) -> Any:
        """What the server gives for this; where it is a question, the door that can pass it on is left to do so."""
        relay = relay_of(context)
        meta = dict(context.metadata.get(META) or {})
        if relay is None:
            progress = {"progress_callback": _progress(self.name, context.progress)} if timed else {}
            ask = partial(ask, meta=meta or None, **progress)
            return await self._asked(what, partial(_in_turn, connection, None, ask), connection)
        if timed:
            shown = relay.told if relay.progress is not None else None
            ask = partial(ask, progress_callback=shown, read_timeout_seconds=LONGEST_CALL)
        await self._want_level(relay, connection)
        ask = partial(ask, meta={**meta, **relay.meta}, allow_input_required=True)
        exchange = partial(relay.exchange, ask, self.server.timeout)
        result = await self._asked(what, partial(_in_turn, connection, relay, exchange), connection, relay)
        if is_question(result):
            raise Cancelled(f"{what} asks for more before it answers")
        return result

    async def _want_level(self, relay: Relay, connection: Connection) -> None:
        """Servers of before 2026 are told the level once for all, newer ones with each request."""
        if connection.relays is None or connection.is_modern or connection.client.server_capabilities.logging is None:
            return
        if (level := connection.relays.needs_level(relay)) is not None:
            from mcp_types import EmptyResult, SetLevelRequest, SetLevelRequestParams

            request = SetLevelRequest(params=SetLevelRequestParams.model_validate({"level": level}))
            await self._asked(
                "its log", partial(connection.client.session.send_request, request, EmptyResult), connection
            )

    def _definition(self, tool: str) -> Definition:
        if tool in self.refused:
            raise PermissionDenied(self.refused[tool], tool=tool)
        if tool not in self.offered:
            raise ToolError(f"{self.name} no longer offers {tool}. Type ot.tools(pattern='{self.name}.') to see all.")
        return self.offered[tool]

    def _tell(self, what: str, result: Any, context: ToolContext, beside: Sequence[Any] = ()) -> None:
        about = {**(result.meta or {}), **({"media": list(beside)} if beside else {})}
        if context.heard is not None and (about or self.server.sanitize):
            context.heard(Foreign(what, about, self.server.sanitize))

    def _keeper(self, context: ToolContext) -> content.Keep:
        """Who gets the answer as it is needs no handles of what is in it."""
        if relay_of(context) is not None:
            return lambda _data, _mime_type: ""
        return lambda data, mime_type: self._media().put(data, mime_type, context.agent_id, context.token_id)

    async def list_resources(self, context: ToolContext) -> list[dict[str, Any]]:
        """List the resources and templates that the agent may read."""
        self._authorize("", context)
        client = (connection := await self.connection(context.progress)).client
        if client.server_capabilities.resources is None:
            return []
        found = await self._asked("its resources", partial(every_page, client.list_resources, "resources"), connection)
        ask = partial(every_page, client.list_resource_templates, "resource_templates", optional=True)
        templates = await self._asked("its resources", ask, connection)
        found = [each for each in found if self._is_allowed(str(each.uri), context)]
        templates = [each for each in templates if self._is_allowed(each.uri_template, context)]
        _pass_on(context, (found, templates))
        return self._plain([*found, *templates], context)

    async def read_resource(self, uri: str, context: ToolContext) -> Any:
        self._authorize(uri, context)
        connection = await self.connection(context.progress)
        relay, client = relay_of(context), connection.client
        ask = (
            partial(client.session.read_resource, uri)
            if relay
            else partial(client.read_resource, uri, cache_mode="bypass")
        )
        found = await self._sent(uri, ask, connection, context, timed=False)
        self._tell(f"{self.name} {uri}", found, context)
        keep = self._keeper(context)
        parts = await anyio.to_thread.run_sync(lambda: [content.resource(each, keep) for each in found.contents])
        return parts[0] if len(parts) == 1 else parts

    async def list_prompts(self, context: ToolContext) -> list[dict[str, Any]]:
        """List the prompts that the agent may use."""
        self._authorize("", context)
        client = (connection := await self.connection(context.progress)).client
        if client.server_capabilities.prompts is None:
            return []
        found = await self._asked("its prompts", partial(every_page, client.list_prompts, "prompts"), connection)
        found = [each for each in found if self._is_allowed(each.name, context)]
        _pass_on(context, found)
        return self._plain(found, context)

    async def get_prompt(self, name: str, arguments: Mapping[str, str], context: ToolContext) -> dict[str, Any]:
        self._authorize(name, context)
        connection = await self.connection(context.progress)
        client = connection.client.session if relay_of(context) else connection.client
        ask = partial(client.get_prompt, name, dict(arguments))
        found = await self._sent(name, ask, connection, context, timed=False)
        self._tell(f"{self.name} {name}", found, context)
        return await anyio.to_thread.run_sync(content.prompt, found, self._keeper(context))

    async def complete(self, feature: str, context: ToolContext, *what: Any) -> Any:
        """Complete an argument of a prompt or resource template; `what` are the arguments of the SDK's `complete`."""
        self._authorize(feature, context)
        connection = await self.connection()
        if connection.client.server_capabilities.completions is None:
            return None
        return await self._asked("completing", partial(connection.client.complete, *what), connection)

    async def watch_for(self, uri: str, context: ToolContext) -> None:
        """Watch a resource that the agent may read."""
        self._authorize(uri, context)
        await self.watch(uri)

    def _authorize(self, feature: str, context: ToolContext) -> None:
        """Apply the rules for tools to a resource or prompt; an empty name stands for a list of them."""
        name, chosen = self.name, self.server.tools
        is_restricted = bool(chosen.include or chosen.exclude or context.tools is not None)
        if is_restricted and _has_other_spelling(feature):
            raise PermissionDenied(
                f"{name} may read {feature!r} as another address: write it without `.` and `..` segments, backslashes, "
                "white space at the ends, control characters and repeated percent-encoding",
                server=name,
            )
        # Another spelling of an excluded URI is excluded too.
        spellings = {form.casefold() for form in _unquoted(feature)}
        excluded = (fnmatchcase(form, pattern.casefold()) for form in spellings for pattern in chosen.exclude)
        if feature and (not is_chosen(feature, self.server) or any(excluded)):
            raise PermissionDenied(
                f"{name} does not publish {feature}: servers.{name}.tools leaves it out", server=name
            )
        if not feature and context.admits_some_of(name):
            context = replace(context, tools=None)  # what it lists is decided one by one
        target, schema = f"{name}.{feature or '*'}", TheirSchema.from_json(ANY_OBJECT)
        authorise(self._switched(_Feature(name=target, backend=self, input=schema, permissions=NEEDS)), {}, context)

    def _is_allowed(self, feature: str, context: ToolContext) -> bool:
        try:
            self._authorize(feature, context)
        except ToolError:
            return False
        return True

    def _plain(self, models: list[Any], context: ToolContext) -> list[dict[str, Any]]:
        if context.heard is not None and self.server.sanitize:
            context.heard(Foreign(self.name, {}, is_untrusted=True))
        return [content.plain(each) for each in models]


async def _in_turn(connection: Connection, relay: Relay | None, ask: Callable[[], Awaitable[Any]]) -> Any:
    if connection.relays is None:
        return await ask()
    async with connection.relays.under_way(relay):
        return await ask()


def _pass_on(context: ToolContext, result: Any) -> None:
    if (relay := relay_of(context)) is not None:
        relay.result = result


def _progress(name: str, tell: Callable[[str], None] | None) -> Any:
    if tell is None:
        return None

    async def told(progress: float, total: float | None, message: str | None) -> None:
        done = f"{progress:g} of {total:g}" if total else f"{progress:g}"
        tell(f"{name}: {message or done}")

    return told


@dataclass(frozen=True, slots=True)
class _Feature(Tool):
    """A resource or prompt, which the rules for tools apply to. Its name may have dots of its own."""

    @property
    def pack(self) -> str:
        return self.name.partition(".")[0]


def is_chosen(tool: str, server: Server) -> bool:
    included = not server.tools.include or any(fnmatchcase(tool, pattern) for pattern in server.tools.include)
    return included and not any(fnmatchcase(tool, pattern) for pattern in server.tools.exclude)


def _has_other_spelling(feature: str) -> bool:
    """Return whether a server may take the name for another one, which the lists of names do not see."""
    forms = _unquoted(feature)
    return forms[-1] != unquote(forms[-1]) or any(
        form != form.strip() or NO_PLAIN_NAME.search(form) is not None for form in forms
    )


def _unquoted(feature: str) -> list[str]:
    """Return the name, and what it is with its percent-encoding decoded once, twice and so on."""
    forms = [feature]
    while len(forms) <= MAX_UNQUOTINGS and unquote(forms[-1]) != forms[-1]:
        forms.append(unquote(forms[-1]))
    return forms
