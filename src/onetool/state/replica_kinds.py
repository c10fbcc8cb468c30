"""State that only replicas share, over a PostgreSQL database: tokens, ended sessions, notices and
statistics.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from onetool.errors import StorageError, ToolError
from onetool.state.documents import ALL, Cached, Documents, StoreUnavailable
from onetool.state.keys import BROWSER_SESSIONS
from onetool.state.memory import EndedSessions
from onetool.state.notices import DEFAULT_MAX_FILE_BYTES, NoticeFiles
from onetool.state.postgres_database import Database, Statements
from onetool.state.sqlite_database import StateDatabase, Transaction
from onetool.state.token_file import TokenFile
from onetool.util.problem import STORAGE, Location, Problem

if TYPE_CHECKING:
    from onetool.settings.model import Agent, Token

T = TypeVar("T")
STATISTICS = "onetool_stats"  # the schema of their tables
CLOCK_SECONDS = 3600.0  # by which clocks of replicas may differ
END_SESSIONS = """\
DELETE FROM onetool.keys WHERE name = 'browser sessions'; \
DELETE FROM onetool.documents WHERE kind = 'ended session'"""
TOKEN_FIELDS = ("name", "hash", "agent", "scope", "created", "expires")
TRIM_NOTICES = """
DELETE FROM notices WHERE name = :name AND id <= (
    SELECT max(id) FROM (
        SELECT id, sum(length(document)) OVER (ORDER BY id DESC) AS total FROM notices WHERE name = :name
    ) AS sizes WHERE total > :bytes
)
"""


class NoticeRows(NoticeFiles):
    """Messages for people, by the name of their file.

    If they exceed `max_file_bytes`, the oldest are deleted.
    """

    def __init__(self, database: Database, max_file_bytes: int = DEFAULT_MAX_FILE_BYTES) -> None:
        self._database = database
        self._max_file_bytes = max_file_bytes

    def append(self, name: str, document: bytes) -> None:
        with self._database.transaction() as transaction:
            transaction.lock(f"notices {name}")
            kept = max(0, self._max_file_bytes - len(document))
            transaction.execute(TRIM_NOTICES, {"name": name, "bytes": kept})
            insert = "INSERT INTO notices (name, document, at) VALUES (?, ?, ?)"
            transaction.execute(insert, (name, document, self._database.now()))

    def read(self, name: str) -> bytes:
        rows = self._database.select(
            "SELECT document FROM notices WHERE name = ? ORDER BY id", name
        )
        return b"".join(document for (document,) in rows)


class EndedSessionRows(EndedSessions):
    """Sessions of browsers that have ended, in one document.

    Those of other replicas are known within two seconds.

    It is sealed with the key of the sessions: deleting both makes the sessions invalid.
    """

    def __init__(self, database: StateDatabase) -> None:
        self._documents = Documents(database, "ended session", BROWSER_SESSIONS)
        self._now = database.now
        self._known = Cached(database, "ended session", lambda: frozenset(self._documents.get(ALL)))

    def end(self, identifier: str, until: float) -> None:
        """Remember a session until it would have expired, and forget those that have."""
        oldest = self._now() - CLOCK_SECONDS

        def change(ended: Mapping[str, float]) -> dict[str, float]:
            return {
                **{known: end for known, end in ended.items() if end >= oldest},
                identifier: until,
            }

        self._documents.update(ALL, change)

    def list_all(self) -> frozenset[str]:
        return self._known.get()

    @property
    def problem(self) -> Problem | None:
        """The reason why all sessions count as ended."""
        try:
            self._known.get()
        except StoreUnavailable:  # which is reported elsewhere
            return None
        except StorageError as error:
            hint = (
                f"{error.hint}; or let all people sign in again: execute `{END_SESSIONS}` and"
                " restart the servers"
            )
            return Problem(f"no browser session is valid: {error.message}", hint, code=STORAGE)
        return None


class StoredTokenSet(TokenFile):
    """Tokens that were created with a store, and names of revoked tokens in the settings files.

    A document hides the token of the same name in the settings, also if somebody without the key
    wrote it.
    """

    def __init__(self, database: Database) -> None:
        self._documents = Documents(database, "tokens")
        self._database = database
        self._tokens = Cached(database, "tokens", self._read)

    @property
    def place(self) -> str:
        return self._database.place

    def apply(self, tokens: "Iterable[Token]") -> "list[Token]":
        """Return the accepted tokens: those of the settings that no document hides, and those of
        documents.
        """
        if self._database.problem:
            raise self._database.away()
        stored = self._tokens.get()
        kept = [token for token in tokens if token.name not in stored]
        return [*kept, *filter(None, stored.values())]

    def can_change(self, *, has_settings_files: bool) -> bool:  # noqa: ARG002 - tokens in the database need none
        return True

    def list_agents(self, agents: "Mapping[str, Agent]") -> "Mapping[str, Agent]":
        return agents

    def create(
        self,
        token: "Token",
        accepted: "Iterable[Token]" = (),
        *,
        may_replace: bool = True,  # noqa: ARG002 - it replaces none
    ) -> tuple[str, ...] | None:
        """Store a token. Return None if one of its name is accepted."""
        if token.name in (other.name for other in accepted):
            return None
        is_new = False

        def add(document: Any) -> Any:
            nonlocal is_new
            is_new = document is None or document["is_revoked"]
            if not is_new:
                return document
            return {"is_revoked": False, **{field: getattr(token, field) for field in TOKEN_FIELDS}}

        self._documents.update(token.name, add)
        return () if is_new else None

    def names(self) -> list[str]:
        """Return the names of all documents, also of revoked tokens."""
        return list(self._tokens.refresh())

    def revoke(self, name: str, accepted: "Iterable[Token]" = ()) -> bool:
        if name not in (token.name for token in accepted):
            return False
        self._documents.update(name, lambda _: {"is_revoked": True})
        return True

    def _read(self) -> "Mapping[str, Token | None]":
        return {name: self._open(name) for name in self._documents.names()}

    def _open(self, name: str) -> "Token | None":
        """Return the token; None if it was revoked, or if somebody without the key wrote it."""
        from onetool.settings.model import Token

        try:
            document = self._documents.get(name)
        except StoreUnavailable:
            raise
        except StorageError:
            return None
        if document is None or document["is_revoked"]:
            return None
        return Token(**{field: document[field] for field in TOKEN_FIELDS})


class StatisticsSchema:
    """The tables of all replicas.

    Writers take turns, so that rows are numbered in the order of their commits.
    """

    location: Location | None = None
    notice: str | None = None

    def __init__(self, database: Database) -> None:
        self._database = database
        self.place = database.place

    def write(self, change: Callable[[Transaction], T]) -> T:
        with self._database.transaction(search_path=STATISTICS) as transaction:
            transaction.lock("statistics")
            return change(transaction)

    @contextmanager
    def reading(self) -> Iterator[Statements]:
        """Open the tables for a consistent read. Temporary tables are dropped at the end."""
        try:
            with self._database.transaction(
                is_read_only=True, search_path=STATISTICS
            ) as transaction:
                yield transaction
                transaction.execute("ROLLBACK")
        except StorageError as error:
            raise ToolError(
                f"cannot read the statistics: {error.message}", hint=error.hint or ""
            ) from None
