"""One worker as the server sees it: a process that has loaded an extension file, from its start to its end.

It fails calls with words that say what became of the process. When to start one, and which one a call goes to, is
decided in `pack`.
"""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import onetool_child
from onetool._tool import Result
from onetool.children.channel import Channel, ChannelClosed, RemoteError
from onetool.children.process import Process
from onetool.context import ToolContext
from onetool.errors import Cancelled, ToolError, ToolTimeout
from onetool.extensions.environments import BOOT, Start, environment_error
from onetool.problem import Location
from onetool.util.raw_json import RawJson
from onetool_child.guard import SIGNALLED
from onetool_child.messages import MAX_MESSAGE_BYTES

MOST_UNREAD = 64 << 20
MOST_NESTED = 10_000  # calls of a worker at a time, which may lead back to it
SETTLE_SECONDS = 0.01
STUCK_SECONDS = 2.0  # for a call that was cancelled to give up
LAST_WORDS_SECONDS = 1.0  # for a process that is gone to be gone altogether
END_SECONDS = 3.0
SWITCHES = {"PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}
CallTool = Callable[..., Awaitable[Result]]


@dataclass(frozen=True, slots=True)
class Launch:
    """All that a worker is started with."""

    pack: str
    file: Path
    start: Start
    environment: Mapping[str, str]
    settings: Mapping[str, Any]
    cwd: Path
    start_in: Path | None = None  # where the process starts before it changes to `cwd`: uv reads files there
    sandbox: Mapping[str, Any] | None = None
    hidden: tuple[str, ...] = ()  # variables of the environment that are for uv and not for the tools
    max_bytes: int = 104_857_600
    remember: Callable[[str], Awaitable[None]] | None = None  # to be told where Python was found

    @property
    def command(self) -> list[str]:
        """Ours is on the path only while it is loaded; the current folder never is."""
        home = str(Path(onetool_child.__file__).parent.parent)
        if self.start.by_uv:
            return [*self.start.command, home, str(self.cwd)]
        return [*self.start.command, "-P", "-c", BOOT, home, str(self.cwd)]

    @property
    def variables(self) -> dict[str, str]:
        """What is printed comes at once and in UTF-8; the worker takes these words out again."""
        return {**self.environment, **SWITCHES}

    @property
    def options(self) -> dict[str, Any]:
        return {
            "file": str(self.file),
            "module": self.file.stem,
            "settings": dict(self.settings),
            "sandbox": self.sandbox,
            "hidden": [*self.hidden, *SWITCHES],
            "max_bytes": self.max_bytes,
        }


@dataclass(slots=True)
class _Call:
    context: ToolContext
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0
    nested: set[asyncio.Future[Result]] = field(default_factory=set)  # what it has called itself
    variables: Context = field(default_factory=copy_context)  # how deep it is in calls of tools by tools


class Worker:
    def __init__(
        self,
        launch: Launch,
        call_tool: CallTool,
        on_printed: Callable[[str], None],
        on_end: Callable[["Worker"], None],
    ) -> None:
        self._launch, self._call_tool, self._on_printed, self._on_end = launch, call_tool, on_printed, on_end
        self._channel = Channel(self._request, self._notice, self._piece, at_once=MOST_NESTED, messages=None)
        self._process: Process | None = None
        self._ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._calls: dict[int, _Call] = {}
        self._retired = False
        self._ending: asyncio.Task[None] | None = None
        self._is_loading = False  # whether there is a Python, and it has begun with the file
        self.is_stuck = False
        self._cancelled: set[int] = set()  # calls of which nobody knows yet whether they have given up

    @property
    def is_over(self) -> bool:
        return self._retired or self.is_stuck or self._channel.closed.done()

    @property
    def in_flight(self) -> int:
        return len(self._calls)

    async def start(self, seconds: float) -> str:
        """The path of its Python. Raises what kept it from being ready."""
        launch = self._launch
        try:
            self._process = await Process.start(
                launch.command,
                self._channel,
                self._on_printed,
                env=launch.variables,
                cwd=launch.start_in or launch.cwd,
                guarded=True,
            )
        except OSError as error:
            raise ToolError(f"{launch.pack} could not be started: {error}") from None
        self._channel.notify("begin", launch.options)  # not as arguments, which anybody on the machine can read
        self._channel.closed.add_done_callback(lambda _closed: self._lost())
        try:
            async with asyncio.timeout(seconds):
                return await self._ready
        except TimeoutError:
            self.kill()
            raise ToolTimeout(f"{launch.pack} was not ready within {seconds:g} s{self._last_words()}") from None
        except asyncio.CancelledError:
            self.kill()
            raise

    # --- calls --------------------------------------------------------------------------------------------------

    async def call(self, function: str, args: Mapping[str, Any], context: ToolContext, seconds: float) -> Any:
        if self._channel.unsent > MOST_UNREAD:
            raise ToolError(f"{self._launch.pack} does not read what it is sent; try again later")
        if self._process is not None and not self._calls:
            self._process.printed.clear()
        loop, answer = asyncio.get_running_loop(), self._channel.request("call", {"function": function, "args": args})
        ident = self._channel.last_id
        call = self._calls[ident] = _Call(context)
        timer = loop.call_later(seconds, self._too_late, answer, function, seconds)
        try:
            return _value(await answer, call.pieces)
        except (ToolTimeout, asyncio.CancelledError):
            self._cancel(ident, call)
            raise
        except RemoteError as error:
            raise error.original from None
        except ChannelClosed as closed:
            raise await self._autopsy(function, str(closed)) from None
        finally:
            timer.cancel()
            del self._calls[ident]
            self._end_if_done()

    def _too_late(self, answer: asyncio.Future[Any], function: str, seconds: float) -> None:
        if not answer.done():
            answer.set_exception(ToolTimeout(f"{self._launch.pack}.{function} took longer than {seconds:g} s"))

    def _cancel(self, ident: int, call: _Call) -> None:
        """Tell the worker, and what it waits for; one that goes on regardless gets no more calls."""
        self._channel.notify("cancel", {"id": ident})
        self._cancelled.add(ident)
        for nested in call.nested:
            nested.cancel()

        def look() -> None:
            if self._channel.is_owed(ident):
                self.is_stuck = True
                self._end_if_done()

        asyncio.get_running_loop().call_later(STUCK_SECONDS, look)

    async def settle(self) -> None:
        """Wait until every cancelled call has given up, or the worker is known to be stuck."""
        while self._cancelled and not self.is_over:
            self._cancelled = {ident for ident in self._cancelled if self._channel.is_owed(ident)}
            if self._cancelled:
                await asyncio.sleep(SETTLE_SECONDS)

    async def _autopsy(self, function: str, reason: str) -> ToolError:
        """Why it is gone, from the process itself where it has said so."""
        assert self._process is not None
        if not reason:
            await asyncio.wait([self._process.ended], timeout=LAST_WORDS_SECONDS)
        why = reason or f"its process {self._fate()}"
        return ToolError(
            f"{self._launch.pack}.{function} got no answer: {why}{self._last_words()}. The next call starts it anew."
        )

    def _fate(self) -> str:
        status = self._process.ended.result() if self._process and self._process.ended.done() else None
        return "is gone" if status is None else f"ended with {_named(status)}"

    def _last_words(self) -> str:
        return self._process.printed.sentence if self._process else ""

    # --- what the worker says -----------------------------------------------------------------------------------------

    async def _request(self, method: str, params: dict[str, Any]) -> Result:
        call = self._calls.get(params["within"])
        if method != "call" or call is None:
            return Result(ok=False, error=ToolError("the call that this belongs to has ended"))
        name, args, kwargs = str(params["name"]), list(params["args"]), dict(params["kwargs"])
        asked = partial(self._call_tool, name, kwargs, call.context, positional=args, raw=True)
        nested = call.variables.copy().run(lambda: asyncio.ensure_future(asked()))
        call.nested.add(nested)
        try:
            return await nested
        except asyncio.CancelledError:  # the worker must have an answer: it waits for one
            return Result(ok=False, error=Cancelled(f"{name} was cancelled, as was what called it"))
        finally:
            call.nested.discard(nested)

    def _notice(self, method: str, params: dict[str, Any]) -> None:
        match method:
            case "loading":
                self._is_loading = True
            case "ready" if not self._ready.done():
                self._ready.set_result(str(params["python"]))
            case "failed" if not self._ready.done():
                self._ready.set_exception(_cannot_be_loaded(self._launch, params))
                self.kill()
            case _:
                raise ValueError(f"a worker does not send {method!r}")

    def _piece(self, kind: str, data: bytes) -> None:
        """Take a part of a large result, by the id of its call."""
        call = self._calls.get(int(kind))
        if call is None:  # it was cancelled
            return
        call.size += len(data)
        if call.size > self._launch.max_bytes + MAX_MESSAGE_BYTES:
            self._channel.close("it sent more than a result may have")
        elif data:
            call.pieces.append(data)

    # --- its end ------------------------------------------------------------------------------------------------

    def retire(self) -> None:
        """No more calls; it ends when those in flight have their answers."""
        self._retired = True
        self._end_if_done()

    def kill(self) -> None:
        self._channel.close()
        if self._process is not None:
            self._process.kill()
        self.retire()

    async def end(self) -> None:
        """Let it leave by itself, then make sure that nothing of it is left."""
        await asyncio.shield(self._begin_to_end())

    def _begin_to_end(self) -> asyncio.Task[None]:
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end())
            self._channel.close()
        return self._ending

    async def _end(self) -> None:
        if self._process is not None:
            await self._process.end(END_SECONDS)
        if not self._ready.done():  # only now has all been read that it printed
            self._ready.set_exception(self._stillborn())
            self._ready.exception()  # nobody may be waiting for it
        self._on_end(self)

    def _end_if_done(self) -> None:
        if (self._retired or self.is_stuck) and not self._calls:
            self._begin_to_end()

    def _lost(self) -> None:
        if self._channel.closed.result() and self._process is not None:
            self._process.kill()  # it was cut off, and need not be given time
        if self._ending is None:
            self._retired = True
            self._begin_to_end()

    def _stillborn(self) -> ToolError:
        words = self._process.printed.shown if self._process else ""
        if self._launch.start.by_uv and not self._is_loading:
            return environment_error(self._launch.file, words)
        return ToolError(
            f"{self._launch.file}: {self._launch.pack} cannot be used: "
            f"its process {self._fate()} at import{self._last_words()}",
            location=Location(str(self._launch.file)),
        )


def _named(status: int) -> str:
    """Python says -9 for a process that was killed, shells, uv and our guard say 137."""
    number = -status if status < 0 else status - SIGNALLED
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"status {status}"


def _value(result: Any, pieces: list[bytes]) -> Any:
    """Return what the worker answered; a large value, which came in pieces, is not parsed here."""
    if not isinstance(result, dict):
        raise ToolError("the worker answered with something that is no answer")
    return RawJson(pieces) if pieces else result.get("value")


def _cannot_be_loaded(launch: Launch, about: Mapping[str, Any]) -> ToolError:
    line, missing = int(about.get("line") or 0), about.get("missing")
    where = f"{launch.file}{f', line {line}' if line else ''}"
    return ToolError(
        f"{launch.pack} cannot be loaded: {about.get('class')}: {about.get('message')} ({where})",
        hint=f'name the package in the header of the file: # dependencies = ["{missing}"]' if missing else "",
        location=Location(str(launch.file), line),
        file=str(launch.file),
    )
