"""Selection of the tools that an MCP client sees as tools of their own, by `--expose` and the
setting `expose`.

    code    only `run` reaches the tools (the default)
    direct  the tools are published, and code cannot call or find them
    both    the tools are published, and code can call them; also the meaning of `--expose`
    auto    like `both` while all definitions together are small, otherwise like `code`

The setting applies to servers, extensions and bundles, never to built-in tools.
"""

from collections.abc import Iterator

from anyio.to_thread import run_sync as run_in_thread

from onetool.app import OneTool
from onetool.core.names import python_name
from onetool.core.tool import Tool
from onetool.server.mcp.publish import build_definition, dump
from onetool.settings.model import Expose
from onetool.sources.upstream.upstream import Upstream
from onetool.state.stats.details import count_tokens
from onetool.util.bounded_dict import BoundedDict
from onetool.util.context import ToolContext

MAX_AUTO_TOKENS = 1_500  # of all definitions together
MAX_SESSIONS = 10_000


class Exposure:
    """The published names of an application, and the decisions of `auto` by client session."""

    def __init__(self, app: OneTool) -> None:
        self._app = app
        self._modes = self._list_modes()
        self._chosen: BoundedDict[str, frozenset[str]] = BoundedDict(MAX_SESSIONS)  # by session

    def __bool__(self) -> bool:
        """Return whether any tool may be published."""
        return bool(self._app.exposed) or not {*self._list_modes().values()} <= {"code", None}

    @property
    def published_names(self) -> frozenset[str]:
        """The names of tools, packs and servers that are published to every client."""
        return frozenset(
            form
            for name in (*self._app.exposed, *self._list_packs("direct"), *self._list_packs("both"))
            for form in (name, python_name(name))
        )

    @property
    def hidden(self) -> frozenset[str]:
        """The packs that code cannot call."""
        exposed = {python_name(name).partition(".")[0] for name in self._app.exposed}
        return frozenset(python_name(pack) for pack in self._list_packs("direct")) - exposed

    async def choose(self, session: str, caller: ToolContext) -> frozenset[str]:
        """Return the tools that `auto` publishes in a session.

        Decided once, from cached lists of servers, and again only if a reload changes the setting.
        """
        if self._modes != (modes := self._list_modes()):
            self._modes = modes
            self._chosen.clear()
        if (chosen := self._chosen.get(session)) is not None:
            return chosen
        if not any(self._list_packs("auto")):
            return frozenset()
        await self._app.discover(frozenset())
        chosen = await run_in_thread(self._choose, caller)
        if session not in self._chosen:
            self._chosen[session] = chosen
        return self._chosen[session]

    def _choose(self, caller: ToolContext) -> frozenset[str]:
        names = []
        tokens = 0
        for tool in self._find_tools("auto", caller):
            tokens += count_tokens(dump(build_definition(tool.short_name, tool)))
            names.append(tool.name)
            if tokens >= MAX_AUTO_TOKENS:
                return frozenset()
        return frozenset(names)

    def _find_tools(self, mode: Expose, caller: ToolContext) -> Iterator[Tool]:
        registry = self._app.registry
        for pack in sorted(set(map(python_name, self._list_packs(mode)))):
            for entry in registry.entries(pack):
                tool = (
                    registry.find_exact(entry.name)
                    if entry.enabled and caller.admits(entry)
                    else None
                )
                if tool is not None and self.is_shown(tool, caller):
                    yield tool

    def is_shown(self, tool: Tool, caller: ToolContext) -> bool:
        """Return whether the tool can be published to this client: the agent's list and policy may
        leave it out.
        """
        policy = self._app.agents.get_policy(caller.agent_id)[0]
        return caller.admits(tool) and is_publishable(tool) and not policy.denies_all_calls(tool)

    def _list_modes(self) -> dict[str, Expose | None]:
        """Return the settings by server; those of all others are under an empty name."""
        settings = self._app.settings
        return {
            "": settings.expose,
            **{name: server.expose for name, server in settings.servers.items()},
        }

    def _list_packs(self, mode: Expose) -> Iterator[str]:
        """Yield the servers and connected packs with this mode."""
        settings = self._app.settings
        for name, server in settings.servers.items():
            if (server.expose or settings.expose) == mode and server.enabled:
                yield name
        if settings.expose == mode:
            yield from self._app.extensions.pack_names
            yield from self._app.bundles.custom_pack_names


def is_publishable(tool: Tool) -> bool:
    """Tell whether the tool is enabled and its definition matches its pin."""
    return tool.enabled and not (
        isinstance(tool.backend, Upstream) and tool.name in tool.backend.tools.rejected
    )
