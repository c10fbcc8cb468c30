"""`/readyz`: whether a run would work if one came now. That the server answers at all is `/healthz`."""

from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ot.app import OneTool
from ot.faces.http.errors import ApiError
from ot.runner.cells import FULL_SANDBOX, NOT_ANSWERING, NOT_STARTED

PROBE_SECONDS: Final = 5.0


class Readiness:
    def __init__(self, app: OneTool) -> None:
        self._app = app

    async def answer(self, _request: Request) -> Response:
        """Strangers may ask: reasons are told without anything that is somebody's."""
        reasons = [*self._of_settings(), *await self._of_cells()]
        if reasons:
            raise ApiError("busy", f"not ready: {'; '.join(reasons)}", {"reasons": reasons})
        return PlainTextResponse("ready\n")

    def _of_settings(self) -> list[str]:
        wrong = self._app.config_error is not None
        return ["the configuration is wrong; GET /api/health tells what is"] if wrong else []

    async def _of_cells(self) -> list[str]:
        sandbox = (await self._app.cells.probe(PROBE_SECONDS))["sandbox"]
        if sandbox in {NOT_STARTED, NOT_ANSWERING}:
            return ["no process for a run could be started"]
        missing = [layer for layer in FULL_SANDBOX if layer not in sandbox.split("+")]
        if missing and self._app.settings.execution.isolation == "require":
            return [f"execution.isolation is 'require', and this machine has no {' and '.join(missing)}"]
        return []
