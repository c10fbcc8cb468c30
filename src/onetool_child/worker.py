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
from onetool_child.serving import ServingPeer

TYPE_CHECKING = False  # importing `typing` would double the start-up time of a worker
if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator, Callable, Coroutine
    from typing import Any

PROGRAM_PATHS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc/self", "/sys/devices/system/cpu")
DEVICE_PATHS = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
MAX_ERROR_CHARS = 100_000
NO_CALL_MESSAGE = "ot.call is only available during a call: not at import, and not in a thread that the file started"
CURRENT_CALL: contextvars.ContextVar[int] = contextvars.ContextVar("call")  # the call that the running code belongs to


class WorkerProcess:
    def __init__(self, reader: int, writer: int, guard: int) -> None:
        self._guard = guard  # process ID of the guard, the parent of this process; 0 if there is none
        self._peer = ServingPeer(reader, writer, data.encode, self._handle_request, self._handle_notification)
        self._options: dict[str, Any] = {}
        self._running: dict[int, Callable[[], object]] = {}  # call -> function that cancels it
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting_loop, self._cancelling = threading.Lock(), threading.Lock()
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
        except BaseException as error:  # noqa: BLE001 - a file may raise anything
            self._peer.notify("failed", _describe_failure(error, self._options["file"]))
            return
        self._peer.notify("ready", {"python": sys.executable})
        self._peer.serve(lambda: die_with(self._guard) if self._guard else None)

    def _load(self) -> None:
        file = self._options["file"]
        sys.argv = [file]
        with open(file, "rb") as stream:  # noqa: PTH123 - importing pathlib is slow
            source = stream.read()
        module = ModuleType(self._options["module"])
        module.__dict__.update(__file__=file, ot=_make_ot_module(self._call, self._options["settings"]))
        sys.modules[module.__name__] = module
        _import_from(os.path.dirname(file))  # noqa: PTH120 - see above
        exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - the purpose of a worker
        self._functions = vars(module)

    # --- calls --------------------------------------------------------------------------------------------------

    def _handle_request(self, request: dict[str, Any]) -> None:
        ident, params = request["id"], request["params"]
        if "cancelled" in params:
            self._send_error(ident, errors.Cancelled("cancelled before it started"))
            return
        thread = threading.get_ident()

        def cancel() -> None:
            """Cancel a call. Python code notices at its next step, blocking C code when it returns."""
            import ctypes

            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(errors.Cancelled))

        self._running[ident] = cancel
        CURRENT_CALL.set(ident)
        try:
            function = self._functions[params["function"]]
            positional, named = arguments.bind(function, params["args"])
            value = function(*positional, **named)
            if isinstance(value, CoroutineType | AsyncGeneratorType):
                self._run_on_loop(ident, value if isinstance(value, CoroutineType) else _collect(value))
                return
            self._send_result(ident, value)
        except BaseException as error:  # noqa: BLE001 - reported to the caller
            self._send_error(ident, error)

    def _send_result(self, ident: int, value: Any) -> None:
        text = data.encode(value)
        if len(text) > self._options["max_bytes"]:
            raise errors.ToolError(f"the result has {len(text)} bytes, the limit is {self._options['max_bytes']}")
        self._finish(ident)
        line = f'{{"jsonrpc":"2.0","id":{ident},"result":{{"value":{text}}}}}'
        if messages.fits(line):
            self._peer.send_line(line)
            return
        for piece in messages.split_text(text):  # one at a time: other responses may be sent in between
            self._peer.send_pieces(ident, [piece])
        self._peer.send_line(f'{{"jsonrpc":"2.0","id":{ident},"result":{{"pieces":true}}}}')

    def _send_error(self, ident: int, error: BaseException) -> None:
        try:
            self._finish(ident)
        except errors.Cancelled as late:  # cancelled at the last moment, which happens once at most
            error = late
            self._finish(ident)
        if not isinstance(error, ConnectionLost):
            _log_error(error)
            self._peer.send_line(_render_error(ident, error))

    def _finish(self, ident: int) -> None:
        """Mark the call as finished, so that it is not cancelled while its response is sent."""
        with self._cancelling:
            self._running.pop(ident, None)

    # --- coroutines -----------------------------------------------------------------------------------------------

    def _run_on_loop(self, ident: int, coroutine: Coroutine[Any, Any, Any]) -> None:
        import asyncio

        loop = self._get_loop()
        with self._cancelling:  # it must not finish before it is registered
            future = asyncio.run_coroutine_threadsafe(self._run_coroutine(ident, coroutine), loop)
            self._running[ident] = future.cancel

    async def _run_coroutine(self, ident: int, coroutine: Coroutine[Any, Any, Any]) -> None:
        CURRENT_CALL.set(ident)
        try:
            value = await coroutine
            self._send_result(ident, await _collect(value) if isinstance(value, AsyncGeneratorType) else value)
        except BaseException as error:  # noqa: BLE001 - reported to the caller
            self._send_error(ident, error)

    def _get_loop(self) -> asyncio.AbstractEventLoop:
        import asyncio

        with self._starting_loop:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, daemon=True).start()
            return self._loop

    # --- messages of the server and nested calls ------------------------------------------------------------------

    def _handle_notification(self, method: str, params: dict[str, Any]) -> None:
        if method != "cancel":
            return
        with self._cancelling:
            cancel = self._running.get(params["id"])
            if cancel is not None:
                cancel()
            else:
                self._peer.cancel_queued(params["id"])

    def _call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call another tool with the permissions of the current call (`ot.call`)."""
        try:
            within = CURRENT_CALL.get()
        except LookupError:
            raise errors.ToolError(NO_CALL_MESSAGE) from None
        return self._peer.request("call", {"within": within, "name": name, "args": args, "kwargs": kwargs})


async def _collect(values: AsyncGenerator[Any, None]) -> list[Any]:
    return [value async for value in values]


def _render_error(ident: int, error: BaseException) -> str:
    with contextlib.suppress(Exception):  # it may have fields that are not JSON data
        line = _render_error_line(ident, errors.describe(error))
        if messages.fits(line):
            return line
    message = errors.get_message(error)[:MAX_ERROR_CHARS]
    return _render_error_line(ident, {"type": errors.ToolError.type, "class": type(error).__name__, "message": message})


def _render_error_line(ident: int, detail: dict[str, Any]) -> str:
    return data.encode({"jsonrpc": "2.0", "id": ident, "error": {"code": -32000, "message": "", "data": detail}})


def _log_error(error: BaseException) -> None:
    """Write the traceback to the log, unless the extension has closed it."""
    import traceback

    with contextlib.suppress(BaseException):
        traceback.print_exception(error)


def _import_from(directory: str) -> None:
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
    finder = machinery.FileFinder(directory, extensions, (Source, machinery.SOURCE_SUFFIXES))
    sys.path.insert(0, directory)
    sys.path_importer_cache[directory] = finder


def _make_ot_module(call: Callable[..., Any], settings: dict[str, Any]) -> ModuleType:
    """Return the module `ot` for the extension file, predefined and importable."""
    module = ModuleType("ot", "The interface of OneTool for extension files.")
    vars(module).update(call=call, settings=settings, tool=_tool, **errors.TREE)
    sys.modules["ot"] = module
    return module


def _tool(*args: Any, **_options: Any) -> Any:
    """Return the function unchanged: `@tool` only matters to the server, which parses the file."""
    return args[0] if args and callable(args[0]) else lambda function: function


def _describe_failure(error: BaseException, file: str) -> dict[str, Any]:
    import traceback

    line = error.lineno if isinstance(error, SyntaxError) else None
    for frame in traceback.extract_tb(error.__traceback__):
        line = frame.lineno if frame.filename == file else line
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    message = errors.get_message(error)
    return {"class": type(error).__name__, "message": message[:MAX_ERROR_CHARS], "line": line, "missing": missing}


# --- the process ----------------------------------------------------------------------------------------------------


def main() -> None:
    """Run the worker. The pipes are descriptors 0 and 1; printed output goes to descriptor 2, the log."""
    reader, writer = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    guard = stand_guard(reader) if hasattr(os, "fork") else 0
    if hasattr(os, "register_at_fork"):  # a process that a tool forks must not read calls or answer them
        os.register_at_fork(after_in_child=lambda: [os.dup2(nothing, pipe) for pipe in (reader, writer)])
    with contextlib.suppress(ConnectionLost):
        WorkerProcess(reader, writer, guard).serve()


def _confine(sandbox: dict[str, Any]) -> None:
    """Apply the `sandbox:` of the pack; exit if the machine does not support it."""
    import platform

    from onetool_child import confine, syscalls

    try:
        confine.drop_capabilities()
        # The directories from which this interpreter imports.
        packages = sorted({os.path.realpath(path) for path in (*sys.path, sys.prefix, sys.base_prefix) if path})
        readable = [*PROGRAM_PATHS, *packages, *sandbox["read"]]
        writable = [*sandbox["write"], *DEVICE_PATHS]
        confine.landlock(readable, writable, programs=True, network=sandbox["network"])
        confine.Filter(syscalls.extension_filter(platform.machine(), network=sandbox["network"])).install()
    except confine.Unavailable as error:
        raise SystemExit(f"this machine does not support the sandbox: {error}") from None
