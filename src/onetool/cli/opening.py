"""Opening OneTool for one command: settings from this machine's files, one event loop, closed again at the end.

However it ends: Ctrl+C and SIGTERM cancel the work, so that everything that was started is taken down.
"""

import argparse
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from onetool.cli.signals import heeding_signals
from onetool.cli.terminal import print_notices
from onetool.errors import ToolError

if TYPE_CHECKING:
    from onetool.app import OneTool

T = TypeVar("T")
Work = Callable[["OneTool"], Awaitable[T]]


def with_onetool(options: argparse.Namespace, work: Work[T]) -> T:
    """Whatever the settings are: for commands that report what is wrong with them themselves."""
    from onetool.app import OneTool, examine_settings, read_settings

    async def opened() -> T:
        async with OneTool(
            read=lambda: read_settings(os.environ, Path.cwd(), options.config),
            examine=lambda: examine_settings(os.environ, Path.cwd(), options.config),
        ) as app:
            return await work(app)

    return heeding_signals(opened)


def with_settings(options: argparse.Namespace, work: Work[T]) -> T:
    """Only with settings that are right; what a person should know about them goes to the error stream."""

    async def checked(app: "OneTool") -> T:
        if app.config_error is not None:
            raise ToolError(f"the configuration is wrong:\n{app.config_error}")
        print_notices(app.problems)
        return await work(app)

    return with_onetool(options, checked)
