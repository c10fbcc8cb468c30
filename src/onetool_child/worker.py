"""A worker: the process of one extension file, in its own environment.

Calls arrive over a private pipe and run concurrently: functions in threads, coroutines on an event
loop. Printed output goes to the log. The file can use `ot`, or import the same names from
`onetool`. The server has already authorized each call.
"""

from __future__ import annotations

import contextvars
import os
import sys
import threading
import time
from contextlib import suppress
from types import AsyncGeneratorType, CoroutineType, GeneratorType, ModuleType

# A sandboxed worker could not import these modules later.
from onetool_child import arguments, data, interface, media, messages
from onetool_child.errors import (
    Cancelled,
    ConfigError,
    ToolError,
    describe,
    get_message,
    report_error,
    strip_own_frames,
)
from onetool_child.guard import die_with, stand_guard
from onetool_child.interface import ModuleFinder, import_from
from onetool_child.rpc import ConnectionLost
from onetool_child.serving import ServingPeer

TYPE_CHECKING = False  # importing `typing` would double the start-up time of a worker
if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator, Callable, Coroutine
    from pathlib import Path
    from typing import Any

    from onetool_child.json_types import JsonMapping, JsonObject

MAX_ERROR_CHARS = 100_000
NO_CALL_MESSAGE = (
    "ot.call is only available during a call: not at import, and not in a thread that the file"
    " started"
)
CURRENT_CALL: contextvars.ContextVar[int] = contextvars.ContextVar(
    "call"
)  # the call that the running code belongs to


class WorkerProcess:
    def __init__(self, reader: int, writer: int, guard: int) -> None:
        self._guard = (
            guard  # process ID of the guard, the parent of this process; 0 if there is none
        )
        self._peer = ServingPeer(
            reader, writer, data.encode, self._handle_request, self._handle_notification
        )
        self._options: JsonObject = {}
        self._running: dict[int, Callable[[], object]] = {}  # call -> function that cancels it
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting_loop = threading.Lock()
        self._cancelling = threading.Lock()
        self._functions: dict[str, Callable[..., Any]] = {}
        self._directory = ""

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
        finder = ModuleFinder(self._call, self._options["settings"])
        sys.meta_path.append(finder)
        if self._options.get("import"):  # a pack of an installed package
            from importlib import import_module

            self._functions = dict(vars(import_module(self._options["import"])))
            for name, kind in self._options["classes"].items():
                self._functions[name] = interface.make_function(self._functions[kind])
            return
        with open(file, "rb") as stream:  # noqa: PTH123 - importing pathlib is slow
            source = stream.read()
        module = ModuleType(self._options["module"])
        package = (  # for relative imports; no other package has this name
            f"{module.__name__}_package"
        )
        module.__dict__.update(__file__=file, __package__=package, ot=finder.ot)
        sys.modules[module.__name__] = sys.modules[f"{package}.{module.__name__}"] = module
        self._directory = os.path.dirname(file)  # noqa: PTH120 - see above
        import_from(self._directory, package)
        exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - the purpose of a worker
        self._functions = vars(module)
        if self._options.get("runs_tests"):
            from onetool_child.serving import run_tests

            self._functions = {"run_tests": run_tests}

    # --- calls ------------------------------------------------------------------------------------

    def _handle_request(self, request: JsonObject) -> None:
        ident = request["id"]
        params = request["params"]
        if "cancelled" in params:
            self._send_error(ident, Cancelled("cancelled before it started"))
            return
        thread = threading.get_ident()
        context = WorkerContext(self._peer, ident, self._options, params["context"])

        def cancel() -> None:
            """Cancel a call. Python code notices at its next step, blocking C code when it returns."""
            import ctypes

            context.is_cancelled = True
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread), ctypes.py_object(Cancelled)
            )

        self._running[ident] = cancel
        CURRENT_CALL.set(ident)
        try:
            function = self._functions[params["function"]]
            args = {
                **params["args"],
                **dict.fromkeys(arguments.find_context_names(function), context),
            }
            positional, named = arguments.bind(function, args)
            value = function(*positional, **named)
            if isinstance(value, CoroutineType | AsyncGeneratorType):
                self._run_on_loop(
                    context, value if isinstance(value, CoroutineType) else _collect(value, context)
                )
                return
            if isinstance(value, GeneratorType):
                value = list(interface.ItemReporter(context).iterate(value))
            self._send_result(ident, value)
        except BaseException as error:  # noqa: BLE001 - reported to the caller
            self._send_error(ident, error)

    def _send_result(self, ident: int, value: Any) -> None:
        text = data.encode(value, lambda item: self._store_media(ident, item))
        if len(text) > self._options["max_bytes"]:
            raise ToolError(
                f"the result has {len(text)} bytes, the limit is {self._options['max_bytes']}"
            )
        self._finish(ident)
        line = f'{{"jsonrpc":"2.0","id":{ident},"result":{{"value":{text}}}}}'
        if messages.fits(line):
            self._peer.send_line(line)
            return
        for piece in messages.split_text(
            text
        ):  # one at a time: other responses may be sent in between
            self._peer.send_pieces(ident, [piece])
        self._peer.send_line(f'{{"jsonrpc":"2.0","id":{ident},"result":{{"pieces":true}}}}')

    def _store_media(self, ident: int, value: Any) -> JsonObject | None:
        """Send an image, audio or file to the server and return its description, if it is one."""
        content = media.find_media(value, self._options["max_bytes"])
        return None if content is None else media.send_media(self._peer, content, ident)

    def _send_error(self, ident: int, error: BaseException) -> None:
        try:
            self._finish(ident)
        except Cancelled as late:  # cancelled at the last moment, which happens once at most
            error = late
            self._finish(ident)
        if not isinstance(error, ConnectionLost):
            _log_error(error)
            self._peer.send_line(_render_error(ident, error, self._directory))

    def _finish(self, ident: int) -> None:
        """Mark the call as finished, so that it is not cancelled while its response is sent."""
        with self._cancelling:
            self._running.pop(ident, None)

    # --- coroutines -------------------------------------------------------------------------------

    def _run_on_loop(self, context: WorkerContext, coroutine: Coroutine[Any, Any, Any]) -> None:
        import asyncio

        def cancel() -> None:
            context.is_cancelled = True
            future.cancel()

        loop = self._get_loop()
        with self._cancelling:  # it must not finish before it is registered
            future = asyncio.run_coroutine_threadsafe(self._run_coroutine(context, coroutine), loop)
            self._running[context.ident] = cancel

    async def _run_coroutine(
        self, context: WorkerContext, coroutine: Coroutine[Any, Any, Any]
    ) -> None:
        ident = context.ident
        CURRENT_CALL.set(ident)
        try:
            value = await coroutine
            is_stream = isinstance(value, AsyncGeneratorType)
            self._send_result(ident, await _collect(value, context) if is_stream else value)
        except BaseException as error:  # noqa: BLE001 - reported to the caller
            self._send_error(ident, error)

    def _get_loop(self) -> asyncio.AbstractEventLoop:
        import asyncio

        with self._starting_loop:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, daemon=True).start()
            return self._loop

    # --- messages of the server and nested calls --------------------------------------------------

    def _handle_notification(self, method: str, params: JsonObject) -> None:
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
            raise ToolError(NO_CALL_MESSAGE) from None
        return self._peer.request(
            "call", {"within": within, "name": name, "args": args, "kwargs": kwargs}
        )


class WorkerContext(interface.Context):
    """The context of one call, which sends requests and notifications to the server."""

    __slots__ = (
        "_options",
        "_peer",
        "_reported",
        "_working_dir",
        "agent_config",
        "agent_id",
        "budget_guard",
        "correlation_id",
        "ident",
        "is_cancelled",
        "metadata",
        "permissions",
        "sandbox",
        "settings",
    )

    def __init__(
        self, peer: ServingPeer, ident: int, options: JsonMapping, fields: JsonMapping
    ) -> None:
        self._peer = peer
        self.ident = ident
        self._options = options
        self.settings = options["settings"]
        self.agent_id = fields["agent_id"]
        self.agent_config = fields["agent_config"]
        self.permissions = frozenset(fields["permissions"])
        self.sandbox = fields["sandbox"]
        self.budget_guard = None
        self.correlation_id = fields["correlation_id"]
        self.metadata = fields["metadata"]
        self._working_dir = fields["working_dir"]
        self.is_cancelled = False
        self._reported = 0.0  # when progress was reported

    @property
    def working_dir(self) -> Path:
        from pathlib import Path  # slow to import

        return Path(self._working_dir)

    @property
    def cancelled(self) -> bool:
        return self.is_cancelled

    def progress(
        self, done: float | str, total: float | None = None, message: str = ""
    ) -> interface.Done:
        now = time.monotonic()
        if now - self._reported >= interface.PROGRESS_SECONDS or done == total:
            self._reported = now
            text = interface.describe_progress(
                done, total, str(message)[: interface.MAX_PROGRESS_CHARS]
            )
            numbers = (None, None) if isinstance(done, str) else (done, total)
            self._notify(
                "progress",
                message=text[: interface.MAX_PROGRESS_CHARS],
                done=numbers[0],
                total=numbers[1],
            )
        return interface.DONE

    def log(self, message: object, level: str = "info") -> interface.Done:
        self._notify(
            "log",
            message=str(message)[: interface.MAX_LOG_CHARS],
            level=interface.check_level(level),
        )
        return interface.DONE

    def secret(self, name: str) -> str:
        pack = self._options["pack"]
        secrets = self._options["secrets"]
        if name not in secrets:
            hint = (
                f'add `secrets = ["{name}"]` to the file, or {name} to tools.{pack}.secrets in'
                " onetool.yaml"
            )
            raise ConfigError(f"the pack {pack} does not declare the secret {name!r}", hint=hint)
        if secrets[name] is None:
            hint = (
                f"run `onetool secret set {name}`, or add {name} to tools.{pack}.secrets in"
                " onetool.yaml"
            )
            raise ConfigError(f"the secret {name!r} is not set for {pack}", hint=hint)
        return str(secrets[name])

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        return self._request("call", name=name, args=args, kwargs=kwargs)

    def ask(self, message: str, schema: Any = None) -> Any:
        return self._request("ask", message=str(message), schema=interface.check_form(schema))

    def _notify(self, method: str, **params: Any) -> None:
        self._peer.notify(method, {"within": self.ident, **params})

    def _request(self, method: str, **params: Any) -> Any:
        """Send a request and wait for the response. In a coroutine, return an awaitable."""
        params = {"within": self.ident, **params}
        if "asyncio" not in sys.modules or sys.modules["asyncio"]._get_running_loop() is None:  # noqa: SLF001 - public in asyncio
            return self._peer.request(method, params)
        return _run_in_thread(lambda: self._peer.request(method, params))


async def _run_in_thread(function: Callable[[], Any]) -> Any:
    """Run the function in a new thread: nested calls could occupy every thread of a pool."""
    import asyncio

    loop = asyncio.get_running_loop()
    answer = loop.create_future()

    def resolve(value: Any, error: BaseException | None) -> None:
        if answer.done():  # cancelled
            return
        if error is None:
            answer.set_result(value)
        else:
            answer.set_exception(error)

    def run() -> None:
        value = None
        error = None
        try:
            value = function()
        except BaseException as raised:  # noqa: BLE001 - raised where it is awaited
            error = raised
        loop.call_soon_threadsafe(resolve, value, error)

    threading.Thread(target=run, daemon=True).start()
    return await answer


async def _collect(values: AsyncGenerator[Any, None], context: WorkerContext) -> list[Any]:
    return [item async for item in interface.ItemReporter(context).iterate_async(values)]


def _render_error(ident: int, error: BaseException, directory: str) -> str:
    trace = report_error(error, directory)
    with suppress(Exception):  # it may have fields that are not JSON data
        line = _render_error_line(ident, {**describe(error), **({"trace": trace} if trace else {})})
        if messages.fits(line):
            return line
    message = get_message(error)[:MAX_ERROR_CHARS]
    return _render_error_line(
        ident, {"type": ToolError.type, "class": type(error).__name__, "message": message}
    )


def _render_error_line(ident: int, detail: JsonObject) -> str:
    return data.encode(
        {"jsonrpc": "2.0", "id": ident, "error": {"code": -32000, "message": "", "data": detail}}
    )


def _log_error(error: BaseException) -> None:
    """Write the traceback to the log, unless the extension has closed it."""
    import traceback

    with suppress(BaseException):
        traceback.print_exception(type(error), error, strip_own_frames(error.__traceback__))


def _describe_failure(error: BaseException, file: str) -> JsonObject:
    import traceback

    line = error.lineno if isinstance(error, SyntaxError) else None
    for frame in traceback.extract_tb(error.__traceback__):
        line = frame.lineno if frame.filename == file else line
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    message = get_message(error)
    return {
        "class": type(error).__name__,
        "message": message[:MAX_ERROR_CHARS],
        "line": line,
        "missing": missing,
    }


# --- the process ----------------------------------------------------------------------------------


def main() -> None:
    """Run the worker.

    The pipes are descriptors 0 and 1; printed output goes to descriptor 2, the log.
    """
    reader = os.dup(0)
    writer = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    guard = stand_guard(reader) if hasattr(os, "fork") else 0
    if hasattr(
        os, "register_at_fork"
    ):  # a process that a tool forks must not read calls or answer them
        os.register_at_fork(
            after_in_child=lambda: [os.dup2(nothing, pipe) for pipe in (reader, writer)]
        )
    with suppress(ConnectionLost):
        WorkerProcess(reader, writer, guard).serve()


def _confine(sandbox: JsonObject) -> None:
    """Apply the `sandbox:` of the pack; exit if the machine does not support it."""
    from onetool_child.confine import confine_program

    # The directories from which this interpreter imports.
    packages = sorted(
        {os.path.realpath(path) for path in (*sys.path, sys.prefix, sys.base_prefix) if path}
    )
    confine_program([*packages, *sandbox["read"]], sandbox["write"], network=sandbox["network"])
