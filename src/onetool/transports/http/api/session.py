"""`/api/session`: sign in to the admin UI with the one-time code of `onetool ui`."""

from collections.abc import Iterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from onetool.transports.http.api.common import Api
from onetool.transports.http.errors import ApiError
from onetool.transports.http.json_body import RequestBody
from onetool.transports.http.models import Session, SignIn
from onetool.transports.http.responses import json_response
from onetool.transports.http.routing import Operation, ResponseSpec
from onetool.transports.http.sessions import BrowserSessions

PATH: Final = "/api/session"


class SessionHandlers:
    def __init__(self, api: Api, sessions: BrowserSessions) -> None:
        self._api, self._sessions = api, sessions

    def operations(self) -> Iterator[Operation]:
        summary, session = "Sign in to the admin UI", {200: ResponseSpec("The session, as a cookie", Session)}
        yield Operation("POST", PATH, self.sign_in, summary, session, body=SignIn)

    async def sign_in(self, request: Request) -> Response:
        """Exchange a one-time code for a session."""
        body = await self._api.read(await RequestBody.from_request(request), SignIn.parse)
        found = await self._api.run_in_thread(lambda: self._sessions.open(body.code))
        if found is None:
            raise ApiError("forbidden", "the code has expired or was used before", hint="run `onetool ui` again")
        cookie, csrf = found
        return json_response(Session(csrf=csrf).as_json(), headers={"set-cookie": cookie})
