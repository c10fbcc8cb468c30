"""Sign-ins in the browser: `/api/session` for the admin UI, and `/oauth/…` for upstream servers.

The callback needs no token, because the authorization server sends the browser to it: it counts
only with the state of a sign-in that waits, and in the browser that started it.
"""

import html
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import anyio
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from onetool.admin.model import raising
from onetool.admin.sign_ins import SignInRequest, SignInStarted, begin_sign_in
from onetool.errors import ToolError
from onetool.net.oauth.credential import Identity
from onetool.net.oauth.pending import CALLBACK_FIELDS, PENDING_SECONDS
from onetool.net.oauth.sign_ins import CALLBACK_PATH, CLIENT_PATH, identify
from onetool.server.http.api.common import (
    Api,
    Session,
    SessionStatus,
    SignIn,
    SignInOption,
    get_person,
)
from onetool.server.http.auth import ACTOR, SCOPE, SESSION_PATH, SIGN_IN_PATH
from onetool.server.http.errors import ApiError, json_response
from onetool.server.http.request_checks import LOCAL_NAMES
from onetool.server.http.routing import Operation, ResponseSpec
from onetool.server.http.sessions import BrowserSessions
from onetool.util.token_ids import APPROVE

if TYPE_CHECKING:
    from onetool_child.json_types import JsonObject

ROOT = "/api/sign-ins"
COOKIE = "onetool_sign_in"
LIST_SECONDS = 5.0
PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light'
    ' dark"><title>OneTool</title><h1>{title}</h1><p>{text}</p><p><a href="../#/servers">Servers in'
    " the admin UI</a></p>"
)
PATH = SESSION_PATH


class SignInHandlers:
    def __init__(self, api: Api) -> None:
        self._api = api

    def operations(self) -> Iterator[Operation]:
        path = f"{ROOT}/{{name}}"
        started = {200: ResponseSpec("The URL at which a person signs in", SignInStarted)}
        summary = "Start to sign in to a server"
        errors = ("not_found",)
        yield Operation(
            "POST", path, self.start, summary, started, body=SignInRequest, errors=errors
        )

    def routes(self) -> list[Route]:
        return [
            Route(CALLBACK_PATH, self.receive_callback),
            Route(CLIENT_PATH, self.get_client_document),
        ]

    async def start(self, request: Request) -> Response:
        person = get_person(request)
        person.require(APPROVE, "signing in to servers")
        body = await self._api.parse(request, SignInRequest.parse)
        app = self._api.app
        name = str(request.path_params["name"])
        with raising("not_found", name=name):
            target = identify(await app.sign_ins.find_target(name), body.account, person.agent_name)
        redirect = f"{app.sign_ins.public_url or _read_local_url(request)}{CALLBACK_PATH}"
        with raising("invalid"):
            pending = await begin_sign_in(app, person, target, redirect)
        is_secure = "; Secure" if redirect.startswith("https://") else ""
        attributes = f"Path={CALLBACK_PATH}; Max-Age={PENDING_SECONDS:.0f}; HttpOnly; SameSite=Lax"
        header = f"{COOKIE}={pending.browser}; {attributes}"
        return json_response(
            SignInStarted(url=pending.url).as_json(), headers={"set-cookie": header + is_secure}
        )

    # --- what browsers and authorization servers open ---------------------------------------------

    async def receive_callback(self, request: Request) -> Response:
        fields = {
            name: request.query_params[name]
            for name in CALLBACK_FIELDS
            if name in request.query_params
        }
        try:
            signed_in, _ = await self._api.app.sign_ins.finish(
                fields, request.cookies.get(COOKIE, "")
            )
        except ToolError as error:
            return _show("The sign-in failed", error.message, 400)
        self._api.app.log.event("sign_in", server=signed_in.target.name, account=signed_in.account)
        await self._list_tools(signed_in)
        return _show(
            "Signed in", f"You are signed in to {signed_in.label}. You can close this window.", 200
        )

    async def _list_tools(self, identity: Identity) -> None:
        """List the tools, which a server may show only after a sign-in.

        If it is slow, the next call lists them.
        """
        app = self._api.app
        name = identity.target.name
        if name in app.settings.servers and app.settings.servers[name].enabled:
            with anyio.move_on_after(LIST_SECONDS), suppress(ToolError):
                await app.servers.upstream(name).list_as(identity)

    async def get_client_document(self, _request: Request) -> Response:
        document: JsonObject | None = self._api.app.sign_ins.build_client_document()
        if document is None:
            raise ApiError(
                "not_found",
                "there is no client document",
                hint="set auth.public_url to an https URL",
            )
        return json_response(document)


def _read_local_url(request: Request) -> str:
    """Return the URL of this server on loopback. Elsewhere, it must be in the settings."""
    host = request.headers["host"]
    if host.rpartition(":")[0] not in LOCAL_NAMES:
        raise ApiError(
            "invalid",
            "cannot sign in here: the URL of this server is unknown",
            hint="set auth.public_url",
        )
    return f"http://{host}"


def _show(title: str, text: str, status: int) -> Response:
    return HTMLResponse(PAGE.format(title=title, text=html.escape(text)), status)


# --- the session of a browser ---------------------------------------------------------------------


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
                entry.issuer for entry in self._api.app.settings.auth.issuers if entry.client_id
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
