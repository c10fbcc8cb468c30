"""The guard process above a worker or upstream server: when either side exits, it kills all
remaining processes.

On Linux it adopts orphans, so that no process escapes by leaving its group or session; elsewhere it
kills the process group. It never runs code of tools. Standard library only.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

EXIT_SECONDS = 2.0  # for a worker to exit after its server is gone
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SIGNAL_STATUS_OFFSET = 128  # added to the number of a signal that ended a process, as in shells
CANNOT_START_STATUS = 127
RETRY_SECONDS = 0.1
# Signals that end everything immediately. Windows has no SIGHUP, and no guard.
END_SIGNALS = {signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGTERM)}


def stand_guard(reader: int) -> int:
    """Fork: the child continues as the worker, the parent is the guard until both are gone.

    Both sides call prctl after the fork, because loading ctypes takes a while.
    """
    guard = os.getpid()
    worker = os.fork()
    if worker:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        # A stopped guard could not notice that the server is gone. A signal because a thread has
        # ended does no harm.
        _prctl(PR_SET_PDEATHSIG, signal.SIGCONT)
        _guard(worker, reader)
    os.setsid()  # so that signals to the group of the worker do not reach the guard
    return guard


def die_with(guard: int) -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(0)


def main(command: list[str]) -> None:
    """Guard another program: `guard.py COMMAND ARGUMENT…`. The program gets the standard streams."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)  # before any process exists that could stop the guard
    die_with(stand_guard(0))
    signal.signal(
        signal.SIGPIPE, signal.SIG_DFL
    )  # Python ignores SIGPIPE, which programs do not expect
    try:
        os.execvp(command[0], command)  # noqa: S606 - a person configured it
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(CANNOT_START_STATUS)


def _guard(worker: int, reader: int) -> None:
    status: int = signal.SIGKILL
    try:
        status = _wait_for_exit(worker, reader)
    finally:  # no process of the worker may survive
        kill_descendants(os.getpid(), worker)
        code = os.waitstatus_to_exitcode(status)
        os._exit(SIGNAL_STATUS_OFFSET - code if code < 0 else code)


def _wait_for_exit(worker: int, reader: int) -> int:
    """Wait for the worker to exit and return its status."""
    import select

    wakeup = _signal_descriptor()
    # Close all other descriptors, so that the pipes of the worker close when it exits.
    if reader:  # closerange(0, 0) closes all descriptors
        os.closerange(0, reader)
    os.closerange(reader + 1, wakeup)
    poll = select.poll()
    poll.register(wakeup, select.POLLIN)
    poll.register(reader, 0)  # only hang-up
    deadline: float | None = None
    while (status := _reap(worker)) is None:
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        ready = [descriptor for descriptor, _event in poll.poll(left)]
        if wakeup in ready and set(os.read(wakeup, 1 << 10)) & END_SIGNALS:
            deadline = 0.0
        if reader in ready:  # the server is gone, or wants the worker to exit
            poll.unregister(reader)
            deadline = time.monotonic() + EXIT_SECONDS if deadline is None else deadline
        if deadline is not None and time.monotonic() >= deadline:
            kill_descendants(os.getpid(), worker)
            deadline = time.monotonic() + RETRY_SECONDS
    return status


def _signal_descriptor() -> int:
    """Return a descriptor from which signal numbers can be read."""
    wakeup, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, *END_SIGNALS):
        signal.signal(number, lambda *_: None)
    return wakeup


def _reap(worker: int) -> int | None:
    """Reap exited processes; return the status of the worker if it is among them."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == worker:
                return ended[1]
    return None


# --- also used by the server
# --------------------------------------------------------------------------------------------


def kill_descendants(process: int, group: int) -> None:
    """Stop all descendants and the process group, so that none starts another; kill them."""
    descendants: set[int] = set()
    while new := _find_descendants(process) - descendants:
        for descendant in new:
            _send(os.kill, descendant, signal.SIGSTOP)
        descendants |= new
    for descendant in descendants:
        _send(os.kill, descendant, signal.SIGKILL)
    _send(os.killpg, group, signal.SIGKILL)


def _send(send: Callable[[int, int], None], process: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        send(process, number)


def _find_descendants(process: int) -> set[int]:
    """Return all descendants of a process; empty without /proc."""
    parents = {}
    for name in os.listdir("/proc") if sys.platform == "linux" else ():  # noqa: PTH208 - pathlib costs start-up here
        if name.isdigit():
            with (
                suppress(OSError),
                open(f"/proc/{name}/stat", "rb") as stat,  # noqa: PTH123 - pathlib costs start-up here
            ):
                parents[int(name)] = int(stat.read().rpartition(b")")[2].split()[1])
    family = {process}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return family - {process}


def _prctl(option: int, value: int) -> None:
    """Call prctl; does nothing on systems other than Linux."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
