"""JWTs of OpenID providers: their signatures and claims, and the agents that claims select.

A JWT is hostile until its signature is verified. Its header only selects one of the algorithms in
the settings and one of the keys that the issuer publishes; URLs, certificates and keys in the
header are ignored. Errors never contain anything of the JWT.
"""

import base64
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NoReturn

from onetool.server.http.errors import ApiError
from onetool.server.http.issuers import MAX_KEY_ID_CHARS, IssuerDirectory
from onetool.server.http.json_body import parse_json
from onetool.server.http.live_tokens import RequestCredential, identify_issuer, unauthorized_error
from onetool.settings.access import Issuer
from onetool.util.invisible import escape_invisible
from onetool.util.logging import Log
from onetool.util.text import shorten
from onetool.util.token_ids import identify_subject
from onetool_child.json_types import JsonMapping, JsonObject

MAX_JWT_CHARS = 8192
JWT_PATTERN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+", re.ASCII)
TYPES = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})
REJECTED_HEADERS = frozenset({"crit", "b64", "cty", "zip", "enc"})
REQUIRED_CLAIMS = ("iss", "sub", "aud", "exp")
LEEWAY_SECONDS = 30
MAX_SUBJECT_CHARS = 100
MAX_ISSUER_CHARS = 60
MARK = "#"  # before the digest of a subject
DIGEST_CHARS = 16
REASONS = {
    "malformed": "it is not a valid JWT",
    "too_large": f"it has more than {MAX_JWT_CHARS} characters",
    "header": "its header has parameters that are not supported",
    "algorithm": "its signature algorithm is not allowed",
    "issuer": "its issuer is unknown",
    "key": "its signing key is unknown",
    "signature": "its signature is not valid",
    "expired": "it has expired",
    "early": "it is not valid yet",
    "audience": "it is for another audience",
    "claims": "a claim is missing or invalid",
}
# Exceptions of PyJWT, by name; the library is imported with the first JWT.
LIBRARY_REASONS = {
    "ExpiredSignatureError": "expired",
    "ImmatureSignatureError": "early",
    "InvalidAudienceError": "audience",
    "InvalidIssuerError": "issuer",
    "InvalidSignatureError": "signature",
    "InvalidAlgorithmError": "algorithm",
    "InvalidKeyError": "key",
    "DecodeError": "malformed",
}


@dataclass(frozen=True, slots=True)
class JwtVerifier:
    """The check of JWTs against the issuers in the settings."""

    issuers: Callable[[], Sequence[Issuer]]
    directory: IssuerDirectory
    log: Log

    def is_candidate(self, text: str) -> bool:
        """Return whether the token is meant to be a JWT.

        Its header is a JSON object, so it begins with `ey`.
        """
        return text.startswith("ey") and bool(self.issuers())

    async def check(self, text: str) -> RequestCredential:
        """Return the credential of a JWT.

        Raise an ApiError: 401, or 403 if the subject has no agent.
        """
        header, unverified = parse_jwt(text)
        entries = [entry for entry in self.issuers() if entry.issuer == unverified.get("iss")]
        if not entries:
            reject("issuer")
        allowed = [entry for entry in entries if header["alg"] in entry.algorithms]
        audiences = {audience for entry in allowed for audience in entry.audience}
        algorithms = {algorithm for entry in allowed for algorithm in entry.algorithms}
        claims = await self.verify(text, entries[0].issuer, algorithms, audiences)
        return self.find_agent(
            claims, [entry for entry in allowed if _list_audiences(claims) & {*entry.audience}]
        )

    async def verify(
        self, text: str, issuer: str, algorithms: Collection[str], audiences: Iterable[str]
    ) -> JsonMapping:
        """Return the claims of a JWT of this issuer.

        Raise an ApiError if anything is wrong with it.
        """
        header, _ = parse_jwt(text)
        algorithm = header["alg"]
        if algorithm not in algorithms:
            reject("algorithm")
        key = await self.directory.find_key(issuer, header.get("kid"), algorithm)
        if key is None:
            reject("key")
        return _decode(text, key, algorithm, issuer, [*audiences])

    def find_agent(self, claims: JsonMapping, entries: Iterable[Issuer]) -> RequestCredential:
        """Return the credential of the subject: the first entry that maps it to an agent counts."""
        issuer = str(claims["iss"])
        subject = str(claims["sub"])
        identifier = identify_subject(issuer, subject)
        actor = _name_actor(issuer, subject, identifier)
        for entry in entries:
            agent = map_agent(entry, claims)
            if agent is not None:
                is_live = self._is_configured(entry)
                origin = identify_issuer(entry)
                return RequestCredential(
                    actor, agent, entry.scope, is_live, identifier, claims["exp"], origin
                )
        self.log.event(
            "auth.unmapped", level="WARNING", actor=actor, text="no agent in auth.issuers"
        )
        hint = "ask the administrator of this server to add it to auth.issuers in onetool.yaml"
        raise ApiError(
            "forbidden",
            "this account has no agent on this server",
            {"reason": "no_agent"},
            hint=hint,
        )

    def _is_configured(self, entry: Issuer) -> Callable[[object], bool]:
        return lambda _find: entry in self.issuers()


def _name_actor(issuer: str, subject: str, identifier: str) -> str:
    """Return a name of the subject, for people and to compare: two subjects never have the same.

    A name that cannot show everything ends with a part of the identifier, and so does one that
    looks like that.
    """
    place = shorten(issuer.partition("://")[2].rstrip("/"), MAX_ISSUER_CHARS)
    name = shorten(escape_invisible(" ".join(subject.split())), MAX_SUBJECT_CHARS)
    is_exact = name == subject and issuer.endswith((place, f"{place}/")) and MARK not in name
    if is_exact:
        return f"subject {name} ({place})"
    digest = sha256(identifier.encode()).hexdigest()[:DIGEST_CHARS]
    return f"subject {name} {MARK}{digest} ({place})"


def map_agent(entry: Issuer, claims: JsonMapping) -> str | None:
    """Return the agent that the claim selects by the table, or the default agent.

    None: the subject is rejected.
    """
    value: Any = claims.get(entry.agent_claim)
    if value is None:  # a path such as realm_access.roles
        value = claims
        for part in entry.agent_claim.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if entry.agent_claim == "email" and claims.get("email_verified") is not True:
        value = None  # some issuers let people type any address
    values = {
        group for group in (value if isinstance(value, list) else [value]) if isinstance(group, str)
    }
    return next(
        (agent for name, agent in entry.agents.items() if name in values), entry.default_agent
    )


def reject(reason: str) -> NoReturn:
    raise unauthorized_error(f"invalid token: {REASONS[reason]}", reason=reason)


# --- parsing --------------------------------------------------------------------------------------


def parse_jwt(text: str) -> tuple[JsonObject, JsonObject]:
    """Return the header and the claims, which are not verified.

    Raise an ApiError if they cannot be accepted.
    """
    if len(text) > MAX_JWT_CHARS:
        reject("too_large")
    if not JWT_PATTERN.fullmatch(text):
        reject("malformed")
    header, claims = (_parse_part(part) for part in text.split(".")[:2])
    if REJECTED_HEADERS & header.keys() or str(header.get("typ", "jwt")).lower() not in TYPES:
        reject("header")
    if not isinstance(header.get("alg"), str):
        reject("algorithm")
    key_id = header.get("kid")
    if key_id is not None and not (isinstance(key_id, str) and len(key_id) <= MAX_KEY_ID_CHARS):
        reject("key")
    return header, claims


def _parse_part(part: str) -> JsonObject:
    """Return the object. Of two members with one name, another parser could use the other one."""
    try:
        data = parse_json(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, ApiError):
        data = None
    if not isinstance(data, dict):
        reject("malformed")
    return data


def _decode(text: str, key: Any, algorithm: str, issuer: str, audiences: list[str]) -> JsonMapping:
    import jwt

    try:
        claims: JsonObject = jwt.decode(
            text,
            key,
            algorithms=[algorithm],
            issuer=issuer,
            audience=audiences,
            leeway=LEEWAY_SECONDS,
            options={"require": [*REQUIRED_CLAIMS]},
        )
        expires = float(claims["exp"])
    except Exception as error:  # noqa: BLE001 - hostile input: whatever the library raises, the JWT is rejected
        reject(LIBRARY_REASONS.get(type(error).__name__, "claims"))
    if not claims["sub"]:
        reject("claims")
    return {**claims, "exp": expires}


def _list_audiences(claims: JsonMapping) -> set[str]:
    audience = claims["aud"]
    return {audience} if isinstance(audience, str) else {*audience}
