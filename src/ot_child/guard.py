"""Run a program so that nothing of it outlives who started it: `guard.py COMMAND ARGUMENT…`.

The program has our standard streams to itself. When the other end of standard input is gone, or the program is, all
that it has started is ended too: on Linux also what has left its process group, because orphans become children of
this process; elsewhere the group.
"""

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path

LEAVE_SECONDS = 2.0  # for a program whose client is gone to leave by itself
END_SECONDS = 2.0  # for what was killed to be gone
DIE_WITH_PARENT, ADOPT_ORPHANS = 1, 36  # PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER
CANNOT_START = 127


def main(command: list[str]) -> None:
    _ask_kernel(ADOPT_ORPHANS, 1)
    told = _told_of_ends()
    child = os.fork()
    if child == 0:
        _become(command)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # they are meant for the program, which has them too
        signal.signal(number, signal.SIG_IGN)
    os.closerange(1, 3)  # so that the program's end is the end of these
    code = _watch(child, told)
    _end_all()
    os._exit(code)


def _become(command: list[str]) -> None:
    _ask_kernel(DIE_WITH_PARENT, signal.SIGKILL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # which Python ignores, and no program expects
    try:
        os.execvp(command[0], command)  # noqa: S606 - a person configured it
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(CANNOT_START)


def _ask_kernel(for_what: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(for_what, value, 0, 0, 0)


def _told_of_ends() -> int:
    """A descriptor on which there is something to read when a child has ended."""
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reader


def _watch(child: int, told: int) -> int:
    """Until the program has ended, or its time is over; its exit code."""
    poll = select.poll()
    poll.register(0, 0)  # nothing but the end of it
    poll.register(told, select.POLLIN)
    deadline: float | None = None
    while (code := _exit_code_of(child)) is None:
        left = None if deadline is None else (deadline - time.monotonic()) * 1000
        if left is not None and left <= 0:
            return 1
        events = dict(poll.poll(left))
        if 0 in events:
            poll.unregister(0)
            deadline = time.monotonic() + LEAVE_SECONDS
        if told in events:
            os.read(told, 1 << 10)
    return code


def _exit_code_of(child: int) -> int | None:
    """Where it has ended; orphans that have are seen off on the way."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 1
        if pid == 0:
            return None
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _end_all() -> None:
    if sys.platform != "linux":
        os.killpg(0, signal.SIGKILL)
    deadline = time.monotonic() + END_SECONDS
    while time.monotonic() < deadline:
        for pid in _descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


def _descendants(pid: int) -> list[int]:
    children: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            children += map(int, tasks.read_text(encoding="ascii").split())
    return [each for child in children for each in (child, *_descendants(child))]


if __name__ == "__main__":
    main(sys.argv[1:])
