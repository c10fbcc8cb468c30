"""Server-sent events, collected up to a number of events, a size and a time."""

import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import anyio

from onetool.net.messages import EVENT_STREAM
from onetool.util.text import pluralize
from onetool_child.messages import has_few_values


@dataclass(slots=True)
class EventCollector:
    """The events of one response. The stream is closed when a limit is reached; incomplete events are dropped."""

    max_events: int
    max_bytes: int
    seconds: float
    events: list[Any] = field(default_factory=list)
    is_stream: bool = False
    limit: str = ""  # that ended the stream

    async def read(self, chunks: AsyncIterator[bytes]) -> None:
        import httpx2

        size = 0

        class Body(httpx2.AsyncByteStream):
            async def __aiter__(self) -> AsyncIterator[bytes]:
                nonlocal size
                async for chunk in chunks:
                    size += len(chunk)
                    yield chunk

        self.is_stream = True
        request = httpx2.Request("GET", "http://stream.invalid")  # the library requires one
        response = httpx2.Response(200, headers={"Content-Type": EVENT_STREAM}, stream=Body(), request=request)
        with anyio.move_on_after(self.seconds) as scope:
            async for event in httpx2.EventSource(response, max_event_size=None):
                self.events.append(event)
                if len(self.events) == self.max_events:
                    self.limit = pluralize(self.max_events, "event")
                    break
        if scope.cancelled_caught:
            self.limit = f"{self.seconds:g} s"
        elif size >= self.max_bytes:
            self.limit = f"{self.max_bytes:,} bytes"

    def parse(self) -> list[dict[str, Any]]:
        """Return the events as data. Call it in a thread: the parsing of large events takes long."""
        return [_to_json(event) for event in self.events]


def _to_json(event: Any) -> dict[str, Any]:
    """Return an event. Data that is JSON is parsed, unless it has so many values that others would wait."""
    data = event.data
    if has_few_values(data):
        with suppress(ValueError, RecursionError):
            data = json.loads(data, parse_constant=lambda _: None)
    return {"event": event.event, "data": data, **({"id": event.id} if event.id else {})}
