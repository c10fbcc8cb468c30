"""Records which project directories the user trusts, and detects changes since then.

Trust belongs to a settings directory at its path; links are rejected. The record has what `onetool
trust` shows: the data of each settings file, without what is only presentational, and the names of
extension files. Changes that can run code or reach data or the network need trust again
(`needs_trust`). Secrets, comments and the content of extension files are not recorded, because
users edit them often. A file that cannot be parsed is an error of the settings, not of trust.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from onetool.errors import ConfigError, StorageError, ToolError
from onetool.settings import paths
from onetool.settings.contents import TRUST_FILE, SettingsContents
from onetool.util import atomic
from onetool.util.atomic import locked
from onetool.util.problem import (
    UNTRUSTED,
    Location,
    NewerVersion,
    Problem,
    check_version,
    storage_error,
    storage_problem,
)
from onetool_child.json_types import JsonMapping, JsonObject

VERSION = 1
VARIABLE = "ONETOOL_TRUST"
EXTENSIONS = "extension files"
TO_TRUST = "run `onetool trust`"
MAX_CHANGES_SHOWN = 8
_READABLE_KEY = re.compile(r"[\w-]{1,60}")
# Settings without effect on what code can do. Directories of `projects` are recorded if they lead
# out of the project.
PRESENTATIONAL = frozenset(
    {"aliases", "docs_url", "expose", "log_level", "projects", "prompts", "snippets", "version"}
)
# Settings that are shown for review, but can neither run code nor reach data or the network.
HARMLESS = frozenset({"limits", "runs", "stats", "workers"})
# Directories of a project whose files are loaded, or written in place.
LINKED_FROM = ("tools", "bundles", "cache", "logs", "stats")
# Lists that only allow: with fewer items, less is possible. GRANTS are those of an agent.
GRANTS = frozenset({"hosts", "permissions", "tools"})
ALLOWED = frozenset({("http", "allowedHosts"), ("tools_dir",)})
# The data of each settings file by its name, and the names of extension files. The data of an
# invalid file is a string.
Snapshot = JsonMapping


class TrustDecision(NamedTuple):
    """The result of a trust check.

    `snapshot` is the content of a project that only an environment variable trusts.
    """

    trusted: bool
    problems: tuple[Problem, ...] = ()
    snapshot: Snapshot | None = None


class Change(NamedTuple):
    """A difference between the trusted and the current content. `line` is 0 for a deleted key."""

    file: str
    line: int
    key: str
    before: Any = None
    after: Any = None
    is_new: bool = False
    is_gone: bool = False

    def __str__(self) -> str:
        """Describe the location without the value, because a model may read it."""
        what = "was added" if self.is_new else "was removed" if self.is_gone else "changed"
        if self.file == EXTENSIONS:
            return f"extension file {self.key} {what}"
        return f"{Location(self.file, self.line)} ({self.key or 'the whole file'}) {what}"


def is_trusted(project: Path, user_directory: Path, env: Mapping[str, str]) -> bool:
    return check_trust(project, user_directory, env).trusted


def check_trust(
    project: Path,
    user_directory: Path,
    env: Mapping[str, str],
    files: SettingsContents | None = None,
) -> TrustDecision:
    """Check whether a project directory is trusted; if not, explain why and how to trust it.

    `files` are its settings files, if they were read already.
    """
    if _store_key(project) == _store_key(user_directory):
        return TrustDecision(trusted=True)
    if link := find_outside_link(project):
        return _distrust(project, f"is not trusted and is ignored: {link[0]}", link[1])
    if env.get(VARIABLE) == "1":
        snapshot = take_snapshot(project, user_directory.parent, files=files)
        return TrustDecision(trusted=True, snapshot=snapshot)
    return _check_record(project, user_directory, files)


def _check_record(
    project: Path, user_directory: Path, files: SettingsContents | None
) -> TrustDecision:
    store = TrustFile(user_directory)
    try:
        record = store.get(_store_key(project))
    except NewerVersion as error:
        message = f"{project} is not trusted and is ignored: {error.message}"
        problem = storage_problem(message, user_directory / TRUST_FILE, error.hint)
        return TrustDecision(False, (problem,))
    # An untrusted directory is not read, not even to compare it.
    if record is None:
        return _distrust(project, "is not trusted and is ignored", "", *store.problems)
    changes = _find_changes(record, project, user_directory.parent, files)
    if changes:
        reason = f"changed since it was trusted and is ignored: {describe(changes)}"
        return _distrust(project, reason)
    return TrustDecision(trusted=True)


def _distrust(project: Path, reason: str, hint: str = "", *before: Problem) -> TrustDecision:
    hint = hint or f"review its content, then {TO_TRUST} in {project.parent}"
    problem = Problem(f"{project} {reason}", hint, Location(str(project)), UNTRUSTED)
    return TrustDecision(False, (*before, problem))


def still_trusted(
    directories: paths.Directories, env: Mapping[str, str], snapshot: Snapshot | None = None
) -> TrustDecision:
    """Check whether a project in use is still trusted; with a named settings file, it always is.

    `snapshot` is its content at the start, if known: an environment variable does not cover later
    changes.
    """
    is_checked = directories.trusted and directories.config_file is None
    if directories.project is None or not is_checked:
        return TrustDecision(trusted=True)
    decision = check_trust(directories.project, directories.user, env)
    if not decision.trusted or decision.snapshot is None or snapshot is None:
        return decision
    current = take_snapshot(directories.project, directories.home, snapshot)
    changes = compare_snapshots(snapshot, current, directories.project)
    if not changes:
        return decision
    return TrustDecision(False, (late_change_problem(directories.project, changes),))


def late_change_problem(project: Path, changes: list[Change]) -> Problem:
    """Explain why changes of a project that only an environment variable trusts are rejected."""
    reason = f"{describe(changes)}; {VARIABLE}=1 covers only the content at the start"
    message = f"{project} changed since OneTool started: {reason}"
    return Problem(message, f"restart OneTool, or {TO_TRUST}", Location(str(project)), UNTRUSTED)


def changes_since_trusted(project: Path, user_directory: Path) -> list[Change] | None:
    """List the changes since the directory was trusted; None if it never was."""
    record = TrustFile(user_directory).get(_store_key(project))
    return None if record is None else _find_changes(record, project, user_directory.parent)


def make_record(
    project: Path, user_directory: Path, files: SettingsContents | None = None
) -> JsonMapping:
    """Return the record of the current content of a directory, or of these settings files."""
    if link := find_outside_link(project):
        raise ToolError(f"cannot trust {project}: {link[0]}", hint=link[1])
    return {"facts": take_snapshot(project, user_directory.parent, files=files)}


def trust(project: Path, user_directory: Path, record: JsonMapping | None = None) -> None:
    """Store the record of a directory, or a record of its current content."""
    record = record or make_record(project, user_directory)
    TrustFile(user_directory).put(_store_key(project), record)


def is_file_trusted(file: Path, digest: str, user_directory: Path) -> bool:
    """Return whether the user trusts this content of a file with servers."""
    return TrustFile(user_directory).get(_store_key(file)) == {"digest": digest}


def trust_file(file: Path, digest: str, user_directory: Path) -> None:
    TrustFile(user_directory).put(_store_key(file), {"digest": digest})


def untrust(project: Path, user_directory: Path) -> bool:
    """Delete the record of the directory; return False if there is none."""
    return TrustFile(user_directory).delete(_store_key(project))


def describe(changes: list[Change]) -> str:
    parts = [str(change) for change in changes[:MAX_CHANGES_SHOWN]]
    if len(changes) > len(parts):
        parts.append(f"and {len(changes) - len(parts)} more")
    return ", ".join(parts)


# --- content of a project -------------------------------------------------------------------------


def take_snapshot(
    project: Path, home: Path, before: Snapshot | None = None, files: SettingsContents | None = None
) -> Snapshot:
    """Return everything in a project directory that a person reviews.

    `before` names the directories of extension files while the settings file is invalid.
    """
    files = files or SettingsContents()
    snapshot: JsonObject = {}
    config = _read_file(project / paths.CONFIG, files)
    if isinstance(config, dict):
        snapshot[paths.CONFIG] = _select_reviewed(config, project.parent, home)
    elif config is not None:
        snapshot[paths.CONFIG] = config
    for file in paths.agent_files(project):
        snapshot[str(file.relative_to(project))] = _read_file(file, files)
    named = (before or {}).get(paths.CONFIG) if isinstance(config, str) else config
    snapshot[EXTENSIONS] = list(_list_extension_names(project, home, named))
    return snapshot


def _read_file(file: Path, files: SettingsContents) -> Any:
    """Return the data of a file; a string if it is not a mapping, an error."""
    try:
        data = files.read(file).data
    except FileNotFoundError:
        return None
    except ConfigError as error:
        return str(error)
    return data if data is None or isinstance(data, dict) else f"{file} is not a mapping"


def _select_reviewed(config: JsonMapping, project: Path, home: Path) -> JsonObject:
    """Return the settings to review.

    Tools may read the directories of `projects`, so those outside are among them.
    """
    reviewed = {key: value for key, value in config.items() if key not in PRESENTATIONAL}
    projects = config.get("projects")
    if isinstance(projects, dict):
        outside = {}
        for name, text in projects.items():
            path = paths.resolve_path(str(text), project, home)
            if not paths.is_inside(path, project):
                outside[name] = text
        if outside:
            reviewed["projects"] = outside
    return reviewed


def _list_extension_names(project: Path, home: Path, config: Any) -> Iterator[str]:
    named = config.get("tools_dir") if isinstance(config, dict) else None
    listed = named if isinstance(named, list) else []
    for text in ("tools", *(name for name in listed if isinstance(name, str))):
        directory = paths.resolve_path(text, project, home)
        for file in paths.extension_files(directory):
            yield f"{text}/{file.relative_to(directory)}"


def find_outside_link(project: Path) -> tuple[str, str] | None:
    """Return the reason and a hint if a link leads out of a project directory.

    Nobody has reviewed its target, which OneTool would execute or write.
    """
    if project.is_symlink():
        return "it is a symbolic link", "replace the link with a directory"
    entries: list[Path] = []
    with suppress(OSError):
        inside = (path for name in LINKED_FROM for path in (project / name).glob("*"))
        entries = [path for path in (*project.iterdir(), *inside) if path.is_symlink()]
    for path in (*entries, *paths.agent_files(project), *paths.extension_files(project / "tools")):
        if not paths.is_inside(path, project):
            reason = f"{path} is a symbolic link that leads out of it"
            return reason, "replace the link with the file"
    return None


# --- comparison -----------------------------------------------------------------------------------


def _find_changes(
    record: JsonMapping, project: Path, home: Path, files: SettingsContents | None = None
) -> list[Change]:
    facts = record.get("facts")
    if not isinstance(facts, dict):
        return [Change(TRUST_FILE, 0, "")]
    files = files or SettingsContents()
    return compare_snapshots(facts, take_snapshot(project, home, facts, files), project, files)


def compare_snapshots(
    before: Snapshot, after: Snapshot, project: Path, files: SettingsContents | None = None
) -> list[Change]:
    """List the differences that need trust, ordered by file and line."""
    files = files or SettingsContents()
    changes: list[Change] = []
    for file in sorted({*before, *after} - {EXTENSIONS}):
        if not isinstance(after.get(file), str):  # nothing in an invalid file takes effect
            differences = _compare_files(file, before.get(file), after.get(file), project, files)
            changes += sorted(differences, key=attrgetter("line", "key"))
    old_names = before.get(EXTENSIONS, ())
    names = sorted(name for name in after.get(EXTENSIONS, ()) if name not in old_names)
    return [*changes, *(Change(EXTENSIONS, 0, name, is_new=True) for name in names)]


def _compare_files(
    file: str, before: Any, after: Any, project: Path, files: SettingsContents
) -> Iterator[Change]:
    old = dict(flatten(before))
    new = dict(flatten(after))
    document = None
    for loc in {**new, **old}:
        is_same = loc in old and loc in new and _to_json(old[loc]) == _to_json(new[loc])
        if is_same or not needs_trust(file, loc, old, new):
            continue
        if document is None:
            with suppress(ConfigError, FileNotFoundError):
                document = files.read(project / file)
        line = document.line(loc) if document is not None and loc in new else 0
        is_new = loc not in old
        is_gone = loc not in new
        yield Change(file, line, _format_key(loc), old.get(loc), new.get(loc), is_new, is_gone)


def needs_trust(
    file: str, loc: tuple[str, ...], old: Mapping[Any, Any], new: Mapping[Any, Any]
) -> bool:
    """Return whether a change can newly run code, or reach other data or the network."""
    section = loc[0] if file == paths.CONFIG and loc else "agents"
    if section in HARMLESS:
        return False
    if section == "servers" and not any(other[:2] == loc[:2] for other in new):
        return False  # the server is gone
    inside = loc[2:] if file == paths.CONFIG else loc
    is_grant = section == "agents" and len(inside) == 1 and inside[0] in GRANTS
    before = old.get(loc)
    after = new.get(loc)
    if (is_grant or loc in ALLOWED) and isinstance(before, list) and isinstance(after, list):
        return any(item not in before for item in after)
    return True


def flatten(data: Any, loc: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and the value of each setting. A list is one value."""
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from flatten(value, (*loc, key))
    elif data != {} and (loc or data):  # a file with only comments equals a missing one
        yield loc, data


def _to_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)  # unlike ==, it tells 1 from true


def _format_key(loc: tuple[str, ...]) -> str:
    """Return the path of a key, without key names that could contain arbitrary text."""
    return ".".join(str(key) if _READABLE_KEY.fullmatch(str(key)) else "…" for key in loc)


def _store_key(directory: Path) -> str:
    return str(Path(os.path.realpath(directory.parent)) / directory.name)


# --- storage --------------------------------------------------------------------------------------


class TrustFile:
    """The trust records of all directories, in one file of the user's directory.

    `problems` are of the last read.
    """

    def __init__(self, user_directory: Path) -> None:
        self._file = user_directory / TRUST_FILE
        self.problems: tuple[Problem, ...] = ()

    def get(self, project: str) -> JsonMapping | None:
        return self._read().get(project)

    def put(self, project: str, record: JsonMapping) -> None:
        with self._writing() as records:
            records[project] = record

    def delete(self, project: str) -> bool:
        with self._writing() as records:
            return records.pop(project, None) is not None

    def _read(self) -> dict[str, JsonMapping]:
        """Return the records by directory. Raise if a newer OneTool wrote the file."""
        self.problems = ()
        try:
            data = json.loads(self._file.read_bytes())
            check_version(data.get("version"), VERSION, self._file)
            records = data.get("folders")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, RecursionError):
            records = None
        if isinstance(records, dict) and all(
            isinstance(record, dict) for record in records.values()
        ):
            return records
        hint = f"run `rm {quote(str(self._file))}`, then `onetool trust` in your projects"
        message = f"{self._file} is damaged, so no project directory is trusted"
        self.problems = (storage_problem(message, self._file, hint),)
        return {}

    @contextmanager
    def _writing(self) -> Iterator[dict[str, JsonMapping]]:
        """Lock the file, yield the records for changes, and write them."""
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(self._file.with_name(f"{TRUST_FILE}.lock")):
                records = self._read()
                before = dict(records)
                yield records
                if records != before:
                    data = {"version": VERSION, "folders": records}
                    text = json.dumps(data, indent=2, sort_keys=True)
                    atomic.write(self._file, text, durable=True)
        except OSError as error:
            raise storage_error(self._file.parent, error, StorageError) from error
