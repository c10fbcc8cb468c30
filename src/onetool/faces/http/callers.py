"""Who is calling over HTTP, what they may see of the doings of others, and whether they may change anything.

Who came without a token came from the machine itself, or the gate would not have let them in: that is the owner. A
token stands for one agent, which sees its own and nobody else's.
"""

from typing import Any

from starlette.requests import Request

from onetool.app import OneTool
from onetool.bus.authorise import line_to_permit
from onetool.context import Permission, ToolContext
from onetool.errors import ToolError
from onetool.faces.http.errors import ApiError
from onetool.faces.http.gate import agent_of, token_id_of
from onetool.runner.answer import Journal


def seen_agent(request: Request) -> str | None:
    """The one agent whose runs, activity and statistics may be seen; None is the owner, who sees those of all."""
    agent = request.scope.get("state", {}).get("agent")
    return None if agent is None else str(agent)


def facts_of(request: Request) -> dict[str, Any]:
    """Who calls, for `OneTool.run` and `OneTool.context`."""
    agent, token_id = agent_of(request.scope), token_id_of(request.scope)
    return {"agent": agent, "is_owner": seen_agent(request) is None, "token_id": token_id, "client": "http"}


def context_of(request: Request, app: OneTool, journal: Journal | None = None) -> ToolContext:
    """What the caller may do, as the context of a call."""
    try:
        return app.context(journal=journal, **facts_of(request))
    except ToolError as error:  # the agent of a token has left the configuration
        raise ApiError("permission_denied", error.message) from None


def may_change(request: Request, app: OneTool) -> None:
    """Refuses whoever may not change bundles, tools and switches."""
    if seen_agent(request) is None:
        return
    context = context_of(request, app)
    if Permission.WRITE not in context.permissions:
        line = line_to_permit(frozenset({Permission.WRITE}), context)
        message = f"The agent {context.agent_id} may not change anything here: it lacks the permission write."
        details = {"required": [str(Permission.WRITE)], "granted": sorted(map(str, context.permissions))}
        raise ApiError("permission_denied", f"{message} To allow it, add this to onetool.yaml: {line}", details)
