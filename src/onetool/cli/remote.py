"""Executes commands that clients send to the shared server, like the command line.

`execute` is called on the event loop of the server, with the application of the client. It writes
to a `RemoteOutput`, which sends the text to the client. Cancelling it cancels the run or call.
"""

import asyncio
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from itertools import cycle
from typing import TYPE_CHECKING, NoReturn, Self

from anyio.to_thread import run_sync as run_in_thread

from onetool.cli.exit_status import FAILED, LOG_FILE, describe_failure
from onetool.cli.invocation import Invocation, execute as execute_here
from onetool.cli.main import load_command, parse
from onetool.cli.terminal import (
    CLEAR_LINE,
    DEFAULT_WIDTH,
    DELAY_SECONDS,
    SPINNER,
    STEP_SECONDS,
    CommandOutput,
    Progress,
    can_rewrite,
)
from onetool.processes.daemon_client import SHARED_COMMANDS
from onetool.util.invisible import escape_invisible

if TYPE_CHECKING:
    from onetool.app import OneTool

STDOUT = 1
STDERR = 2
Send = Callable[[int, str], None]  # sends text to a stream of the client, STDOUT or STDERR


class NotRemote(Exception):
    """Raised before anything ran: the client must execute the command itself."""


async def execute(
    app: "OneTool", argv: list[str], output: CommandOutput, stdin_text: str | None = None
) -> int:
    """Execute a command, such as `["run", "1+1", "--json"]`, and return its exit status.

    `stdin_text` is the code of `run -`. Raise NotRemote for usage errors, `--help`, `--config`,
    commands and actions of the client's process, code that is not UTF-8, and if the settings files
    have changed or are invalid: the client executes these itself.
    """
    if not argv or argv[0] not in SHARED_COMMANDS:
        raise NotRemote
    command = load_command(argv[0])
    options = parse(argv[0], argv[1:], _RemoteParser)
    if options.config is not None or getattr(options, "action", "") in command.local_actions:
        raise NotRemote
    if argv[0] == "run":
        options.code = stdin_text if options.code == "-" else options.code
        if options.code is None or options.file is not None or not _is_utf8(options.code):
            raise NotRemote
    elif command.check is not None:
        command.check(options)
    if not await app.live_settings.is_current():
        raise NotRemote
    try:
        return await execute_here(command, Invocation(app, options, output))
    except NotRemote:
        raise
    except Exception as error:  # noqa: BLE001 - the client prints a message, like the command line
        log_file = app.directories.user / LOG_FILE
        output.error(await run_in_thread(describe_failure, error, app.environment, log_file))
        return FAILED


class _RemoteParser(ArgumentParser):
    """A parser that never prints or exits."""

    def error(self, message: str) -> NoReturn:
        _reject(message)

    def print_help(self, file: object = None) -> NoReturn:
        _reject(file)


def _is_utf8(text: str) -> bool:
    """Return whether the text has no surrogates, which stand for bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _reject(_reason: object) -> NoReturn:
    raise NotRemote


class RemoteOutput(CommandOutput):
    """The standard streams of a client. `terminals` are the streams that are terminals.

    Text for a terminal is escaped here, so that the client only copies it.
    """

    is_remote = True

    def __init__(
        self,
        send: Send,
        terminals: frozenset[int],
        environment: Mapping[str, str],
        columns: int = DEFAULT_WIDTH,
    ) -> None:
        self._send = send
        self._terminals = terminals
        self._columns = columns
        self._shows_progress = STDERR in terminals and can_rewrite(environment)

    @property
    def is_terminal(self) -> bool:
        return STDOUT in self._terminals

    def write(self, text: str) -> None:
        self._send(STDOUT, self._escape(STDOUT, text))

    def error(self, text: str) -> None:
        self._send(STDERR, self._escape(STDERR, text))

    def progress(self, text: str) -> Progress:
        return _RemoteProgress(text, self._send, self._columns if self._shows_progress else 0)

    def _escape(self, stream: int, text: str) -> str:
        return escape_invisible(text) if stream in self._terminals else text


class _RemoteProgress(Progress):
    """A progress line that timers of the event loop draw; a width of 0 hides it."""

    def __init__(self, text: str, send: Send, width: int) -> None:
        super().__init__(text)
        self._send = send
        self._width = width
        self._loop = asyncio.get_running_loop()
        self._signs = cycle(SPINNER)
        self._started = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        if self._width:
            self._timer = self._loop.call_later(DELAY_SECONDS, self._step)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._is_drawn:
            self._write(CLEAR_LINE)

    def _step(self) -> None:
        self._timer = self._loop.call_later(STEP_SECONDS, self._step)
        self._draw(next(self._signs), self._loop.time() - self._started, self._width)

    def _write(self, text: str) -> None:
        self._send(STDERR, text)
