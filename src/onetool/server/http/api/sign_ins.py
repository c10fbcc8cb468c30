"""`/api/sign-ins` and `/oauth/…`: signing in to upstream servers in the browser.

The callback needs no token, because the authorization server sends the browser to it: it counts
only with the state of a sign-in that waits, and in the browser that started it.
"""

import html
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from onetool.admin.errors import raising
from onetool.admin.sign_ins import SignInRequest, SignInStarted, begin_sign_in
from onetool.errors import ToolError
from onetool.net.oauth.credential import Identity
from onetool.net.oauth.pending import CALLBACK_FIELDS, PENDING_SECONDS
from onetool.net.oauth.sign_ins import CALLBACK_PATH, CLIENT_PATH, identify
from onetool.server.http import identity
from onetool.server.http.api.common import Api
from onetool.server.http.errors import ApiError
from onetool.server.http.request_checks import LOCAL_NAMES
from onetool.server.http.responses import json_response
from onetool.server.http.routing import Operation, ResponseSpec
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
        person = identity.get_person(request)
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
