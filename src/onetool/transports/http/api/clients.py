"""`/api/clients`: list and disconnect the clients of this server and of the shared server of this user."""

from collections.abc import Iterator
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response

from onetool.daemon_client import ask_daemon
from onetool.transports.http import identity
from onetool.transports.http.api.common import Api
from onetool.transports.http.errors import ApiError
from onetool.transports.http.mcp_endpoint import McpEndpoint
from onetool.transports.http.record_models import ConnectedClientInfo, ConnectedClientList, DisconnectedClient
from onetool.transports.http.routing import Operation, ResponseSpec
from onetool.transports.mcp.http_clients import HttpClient
from onetool.util.time_format import in_utc
from onetool_child.json_types import JsonObject

ROOT = "/api/clients"
SCOPE = "admin"
CHANGE = "clients"  # in the stream of events


class ClientHandlers:
    def __init__(self, api: Api, mcp: McpEndpoint) -> None:
        self._api = api
        self._mcp = mcp

    def operations(self) -> Iterator[Operation]:
        clients = {200: ResponseSpec("Connected clients", ConnectedClientList)}
        yield Operation("GET", ROOT, self.list_clients, "List connected clients", clients)
        path = f"{ROOT}/{{clientID}}"
        ended = {200: ResponseSpec("The client was disconnected", DisconnectedClient)}
        errors = ("not_found", "not_connected")
        yield Operation("DELETE", path, self.disconnect, "Disconnect a client", ended, errors=errors)

    async def list_clients(self, request: Request) -> Response:
        identity.get_person(request).require(SCOPE, "reading the connected clients")
        own = [_describe_http(client) for client in self._mcp.list_clients()]
        return self._api.respond(ConnectedClientList(clients=[*own, *await self._list_local()]))

    async def _list_local(self) -> list[ConnectedClientInfo]:
        """Return the clients of the shared server. A program that embeds OneTool does not know it."""
        if not self._api.app.live_settings.reader.has_files:
            return []
        status = await self._ask({"kind": "status"})
        return [_describe_local(client) for client in status.get("clients", ())]

    async def disconnect(self, request: Request) -> Response:
        by = identity.get_person(request).require(SCOPE, "disconnecting clients")
        wanted = str(request.path_params["clientID"])
        client = next((each for each in self._mcp.list_clients() if each.id == wanted), None)
        local = next((each for each in await self._list_local() if each.id == wanted), None) if client is None else None
        found = client or local
        if found is None:
            raise ApiError("not_found", "no such client, or it is no longer connected", {"clientID": wanted})
        async with self._api.app.audit.changing("client.disconnect", [wanted], actor=by, transport="http") as facts:
            facts |= {"client": found.name, "agent": found.agent}
            if client is not None and not await self._mcp.disconnect(client):
                hint = "revoke its token to end its access" if client.actor else "stop the server to end its access"
                message = "this client has no session: each of its requests stands alone"
                raise ApiError("not_connected", message, {"clientID": wanted}, hint=hint)
            if local is not None:
                await self._ask({"kind": "disconnect", "argv": [wanted]})
        self._api.live_runs.publish_change(CHANGE)
        return self._api.respond(DisconnectedClient(disconnected=wanted))

    async def _ask(self, question: JsonObject) -> JsonObject:
        with suppress(TimeoutError, OSError):
            return await self._api.run_in_thread(lambda: ask_daemon(question)) or {}
        return {}


def _describe_http(client: HttpClient) -> ConnectedClientInfo:
    return ConnectedClientInfo(
        id=client.id,
        name=client.name,
        kind="http",
        agent=client.agent,
        actor=client.actor,
        since=in_utc(client.since, "seconds"),
        last_call=in_utc(client.last_call, "seconds"),
        directory="",
        process=None,
    )


def _describe_local(client: JsonObject) -> ConnectedClientInfo:
    last_call = client.get("last_call")
    return ConnectedClientInfo(
        id=client["id"],
        name=client["name"],
        kind=client["kind"],
        agent=client.get("agent", ""),
        actor="",
        since=in_utc(client["since"], "seconds"),
        last_call=in_utc(last_call, "seconds") if last_call else None,
        directory=client["directory"],
        process=client["pid"],
    )
