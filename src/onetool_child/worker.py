"""A worker: the process of one extension file, in its own environment.

Calls arrive over a private pipe and run concurrently: functions in threads, coroutines on an event loop. Printed output
goes to the log. The file can use `ot`: its settings, and `ot.call` for other tools. The server has already authorized
each call.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
import threading
from types import AsyncGeneratorType, CoroutineType, ModuleType

from onetool_child import arguments, data, errors, messages
from onetool_child.guard import die_with, stand_guard
from onetool_child.rpc import ConnectionLost
from onetool_child.serving import Serving

TYPE_CHECKING = False  # importing `typing` would double the start-up time of a worker
if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator, Callable, Coroutine
    from typing import Any

PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc/self", "/sys/devices/system/cpu")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
MAX_ERROR = 100_000  # characters of an error message
NO_CALL = "ot.call works inside of a call only: not at import, not in a thread of one's own"
CURRENT: contextvars.ContextVar[int] = contextvars.ContextVar("call")  # which call the code that runs belongs to


class Worker:
    def __init__(self, reader: int, writer: int, guard: int) -> None:
        self._guard = guard  # the process above this one, 0 where there is none
        self._peer = Serving(reader, writer, data.encode, self._answer, self._notice)
        self._options: dict[str, Any] = {}
        self._running: dict[int, Callable[[], object]] = {}  # call -> how to cancel it
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting, self._cancelling = threading.Lock(), threading.Lock()
        self._functions: dict[str, Callable[..., Any]] = {}

    def serve(self) -> None:
        self._options = self._peer.receive()["params"]
        self._peer.notify("loading", {})
        for name in self._options["hidden"]:
            os.environ.pop(name, None)
        if self._options["sandbox"] is not None:
            _confine(self._options["sandbox"])
        try:
            self._load()
        except BaseException as error:  # noqa: BLE001 - whatever the file raised is why there is no pack
            self._peer.notify("failed", _failure(error, self._options["file"]))
            return
        self._peer.notify("ready", {"python": sys.executable})
        self._peer.serve(lambda: die_with(self._guard) if self._guard else None)

    def _load(self) -> None:
        file = self._options["file"]
        sys.argv = [file]
        with open(file, "rb") as opened:  # noqa: PTH123 - pathlib may be slower than the whole file
            source = opened.read()
        module = ModuleType(self._options["module"])
        module.__dict__.update(__file__=file, ot=_offered(self._call, self._options["settings"]))
        sys.modules[module.__name__] = module
        _import_from(os.path.dirname(file))  # noqa: PTH120 - see above
        exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - it is what we are for
        self._functions = vars(module)

    # --- calls --------------------------------------------------------------------------------------------------

    def _answer(self, request: dict[str, Any]) -> None:
        ident, params = request["id"], request["params"]
        if "withdrawn" in params:
            self._failed(ident, errors.Cancelled("cancelled before it began"))
            return
        thread = threading.get_ident()

        def cancel() -> None:
            """Cancel a call. Python code notices at its next step, blocking C code when it returns."""
            import ctypes

            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(errors.Cancelled))

        self._running[ident] = cancel
        CURRENT.set(ident)
        try:
            function = self._functions[params["function"]]
            positional, named = arguments.bound(function, params["args"])
            value = function(*positional, **named)
            if isinstance(value, CoroutineType | AsyncGeneratorType):
                self._on_loop(ident, value if isinstance(value, CoroutineType) else _collected(value))
                return
            self._done(ident, value)
        except BaseException as error:  # noqa: BLE001 - the caller's business
            self._failed(ident, error)

    def _done(self, ident: int, value: Any) -> None:
        text = data.encode(value)
        if len(text) > self._options["max_bytes"]:
            raise errors.ToolError(f"the result has {len(text)} bytes, the limit is {self._options['max_bytes']}")
        self._is_over(ident)
        line = f'{{"jsonrpc":"2.0","id":{ident},"result":{{"value":{text}}}}}'
        if messages.fits(line):
            self._peer.send_line(line)
            return
        for piece in messages.split_text(text):  # one at a time: other answers may be sent in between
            self._peer.send_pieces(ident, [piece])
        self._peer.send_line(f'{{"jsonrpc":"2.0","id":{ident},"result":{{"pieces":true}}}}')

    def _failed(self, ident: int, error: BaseException) -> None:
        try:
            self._is_over(ident)
        except errors.Cancelled as late:  # thrown at the last moment; it cannot come twice
            error = late
            self._is_over(ident)
        if not isinstance(error, ConnectionLost):
            _show(error)
            self._peer.send_line(_error(ident, error))

    def _is_over(self, ident: int) -> None:
        """Mark the call as finished, so that it is not cancelled while its answer is sent."""
        with self._cancelling:
            self._running.pop(ident, None)

    # --- coroutines -----------------------------------------------------------------------------------------------

    def _on_loop(self, ident: int, coroutine: Coroutine[Any, Any, Any]) -> None:
        import asyncio

        loop = self._the_loop()
        with self._cancelling:  # it cannot be over before it is known how to cancel it
            future = asyncio.run_coroutine_threadsafe(self._awaited(ident, coroutine), loop)
            self._running[ident] = future.cancel

    async def _awaited(self, ident: int, coroutine: Coroutine[Any, Any, Any]) -> None:
        CURRENT.set(ident)
        try:
            value = await coroutine
            self._done(ident, await _collected(value) if isinstance(value, AsyncGeneratorType) else value)
        except BaseException as error:  # noqa: BLE001 - see above
            self._failed(ident, error)

    def _the_loop(self) -> asyncio.AbstractEventLoop:
        import asyncio

        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, daemon=True).start()
            return self._loop

    # --- the other direction --------------------------------------------------------------------------------------

    def _notice(self, method: str, params: dict[str, Any]) -> None:
        if method != "cancel":
            return
        with self._cancelling:
            cancel = self._running.get(params["id"])
            if cancel is not None:
                cancel()
            else:
                self._peer.withdraw(params["id"])

    def _call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call another tool with the permissions of the current call (`ot.call`)."""
        try:
            within = CURRENT.get()
        except LookupError:
            raise errors.ToolError(NO_CALL) from None
        return self._peer.request("call", {"within": within, "name": name, "args": args, "kwargs": kwargs})


async def _collected(values: AsyncGenerator[Any, None]) -> list[Any]:
    return [value async for value in values]


def _error(ident: int, error: BaseException) -> str:
    with contextlib.suppress(Exception):  # it may have fields that are no data
        line = _error_line(ident, errors.describe(error))
        if messages.fits(line):
            return line
    message = errors.message_of(error)[:MAX_ERROR]
    return _error_line(ident, {"type": errors.ToolError.type, "class": type(error).__name__, "message": message})


def _error_line(ident: int, detail: dict[str, Any]) -> str:
    return data.encode({"jsonrpc": "2.0", "id": ident, "error": {"code": -32000, "message": "", "data": detail}})


def _show(error: BaseException) -> None:
    """Write to the log, unless the code of the tools has closed it."""
    import traceback

    with contextlib.suppress(BaseException):
        traceback.print_exception(error)


def _import_from(folder: str) -> None:
    """Import modules next to the file from source.

    The bytecode cache identifies a module by its size and modification second, so it would miss an edit in the same
    second.
    """
    from importlib import machinery

    class Source(machinery.SourceFileLoader):
        def get_code(self, fullname: str) -> Any:
            path = self.get_filename(fullname)
            return self.source_to_code(self.get_data(path), path)

    extensions = (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES)
    finder = machinery.FileFinder(folder, extensions, (Source, machinery.SOURCE_SUFFIXES))
    sys.path.insert(0, folder)
    sys.path_importer_cache[folder] = finder


def _offered(call: Callable[..., Any], settings: dict[str, Any]) -> ModuleType:
    """Return the module `ot` for the extension file, predefined and importable."""
    offered = ModuleType("ot", "What OneTool offers to an extension file.")
    vars(offered).update(call=call, settings=settings, tool=_tool, **errors.TREE)
    sys.modules["ot"] = offered
    return offered


def _tool(*given: Any, **_options: Any) -> Any:
    """Return the function unchanged: `@tool` only matters to the server, which parses the file."""
    return given[0] if given and callable(given[0]) else lambda function: function


def _failure(error: BaseException, file: str) -> dict[str, Any]:
    import traceback

    line = error.lineno if isinstance(error, SyntaxError) else None
    for frame in traceback.extract_tb(error.__traceback__):
        line = frame.lineno if frame.filename == file else line
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    message = errors.message_of(error)
    return {"class": type(error).__name__, "message": message[:MAX_ERROR], "line": line, "missing": missing}


# --- the process ----------------------------------------------------------------------------------------------------


def main() -> None:
    """Run the worker. The pipes are descriptors 0 and 1; printed output goes to descriptor 2, the log."""
    reader, writer = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    guard = stand_guard(reader) if hasattr(os, "fork") else 0
    if hasattr(os, "register_at_fork"):  # what a tool forks is no worker: it neither reads calls nor answers them
        os.register_at_fork(after_in_child=lambda: [os.dup2(nothing, pipe) for pipe in (reader, writer)])
    with contextlib.suppress(ConnectionLost):
        Worker(reader, writer, guard).serve()


def _confine(sandbox: dict[str, Any]) -> None:
    """Apply the `sandbox:` of the pack; exit if the machine does not support it."""
    import platform

    from onetool_child import confine, syscalls

    try:
        confine.drop_capabilities()
        # Where this interpreter keeps its packages.
        packages = sorted({os.path.realpath(path) for path in (*sys.path, sys.prefix, sys.base_prefix) if path})
        readable = [*PROGRAMS, *packages, *sandbox["read"]]
        writable = [*sandbox["write"], *DEVICES]
        confine.landlock(readable, writable, programs=True, network=sandbox["network"])
        confine.Filter(syscalls.fence_filter(platform.machine(), network=sandbox["network"])).install()
    except confine.Unavailable as error:
        raise SystemExit(f"this machine does not support its sandbox: {error}") from None
