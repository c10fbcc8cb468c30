"""A response leaves in one piece, so that a killed server has sent all of it or nothing."""

import asyncio
import socket
from typing import Any

import pytest
import uvicorn
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send
from tests.support import TIMEOUT_SECONDS

from onetool.server.http.timeouts import MAX_HELD_BYTES, ConnectionLimiter, TimeoutProtocol

REQUEST = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"


class RecordingSocket(socket.socket):
    """A socket that records what each call sends."""

    sent: list[bytes]

    def send(self, data: Any, *flags: int) -> int:
        count = super().send(data, *flags)
        self.sent.append(bytes(data)[:count])
        return count

    def sendmsg(self, buffers: Any, *others: Any) -> int:
        count = super().sendmsg(buffers, *others)
        self.sent.append(b"".join(buffers)[:count])
        return count


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    async def count() -> Any:
        yield b"one"
        await asyncio.sleep(0)
        yield b"two"

    if scope["path"] == "/stream":
        await StreamingResponse(count())(scope, receive, send)
    else:
        size = 2 * MAX_HELD_BYTES if scope["path"] == "/large" else 10
        await JSONResponse("x" * size)(scope, receive, send)


async def fetch(path: bytes, end: bytes) -> list[bytes]:
    """Send a request over TCP and return what each call of the server sent, when the client has
    received the end.
    """
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    server = RecordingSocket(fileno=accepted.detach())
    server.sent = []
    client.setblocking(False)
    config = uvicorn.Config(answer, lifespan="off", log_config=None)
    config.load()
    state = uvicorn.Server(config).server_state
    limiter = ConnectionLimiter()
    transport, _ = await loop.connect_accepted_socket(
        lambda: TimeoutProtocol(config=config, server_state=state, app_state={}, limiter=limiter),
        server,
    )
    await loop.sock_sendall(client, REQUEST % path)
    received = b""
    while not received.endswith(end):
        received += await asyncio.wait_for(loop.sock_recv(client, 1 << 20), TIMEOUT_SECONDS)
    transport.close()
    client.close()
    assert b"".join(server.sent) == received
    return server.sent


@pytest.mark.parametrize(
    ("path", "end", "most"), [(b"/small", b'x"', 1), (b"/stream", b"0\r\n\r\n", 3)]
)
def test_a_response_is_sent_at_once(path: bytes, end: bytes, most: int) -> None:
    sent = asyncio.run(fetch(path, end))
    assert len(sent) <= most, sent
    assert b"\r\n\r\n" in sent[0]


def test_a_large_response_is_complete() -> None:
    sent = b"".join(asyncio.run(fetch(b"/large", b'x"')))
    assert sent.count(b"x") >= 2 * MAX_HELD_BYTES
