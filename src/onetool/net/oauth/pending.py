"""Sign-ins that wait for a person: single use, ten minutes, found by a random state.

The answer comes as a request to the server, to a loopback port, or as a callback URL on standard
input. Anything can connect to the port, so an answer counts only if it has the state of the
sign-in.
"""

import asyncio
import os
import secrets
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from onetool.errors import ToolError
from onetool.net.oauth.credential import Credential, Identity
from onetool.util.bounded_dict import BoundedDict
from onetool.util.clock_watch import Clock

if TYPE_CHECKING:
    from onetool.net.oauth.discovery import ServerMetadata

PENDING_SECONDS = 600.0
MAX_PENDING = 100
STATE_BYTES = 32
VERIFIER_BYTES = 64
CALLBACK_FIELDS = ("code", "state", "iss", "error")
HOST = "127.0.0.1"
PATH = "/callback"
MAX_HEAD_BYTES = 16 << 10
HEAD_SECONDS = 10.0
MAX_LINE_BYTES = 64 << 10
PAGE = (
    "<!doctype html><meta charset=utf-8><title>OneTool</title>"
    "<body style='font-family:sans-serif;margin:4em'><h1>{title}</h1><p>{text}</p>"
)
FOREIGN = "this callback URL does not belong to this sign-in"
Finish = Callable[
    [Mapping[str, str]], Awaitable[bool]
]  # returns whether the fields belong to the sign-in; may raise


@dataclass(frozen=True, slots=True)
class PendingSignIn:
    """A sign-in between the authorization request and its answer.

    The credential has the requested scope.
    """

    identity: Identity
    credential: Credential = field(repr=False)
    server: "ServerMetadata"
    expires: float
    state: str = field(default_factory=lambda: secrets.token_urlsafe(STATE_BYTES), repr=False)
    browser: str = field(
        default_factory=lambda: secrets.token_urlsafe(STATE_BYTES), repr=False
    )  # its cookie
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(VERIFIER_BYTES), repr=False)

    @property
    def url(self) -> str:
        """The URL at which a person signs in."""
        return self.server.build_sign_in_url(self.credential, self.state, self.verifier)


class PendingSignIns:
    """Sign-ins in this process that wait for an answer, by their random states."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._pending: BoundedDict[str, PendingSignIn] = BoundedDict(MAX_PENDING)

    def add(
        self, identity: Identity, credential: Credential, server: "ServerMetadata"
    ) -> PendingSignIn:
        pending = PendingSignIn(identity, credential, server, self._clock() + PENDING_SECONDS)
        self._pending[pending.state] = pending
        return pending

    def take(self, state: str) -> PendingSignIn:
        """Return the sign-in with this state, once."""
        pending = self._pending.pop(state, None)
        if pending is None or pending.expires <= self._clock():
            raise ToolError(
                "the sign-in failed: its state is unknown, was used before or has expired"
            )
        return pending

    def discard(self, pending: PendingSignIn) -> None:
        self._pending.pop(pending.state, None)

    def has(self, pending: PendingSignIn) -> bool:
        return pending.state in self._pending


def parse_callback(url: str) -> dict[str, str]:
    """Return the fields in a callback URL, or in its query. Raise if it is not one."""
    query = urlsplit(url.strip()).query or url.strip().lstrip("?")
    pairs = parse_qsl(query[:100_000], max_num_fields=100)
    fields = {name: value for name, value in pairs if name in CALLBACK_FIELDS}
    if "state" not in fields or not ("code" in fields or "error" in fields):
        raise ToolError("this is not a callback URL: it must have the parameters code and state")
    return fields


# --- Loopback callback ----------------------------------------------------------------------------


class LoopbackCallback:
    """Listens for the answer. `finish` is called with each candidate's fields."""

    def __init__(self) -> None:
        self._finish: Finish | None = None
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._report: Callable[[str], None] = lambda _: None
        self.redirect_uri = ""

    @asynccontextmanager
    async def listen(self, *ports: int) -> AsyncIterator["LoopbackCallback"]:
        """Listen on the first free port in `ports`, 0 for any."""
        server = None
        for port in ports:
            with suppress(OSError):
                server = await asyncio.start_server(self._handle, HOST, port, limit=MAX_HEAD_BYTES)
                break
        if server is None:
            raise ToolError(
                f"cannot listen on port {ports[0]} of {HOST}: it is in use",
                hint="change callback_port",
            )
        self.redirect_uri = f"http://{HOST}:{server.sockets[0].getsockname()[1]}{PATH}"
        try:
            yield self
        finally:
            server.close()

    def accept(self, finish: Finish) -> None:
        """Accept answers from now on."""
        self._finish = finish

    async def wait(self, seconds: float, report: Callable[[str], None] | None = None) -> None:
        """Wait until an answer has finished the sign-in, or raise why it failed.

        With `report`, lines of standard input are answers too; it is called with the problem of a
        line.
        """
        if report is not None:
            self._report = report
            self._read_stdin(asyncio.get_running_loop())
        try:
            await asyncio.wait_for(self._done, seconds)
        except TimeoutError:
            raise ToolError(f"nobody signed in within {seconds / 60:.0f} minutes") from None

    async def _offer(self, url: str) -> str:
        """Try a callback URL.

        Return why it does not finish the sign-in; empty if it does, or if that is done.
        """
        if self._done.done():
            return ""
        if self._finish is None:
            return FOREIGN
        try:
            fields = parse_callback(url)
        except ToolError as error:
            return str(error)
        try:
            is_finished = await self._finish(fields)
        except ToolError as error:
            if not self._done.done():
                self._done.set_exception(error)
            return str(error)
        if is_finished and not self._done.done():
            self._done.set_result(None)
        return "" if is_finished else FOREIGN

    # --- the callback -----------------------------------------------------------------------------

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(
            OSError,
            ValueError,
            TimeoutError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
        ):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_SECONDS)
            method, target, _ = head.split(b"\r\n", 1)[0].decode("ascii").split(" ", 2)
            is_callback = method == "GET" and target.startswith(f"{PATH}?")
            is_done = is_callback and not await self._offer(target)
            title = "Signed in" if is_done else "The sign-in failed"
            text = "See the terminal in which you started it."
            if is_done:
                text = "You can close this window."
            body = PAGE.format(title=title, text=text).encode()
            status = "200 OK" if is_done else "400 Bad Request"
            lines = [
                f"HTTP/1.1 {status}",
                "Content-Type: text/html; charset=utf-8",
                f"Content-Length: {len(body)}",
                "Cache-Control: no-store",
                "Referrer-Policy: no-referrer",
                "Connection: close",
            ]
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            await writer.drain()
        writer.close()

    # --- standard input ---------------------------------------------------------------------------

    def _read_stdin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read lines in a thread without buffers, so that the process can end while it waits."""
        if sys.stdin is None:
            return

        def read() -> None:
            text = b""
            with suppress(OSError, RuntimeError, ValueError):  # closed, or the loop has ended
                while chunk := os.read(sys.stdin.fileno(), MAX_LINE_BYTES):
                    *lines, text = (text + chunk)[-MAX_LINE_BYTES:].split(b"\n")
                    for line in lines:
                        loop.call_soon_threadsafe(self._accept_line, line.decode(errors="replace"))
                if text.strip():
                    loop.call_soon_threadsafe(self._accept_line, text.decode(errors="replace"))

        threading.Thread(target=read, name="onetool-stdin", daemon=True).start()

    def _accept_line(self, line: str) -> None:
        if line.strip():
            self._pasting = asyncio.ensure_future(self._try_line(line))

    async def _try_line(self, line: str) -> None:
        problem = await self._offer(line)
        if problem and not self._done.done():
            self._report(problem)
