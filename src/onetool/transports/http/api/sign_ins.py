"""`/api/sign-ins` and `/oauth/…`: signing in to upstream servers in the browser.

The callback needs no token, because the authorization server sends the browser to it: it counts only with the state of
a sign-in that waits, and in the browser that started it.
"""

import html
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from onetool.errors import ToolError
from onetool.oauth.credential import Identity
from onetool.oauth.pending import CALLBACK_FIELDS, PENDING_SECONDS
from onetool.oauth.sign_ins import CALLBACK_PATH, CLIENT_PATH, identify, make_server_target
from onetool.transports.http import identity
from onetool.transports.http.api.common import Api
from onetool.transports.http.auth import get_agent
from onetool.transports.http.errors import ApiError
from onetool.transports.http.models import (
    ServerSignIn,
    ServerSignInList,
    SignInRequest,
    SignInStarted,
    SignOut,
    SignOutQuery,
)
from onetool.transports.http.request_checks import LOCAL_NAMES
from onetool.transports.http.responses import json_response
from onetool.transports.http.routing import Operation, ResponseSpec, read_query

if TYPE_CHECKING:
    from onetool_child.json_types import JsonObject

ROOT = "/api/sign-ins"
SCOPE = "approve"
COOKIE = "onetool_sign_in"
LIST_SECONDS = 5.0
PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
    '<title>OneTool</title><h1>{title}</h1><p>{text}</p><p><a href="../#/servers">Servers in the admin UI</a></p>'
)


class SignInHandlers:
    def __init__(self, api: Api) -> None:
        self._api = api

    def operations(self) -> Iterator[Operation]:
        listed = {200: ResponseSpec("The servers that can be signed in to", ServerSignInList)}
        yield Operation("GET", ROOT, self.list_sign_ins, "List servers and whether the agent is signed in", listed)
        path = f"{ROOT}/{{name}}"
        started = {200: ResponseSpec("The URL at which a person signs in", SignInStarted)}
        summary = "Start to sign in to a server"
        errors = ("not_found",)
        yield Operation("POST", path, self.start, summary, started, body=SignInRequest, errors=errors)
        ended = {200: ResponseSpec("Whether there was a sign-in", SignOut)}
        yield Operation("DELETE", path, self.sign_out, "Sign out of a server", ended, SignOutQuery, errors=errors)

    def routes(self) -> list[Route]:
        return [Route(CALLBACK_PATH, self.receive_callback), Route(CLIENT_PATH, self.get_client_document)]

    async def list_sign_ins(self, request: Request) -> Response:
        identity.get_person(request).require(SCOPE, "reading sign-ins")
        app = self._api.app
        agent = get_agent(request.scope)
        found = list[ServerSignIn]()
        for name, server in app.settings.servers.items():
            target = make_server_target(name, server)
            if target is None or target.is_machine:
                continue
            is_listed = not target.is_optional or app.servers.upstream(name).main.state == "sign_in_required"
            for account in target.accounts or ("",):
                state = await app.sign_ins.describe(identify(target, account, agent))
                if is_listed or state["signed_in"]:
                    found.append(ServerSignIn.model_validate({"name": name, **state}))
        return self._api.respond(ServerSignInList(sign_ins=found))

    async def start(self, request: Request) -> Response:
        by = identity.get_person(request).require(SCOPE, "signing in to servers")
        body = await self._api.parse(request, SignInRequest.parse)
        wanted = await self._identify(request, body.account)
        app = self._api.app
        redirect = f"{app.sign_ins.public_url or _read_local_url(request)}{CALLBACK_PATH}"
        try:
            pending = await app.sign_ins.begin(wanted, redirect)
        except ToolError as error:
            raise ApiError("invalid", error.message, hint=error.hint) from None
        app.audit.change("sign_in.started", [wanted.label], actor=by, transport="http")
        is_secure = "; Secure" if redirect.startswith("https://") else ""
        attributes = f"Path={CALLBACK_PATH}; Max-Age={PENDING_SECONDS:.0f}; HttpOnly; SameSite=Lax"
        header = f"{COOKIE}={pending.browser}; {attributes}"
        return json_response(SignInStarted(url=pending.url).as_json(), headers={"set-cookie": header + is_secure})

    async def sign_out(self, request: Request) -> Response:
        by = identity.get_person(request).require(SCOPE, "signing out of servers")
        wanted = await self._identify(request, read_query(SignOutQuery, request).account)
        is_ended = await self._api.app.sign_ins.sign_out(wanted)
        self._api.app.audit.change("sign_in.ended", [wanted.label], actor=by, transport="http")
        return self._api.respond(SignOut(signed_out=is_ended))

    async def _identify(self, request: Request, account: str) -> Identity:
        name = str(request.path_params["name"])
        try:
            target = await self._api.app.sign_ins.find_target(name)
            return identify(target, account, get_agent(request.scope))
        except ToolError as error:
            raise ApiError("not_found", error.message, {"name": name}, hint=error.hint) from None

    # --- what browsers and authorization servers open -----------------------------------------------------------------

    async def receive_callback(self, request: Request) -> Response:
        fields = {name: request.query_params[name] for name in CALLBACK_FIELDS if name in request.query_params}
        try:
            signed_in, _ = await self._api.app.sign_ins.finish(fields, request.cookies.get(COOKIE, ""))
        except ToolError as error:
            return _show("The sign-in failed", error.message, 400)
        self._api.app.log.event("sign_in", server=signed_in.target.name, account=signed_in.account)
        await self._list_tools(signed_in)
        return _show("Signed in", f"You are signed in to {signed_in.label}. You can close this window.", 200)

    async def _list_tools(self, identity: Identity) -> None:
        """List the tools, which a server may show only after a sign-in. If it is slow, the next call lists them."""
        app = self._api.app
        name = identity.target.name
        if name in app.settings.servers and app.settings.servers[name].enabled:
            with anyio.move_on_after(LIST_SECONDS), suppress(ToolError):
                await app.servers.upstream(name).list_as(identity)

    async def get_client_document(self, _request: Request) -> Response:
        document: JsonObject | None = self._api.app.sign_ins.build_client_document()
        if document is None:
            raise ApiError("not_found", "there is no client document", hint="set auth.public_url to an https URL")
        return json_response(document)


def _read_local_url(request: Request) -> str:
    """Return the URL of this server on loopback. Elsewhere, it must be in the settings."""
    host = request.headers["host"]
    if host.rpartition(":")[0] not in LOCAL_NAMES:
        raise ApiError("invalid", "cannot sign in here: the URL of this server is unknown", hint="set auth.public_url")
    return f"http://{host}"


def _show(title: str, text: str, status: int) -> Response:
    return HTMLResponse(PAGE.format(title=title, text=html.escape(text)), status)
