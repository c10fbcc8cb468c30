"""Opening OneTool for one command: settings from this machine's files, one event loop, closed again at the end."""

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from ot.app import OneTool, read_settings

T = TypeVar("T")


def with_onetool(options: argparse.Namespace, work: Callable[[OneTool], Awaitable[T]]) -> T:
    async def opened() -> T:
        async with OneTool(read=lambda: read_settings(os.environ, Path.cwd(), options.config)) as app:
            return await work(app)

    return asyncio.run(opened())
