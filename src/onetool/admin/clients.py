"""List and disconnect the clients of this server and of the shared server of this user."""

from typing import Literal

from anyio.to_thread import run_sync as run_in_thread
from pydantic import Field

from onetool.admin.action import Person, action
from onetool.admin.model import AdminError, ApiModel, Time
from onetool.app import OneTool
from onetool.errors import ToolError
from onetool.processes.daemon_connection import ask_daemon
from onetool.util.http_clients import HttpClient
from onetool.util.time_format import in_utc
from onetool.util.token_ids import ADMIN
from onetool_child.json_types import JsonObject

CHANGE = "clients"  # in the stream of events


class ConnectedClientInfo(ApiModel):
    id: str
    name: str = Field(description="Name that the client reports")
    kind: Literal["http", "stdio", "command"]
    agent: str
    actor: str
    since: Time
    last_call: Time | None
    directory: str
    process: int | None = Field(description="Process of a client of this machine")


class ConnectedClientList(ApiModel):
    clients: list[ConnectedClientInfo]


class DisconnectedClient(ApiModel):
    disconnected: str


@action(
    "GET /api/clients", "Connected clients", needs=ADMIN, purpose="reading the connected clients"
)
async def list_clients(app: OneTool, person: Person) -> ConnectedClientList:
    """List connected clients."""
    own = app.http_clients.list_clients() if app.http_clients is not None else ()
    return ConnectedClientList(clients=[*map(_describe_http, own), *await _list_local(app, person)])


@action(
    "DELETE /api/clients/{clientID}",
    "The client was disconnected",
    needs=ADMIN,
    purpose="disconnecting clients",
    errors=("not_connected",),
)
async def disconnect_client(app: OneTool, person: Person, client_id: str) -> DisconnectedClient:
    """Disconnect a client."""
    client = next(
        (client for client in (await list_clients(app, person)).clients if client.id == client_id),
        None,
    )
    if client is None:
        raise AdminError(
            "not_found", "no such client, or it is no longer connected", {"clientID": client_id}
        )
    async with person.changing(app, "client.disconnect", [client_id]) as facts:
        facts |= {"client": client.name, "agent": client.agent}
        if client.kind != "http":
            await _ask(person, {"kind": "disconnect", "argv": [client_id]})
        elif not await _end_session(app, client_id):
            hint = "stop the server to end its access"
            if client.actor:
                hint = "revoke its token to end its access"
            message = "this client has no session: each of its requests stands alone"
            raise AdminError("not_connected", message, {"clientID": client_id}, hint=hint)
    app.live_runs.publish_change(CHANGE)
    return DisconnectedClient(disconnected=client_id)


async def _end_session(app: OneTool, client_id: str) -> bool:
    assert app.http_clients is not None  # it has listed the client
    clients = [client for client in app.http_clients.list_clients() if client.id == client_id]
    return bool(clients) and await app.http_clients.disconnect(clients[0])


async def _list_local(app: OneTool, person: Person) -> list[ConnectedClientInfo]:
    """Return the clients of the shared server. A program that embeds OneTool does not know it."""
    if not app.live_settings.reader.has_files:
        return []
    status = await _ask(person, {"kind": "status"})
    return [_describe_local(client) for client in status.get("clients", ())]


async def _ask(person: Person, question: JsonObject) -> JsonObject:
    """Return the shared server's reply; over REST, nothing if it does not answer."""
    try:
        return await run_in_thread(ask_daemon, question) or {}
    except (TimeoutError, OSError) as error:
        if person.transport == "cli":
            raise ToolError(str(error), hint="see `onetool daemon logs`") from None
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
