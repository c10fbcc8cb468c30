"""Opens OneTool for one command, on one event loop and with the settings of this machine.

Ctrl+C and SIGTERM cancel the work, so that everything is closed however the command ends.
"""

from argparse import Namespace
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from onetool.cli.signals import run_cancellable
from onetool.cli.terminal import CommandOutput
from onetool.errors import ToolError

if TYPE_CHECKING:
    from onetool.app import OneTool

T = TypeVar("T")
Work = Callable[["OneTool"], Awaitable[T]]
Execute = Callable[["OneTool", Namespace, CommandOutput], Awaitable[int]]


def run_with_app(options: Namespace, work: Work[T]) -> T:
    """Run a coroutine function with OneTool, even if the settings are invalid."""
    from onetool.app import OneTool

    async def open_and_work() -> T:
        async with OneTool.from_files(options.config) as app:
            return await work(app)

    return run_cancellable(open_and_work)


def run_here(execute: Execute, options: Namespace) -> int:
    """Execute a command in this process and print to its standard streams. `onetool.cli.remote` is the other way."""
    return run_with_app(options, lambda app: execute(app, options, CommandOutput()))


def run_with_settings(options: Namespace, work: Work[T]) -> T:
    """Run a coroutine function with OneTool; raise if the settings are invalid and print notices to standard error."""

    async def check_and_work(app: "OneTool") -> T:
        check_settings(app)
        return await work(app)

    return run_with_app(options, check_and_work)


def check_settings(app: "OneTool", output: CommandOutput | None = None) -> None:
    """Raise if the settings are invalid, and print notices to standard error."""
    if app.config_error is not None:
        raise ToolError(f"invalid settings:\n{app.config_error}")
    (output or CommandOutput()).notify(app.problems)
