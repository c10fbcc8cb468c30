"""Create, list and revoke tokens, in the user's settings file or in the store.

A change takes effect at once. Nobody gives a token more rights than the own one, and `owner` comes
from the command line only.
"""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, Literal, TypeVar

from anyio.to_thread import run_sync as run_in_thread
from pydantic import Field, WithJsonSchema

from onetool.admin.action import Person, action
from onetool.admin.model import AdminError, ApiModel, absent, raising
from onetool.admin.rights import explain_token_grant
from onetool.app import OneTool
from onetool.errors import ToolError
from onetool.settings.access import Token, identify_token, new_token
from onetool.settings.edit_history import new_entry
from onetool.util.text import quote
from onetool.util.time_format import in_utc, parse_duration
from onetool.util.token_ids import ADMIN, OWNER, SCOPES, hash_token

T = TypeVar("T")
MAX_DAYS = 3650
NAME = re.compile(r"\w[\w.@-]{0,63}")
CREATE = "token.create"
REVOKE = "token.revoke"
CHANGE = "tokens"  # in the stream of events


class TokenInfo(ApiModel):
    """A token without its value, which is not stored."""

    name: str
    agent: str
    scope: str
    created: str | None
    expires: str | None
    is_expired: bool
    last_used: str | None
    token_env: str = absent("", "Environment variable of the server with the value")
    can_revoke: bool = Field(description="Whether the caller may revoke it")


class TokenList(ApiModel):
    tokens: list[TokenInfo]
    agents: list[str] = Field(description="Agents for which tokens can be created")
    scopes: list[str] = Field(description="Scopes that the caller may give to a new token")


class TokenDraft(ApiModel):
    name: Annotated[str, WithJsonSchema({"type": "string", "maxLength": 64})] = Field(
        description="Name, such as laptop"
    )
    agent: Annotated[
        str, Field(max_length=200, description="Agent of clients that use the token")
    ] = "default"
    scope: Literal["use", "approve", "admin", "owner"] = Field(
        default="use", description="What the token may do; `owner` only with the command line"
    )
    expires: Annotated[str, Field(max_length=10)] | None = Field(
        default=None, description="Time after which the token is rejected, such as 12h or 30d"
    )


class CreatedToken(ApiModel):
    name: str
    agent: str
    scope: str
    expires: str | None
    token: str = Field(description="The token, which is not shown again")
    notes: list[str]


class RevokedToken(ApiModel):
    revoked: str


@action("GET /api/tokens", "Tokens", needs=ADMIN, purpose="reading tokens")
async def list_tokens(app: OneTool, person: Person) -> TokenList:
    """List tokens."""
    accepted = await run_in_thread(_list_accepted, app)
    tokens = await run_in_thread(lambda: [_describe(app, token, person) for token in accepted])
    return TokenList(
        tokens=tokens, agents=sorted(app.settings.agents), scopes=_list_grantable(person)
    )


@action(
    "POST /api/tokens",
    "The token, which is not shown again",
    needs=ADMIN,
    purpose="creating tokens",
    status=201,
    errors=("duplicate",),
)
async def create_token(app: OneTool, person: Person, draft: TokenDraft) -> CreatedToken:
    """Create a token."""
    _check_grant(app, person, draft)
    _check_files(app)
    async with person.changing(app, CREATE, [draft.name]) as facts:
        facts |= {"agent": draft.agent, "scope": draft.scope}
        return await _change(app, partial(_create, app, person, draft))


@action(
    "DELETE /api/tokens/{name}", "The token was revoked", needs=ADMIN, purpose="revoking tokens"
)
async def revoke_token(app: OneTool, person: Person, name: str) -> RevokedToken:
    """Revoke a token."""
    accepted = await run_in_thread(_list_accepted, app)
    scope = next((token.scope for token in accepted if token.name == name), "use")
    if not person.has_scope(scope):
        message = f"revoking a token of scope '{scope}' needs a token of the same scope"
        raise AdminError("forbidden", message, {"required": scope})
    _check_files(app)
    async with person.changing(app, REVOKE, [name], frees_space=True):
        await _change(app, partial(_revoke, app, person, name, accepted))
    return RevokedToken(revoked=name)


# --- who may do what ------------------------------------------------------------------------------


def _list_grantable(person: Person) -> list[str]:
    """Return scopes that a person may grant: at most its own, and `owner` for commands."""
    return [
        scope
        for scope in SCOPES
        if person.has_scope(scope) and (scope != OWNER or person.transport == "cli")
    ]


def _check_grant(app: OneTool, person: Person, draft: TokenDraft) -> None:
    """Raise if the token would have more rights than the person."""
    command = f"onetool token create {draft.name}"
    allowed = _list_grantable(person)
    details = {"required": OWNER}
    if draft.scope not in allowed:
        hint = f"create it with: {command} --scope {draft.scope}" if draft.scope == OWNER else ""
        message = (
            f"cannot create a token of scope '{draft.scope}' here: expected {', '.join(allowed)}"
        )
        raise AdminError("forbidden", message, details, hint=hint)
    if person.agent is None or person.has_scope(OWNER):
        return
    if draft.scope == ADMIN and draft.agent != person.agent:
        message = (
            f"cannot create a token of scope 'admin' for agent {draft.agent!r}: it could change"
            " your own agent"
        )
        raise AdminError("forbidden", message, details, hint=f"create it for agent {person.agent}")
    if draft.agent not in app.settings.agents:
        return  # reported when it is created
    if reasons := explain_token_grant(app.settings, draft.agent, person.agent, app.directories):
        message = f"cannot create a token for agent {draft.agent!r}: {' and '.join(reasons)}"
        hint = f"run: {command} --agent {draft.agent} --scope {draft.scope}"
        raise AdminError("forbidden", message, details, hint=hint)


def _check_files(app: OneTool) -> None:
    if not app.state.tokens.can_change(has_settings_files=app.live_settings.reader.has_files):
        raise AdminError(
            "forbidden",
            "the program that embeds OneTool sets the tokens: they cannot be changed here",
        )


# --- changes; they block on the disk or the database ----------------------------------------------


async def _change(app: OneTool, change: Callable[[], T]) -> T:
    """Make a change and apply the settings, so that it takes effect at once."""
    async with app.live_settings.editing:
        with raising("invalid"):
            done = await run_in_thread(change)
        with suppress(ToolError):  # other settings are invalid: the health check reports that
            await app.live_settings.apply()
    app.changes.report(CHANGE)
    return done


def _list_accepted(app: OneTool) -> list[Token]:
    return app.state.tokens.apply(app.settings.auth.tokens)


def _describe(app: OneTool, token: Token, person: Person) -> TokenInfo:
    used = app.state.token_use.read(identify_token(token))
    return TokenInfo(
        name=token.name,
        agent=token.agent,
        scope=token.scope,
        created=token.created,
        expires=token.expires,
        is_expired=token.expires_at <= time.time(),
        last_used=None if used is None else in_utc(used, "seconds"),
        token_env=token.token_env or "",
        can_revoke=person.has_scope(token.scope),
    )


def _create(app: OneTool, person: Person, draft: TokenDraft) -> CreatedToken:
    """Create a token. Raise if the name is invalid or taken, or the agent unknown."""
    _check_draft(app, draft)
    text = new_token()
    now = time.time()
    token = Token(
        name=draft.name,
        hash=hash_token(text),
        agent=draft.agent,
        scope=draft.scope,
        created=in_utc(now, "seconds"),
        expires=(
            None
            if draft.expires is None
            else in_utc(now + parse_duration(draft.expires, MAX_DAYS), "seconds")
        ),
    )
    # The first token of a file of --config disables those of the user.
    notes = app.state.tokens.create(token, _list_accepted(app), may_replace=person.has_scope(OWNER))
    if notes is None:
        hint = f"choose another name, or run `onetool token revoke {token.name}`"
        raise AdminError("duplicate", f"token {quote(token.name)} already exists", hint=hint)
    _record(app, person, CREATE, token.name)
    fields = token.model_dump(include={"name", "agent", "scope", "expires"})
    return CreatedToken(**fields, token=text, notes=list(notes))


def _check_draft(app: OneTool, draft: TokenDraft) -> None:
    if not NAME.fullmatch(draft.name):
        message = (
            f"invalid token name {draft.name!r}: expected up to 64 letters, digits and _ . @ -"
        )
        raise AdminError("invalid", f"{message}, such as laptop")
    agents = app.settings.agents
    if draft.agent not in agents:
        raise AdminError(
            "invalid", f"unknown agent {quote(draft.agent)}: expected {', '.join(sorted(agents))}"
        )
    tokens = app.state.tokens
    if draft.agent not in tokens.list_agents(agents):
        reason = (
            f"agent {quote(draft.agent)} is an agent of this project, but tokens are for all"
            " directories"
        )
        raise AdminError("invalid", reason, hint=f"define it in {tokens.place}")


def _revoke(app: OneTool, person: Person, name: str, accepted: list[Token]) -> None:
    if not app.state.tokens.revoke(name, accepted):
        names = ", ".join(token.name for token in accepted)
        existing = f"existing tokens: {names}" if names else "no tokens exist"
        raise AdminError("not_found", f"no token named {quote(name)}; {existing}")
    _record(app, person, REVOKE, name)
    for token in accepted:
        if token.name == name:
            app.state.token_use.forget(identify_token(token))


def _record(app: OneTool, person: Person, change: str, name: str) -> None:
    """Add the change to the history of the settings, where it cannot be undone.

    The audit log has it anyway.
    """
    with suppress(ToolError, OSError):
        app.state.settings.history.add(
            new_entry(change, [name], actor=person.name, transport=person.transport)
        )
