"""Run `onetool` as far as possible as on Windows: `python -m tests.e2e.without_posix ARGUMENTS`.

Modules, functions and constants that only POSIX has are removed before OneTool is imported, and `sys.platform` is
`win32`. The standard library and the dependencies are imported before that and stay as they are, including the event
loop, `msvcrt` is empty, and children are started normally. So this finds imports and calls that Windows lacks; the
GitHub workflow runs the real thing.
"""

import importlib
import os
import pkgutil
import shutil
import signal
import socket
import sys
import webbrowser
from types import ModuleType
from typing import Any

import anyio._backends._asyncio
import anyio.to_thread
import mcp
import starlette.applications
import uvicorn

MODULES = ("fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")
OS_NAMES = (
    *("chown", "fchmod", "fork", "forkpty", "getegid", "geteuid", "getgid", "getloadavg", "getpgid", "getuid"),
    *("killpg", "mkfifo", "openpty", "pidfd_open", "posix_spawn", "sched_getaffinity", "setsid", "sysconf"),
    *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_PATH"),
)
# Not SIGKILL, which `subprocess` uses to kill.
SIGNAL_NAMES = ("SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGPIPE", "SIGQUIT", "SIGSTOP", "SIGUSR1", "setitimer")
SOCKET_NAMES = ("AF_UNIX", "SOCK_SEQPACKET", "SO_PEERCRED", "recv_fds", "send_fds")
PRELOADED = (anyio, mcp, shutil, starlette, uvicorn, webbrowser)
# The daemon, and the process that forks cells, exist only on POSIX.
POSIX_ONLY = ("onetool.daemon.", "onetool_child.zygote")


def remove_posix() -> None:
    make_pair, family = socket.socketpair, socket.AF_UNIX
    vars(socket)["socketpair"] = lambda: make_pair(family)  # the event loop needs it
    for module, names in ((os, OS_NAMES), (signal, SIGNAL_NAMES), (socket, SOCKET_NAMES)):
        for name in names:
            vars(module).pop(name, None)
    modules: dict[str, Any] = sys.modules
    modules.update(dict.fromkeys(MODULES), msvcrt=_make_msvcrt())
    sys.platform = "win32"


def _make_msvcrt() -> ModuleType:
    module = ModuleType("msvcrt")
    vars(module).update(locking=lambda *_: None, LK_LOCK=1, LK_NBLCK=2, LK_UNLCK=0)
    return module


def import_everything() -> None:
    for package in map(importlib.import_module, ("onetool", "onetool_child")):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.startswith(POSIX_ONLY) and not found.name.endswith("__main__"):
                importlib.import_module(found.name)


if __name__ == "__main__":
    remove_posix()
    import_everything()
    from onetool.cli.main import main

    sys.exit(main(sys.argv[1:]))
