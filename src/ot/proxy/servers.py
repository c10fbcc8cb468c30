"""All configured servers: their tools in the registry, their states, and what has changed about them."""

import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import anyio.to_thread

from ot.config.load import Loaded
from ot.config.model import Server
from ot.context import Permission
from ot.errors import ToolError
from ot.proxy.definitions import Definition, Lists, TheirSchema
from ot.proxy.pins import Pins
from ot.proxy.upstream import Upstream
from ot.registry import Registry, python_name
from ot.sanitise import clean, clean_schema
from ot.schema import ANY_OBJECT, Schema
from ot.tool import Tool

FIRST_LIST_SECONDS = 10.0  # that who asks what there is waits for servers which were never asked before
Keep = Callable[[bytes, str, str], str]  # content, its type and the agent it is for; gives a handle
LONGEST_NAME, LONGEST_DIFFERENCE = 200, 4000
NO_NAME = re.compile(r"[\s@.\x00-\x1f]")
NEEDS = frozenset({Permission.NETWORK})


class Servers:
    def __init__(self, registry: Registry, environment: Mapping[str, str]) -> None:
        self._registry, self._environment = registry, environment
        self._upstreams: dict[str, Upstream] = {}
        self._registered: dict[str, list[str]] = {}
        self._changed: dict[str, dict[str, str]] = {}  # server -> tool -> difference
        self._unpinnable: dict[str, str] = {}  # server -> why nobody knows what has changed
        self._unpinned: set[str] = set()  # servers whose pins may have been changed by somebody else
        self._retired: set[asyncio.Task[None]] = set()
        self._pins: Pins
        self._log: Callable[..., None]

    def use(self, loaded: Loaded, log: Callable[..., None], keep: Keep) -> None:
        """From now on, with these settings. A server whose settings are the same goes on as it is."""
        folders = loaded.folders
        self._pins, self._log = Pins(folders.data / "pins.json"), log
        lists, wanted = Lists(folders.data / "cache"), loaded.settings.servers
        for name in [name for name, each in self._upstreams.items() if wanted.get(name) != each.server]:
            self._forget(name)
        self._unpinned = set(self._upstreams)
        for name, server in wanted.items():
            if name not in self._upstreams:
                self._upstreams[name] = self._upstream(name, server, lists, folders.working_dir, keep)

    def _upstream(self, name: str, server: Server, lists: Lists, cwd: Path, keep: Keep) -> Upstream:
        upstream = Upstream(
            name,
            server,
            lists=lists,
            environment=self._environment,
            cwd=cwd,
            keep=keep,
            on_change=lambda: self._register(upstream),
            log=self._log,
        )
        return upstream

    # --- what there is ------------------------------------------------------------------------------------------------

    async def discover(self, words: Collection[str] | None = None) -> None:
        """Have the tools of all servers that are known, and ask those that never were.

        Only a server that is new, or whose name is among the words, is waited for: one that fails holds up nobody else.
        One that is named is waited for as long as it may take, because nothing can be done without it.
        """
        unpinned, self._unpinned = self._unpinned, set()
        await asyncio.gather(*(self._register(self._upstreams[name]) for name in unpinned))
        unknown = [each for each in self._upstreams.values() if each.server.enabled and not each.is_known]
        await asyncio.gather(*(each.recall() for each in unknown))
        meant = [each for each in unknown if words is None or python_name(each.name) in words]
        awaited = [each for each in meant if each.is_new or words is not None]
        tasks = {each.name: each.begin() for each in meant if not each.is_known and each.may_try}
        waiting = [tasks[each.name] for each in awaited if each.name in tasks]
        if waiting:
            await asyncio.wait(waiting, timeout=FIRST_LIST_SECONDS if words is None else None)

    def explain(self) -> None:
        """Have code that names a server without tools be told why there are none."""
        for name, each in self._upstreams.items():
            if not each.is_known:
                self._registry.broken[python_name(name)] = each.reason

    async def states(self) -> dict[str, str]:
        await asyncio.gather(*(each.look() for each in self._upstreams.values()))
        return {name: each.state for name, each in self._upstreams.items()}

    @property
    def problems(self) -> list[str]:
        failures = [each.failure for each in self._upstreams.values() if each.failure]
        unsound = [
            f"{each.name}.{definition.name} has a schema that is none: its arguments are not checked"
            for each in self._upstreams.values()
            for definition in each.definitions
            if not definition.is_sound
        ]
        changed = [
            f"{server}.{tool} is not what it was. Look at it, then type `onetool accept {server}`:\n{difference}"
            for server, tools in self._changed.items()
            for tool, difference in tools.items()
        ]
        return [*failures, *unsound, *changed, *dict.fromkeys(filter(None, self._unpinnable.values()))]

    def find(self, name: str) -> Upstream:
        if name not in self._upstreams:
            known = ", ".join(self._upstreams) or "none"
            raise ToolError(f"there is no server {name!r}. Servers: {known}.")
        return self._upstreams[name]

    async def accept(self, name: str) -> dict[str, str]:
        """What is offered now is right. The tools that had changed, with the difference."""
        upstream = self.find(name)
        await upstream.recall()
        await upstream.connection()
        changed = self._changed.get(name, {})
        await anyio.to_thread.run_sync(self._pins.accept, name, upstream.definitions)
        await self._register(upstream)
        return changed

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self._upstreams.values()), *self._retired)

    # --- the registry -------------------------------------------------------------------------------------------------

    async def _register(self, upstream: Upstream) -> None:
        """In one step, so that nobody sees a server without its tools."""
        prepared = await anyio.to_thread.run_sync(self._prepared, upstream)
        name = upstream.name
        if self._upstreams.get(name) is not upstream:
            return  # the settings have changed meanwhile
        self._unregister(name)
        self._registry.broken.pop(python_name(name), None)
        self._changed[name], upstream.offered = prepared.changed, prepared.offered
        self._unpinnable[name] = prepared.unpinnable
        upstream.refused = _refusals(upstream, prepared)
        names = self._registered[name] = []
        for tool in prepared.tools:
            if tool.name not in self._registry:
                self._registry.add(tool)
                names.append(tool.name)

    def _prepared(self, upstream: Upstream) -> "_Prepared":
        chosen = [each for each in upstream.definitions if _is_chosen(each.name, upstream.server)]
        offered = {_tool_name(upstream.name, each.name): each for each in chosen if each.name}
        tools = [_tool(upstream, name, each) for name, each in offered.items()]
        try:
            changed = {} if upstream.server.pin == "off" else self._pins.changes(upstream.name, chosen)
        except (OSError, ToolError) as error:  # of one file, for which nobody else is to suffer
            return _Prepared({}, offered, tools, str(error))
        cleaned = {name: clean(difference, LONGEST_DIFFERENCE) for name, difference in changed.items()}
        return _Prepared(cleaned, offered, tools)

    def _unregister(self, name: str) -> None:
        for tool in self._registered.pop(name, []):
            self._registry.remove(tool)

    def _forget(self, name: str) -> None:
        self._unregister(name)
        self._registry.broken.pop(python_name(name), None)
        self._changed.pop(name, None)
        self._unpinnable.pop(name, None)
        task = asyncio.ensure_future(self._upstreams.pop(name).close())
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)


class _Prepared(NamedTuple):
    changed: dict[str, str]
    offered: dict[str, Definition]
    tools: list[Tool]
    unpinnable: str = ""  # why nobody knows what has changed


def _tool(upstream: Upstream, name: str, definition: Definition) -> Tool:
    return Tool(
        name=name,
        backend=upstream,
        input=TheirSchema.from_json(clean_schema(definition.input_schema) if definition.is_sound else ANY_OBJECT),
        output=_output(definition),
        description=clean(definition.description),
        permissions=NEEDS,
        source=f"proxy:{upstream.name}",
    )


def _tool_name(server: str, tool: str) -> str:
    """Dots would make packs of their own, and white space no name at all; the server is told its own name."""
    return f"{server}.{NO_NAME.sub('_', tool)[:LONGEST_NAME]}"


def _refusals(upstream: Upstream, prepared: _Prepared) -> dict[str, str]:
    """For tools that have changed, or may have: nothing is sent before a person has looked at them."""
    if prepared.unpinnable:
        return {name: f"whether {name} has changed is not known: {prepared.unpinnable}" for name in prepared.offered}
    if upstream.server.pin != "strict":
        return {}
    return {
        name: f"the definition of {name} has changed since it was first used, and pin is strict. "
        f"ot.health() shows the difference; a person accepts it with `onetool accept {upstream.name}`."
        for name, definition in prepared.offered.items()
        if definition.name in prepared.changed
    }


def _is_chosen(tool: str, server: Server) -> bool:
    included = not server.tools.include or any(fnmatchcase(tool, pattern) for pattern in server.tools.include)
    return included and not any(fnmatchcase(tool, pattern) for pattern in server.tools.exclude)


def _output(definition: Definition) -> Schema | None:
    schema = definition.output_schema
    if schema is None:
        return None
    if not definition.is_wrapped:
        return Schema.from_json(schema)
    inside = schema.get("properties", {}).get("result", {})
    return Schema.from_json({**inside, "$defs": schema["$defs"]} if "$defs" in schema else inside)
