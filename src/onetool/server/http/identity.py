"""The person who sent a request, and what follows from it for the handlers that are not actions."""

from typing import cast

from starlette.requests import Request

from onetool.admin.person import Person
from onetool.app import OneTool
from onetool.runs.run_output import RunOutput
from onetool.server.http.auth import ACTOR, SCOPE, get_token_id
from onetool.util.context import ToolContext


def get_person(request: Request) -> Person:
    """Return who sent the request, as the authentication has found out."""
    state = request.scope.get("state", {})
    if "person" in state:  # of the command line
        return cast("Person", state["person"])
    agent = state.get("agent")
    return Person(
        name=str(state.get(ACTOR) or ""),
        scope=str(state.get(SCOPE) or ""),
        agent=None if agent is None else str(agent),
        token_id=get_token_id(request.scope),
    )


def build_context(request: Request, app: OneTool, output: RunOutput | None = None) -> ToolContext:
    """Return the context for a call by this caller."""
    return get_person(request).open_context(app, output)
