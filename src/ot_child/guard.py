"""Run a program so that nothing of it outlives who started it: `guard.py COMMAND ARGUMENT…`.

A second process waits for the end of standard input and then ends the whole process group. The program itself
takes the place of this one, so that its pipes and its exit are its own.
"""

import os
import sys

LEAVE_SECONDS = 2.0  # for a program whose client is gone to leave by itself


def stand_guard() -> None:
    """Leave a process that does nothing until the other end of standard input is gone, and then ends the group."""
    if os.fork():
        return
    import select
    import signal
    import time

    try:
        os.closerange(1, 256)
        poll = select.poll()
        poll.register(0, 0)  # nothing but the end of it
        poll.poll()
        time.sleep(LEAVE_SECONDS)
        os.killpg(0, signal.SIGKILL)
    finally:
        os._exit(0)


def main(command: list[str]) -> None:
    stand_guard()
    try:
        os.execvp(command[0], command)  # noqa: S606 - a person configured it
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error.strerror}\n")
        os._exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
