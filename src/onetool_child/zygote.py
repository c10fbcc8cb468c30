"""The zygote: a small process that forks cells, kills them and reports when they are gone.

It is started with an empty environment before any secret is known, confines itself as far as
forking allows, and preloads the standard library while idle. It has one thread. It exits with the
server, together with all cells and the scratch directory. Messages are JSON-RPC notifications, one
per packet; `fork` carries the socket of the cell and the pipe for its descriptors 1 and 2.
"""

import ctypes
import gc
import importlib
import json
import os
import platform
import select
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import NamedTuple, NoReturn

from onetool_child import cell, confine, syscalls
from onetool_child.scratch import remove

PACKET_BYTES = 1 << 16
THREAD_STACK_BYTES = 1 << 20
MAX_DESCRIPTORS = 128  # open descriptors of a cell
REHEARSALS = 20  # enough for the interpreter to specialize this code
# Preloaded in this order, one at a time, while no cell is requested. Only a few, because every
# shared library slows down every fork; code imports the rest itself.
COMMON_MODULES = (
    "re", "json", "collections", "itertools", "functools", "datetime", "math", "string", "textwrap",
    "dataclasses", "enum", "copy",
)  # fmt: skip


# The C function, not os.fork: this process has one thread, so Python's repairs in the child are not
# needed, and they touch so many pages that they cost more than the fork. The cell seeds `random`
# again.
_fork = ctypes.PyDLL(None).fork if sys.platform == "linux" else os.getpid


class Options(NamedTuple):
    scratch: str
    memory_bytes: int
    file_bytes: int
    isolation: str


def main(argv: list[str]) -> None:
    options = Options(**json.loads(argv[1]))
    control = socket.socket(fileno=int(argv[0]))
    os.environ.clear()
    confine.continue_without_parent()
    Zygote(control, options).serve()


class Confinement(NamedTuple):
    """The isolation of the zygote, and what each cell adds to it."""

    layers: tuple[str, ...] = ()
    filter: confine.Filter | None = None
    readable: tuple[str, ...] = ()

    def ruleset(self, scratch: str) -> int | None:
        """Return the ruleset of one cell; created before the fork and applied after it."""
        if "landlock" not in self.layers:
            return None
        return confine.landlock_ruleset(self.readable, [scratch, "/dev/null"])


def confine_zygote(options: Options) -> Confinement:
    """Apply all layers that still allow forking; cells inherit them."""
    importlib.import_module("onetool_child.deterministic")  # cells cannot read its file
    confine.limit_malloc_arenas()
    threading.stack_size(THREAD_STACK_BYTES)
    confinement = Confinement() if options.isolation == "off" else _confine_fully(options)
    confine.limit_resources(memory_bytes=options.memory_bytes, file_bytes=options.file_bytes)
    return confinement


def _confine_fully(options: Options) -> Confinement:
    layers: list[str] = []
    cell_filter: confine.Filter | None = None
    with suppress(confine.Unavailable):
        confine.drop_capabilities()
    with suppress(confine.Unavailable):
        # The scratch directory itself is removed at the end; cells lose this right through their
        # own rules.
        parent = os.path.dirname(options.scratch)  # noqa: PTH120 - pathlib is slow here
        confine.landlock(
            confine.standard_library(),
            [options.scratch, "/dev/null"],
            [(confine.REMOVE_DIR, [parent])],
        )
        layers.append("landlock")
    with suppress(confine.Unavailable):
        cell_filter = confine.Filter(syscalls.cell_filter(platform.machine()))
        confine.Filter(syscalls.zygote_filter(platform.machine())).install()
        layers.append("seccomp")
        socket.socket.sendmsg = _Missing()  # type: ignore[assignment, method-assign]
    active_filter = cell_filter if "seccomp" in layers else None
    return Confinement(
        tuple(layers), active_filter, tuple(confine.around_standard_library(options.scratch))
    )


class _Missing:
    """An attribute that `hasattr` does not find, although a base class has it.

    The filter denies `sendmsg`. From Python 3.12 on, asyncio uses it for `writelines` unless
    sockets lack it.
    """

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError("sendmsg is not available here: use send")


def confine_cell(confinement: Confinement, ruleset: int | None, keep: tuple[int, ...]) -> None:
    """Apply the last layers, after which this process can only compute and talk to the server."""
    if ruleset is not None:
        confine.restrict_to(ruleset)
    _close_all_except(keep)
    confine.limit_descriptors(MAX_DESCRIPTORS)
    if confinement.filter is not None:
        confinement.filter.install()


def ready(confinement: Confinement) -> str:
    """Return the first message of a cell, with a placeholder for its process ID."""
    params = {"layers": confinement.layers, "pid": cell.OWN_PID}
    return json.dumps({"jsonrpc": "2.0", "method": "ready", "params": params})


def _close_all_except(keep: tuple[int, ...]) -> None:
    start = 3
    for descriptor in sorted(keep):
        os.closerange(start, descriptor)
        start = descriptor + 1
    os.closerange(start, 65536)


class Zygote:
    def __init__(self, control: socket.socket, options: Options) -> None:
        self._control = control
        self._options = options
        self._cells: dict[int, tuple[int, int]] = {}  # by cell ID: process ID and pidfd
        self._ids: dict[int, int] = {}  # cell IDs by pidfd
        self._confinement = Confinement()
        self._ready = ""
        self._cell = cell.Cell()
        self._poll = select.poll()
        self._to_load = list(reversed(COMMON_MODULES))

    def serve(self) -> None:
        gc.disable()
        for _ in range(REHEARSALS):
            self._cell.rehearse()
        self._confinement = confine_zygote(self._options)
        self._ready = ready(self._confinement)
        control = self._control.fileno()
        self._poll.register(control, select.POLLIN)
        while True:
            readable = [
                descriptor for descriptor, _ in self._poll.poll(0 if self._to_load else None)
            ]
            if not readable:
                with suppress(ImportError):  # this Python does not have it
                    importlib.import_module(self._to_load.pop())
            for descriptor in readable:
                if descriptor != control:
                    self._reap(self._ids[descriptor])
                elif not self._handle_packet():
                    self._shut_down()

    def _handle_packet(self) -> bool:
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._control, PACKET_BYTES, 2)
        except ConnectionError:
            return False
        if not packet:
            return False
        message = json.loads(packet)
        if message["method"] == "ping":
            self._send("pong", {})
            return True
        ident: int = message["params"]["ident"]
        if message["method"] == "kill":
            if ident in self._cells:  # not reaped yet, so the process ID is still that of the cell
                _kill_group(self._cells[ident][0])
            return True
        try:
            self._fork(ident, *descriptors)
        except OSError as error:
            self._report_gone(ident, None, f"{error.strerror}: {self._options.scratch}")
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _fork(self, ident: int, descriptor: int, stray: int) -> None:
        scratch = f"{self._options.scratch}/{ident}"
        os.mkdir(scratch, 0o700)  # noqa: PTH102 - pathlib is slow here
        os.chdir(scratch)
        parent = os.getpid()
        ruleset = self._confinement.ruleset(scratch)
        gc.freeze()
        pid: int = _fork()
        if pid == 0:
            self._become_cell(descriptor, stray, ruleset, parent)
        if ruleset is not None:
            os.close(ruleset)
        pidfd = os.pidfd_open(pid)
        self._cells[ident] = pid, pidfd
        self._ids[pidfd] = ident
        self._poll.register(pidfd, select.POLLIN)

    def _become_cell(self, descriptor: int, stray: int, ruleset: int | None, parent: int) -> None:
        try:
            os.dup2(stray, 1)
            os.dup2(stray, 2)
            os.setsid()
            confine.die_with_parent(parent)
            confine_cell(self._confinement, ruleset, keep=(descriptor,))
            gc.enable()
            self._cell.serve(descriptor, descriptor, self._ready)
        finally:
            os._exit(70)

    def _reap(self, ident: int) -> None:
        """Report that a cell is gone and remove its scratch directory if it is empty."""
        pid, pidfd = self._cells.pop(ident)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        del self._ids[pidfd]
        if "seccomp" not in self._confinement.layers:  # it may have had children
            _kill_group(pid)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._report_gone(ident, status, "")

    def _report_gone(self, ident: int, status: int | None, reason: str) -> None:
        littered = False
        try:
            os.rmdir(f"{self._options.scratch}/{ident}")  # noqa: PTH106 - see above
        except OSError:
            littered = True
        self._send(
            "gone", {"ident": ident, "status": status, "littered": littered, "reason": reason}
        )

    def _send(self, method: str, params: dict[str, object]) -> None:
        try:
            self._control.send(
                json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode()
            )
        except OSError:
            self._shut_down()

    def _shut_down(self) -> None:
        for pid, _ in self._cells.values():
            _kill_group(pid)
        for pid, _ in self._cells.values():  # they may write until they are gone
            os.waitpid(pid, 0)
        remove(self._options.scratch)
        os._exit(0)


def _kill_group(pid: int) -> None:
    with suppress(OSError):  # the group is empty
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
