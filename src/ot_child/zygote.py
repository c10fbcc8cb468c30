"""The zygote: a small process that does nothing but fork cells, kill them, and tell when they are gone.

It is started with an empty environment before anything secret is known, confines itself as far as forking allows, and
loads the standard library when nobody is waiting. One thread. It ends when the server does, and the scratch folder
and all cells end with it. Messages are JSON-RPC notifications, one a packet; `fork` carries the cell's socket.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from typing import Any

from ot_child import cell, confine
from ot_child.scratch import remove

PACKET = 1 << 16
THREAD_STACK = 1 << 20
# Loaded ahead, in this order, one at a time, whenever no cell is asked for.
COMMON_MODULES = (
    "math collections itertools functools re json datetime time random string textwrap statistics typing dataclasses "
    "enum operator copy base64 hashlib decimal pathlib csv uuid contextlib traceback html urllib.parse asyncio"
).split()  # fmt: skip


@dataclass(frozen=True)
class Options:
    scratch: str
    memory_bytes: int
    file_bytes: int
    cpu_seconds: int
    isolation: str


def main(argv: list[str]) -> None:
    options = Options(**json.loads(argv[1]))
    control = socket.socket(fileno=int(argv[0]))
    os.environ.clear()
    Zygote(control, options).serve()


def confine_zygote(options: Options) -> list[str]:
    """All layers that a process which still forks can bear; cells inherit them."""
    confine.one_malloc_arena()
    threading.stack_size(THREAD_STACK)
    if confine.resource is not None:
        confine.limit_resources(memory_bytes=options.memory_bytes, file_bytes=options.file_bytes)
    if options.isolation == "off":
        return []
    try:
        confine.drop_capabilities()
        confine.landlock(confine.standard_library(), [options.scratch, "/dev/null"])
    except confine.Unavailable:
        return []
    return ["landlock"]


def prepare_cell(options: Options, scratch: str, layers: list[str], keep: tuple[int, ...]) -> list[str]:
    """The last steps, after which this process can only compute, ask the server, and die."""
    os.chdir(scratch)
    _close_all_but(keep)
    confine.limit_processor_time(options.cpu_seconds)
    if options.isolation == "off":
        return layers
    if "landlock" in layers:
        confine.landlock(confine.whole_standard_library(), [scratch, "/dev/null"])
    try:
        confine.seccomp()
    except confine.Unavailable:
        return layers
    return [*layers, "seccomp"]


def _close_all_but(keep: tuple[int, ...]) -> None:
    start = 3
    for descriptor in sorted(keep):
        os.closerange(start, descriptor)
        start = descriptor + 1
    os.closerange(start, 65536)


class Zygote:
    def __init__(self, control: socket.socket, options: Options) -> None:
        self._control, self._options = control, options
        self._cells: dict[int, int] = {}  # pid -> id
        self._layers: list[str] = []
        self._to_load = list(reversed(COMMON_MODULES))

    def serve(self) -> None:
        wakeup = self._watch_children()
        self._layers = confine_zygote(self._options)
        self._tell("started", {"layers": self._layers})
        gc.disable()
        poll = select.poll()
        for descriptor in (self._control.fileno(), wakeup):
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll(0 if self._to_load else None)}
            if not ready:
                self._load_one()
            if wakeup in ready:
                os.read(wakeup, PACKET)
                self._reap()
            if self._control.fileno() in ready and not self._obey():
                break
        self._end()

    def _watch_children(self) -> int:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        return reader

    def _load_one(self) -> None:
        try:
            importlib.import_module(self._to_load.pop())
        except ImportError:
            pass  # a Python without it
        if not self._to_load:
            gc.freeze()

    def _obey(self) -> bool:
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._control, PACKET, 1)
        except ConnectionError:
            return False
        if not packet:
            return False
        message = json.loads(packet)
        if message["method"] == "fork":
            self._fork(message["params"]["id"], descriptors[0])
        else:
            self._kill(message["params"]["id"])
        return True

    def _fork(self, ident: int, descriptor: int) -> None:
        scratch = os.path.join(self._options.scratch, str(ident))  # noqa: PTH118 - pathlib is slow here
        os.mkdir(scratch, 0o700)  # noqa: PTH102 - see above
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_cell(descriptor, scratch, parent)
        os.close(descriptor)
        self._cells[pid] = ident

    def _become_cell(self, descriptor: int, scratch: str, parent: int) -> None:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            confine.die_with_parent(parent)
            layers = prepare_cell(self._options, scratch, self._layers, keep=(descriptor,))
            gc.enable()
            cell.serve(descriptor, descriptor, {"layers": layers})
        finally:
            os._exit(70)

    def _kill(self, ident: int) -> None:
        for pid, cell_id in self._cells.items():
            if cell_id == ident:  # not reaped yet, so the number is still this cell's
                os.killpg(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._gone(self._cells.pop(pid), pid, status)

    def _gone(self, ident: int, pid: int, status: int) -> None:
        """Tell, and take the empty scratch folder away; a full one is left to the server, which has time."""
        if self._options.isolation == "off" or not self._layers:
            _kill_group(pid)
        try:
            os.rmdir(os.path.join(self._options.scratch, str(ident)))  # noqa: PTH106, PTH118 - see above
            littered = False
        except OSError:
            littered = True
        self._tell("gone", {"id": ident, "status": os.waitstatus_to_exitcode(status), "littered": littered})

    def _tell(self, method: str, params: dict[str, Any]) -> None:
        packet = json.dumps({"jsonrpc": "2.0", "method": method, "params": params})
        try:
            self._control.send(packet.encode())
        except OSError:
            self._end()

    def _end(self) -> None:
        for pid in self._cells:
            _kill_group(pid)
        remove(self._options.scratch)
        os._exit(0)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass  # nobody left in it


if __name__ == "__main__":
    main(sys.argv[1:])
