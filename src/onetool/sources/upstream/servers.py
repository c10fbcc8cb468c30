"""The upstream tool source: all configured servers, their states, and tool changes.

Listing tools never waits long for a server: servers without a cached list are listed in the
background.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from anyio.to_thread import run_sync as run_in_thread

from onetool.core.names import python_name
from onetool.core.policy.effects import apply_settings, get_implied_permissions
from onetool.core.registry import Registry
from onetool.core.tool import HeldTools, Tool
from onetool.errors import ToolError
from onetool.processes.process import Variables
from onetool.settings.load import Loaded
from onetool.sources.upstream.checked_tools import (
    REQUIRED_PERMISSIONS,
    CheckedTools,
    accept,
    check_tools,
    list_problems,
)
from onetool.sources.upstream.connection import load_sdk
from onetool.sources.upstream.definitions import Definitions, ToolLists, digest
from onetool.sources.upstream.session import UpstreamSession
from onetool.sources.upstream.stdio import plan_launch
from onetool.sources.upstream.upstream import Upstream, UpstreamServices
from onetool.state.storage import State
from onetool.util.context import ToolContext
from onetool.util.problem import Problem
from onetool.util.redact import Redactor
from onetool.util.sanitize import clean
from onetool.util.tasks import BackgroundTasks
from onetool.util.text import pluralize, quote

if TYPE_CHECKING:
    from onetool.settings.model import PackSettings
    from onetool.state.documents import Documents

LIST_SECONDS = 1.0  # how long listing and searching wait for servers without a cached list
MAX_REASON_CHARS = 200  # in a note
MAX_LISTED_SERVERS = 20


class DefinitionsChanged(ToolError):
    """Raised if a person accepts definitions that the server no longer has."""


class Unlisted(NamedTuple):
    """A server whose tools are not known."""

    server: str
    state: str
    reason: str


class Servers(HeldTools):
    """The upstream servers.

    None has the name of another pack: rights to that pack would cover its tools.
    """

    kind = "proxy"

    def __init__(
        self,
        services: UpstreamServices,
        registry: Registry,
        environment: Variables,
        state: Callable[[], State],
    ) -> None:
        super().__init__()
        self.environment = environment
        self.list_seconds = LIST_SECONDS
        self.keeps_running = False  # whether this process outlives one command
        self._services = services
        self._get_state = state
        self._registry = registry
        self._conflicts: set[str] = set()  # servers whose tools are left out
        self._upstreams: dict[str, Upstream] = {}
        self._unpinned: set[str] = set()  # servers whose pins another process may have changed
        self._pins: Documents
        self._packs: Mapping[str, PackSettings] = {}
        self._slots = asyncio.Semaphore(os.cpu_count() or 1)  # concurrent background listings
        self._wait_until = 0.0
        self._retired = BackgroundTasks()

    def configure(self, loaded: Loaded, /) -> None:
        """Apply new settings. A server whose settings are the same is kept."""
        state = self._get_state()
        lists = ToolLists(state.cache, Redactor(loaded.secrets.values()))
        self._pins = state.pins
        self._packs = loaded.settings.tools
        servers = loaded.settings.servers
        for name, upstream in list(self._upstreams.items()):
            if servers.get(name) != upstream.server:
                self._forget(upstream)
            else:
                for tool in upstream.tools.tools:
                    self.replace(self._configure(tool))
        self.mark_unpinned()
        for name, server in servers.items():
            if name not in self._upstreams:
                launch = plan_launch(name, server, loaded, self.environment)
                self._upstreams[name] = Upstream(
                    name, server, self._services, launch=launch, lists=lists, install=self._install
                )

    def mark_unpinned(self) -> None:
        """Have all servers compare pins again: a person may have accepted changes."""
        self._unpinned = set(self._upstreams)

    async def _compare_again(self) -> None:
        unpinned = self._unpinned
        self._unpinned = set()
        await asyncio.gather(*(self._upstreams[name].main.reinstall() for name in unpinned))

    async def close(self) -> None:
        await asyncio.gather(
            *(upstream.close() for upstream in self._upstreams.values()), self._retired.wait()
        )

    # --- listing ----------------------------------------------------------------------------------

    @property
    def names(self) -> Sequence[str]:
        """All configured server names, whether their tools are known or not."""
        return tuple(self._upstreams)

    @property
    def _sessions(self) -> list[UpstreamSession]:
        """The sessions whose tools are in the registry."""
        return [upstream.main for upstream in self._upstreams.values()]

    @property
    def _unlisted(self) -> list[UpstreamSession]:
        return [
            session for session in self._sessions if session.server.enabled and not session.is_known
        ]

    @property
    def connected_names(self) -> list[str]:
        return sorted(session.name for session in self._sessions if session.state == "connected")

    async def refresh(self, pack_names: Collection[str] | None = None, /) -> None:
        """Load cached tools; `pack_names` are the packs that are needed, None for all.

        A server that is needed by name is connected and awaited. Otherwise servers without a cached
        list are listed in the background, with a short wait for all of them together.
        """
        conflicts = self._find_conflicts()
        self._unpinned |= (conflicts ^ self._conflicts) & self._upstreams.keys()
        self._conflicts = conflicts
        await self._compare_again()
        unlisted = self._unlisted
        await asyncio.gather(*(session.load_cached() for session in unlisted))
        await asyncio.gather(*(session.notice_sign_in() for session in unlisted))
        if pack_names is None:
            await self._list_in_background(unlisted)
            return
        due = [session for session in unlisted if not session.is_known and session.may_try]
        starting = [session.begin() for session in due if python_name(session.name) in pack_names]
        if starting:
            await asyncio.wait(starting)

    def _find_conflicts(self) -> set[str]:
        """Return the servers that share a name with another pack, or an earlier server."""
        packs: set[str] = set()
        for source in takewhile(lambda source: source is not self, self._registry.sources):
            packs |= source.pack_names
        conflicts = set()
        for name in self._upstreams:
            if python_name(name) in packs:
                conflicts.add(name)
            packs.add(python_name(name))
        return conflicts

    async def _list_in_background(self, sessions: list[UpstreamSession]) -> None:
        """List servers; those that failed before come last."""
        loop = asyncio.get_running_loop()
        due = [session for session in sessions if session.is_due(keeps_running=self.keeps_running)]
        if due:
            await load_sdk()  # must not count as time of the servers
            self._wait_until = loop.time() + self.list_seconds
        for session in sorted(due, key=lambda session: session.last_failure.count):
            session.start_listing(self._slots)
        tasks = [session.listing for session in sessions if session.listing is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=max(0.0, self._wait_until - loop.time()))

    def list_unlisted(self, context: ToolContext) -> list[Unlisted]:
        """Return the enabled servers that the agent may use and whose tools are not known."""
        return [
            Unlisted(
                session.name,
                session.state,
                clean(" ".join(session.why_unlisted.split()), MAX_REASON_CHARS),
            )
            for session in self._unlisted
            if context.admits_pack(session.name)
        ]

    def note_unlisted(self, context: ToolContext) -> str:
        """Return a sentence with the servers whose tools are missing, or an empty one."""
        missing = self.list_unlisted(context)
        if not missing:
            return ""
        listed = [f"{server} ({reason})" for server, _, reason in missing[:MAX_LISTED_SERVERS]]
        if len(missing) > MAX_LISTED_SERVERS:
            listed.append(f"and {len(missing) - MAX_LISTED_SERVERS} more")
        servers = pluralize(len(missing), "server")
        return (
            f"{servers} not listed yet: {', '.join(listed)}. `onetool doctor` starts and lists all"
            " servers."
        )

    def problems(self) -> Mapping[str, Problem]:
        """Return why servers have no tools: each is either a pack or in here."""
        usable = (session for session in self._sessions if session.name not in self._conflicts)
        named = {python_name(session.name): session for session in usable}
        return {
            pack: session.problem for pack, session in named.items() if pack not in self.pack_names
        }

    async def states(self) -> dict[str, str]:
        await asyncio.gather(*(session.check_alive() for session in self._sessions))
        return {session.name: session.state for session in self._sessions}

    @property
    def findings(self) -> list[Problem]:
        """Problems with tool definitions: changed, not accepted or invalid."""
        upstreams = self._upstreams.values()
        problems = [problem for upstream in upstreams for problem in list_problems(upstream)]
        errors = [
            upstream.tools.problem for upstream in upstreams if upstream.tools.problem is not None
        ]
        return [*problems, *dict.fromkeys(map(Problem.of, errors))]

    def upstream(self, name: str) -> Upstream:
        if name not in self._upstreams:
            names = ", ".join(self._upstreams) or "none"
            raise ToolError(f"no server named {quote(name)}", hint=f"configured servers: {names}")
        return self._upstreams[name]

    async def list_now(self, name: str) -> Upstream:
        """Connect to a server and list its tools."""
        upstream = self.upstream(name)
        await upstream.main.load_cached()
        await upstream.main.connect()
        return upstream

    async def accept(self, name: str, seen: str, *, accepts_hints: bool) -> dict[str, str]:
        """Pin the definitions with the digest that a person saw; return differences by tool.

        Raise DefinitionsChanged if the server has other definitions now.
        """
        upstream = await self.list_now(name)
        tools = upstream.tools
        if digest(tools.definitions) != seen:
            hint = f"review them again: `onetool servers accept {name}`, or the admin UI"
            raise DefinitionsChanged(
                f"the tools of {name} have changed since they were shown", hint=hint
            )
        hints = tools.claims if accepts_hints else {}
        await run_in_thread(accept, self._pins, name, tools.definitions, upstream.origin, hints)
        await upstream.main.reinstall()
        return {**tools.differences.changed, **tools.differences.new}

    # --- tools ------------------------------------------------------------------------------------

    async def _install(self, session: UpstreamSession, definitions: Definitions) -> None:
        """Create the tools.

        Those of the main session replace the old ones without yielding to the event loop.
        """
        upstream = session.upstream
        tools = CheckedTools(definitions)
        if upstream.name not in self._conflicts:
            tools = await run_in_thread(
                check_tools, upstream, definitions, self._pins, self._compare_again
            )
        if session is upstream.main:
            if self._upstreams.get(upstream.name) is not upstream:
                return  # the settings have changed meanwhile
            for name in session.tools.offered:
                self.remove(name)
            for tool in tools.tools:
                self.add(self._configure(tool))
        session.tools = tools
        session.is_known = True

    def _configure(self, tool: Tool) -> Tool:
        """Apply the server settings.

        Effects in the settings imply permissions instead of those of hints.
        """
        configured = apply_settings(tool, self._packs.get(tool.pack))
        if configured.effects is tool.effects:
            return configured
        return replace(
            configured,
            permissions=REQUIRED_PERMISSIONS | get_implied_permissions(configured.effects),
        )

    def _forget(self, upstream: Upstream) -> None:
        del self._upstreams[upstream.name]
        for name in upstream.tools.offered:
            self.remove(name)
        self._retired.start(upstream.close())
