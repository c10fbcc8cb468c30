"""Pools of cells that several applications of one process share: one per distinct limits.

The number of concurrent runs is limited per pool.
"""

import asyncio
from collections.abc import Callable

from onetool.errors import ToolError
from onetool.processes.shared import CallInterrupted, Users
from onetool.runs.cells import CLOSED_MESSAGE, PROBE_SECONDS, CellLimits, Cells, Host
from onetool.runs.launch import OnStray
from onetool.util.background_tasks import BackgroundTasks
from onetool_child.json_types import JsonObject

UNUSED_SECONDS = 30.0  # until a pool without users is closed


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
