"""Make this process behave as on Windows, as far as that is possible on Linux.

Modules, functions and constants that only POSIX has are removed, and `sys.platform` is `win32`.
Functions that fail on Windows fail here: `select` with a pipe, opening a directory, renaming or
deleting an open file, and signal handlers and readers of event loops. What was imported before
stays as it is, including the event loop. Needs only the standard library, because children use it
too.
"""

import asyncio
import ctypes  # noqa: F401 - these modules choose their system when they are imported
import errno
import functools
import os
import platform  # noqa: F401 - see above
import select
import shutil
import signal
import socket
import stat
import subprocess  # noqa: F401 - see above
import sys
import sysconfig
import threading  # noqa: F401 - see above
import uuid  # noqa: F401 - see above
from collections.abc import Callable
from types import ModuleType
from typing import Any

MODULES = ("fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")
OS_NAMES = (
    *(
        "chown",
        "fchmod",
        "fchown",
        "fork",
        "forkpty",
        "getegid",
        "geteuid",
        "getgid",
        "getloadavg",
        "getpgid",
    ),
    *(
        "getuid",
        "killpg",
        "mkfifo",
        "openpty",
        "pidfd_open",
        "posix_spawn",
        "pread",
        "pwrite",
        "sched_getaffinity",
    ),
    *("setsid", "sysconf", "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_PATH"),
)
# Not SIGKILL, which `subprocess` uses to kill.
SIGNAL_NAMES = (
    *(
        "SIGALRM",
        "SIGCHLD",
        "SIGCONT",
        "SIGHUP",
        "SIGPIPE",
        "SIGQUIT",
        "SIGSTOP",
        "SIGUSR1",
        "setitimer",
    ),
    "pthread_sigmask",
)
SOCKET_NAMES = ("AF_UNIX", "SOCK_SEQPACKET", "SO_PEERCRED", "recv_fds", "send_fds")
LOOP_NAMES = ("add_reader", "add_signal_handler", "add_writer")


def remove_posix() -> None:
    sysconfig.get_paths()  # computed once
    make_pair, family = socket.socketpair, socket.AF_UNIX
    vars(socket)["socketpair"] = lambda: make_pair(family)  # the event loop needs it
    removed = (
        (os, OS_NAMES),
        (signal, SIGNAL_NAMES),
        (sys.modules["_signal"], SIGNAL_NAMES),
        (socket, SOCKET_NAMES),
    )
    for module, names in removed:
        for name in names:
            vars(module).pop(name, None)
    for name in LOOP_NAMES:
        setattr(asyncio.SelectorEventLoop, name, _fail_as_missing)
    vars(shutil)["_use_fd_functions"] = False
    vars(select)["select"] = functools.partial(_select_sockets, select.select)
    vars(os)["open"] = functools.partial(_open_file, os.open)
    for name in ("rename", "replace", "remove", "unlink"):
        vars(os)[name] = functools.partial(_change_closed_file, getattr(os, name))
    modules: dict[str, Any] = sys.modules
    modules.update(dict.fromkeys(MODULES), msvcrt=_make_msvcrt())
    sys.platform = "win32"


def _fail_as_missing(*_: object) -> None:
    raise NotImplementedError


def _select_sockets(select: Callable[..., Any], *groups: Any) -> Any:
    for waited in [each for group in groups[:3] for each in group]:
        descriptor = waited if isinstance(waited, int) else waited.fileno()
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENOTSOCK, "not a socket")
    return select(*groups)


def _open_file(open_: Callable[..., int], path: Any, *arguments: Any, **options: Any) -> int:
    if options.get("dir_fd") is not None:
        raise NotImplementedError("dir_fd unavailable on this platform")
    if os.path.isdir(path):  # noqa: PTH112 - it may be a descriptor
        raise PermissionError(errno.EACCES, "Permission denied", path)
    return open_(path, *arguments, **options)


def _change_closed_file(
    change: Callable[..., Any], path: Any, *arguments: Any, **options: Any
) -> Any:
    name = os.path.realpath(path)
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208 - see above
        if os.path.realpath(f"/proc/self/fd/{descriptor}") == name:
            raise PermissionError(errno.EACCES, "it is being used by another process", path)
    return change(path, *arguments, **options)


def _make_msvcrt() -> ModuleType:
    module = ModuleType("msvcrt")
    vars(module).update(locking=lambda *_: None, LK_LOCK=1, LK_NBLCK=2, LK_UNLCK=0)
    return module
