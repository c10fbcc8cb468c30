"""The parts of the application: tool sources, shared processes, and what new settings replace.

Several applications of one process share pools of cells, one per distinct limits, and each pool
limits its concurrent runs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from anyio.to_thread import run_sync as run_in_thread

from onetool.core.audit import AuditLog, open_audit_log
from onetool.core.bus.bus import ToolBus
from onetool.errors import ToolError
from onetool.net import HostRules, Net
from onetool.net.oauth.sign_ins import SignIns
from onetool.processes.supervised import CallInterrupted, SharedPool, Users
from onetool.runs.answer import Presenter
from onetool.runs.cell_process import Host, OnStray
from onetool.runs.cells import CLOSED_MESSAGE, PROBE_SECONDS, CellLimits, Cells, CellSource
from onetool.runs.questions import is_revoked
from onetool.runs.results.blobs import Media
from onetool.runs.results.store import StoredResults
from onetool.runs.runner import Runner
from onetool.runs.tool_loader import load_builtin_tools
from onetool.settings.load import Loaded
from onetool.settings.paths import resolve_path
from onetool.settings.settings_reader import SettingsReader
from onetool.sources.bundles.source import BundleSource
from onetool.sources.extensions.environments import make_worker_environment
from onetool.sources.extensions.packs import Extensions
from onetool.sources.system import System
from onetool.sources.upstream.servers import Servers
from onetool.sources.upstream.upstream import UpstreamServices
from onetool.state.changes import Changes
from onetool.state.opening import open_state
from onetool.state.run_records import RunRecord
from onetool.state.storage import State
from onetool.util.logging import Log
from onetool.util.redact import Redactor
from onetool.util.tasks import BackgroundTasks
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.sources.extensions.worker import Worker
    from onetool.sources.upstream.connection import Connection

MakeCells = Callable[..., CellSource]
UNUSED_SECONDS = 30.0  # until a pool without users is closed


class SharedProcesses:
    """Cells, upstream servers and workers that several applications of one process share.

    Pass one object to each application: `OneTool(..., shared=shared)`. Applications share what
    would be started equally: the same program, settings, environment and directory. Create the
    object on the event loop of the applications, and close it after them.
    """

    def __init__(self) -> None:
        self.cells = CellPools()
        self.connections: SharedPool[Connection] = SharedPool()
        self.workers: SharedPool[Worker] = SharedPool()

    def describe(self) -> dict[str, int]:
        """Return the numbers of shared processes and connections."""
        return {
            "zygotes": len(self.cells),
            "cells": self.cells.count,
            "servers": len(self.connections),
            "workers": len(self.workers),
        }

    async def close(self) -> None:
        """End all shared processes."""
        await asyncio.gather(self.connections.close(), self.workers.close(), self.cells.close())


class Sources(NamedTuple):
    extensions: Extensions
    servers: Servers
    bundles: BundleSource


def make_sources(
    bus: ToolBus,
    system: System,
    sign_ins: SignIns,
    reader: SettingsReader,
    *,
    log: Log,
    environment: Mapping[str, str],
    shared: SharedProcesses | None,
) -> Sources:
    """Add the built-in tools and the sources of other tools to the registry of the bus."""
    registry = bus.registry
    bus.registered.add_builtin(load_builtin_tools(bus.threads))
    extensions = Extensions(
        lambda: bus.registered.pack_names,
        bus.call_tool,
        environment,
        log.event,
        reader.still_trusted,
        shared=None if shared is None else shared.workers,
        get_jobs=lambda: system.state.jobs,
    )
    services = UpstreamServices(
        registry.mark_disabled,
        log.event,
        lambda: system.media,
        sign_ins,
        None if shared is None else shared.connections,
    )
    servers = Servers(
        services, registry, make_worker_environment(environment), lambda: system.state
    )
    bundles = BundleSource(
        registry, lambda: system.net, lambda: system.media, sign_ins, lambda: system.state
    )
    registry.sources = (bus.registered, extensions, servers, bundles)
    return Sources(extensions, servers, bundles)


@dataclass(frozen=True, slots=True)
class Parts:
    """The state that a reload replaces: settings and what is created from them."""

    loaded: Loaded
    cells: CellSource
    runner: Runner
    redact: Redactor
    state: State
    results: StoredResults
    media: Media
    audit: AuditLog
    net: Net
    projects: dict[str, str]

    def is_revoked(self, run: RunRecord) -> bool:
        """Return whether the token or sign-in that started a run is no longer accepted."""
        auth = self.loaded.settings.auth
        return is_revoked(run, self.state.tokens.apply(auth.tokens), auth.issuers)

    def retire(self, successor: "Parts") -> Iterator[Awaitable[object]]:
        """Yield the cleanup of parts that the successor does not share.

        Current runs finish in their cells.
        """
        if successor.cells is not self.cells:
            yield self.cells.retire()
        if successor.state is not self.state:
            yield run_in_thread(self.state.close)
        if successor.audit is not self.audit:
            yield run_in_thread(self.audit.close)
        if successor.net is not self.net:
            yield self.net.close()


class PartsFactory:
    """Creates the parts for new settings, reuses unchanged ones, and closes replaced ones.

    Tools must not send requests to `own_ports`.
    """

    def __init__(
        self,
        bus: ToolBus,
        log: Log,
        changes: Changes,
        own_ports: Callable[[], set[int]],
        *,
        make_cells: MakeCells | None,
        shared: SharedProcesses | None,
    ) -> None:
        self._bus = bus
        self._log = log
        self._changes = changes
        self._own_ports = own_ports
        self._make_cells = make_cells or Cells
        if shared is not None:
            self._make_cells = shared.cells.open
        self._retiring = BackgroundTasks()
        self.current: Parts | None = None

    def make(self, loaded: Loaded) -> Parts:
        old = self.current
        settings = loaded.settings
        keys = (settings.llm.api_key, *(issuer.client_secret for issuer in settings.auth.issuers))
        redact = Redactor({*loaded.secret_values, *filter(None, keys)})
        state = _open_state(loaded, old, self._changes, redact)
        results = StoredResults.open(state, settings.output)
        directories = loaded.directories
        paths = settings.projects.items()
        projects = {
            name: str(resolve_path(path, directories.root, directories.home))
            for name, path in paths
        }
        cells = self._make_cells_for(loaded, old)
        presenter = Presenter(settings.output, results, redact)
        parts = self.current = Parts(
            loaded=loaded,
            cells=cells,
            runner=Runner(
                self._bus,
                cells,
                settings,
                presenter,
                projects=projects,
                saved_snippets=state.snippets,
            ),
            redact=redact,
            state=state,
            results=results,
            media=Media.open(state, settings.output),
            audit=_open_audit(loaded, state, redact, old),
            net=self._make_net(loaded, old),
            projects=projects,
        )
        if old is not None:
            for work in old.retire(parts):
                self._retiring.start(work)
        return parts

    def _make_cells_for(self, loaded: Loaded, old: Parts | None) -> CellSource:
        execution = loaded.settings.execution
        if old is not None and old.loaded.settings.execution == execution:
            return old.cells
        limits = CellLimits(**execution.model_dump(include={*CellLimits._fields}))
        return self._make_cells(
            limits, on_stray=lambda text: self._log.event("cell.output", text=text)
        )

    def _make_net(self, loaded: Loaded, old: Parts | None) -> Net:
        http = loaded.settings.http
        if old is not None and old.loaded.settings.http == http:
            return old.net
        # current requests finish with the old rules
        return Net(
            HostRules(http.allowed_hosts, http.allow_private_addresses), own_ports=self._own_ports
        )

    def require(self) -> Parts:
        """Return the current parts. Raise if there are none yet."""
        if self.current is None:
            raise RuntimeError("OneTool is not open: use `async with OneTool(settings) as app:`")
        return self.current

    async def close(self) -> None:
        """Close what the parts keep: no run may use them any more."""
        self._retiring.cancel()
        parts = self.require()
        await run_in_thread(parts.audit.close)
        await run_in_thread(parts.state.close)


def _open_state(loaded: Loaded, old: Parts | None, changes: Changes, redact: Redactor) -> State:
    is_same = (
        old is not None
        and old.loaded.settings.store == loaded.settings.store
        and old.loaded.directories.data == loaded.directories.data
    )
    if old is not None and is_same:
        state = old.state
    else:
        state = open_state(loaded, changes)
        state.start()
    state.recorder.configure(loaded.settings.stats, loaded.settings.runs, redact.redact_prefix)
    return state


def _open_audit(loaded: Loaded, state: State, redact: Redactor, old: Parts | None) -> AuditLog:
    if old is None or old.state is not state or old.loaded.audit_file != loaded.audit_file:
        audit = open_audit_log(loaded, state)
        if old is not None:
            audit.on_record = old.audit.on_record
    else:
        audit = old.audit
    settings = loaded.settings.audit
    audit.configure(redact, settings.max_bytes, settings.keep)
    return audit


# --- pools ----------------------------------------------------------------------------------------


class SharedCells:
    """The cells of one application, from a pool that it shares. Closing it ends only its own runs."""

    def __init__(self, pool: "_Pool", on_stray: OnStray) -> None:
        self._pool = pool
        self._on_stray = on_stray
        self._is_closed = False
        pool.add(self)

    async def __aexit__(self, *_: object) -> None:
        self._is_closed = True
        self._pool.users.interrupt(self)
        await self._pool.users.wait_for_calls(self)
        self._pool.discard(self)

    async def retire(self) -> None:
        """Wait for the current runs, then close."""
        await self._pool.users.wait_for_calls(self)
        await self.__aexit__()

    async def run(self, params: JsonObject, host: Host) -> JsonObject:
        """Run code, as `Cells.run` does."""
        if self._is_closed:
            raise ToolError(CLOSED_MESSAGE)
        try:
            async with self._pool.users.track(self):
                return await self._pool.cells.run(params, host, self.log_stray)
        except CallInterrupted:
            raise ToolError(CLOSED_MESSAGE) from None

    def split_memory(self, host: Host) -> int:
        return self._pool.cells.split_memory(host)

    def warm_up(self) -> None:
        self._pool.cells.warm_up()

    async def probe(self, seconds: float = PROBE_SECONDS) -> dict[str, str]:
        return await self._pool.cells.probe(seconds)

    @property
    def isolation(self) -> dict[str, str]:
        return self._pool.cells.isolation

    @property
    def count(self) -> int:
        """The number of idle and running cells of the pool."""
        return self._pool.cells.count

    def log_stray(self, text: str) -> None:
        """Log output of a cell, unless the log of the application is closed."""
        if not self._is_closed:
            self._on_stray(text)


class _Pool:
    def __init__(self, limits: CellLimits, on_unused: Callable[["_Pool"], None]) -> None:
        self.limits = limits
        self._on_unused = on_unused
        self.cells = Cells(limits, self._log_stray)
        self.users: Users[SharedCells] = Users()
        self._closing: asyncio.TimerHandle | None = None

    def add(self, user: SharedCells) -> None:
        self.cancel_closing()
        self.users.add(user)

    def discard(self, user: SharedCells) -> None:
        self.users.discard(user)
        if not self.users:
            self.cancel_closing()
            self._closing = asyncio.get_running_loop().call_later(
                UNUSED_SECONDS, self._on_unused, self
            )

    def cancel_closing(self) -> None:
        if self._closing is not None:
            self._closing.cancel()

    def _log_stray(self, text: str) -> None:
        """Log output of an idle cell or the zygote, which belongs to no run."""
        for user in list(self.users)[:1]:
            user.log_stray(text)


class CellPools:
    """The pools. A pool is closed after a while without users."""

    def __init__(self) -> None:
        self._pools: dict[CellLimits, _Pool] = {}
        self._closing = BackgroundTasks()

    def open(self, limits: CellLimits, on_stray: OnStray) -> SharedCells:
        """Return the cells for one application.

        `on_stray` logs what processes write to descriptors 1 and 2.
        """
        pool = self._pools.get(limits)
        if pool is None:
            pool = self._pools[limits] = _Pool(limits, self._close_unused)
        return SharedCells(pool, on_stray)

    def __len__(self) -> int:
        return len(self._pools)

    @property
    def count(self) -> int:
        """The number of idle and running cells of all pools."""
        return sum(pool.cells.count for pool in self._pools.values())

    def _close_unused(self, pool: _Pool) -> None:
        if self._pools.get(pool.limits) is pool:
            del self._pools[pool.limits]
            self._closing.start(pool.cells.__aexit__())

    async def close(self) -> None:
        """Close all pools, and end their runs."""
        pools = list(self._pools.values())
        self._pools = {}
        for pool in pools:
            pool.cancel_closing()
        await asyncio.gather(*(pool.cells.__aexit__() for pool in pools))
        await self._closing.wait()
