"""What nobody thought of: the asker gets a number and no traceback, and the log has the rest under that number."""

import os
import traceback

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ot.faces.http.refusals import Refusal
from ot.logging import Log


class Unexpected:
    """Around everything that may raise what no handler knows."""

    def __init__(self, inner: ASGIApp, log: Log) -> None:
        self._inner, self._log = inner, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_started = False

        async def noting(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._inner(scope, receive, noting)
        except (Refusal, ClientDisconnect):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the asker is told
            refused = self._reported(scope, error)
            if not has_started:
                await refused.response(scope, receive, send)

    def _reported(self, scope: Scope, error: Exception) -> Refusal:
        number = scope.get("state", {}).get("request_id") or os.urandom(8).hex()
        text = "".join(traceback.format_exception(error))
        self._log.event(
            "http.error", level="ERROR", correlation_id=number, method=scope["method"], path=scope["path"], text=text
        )
        message = f"something went wrong here that should not have; the log has it under {number}"
        return Refusal("internal", message, {"correlationID": number})
