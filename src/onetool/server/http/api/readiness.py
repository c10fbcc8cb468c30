"""`/readyz`: whether the server can run code.

This route is public: the reasons contain no private data.
"""

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from onetool.app import OneTool
from onetool.runs.cells import FULL_SANDBOX, NOT_ANSWERING, NOT_STARTED, is_isolated
from onetool.server.http.errors import ApiError
from onetool.server.http.routing import TEXT, Operation, ResponseSpec

PROBE_SECONDS = 5.0


def make_operation(app: OneTool) -> Operation:
    async def check(_request: Request) -> Response:
        reasons = []
        if app.config_error is not None:
            reasons.append("invalid configuration (see GET /api/health)")
        if app.state.problem is not None:
            reasons.append("the database of the store does not answer")
        sandbox = (await app.cells.probe(PROBE_SECONDS))["sandbox"]
        missing = [layer for layer in FULL_SANDBOX if layer not in sandbox.split("+")]
        if sandbox in {NOT_STARTED, NOT_ANSWERING}:
            reasons.append("cannot start a cell")
        elif not is_isolated(sandbox.split("+")) and app.settings.execution.isolation == "require":
            reasons.append(
                f"execution.isolation is 'require', but this machine lacks {' and '.join(missing)}"
            )
        if reasons:
            raise ApiError("busy", f"not ready: {'; '.join(reasons)}", {"reasons": reasons})
        return PlainTextResponse("ready\n")

    ready = {200: ResponseSpec("The server can run code", media={"text/plain": TEXT})}
    return Operation("GET", "/readyz", check, "Check that the server can run code", ready)
