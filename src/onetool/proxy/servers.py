"""The source of upstream tools: all configured servers, their states, and changes of their tools.

Listing tools never waits long for a server: servers without a cached list are listed in the background.
"""

import asyncio
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import anyio.to_thread

from onetool._tool import Tool
from onetool.children.shared import SharedPool
from onetool.config.load import Loaded
from onetool.config.model import PackSettings, Server
from onetool.context import ToolContext
from onetool.errors import ToolError
from onetool.foreign_schema import ForeignSchema
from onetool.oauth.credential import Identity
from onetool.oauth.sign_ins import SignIns, identify, make_server_target
from onetool.policy.effects import apply_settings, get_implied_permissions
from onetool.policy.hints import Hints, read_hints
from onetool.policy.labels import PRIVATE
from onetool.problem import PROBLEM, WARNING, Problem, limit_problems
from onetool.proxy.connection import Connection, load_sdk
from onetool.proxy.definitions import Definition, ToolListCache, UpstreamSchema, digest
from onetool.proxy.pins import ACCEPTED, Differences, Pins, accept, compare, list_claims
from onetool.proxy.server_launch import ServerLaunch, plan_launch
from onetool.proxy.upstream import REQUIRED_PERMISSIONS, Upstream, is_chosen
from onetool.redact import Redactor
from onetool.registry import HeldTools, python_name
from onetool.sanitize import clean, clean_schema
from onetool.schema import ANY_OBJECT, Schema
from onetool.storage import MediaStorage, PinStorage, RemoteState, ToolListStorage
from onetool.util.background_tasks import BackgroundTasks
from onetool.util.invisible import replace_in_name
from onetool.util.text import pluralize, quote

LIST_SECONDS = 1.0  # how long listing and searching wait for servers without a cached list
MAX_NAME_CHARS, MAX_DIFF_CHARS = 200, 4000
MAX_REASON_CHARS, MAX_LISTED_SERVERS = 200, 20  # characters of a reason, and listed servers, in a note
INVALID_NAME_CHARS = re.compile(r"[\s@.\x00-\x1f]")


class DefinitionsChanged(ToolError):
    """Raised if a person accepts definitions that the server no longer has."""


class Unlisted(NamedTuple):
    """A server whose tools are not known."""

    server: str
    state: str
    reason: str


class Servers(HeldTools):
    """The upstream servers. `apply_disabled` returns the tool, disabled if a person has disabled it."""

    kind = "proxy"

    def __init__(
        self,
        apply_disabled: Callable[[Tool], Tool],
        environment: Mapping[str, str],
        log: Callable[..., None],
        media: Callable[[], MediaStorage],
        *,
        sign_ins: SignIns,
        shared: SharedPool[Connection] | None = None,
        remote: Callable[[], RemoteState | None] = lambda: None,
    ) -> None:
        super().__init__()
        self._shared, self._sign_ins, self._remote = shared, sign_ins, remote
        self._followed: RemoteState | None = None
        self._apply_disabled, self.environment, self._log, self._media = apply_disabled, environment, log, media
        self._upstreams: dict[str, Upstream] = {}
        self._slots = asyncio.Semaphore(os.cpu_count() or 1)  # concurrent background listings
        self._wait_until = 0.0
        self.list_seconds = LIST_SECONDS
        self.keeps_running = False  # whether this process outlives one command
        self._changed: dict[str, Differences] = {}
        self._claims: dict[str, dict[str, str]] = {}
        self._unpinnable: dict[str, ToolError] = {}  # server -> why changes cannot be detected
        self._unpinned: set[str] = set()  # servers whose pins another process may have changed
        self._retired = BackgroundTasks()
        self._pins: PinStorage
        self._declared: dict[str, Tool] = {}  # the tools without settings
        self._packs: Mapping[str, PackSettings] = {}

    def configure(self, loaded: Loaded, /) -> None:
        """Apply new settings. A server whose settings are the same is kept."""
        directories, remote, redact = loaded.directories, self._remote(), Redactor(loaded.secrets.values())
        if remote is not None and self._followed is not remote:
            remote.subscribe("pins", self._mark_unpinned)
        self._followed = remote
        self._pins = Pins(directories.data / "pins.json") if remote is None else remote.pins
        lists: ToolListStorage = (
            ToolListCache(directories.data / "cache", redact) if remote is None else remote.tool_lists(redact)
        )
        wanted = loaded.settings.servers
        for name in [name for name, each in self._upstreams.items() if wanted.get(name) != each.server]:
            self._forget(name)
        self._unpinned = set(self._upstreams)
        self._packs = loaded.settings.tools
        for name in self.held:
            self.replace(self._configure(self._declared[name]))
        for name, server in wanted.items():
            if name not in self._upstreams:
                launch = plan_launch(name, server, loaded, self.environment)
                self._upstreams[name] = self._make_upstream(name, server, lists, launch)

    def _mark_unpinned(self) -> None:
        """Compare all servers with their pins before the next call: a person may have accepted changes elsewhere."""
        self._unpinned = set(self._upstreams)

    async def _compare_again(self) -> None:
        unpinned, self._unpinned = self._unpinned, set()
        await asyncio.gather(*(self._upstreams[name].reinstall() for name in unpinned))

    def _make_upstream(
        self,
        name: str,
        server: Server,
        lists: ToolListStorage,
        launch: ServerLaunch,
        identity: Identity | None = None,
    ) -> Upstream:
        """Return the server, with the sign-in of the default agent and account unless another one is given."""
        target = make_server_target(name, server)
        is_main, identity = identity is None, identity or (None if target is None else identify(target))
        upstream: Upstream = Upstream(
            name,
            server,
            lists=lists,
            launch=launch,
            media=self._media,
            install=lambda definitions: (self._install if is_main else self._install_other)(upstream, definitions),
            log=self._log,
            shared=self._shared,
            apply_disabled=self._apply_disabled,
            source=None if identity is None else self._sign_ins.get_source(identity),
            make_other=partial(self._make_upstream, name, server, lists, launch) if is_main else None,
        )
        return upstream

    # --- listing ------------------------------------------------------------------------------------------------------

    @property
    def names(self) -> Sequence[str]:
        """The names of all configured servers, whether their tools are known or not."""
        return tuple(self._upstreams)

    @property
    def connected_names(self) -> list[str]:
        return sorted(name for name, each in self._upstreams.items() if each.state == "connected")

    async def refresh(self, pack_names: Collection[str] | None = None, /) -> None:
        """Load the cached tools of all servers; `pack_names` are the packs that are needed, None for all.

        A server that is needed by name is connected and awaited. Otherwise servers without a cached list are listed in
        the background, with a short wait for all of them together.
        """
        await self._compare_again()
        unknown = [each for each in self._upstreams.values() if each.server.enabled and not each.is_known]
        await asyncio.gather(*(each.load_cached() for each in unknown), *(each.notice_sign_in() for each in unknown))
        if pack_names is None:
            await self._list(unknown)
            return
        named = [
            each for each in unknown if not each.is_known and python_name(each.name) in pack_names and each.may_try
        ]
        if named:
            await asyncio.wait([each.begin() for each in named])

    async def _list(self, servers: list[Upstream]) -> None:
        """List servers in the background; those that failed before come last."""
        loop = asyncio.get_running_loop()
        if any(each.is_due(keeps_running=self.keeps_running) for each in servers):
            await load_sdk()  # must not count as time of the servers
        due = [each for each in servers if each.is_due(keeps_running=self.keeps_running)]
        for each in sorted(due, key=attrgetter("attempts")):
            each.start_listing(self._slots)
        if due:
            self._wait_until = loop.time() + self.list_seconds
        tasks = [each.listing for each in servers if each.listing is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=max(0.0, self._wait_until - loop.time()))

    def list_unlisted(self, context: ToolContext) -> list[Unlisted]:
        """Return the enabled servers that the agent may use and whose tools are not known."""
        return [
            Unlisted(name, each.state, clean(" ".join(each.why_unlisted.split()), MAX_REASON_CHARS))
            for name, each in self._upstreams.items()
            if not each.is_known and each.server.enabled and context.admits_pack(name)
        ]

    def note_unlisted(self, context: ToolContext) -> str:
        """Return a sentence that names the servers whose tools are missing; empty if nothing is missing."""
        if not (missing := self.list_unlisted(context)):
            return ""
        listed = [f"{each.server} ({each.reason})" for each in missing[:MAX_LISTED_SERVERS]]
        more = [f"and {len(missing) - MAX_LISTED_SERVERS} more"] if len(missing) > MAX_LISTED_SERVERS else []
        servers = pluralize(len(missing), "server")
        return (
            f"{servers} not listed yet: {', '.join([*listed, *more])}. `onetool doctor` starts and lists all servers."
        )

    def problems(self) -> Mapping[str, Problem]:
        """Return why servers have no tools: each is either a pack or in here."""
        named = ((python_name(name), each) for name, each in self._upstreams.items())
        return {pack: each.problem for pack, each in named if pack not in self.pack_names}

    async def states(self) -> dict[str, str]:
        await asyncio.gather(*(each.check_alive() for each in self._upstreams.values()))
        return {name: each.state for name, each in self._upstreams.items()}

    @property
    def findings(self) -> list[Problem]:
        """Problems of tool definitions: changed, not accepted or invalid."""
        found: list[Problem] = []
        for upstream in self._upstreams.values():
            found += limit_problems(list(_list_unsound(upstream)), upstream.name)
        for server, differences in self._changed.items():
            subjects = [("changed definition of", differences.changed), ("new tool, not accepted:", differences.new)]
            changed = [
                self._difference(server, f"{subject} {server}.{tool}", difference)
                for subject, tools in subjects
                for tool, difference in tools.items()
            ]
            found += limit_problems(changed, server)
        return [*found, *dict.fromkeys(Problem.of(error) for error in self._unpinnable.values())]

    def _difference(self, server: str, subject: str, difference: str) -> Problem:
        is_strict = self._upstreams[server].server.pin == "strict"
        suffix = ", rejected until accepted" if is_strict else ""
        hint = f"review it, then run: onetool servers accept {server}"
        return Problem(f"{subject}{suffix}\n{difference}", hint, level=PROBLEM if is_strict else WARNING)

    def upstream(self, name: str) -> Upstream:
        if name not in self._upstreams:
            known = ", ".join(self._upstreams) or "none"
            raise ToolError(f"no server named {quote(name)}", hint=f"configured servers: {known}")
        return self._upstreams[name]

    def get_differences(self, name: str) -> Differences:
        """Return how the tools of a server differ from their pins."""
        return self._changed.get(name, UNCHANGED)

    def get_digest(self, name: str) -> str:
        """Return the digest of the definitions of a server as it listed them last."""
        return digest(self.upstream(name).definitions)

    def get_claims(self, name: str) -> dict[str, str]:
        """Return what the hints of a server claim that no person has accepted, by tool."""
        return self._claims.get(name, {})

    async def list_now(self, name: str) -> None:
        """Connect to a server and list its tools."""
        upstream = self.upstream(name)
        await upstream.load_cached()
        await upstream.connection()

    async def accept(self, name: str, seen: str, *, accepts_hints: bool) -> dict[str, str]:
        """Pin the definitions with the digest that a person has seen; return the differences by tool.

        Raise DefinitionsChanged if the server has other definitions now.
        """
        await self.list_now(name)
        upstream = self.upstream(name)
        definitions = upstream.definitions
        if digest(definitions) != seen:
            hint = f"review them again: `onetool servers accept {name}`, or the admin UI"
            raise DefinitionsChanged(f"the tools of {name} have changed since they were shown", hint=hint)
        differences = self.get_differences(name)
        hints = self.get_claims(name) if accepts_hints else {}
        await anyio.to_thread.run_sync(accept, self._pins, name, definitions, upstream.origin, hints)
        await upstream.reinstall()
        return {**differences.changed, **differences.new}

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self._upstreams.values()), self._retired.wait())

    # --- tools --------------------------------------------------------------------------------------------------------

    async def _install(self, upstream: Upstream, definitions: tuple[Definition, ...]) -> None:
        """Create the tools, then replace the old ones without yielding to the event loop."""
        prepared = await anyio.to_thread.run_sync(self._prepare, upstream, definitions)
        name = upstream.name
        if self._upstreams.get(name) is not upstream:
            return  # the settings have changed meanwhile
        for tool in upstream.offered:
            self.remove(tool)
        for made in prepared.tools:
            self._declared[made.name] = made
            self.add(self._configure(made))
        self._changed[name] = prepared.changed
        self._claims[name] = prepared.claims
        self._unpinnable.pop(name, None)
        if prepared.unpinnable is not None:
            self._unpinnable[name] = prepared.unpinnable
        upstream.definitions, upstream.offered, upstream.is_known = definitions, prepared.offered, True
        upstream.rejected = _rejection_messages(upstream, prepared)

    async def _install_other(self, upstream: Upstream, definitions: tuple[Definition, ...]) -> None:
        """Remember the tools of a server for another sign-in. The registry has those of the default one."""
        prepared = await anyio.to_thread.run_sync(self._prepare, upstream, definitions)
        upstream.definitions, upstream.offered, upstream.is_known = definitions, prepared.offered, True
        upstream.rejected = _rejection_messages(upstream, prepared)

    def _prepare(self, upstream: Upstream, definitions: tuple[Definition, ...]) -> "_Prepared":
        chosen = [each for each in definitions if is_chosen(each.name, upstream.server)]
        try:
            differences = self._compare(upstream, definitions, {each.name for each in chosen})
            unpinnable = None
        except (OSError, ToolError) as error:  # a problem with one file must not affect other servers
            differences, unpinnable = UNCHANGED, error if isinstance(error, ToolError) else ToolError(str(error))
        is_strict = upstream.server.pin == "strict"
        pending = {*differences.changed, *differences.new} if is_strict else set()
        chosen.sort(key=lambda each: each.name not in pending)  # of two tools with the same name, the accepted one wins
        offered = {_tool_name(upstream.name, each.name): each for each in chosen if each.name}
        is_pinned = upstream.server.pin != "off" and unpinnable is None
        pinned = (self._pins.get(upstream.name) or {}) if is_pinned else {}
        made = (
            _tool(upstream, name, each, pinned.get(each.name), is_pending=each.name in pending)
            for name, each in offered.items()
        )
        tools = [replace(tool, refresh=self._compare_again) for tool in made]
        claims = list_claims(pinned, chosen, upstream.origin) if is_pinned else {}
        return _Prepared(differences, offered, tools, claims, unpinnable)

    def _compare(self, upstream: Upstream, definitions: tuple[Definition, ...], chosen: set[str]) -> Differences:
        """Compare all definitions with the pins; return those of chosen tools without invisible characters."""
        pin = upstream.server.pin
        if pin == "off":
            return UNCHANGED
        found = compare(self._pins, upstream.name, definitions, is_strict=pin == "strict")
        return Differences(
            *({name: clean(each[name], MAX_DIFF_CHARS) for name in each if name in chosen} for each in found)
        )

    def remove(self, name: str) -> None:
        super().remove(name)
        del self._declared[name]

    def _configure(self, tool: Tool) -> Tool:
        """Apply the settings of the server. Effects in the settings imply permissions instead of those of hints."""
        configured = apply_settings(tool, self._packs.get(tool.pack))
        if configured.effects is tool.effects:
            return configured
        return replace(configured, permissions=REQUIRED_PERMISSIONS | get_implied_permissions(configured.effects))

    def _forget(self, name: str) -> None:
        upstream = self._upstreams.pop(name)
        for tool in upstream.offered:
            self.remove(tool)
        self._changed.pop(name, None)
        self._claims.pop(name, None)
        self._unpinnable.pop(name, None)
        self._retired.start(upstream.close())


UNCHANGED = Differences({}, {})


class _Prepared(NamedTuple):
    changed: Differences
    offered: dict[str, Definition]
    tools: list[Tool]
    claims: dict[str, str]
    unpinnable: ToolError | None = None  # why changes cannot be detected


def _tool(
    upstream: Upstream, name: str, definition: Definition, pinned: Mapping[str, Any] | None, *, is_pending: bool
) -> Tool:
    """Create the tool. The description of a tool that is not accepted is hidden, because it could steer a model.

    Hints can add effects; only those that a person has accepted can remove them.
    """
    hints = read_hints(definition.annotations)
    # Unlike effects, permissions follow from what hints tell: a tool without hints needs the network only.
    implied = get_implied_permissions(hints.effects)
    pinned_hints = Hints() if pinned is None else read_hints(pinned.get("annotations"))
    implied |= get_implied_permissions(pinned_hints.effects)
    is_accepted = pinned is not None and pinned.get(ACCEPTED) == upstream.origin
    hints = hints.combine(pinned_hints if is_accepted else Hints())
    if is_pending:
        description = (
            f"Not accepted: new, or changed since it was accepted. Hint: onetool servers accept {upstream.name}"
        )
        definition = Definition(definition.name, description, ANY_OBJECT)
    return Tool(
        name=name,
        backend=upstream,
        input=UpstreamSchema.from_json(clean_schema(definition.input_schema) if definition.is_sound else ANY_OBJECT),
        output=_output_schema(definition),
        description=clean(definition.description),
        permissions=REQUIRED_PERMISSIONS | implied,
        effects=hints.effects,
        is_idempotent=hints.is_idempotent,
        labels=hints.labels | ({PRIVATE} if _has_private_data(upstream.server) else set()),
        source=f"proxy:{upstream.name}",
    )


def _list_unsound(upstream: Upstream) -> Iterator[Problem]:
    """Yield the problems of input schemas that are not used, or whose patterns are not checked."""
    for definition in upstream.definitions:
        if definition.pattern_problem or not definition.is_sound:
            reason = definition.pattern_problem or "an invalid input schema: its arguments are not validated"
            hint = f"report it to the authors of {upstream.name}"
            yield Problem(f"{upstream.name}.{definition.name} has {reason}", hint, level=WARNING)


def _has_private_data(server: Server) -> bool:
    """Return whether a server can read private data: one on the internet cannot, if it is used without credentials."""
    has_credentials = bool(server.headers) or server.auth is not None or bool(server.accounts)
    return server.url is None or not server.url.startswith("https://") or has_credentials


def _tool_name(server: str, tool: str) -> str:
    """Return the name of the tool in OneTool, without dots, white space and invisible characters."""
    return f"{server}.{replace_in_name(INVALID_NAME_CHARS.sub('_', tool))[:MAX_NAME_CHARS]}"


def _rejection_messages(upstream: Upstream, prepared: _Prepared) -> dict[str, str]:
    """Return the error messages for tools that cannot be called until a person accepts them."""
    if (error := prepared.unpinnable) is not None:
        return {name: f"cannot check whether {name} has changed: {error}" for name in prepared.offered}
    if upstream.server.pin != "strict":
        return {}
    changed, new = prepared.changed
    return {
        name: f"{name} {'is new' if definition.name in new else 'has changed'} since its server was accepted, "
        f"and pin is strict. ot.health() shows it; a person can accept it with `onetool servers accept {upstream.name}`"
        for name, definition in prepared.offered.items()
        if definition.name in changed or definition.name in new
    }


def _output_schema(definition: Definition) -> Schema | None:
    schema = definition.output_schema
    if schema is None:
        return None
    if not definition.is_wrapped:
        return ForeignSchema.from_json(schema)
    inside = schema.get("properties", {}).get("result", {})
    return ForeignSchema.from_json({**inside, "$defs": schema["$defs"]} if "$defs" in schema else inside)
