"""How a command ends, whatever happens: with a status that a script can rely on, and never with a traceback.

0 is fine, 1 failed, 2 wrong usage, 130 Ctrl+C, 143 told to end. Output that nobody reads any more is no failure; output
that cannot be written is one. What nobody expected goes to the log, and to the screen with ONETOOL_DEBUG=1.
"""

import contextlib
import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from onetool.cli.signals import Terminated
from onetool.cli.terminal import protect
from onetool.errors import ToolError
from onetool.util.invisible import escape_invisible

FAILED, USAGE, INTERRUPTED, TERMINATED = 1, 2, 130, 143
DEBUG = "ONETOOL_DEBUG"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
OUTPUT = {*_FULL, errno.EBADF}
REFUSED = {*_FULL, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT}
REFUSED |= {errno.ELOOP, errno.ENAMETOOLONG, errno.EMFILE, errno.ENFILE}


def ended(command: Callable[[], int]) -> int:
    """Run the command; its status."""
    _mend_streams()
    try:
        return _flushed(_status_of(command))
    finally:
        # Nothing is left to clean up: another Ctrl+C while Python ends is to end it, in silence.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _status_of(command: Callable[[], int]) -> int:
    try:
        return _worded(command)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Terminated:
        return TERMINATED
    except SystemExit as asked:  # by argparse
        return asked.code if isinstance(asked.code, int) else 0
    except BrokenPipeError:  # the reader of our output has gone: `onetool tools | head`
        _discard(sys.stdout)
        return 0


def _worded(command: Callable[[], int]) -> int:
    """Errors as words."""
    try:
        return command()
    except BrokenPipeError:
        raise
    except ToolError as error:
        return _failed(str(error))
    except OSError as error:
        # What this machine refuses, such as a folder that may not be written. Errors of the output name no file.
        if error.filename is None and error.errno in OUTPUT:
            return _failed(_unwritten(error))
        if error.filename is not None and error.errno in REFUSED:
            return _failed(f"{os.fsdecode(error.filename)} cannot be used: {error.strerror}")
        return _crashed(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, a person sees words
        return _crashed(error)


def _failed(*lines: str) -> int:
    with contextlib.suppress(OSError):
        for line in lines:
            print(f"onetool: {escape_invisible(line)}", file=sys.stderr)
    return FAILED


# --- what nobody expected ------------------------------------------------------------------------------------------


def _crashed(error: BaseException) -> int:
    if os.environ.get(DEBUG):
        import traceback

        with contextlib.suppress(OSError):
            traceback.print_exception(error)
        return FAILED
    reason = " ".join(str(error).split())
    what = f"something went wrong that should not: {type(error).__name__}{': ' if reason else ''}{reason}"
    file = _logged(error)
    return _failed(what, f"the details are in {file}" if file else f"set {DEBUG}=1 and try again to see the details")


def _logged(error: BaseException) -> Path | None:
    """The log with the details in it; None where it could not be written."""
    import traceback

    from onetool.logging import Log
    from onetool.paths import FOLDER

    try:
        file = Path.home() / FOLDER / "logs" / "onetool.log"
    except RuntimeError:
        return None
    where = "".join(traceback.format_tb(error.__traceback__))  # without what it says, which may be a secret
    log = Log(file, gathers=False)
    log.event("crash", level="ERROR", error_type=type(error).__name__, text=where)
    log.close()
    return None if log.problem else file


# --- the streams ---------------------------------------------------------------------------------------------------


def _mend_streams() -> None:
    """Closed ones are opened on nothing, or the next file would get their number. No letter is too odd to print."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            _fill(number)
            setattr(sys, name, Path(os.devnull).open("w" if number else "r", encoding="utf-8"))  # noqa: SIM115
        elif number and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
            setattr(sys, name, protect(stream))


def _fill(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != number:
            os.dup2(opened, number, inheritable=True)
            os.close(opened)


def _flushed(status: int) -> int:
    """What is still to be written is written here, where a failure has words."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard(sys.stdout)
    except OSError as error:
        _discard(sys.stdout)
        status = _failed(_unwritten(error))
    try:
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)
    return status


def _discard(stream: TextIO) -> None:
    """Python would complain at its end of what it could not write."""
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)


def _unwritten(error: OSError) -> str:
    return f"the output cannot be written: {error.strerror or error}"
