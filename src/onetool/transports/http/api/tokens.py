"""`/api/tokens`: create, list and revoke tokens. A change takes effect at once."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from onetool.editing.rights import explain_token_grant
from onetool.errors import StorageError, ToolError, ToolNotFound
from onetool.transports.http import identity
from onetool.transports.http.api.common import Api
from onetool.transports.http.auth import SCOPE
from onetool.transports.http.errors import ApiError
from onetool.transports.http.json_body import RequestBody
from onetool.transports.http.record_models import CreatedToken, RevokedToken, TokenDraft, TokenInfo, TokenList
from onetool.transports.http.responses import json_response
from onetool.transports.http.routing import Operation, ResponseSpec
from onetool.transports.http.token_changes import TAKEN, TokenChanges, TokenRequest
from onetool.util.token_ids import SCOPES, includes_scope

T = TypeVar("T")
ROOT = "/api/tokens"
ADMIN = "admin"
OWNER = "owner"
CHANGE = "tokens"  # in the stream of events


class TokenHandlers:
    def __init__(self, api: Api) -> None:
        self._api = api

    def operations(self) -> Iterator[Operation]:
        yield Operation("GET", ROOT, self.list_tokens, "List tokens", {200: ResponseSpec("Tokens", TokenList)})
        created = {201: ResponseSpec("The token, which is not shown again", CreatedToken)}
        errors = ("duplicate",)
        yield Operation("POST", ROOT, self.create, "Create a token", created, body=TokenDraft, errors=errors)
        path = f"{ROOT}/{{name}}"
        revoked = {200: ResponseSpec("The token was revoked", RevokedToken)}
        yield Operation("DELETE", path, self.revoke, "Revoke a token", revoked, errors=("not_found",))

    async def list_tokens(self, request: Request) -> Response:
        identity.require_scope(request, ADMIN, "reading tokens")
        scope = request.scope["state"][SCOPE]
        changes = self._open()
        described = await self._api.run_in_thread(changes.describe_all)
        tokens = [TokenInfo(**each, can_revoke=includes_scope(scope, each["scope"])) for each in described]
        agents = sorted(changes.settings.agents)
        scopes = _list_grantable(scope)
        return json_response(TokenList(tokens=tokens, agents=agents, scopes=scopes).as_json())

    async def create(self, request: Request) -> Response:
        by = identity.require_scope(request, ADMIN, "creating tokens")
        draft = await self._api.read(await RequestBody.from_request(request), TokenDraft.parse)
        allowed = _list_grantable(request.scope["state"][SCOPE])
        if draft.scope not in allowed:
            hint = f"create it with: onetool token create {draft.name} --scope {draft.scope}"
            message = f"cannot create a token of scope '{draft.scope}' here: expected {', '.join(allowed)}"
            raise ApiError("forbidden", message, {"required": OWNER}, hint=hint if draft.scope == OWNER else "")
        own = request.scope["state"]["agent"]
        if draft.scope == ADMIN and own not in {None, draft.agent} and not identity.has_scope(request, OWNER):
            message = (
                f"cannot create a token of scope 'admin' for agent {draft.agent!r}: it could change your own agent"
            )
            raise ApiError("forbidden", message, {"required": OWNER}, hint=f"create it for agent {own}")
        if own is not None and not identity.has_scope(request, OWNER):
            self._check_agent(draft, own)
        self._check_files()
        wanted = TokenRequest(
            draft.name, draft.agent, draft.scope, draft.expires, may_replace=identity.has_scope(request, OWNER)
        )
        async with self._api.app.audit.changing("token.create", [draft.name], actor=by, transport="http") as facts:
            facts |= {"agent": draft.agent, "scope": draft.scope}
            new = await self._change(partial(self._open(by).create, wanted))
        created = CreatedToken(
            name=new.name,
            agent=new.agent,
            scope=new.scope,
            expires=new.expires,
            token=new.token,
            notes=list(new.notes),
        )
        return json_response(created.as_json(), 201)

    async def revoke(self, request: Request) -> Response:
        by = identity.require_scope(request, ADMIN, "revoking tokens")
        name = str(request.path_params["name"])
        changes = self._open(by)
        known = await self._api.run_in_thread(changes.list_accepted)
        scope = next((token.scope for token in known if token.name == name), "use")
        if not includes_scope(request.scope["state"][SCOPE], scope):
            message = f"revoking a token of scope '{scope}' needs a token of the same scope"
            raise ApiError("forbidden", message, {"required": scope})
        self._check_files()
        async with self._api.app.audit.changing("token.revoke", [name], actor=by, transport="http", frees_space=True):
            await self._change(partial(changes.revoke, name))
        return json_response(RevokedToken(revoked=name).as_json())

    def _check_agent(self, draft: TokenDraft, own: str) -> None:
        """Raise if the token would have more rights than the agent of the caller."""
        app = self._api.app
        if draft.agent not in app.settings.agents:
            return  # reported when it is created
        if reasons := explain_token_grant(app.settings, draft.agent, own, app.directories):
            message = f"cannot create a token for agent {draft.agent!r}: {' and '.join(reasons)}"
            hint = f"run: onetool token create {draft.name} --agent {draft.agent} --scope {draft.scope}"
            raise ApiError("forbidden", message, {"required": OWNER}, hint=hint)

    def _open(self, actor: str = "") -> TokenChanges:
        app = self._api.app
        return TokenChanges(app.settings, app.state, actor, "http")

    def _check_files(self) -> None:
        app = self._api.app
        if not app.state.tokens.can_change(has_settings_files=app.reader.has_files):
            raise ApiError("forbidden", "the program that embeds OneTool sets the tokens: they cannot be changed here")

    async def _change(self, change: Callable[[], T]) -> T:
        """Make a change and apply the settings, so that it takes effect at once."""
        async with self._api.app.editing_settings:
            try:
                done = await self._api.run_in_thread(change)
            except ToolNotFound as error:
                raise ApiError("not_found", error.message) from None
            except StorageError as error:
                raise ApiError.from_error(error) from None
            except ToolError as error:
                code = TAKEN if error.fields.get("code") == TAKEN else "invalid"
                raise ApiError(code, error.message, hint=error.hint) from None
            with suppress(ToolError):  # other settings are invalid: the health check reports that
                await self._api.app.apply_settings()
        self._api.live_runs.publish_change(CHANGE)
        return done


def _list_grantable(scope: str) -> list[str]:
    """Return the scopes that a caller may give to a token: not more than its own, and never `owner`."""
    return [each for each in SCOPES if each != OWNER and includes_scope(scope, each)]
