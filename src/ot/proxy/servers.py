"""All configured servers: their tools in the registry, their states, and what has changed about them."""

import asyncio
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import anyio.to_thread

from ot.config.load import Loaded
from ot.config.model import Server
from ot.context import Permission
from ot.errors import ToolError
from ot.proxy.definitions import Definition, Lists
from ot.proxy.pins import Pins
from ot.proxy.upstream import Upstream
from ot.registry import Registry
from ot.sanitise import clean
from ot.schema import Schema
from ot.tool import Tool

FIRST_LIST_SECONDS = 10.0  # that who asks what there is waits for servers which were never asked before
Keep = Callable[[bytes, str, str], str]  # content, its type and the agent it is for; gives a handle
NEEDS = frozenset({Permission.NETWORK})


class Servers:
    def __init__(self, registry: Registry, environment: Mapping[str, str]) -> None:
        self._registry, self._environment = registry, environment
        self._upstreams: dict[str, Upstream] = {}
        self._registered: dict[str, list[str]] = {}
        self._changed: dict[str, dict[str, str]] = {}  # server -> tool -> difference
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
        for name, server in wanted.items():
            if name not in self._upstreams:
                self._upstreams[name] = self._upstream(name, server, lists, folders.working_dir, keep)

    def _upstream(
        self, name: str, server: Server, lists: Lists, cwd: Path, keep: Callable[[bytes, str, str], str]
    ) -> Upstream:
        return Upstream(
            name,
            server,
            lists=lists,
            environment=self._environment,
            cwd=cwd,
            keep=keep,
            on_change=self._register,
            log=self._log,
        )

    # --- what there is ------------------------------------------------------------------------------------------------

    async def discover(self) -> None:
        """Have the tools of all servers that are known, and ask those that never were."""
        enabled = [each for each in self._upstreams.values() if each.server.enabled and not each.is_known]
        await asyncio.gather(*(each.recall() for each in enabled))
        unknown = [each.client() for each in enabled if not each.is_known and each.failure is None]
        if unknown:
            tasks = [asyncio.ensure_future(each) for each in unknown]
            await asyncio.wait(tasks, timeout=FIRST_LIST_SECONDS)
            for task in tasks:
                task.add_done_callback(lambda done: done.cancelled() or done.exception())

    @property
    def states(self) -> dict[str, str]:
        return {name: each.state for name, each in self._upstreams.items()}

    @property
    def problems(self) -> list[str]:
        failures = [each.failure for each in self._upstreams.values() if each.failure]
        changed = [
            f"{server}.{tool} is not what it was. Look at it, then type `onetool accept {server}`:\n{difference}"
            for server, tools in self._changed.items()
            for tool, difference in tools.items()
        ]
        return [*failures, *changed]

    def find(self, name: str) -> Upstream:
        if name not in self._upstreams:
            known = ", ".join(self._upstreams) or "none"
            raise ToolError(f"there is no server {name!r}. Servers: {known}.")
        return self._upstreams[name]

    async def accept(self, name: str) -> list[str]:
        """What is offered now is right."""
        upstream = self.find(name)
        await upstream.recall()
        await upstream.client()
        definitions = list(upstream.definitions.values())
        changed = list(self._changed.pop(name, {}))
        await anyio.to_thread.run_sync(self._pins.accept, name, definitions)
        return changed

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self._upstreams.values()), *self._retired)

    # --- the registry -------------------------------------------------------------------------------------------------

    def _register(self, upstream: Upstream) -> None:
        name = upstream.name
        self._unregister(name)
        chosen = [each for each in upstream.definitions.values() if _is_chosen(each.name, upstream.server)]
        if upstream.server.pin != "off":
            self._changed[name] = self._pins.changes(name, chosen)
        names = self._registered[name] = []
        for definition in chosen:
            tool = self._tool(upstream, definition)
            if tool.name not in self._registry:
                self._registry.add(tool)
                names.append(tool.name)

    def _tool(self, upstream: Upstream, definition: Definition) -> Tool:
        is_refused = upstream.server.pin == "strict" and definition.name in self._changed.get(upstream.name, {})
        return Tool(
            name=f"{upstream.name}.{definition.name}",
            backend=_Refused(upstream.name, definition.name) if is_refused else upstream,
            input=Schema.from_json(definition.input_schema),
            output=_output(definition),
            description=clean(definition.description),
            permissions=NEEDS,
            source=f"proxy:{upstream.name}",
        )

    def _unregister(self, name: str) -> None:
        for tool in self._registered.pop(name, []):
            self._registry.remove(tool)

    def _forget(self, name: str) -> None:
        self._unregister(name)
        self._changed.pop(name, None)
        task = asyncio.ensure_future(self._upstreams.pop(name).close())
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)


class _Refused:
    """In place of a server whose tool has changed: nothing is sent before a person has looked at it."""

    def __init__(self, server: str, tool: str) -> None:
        self._server, self._tool = server, tool

    async def invoke(self, _tool: Tool, _args: Mapping[str, Any], _context: Any) -> Any:
        raise ToolError(
            f"the definition of {self._server}.{self._tool} has changed since it was first used, and pin is strict. "
            f"ot.health() shows the difference; a person accepts it with `onetool accept {self._server}`."
        )


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
