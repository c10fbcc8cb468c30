"""Scopes and identifiers of tokens and subjects, which own runs, results and sessions, without
revealing the tokens.
"""

import hashlib

TOKEN_ID_CHARS = 32
SUBJECT_PREFIX = "jwt_"
APPROVE = "approve"
ADMIN = "admin"
OWNER = "owner"
USE = "use"
SCOPES = (
    USE,
    APPROVE,
    ADMIN,
    OWNER,
)  # each includes those before it; `approve` itself calls no tools


def includes_scope(scope: str, needed: str) -> bool:
    """Return whether a token of this scope may do what `needed` allows."""
    return scope in SCOPES and SCOPES.index(scope) >= SCOPES.index(needed)


def identify_subject(issuer: str, subject: str) -> str:
    """Return a subject's id, the same for all its JWTs. It begins with the issuer's id."""
    return identify_issuer(issuer) + hash_token(subject)[:TOKEN_ID_CHARS]


def identify_issuer(issuer: str) -> str:
    return f"{SUBJECT_PREFIX}{hash_token(issuer)[:12]}_"


def hash_token(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
