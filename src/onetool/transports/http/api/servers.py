"""`/api/servers`: upstream servers, their state, their definitions in the settings, and changed tools."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response

from onetool.editing.planned_edit import ItemChange, PlannedEdit, SettingsItem
from onetool.editing.server_changes import SERVERS, PlannedServers, ServerChanges
from onetool.editing.settings_editor import SettingsEditor
from onetool.errors import ToolError
from onetool.proxy.definitions import digest
from onetool.proxy.servers import DefinitionsChanged
from onetool.proxy.upstream import Upstream
from onetool.transports.http import identity
from onetool.transports.http.admin_models import (
    AcceptedPins,
    EditQuery,
    EditResult,
    PinAcceptance,
    PinChange,
    ServerAddition,
    ServerDetails,
    ServerList,
    ServerStatus,
    ServerTool,
    SettingsPatch,
)
from onetool.transports.http.api.common import Api
from onetool.transports.http.api.settings_edits import EDIT_ERRORS, SettingsEdits, check_precondition, merge_patch
from onetool.transports.http.errors import ApiError
from onetool.transports.http.responses import json_response
from onetool.transports.http.routing import Operation, ResponseSpec

ROOT = "/api/servers"
READ = "approve"
MANAGE = "admin"
START_SECONDS = 60.0
MAX_DESCRIPTION_CHARS = 500


class ServerHandlers:
    def __init__(self, api: Api, edits: SettingsEdits) -> None:
        self._api = api
        self._edits = edits

    def operations(self) -> Iterator[Operation]:
        one = f"{ROOT}/{{name}}"
        edited = {200: ResponseSpec("The change", EditResult)}
        listed = {200: ResponseSpec("The configured servers", ServerList)}
        yield Operation("GET", ROOT, self.list_servers, "List upstream servers and their states", listed)
        details = {200: ResponseSpec("The server", ServerDetails)}
        yield Operation("GET", one, self.show, "Get an upstream server", details, errors=("not_found",))
        summary = "Add upstream servers"
        errors = (*EDIT_ERRORS, "read_only")
        yield Operation("POST", ROOT, self.add, summary, edited, EditQuery, ServerAddition, errors)
        options = {"errors": errors, "is_conditional": True}
        summary = "Change the settings of an upstream server"
        yield Operation("PATCH", one, self.change, summary, edited, EditQuery, SettingsPatch, **options)  # type: ignore[arg-type]
        yield Operation("DELETE", one, self.remove, "Remove an upstream server", edited, EditQuery, **options)  # type: ignore[arg-type]
        missing = ("not_found",)
        yield Operation("POST", f"{one}/start", self.start, "Start an upstream server", details, errors=missing)
        yield Operation("POST", f"{one}/stop", self.stop, "Stop an upstream server", details, errors=missing)
        accepted = {200: ResponseSpec("The accepted differences", AcceptedPins)}
        summary = "Accept new and changed tools of an upstream server"
        refused = (*missing, "definitions_changed")
        yield Operation("POST", f"{one}/accept", self.accept, summary, accepted, body=PinAcceptance, errors=refused)

    # --- reading --------------------------------------------------------------------------------------------------

    async def list_servers(self, request: Request) -> Response:
        identity.get_person(request).require(READ, "reading servers")
        app = self._api.app
        await asyncio.gather(*map(self._load_cached, app.settings.servers))
        items = await self._api.run_in_thread(
            lambda: {name: self._edits.find(SERVERS, name) for name in app.settings.servers}
        )
        found = ServerList(servers=[self._describe(name, item) for name, item in items.items()])
        return await self._api.run_in_thread(lambda: self._api.respond(found))

    async def show(self, request: Request) -> Response:
        identity.get_person(request).require(READ, "reading servers")
        return await self._respond(self._name(request))

    async def _respond(self, name: str) -> Response:
        upstream = self._upstream(name)
        await self._load_cached(name)
        item = await self._api.run_in_thread(lambda: self._edits.find(SERVERS, name))
        tools = [
            ServerTool(
                name=tool,
                description=definition.description[:MAX_DESCRIPTION_CHARS],
                is_rejected=tool in upstream.tools.rejected,
            )
            for tool, definition in sorted(upstream.tools.offered.items())
        ]
        status = self._describe(name, item).model_dump()
        details = ServerDetails(**status, tools=tools, output=upstream.main.output)
        headers = {"etag": item.etag} if item.etag else None
        return await self._api.run_in_thread(lambda: json_response(self._api.to_json(details), headers=headers))

    async def _load_cached(self, name: str) -> None:
        """Load the known tools of a server. Tools that cannot be used must not hide the server."""
        with suppress(ToolError, ValueError):
            await self._upstream(name).main.load_cached()

    def _describe(self, name: str, item: SettingsItem) -> ServerStatus:
        server = self._api.app.settings.servers[name]
        upstream = self._api.app.servers.upstream(name)
        tools = upstream.tools
        changed, new = tools.differences
        changes = [PinChange(tool=tool, kind="changed", difference=text) for tool, text in changed.items()]
        changes += [PinChange(tool=tool, kind="new", difference=text) for tool, text in new.items()]
        changes += [PinChange(tool=tool, kind="hints", difference=text) for tool, text in tools.claims.items()]
        return ServerStatus(
            name=name,
            kind="stdio" if server.url is None else server.transport,
            is_enabled=server.enabled,
            state=upstream.main.state,
            problem=upstream.main.failure or None,
            tool_count=len(upstream.tools.offered) if upstream.main.is_known else None,
            changes=changes,
            digest=digest(tools.definitions),
            pin=server.pin,
            entry=self._edits.describe(item),
        )

    def _name(self, request: Request) -> str:
        name = str(request.path_params["name"])
        known = self._api.app.settings.servers
        if name not in known:
            hint = f"configured servers: {', '.join(known) or 'none'}"
            raise ApiError("not_found", f"no server named {name!r}", {"name": name}, hint=hint)
        return name

    # --- running --------------------------------------------------------------------------------------------------

    async def start(self, request: Request) -> Response:
        name = await self._begin(request, "server.start", "starting servers")
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._upstream(name).main.start()
        except TimeoutError:
            raise ApiError("invalid", f"{name} did not start within {START_SECONDS:g} s") from None
        except ToolError as error:
            raise ApiError("invalid", error.message, hint=error.hint) from None
        return await self._respond(name)

    async def stop(self, request: Request) -> Response:
        name = await self._begin(request, "server.stop", "stopping servers")
        await self._upstream(name).stop()
        return await self._respond(name)

    async def accept(self, request: Request) -> Response:
        name = await self._begin(request, "server.accept", "accepting changed tools")
        body = await self._api.parse(request, PinAcceptance.parse)
        try:
            accepted = await self._api.app.servers.accept(name, body.digest, accepts_hints=True)
        except DefinitionsChanged as error:
            raise ApiError("definitions_changed", error.message, {"name": name}) from None
        except ToolError as error:
            raise ApiError("invalid", error.message, hint=error.hint) from None
        return self._api.respond(AcceptedPins(accepted=accepted))

    async def _begin(self, request: Request, action: str, purpose: str) -> str:
        """Return the name of the server, and record what is about to be done."""
        actor = identity.get_person(request).require(MANAGE, purpose)
        name = self._name(request)
        self._api.app.audit.change(action, [name], actor=actor, transport="http")
        return name

    def _upstream(self, name: str) -> Upstream:
        return self._api.app.servers.upstream(name)

    # --- editing --------------------------------------------------------------------------------------------------

    async def add(self, request: Request) -> Response:
        identity.get_person(request).require(MANAGE, "adding servers")
        body = await self._api.parse(request, ServerAddition.parse)
        if (body.text is None) == (body.settings is None) or (body.settings is None) != (body.name is None):
            raise ApiError("invalid", "expected either `text`, or `name` and `settings`")
        app = self._api.app
        planned = list[PlannedServers]()

        def plan(editor: SettingsEditor) -> PlannedEdit:
            changes = ServerChanges(editor, app.directories, app.environment)
            if body.text is not None:
                planned.append(changes.plan_pasted(body.text))
            else:
                planned.append(changes.plan_new(body.name or "", body.settings or {}))
            return planned[-1].edit

        edited = await self._edits.edit(request, plan)
        result = planned[-1].result
        return self._api.respond(edited.model_copy(update={"notes": result.notes, "missing": result.missing}))

    async def change(self, request: Request) -> Response:
        identity.get_person(request).require(MANAGE, "changing servers")
        body = await self._api.parse(request, SettingsPatch.parse)
        name = self._name(request)

        def plan(editor: SettingsEditor) -> PlannedEdit:
            item = editor.find(SERVERS, name)
            check_precondition(request, item)
            return editor.plan("servers.change", [ItemChange(SERVERS, name, merge_patch(item.value, body.settings))])

        return self._api.respond(await self._edits.edit(request, plan))

    async def remove(self, request: Request) -> Response:
        identity.get_person(request).require(MANAGE, "removing servers")
        name = self._name(request)

        def plan(editor: SettingsEditor) -> PlannedEdit:
            check_precondition(request, editor.find(SERVERS, name))
            return editor.plan("servers.remove", [ItemChange(SERVERS, name, None)])

        return self._api.respond(await self._edits.edit(request, plan))
