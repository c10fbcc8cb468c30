"""The server's end of a pipe: every request gets a response, and later messages do not change it."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from onetool.errors import ToolError
from onetool.processes.channel import Channel, RemoteError
from onetool.util.context import Result

Talk = Callable[[Channel, "Sink"], Awaitable[None]]


class Sink(asyncio.WriteTransport):
    """The data that the other end would read."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.lines.put_nowait(json.loads(bytes(data)))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        """Do nothing: there is nothing to close."""

    def pause_reading(self) -> None:
        """Do nothing: tests send what is received, even after slow messages."""

    def resume_reading(self) -> None:
        """Do nothing, as above."""


def converse(talk: Talk, result: Result | Exception | None = None) -> None:
    async def respond(_method: str, _params: dict[str, Any]) -> Result:
        if isinstance(result, Result):
            return result
        raise result or AssertionError("unexpected request")

    async def main() -> None:
        channel, sink = (
            Channel(respond, lambda _method, _params: None, lambda _kind, _data: None),
            Sink(),
        )
        channel.connection_made(sink)
        channel.reads_from(sink)
        await talk(channel, sink)

    asyncio.run(main())


def test_the_size_of_a_response_excludes_later_messages() -> None:
    async def talk(channel: Channel, _sink: Sink) -> None:
        answer = channel.request("run", {})
        line = json.dumps({"id": 1, "result": {"value": "x" * 1000}}).encode()
        channel.data_received(line + b'\n{"method":"output","params":{"text":"a"}}\n')
        assert (await answer)["value"] == "x" * 1000
        assert channel.last_bytes == len(line)

    converse(talk)


class WithoutText:
    def __str__(self) -> str:
        raise RuntimeError("it has no text")


class Unfinished(ToolError):
    def __init__(self) -> None:
        """Set none of the fields of an error."""


@pytest.mark.parametrize(
    ("result", "kind", "message"),
    [
        (Result(ok=True, value=[WithoutText()]), "RuntimeError", "it has no text"),
        (
            Result(ok=True, value={"deep": object.__new__(WithoutText)}),
            "RuntimeError",
            "it has no text",
        ),
        (Result(ok=False, error=ToolError("failed", odd=WithoutText())), "ToolError", "failed"),
        (Result(ok=False, error=Unfinished()), "Unfinished", "Unfinished"),
        (OSError("no disk"), "OSError", "no disk"),
    ],
)
def test_every_request_is_answered(result: Result | Exception, kind: str, message: str) -> None:
    async def talk(channel: Channel, sink: Sink) -> None:
        channel.data_received(b'{"id":7,"method":"call","params":{}}\n')
        line = await sink.lines.get()
        assert line["id"] == 7
        assert (line["error"]["data"]["class"], line["error"]["data"]["message"]) == (kind, message)
        assert not channel.closed.done()

    converse(talk, result)


def test_fields_of_an_error_are_converted_to_strings() -> None:
    error = RemoteError({"class": ["a"], "message": {"b": 1}, "type": None, "line": 3})
    assert error.data == {"class": "['a']", "message": "{'b': 1}", "type": "None", "line": 3}
