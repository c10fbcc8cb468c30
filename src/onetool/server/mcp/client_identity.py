"""The identity of an MCP client: agent, client name and session.

Over stdio, the name that the client reports selects the agent. Over HTTP, where any program can
claim any name, the token does; without one, the agent is `default`.
"""

import os
import time
from collections.abc import Awaitable, Callable, Collection
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.server.connection import Connection
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from onetool.app import OneTool
from onetool.core.agents import DEFAULT
from onetool.errors import ToolError
from onetool.runs.questions import Approver, Question
from onetool.sources.upstream.relay import Progress
from onetool.util.bounded_dict import BoundedDict
from onetool.util.clock_watch import Clock
from onetool.util.context import Caller, ToolContext
from onetool.util.http_clients import HttpClient
from onetool.util.token_ids import includes_scope
from onetool_child.json_types import JsonMapping, JsonObject

MAX_NAME_CHARS = 64
PROGRESS_KEYS = {"progress_token", "progressToken"}
PROTOCOL = "io.modelcontextprotocol/"
SESSION_HEADER = "mcp-session-id"
MAX_CLIENTS = 2000
RECENT_SECONDS = 600.0
ID_CHARS = 16


@dataclass(eq=False, slots=True)
class LocalClient:
    """A client of the daemon. `name` is what it calls itself, once it has made a request."""

    name: str = ""
    session: str = field(default_factory=lambda: os.urandom(8).hex())
    agent: str = ""
    last_call: float = 0.0  # seconds since 1970; 0 before the first call


current_client: ContextVar[LocalClient] = ContextVar("current_client")  # in the tasks that serve it


def client_name(context: Any) -> str:
    """Return the name that the client reports."""
    client_params = context.session.client_params
    return client_params.client_info.name if client_params is not None else ""


def get_agent(app: OneTool, context: Any) -> str:
    if context.request is None:
        return app.agents.for_client(client_name(context))
    return _state(context).get("agent") or DEFAULT


def get_caller(app: OneTool, context: Any) -> Caller:
    state = _state(context)
    return Caller(
        agent=get_agent(app, context),
        is_owner=state.get("agent") is None,
        token_id=get_token_id(context),
        actor=str(state.get("actor", "")),
        client=client_name(context)[:MAX_NAME_CHARS],
        session=session_key(app, context),
    )


def make_approver(
    app: OneTool, context: Any, ask: Callable[[Question], Awaitable[JsonMapping | None]]
) -> Approver | None:
    """Return the person at the client of a request, or None if answers of this client do not count."""
    state = _state(context)
    is_http = context.request is not None
    has_scope = includes_scope(str(state.get("scope", "")), "approve")
    if is_http and not has_scope and not app.agents.accepts_http_answers(get_agent(app, context)):
        return None
    client = client_name(context)[:MAX_NAME_CHARS]
    by_token = f" with {state['actor']}" if state.get("actor") else ""
    return Approver(
        ask, f"the person at {client or 'the client'}{by_token}", "http" if is_http else "stdio"
    )


def build_context(app: OneTool, context: Any, ask: Approver | None = None) -> ToolContext:
    """Return the context for calls of this client. `ask` is the person who may approve them there."""
    caller = get_caller(app, context)
    hold = app.settings.approvals.wait
    try:
        return app.runs.open_context(caller, meta=request_meta(context), ask=ask, hold=hold)
    except ToolError as error:
        raise MCPError(types.INVALID_REQUEST, error.message) from None


def get_token_id(context: Any) -> str:
    """Return the id of the request's token, or an empty string without a token."""
    return str(_state(context).get("token_id", ""))


def note_client(app: OneTool, context: Any) -> LocalClient | None:
    """Record the client of the daemon that made this request, and return it."""
    client = current_client.get(None)
    if client is not None:
        client.name = client_name(context)[:MAX_NAME_CHARS]
        client.last_call = time.time()
        client.agent = get_agent(app, context)
    return client


def session_key(app: OneTool, context: Any) -> str:
    """Return a key of the session.

    Over HTTP, clients without session ids (2026 protocol) count once per agent.
    """
    if (
        context.request is None
    ):  # the SDK has a connection for each request of the 2026 protocol, so it has no key
        client = current_client.get(None)
        return "" if client is None else client.session
    session_id = context.request.headers.get("mcp-session-id")
    return session_id or f"{get_agent(app, context)}/{client_name(context)[:MAX_NAME_CHARS]}"


def get_request_id(context: Any) -> str:
    """Return the id that the log has for an HTTP request."""
    return str(_state(context).get("request_id") or "")


def _state(context: Any) -> JsonMapping:
    state: JsonMapping = (
        context.request.scope.get("state", {}) if context.request is not None else {}
    )
    return state


def request_meta(context: Any) -> JsonObject:
    """Return the request's metadata without the fields of the protocol itself."""
    meta: JsonMapping = context.meta or {}
    return {
        key: value
        for key, value in meta.items()
        if key not in PROGRESS_KEYS and not key.startswith(PROTOCOL)
    }


def is_modern(context: Any) -> bool:
    """Tell whether the request uses the stateless 2026 protocol; older protocols use sessions."""
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def get_progress(context: Any) -> Progress | None:
    """Return the function that reports progress, or None if the client does not want it."""
    wants_progress = bool(context.meta) and context.meta.get("progress_token") is not None
    return context.session.report_progress if wants_progress else None


def get_session(context: Any) -> Connection:
    """Return the connection, which lives as long as the session."""
    connection: Connection = context.session._connection  # noqa: SLF001 - the SDK has no other way to it
    return connection


def on_session_end(session: Connection, work: Callable[[], Any]) -> None:
    """Call the function when the session ends."""
    session.exit_stack.callback(work)


# --- clients over HTTP ----------------------------------------------------------------------------


class HttpClients:
    """The clients of one server, those with the latest requests."""

    def __init__(self, clock: Clock = time.time) -> None:
        self._clock = clock
        self._known: BoundedDict[str, HttpClient] = BoundedDict(MAX_CLIENTS)

    def note(self, request: Any, name: str, agent: str) -> None:
        """Record a request."""
        state = request.scope.get("state", {})
        session = request.headers.get(SESSION_HEADER)
        actor = str(state.get("actor", ""))
        now = self._clock()
        key = session or f"{state.get('token_id', '')}/{agent}/{name}"
        client = self._known.get(key) or HttpClient(_identify(key), session, agent, actor, now, now)
        client.name = name or client.name
        client.last_call = now
        self._known[key] = client

    def list_clients(self, sessions: Collection[str]) -> list[HttpClient]:
        """Return clients of these open sessions, and recent ones without a session."""
        oldest = self._clock() - RECENT_SECONDS
        for key, client in list(self._known.items()):
            if client.session not in sessions if client.session else client.last_call <= oldest:
                del self._known[key]
        return list(self._known.values())


def _identify(key: str) -> str:
    return sha256(key.encode("utf-8", "replace")).hexdigest()[:ID_CHARS]
