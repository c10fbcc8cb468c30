"""The server side of a worker: a process that runs an extension file.

Applications may share a worker; what it sends during a call goes to the application of the call. If
the process ends, calls fail with an error that says why. `WorkerBackend` decides when to start a
worker.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from anyio.to_thread import run_sync as run_in_thread

from onetool.errors import Cancelled, CannotAsk, ToolError, ToolTimeout
from onetool.processes.channel import Channel, ChannelClosed, RemoteError
from onetool.processes.process import Process, describe_status
from onetool.processes.supervised import CallInterrupted, SharedProcess
from onetool.sources.extensions.environments import (
    WorkerLaunch,
    environment_error,
)
from onetool.util.context import CANNOT_ASK, Result, ToolContext, Waiting
from onetool.util.deadline import PausableDeadline
from onetool.util.large_data import RawJson
from onetool.util.problem import Location
from onetool_child.interface import LOG_LEVELS, MAX_LOG_CHARS, MAX_PROGRESS_CHARS
from onetool_child.json_types import JsonMapping, JsonObject
from onetool_child.messages import MAX_MESSAGE_BYTES, MEDIA

MAX_UNSENT_BYTES = 64 << 20
MAX_NESTED_CALLS = 10_000  # concurrent calls of a worker, which may lead back to it
SETTLE_SECONDS = 0.01
MAX_SETTLE_SECONDS = 0.5  # for which the next call waits for cancelled ones
STUCK_SECONDS = 2.0  # for a cancelled call to stop
EXIT_SECONDS = 1.0  # to learn the exit status of a lost process
END_SECONDS = 3.0
CallTool = Callable[..., Awaitable[Result]]


@dataclass(frozen=True, slots=True, eq=False)
class WorkerUser:
    """An application that uses a worker."""

    call_tool: CallTool
    log_output: Callable[[str], None]


@dataclass(slots=True)
class _Call:
    user: WorkerUser
    function: str
    context: ToolContext
    timer: "_Timer"
    media: bytearray = field(default_factory=bytearray)  # received so far
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0
    nested: set[asyncio.Future[Any]] = field(
        default_factory=set
    )  # its calls of other tools, and questions
    variables: Context = field(default_factory=copy_context)  # the nesting depth of tool calls


class _Timer(PausableDeadline):
    """A call's timeout."""

    def __init__(self, seconds: float, on_timeout: Callable[[], None], outer: Waiting) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(loop.time() + seconds, self._set, outer)
        self._on_timeout = on_timeout
        self._handle = loop.call_later(seconds, on_timeout)

    def _set(self, when: float) -> None:
        self.cancel()
        if when < math.inf:
            self._handle = asyncio.get_running_loop().call_at(when, self._on_timeout)

    def cancel(self) -> None:
        self._handle.cancel()


class Worker(SharedProcess[WorkerUser]):
    """One worker process and its calls.

    Each of its users calls `start`, and `leave` or `release` afterwards.
    """

    def __init__(self, launch: WorkerLaunch) -> None:
        super().__init__()
        self._launch = launch
        self._channel = Channel(
            self._handle_request,
            self._handle_notification,
            self._handle_piece,
            at_once=MAX_NESTED_CALLS,
            messages=None,
        )
        self._starting: asyncio.Task[None] | None = None
        self._calls: dict[int, _Call] = {}
        self._retired = self._has_ended = False
        self._ending: asyncio.Task[None] | None = None
        self._is_loading = False  # whether Python runs and has started to load the file
        self.is_stuck = False
        self._is_replaced = (
            False  # a new worker gets the next calls, because a cancelled call has not stopped
        )
        self._cancelled: set[int] = set()  # calls that may still be running

    @property
    def is_over(self) -> bool:
        return self._retired or self.is_stuck or self._is_replaced or self._channel.closed.done()

    async def start(self, user: WorkerUser, seconds: float) -> str:
        """Start the process, once for all users, and return its interpreter path.

        Raise if it does not become ready. The user has been added to `users`.
        """
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())
        try:
            async with asyncio.timeout(seconds):
                return str(await asyncio.shield(self._ready))
        except TimeoutError:
            self.is_offered = False
            self._give_up(user)
            raise ToolTimeout(
                f"{self._launch.pack} was not ready within {seconds:g}"
                f" s{self.get_output(user).sentence}"
            ) from None
        except asyncio.CancelledError:
            self._give_up(user)
            raise

    async def _start(self) -> None:
        launch = self._launch
        try:
            self._process = await Process.start(
                launch.command,
                self._channel,
                self._log_output,
                env=launch.variables,
                cwd=launch.start_directory or launch.cwd,
                guarded=True,
            )
        except OSError as error:
            if not self._ready.done():
                self._fail(ToolError(f"cannot start {launch.pack}: {error}"))
            self.kill()
            return
        if self._ending is not None:  # it was killed meanwhile
            self._process.kill()
            return
        self._channel.notify(
            "begin", launch.options
        )  # not as arguments, which other users can read
        self._channel.closed.add_done_callback(lambda _closed: self._on_closed())

    def _give_up(self, user: WorkerUser) -> None:
        """Stop waiting for the start; the last user kills the process."""
        self.users.discard(user)
        if not self.users:
            self.kill()

    def _log_output(self, text: str) -> None:
        if (user := self.users.find_output_owner()) is not None:
            user.log_output(text)

    # --- calls ------------------------------------------------------------------------------------

    async def call(
        self,
        user: WorkerUser,
        function: str,
        args: JsonMapping,
        context: ToolContext,
        seconds: float,
    ) -> Any:
        if self._channel.unsent > MAX_UNSENT_BYTES:
            raise ToolError(f"{self._launch.pack} is not reading its input; retry later")
        try:
            async with self.users.track(user):
                return await self._call(user, function, args, context, seconds)
        except CallInterrupted:
            raise ToolError(
                f"{self._launch.pack}.{function} was cancelled: OneTool is shutting down"
            ) from None

    async def _call(
        self,
        user: WorkerUser,
        function: str,
        args: JsonMapping,
        context: ToolContext,
        seconds: float,
    ) -> Any:
        params = {"function": function, "args": args, "context": context.to_data(self._launch.pack)}
        answer = self._channel.request("call", params)
        call_id = self._channel.last_id
        timer = _Timer(
            seconds, partial(self._time_out, answer, function, seconds), context.client.waiting
        )
        call = self._calls[call_id] = _Call(user, function, context, timer)
        try:
            return _extract_value(await answer, call.pieces)
        except (ToolTimeout, asyncio.CancelledError):
            self._cancel(call_id, call)
            raise
        except RemoteError as error:
            raise error.original from None
        except ChannelClosed as closed:
            raise await self._exit_error(user, function, str(closed)) from None
        finally:
            call.timer.cancel()
            del self._calls[call_id]
            self._end_if_done()

    def _time_out(self, answer: asyncio.Future[Any], function: str, seconds: float) -> None:
        if not answer.done():
            answer.set_exception(
                ToolTimeout(f"{self._launch.pack}.{function} took longer than {seconds:g} s")
            )

    def _cancel(self, call_id: int, call: _Call) -> None:
        """Cancel a call and its nested calls. A worker that does not stop gets no more calls."""
        self._channel.notify("cancel", {"id": call_id})
        self._cancelled.add(call_id)
        for nested in call.nested:
            nested.cancel()

        def check() -> None:
            if self._is_replaced or self._channel.is_unanswered(call_id):
                self.is_stuck = True
                self._end_if_done()

        asyncio.get_running_loop().call_later(STUCK_SECONDS, check)

    async def settle(self) -> None:
        """Wait until every cancelled call has stopped.

        If that takes long, the next call needs a new worker.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + MAX_SETTLE_SECONDS
        while self._cancelled and not self.is_over:
            self._cancelled = {
                call_id for call_id in self._cancelled if self._channel.is_unanswered(call_id)
            }
            if self._cancelled:
                await asyncio.sleep(SETTLE_SECONDS)
                self._is_replaced = loop.time() > deadline

    async def _exit_error(self, user: WorkerUser, function: str, reason: str) -> ToolError:
        """Return the error for a call whose process has ended."""
        assert self._process is not None
        if not reason:
            await asyncio.wait([self._process.ended], timeout=EXIT_SECONDS)
        why = reason or f"its process {self._exit_status()}"
        return ToolError(
            f"{self._launch.pack}.{function} failed: {why}{self.get_output(user).sentence}. The"
            " next call restarts it."
        )

    def _exit_status(self) -> str:
        status = (
            self._process.ended.result() if self._process and self._process.ended.done() else None
        )
        return "is gone" if status is None else f"ended with {describe_status(status)}"

    # --- messages of the worker -------------------------------------------------------------------

    async def _handle_request(self, method: str, params: JsonObject) -> Result:
        call = self._calls.get(params["within"])
        if call is None:
            return Result(ok=False, error=ToolError("the calling tool has already ended"))
        match method:
            case "call":
                name = str(params["name"])
                args = list(params["args"])
                kwargs = dict(params["kwargs"])
                context = call.context
                if (
                    context.can_wait
                ):  # a question about the nested call, or by it, stops the timer of this one too
                    context = context.stop_timers(call.timer.paused)
                work = partial(
                    call.user.call_tool, name, kwargs, context, positional=args, raw=True
                )
                return await _run_nested(call, name, work)
            case "ask":
                ask = partial(_ask, call, str(params["message"]), dict(params["schema"]))
                return await _run_nested(call, "the question", lambda: _as_result(ask()))
            case "media":
                data = bytes(call.media)
                call.media = bytearray()
                return await _as_result(_store_media(data, str(params["mime_type"]), call.context))
        raise ValueError(f"unexpected request {method!r} from a worker")

    def _handle_notification(self, method: str, params: JsonObject) -> None:
        match method:
            case "loading":
                self._is_loading = True
            case "ready" if not self._ready.done():
                self._ready.set_result(str(params["python"]))
            case "failed" if not self._ready.done():
                self._fail(_load_error(self._launch, params))
                self.kill()
            case "progress":
                self._handle_progress(params)
            case "log":
                level = params["level"] if params["level"] in LOG_LEVELS else "info"
                message = str(params["message"])[:MAX_LOG_CHARS]
                if (
                    call := self._calls.get(params["within"])
                ) is not None and call.context.client.log is not None:
                    call.context.client.log(
                        f"{self._launch.pack}.{call.function}: {message}", level
                    )
            case _:
                raise ValueError(f"unexpected message {method!r} from a worker")

    def _handle_progress(self, params: JsonObject) -> None:
        call = self._calls.get(params["within"])
        if call is not None and call.context.client.progress is not None:
            done, total = (_check_number(params[key]) for key in ("done", "total"))
            message = str(params["message"])[:MAX_PROGRESS_CHARS]
            call.context.client.progress(f"{self._launch.pack}: {message}", done, total)

    def _handle_piece(self, kind: str, data: bytes) -> None:
        """Collect a part that belongs to a large result, or to media; `kind` has the call id."""
        call = self._calls.get(int(kind.removeprefix(MEDIA)))
        if call is None:  # it was cancelled
            return
        if kind.startswith(MEDIA):
            call.media += data
            if len(call.media) > self._launch.max_bytes + MAX_MESSAGE_BYTES:
                self._channel.close("it sent media over the size limit")
            return
        call.size += len(data)
        if call.size > self._launch.max_bytes + MAX_MESSAGE_BYTES:
            self._channel.close("it sent a result over the size limit")
        elif data:
            call.pieces.append(data)

    # --- shutdown ---------------------------------------------------------------------------------

    def leave(self, user: WorkerUser) -> None:
        """Make no more calls.

        Those in flight complete; after the last call of the last user, the process ends.
        """
        self.users.discard(user)
        if not self.users:
            self._retire()

    async def release(self, user: WorkerUser) -> None:
        """Stop using the worker and cancel this user's calls. The last user ends the process."""
        self.users.interrupt(user)
        self.leave(user)
        if not self.users.has_others(user):
            await self.close()

    def is_done(self, user: WorkerUser) -> bool:
        """Return whether the worker has ended, or the user has left it to others."""
        is_unused = user not in set(self.users) and not self.users.is_calling(user)
        return self._has_ended or (is_unused and self.users.has_others(user))

    def _retire(self) -> None:
        """Accept no more calls, and end when those in flight are complete."""
        self._retired = True
        self._end_if_done()

    def kill(self) -> None:
        self._channel.close()
        if self._process is not None:
            self._process.kill()
        self._retire()

    async def close(self) -> None:
        """Let the process exit, then kill it and its descendants."""
        await asyncio.shield(self._start_ending())

    def _start_ending(self) -> asyncio.Task[None]:
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end())
            self._channel.close()
        return self._ending

    async def _end(self) -> None:
        if self._starting is not None:
            await asyncio.wait((self._starting,))
        if self._process is not None:
            await self._process.end(END_SECONDS)
        if not self._ready.done():  # only now all output has been read
            self._fail(self._start_error())
        self._has_ended = True

    def _end_if_done(self) -> None:
        if (self._retired or self.is_stuck) and not self._calls:
            self._start_ending()

    def _on_closed(self) -> None:
        if self._channel.closed.result() and self._process is not None:
            self._process.kill()  # the channel was closed because of an error
        if self._ending is None:
            self._retired = True
            self._start_ending()

    def _start_error(self) -> ToolError:
        if self._launch.start.by_uv and not self._is_loading:
            return environment_error(self._launch.file, self._printed.shown)
        return ToolError(
            f"{self._launch.file}: cannot load {self._launch.pack}: "
            f"its process {self._exit_status()} at import{self._printed.sentence}",
            location=Location(str(self._launch.file)),
        )


async def _run_nested(call: _Call, name: str, work: Callable[[], Awaitable[Result]]) -> Result:
    """Run what a call waits for, so that it is cancelled with the call."""
    nested = call.variables.copy().run(lambda: asyncio.ensure_future(work()))
    call.nested.add(nested)
    try:
        return await nested
    except asyncio.CancelledError:  # the worker waits for a response
        return Result(ok=False, error=Cancelled(f"{name} was cancelled with its caller"))
    finally:
        call.nested.discard(nested)


async def _ask(call: _Call, message: str, schema: JsonMapping) -> Any:
    """Ask the person at the client. The call's timeout does not run meanwhile."""
    if call.context.client.ask is None:
        raise CannotAsk(CANNOT_ASK)
    with call.timer.paused():
        return await call.context.client.ask(message, schema)


async def _as_result(work: Awaitable[Any]) -> Result:
    try:
        return Result(ok=True, value=await work)
    except ToolError as error:
        return Result(ok=False, error=error)


async def _store_media(data: bytes, mime_type: str, context: ToolContext) -> str:
    if context.run.store_media is None:
        raise ToolError(
            "cannot store media: the call has no context of OneTool", hint="pass app.context()"
        )
    return await run_in_thread(context.run.store_media, data, mime_type)


def _check_number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return value if is_number else None


def _extract_value(result: Any, pieces: list[bytes]) -> Any:
    """Return the worker's result; a large one, sent in pieces, is not parsed."""
    if not isinstance(result, dict):
        raise ToolError("the worker returned an invalid response")
    return RawJson(pieces) if pieces else result.get("value")


def _load_error(launch: WorkerLaunch, details: JsonMapping) -> ToolError:
    line = int(details.get("line") or 0)
    missing = details.get("missing")
    location = f"{launch.file}{f', line {line}' if line else ''}"
    hint = f'add the package to the header of the file: # dependencies = ["{missing}"]'
    hint = f"install {missing} in the environment of OneTool" if launch.module else hint
    return ToolError(
        f"cannot load {launch.pack}: {details.get('class')}: {details.get('message')} ({location})",
        hint=hint if missing else "",
        location=Location(str(launch.file), line),
        file=str(launch.file),
    )
