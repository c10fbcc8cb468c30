"""Small documents with versions: disabled tools, pins, lists of tools, tokens, notices and used model tokens."""

import json
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from onetool.errors import BundleError, StorageError, ToolError
from onetool.proxy.definitions import VERSION as LIST_VERSION, Definition, Failure, digest
from onetool.snippets.saved_snippets import SavedSnippet, SavedSnippetSet
from onetool.state.changes import Cached, Changes
from onetool.state.disabled_tools import EVERYTHING
from onetool.state.keys import ALL, BROWSER_SESSIONS, VALUES, load_sealer
from onetool.state.notices import DEFAULT_MAX_FILE_BYTES
from onetool.state.postgres_database import Database, Statements, StoreUnavailable
from onetool.state.sealed_values import SealedValues
from onetool.state.sealing import Sealer
from onetool.state.storage import Pinned
from onetool.util.problem import STORAGE, Problem

if TYPE_CHECKING:
    from onetool.config.model import Agent, Token

CLOCK_SECONDS: Final = 3600.0  # by which clocks of replicas may differ
END_SESSIONS: Final = """\
DELETE FROM onetool.keys WHERE name = 'browser sessions'; \
DELETE FROM onetool.sealed_values WHERE kind = 'ended session'"""
GET: Final = "SELECT document, version FROM documents WHERE kind = ? AND name = ?"
PUT: Final = """
INSERT INTO documents VALUES (?, ?, 1, ?)
ON CONFLICT (kind, name) DO UPDATE SET version = documents.version + 1, document = excluded.document
"""
DELETE: Final = "DELETE FROM documents WHERE kind = ? AND name = ?"
NAMES: Final = "SELECT name FROM documents WHERE kind = ?"
TOKEN_COLUMNS: Final = ("name", "agent", "scope", "created", "expires")  # with which the hash is sealed
TRIM_NOTICES: Final = """
DELETE FROM notices WHERE name = :name AND id <= (
    SELECT max(id) FROM (
        SELECT id, sum(length(document)) OVER (ORDER BY id DESC) AS total FROM notices WHERE name = :name
    ) AS sizes WHERE total > :bytes
)
"""


class Documents:
    """JSON documents of one kind, by name."""

    def __init__(self, database: Database, kind: str) -> None:
        self._database, self.kind = database, kind

    def get(self, name: str) -> Any:
        found = self._database.select(GET, self.kind, name)
        return found[0][0] if found else None

    def names(self) -> list[str]:
        return [name for (name,) in self._database.select(NAMES, self.kind)]

    def put(self, transaction: Statements, name: str, document: Any) -> None:
        transaction.execute(PUT, (self.kind, name, json.dumps(document)))

    def update(self, name: str, change: Callable[[Any], Any], *, announces: bool = True) -> Any:
        """Change a document. `change` gets the current one, or None, and nobody else changes it meanwhile."""
        with self._database.transaction() as transaction:
            transaction.lock(f"{self.kind} {name}")
            found = transaction.execute(GET, (self.kind, name)).fetchone()
            document = change(None if found is None else found[0])
            self.put(transaction, name, document)
            if announces:
                transaction.announce(self.kind)
        return document


class SealedDocuments:
    """JSON documents of one kind that nobody without the key can read or change."""

    def __init__(self, database: Database, kind: str, key: str = VALUES) -> None:
        self._values = SealedValues(database, kind, key)

    def get(self, name: str) -> Any:
        content = self._values.get(name)
        return None if content is None else json.loads(content)

    def names(self) -> list[str]:
        return self._values.names()

    def update(self, name: str, change: Callable[[Any], Any]) -> Any:
        """Change a document. `change` gets the current one, or None, and nobody else changes it meanwhile."""

        def apply(content: bytes | None) -> bytes:
            return json.dumps(change(None if content is None else json.loads(content))).encode()

        return json.loads(self._values.update(name, apply) or b"null")


class SwitchRows:
    """The disabled tools and packs, in one sealed document.

    Without a first answer of the database, or if somebody without the key changed the document, all are disabled.
    """

    def __init__(self, database: Database, changes: Changes) -> None:
        self._documents, self._place = SealedDocuments(database, "disabled"), database.place
        self._names = Cached(changes, "disabled", lambda: frozenset(self._documents.get(ALL)))
        self.problem: Problem | None = None

    def off(self) -> frozenset[str]:
        """Return the names as of the last change that is known here; changes are known within two seconds."""
        try:
            names = self._names.get()
        except ToolError as error:
            self.problem = Problem(f"all tools are disabled: {error.message}", str(error.hint or ""), code=STORAGE)
            return frozenset({EVERYTHING})
        self.problem = None
        return names

    def set(self, *names: str, on: bool) -> None:
        def change(off: list[str]) -> list[str]:
            return sorted({*off}.difference(names) if on else {*off}.union(names))

        try:
            self._documents.update(ALL, change)
            self._names.refresh()
        except StorageError as error:
            fields = {**error.fields, "details": {"database": self._place, "reason": "failed"}}
            raise BundleError(error.message, **fields) from None


class PinRows:
    """The pinned definitions of each upstream server, sealed: a pin decides which definitions count as accepted."""

    def __init__(self, database: Database) -> None:
        self._documents = SealedDocuments(database, "pins")

    def get(self, server: str) -> Pinned | None:
        pinned: Pinned | None = self._documents.get(server)
        return pinned

    def servers(self) -> list[str]:
        return sorted(self._documents.names())

    def update(self, server: str, change: Callable[[Pinned | None], Pinned]) -> Pinned:
        pinned: Pinned = self._documents.update(server, change)
        return pinned


class UsedTokenRows:
    """The tokens that language models used on each day, of all replicas."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, day: str) -> int:
        found = self._database.select("SELECT used FROM token_usage WHERE day = ?", day)
        return int(found[0][0]) if found else 0

    def days(self) -> dict[str, int]:
        return {day: int(used) for day, used in self._database.select("SELECT day, used FROM token_usage")}

    def update(self, day: str, change: Callable[[int], int]) -> int:
        with self._database.transaction() as transaction:
            transaction.execute("INSERT INTO token_usage VALUES (?, 0) ON CONFLICT DO NOTHING", (day,))
            row = transaction.execute("SELECT used FROM token_usage WHERE day = ? FOR UPDATE", (day,)).fetchone()
            used = change(int(row[0]))  # type: ignore[index]
            transaction.execute("UPDATE token_usage SET used = ? WHERE day = ?", (used, day))
        return used


class ToolListRows:
    """A cache of the tools of upstream servers. If the database is away, nothing is cached."""

    def __init__(
        self, database: Database, redact: Callable[[str], str] = str, clock: Callable[[], float] = time.time
    ) -> None:
        self._lists, self._failures = Documents(database, "tool list"), Documents(database, "tool list failure")
        self._database, self._redact, self.clock = database, redact, clock

    def get(self, key: str) -> tuple[Definition, ...] | None:
        try:
            data = self._lists.get(key)
            if data is None or data["version"] != LIST_VERSION:
                return None
            known = tuple(Definition(**each) for each in data["tools"])
            return known if digest(known) == data["hash"] else None
        except (StorageError, ValueError, TypeError, KeyError):
            return None

    def put(self, key: str, definitions: Iterable[Definition]) -> None:
        known = list(definitions)
        data = {"version": LIST_VERSION, "hash": digest(known), "tools": [asdict(each) for each in known]}
        with suppress(StorageError), self._database.transaction() as transaction:
            self._lists.put(transaction, key, data)
            transaction.execute(DELETE, (self._failures.kind, key))

    def get_failure(self, key: str) -> Failure | None:
        with suppress(StorageError, TypeError):
            failure = Failure(**self._failures.get(key))  # without a record, None raises TypeError
            if failure.is_sound:
                return failure
        return None

    def put_failure(self, key: str, reason: str, summary: str = "", *, is_interrupted: bool = False) -> Failure:
        reason, summary = self._redact(reason), self._redact(summary or reason)
        failure = Failure.after(self.get_failure(key), reason, summary, self.clock(), is_interrupted=is_interrupted)
        with suppress(StorageError):
            self._failures.update(key, lambda _: asdict(failure), announces=False)
        return failure


class NoticeRows:
    """Messages for people, by the name of their file. If they exceed `max_file_bytes`, the oldest are deleted."""

    def __init__(self, database: Database, max_file_bytes: int = DEFAULT_MAX_FILE_BYTES) -> None:
        self._database, self._max_file_bytes = database, max_file_bytes

    def append(self, name: str, document: bytes) -> None:
        with self._database.transaction() as transaction:
            transaction.lock(f"notices {name}")
            kept = max(0, self._max_file_bytes - len(document))
            transaction.execute(TRIM_NOTICES, {"name": name, "bytes": kept})
            insert = "INSERT INTO notices (name, document, at) VALUES (?, ?, ?)"
            transaction.execute(insert, (name, document, self._database.now()))

    def read(self, name: str) -> bytes:
        rows = self._database.select("SELECT document FROM notices WHERE name = ? ORDER BY id", name)
        return b"".join(document for (document,) in rows)


class SnippetRows(SavedSnippetSet):
    """The saved snippets of all agents, in one sealed document, because they are code that runs.

    Changes of other replicas are known within two seconds.
    """

    def __init__(self, database: Database, changes: Changes) -> None:
        self._documents = SealedDocuments(database, "snippets")
        self._known = Cached(changes, "snippets", lambda: _read_snippets(self._documents.get("saved")))

    def list_all(self) -> tuple[SavedSnippet, ...]:
        return self._known.get()

    def change(self, change: Callable[[list[SavedSnippet]], list[SavedSnippet]]) -> bool:
        before: tuple[SavedSnippet, ...] = ()

        def apply(document: Any) -> Any:
            nonlocal before
            before = _read_snippets(document)
            return [asdict(each) for each in change(list(before))]

        after = _read_snippets(self._documents.update("saved", apply))
        self._known.refresh()
        return after != before


def _read_snippets(document: Any) -> tuple[SavedSnippet, ...]:
    return tuple(SavedSnippet(**each) for each in document or ())


class LastUseRows:
    """When each token was last used, on any replica."""

    def __init__(self, database: Database) -> None:
        self._documents, self._database = Documents(database, "token use"), database

    def touch(self, identifier: str) -> None:
        with suppress(StorageError), self._database.transaction() as transaction:
            self._documents.put(transaction, identifier, self._database.now())

    def read(self, identifier: str) -> float | None:
        found = self._documents.get(identifier)
        return float(found) if isinstance(found, int | float) else None

    def forget(self, identifier: str) -> None:
        with suppress(StorageError):
            self._database.execute(DELETE, (self._documents.kind, identifier))


class EndedSessionRows:
    """Sessions of browsers that have ended, in one document. Those of other replicas are known within two seconds.

    It is sealed with the key of the sessions: deleting both makes the sessions invalid.
    """

    def __init__(self, database: Database, changes: Changes) -> None:
        self._documents, self._now = SealedDocuments(database, "ended session", BROWSER_SESSIONS), database.now
        self._known = Cached(changes, "ended session", lambda: frozenset(self._documents.get(ALL)))

    def end(self, identifier: str, until: float) -> None:
        """Remember a session until it would have expired, and forget those that have."""
        oldest = self._now() - CLOCK_SECONDS

        def change(ended: Mapping[str, float]) -> dict[str, float]:
            return {**{known: end for known, end in ended.items() if end >= oldest}, identifier: until}

        self._documents.update(ALL, change)
        self._known.refresh()

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
            hint = f"{error.hint}; or let all people sign in again: execute `{END_SESSIONS}` and restart the servers"
            return Problem(f"no browser session is valid: {error.message}", hint, code=STORAGE)
        return None


class TokenRows:
    """Tokens that were created in the database, and tokens of the settings files that were revoked.

    A row hides the token of the same name in the settings. The hash is sealed together with the other columns, so a
    person who can only write to the database cannot add a token or raise its scope.
    """

    def __init__(self, database: Database, changes: Changes) -> None:
        self._database, self._changes = database, changes
        self._rows = Cached(changes, "tokens", self._read)
        self.place = database.place

    def can_change(self, *, has_settings_files: bool) -> bool:  # noqa: ARG002 - tokens in the database need none
        return True

    def list_agents(self, agents: "Mapping[str, Agent]") -> "Mapping[str, Agent]":
        return agents

    @cached_property
    def _sealer(self) -> Sealer:
        return load_sealer(self._database, "tokens")

    def apply(self, tokens: "Iterable[Token]") -> "list[Token]":
        """Return the accepted tokens: those of the settings that no row hides, and those of rows."""
        if not self._changes.is_current:
            raise self._changes.away()
        rows = self._rows.get()
        kept = [token for token in tokens if token.name not in rows]
        return [*kept, *(token for token in rows.values() if token is not None)]

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
        statement = """
        INSERT INTO tokens AS known VALUES (?, 1, ?, ?, ?, ?, ?, false) ON CONFLICT (name) DO UPDATE SET
        version = known.version + 1, hash = excluded.hash, agent = excluded.agent, scope = excluded.scope,
        created = excluded.created, expires = excluded.expires, is_revoked = false WHERE known.is_revoked
        """
        known = (token.name, token.agent, token.scope, token.created, token.expires)
        sealed = b64encode(self._sealer.seal((token.hash or "").encode(), _describe_token(*known))).decode()
        with self._database.transaction() as transaction:
            is_new = transaction.execute(statement, (token.name, sealed, *known[1:])).rowcount > 0
            transaction.announce("tokens")
        self._rows.refresh()
        return () if is_new else None

    def names(self) -> list[str]:
        """Return the names of all rows, revoked ones too."""
        return list(self._rows.refresh())

    def revoke(self, name: str, accepted: "Iterable[Token]" = ()) -> bool:
        if name not in (token.name for token in accepted):
            return False
        statement = """
        INSERT INTO tokens AS known VALUES (?, 1, NULL, NULL, NULL, NULL, NULL, true)
        ON CONFLICT (name) DO UPDATE SET version = known.version + 1, hash = NULL, is_revoked = true
        """
        with self._database.transaction() as transaction:
            transaction.execute(statement, (name,))
            transaction.announce("tokens")
        self._rows.refresh()
        return True

    def _read(self) -> "Mapping[str, Token | None]":
        rows = self._database.select(f"SELECT is_revoked, hash, {', '.join(TOKEN_COLUMNS)} FROM tokens ORDER BY name")  # noqa: S608
        return {known[0]: None if is_revoked else self._open(sealed, known) for is_revoked, sealed, *known in rows}

    def _open(self, sealed: str | None, columns: list[Any]) -> "Token | None":
        """Return the token; None if somebody without the key wrote its row."""
        from onetool.config.model import Token

        try:
            digest = self._sealer.open(b64decode(sealed or ""), _describe_token(*columns)).decode()
        except (StorageError, ValueError):
            return None
        return Token(hash=digest, **dict(zip(TOKEN_COLUMNS, columns, strict=True)))


def _describe_token(*columns: str | None) -> bytes:
    return json.dumps(columns).encode()
