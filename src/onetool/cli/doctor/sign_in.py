"""The discovery of an authorization server, step by step, for a server that nobody has signed in to."""

from onetool.app import OneTool
from onetool.errors import SignInRequired, ToolError
from onetool.oauth.sign_ins import make_server_target
from onetool.util.problem import OK, PROBLEM, Problem


async def trace_sign_in(app: OneTool, name: str, error: SignInRequired) -> Problem:
    """Return the steps of the discovery, with the step that fails and why. `onetool.checks` reports the error."""
    target = make_server_target(name, app.settings.servers[name])
    if target is None:
        return Problem(error.message, error.hint)
    steps: list[str] = []
    try:
        found = await app.sign_ins.discover(target, on_step=steps.append)
    except ToolError as failure:
        lines = [f"server {name}: its authorization server cannot be used", *steps, failure.message]
        return Problem("\n".join(lines), failure.hint or "report it to the operator of the server", level=PROBLEM)
    client = _describe_client(app, name, found.server.registration_endpoint, found.server.accepts_client_documents)
    scope = f"scope to request: {found.scope or 'none'}"
    lines = [f"server {name}: the authorization server was found", *steps, client, scope]
    return Problem("\n".join(lines), level=OK)


def _describe_client(app: OneTool, name: str, registration: str, accepts_documents: bool) -> str:
    auth = app.settings.servers[name].auth
    if auth is not None and auth.client_id:
        return "client: client_id of the settings"
    if accepts_documents and app.sign_ins.build_client_document() is not None:
        return "client: the metadata document of this server (public_url)"
    if registration:
        return f"client: registered at {registration}"
    return f"client: registration_endpoint is missing; set servers.{name}.auth.client_id"
