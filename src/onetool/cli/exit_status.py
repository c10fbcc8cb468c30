"""Turns the outcome of a command into an exit status and an error message without a traceback.

0 means success, 1 failure, 2 a usage error, 3 that calls wait for approval, 130 Ctrl+C, 143
SIGTERM. A closed pipe is not a failure; output that cannot be written is one. Unexpected errors are
logged, and printed with a traceback if ONETOOL_DEBUG=1 is set.
"""

import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, TextIO, TypeVar

from onetool.cli.terminal import protect
from onetool.errors import ToolError
from onetool.util.invisible import escape_invisible

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)

FAILED = 1
USAGE = 2
WAITING = 3
INTERRUPTED = 130
TERMINATED = 143
DEBUG = "ONETOOL_DEBUG"
LOG_FILE = "logs/onetool.log"  # in the directory of the user
_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
OUTPUT_ERRORS = {*_DISK_ERRORS, errno.EBADF}
FILE_ERRORS = {
    *_DISK_ERRORS,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENOENT,
}
FILE_ERRORS |= {errno.ELOOP, errno.ENAMETOOLONG, errno.EMFILE, errno.ENFILE}


def run_command(command: Callable[[], int]) -> int:
    """Run the command and return its exit status."""
    _repair_streams()
    try:
        return _flush(_exit_status(command))
    finally:
        # Nothing is left to clean up, so another Ctrl+C may end Python silently.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _exit_status(command: Callable[[], int]) -> int:
    try:
        return _report_errors(command)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Terminated:
        return TERMINATED
    except SystemExit as asked:  # by argparse
        return asked.code if isinstance(asked.code, int) else 0
    except BrokenPipeError:  # the reader closed the pipe: `onetool tools | head`
        _discard(sys.stdout)
        return 0


def _report_errors(command: Callable[[], int]) -> int:
    """Run the command and print errors as messages."""
    try:
        return command()
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - no traceback for users
        return _fail(describe_failure(error, os.environ, _find_log()))


def _fail(text: str) -> int:
    with suppress(OSError):
        sys.stderr.write(text)
    return FAILED


def describe_failure(
    error: Exception, environment: Mapping[str, str], log_file: Path | None
) -> str:
    """Return the lines for standard error.

    Unexpected errors are logged, or shown with a traceback for debugging.
    """
    if isinstance(error, ToolError):
        return _format_lines(str(error))
    if isinstance(error, OSError):
        # Errors of standard output have no file name; others are errors of the environment, such as
        # permissions.
        if error.filename is None and error.errno in OUTPUT_ERRORS:
            return _format_lines(_output_error(error))
        if error.filename is not None and error.errno in FILE_ERRORS:
            return _format_lines(f"cannot use {os.fsdecode(error.filename)}: {error.strerror}")
    return _describe_crash(error, environment, log_file)


def _format_lines(*lines: str) -> str:
    return "".join(f"onetool: {escape_invisible(line)}\n" for line in lines)


# --- unexpected errors ----------------------------------------------------------------------------


def _describe_crash(error: Exception, environment: Mapping[str, str], log_file: Path | None) -> str:
    import traceback

    if environment.get(DEBUG):
        return "".join(traceback.format_exception(error))
    reason = " ".join(str(error).split())
    what = f"internal error: {type(error).__name__}{': ' if reason else ''}{reason}"
    if log_file is not None and _log_crash(error, log_file):
        return _format_lines(what, f"see {log_file} for details")
    return _format_lines(what, f"set {DEBUG}=1 and retry to see details")


def _find_log() -> Path | None:
    from onetool.settings.paths import FOLDER

    try:
        return Path.home() / FOLDER / LOG_FILE
    except RuntimeError:
        return None


def _log_crash(error: Exception, file: Path) -> bool:
    """Log the traceback; return whether it could be written."""
    import traceback

    from onetool.util.logging import Log

    # Without the message, which may contain a secret.
    where = "".join(traceback.format_tb(error.__traceback__))
    log = Log(file, gathers=False)
    log.event("crash", level="ERROR", error_type=type(error).__name__, text=where)
    log.close()
    return not log.problem


# --- streams --------------------------------------------------------------------------------------


def _repair_streams() -> None:
    """Open closed standard streams on the null device and make all characters printable.

    Otherwise the next opened file would get the number of a standard stream.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            _open_null(number)
            setattr(sys, name, Path(os.devnull).open("w" if number else "r", encoding="utf-8"))  # noqa: SIM115
        elif number and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
            setattr(sys, name, protect(stream))


def _open_null(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != number:
            os.dup2(opened, number, inheritable=True)
            os.close(opened)


def _flush(status: int) -> int:
    """Flush the streams here, where errors can be reported, and return the exit status."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard(sys.stdout)
    except OSError as error:
        _discard(sys.stdout)
        status = _fail(_format_lines(_output_error(error)))
    try:
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)
    return status


def _discard(stream: TextIO) -> None:
    """Redirect the stream to the null device: Python then reports no unwritten output."""
    with suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)


def _output_error(error: OSError) -> str:
    return f"cannot write the output: {error.strerror or error}"


# --- signals --------------------------------------------------------------------------------------


class Terminated(BaseException):
    """Raised for SIGTERM. Not an `Exception`, so that error handlers do not catch it."""


class SignalHandler:
    def __init__(self) -> None:
        self.signal = 0  # the signal that was received
        self._task: asyncio.Task[Any] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS:
            before = signal.getsignal(number)
            if (
                before is not signal.SIG_IGN and before is not None
            ):  # under nohup, SIGHUP stays ignored
                with suppress(ValueError):  # handlers can be set in the main thread only
                    signal.signal(number, self._receive)
                    self._before[number] = before
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    @contextmanager
    def cancellable(self) -> Iterator[None]:
        import asyncio

        if self.signal:
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        try:
            yield
        finally:
            self._task = None

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.signal:
            return
        self.signal = number
        if self._task is not None:
            loop = self._task.get_loop()
            # Errors caused by the cancellation are noise, including those of uv, which receives the
            # same Ctrl+C.
            loop.set_exception_handler(lambda *_: None)
            loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        """Cancel the task unless cleanup has begun since the signal arrived."""
        if self._task is not None:
            self._task.cancel()


def run_cancellable(work: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function on an event loop; the first signal cancels it."""
    import asyncio

    async def run_in_scope() -> T:
        with signals.cancellable():
            return await work()

    with SignalHandler() as signals:
        try:
            result = asyncio.run(run_in_scope())
        except asyncio.CancelledError:
            if not signals.signal:
                raise
    if signals.signal:
        raise KeyboardInterrupt if signals.signal == signal.SIGINT else Terminated
    return result


@contextmanager
def blocked_signals() -> Iterator[None]:
    """Delay signals until the end of the block, so that related files are all written."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
