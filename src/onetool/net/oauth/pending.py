"""Sign-ins that wait for a person: single use, ten minutes, found by a random state."""

import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from onetool.errors import ToolError
from onetool.net.oauth.credential import Credential, Identity
from onetool.util.bounded_dict import BoundedDict
from onetool.util.clock_watch import Clock

if TYPE_CHECKING:
    from onetool.net.oauth.discovery import ServerMetadata

PENDING_SECONDS = 600.0
MAX_PENDING = 100
STATE_BYTES = 32
VERIFIER_BYTES = 64
CALLBACK_FIELDS = ("code", "state", "iss", "error")


@dataclass(frozen=True, slots=True)
class PendingSignIn:
    """A sign-in between the authorization request and its answer.

    The credential has the requested scope.
    """

    identity: Identity
    credential: Credential = field(repr=False)
    server: "ServerMetadata"
    expires: float
    state: str = field(default_factory=lambda: secrets.token_urlsafe(STATE_BYTES), repr=False)
    browser: str = field(
        default_factory=lambda: secrets.token_urlsafe(STATE_BYTES), repr=False
    )  # its cookie
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(VERIFIER_BYTES), repr=False)

    @property
    def url(self) -> str:
        """The URL at which a person signs in."""
        return self.server.build_sign_in_url(self.credential, self.state, self.verifier)


class PendingSignIns:
    """The sign-ins of this process that wait for an answer, by their random states."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._pending: BoundedDict[str, PendingSignIn] = BoundedDict(MAX_PENDING)

    def add(
        self, identity: Identity, credential: Credential, server: "ServerMetadata"
    ) -> PendingSignIn:
        pending = PendingSignIn(identity, credential, server, self._clock() + PENDING_SECONDS)
        self._pending[pending.state] = pending
        return pending

    def take(self, state: str) -> PendingSignIn:
        """Return the sign-in with this state, once."""
        pending = self._pending.pop(state, None)
        if pending is None or pending.expires <= self._clock():
            raise ToolError(
                "the sign-in failed: its state is unknown, was used before or has expired"
            )
        return pending

    def discard(self, pending: PendingSignIn) -> None:
        self._pending.pop(pending.state, None)

    def has(self, pending: PendingSignIn) -> bool:
        return pending.state in self._pending


def parse_callback(url: str) -> dict[str, str]:
    """Return the fields of a callback URL, or of its query. Raise if it is not one."""
    query = urlsplit(url.strip()).query or url.strip().lstrip("?")
    pairs = parse_qsl(query[:100_000], max_num_fields=100)
    fields = {name: value for name, value in pairs if name in CALLBACK_FIELDS}
    if "state" not in fields or not ("code" in fields or "error" in fields):
        raise ToolError("this is not a callback URL: it must have the parameters code and state")
    return fields
