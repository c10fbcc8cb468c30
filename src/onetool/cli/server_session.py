"""A session with a running HTTP server of this user, opened with a one-time code like that of the
admin UI.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onetool.errors import ToolError
from onetool.util.running_servers import ServerEntry, create_code, list_servers

if TYPE_CHECKING:
    import httpx2

TIMEOUT_SECONDS = 10.0


def list_local_servers(user: Path) -> list[ServerEntry]:
    """Return the running HTTP servers that listen on loopback only: others need a token."""
    return [entry for entry in list_servers(user) if entry.is_on_loopback]


class ServerSession:
    """Requests of the owner to one server."""

    def __init__(self, client: "httpx2.Client") -> None:
        self._client = client

    def request(self, method: str, path: str) -> Any:
        """Return the JSON response.

        Raise a ToolError with the message of the server if it is an error.
        """
        response = self._client.request(method, path)
        data = response.json()
        if response.is_success:
            return data
        raise ToolError(str(data["error"]["message"]), code=data["error"]["code"])


@contextmanager
def open_session(user: Path, url: str) -> Iterator[ServerSession]:
    """Sign in to a server, and sign out at the end. Raise a ToolError if it does not answer."""
    import httpx2

    try:
        with httpx2.Client(base_url=url, timeout=TIMEOUT_SECONDS, trust_env=False) as client:
            answer = client.post("/api/session", json={"code": create_code(user)})
            answer.raise_for_status()
            client.headers["x-onetool-csrf"] = answer.json()["csrf"]
            yield ServerSession(client)
            client.delete("/api/session")
    except (httpx2.HTTPError, ValueError, KeyError) as error:
        raise ToolError(f"the server at {url} does not answer as expected: {error}") from None
