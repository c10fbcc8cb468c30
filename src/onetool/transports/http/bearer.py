"""The check of bearer tokens: local tokens and, if issuers are configured, JWTs.

Failed attempts with local tokens are rate-limited by address. JWTs are not: a signature cannot be guessed, and a client
whose JWT has expired must not block others behind the same address.
"""

from collections.abc import Callable
from dataclasses import dataclass

from onetool.config.access_tokens import TokenSet, identify_token
from onetool.config.model import Token
from onetool.transports.http.credential import FindToken, RequestCredential, unauthorized_error
from onetool.transports.http.jwt_verifier import JwtVerifier
from onetool.transports.http.throttle import AuthThrottle
from onetool.transports.http.token_use import TokenUse
from onetool.util.token_ids import TOKEN_ID_CHARS, hash_token


@dataclass(frozen=True, slots=True)
class BearerTokens:
    tokens: Callable[[], TokenSet]
    throttle: AuthThrottle
    jwts: JwtVerifier | None = None
    use: TokenUse | None = None

    async def check(self, text: str, address: str) -> RequestCredential:
        """Return the credential of a token. Raise an ApiError if it is not accepted."""
        token_hash = hash_token(text)
        if self.jwts is not None and self.jwts.is_candidate(text):
            token = self.tokens().find(token_hash)  # a token of an environment variable may look like a JWT
            if token is None:
                return await self.jwts.check(text)
        else:
            token = await self._find_token(token_hash, address)
        if self.use is not None:
            self.use.record(identify_token(token))
        return RequestCredential(
            f"token {token.name}",
            token.agent,
            token.scope,
            _is_unchanged(token_hash, token),
            token_hash[:TOKEN_ID_CHARS],
            token.expires_at,
        )

    async def _find_token(self, token_hash: str, address: str) -> Token:
        tokens = self.tokens()
        token = tokens.find(token_hash)
        if token is None:
            await self.throttle.record_failure(address, token_hash)
            if tokens.is_expired(token_hash):
                hint = "create another one with onetool token create NAME"
                raise unauthorized_error("the token has expired", reason="expired", hint=hint)
            raise unauthorized_error("unknown token", hint="create a token with onetool token create NAME")
        await self.throttle.record_success(address, token_hash)
        return token


def _is_unchanged(token_hash: str, token: Token) -> Callable[[FindToken], bool]:
    return lambda find: find(token_hash) == token
