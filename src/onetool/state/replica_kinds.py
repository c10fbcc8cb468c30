"""Kinds of state that only replicas share, in PostgreSQL; `file_kinds` has those in files.

The audit record that a call starts is committed before the call is made. Settings and their history
are sealed as a whole, with a key that is not in the database: who can only write to the database
cannot make a replica start a program.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from onetool.errors import AuditUnavailable, StorageError, ToolError
from onetool.settings.contents import StoredSettings
from onetool.state.audit_records import StoredRecord
from onetool.state.documents import ALL, Cached, Documents, StoreUnavailable
from onetool.state.file_kinds import (
    DEFAULT_MAX_FILE_BYTES,
    AuditFile,
    EndedSessions,
    NoticeFiles,
    SettingsFiles,
)
from onetool.state.keys import BROWSER_SESSIONS
from onetool.state.postgres_database import Database, Statements
from onetool.state.sqlite_database import StateDatabase, Transaction
from onetool.state.token_file import TokenFile
from onetool.util.logging import encode_line
from onetool.util.problem import STORAGE, Location, Problem, check_version
from onetool_child.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from onetool.settings.access import Agent, Token
    from onetool.settings.contents import SettingsContents
    from onetool.settings.edit_history import EditHistory
    from onetool.settings.paths import Directories
    from onetool.settings.planned_edit import PlannedEdit
    from onetool.settings.stored_editor import StoredSettingsEditor


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
READ_AUDIT_AFTER = "SELECT id, record FROM audit WHERE id < ? ORDER BY id DESC LIMIT 500"
READ_AUDIT = "SELECT id, record FROM audit ORDER BY id DESC LIMIT 500"
AUDIT_POSITION = re.compile(r"[0-9]{1,18}", re.ASCII)
INSERT_AUDIT = "INSERT INTO audit (at, record) VALUES (?, ?)"
TRIM_AUDIT = "SELECT trim_audit(?)"
TRIM_SECONDS = 3600.0
STORE_AWAY = "store_unavailable"
RETRY_AFTER_SECONDS = 2  # until a database may answer again
SETTINGS_KIND = "settings"
CURRENT_SETTINGS = "current"
SETTINGS_HISTORY = "history"
SETTINGS_VERSION = 1
SettingsChange = Callable[[StoredSettings, str], tuple[StoredSettings, str]]


class AuditRows(AuditFile):
    """Records of the audit log in rows.

    Those that cannot be written are kept until the database accepts them.
    """

    device = "database"
    place = "in the database"
    is_slow = True
    write_seconds = 3.0  # a call fails before it would wait for a free connection
    keeps_unwritten = True

    def __init__(self, database: Database, redact: Callable[[str], str] = str) -> None:
        super().__init__(None, redact)
        self._is_open = True
        self._database = database
        self._trim_at = 0.0

    def make_refusal(self, message: str) -> ToolError:
        return AuditUnavailable(
            message, hint="repeat the call later", retry_after=RETRY_AFTER_SECONDS
        )

    def make_error(self, error: OSError) -> ToolError:
        return StorageError(
            f"cannot write the audit log: {error}", hint="repeat the call later", code=STORE_AWAY
        )

    def read(self, position: str | None = None) -> Iterator[StoredRecord]:
        """Yield the records after a position, newest first."""
        last = (
            int(position) if position is not None and AUDIT_POSITION.fullmatch(position) else None
        )
        while rows := self._database.select(
            READ_AUDIT if last is None else READ_AUDIT_AFTER, *([] if last is None else [last])
        ):
            yield from (StoredRecord(str(number), record) for number, record in rows)
            last = rows[-1][0]

    def trim(self) -> int:
        """Delete the oldest records, if all are larger than the files could be, and return their
        number.

        One replica at a time does it. The function runs with the rights of the owner of the table,
        because a replica can only append.
        """
        with self._database.transaction() as transaction:
            if not transaction.try_lock("sweep audit"):
                return 0
            row = transaction.execute(TRIM_AUDIT, (self.max_bytes * (self.keep + 1),)).fetchone()
        return int(row[0]) if row else 0

    def insert_lines(self, lines: list[str]) -> None:
        """Store lines of another audit log, in their order."""
        self._insert([(_read_time(line), line.replace("\0", "")) for line in lines])

    def _write(self, lines: list[JsonObject]) -> None:
        try:
            self._insert(
                [
                    (line["time"], encode_line(line, self._redact).replace("\0", ""))
                    for line in lines
                ]
            )
        except StorageError as error:
            raise OSError(error.message) from None

    def _insert(self, records: list[tuple[float, str]]) -> None:
        with self._database.transaction() as transaction:
            rows = [(datetime.fromtimestamp(at, UTC), record) for at, record in records]
            transaction.executemany(INSERT_AUDIT, rows)

    def _write_lines(self) -> bool:
        has_lines = bool(self._lines)
        is_done = super()._write_lines()
        if has_lines and is_done:
            self._trim_sometimes()
        return is_done

    def _trim_sometimes(self) -> None:
        if time.monotonic() >= self._trim_at:
            self._trim_at = time.monotonic() + TRIM_SECONDS
            try:
                self.trim()
            except StorageError as error:
                self.problem = f"cannot delete old records of the audit log: {error.message}"


class SettingsRows(SettingsFiles):
    """The settings and their history. Changes of other replicas are known within two seconds."""

    when_effective = "All replicas apply it within 2 seconds."
    secrets_place = "the store"

    def __init__(self, database: StateDatabase) -> None:
        self._documents = Documents(database, SETTINGS_KIND)
        self._database = database
        self._known = Cached(database, SETTINGS_KIND, self._read)

    @property
    def history(self) -> "EditHistory":
        from onetool.settings.edit_history import StoredHistory

        return StoredHistory(self)

    def open_editor(
        self,
        directories: "Directories",
        env: Mapping[str, str],
        files: "SettingsContents | None" = None,
    ) -> "StoredSettingsEditor":
        from onetool.settings.stored_editor import StoredSettingsEditor

        return StoredSettingsEditor(directories, env, self, files)

    def choose_directory(self, _directory: Path, /) -> None:
        """Return nothing: the entries are stored in the database."""

    def finish_edit(self, _edit: "PlannedEdit", /) -> list[str]:
        return ["Changed the settings in the store"]

    def version(self) -> object:
        return self._database.number(SETTINGS_KIND)

    def get(self) -> StoredSettings:
        return self._known.get()

    def refresh(self) -> StoredSettings:
        return self._known.refresh()

    def read_history(self) -> str:
        return self._documents.get(SETTINGS_HISTORY) or ""

    def update(self, change: SettingsChange) -> None:
        def apply(documents: JsonMapping) -> JsonObject:
            before = self._parse(documents[CURRENT_SETTINGS])
            after, history = change(before, documents[SETTINGS_HISTORY] or "")
            current = documents[CURRENT_SETTINGS]
            if after != before:
                current = {
                    "version": SETTINGS_VERSION,
                    "text": after.text,
                    "secrets": after.secrets,
                }
            return {CURRENT_SETTINGS: current, SETTINGS_HISTORY: history}

        self._documents.update_all([CURRENT_SETTINGS, SETTINGS_HISTORY], apply)

    def _read(self) -> StoredSettings:
        """Return the settings.

        A row that cannot be read is a problem of its own: the database answers.
        """
        try:
            return self._parse(self._documents.get(CURRENT_SETTINGS))
        except StoreUnavailable:
            raise
        except ToolError as error:
            return StoredSettings(problem=error.message)

    def _parse(self, data: Any) -> StoredSettings:
        if data is None:
            return StoredSettings()
        source = f"the settings in {self._database.place}"
        try:
            check_version(data.get("version"), SETTINGS_VERSION, f"{source}:")
            return StoredSettings(str(data["text"]), str(data["secrets"]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StorageError(f"cannot read {source}: {error}", code=STORAGE) from None


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
        from onetool.settings.access import Token

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


def _read_time(line: str) -> float:
    try:
        return datetime.fromisoformat(json.loads(line)["time"]).timestamp()
    except (ValueError, TypeError, KeyError):
        return time.time()
