"""Waits for the answer to a sign-in: a callback on a loopback port, or a callback URL on standard
input.

Anything can connect to the port, so an answer counts only if it has the state of the sign-in.
"""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from onetool.errors import ToolError
from onetool.net.oauth.pending import parse_callback

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


class LoopbackCallback:
    """Listens for the answer. `finish` is called with the fields of each candidate."""

    def __init__(self) -> None:
        self._finish: Finish | None = None
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._report: Callable[[str], None] = lambda _: None
        self.redirect_uri = ""

    @asynccontextmanager
    async def listen(self, *ports: int) -> AsyncIterator["LoopbackCallback"]:
        """Listen on the first free port of these, 0 for any."""
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
            text = (
                "You can close this window."
                if is_done
                else "See the terminal in which you started it."
            )
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
