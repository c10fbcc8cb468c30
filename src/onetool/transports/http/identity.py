"""The identity of an HTTP caller: its agent, what it may see, and whether it may change anything.

A request without a token comes from the local machine (`auth` rejects all others) and acts as the owner. A token
identifies one agent. It sees only its own runs and activity, and the statistics of its agent. Tokens of the scopes
`approve`, `admin` and `owner` see those of all.
"""

from collections.abc import Iterable

from starlette.requests import Request

from onetool.app import OneTool
from onetool.bundles.model import StoredTool
from onetool.core.context import Caller, Permission, ToolContext
from onetool.core.registry import RegistryEntry
from onetool.errors import ToolError
from onetool.runner.run_output import RunOutput
from onetool.state.disabled_tools import EVERYTHING
from onetool.transports.http.auth import ACTOR, SCOPE, get_agent, get_token_id
from onetool.transports.http.errors import ApiError
from onetool.util.token_ids import includes_scope


def visible_agent(request: Request) -> str | None:
    """Return the agent whose runs, activity and statistics the caller may see; None sees all."""
    agent = request.scope.get("state", {}).get("agent")
    return None if agent is None or has_scope(request, "approve") else str(agent)


def visible_runs(request: Request) -> dict[str, str | None]:
    """Return whose runs the caller may see, as the arguments `agent` and `token_id`; None sees all.

    A token of scope `use` sees its own runs, not those of other tokens of its agent, or of an earlier one of its name.
    """
    agent = visible_agent(request)
    return {"agent": agent, "token_id": None if agent is None else get_token_id(request.scope)}


def has_scope(request: Request, needed: str) -> bool:
    """Return whether the caller has a token or a session of this scope. Requests without one have none."""
    return includes_scope(request.scope.get("state", {}).get(SCOPE, ""), needed)


def require_scope(request: Request, needed: str, purpose: str) -> str:
    """Return the caller's name for the audit log. Raise if the caller lacks the scope."""
    state = request.scope.get("state", {})
    if not has_scope(request, needed):
        details = {"required": needed, "scope": state.get(SCOPE)}
        raise ApiError("forbidden", f"{purpose} needs a token of scope '{needed}' or the admin UI, signed in", details)
    return str(state[ACTOR])


def get_caller(request: Request) -> Caller:
    return Caller(
        agent=get_agent(request.scope),
        is_owner=visible_agent(request) is None,
        token_id=get_token_id(request.scope),
        actor=str(request.scope.get("state", {}).get(ACTOR, "")),
        client="http",
    )


def build_context(request: Request, app: OneTool, output: RunOutput | None = None) -> ToolContext:
    """Return the context for a call by this caller."""
    try:
        return app.runs.open_context(get_caller(request), output)
    except ToolError as error:  # the token's agent was removed from the settings
        raise ApiError("permission_denied", error.message) from None


def may_see(context: ToolContext, stored: StoredTool) -> bool:
    """Return whether the agent may call a stored tool, by its list of tools."""
    return context.admits(RegistryEntry(f"{stored.bundle_slug}.{stored.slug}", "", enabled=True))


def require_write_permission(request: Request, app: OneTool) -> None:
    """Raise if the caller may not change bundles or enable and disable tools: permissions, then the policy."""
    if request.scope.get("state", {}).get("agent") is None or has_scope(request, "owner"):
        return
    context = build_context(request, app)
    if Permission.WRITE not in context.permissions:
        line = context.explain_permissions(frozenset({Permission.WRITE}))
        message = f"agent '{context.agent_id}' may not make changes: it lacks the permission 'write'"
        details = {"required": [str(Permission.WRITE)], "granted": sorted(map(str, context.permissions))}
        raise ApiError("permission_denied", message, details, hint=f"add this to onetool.yaml: {line}")
    policy, _ = app.agents.get_policy(context.agent_id)
    if reason := policy.explain_denied_changes():
        message = f"agent '{context.agent_id}' may not make changes: {reason}"
        raise ApiError("permission_denied", message, {"reason": reason}, hint="use a token of scope 'owner'")


def require_enabling(request: Request, app: OneTool, keys: Iterable[str]) -> None:
    """Raise if an owner disabled one of these names or IDs, and the caller may not enable it."""
    if has_scope(request, "admin"):
        return
    marks = app.state.disabled_tools.list_owner_marks()
    if not marks.isdisjoint({EVERYTHING, *keys}):
        hint = (
            "an owner can enable it in the admin UI, or with `onetool tools --enable` or `onetool bundles enable`; "
            "others can store it as disabled"
        )
        raise ApiError("forbidden", "an owner disabled it", {"required": "admin"}, hint=hint)


def mark_disabled(request: Request, app: OneTool, keys: Iterable[str], *, on: bool) -> None:
    """Record what an owner disabled or enabled. Blocks on the disk."""
    if has_scope(request, "admin"):
        app.state.disabled_tools.mark(keys, on=on)
