"""The processes that several applications of one process share: cells, upstream servers and workers.

Pass one object to each application: `OneTool(..., shared=shared)`. Applications share what would be started equally:
the same program, settings, environment and directory.
"""

import asyncio
from typing import TYPE_CHECKING

from onetool.children.shared import SharedPool
from onetool.runner.shared_cells import CellPools

if TYPE_CHECKING:
    from onetool.extensions.worker import Worker
    from onetool.proxy.connection import Connection


class SharedProcesses:
    """The shared processes. Create it on the event loop of the applications, and close it after them."""

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
