"""Who is behind an MCP request: the agent, the name of the client, the session that it belongs to.

Over HTTP the gate has decided by the token; where it needed none, and on standard input, a client is taken by its word.
"""

from collections.abc import Callable, Mapping
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.server.connection import Connection
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from onetool.app import OneTool
from onetool.context import ToolContext
from onetool.errors import ToolError

LONGEST_NAME = 64
OURS, PROTOCOL = {"progress_token", "progressToken"}, "io.modelcontextprotocol/"


def client_name(context: Any) -> str:
    """The name that the client gives itself."""
    said = context.session.client_params
    return said.client_info.name if said is not None else ""


def agent_of(app: OneTool, context: Any) -> str:
    return _state(context).get("agent") or app.agents.for_client(client_name(context))


def facts_of(app: OneTool, context: Any) -> dict[str, Any]:
    """Who calls, for `OneTool.run` and `OneTool.context`. Whoever needed no token is the owner."""
    state = _state(context)
    return {
        "agent": agent_of(app, context),
        "is_owner": state.get("agent") is None,
        "token_id": token_id_of(context),
        "client": client_name(context)[:LONGEST_NAME],
        "meta": request_meta(context),
    }


def caller_of(app: OneTool, context: Any) -> ToolContext:
    try:
        return app.context(**facts_of(app, context))
    except ToolError as error:
        raise MCPError(types.INVALID_REQUEST, error.message) from None


def token_id_of(context: Any) -> str:
    """Return what identifies the token of the request; empty if it needed none."""
    return str(_state(context).get("token_id", ""))


def counted_as(app: OneTool, context: Any) -> str:
    """What tells the sessions of one server apart: a program that has none, since 2026, is one for each agent."""
    if context.request is None:
        return ""
    own = context.request.headers.get("mcp-session-id")
    return own or f"{agent_of(app, context)}/{client_name(context)[:LONGEST_NAME]}"


def request_id_of(context: Any) -> str:
    """By which the request is found in the log, where it came over HTTP."""
    return str(_state(context).get("request_id") or "")


def _state(context: Any) -> Mapping[str, Any]:
    state: Mapping[str, Any] = context.request.scope.get("state", {}) if context.request is not None else {}
    return state


def request_meta(context: Any) -> dict[str, Any]:
    """What the client says about its request to those who answer it; not what is between it and us."""
    said: Mapping[str, Any] = context.meta or {}
    return {key: value for key, value in said.items() if key not in OURS and not key.startswith(PROTOCOL)}


def is_modern(context: Any) -> bool:
    """Whether the request stands for itself; before 2026 it belongs to a session."""
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def wants_progress(context: Any) -> bool:
    return bool(context.meta) and context.meta.get("progress_token") is not None


def session_of(context: Any) -> Connection:
    """What lasts as long as the session; with `at_end`, that is all that is needed of it."""
    found: Connection = context.session._connection  # noqa: SLF001 - the SDK has no other way to it
    return found


def at_end(session: Connection, work: Callable[[], Any]) -> None:
    """Have this done when the session is over."""
    session.exit_stack.callback(work)
