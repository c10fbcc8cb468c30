"""Sign-ins of agents to upstream servers and APIs."""

from typing import Annotated

from pydantic import Field

from onetool.admin.action import Person, action
from onetool.admin.model import ApiModel, Query, raising
from onetool.app import OneTool
from onetool.errors import ToolError
from onetool.net.oauth.credential import Identity
from onetool.net.oauth.pending import PendingSignIn
from onetool.net.oauth.sign_ins import identify, make_server_target
from onetool.util.text import describe_unknown_account
from onetool.util.token_ids import APPROVE


class SignInRequest(ApiModel):
    account: Annotated[
        str, Field(max_length=200, description="Account of the server; the first by default")
    ] = ""


class SignOutQuery(Query):
    account: str = Field(default="", description="Account of the server; the first by default")


class SignInStarted(ApiModel):
    url: str = Field(
        description="URL of the authorization server, to be opened in the same browser"
    )


class SignOut(ApiModel):
    signed_out: bool


class ServerSignIn(ApiModel):
    name: str = Field(description="Name of the server")
    account: str | None = None
    agent: str | None = Field(
        default=None, description="Agent of the sign-in; null if all agents share it"
    )
    signed_in: bool
    user: str | None = Field(
        default=None, description="Name of the user, if the authorization server sent it"
    )
    expires_at: str | None = Field(default=None, description="Expiry of the current token")
    refreshes: bool = Field(
        default=False, description="Whether the token is refreshed without a person"
    )
    scope: str | None = None
    issuer: str | None = None


class ServerSignInList(ApiModel):
    sign_ins: list[ServerSignIn]


@action(
    "GET /api/sign-ins",
    "The servers that can be signed in to",
    needs=APPROVE,
    purpose="reading sign-ins",
)
async def list_sign_ins(
    app: OneTool, person: Person, *, of_all_agents: bool = False
) -> ServerSignInList:
    """List servers and whether the agent is signed in."""
    sign_ins = list[ServerSignIn]()
    for name, server in app.settings.servers.items():
        target = make_server_target(name, server)
        if target is None or (target.is_machine and not of_all_agents):
            continue
        if of_all_agents:
            identities = await app.sign_ins.list_identities(target)
        else:
            identities = [
                identify(target, account, person.agent_name) for account in target.accounts or ("",)
            ]
        is_needed = (
            not target.is_optional or app.servers.upstream(name).main.state == "sign_in_required"
        )
        for identity in identities:
            sign_in = await describe_sign_in(app, identity)
            if is_needed or sign_in.signed_in:
                sign_ins.append(sign_in)
    return ServerSignInList(sign_ins=sign_ins)


async def describe_sign_in(app: OneTool, identity: Identity) -> ServerSignIn:
    return ServerSignIn.model_validate(
        {"name": identity.target.name, **await app.sign_ins.describe(identity)}
    )


@action(
    "DELETE /api/sign-ins/{name}",
    "Whether there was a sign-in",
    needs=APPROVE,
    purpose="signing out of servers",
)
async def sign_out(app: OneTool, person: Person, name: str, query: SignOutQuery) -> SignOut:
    """Sign out of a server."""
    with raising("not_found", name=name):
        identity = identify(await app.sign_ins.find_target(name), query.account, person.agent_name)
    return SignOut(signed_out=bool(await _end(app, person, [identity])))


async def sign_out_all(
    app: OneTool, person: Person, name: str, *, account: str | None = None, agent: str | None = None
) -> list[str]:
    """End the sign-ins of all accounts and agents, or of these.

    Return the labels of those that were signed in.
    """
    target = await app.sign_ins.find_target(name)
    if account and account not in target.accounts:
        raise ToolError(describe_unknown_account(name, account, target.accounts))
    identities = await app.sign_ins.list_identities(target)
    return await _end(
        app,
        person,
        [
            identity
            for identity in identities
            if account in {None, identity.account} and agent in {None, identity.subject}
        ],
    )


async def _end(app: OneTool, person: Person, identities: list[Identity]) -> list[str]:
    ended = []
    for identity in identities:
        if await app.sign_ins.sign_out(identity):
            ended.append(identity.label)
        app.audit.change(
            "sign_in.ended", [identity.label], actor=person.name, transport=person.transport
        )
    return ended


async def begin_sign_in(
    app: OneTool, person: Person, identity: Identity, redirect_uri: str
) -> PendingSignIn:
    """Start a sign-in, which a person continues in a browser."""
    pending = await app.sign_ins.begin(identity, redirect_uri)
    app.audit.change(
        "sign_in.started", [identity.label], actor=person.name, transport=person.transport
    )
    return pending
