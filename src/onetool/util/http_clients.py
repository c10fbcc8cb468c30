"""A client that uses MCP over HTTP, and the server that has it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class HttpClient:
    """A client. `id` does not reveal the ID of its session, with which others could try to use it."""

    id: str
    session: str | None
    agent: str
    actor: str
    since: float
    last_call: float
    name: str = ""


class HttpClientServer(Protocol):
    def list_clients(self) -> Sequence[HttpClient]: ...

    async def disconnect(self, client: HttpClient, /) -> bool:
        """End the session of a client. Return False if it has none."""
