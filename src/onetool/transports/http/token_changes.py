"""Create, list and revoke tokens: in the user's settings file, or in the store if the settings have one."""

import re
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple

from onetool.config.model import Settings, Token
from onetool.editing.edit_history import new_entry
from onetool.errors import ArgumentError, ToolError, ToolNotFound
from onetool.state.kinds import LastUses
from onetool.state.storage import State
from onetool.transports.http.tokens import hash_token, identify_token, new_token
from onetool.util.text import quote
from onetool.util.time_format import in_utc, parse_duration
from onetool_child.json_types import JsonObject

MAX_DAYS = 3650
NAME = re.compile(r"\w[\w.@-]{0,63}")
Scope = Literal["use", "approve", "admin", "owner"]
TAKEN = "duplicate"  # the code of the error for a name that exists


class TokenRequest(NamedTuple):
    """A token to create. `duration` is the time after which it expires, such as `30d`."""

    name: str
    agent: str = "default"
    scope: Scope = "use"
    duration: str | None = None
    may_replace: bool = True  # whether it may be the first of a file of --config, which disables those of the user


@dataclass(frozen=True, slots=True)
class NewToken:
    """A created token, which is shown once. `place` has its hash."""

    token: str
    name: str
    agent: str
    scope: str
    expires: str | None
    place: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenChanges:
    """The tokens of an application. Methods block on disk access, or on the database."""

    settings: Settings
    state: State
    actor: str = ""
    transport: str = ""

    def list_accepted(self) -> list[Token]:
        return self.state.tokens.apply(self.settings.auth.tokens)

    def describe_all(self) -> list[JsonObject]:
        """Return what is shown of each token: never its hash."""
        return [_describe(token, self.state.token_use) for token in self.list_accepted()]

    def create(self, request: TokenRequest) -> NewToken:
        """Create a token. Raise a ToolError if the name is invalid or taken, or the agent unknown."""
        self._check(request)
        text = new_token()
        now = time.time()
        expires = None
        if request.duration is not None:
            expires = in_utc(now + parse_duration(request.duration, MAX_DAYS), "seconds")
        fields: JsonObject = {"name": request.name, "hash": hash_token(text), "agent": request.agent}
        token = Token(**fields, scope=request.scope, created=in_utc(now, "seconds"), expires=expires)
        notes = self.state.tokens.create(token, self.list_accepted(), may_replace=request.may_replace)
        if notes is None:
            hint = f"choose another name, or run `onetool token revoke {token.name}`"
            raise ToolError(f"token {quote(token.name)} already exists", hint=hint, code=TAKEN)
        self._record("token.create", token.name)
        place = self.state.tokens.place
        return NewToken(text, request.name, request.agent, request.scope, expires, place, notes)

    def _check(self, request: TokenRequest) -> None:
        if not NAME.fullmatch(request.name):
            message = f"invalid token name {request.name!r}: expected up to 64 letters, digits and _ . @ -"
            raise ArgumentError(f"{message}, such as laptop")
        agents = self.settings.agents
        if request.agent not in agents:
            raise ArgumentError(f"unknown agent {quote(request.agent)}: expected {', '.join(sorted(agents))}")
        if request.agent not in self.state.tokens.list_agents(agents):
            reason = f"agent {quote(request.agent)} is an agent of this project, but tokens are for all directories"
            raise ArgumentError(reason, hint=f"define it in {self.state.tokens.place}")

    def revoke(self, name: str) -> str:
        """Revoke a token and return the place that had it. Raise ToolNotFound if there is none."""
        accepted = self.list_accepted()
        if not self.state.tokens.revoke(name, accepted):
            raise _unknown_token(name, [token.name for token in accepted])
        self._record("token.revoke", name)
        for token in accepted:
            if token.name == name:
                self.state.token_use.forget(identify_token(token))
        return self.state.tokens.place

    def _record(self, action: str, name: str) -> None:
        """Add the change to the history of the settings, where it cannot be undone. The audit log has it anyway."""
        with suppress(ToolError, OSError):
            self.state.settings.history.add(new_entry(action, [name], actor=self.actor, transport=self.transport))


def _describe(token: Token, use: LastUses) -> JsonObject:
    used = use.read(identify_token(token))
    return {
        "name": token.name,
        "agent": token.agent,
        "scope": token.scope,
        "created": token.created,
        "expires": token.expires,
        "is_expired": token.expires_at <= time.time(),
        "last_used": None if used is None else in_utc(used, "seconds"),
        **({"token_env": token.token_env} if token.token_env else {}),
    }


def _unknown_token(name: str, known: list[str]) -> ToolNotFound:
    existing = f"existing tokens: {', '.join(known)}" if known else "no tokens exist"
    return ToolNotFound(f"no token named {quote(name)}; {existing}")
