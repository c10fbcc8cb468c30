"""Every kind of stored state behind one interface: a key is written, and read completely or not at
all.

`KINDS` uses only the protocols of `onetool.state.storage`. `BACKENDS` opens each kind of each
backend in a directory. `python -m tests.contract.storage_kinds BACKEND KIND DIRECTORY PREFIX
[COUNT]` writes keys and prints each stored key.
"""

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol
from unittest.mock import patch

import yaml
from tests.postgres_support import get_database
from tests.state_support import ResultStore, open_media

from onetool.cli.main import load_command, parse, run
from onetool.errors import StorageError, ToolError
from onetool.runs.results.blobs import Media
from onetool.runs.results.store import StoredResults
from onetool.settings.access import Token
from onetool.settings.load import load
from onetool.settings.model import Output
from onetool.settings.paths import Directories, find_directories
from onetool.settings.planned_edit import EditConflict, ItemChange
from onetool.settings.settings_editor import SettingsEditor
from onetool.settings.trust import TrustFile
from onetool.sources.bundles import BundleStore
from onetool.sources.bundles.source import open_bundles
from onetool.sources.extensions.environments import InterpreterFiles
from onetool.sources.upstream.definitions import Definition, ToolLists
from onetool.state import opening
from onetool.state.credentials import CredentialFile, CredentialKey, CredentialStore
from onetool.state.document_kinds import MODEL_USAGE, DisabledTools, SavedSnippet, SavedSnippets
from onetool.state.documents import DocumentCache, DocumentFile, Documents
from onetool.state.file_kinds import NoticeFiles
from onetool.state.replica_kinds import NoticeRows, StoredTokenSet
from onetool.state.run_records import CallState, DurableCall, RunRecord
from onetool.state.run_store import RunStore, RunTables
from onetool.state.session_store import SessionStore, SessionTables, SessionValue
from onetool.state.stats.database import StatisticsFile
from onetool.state.stats.record import CallRecord, Recorder
from onetool.state.stats.shapes import Shapes
from onetool.state.stats.summary import summarize
from onetool.state.storage import State
from onetool.util.logging import Log

if TYPE_CHECKING:
    from onetool.state.file_kinds import AuditFile

HOUR = 3600.0
ALL = "all"
POSTGRES_KEY = "5e" * 32
CONTENT = "0123456789" * 2_000  # long enough that a partial write is detected


class Kind(Protocol):
    """A kind of stored state.

    `write` returns the name of the key, which may be a handle. Errors are ToolErrors.
    """

    def __init__(self, store: Any) -> None: ...
    def write(self, key: str, /) -> str: ...
    def read(self, name: str) -> bool: ...
    def close(self) -> None: ...


class BaseKind:
    def __init__(self, store: Any) -> None:
        self.store = store

    def close(self) -> None:
        """Close nothing: most kinds hold nothing open."""


def is_complete(found: object, expected: object) -> bool:
    assert found in (None, expected)
    return found is not None


class Results(BaseKind):
    store: StoredResults

    def write(self, _key: str) -> str:
        return str(self.store.put(CONTENT, tool="t")["handle"])

    def read(self, name: str) -> bool:
        return is_complete(self.store.load(name), CONTENT)


class MediaKind(BaseKind):
    store: Media

    def write(self, _key: str) -> str:
        return self.store.put(CONTENT.encode(), "image/png", "default")

    def read(self, name: str) -> bool:
        return is_complete(self.store.get(name, "default").data, CONTENT.encode())


class SessionKind(BaseKind):
    store: SessionTables
    value: ClassVar = SessionValue(json.dumps(CONTENT), ("untrusted",))

    def write(self, key: str) -> str:
        handle = self.store.create()
        self.store.update(handle, {key: self.value})
        return f"{handle}/{key}"

    def read(self, name: str) -> bool:
        handle, _, key = name.partition("/")
        return is_complete(self.store.get(handle, [key]).get(key), self.value)

    def close(self) -> None:
        if isinstance(self.store, SessionStore):
            self.store.close()


class Statistics(BaseKind):
    store: Recorder

    def write(self, key: str) -> str:
        self.store.add(CallRecord(key, "default", "s", "", 0.1, None, 7))
        self.store.flush()
        return raise_problem(self.store.problem, key)

    def read(self, name: str) -> bool:
        return is_complete(summarize(self.store.database, tool=name)["total_calls"] or None, 1)

    def close(self) -> None:
        self.store.close()


class ShapeKind(BaseKind):
    store: Shapes

    def write(self, key: str) -> str:
        self.store.learn(key, {"number": 1, "text": CONTENT})
        self.store.flush()
        return raise_problem(self.store.problem, key)

    def read(self, name: str) -> bool:
        return is_complete(self.store.text(name), "{number: int, text: str}")

    def close(self) -> None:
        self.store.close()


class AppendOnlyLog(NamedTuple):
    """A store that is only appended to, with a function that reads its records."""

    store: Any
    records: Callable[[], Iterator[dict[str, Any]]]


class AuditKind(BaseKind):
    store: AppendOnlyLog

    def write(self, key: str) -> str:
        log: AuditFile = self.store.store
        try:
            log.write("call.started", key=key, content=CONTENT)
        except OSError as error:
            raise StorageError(str(error)) from error
        return key

    def read(self, name: str) -> bool:
        return is_complete(
            next((each["content"] for each in self.store.records() if each["key"] == name), None),
            CONTENT,
        )

    def close(self) -> None:
        self.store.store.close()


class NoticeKind(BaseKind):
    store: AppendOnlyLog

    def write(self, key: str) -> str:
        notices: NoticeFiles = self.store.store
        notices.append("notes.yaml", f"---\nkey: {key}\ncontent: {CONTENT!r}\n".encode())
        return key

    def read(self, name: str) -> bool:
        return is_complete(
            next((each["content"] for each in self.store.records() if each["key"] == name), None),
            CONTENT,
        )


class SwitchKind(BaseKind):
    store: DisabledTools

    def write(self, key: str) -> str:
        self.store.set(key, on=False)
        return key

    def read(self, name: str) -> bool:
        off = self.store.off()
        assert "*" not in off or self.store.problem is not None
        return raise_problem(str(self.store.problem) if self.store.problem else None, name) in off


class SavedSnippetKind(BaseKind):
    store: SavedSnippets

    def write(self, key: str) -> str:
        self.store.put(SavedSnippet("default", key, "", CONTENT))
        return key

    def read(self, name: str) -> bool:
        found = next((each.body for each in self.store.list_all() if each.name == name), None)
        return is_complete(found, CONTENT)


class PinKind(BaseKind):
    store: Documents

    def write(self, key: str) -> str:
        self.store.update(key, lambda _: {"tool": {"description": CONTENT}})
        return key

    def read(self, name: str) -> bool:
        return is_complete(self.store.get(name), {"tool": {"description": CONTENT}})


class CredentialKind(BaseKind):
    store: CredentialStore

    def write(self, key: str) -> str:
        before = self.store.version()
        self.store.update(CredentialKey(key), lambda found: CONTENT if found is None else found)
        assert self.store.version() != before
        return key

    def read(self, name: str) -> bool:
        key = CredentialKey(name)
        found = self.store.get(key)
        assert (key in self.store.list_keys()) == (found is not None)
        return is_complete(found, CONTENT)


class UsageKind(BaseKind):
    store: Documents

    def write(self, key: str) -> str:
        self.store.update(key, lambda used: (used or 0) + 7)
        return key

    def read(self, name: str) -> bool:
        return is_complete(self.store.get(name), 7)


class TrustKind(BaseKind):
    store: TrustFile

    def write(self, key: str) -> str:
        self.store.put(key, {"salt": "s", "facts": {"onetool.yaml": {"[]": CONTENT}}})
        return key

    def read(self, name: str) -> bool:
        found = self.store.get(name)
        assert self.store.problems == ()
        return is_complete(found, {"salt": "s", "facts": {"onetool.yaml": {"[]": CONTENT}}})


class EnvironmentKind(BaseKind):
    store: InterpreterFiles

    def write(self, key: str) -> str:
        self.store.put(key, sys.executable)
        return key

    def read(self, name: str) -> bool:
        return is_complete(self.store.get(name), sys.executable)


class ToolListKind(BaseKind):
    store: ToolLists
    definition: ClassVar = Definition("tool", CONTENT, {"type": "object"})

    def write(self, key: str) -> str:
        self.store.put(key, [self.definition])
        self.store.put_failure(f"{key}-failed", CONTENT)
        return key

    def read(self, name: str) -> bool:
        failure = self.store.get_failure(f"{name}-failed")
        assert failure is None or failure.reason == CONTENT
        return is_complete(self.store.get(name), (self.definition,))


class BundleKind(BaseKind):
    store: BundleStore

    def write(self, key: str) -> str:
        bundle = self.store.new_id()
        self.store.put_bundle(
            bundle,
            {"slug": key, "displayName": key, "isEnabled": True, "description": CONTENT[:200]},
        )
        return key

    def read(self, name: str) -> bool:
        found = self.store.bundle_by_slug(name)
        return is_complete(found and found.description, CONTENT[:200])

    def close(self) -> None:
        self.store.close()


class RunKind(BaseKind):
    store: RunTables
    call: ClassVar = DurableCall(1, "t", CONTENT, "key", 0, CallState.DONE, result=CONTENT)

    def write(self, key: str) -> str:
        self.store.put_run(RunRecord(key, "default", CONTENT, owner=self.store.owner), [self.call])
        return key

    def read(self, name: str) -> bool:
        run = self.store.get_run(name)
        return is_complete(run and (run.code, self.store.list_calls(name)), (CONTENT, [self.call]))

    def close(self) -> None:
        self.store.close()


class TokenKind(BaseKind):
    """Tokens in the settings of a home directory, changed by the `onetool` command."""

    store: Path

    def write(self, key: str) -> str:
        environment = patch.dict(os.environ, {"HOME": str(self.store)})
        with environment, contextlib.redirect_stdout(io.StringIO()):
            run(load_command("token"), parse("token", ["create", key, "--json"]))
        return key

    def read(self, name: str) -> bool:
        tokens = load(find_directories({}, self.store, None, self.store), {}).settings.auth.tokens
        found = {each.name: each.hash for each in tokens}
        return name in found and len(found[name] or "") == 64


class TokenRowKind(BaseKind):
    """Tokens in a database."""

    store: StoredTokenSet

    def write(self, key: str) -> str:
        token = Token(name=key, hash=sha256(key.encode()).hexdigest(), agent="default")
        assert self.store.create(token) == ()
        return key

    def read(self, name: str) -> bool:
        found = {token.name: token.hash for token in self.store.apply(())}
        return is_complete(found.get(name), sha256(name.encode()).hexdigest())


class SettingsKind(BaseKind):
    """Agents in the settings: in files, or in the store that replicas share."""

    store: SettingsEditor
    value: ClassVar = {"permissions": ["read"], "tools": [CONTENT[:200]]}

    def write(self, key: str) -> str:
        planned = self.store.plan("agents.set", [ItemChange("agents", key, self.value)])
        try:
            self.store.apply(planned, actor="Ada", transport="cli")
        except EditConflict:  # another process was faster
            return self.write(key)
        return key

    def read(self, name: str) -> bool:
        planned = self.store.plan("agents.list", [])  # forgets what was read before
        assert (name in planned.before.settings.agents) == (
            self.store.find("agents", name).value is not None
        )
        return is_complete(self.store.find("agents", name).value, self.value)


class EveryKind(BaseKind):
    """All kinds of a backend at once: each key is written to every kind."""

    store: dict[str, Kind]

    def write(self, key: str) -> str:
        names = {kind: stored.write(key) for kind, stored in self.store.items()}
        return json.dumps(names, separators=(",", ":")).replace(" ", "_")

    def read(self, name: str) -> bool:
        if not name.startswith("{"):  # a key that may be missing
            found = [key_exists(stored, name) for stored in self.store.values()]
        else:
            names = json.loads(name)
            found = [
                stored.read(names[kind.replace(" ", "_")]) for kind, stored in self.store.items()
            ]
        return all(found)

    def close(self) -> None:
        for stored in self.store.values():
            stored.close()


def raise_problem(problem: str | None, key: str) -> str:
    """Raise the problem that a background writer reported, or return the key."""
    if problem is not None:
        raise StorageError(problem)
    return key


KINDS: dict[str, type[Kind]] = {
    "results": Results,
    "media": MediaKind,
    "sessions": SessionKind,
    "statistics": Statistics,
    "shapes": ShapeKind,
    "audit": AuditKind,
    "switches": SwitchKind,
    "pins": PinKind,
    "credentials": CredentialKind,
    "saved snippets": SavedSnippetKind,
    "token usage": UsageKind,
    "trust": TrustKind,
    "tokens": TokenKind,
    "environments": EnvironmentKind,
    "notices": NoticeKind,
    "bundles": BundleKind,
    "runs": RunKind,
    "tool lists": ToolListKind,
    "settings": SettingsKind,
    ALL: EveryKind,
}
CACHES = {"tool lists"}  # caches continue without what cannot be written


# --- the backends ---------------------------------------------------------------------------------


def open_statistics(directory: Path) -> StatisticsFile:
    return StatisticsFile(directory / "stats" / "stats.db")


def audit_file(directory: Path) -> AppendOnlyLog:
    file = directory / "logs" / "audit.jsonl"

    def records() -> Iterator[dict[str, Any]]:
        for line in file.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):  # the incomplete line of a call that was not made
                yield json.loads(line)

    return AppendOnlyLog(Log(file, gathers=False), records)


def notice_files(directory: Path) -> AppendOnlyLog:
    return AppendOnlyLog(
        NoticeFiles(directory), lambda: yaml.safe_load_all((directory / "notes.yaml").read_bytes())
    )


DOCUMENTS: dict[str, Callable[[DocumentFile], Any]] = {
    "switches": DisabledTools,
    "pins": lambda file: Documents(file, "pins"),
    "saved snippets": SavedSnippets,
    "token usage": lambda file: Documents(file, MODEL_USAGE),
    "tool lists": ToolLists,
}
FILES: dict[str, Callable[[Any], Any]] = {
    **DOCUMENTS,
    "results": lambda directory: ResultStore(directory / "tmp", HOUR, 3),
    "sessions": SessionStore,
    "media": lambda directory: open_media(directory / "tmp", HOUR),
    "statistics": lambda directory: Recorder(open_statistics(directory)),
    "shapes": lambda directory: Shapes(open_statistics(directory)),
    "audit": audit_file,
    "credentials": CredentialStore,
    "trust": TrustFile,
    "tokens": lambda directory: directory.parent,
    "environments": lambda directory: InterpreterFiles(directory / "environments"),
    "notices": notice_files,
    "bundles": lambda directory: BundleStore(directory / "bundles"),
    "runs": RunStore,
    "settings": lambda directory: SettingsEditor(Directories(directory.parent, directory), {}),
}


# PostgreSQL: the file `database` in the directory has the URL.


def open_postgres(directory: Path) -> State:
    url = (directory / "database").read_text()
    return opening.open_postgres(
        url, POSTGRES_KEY, directory / f"cache-{os.getpid()}", scope="/work"
    )


def audit_rows(state: State) -> AppendOnlyLog:
    rows = "SELECT record FROM audit ORDER BY id"
    log = state.audit(Path("/"), str)
    database = get_database(state)
    return AppendOnlyLog(log, lambda: (json.loads(record) for (record,) in database.select(rows)))


def notice_rows(state: State) -> AppendOnlyLog:
    notices = state.notices(1 << 20)
    assert isinstance(notices, NoticeRows)
    return AppendOnlyLog(notices, lambda: yaml.safe_load_all(notices.read("notes.yaml")))


POSTGRES: dict[str, Callable[[State], Any]] = {
    "results": lambda state: StoredResults.open(state, Output()),
    "media": lambda state: Media.open(state, Output()),
    "sessions": lambda state: state.sessions,
    "statistics": lambda state: state.recorder,
    "shapes": lambda state: state.shapes,
    "audit": audit_rows,
    "switches": lambda state: state.disabled_tools,
    "pins": lambda state: state.pins,
    "credentials": lambda state: state.credentials,
    "saved snippets": lambda state: state.snippets,
    "token usage": lambda state: state.token_usage,
    "tokens": lambda state: state.tokens,
    "notices": notice_rows,
    "bundles": lambda state: open_bundles(state, Path("/"), 1000),
    "runs": lambda state: state.runs,
    "tool lists": lambda state: ToolLists(state.cache, str),
    "settings": lambda state: state.settings.open_editor(
        Directories(Path("/"), Path("/no-files")), {}
    ),
}
POSTGRES[ALL] = lambda state: {
    kind: make_kind(kind, make(state)) for kind, make in POSTGRES.items() if kind != ALL
}
BACKENDS: dict[str, Mapping[str, Callable[[Any], Any]]] = {"files": FILES, "postgres": POSTGRES}


def make_kind(kind: str, store: Any) -> Kind:
    return (TokenRowKind if isinstance(store, StoredTokenSet) else KINDS[kind])(store)


@contextlib.contextmanager
def open_kind(backend: str, kind: str, directory: Path) -> Iterator[Kind]:
    place: Any = directory
    if backend == "postgres":
        place = open_postgres(directory)
    elif kind == "credentials":
        place = CredentialFile(directory)
    elif kind in DOCUMENTS:
        place = DocumentCache(directory / "cache") if kind in CACHES else DocumentFile(directory)
    store = BACKENDS[backend][kind](place)
    stored = make_kind(kind, store)
    try:
        yield stored
    finally:
        stored.close()
        if place is not directory:
            place.close()


def key_exists(stored: Kind, name: str) -> bool:
    """Return whether the key exists. Some kinds raise an error for a missing key."""
    try:
        return stored.read(name)
    except ToolError as error:
        if type(error) is not ToolError:
            raise
        return False


def print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(backend: str, kind: str, directory: str, prefix: str, count: str = "") -> None:
    with open_kind(backend, kind, Path(directory)) as stored:
        print_line("ready")
        sys.stdin.readline()
        for number in range(int(count or sys.maxsize)):
            key = f"{prefix}-{number}"
            print_line(f"{key} {stored.write(key)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
