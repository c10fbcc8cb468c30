"""Sign-ins that wait for a person: single use, ten minutes, found by a random state."""

import hmac
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from onetool.errors import ToolError
from onetool.oauth.credential import Credential, Identity
from onetool.oauth.failures import describe_code
from onetool.util.clock_watch import Clock

if TYPE_CHECKING:
    from onetool.oauth.discovery import ServerMetadata

PENDING_SECONDS = 600.0
MAX_PENDING = 100
STATE_BYTES = 32
VERIFIER_BYTES = 64
CALLBACK_FIELDS = ("code", "state", "iss", "error")


@dataclass(frozen=True, slots=True)
class PendingSignIn:
    """A sign-in between the authorization request and its answer. The credential has the requested scope."""

    identity: Identity
    credential: Credential = field(repr=False)
    server: "ServerMetadata"
    expires: float
    state: str = field(default_factory=lambda: secrets.token_urlsafe(STATE_BYTES), repr=False)
    browser: str = field(default_factory=lambda: secrets.token_urlsafe(STATE_BYTES), repr=False)  # its cookie
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(VERIFIER_BYTES), repr=False)

    @property
    def url(self) -> str:
        """The URL at which a person signs in."""
        return self.server.build_sign_in_url(self.credential, self.state, self.verifier)


class PendingSignIns:
    """The sign-ins of this process that wait for an answer."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._pending: list[PendingSignIn] = []

    def add(self, identity: Identity, credential: Credential, server: "ServerMetadata") -> PendingSignIn:
        pending = PendingSignIn(identity, credential, server, self._clock() + PENDING_SECONDS)
        self._pending = [*self._list_live(), pending][-MAX_PENDING:]
        return pending

    def take(self, state: str) -> PendingSignIn:
        """Return the sign-in with this state, once. Every state is compared in constant time."""
        found = [each for each in self._list_live() if hmac.compare_digest(each.state.encode(), state.encode())]
        if not found:
            raise ToolError("the sign-in failed: its state is unknown, was used before or has expired")
        self._pending = [each for each in self._pending if each is not found[0]]
        return found[0]

    def discard(self, pending: PendingSignIn) -> None:
        self._pending = [each for each in self._pending if each is not pending]

    def has(self, pending: PendingSignIn) -> bool:
        return any(each is pending for each in self._list_live())

    def _list_live(self) -> list[PendingSignIn]:
        now = self._clock()
        return [each for each in self._pending if each.expires > now]


def parse_callback(url: str) -> dict[str, str]:
    """Return the fields of a callback URL, or of its query. Raise if it is not one."""
    query = urlsplit(url.strip()).query or url.strip().lstrip("?")
    found = dict(parse_qsl(query[:100_000], max_num_fields=100))
    fields: dict[str, str] = {name: found[name] for name in CALLBACK_FIELDS if name in found}
    if "state" not in fields or not ("code" in fields or "error" in fields):
        raise ToolError("this is not a callback URL: it must have the parameters code and state")
    return fields


def check_answer(fields: Mapping[str, str]) -> str:
    """Return the code of an answer. Raise if the person or the server declined."""
    if "error" in fields or not fields.get("code"):
        shown = describe_code(fields.get("error", ""))
        raise ToolError(f"the sign-in failed: the authorization server answered {shown}")
    return fields["code"]
