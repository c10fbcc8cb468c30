"""The check of the token that started a run: runs of revoked tokens are neither approved nor continued."""

from collections.abc import Iterable

from onetool.config.model import Issuer, Token
from onetool.runs.model import DurableRunRecord
from onetool.util.token_ids import SUBJECT_PREFIX, TOKEN_ID_CHARS, identify_issuer


def is_revoked(run: DurableRunRecord, tokens: Iterable[Token], issuers: Iterable[Issuer]) -> bool:
    """Return whether the token, or the issuer of the subject, that started the run is no longer accepted.

    A token or JWT that has expired since does not count: calls may wait for a person longer than it is valid.
    """
    if not run.token_id:  # the owner, or a client over stdio
        return False
    if run.token_id.startswith(SUBJECT_PREFIX):
        return not any(run.token_id.startswith(identify_issuer(entry.issuer)) for entry in issuers)
    # The value of a token in an environment variable may be unknown to this process, but its name is not.
    return not any(
        token.hash[:TOKEN_ID_CHARS].lower() == run.token_id if token.hash else f"token {token.name}" == run.actor
        for token in tokens
    )
