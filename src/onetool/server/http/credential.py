"""The credential of a request: a local token, a JWT, or a session of the admin UI."""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from math import inf

from onetool.server.http.errors import ApiError
from onetool.settings.access import Issuer, Token

FindToken = Callable[
    [str], Token | None
]  # finds a token by its hash, whether it has expired or not
BEARER_HINT = "send the header Authorization: Bearer ot_..."


@dataclass(frozen=True, slots=True)
class RequestCredential:
    """An accepted credential. `agent` is None for the owner."""

    actor: str  # for runs, logs and the audit log
    agent: str | None
    scope: str
    is_live: Callable[[FindToken], bool]  # whether it is still accepted, apart from its expiry
    token_id: str = ""
    expires: float = inf  # seconds since 1970
    origin: str = ""  # the entry of the settings that accepted it, if it is of an issuer


def identify_issuer(entry: Issuer) -> str:
    """Return an identifier of an entry in the settings, the same in every process.

    It changes with the entry.
    """
    return sha256(entry.model_dump_json().encode()).hexdigest()


def unauthorized_error(message: str, *, reason: str = "", hint: str = "") -> ApiError:
    return ApiError("unauthorized", message, {"reason": reason} if reason else {}, hint=hint)
