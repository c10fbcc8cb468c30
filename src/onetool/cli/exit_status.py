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
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from onetool.cli.signals import Terminated
from onetool.cli.terminal import protect
from onetool.errors import ToolError
from onetool.util.invisible import escape_invisible

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

    where = "".join(
        traceback.format_tb(error.__traceback__)
    )  # without the message, which may contain a secret
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
    """Redirect the stream to the null device, so that Python does not report unwritten output at
    exit.
    """
    with suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)


def _output_error(error: OSError) -> str:
    return f"cannot write the output: {error.strerror or error}"
