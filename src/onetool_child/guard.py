"""The process above a worker, or above a server that we proxy: it waits until that or we are gone, and ends the rest.

It takes in what the worker's own processes leave behind, so that none gets away by leaving its group or its session.
Where there is no Linux, it ends the group of the worker. It runs none of the tools' code. Standard library only.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable

LEAVE_SECONDS = 2.0  # for a worker whose server is gone to leave by itself
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SIGNALLED = 128  # what a shell adds to the number of a signal that ended a process
CANNOT_START = 127
AGAIN_SECONDS = 0.1
IMPATIENT = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}  # all is to end at once


def stand_guard(reader: int) -> int:
    """Fork. The child is the worker and goes on; the parent is the guard until both are gone.

    The kernel is asked for its part afterwards, on both sides, because to load what asks it takes a while.
    """
    guard = os.getpid()
    worker = os.fork()
    if worker:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        _guard(worker, reader)
    os.setsid()  # what stops the worker with all its group does not stop the guard
    return guard


def die_with(guard: int) -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(0)


def main(command: list[str]) -> None:
    """Be the guard of another program: `guard.py COMMAND ARGUMENT…`, which has our standard streams to itself."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)  # before there is anybody who could stop the guard first
    die_with(stand_guard(0))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # which Python ignores, and no program expects
    try:
        os.execvp(command[0], command)  # noqa: S606 - a person configured it
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(CANNOT_START)


def _guard(worker: int, reader: int) -> None:
    status: int = signal.SIGKILL
    try:
        status = _outlived(worker, reader)
    finally:  # whatever happened, nothing of the worker stays alone
        end_family(os.getpid(), worker)
        code = os.waitstatus_to_exitcode(status)
        os._exit(SIGNALLED - code if code < 0 else code)


def _outlived(worker: int, reader: int) -> int:
    """Wait for the end of the worker; what it ended with."""
    import select

    woken = _woken_by_signals()
    # What the guard held open, nobody would see the end of: the pipes of the worker above all.
    if reader:  # closerange(0, 0) closes everything there is
        os.closerange(0, reader)
    os.closerange(reader + 1, woken)
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    poll.register(reader, 0)  # nothing but the end of it
    deadline: float | None = None
    while (status := _reaped(worker)) is None:
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        found = [descriptor for descriptor, _event in poll.poll(left)]
        if woken in found and set(os.read(woken, 1 << 10)) & IMPATIENT:
            deadline = 0.0
        if reader in found:  # the server is gone, or wants the worker to go
            poll.unregister(reader)
            deadline = time.monotonic() + LEAVE_SECONDS if deadline is None else deadline
        if deadline is not None and time.monotonic() >= deadline:
            end_family(os.getpid(), worker)
            deadline = time.monotonic() + AGAIN_SECONDS
    return status


def _woken_by_signals() -> int:
    """A descriptor from which the number of each signal can be read."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, *IMPATIENT):
        signal.signal(number, lambda *_: None)
    return woken


def _reaped(worker: int) -> int | None:
    """Bury all that have ended; the status of the worker, if it is among them."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == worker:
                return ended[1]
    return None


# --- also for the server --------------------------------------------------------------------------------------------


def end_family(process: int, group: int) -> None:
    """Kill all that the process started, and the group: stopped first, so that none starts another meanwhile."""
    found: set[int] = set()
    while new := _descendants(process) - found:
        for descendant in new:
            _send(os.kill, descendant, signal.SIGSTOP)
        found |= new
    for descendant in found:
        _send(os.kill, descendant, signal.SIGKILL)
    _send(os.killpg, group, signal.SIGKILL)


def _send(send: Callable[[int, int], None], process: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        send(process, number)


def _descendants(process: int) -> set[int]:
    """Find all that the process started; nothing where there is no /proc."""
    parents = {}
    for name in os.listdir("/proc") if sys.platform == "linux" else ():  # noqa: PTH208 - pathlib costs start-up here
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:  # noqa: PTH123 - see above
                parents[int(name)] = int(stat.read().rpartition(b")")[2].split()[1])
    found = {process}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {process}


def _prctl(option: int, value: int) -> None:
    """Linux only; elsewhere there is no such thing."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
