"""Copy all state from files to PostgreSQL, or back. What the target has already is kept, so it can be repeated.

Every kind is verified: each item of the source exists in the target afterwards.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NoReturn

from onetool.bundles.builtins import STATES_FILE
from onetool.bundles.bundle_storage import BundleDirectory
from onetool.bundles.source import bundles_directory
from onetool.config.load import Loaded
from onetool.disabled_tools import EVERYTHING, Switches
from onetool.errors import StorageError, ToolError
from onetool.llm.token_budget import TokenUsageFile
from onetool.logging import list_rotated
from onetool.notify import NoticeFiles
from onetool.oauth.credential_store import DIRECTORY as CREDENTIALS, CredentialStore
from onetool.paths import resolve_path
from onetool.postgres.bundles import KEY, KIND, LOCK, PUT
from onetool.postgres.opening import open_state
from onetool.postgres.state import PostgresState
from onetool.postgres.stored_files import read_parts, write_parts
from onetool.postgres.transfer_jobs import reject_jobs
from onetool.postgres.transfer_statistics import statistics_to_files, statistics_to_rows
from onetool.proxy.pins import Pins
from onetool.runs.run_store import RunStore, RunTables
from onetool.runs.session_store import SessionStore, SessionTables
from onetool.snippets.saved_snippets import SavedSnippet, SavedSnippetFile, SavedSnippetSet
from onetool.stats.shapes import ShapeFile
from onetool.storage import CredentialStorage
from onetool.util.atomic import owner_only
from onetool.util.running_servers import list_servers
from onetool.util.store_url import FILES, SCHEMES

COUNT_AUDIT: Final = "SELECT record FROM audit ORDER BY id"


@dataclass(frozen=True)
class Places:
    """The state in files and the state in a database."""

    loaded: Loaded
    rows: PostgresState

    @property
    def data(self) -> Path:
        return self.loaded.directories.data

    @property
    def audit_files(self) -> list[Path]:
        """The audit logs, oldest first."""
        settings = self.loaded.settings.audit
        file = resolve_path(settings.file, self.data, self.loaded.directories.home)
        return [each for each in (*reversed(list_rotated(file, settings.keep)), file) if each.exists()]


def transfer(loaded: Loaded, target: str) -> dict[str, int]:
    """Copy all state to the target, `files` or a URL, and return the number of verified items of each kind."""
    is_to_files = target == FILES
    if not is_to_files and not target.startswith(SCHEMES):
        raise ToolError(
            f"invalid store {target!r}", hint="use `files`, or a URL such as postgresql://user@host/database"
        )
    url = loaded.settings.store if is_to_files else target
    if not url:
        raise ToolError("the state is in files already", hint="set store, or ONETOOL_STORE, to the store to copy from")
    settings = loaded.settings.model_copy(update={"store": url})
    opened = replace(loaded, settings=settings)
    state = open_state(opened)
    assert state is not None
    with ExitStack() as stack:
        stack.callback(state.close)
        places = Places(opened, state)
        _reject_writers(places, is_to_files=is_to_files)
        if is_to_files:
            reject_jobs(state)
        return {kind: copy(places) for kind, copy in (TO_FILES if is_to_files else TO_ROWS).items()}


def _reject_writers(places: Places, *, is_to_files: bool) -> None:
    """Raise if a server writes to the source: what it writes would be lost."""
    from onetool.postgres.status import describe_status

    if is_to_files:
        alive = [each["description"] for each in describe_status(places.rows.database)["replicas"]]
    else:
        alive = [f"process {each.pid}" for each in list_servers(places.loaded.directories.user)]
    if alive:
        raise ToolError(
            f"cannot copy the state while servers write it: {', '.join(alive)}",
            hint="stop them first (`onetool daemon stop` for the shared server), then repeat the command",
        )


def _fail(kind: str, missing: Iterable[object]) -> NoReturn:
    raise StorageError(f"the copy of {kind} is incomplete: {', '.join(map(str, list(missing)[:5]))}", hint="repeat it")


def _verify(kind: str, wanted: Iterable[Any], found: Iterable[Any]) -> int:
    items = list(wanted)
    if missing := Counter(items) - Counter(list(found)):
        _fail(kind, missing)
    return len(items)


# --- runs and sessions ------------------------------------------------------------------------------------------------


def _copy_runs(source: RunTables, target: RunTables) -> int:
    grants = source.list_all_grants()
    for run_id in source.list_ids():
        run = source.get_run(run_id)
        if run is not None:
            target.restore(run, source.list_calls(run_id), [grant for grant in grants if grant.run == run_id])
    target.restore_grants(grant for grant in grants if grant.run is None)
    known = {grant.id for grant in target.list_all_grants()}
    _verify("grants", (grant.id for grant in grants if grant.run is None), known)
    return _verify("runs", source.list_ids(), target.list_ids())


def _copy_sessions(source: SessionTables, target: SessionTables) -> int:
    sessions = source.list_all()
    for session in sessions:
        handle, agent, token_id, _ = session
        try:
            values = source.get(handle, source.list_keys(handle, agent, token_id), agent, token_id)
        except ToolError:  # it has expired
            continue
        target.restore(session, values)
    found = {session[0] for session in target.list_all()}
    expired = {each[0] for each in sessions} - found
    return len(sessions) - len(expired)


def _with_runs(copy: Callable[[RunStore, PostgresState], int]) -> Callable[[Places], int]:
    def run(places: Places) -> int:
        with closing(RunStore(places.data)) as files:
            return copy(files, places.rows)

    return run


def _with_sessions(copy: Callable[[SessionStore, PostgresState], int]) -> Callable[[Places], int]:
    def run(places: Places) -> int:
        with closing(SessionStore(places.data)) as files:
            return copy(files, places.rows)

    return run


# --- documents --------------------------------------------------------------------------------------------------------


def _copy_switches(source: Any, target: Any) -> int:
    names = source.off()
    if EVERYTHING in names:
        raise StorageError(str(source.problem))
    for name in names - target.off():
        target.set(name, on=False)
    return _verify("disabled tools", names, target.off())


def _copy_pins(source: Any, target: Any) -> int:
    servers = source.servers()
    for server in servers:
        pinned = source.get(server)
        if target.get(server) is None:
            target.update(server, lambda known, pinned=pinned: known or pinned)
    return _verify("pins", servers, target.servers())


def _copy_credentials(source: CredentialStorage, target: CredentialStorage) -> int:
    keys = source.list_keys()
    for key in keys:
        text = source.get(key)
        target.update(key, lambda known, text=text: known or text)  # type: ignore[misc]
    return _verify("credentials", keys, target.list_keys())


def _copy_snippets(source: SavedSnippetSet, target: SavedSnippetSet) -> int:
    def identify(snippets: Iterable[SavedSnippet]) -> list[tuple[str, str]]:
        return [(each.agent, each.name) for each in snippets]

    saved = source.list_all()
    target.change(lambda known: [*known, *(each for each in saved if identify([each])[0] not in identify(known))])
    return _verify("snippets", identify(saved), identify(target.list_all()))


def _copy_usage(source: Any, target: Any) -> int:
    days = source.days()
    for day, used in days.items():
        target.update(day, lambda known, used=used: max(known, used))
    return _verify("token usage", days, target.days())


def _copy_shapes(source: Any, target: Any) -> int:
    shapes = source.read_all()
    if shapes:
        target.merge_all(shapes)
    return _verify("shapes", shapes, target.read_all())


def _tokens_to_rows(places: Places) -> int:
    tokens = [token for token in places.loaded.settings.auth.tokens if token.hash]
    for token in tokens:
        places.rows.tokens.create(token)
    return _verify("tokens", [token.name for token in tokens], places.rows.tokens.names())


# --- logs -------------------------------------------------------------------------------------------------------------


def _read_lines(files: Iterable[Path]) -> list[str]:
    return [line for file in files for line in file.read_text("utf-8", "replace").splitlines() if line]


def _audit_to_rows(places: Places) -> int:
    lines, records = _read_lines(places.audit_files), places.rows.audit(str)
    missing = Counter(lines) - Counter(_audit_rows(places))
    records.insert_lines(_select_missing(lines, missing))
    return _verify("audit", lines, _audit_rows(places))


def _audit_to_files(places: Places) -> int:
    settings = places.loaded.settings.audit
    file = resolve_path(settings.file, places.data, places.loaded.directories.home)
    rows = list(_audit_rows(places))
    missing = _select_missing(rows, Counter(rows) - Counter(_read_lines(places.audit_files)))
    if missing:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(file, "a", encoding="utf-8", opener=owner_only) as log:
            log.writelines(f"{line}\n" for line in missing)
    return _verify("audit", rows, _read_lines(places.audit_files))


def _audit_rows(places: Places) -> Iterator[str]:
    return (record for (record,) in places.rows.database.select(COUNT_AUDIT))


def _select_missing(lines: Iterable[str], missing: Counter[str]) -> list[str]:
    selected, left = [], Counter(missing)
    for line in lines:
        if left[line] > 0:
            left[line] -= 1
            selected.append(line)
    return selected


def _split_documents(content: bytes) -> list[bytes]:
    return [b"---\n" + part for part in content.split(b"---\n") if part.strip()]


def _notices_to_rows(places: Places) -> int:
    notices, count = places.rows.notices(1 << 40), 0
    for name, path in _notice_files(places):
        documents = _split_documents(path.read_bytes()) if path.exists() else []
        known = Counter(_split_documents(notices.read(name)))
        for document in documents:
            if known[document] > 0:
                known[document] -= 1
            else:
                notices.append(name, document)
        count += _verify("notices", documents, _split_documents(notices.read(name)))
    return count


def _notices_to_files(places: Places) -> int:
    rows, files, count = places.rows.notices(1 << 40), NoticeFiles(places.data, 1 << 40), 0
    for name, path in _notice_files(places):
        documents = _split_documents(rows.read(name))
        known = Counter(_split_documents(path.read_bytes()) if path.exists() else [])
        for document in documents:
            if known[document] > 0:
                known[document] -= 1
            else:
                files.append(name, document)
        count += _verify("notices", documents, _split_documents(path.read_bytes()) if documents else [])
    return count


def _notice_files(places: Places) -> list[tuple[str, Path]]:
    names = dict.fromkeys(topic.file for topic in places.loaded.settings.notify.topics)
    return [(name, resolve_path(name, places.data, Path.home())) for name in names]


# --- bundles ----------------------------------------------------------------------------------------------------------


def _list_bundle_files(root: Path) -> list[str]:
    found = (file.relative_to(root).as_posix() for file in root.glob("[!.]*/*.json"))
    return [*found, *(name for name in (STATES_FILE, KEY) if (root / name).exists())]


def _bundle_rows(places: Places) -> dict[str, bytes]:
    query = "SELECT path, content FROM bundle_files WHERE content IS NOT NULL"
    return dict(places.rows.database.select(query))


def _bundles_to_rows(places: Places) -> int:
    root = bundles_directory(places.loaded)
    paths = _list_bundle_files(root)
    with places.rows.database.transaction() as transaction:
        transaction.lock(LOCK)
        known = {path for (path,) in transaction.execute("SELECT path FROM bundle_files").fetchall()}
        new = [path for path in paths if path not in known]
        if new:
            version = transaction.announce(KIND)
            transaction.executemany(PUT, [(path, version, (root / path).read_bytes()) for path in new])
    return _verify("bundles", paths, _bundle_rows(places))


def _bundles_to_files(places: Places) -> int:
    root, rows = bundles_directory(places.loaded), _bundle_rows(places)
    if not rows:
        return 0
    with closing(BundleDirectory(root)) as directory, directory.writing() as journal:
        new = [path for path in rows if not (root / path).exists()]
        indexed = [path for path in new if "/" in path]
        journal.begin(indexed)
        for path in new:
            (root / path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            (root / path).write_bytes(rows[path])
            (root / path).chmod(0o600)
        directory.sync(journal, indexed)
    return _verify("bundles", rows, _list_bundle_files(root))


# --- results ----------------------------------------------------------------------------------------------------------


def _results_to_rows(places: Places) -> int:
    return write_parts(places.rows.database, places.data / "tmp", str(places.loaded.directories.working_dir))


def _results_to_files(places: Places) -> int:
    return read_parts(places.rows.database, places.data / "tmp")


TO_ROWS: Final[dict[str, Callable[[Places], int]]] = {
    "runs": _with_runs(lambda files, rows: _copy_runs(files, rows.runs)),
    "sessions": _with_sessions(lambda files, rows: _copy_sessions(files, rows.sessions)),
    "results": _results_to_rows,
    "bundles": _bundles_to_rows,
    "disabled": lambda places: _copy_switches(Switches(places.data), places.rows.disabled_tools),
    "pins": lambda places: _copy_pins(Pins(places.data / "pins.json"), places.rows.pins),
    "credentials": lambda places: _copy_credentials(_credential_files(places), places.rows.credentials),
    "snippets": lambda places: _copy_snippets(SavedSnippetFile(places.data), places.rows.snippets),
    "tokens": _tokens_to_rows,
    "llm tokens": lambda places: _copy_usage(_usage_file(places), places.rows.token_usage),
    "notices": _notices_to_rows,
    "audit": _audit_to_rows,
    "shapes": lambda places: _copy_shapes(_shape_file(places), places.rows.shapes),
    "statistics": lambda places: statistics_to_rows(places.data / "stats" / "stats.db", places.rows),
}
TO_FILES: Final[dict[str, Callable[[Places], int]]] = {
    "runs": _with_runs(lambda files, rows: _copy_runs(rows.runs, files)),
    "sessions": _with_sessions(lambda files, rows: _copy_sessions(rows.sessions, files)),
    "results": _results_to_files,
    "bundles": _bundles_to_files,
    "disabled": lambda places: _copy_switches(places.rows.disabled_tools, Switches(places.data)),
    "pins": lambda places: _copy_pins(places.rows.pins, Pins(places.data / "pins.json")),
    "credentials": lambda places: _copy_credentials(places.rows.credentials, _credential_files(places)),
    "snippets": lambda places: _copy_snippets(places.rows.snippets, SavedSnippetFile(places.data)),
    "llm tokens": lambda places: _copy_usage(places.rows.token_usage, _usage_file(places)),
    "notices": _notices_to_files,
    "audit": _audit_to_files,
    "shapes": lambda places: _copy_shapes(places.rows.shapes, _shape_file(places)),
    "statistics": lambda places: statistics_to_files(places.rows, places.data / "stats" / "stats.db"),
}


def _credential_files(places: Places) -> CredentialStore:
    return CredentialStore(places.loaded.directories.user / CREDENTIALS)


def _usage_file(places: Places) -> TokenUsageFile:
    return TokenUsageFile(places.loaded.directories.user / "stats" / "llm.json")


def _shape_file(places: Places) -> ShapeFile:
    return ShapeFile(places.data / "stats" / "shapes.json")
