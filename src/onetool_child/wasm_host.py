"""The process around WebAssembly sandboxes: each run gets a fresh one, and the process is used
again after a clean end.

The sandbox can crash this process (deep recursion overflows its stack) and write to its descriptors
1 and 2, so it is never the server. Descriptor 1 is the log; descriptor 2 carries the messages of
the run (see `wasm_guest`), which are forwarded as frames. Messages of the server are appended to
files that the sandbox reads.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import struct
import sys
import threading
import time

from onetool_child import confine

TYPE_CHECKING = False  # importing `typing` would slow down the start
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from onetool_child.json_types import JsonObject

READ_BYTES = 1 << 16
TIME_ZONES = "/usr/share/zoneinfo"  # also in the sandbox
FILE_BYTES = 4 << 20  # of answers in one file
MAX_ANSWER_BYTES = 2 * FILE_BYTES  # that a run has not read
POLL_SECONDS = 0.001
MAX_RUNS = 200  # per process
WATCH_SECONDS = 0.05
MAX_REASON_CHARS = 300
# Memory of this process that is not that of the code: the runtime, the sandbox and a few messages.
OVERHEAD_BYTES = 512 << 20
UNLIMITED_MS = 1000 * 86400 * 365
# The sandbox has another version of Python than this process, so it compiles the modules itself.
COMPILE = """
import importlib.util, marshal, os
os.mkdir("/modules/onetool_child")
for name in os.listdir("/source"):
    if name.endswith(".py"):
        with open(f"/source/{name}", encoding="utf-8") as file:
            code = compile(file.read(), f"<onetool_child/{name}>", "exec", dont_inherit=True)
        with open(f"/modules/onetool_child/{name}c", "wb") as file:
            file.write(importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code))
"""
SERVE = """
import sys
sys.path.insert(0, "/modules")
from onetool_child import wasm_guest
await wasm_guest.serve(invoke, {ready!r})
"""
HEADER = struct.Struct(">cI")
MAX_FRAME_BYTES = 1 << 30  # of the server, which the process trusts
MAX_FORWARDED_BYTES = 1 << 16
# The process is prepared for sandboxes; a run begins, and the frame has its scratch directory;
# data; a clean end.
PREPARED = b"P"
BEGIN = b"B"
DATA = b"D"
END = b"E"


class Answers:
    """The at most two files with messages for a run, which deletes what it has read."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._number = self._size = 0
        self._file = self._create()
        self._is_written = threading.Event()
        self.is_over = False  # the run, which no longer reads

    def _create(self) -> int:
        # Fails if the code has created it, or a link with its name.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        return os.open(f"{self._directory}/{self._number}", flags, 0o600)

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left and not self.is_over:
            if self._size == FILE_BYTES:
                self._start_next_file()
            count = os.write(self._file, left[: FILE_BYTES - self._size])
            left = left[count:]
            self._size += count
            self._is_written.set()

    def _start_next_file(self) -> None:
        last = f"{self._directory}/{self._number - 1}"
        while os.path.exists(last) and not self.is_over:  # noqa: PTH110 - pathlib is slow to load
            time.sleep(POLL_SECONDS)
        os.close(self._file)
        self._number += 1
        self._size = 0
        self._file = self._create()

    def wait(self) -> bool:
        return self._is_written.wait()

    def close(self) -> None:
        os.close(self._file)


class SandboxHost:
    def __init__(self, eryx: ModuleType, reader: int, writer: int, options: JsonObject) -> None:
        self._eryx = eryx
        self._reader = reader
        self._writer = writer
        self._memory_bytes = options["memory_bytes"]
        self._file_bytes = options["file_bytes"]
        self._modules = f"{options['scratch']}/modules"
        self._time_zones = find_time_zones()
        self._begun: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._answers: Answers | None = None
        self._lock = threading.Lock()  # of `_answers`

    def serve(self) -> None:
        """Run one sandbox after the other until the server is gone. Never returns."""
        self._compile_modules()
        confine.limit_files(
            max(self._file_bytes, FILE_BYTES)
        )  # not before: pyeryx unpacks larger files
        self._send(encode_frame(PREPARED))
        for work in (self._read, self._watch_memory):
            threading.Thread(target=work, daemon=True).start()
        for count in range(MAX_RUNS):
            self._run(self._begun.get())
            if count + 1 < MAX_RUNS:
                self._send(encode_frame(END))
        os._exit(0)

    def _run(self, scratch: str) -> None:
        files = f"{scratch}/files"
        directory = f"{scratch}/answers"
        for path in (scratch, files, directory):
            os.mkdir(path, 0o700)  # noqa: PTH102 - see above
        answers = Answers(directory)
        with self._lock:
            self._answers = answers
        # Each run has its own pipe: everything it wrote is forwarded before it ends, and nothing
        # later.
        messages, end = os.pipe()
        os.dup2(end, 2)
        os.close(end)
        forwarding = threading.Thread(target=self._forward, args=(messages,), daemon=True)
        forwarding.start()
        params = {"layers": ["wasm"], "pid": os.getpid()}
        ready = json.dumps({"jsonrpc": "2.0", "method": "ready", "params": params})
        volumes = [
            (files, "/tmp", False),  # noqa: S108 - in the sandbox
            (directory, "/answers", False),
        ]
        if self._time_zones:
            volumes.append((self._time_zones, TIME_ZONES, True))
        reason = ""
        try:
            self._execute(SERVE.format(ready=ready), volumes, answers)
        except self._eryx.EryxError as error:
            reason = f"the sandbox ended: {str(error)[-MAX_REASON_CHARS:]}"
        os.dup2(1, 2)  # closes the pipe
        forwarding.join()
        os.close(messages)
        if reason:
            _exit(reason)
        answers.is_over = True  # ends the wait of the thread that holds the lock
        with self._lock:
            self._answers = None
        answers.close()

    def _execute(
        self, code: str, volumes: list[tuple[str, str, bool]], answers: Answers | None = None
    ) -> None:
        limits = self._eryx.ResourceLimits(
            execution_timeout_ms=UNLIMITED_MS,  # the server ends runs
            callback_timeout_ms=UNLIMITED_MS,
            max_memory_bytes=self._memory_bytes,
            max_callback_invocations=1,
        )
        callbacks = [] if answers is None else [{"name": "wait", "fn": answers.wait}]
        is_read_only = answers is not None
        volumes = [*volumes, (self._modules, "/modules", is_read_only)]
        self._eryx.Sandbox(resource_limits=limits, callbacks=callbacks, volumes=volumes).execute(
            code
        )

    def _compile_modules(self) -> None:
        """Compile the modules of the sandbox, unless another process of the server has done it."""
        if os.path.exists(self._modules):  # noqa: PTH110 - see above
            return
        finished = self._modules
        self._modules = f"{self._modules}-{os.getpid()}"
        os.mkdir(self._modules, 0o700)  # noqa: PTH102 - see above
        source = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - see above
        self._execute(COMPILE, [(source, "/source", True)])
        try:
            os.rename(self._modules, finished)  # noqa: PTH104 - see above
        except OSError:
            return  # another process was faster; this one keeps its own
        self._modules = finished

    def _read(self) -> None:
        """Read the messages of the server. Without a server, exit."""
        frames = FrameReader(self._handle_frame)
        try:
            while chunk := os.read(self._reader, READ_BYTES):
                frames.feed(chunk)
        except OSError as error:  # the code has filled the disk, or has created the file
            _exit(f"cannot pass a message to the sandbox: {error}")
        os._exit(0)

    def _handle_frame(self, kind: bytes, content: bytes) -> None:
        if kind == BEGIN:
            self._begun.put(content.decode())
            return
        with self._lock:
            if self._answers is not None:
                self._answers.write(content)

    def _forward(self, messages: int) -> None:
        while chunk := os.read(messages, MAX_FORWARDED_BYTES):
            self._send(encode_frame(DATA, chunk))

    def _send(self, frame: bytes) -> None:
        left = memoryview(frame)
        try:
            while left:
                left = left[os.write(self._writer, left) :]
        except OSError:  # the server is gone
            os._exit(0)

    def _watch_memory(self) -> None:
        """Exit if the process uses too much memory, which sandboxes do not limit for host calls."""
        while True:
            time.sleep(WATCH_SECONDS)
            if read_peak_memory() > self._memory_bytes + OVERHEAD_BYTES:
                _exit("the run used too much memory outside of its sandbox")


def find_time_zones() -> str | None:
    """Return the directory of the time zones of this machine, or of the package `tzdata`."""
    if os.path.isdir(TIME_ZONES):  # noqa: PTH112 - see above
        return TIME_ZONES
    try:
        package = importlib.import_module("tzdata")
    except ImportError:
        return None
    return f"{package.__path__[0]}/zoneinfo"


def read_peak_memory() -> int:
    """Return the largest amount of memory that this process has used, in bytes."""
    if sys.platform == "win32":
        return _read_peak_memory_of_windows()
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:  # noqa: PTH123 - see above
            return int(status.read().partition("VmHWM:")[2].split()[0]) * 1024
    except OSError:  # on macOS. On Linux, `getrusage` would count the memory of the parent, too.
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _read_peak_memory_of_windows() -> int:
    import ctypes

    class Counters(ctypes.Structure):
        _fields_ = (
            ("size", ctypes.c_uint32),
            ("page_faults", ctypes.c_uint32),
            *(
                (name, ctypes.c_size_t)
                for name in ("peak", "used", "b", "c", "d", "e", "page_file", "peak_page_file")
            ),
        )

    counters = Counters(size=ctypes.sizeof(Counters))
    windows = vars(ctypes)["windll"].kernel32
    windows.GetCurrentProcess.restype = ctypes.c_void_p
    process = ctypes.c_void_p(windows.GetCurrentProcess())
    windows.K32GetProcessMemoryInfo(process, ctypes.byref(counters), counters.size)
    return int(counters.peak)


def _exit(reason: str) -> None:
    os.write(1, f"{reason}\n".encode(errors="replace"))
    os._exit(1)


def main(argv: list[str]) -> None:
    """Start the process.

    Descriptors 0 and 1 are pipes; the arguments are options and the directory of the extra.
    """
    confine.die_with_parent(os.getppid())
    options = json.loads(argv[0])
    reader = os.dup(0)
    writer = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)
    sys.stderr = os.fdopen(1, "w", closefd=False)
    sys.path.append(argv[1])
    host = SandboxHost(importlib.import_module("eryx"), reader, writer, options)
    sys.path.pop()
    host.serve()


# --- frames ---------------------------------------------------------------------------------------


def encode_frame(kind: bytes, data: bytes = b"") -> bytes:
    return HEADER.pack(kind, len(data)) + data


class FrameReader:
    """Split a stream of bytes into frames. Raise ValueError if one is too large."""

    def __init__(
        self, on_frame: Callable[[bytes, bytes], None], max_bytes: int = MAX_FRAME_BYTES
    ) -> None:
        self._on_frame = on_frame
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            kind, size = HEADER.unpack_from(self._buffer)
            if size > self._max_bytes:
                raise ValueError(f"a frame has {size} bytes")
            end = HEADER.size + size
            if len(self._buffer) < end:
                return
            content = bytes(self._buffer[HEADER.size : end])
            del self._buffer[:end]
            self._on_frame(kind, content)
