"""Opening OneTool for one command: settings from this machine's files, one event loop, closed again at the end."""

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from ot.app import OneTool, read_settings
from ot.errors import ToolError

T = TypeVar("T")
Work = Callable[[OneTool], Awaitable[T]]


def with_onetool(options: argparse.Namespace, work: Work[T]) -> T:
    """Whatever the settings are: for commands that report what is wrong with them themselves."""

    async def opened() -> T:
        async with OneTool(read=lambda: read_settings(os.environ, Path.cwd(), options.config)) as app:
            return await work(app)

    return asyncio.run(opened())


def with_settings(options: argparse.Namespace, work: Work[T]) -> T:
    """Only with settings that are right; what a person should know about them goes to the error stream."""

    async def checked(app: OneTool) -> T:
        if app.config_error is not None:
            raise ToolError(f"the configuration is wrong:\n{app.config_error}")
        for problem in app.problems:
            print(f"onetool: note: {problem}", file=sys.stderr)
        return await work(app)

    return with_onetool(options, checked)
