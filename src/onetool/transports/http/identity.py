"""The person who sent a request, and what follows from it for the handlers that are not actions."""

from collections.abc import Iterable

from starlette.requests import Request

from onetool.admin.errors import AdminError
from onetool.admin.person import Person
from onetool.app import OneTool
from onetool.bundles.model import StoredTool
from onetool.core.context import ToolContext
from onetool.core.registry import RegistryEntry
from onetool.errors import ToolError
from onetool.runner.run_output import RunOutput
from onetool.state.disabled_tools import EVERYTHING
from onetool.transports.http.auth import ACTOR, SCOPE, get_token_id


def get_person(request: Request) -> Person:
    """Return who sent the request, as the authentication has found out."""
    state = request.scope.get("state", {})
    agent = state.get("agent")
    return Person(
        name=str(state.get(ACTOR) or ""),
        scope=str(state.get(SCOPE) or ""),
        agent=None if agent is None else str(agent),
        token_id=get_token_id(request.scope),
    )


def build_context(request: Request, app: OneTool, output: RunOutput | None = None) -> ToolContext:
    """Return the context for a call by this caller."""
    try:
        return app.runs.open_context(get_person(request).caller, output)
    except ToolError as error:  # the token's agent was removed from the settings
        raise AdminError("permission_denied", error.message) from None


def may_see(context: ToolContext, stored: StoredTool) -> bool:
    """Return whether the agent may call a stored tool, by its list of tools."""
    return context.admits(RegistryEntry(f"{stored.bundle_slug}.{stored.slug}", "", enabled=True))


def require_enabling(request: Request, app: OneTool, keys: Iterable[str]) -> None:
    """Raise if an owner disabled one of these names or IDs, and the caller may not enable it."""
    if get_person(request).has_scope("admin"):
        return
    marks = app.state.disabled_tools.list_owner_marks()
    if not marks.isdisjoint({EVERYTHING, *keys}):
        hint = (
            "an owner can enable it in the admin UI, or with `onetool tools --enable` or `onetool bundles enable`; "
            "others can store it as disabled"
        )
        raise AdminError("forbidden", "an owner disabled it", {"required": "admin"}, hint=hint)


def mark_disabled(request: Request, app: OneTool, keys: Iterable[str], *, on: bool) -> None:
    """Record what an owner disabled or enabled. Blocks on the disk."""
    if get_person(request).has_scope("admin"):
        app.state.disabled_tools.mark(keys, on=on)
