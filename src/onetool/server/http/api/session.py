"""`/api/session`: sign in to the admin UI with a one-time code, read who is signed in, and sign
out.
"""

from collections.abc import Iterator
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from onetool.server.http.api.common import Api
from onetool.server.http.auth import ACTOR, SCOPE, SESSION_PATH, SIGN_IN_PATH
from onetool.server.http.errors import ApiError
from onetool.server.http.models import Session, SessionStatus, SignIn, SignInOption
from onetool.server.http.responses import json_response
from onetool.server.http.routing import Operation, ResponseSpec
from onetool.server.http.sessions import BrowserSessions

PATH = SESSION_PATH


class SessionHandlers:
    def __init__(self, api: Api, sessions: BrowserSessions) -> None:
        self._api = api
        self._sessions = sessions

    def operations(self) -> Iterator[Operation]:
        summary = "Sign in to the admin UI"
        session = {200: ResponseSpec("The session, as a cookie", Session)}
        yield Operation("POST", PATH, self.sign_in, summary, session, body=SignIn)
        summary = "Get who is signed in"
        status = {200: ResponseSpec("The caller, and where to sign in", SessionStatus)}
        yield Operation("GET", PATH, self.show, summary, status)
        yield Operation(
            "DELETE", PATH, self.sign_out, "Sign out", {204: ResponseSpec("The session has ended")}
        )

    async def show(self, request: Request) -> Response:
        state = request.scope["state"]
        options = [
            SignInOption(issuer=url, path=f"{SIGN_IN_PATH}?{urlencode({'issuer': url})}")
            for url in dict.fromkeys(
                each.issuer for each in self._api.app.settings.auth.issuers if each.client_id
            )
        ]
        status = SessionStatus(
            actor=state.get(ACTOR), agent=state["agent"], scope=state.get(SCOPE), sign_in=options
        )
        return json_response(status.as_json())

    async def sign_in(self, request: Request) -> Response:
        """Exchange a one-time code for a session."""
        body = await self._api.parse(request, SignIn.parse)
        is_local = request.scope["state"]["agent"] is None
        # A local browser uses plain HTTP, also if the server has a public URL. Some browsers then
        # drop a secure cookie.
        is_secure = not is_local and (self._api.app.settings.auth.public_url or "").startswith(
            "https://"
        )
        found = await self._api.run_in_thread(
            lambda: self._sessions.open(
                body.code, request.headers, is_local=is_local, is_secure=is_secure
            )
        )
        if found is None:
            hint = "sign in again, or run `onetool ui` again"
            raise ApiError("forbidden", "the code has expired or was used before", hint=hint)
        cookie, session = found
        answer = Session(
            csrf=session.csrf, actor=session.credential.actor, scope=session.credential.scope
        )
        return json_response(answer.as_json(), headers={"set-cookie": cookie})

    async def sign_out(self, request: Request) -> Response:
        """End the session. Its requests that are open end too."""
        return Response(
            status_code=204, headers={"set-cookie": await self._sessions.close(request.headers)}
        )
