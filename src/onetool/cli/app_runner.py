"""Opens OneTool for one command, on one event loop and with the settings of this machine.

Ctrl+C and SIGTERM cancel the work, so that everything is closed however the command ends.
"""

import argparse
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from onetool.cli.signals import run_cancellable
from onetool.cli.terminal import print_notices
from onetool.errors import ToolError

if TYPE_CHECKING:
    from onetool.app import OneTool

T = TypeVar("T")
Work = Callable[["OneTool"], Awaitable[T]]


def run_with_app(options: argparse.Namespace, work: Work[T]) -> T:
    """Run a coroutine function with OneTool, even if the settings are invalid."""
    from onetool.app import OneTool

    async def open_and_work() -> T:
        async with OneTool.from_files(options.config) as app:
            return await work(app)

    return run_cancellable(open_and_work)


def run_with_settings(options: argparse.Namespace, work: Work[T]) -> T:
    """Run a coroutine function with OneTool; raise if the settings are invalid and print notices to standard error."""

    async def check_and_work(app: "OneTool") -> T:
        check_settings(app)
        return await work(app)

    return run_with_app(options, check_and_work)


def check_settings(app: "OneTool") -> None:
    """Raise if the settings are invalid, and print notices to standard error."""
    if app.config_error is not None:
        raise ToolError(f"invalid settings:\n{app.config_error}")
    print_notices(app.problems)
