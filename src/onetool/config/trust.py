"""Records which project directories the user trusts, and detects changes since then.

Trust belongs to a settings directory at its path; links are rejected. The record covers everything that changes
behavior: the data of each settings file, a digest of each secret, and the names of extension files. It ignores
comments, white space and the content of extension files, which users edit often.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from shlex import quote
from typing import Any

from onetool import paths
from onetool.errors import ConfigError, StorageError, ToolError
from onetool.problem import UNTRUSTED, Location, Problem, storage_problem
from onetool.storage import TrustStorage
from onetool.util import atomic, yaml_loader
from onetool.util.locks import locked
from onetool.util.storage_errors import storage_error
from onetool.util.versioning import NewerVersion, reject_newer

STORE = "trust.json"
VERSION = 2
VARIABLE = "ONETOOL_TRUST"
EXTENSIONS = "extension files"
TO_TRUST = "run `onetool trust`"
MAX_CHANGES_SHOWN = 8
_READABLE_KEY = re.compile(r"[\w-]{1,60}")
# File or group -> path of a key as JSON -> value. A salt makes digests of secrets differ between stores.
Snapshot = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class TrustDecision:
    """The result of a trust check. `snapshot` is the content of a project that only an environment variable trusts."""

    trusted: bool
    problems: tuple[Problem, ...] = ()
    snapshot: Snapshot | None = None


@dataclass(frozen=True, slots=True)
class Change:
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
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place} ({self.key or 'the whole file'}) {what}"


def is_trusted(project: Path, user_directory: Path, env: Mapping[str, str]) -> bool:
    return check_trust(project, user_directory, env).trusted


def check_trust(project: Path, user_directory: Path, env: Mapping[str, str]) -> TrustDecision:
    """Check whether a project directory is trusted; if not, explain why and how to trust it."""
    if _store_key(project) == _store_key(user_directory):
        return TrustDecision(trusted=True)
    if link := find_outside_link(project):
        return _distrust(project, f"is not trusted and is ignored: {link[0]}", link[1])
    if env.get(VARIABLE) == "1":
        return TrustDecision(trusted=True, snapshot=take_snapshot(project, user_directory.parent))
    return _check_record(project, user_directory, TrustFile(user_directory))


def _check_record(project: Path, user_directory: Path, store: TrustStorage) -> TrustDecision:
    try:
        record = store.get(_store_key(project))
    except NewerVersion as error:
        message = f"{project} is not trusted and is ignored: {error.message}"
        return TrustDecision(False, (storage_problem(message, user_directory / STORE, error.hint),))
    # An untrusted directory is not read, not even to compare it.
    if record is None:
        return _distrust(project, "is not trusted and is ignored", "", *store.problems)
    changes = _find_changes(record, project, user_directory.parent)
    if changes:
        return _distrust(project, f"changed since it was trusted and is ignored: {describe(changes)}")
    return TrustDecision(trusted=True)


def _distrust(project: Path, reason: str, hint: str = "", *before: Problem) -> TrustDecision:
    hint = hint or f"review its content, then {TO_TRUST} in {project.parent}"
    return TrustDecision(False, (*before, Problem(f"{project} {reason}", hint, Location(str(project)), UNTRUSTED)))


def still_trusted(
    directories: paths.Directories, env: Mapping[str, str], snapshot: Snapshot | None = None
) -> TrustDecision:
    """Check whether a project in use is still trusted; a project whose settings file the user named always is.

    `snapshot` is its content at the start, if known: an environment variable does not cover later changes.
    """
    if directories.project is None or not directories.trusted or directories.config_file is not None:
        return TrustDecision(trusted=True)
    decision = check_trust(directories.project, directories.user, env)
    if not decision.trusted or decision.snapshot is None or snapshot is None:
        return decision
    changes = compare_snapshots(snapshot, decision.snapshot, directories.project)
    return TrustDecision(False, (late_change_problem(directories.project, changes),)) if changes else decision


def late_change_problem(project: Path, changes: list[Change]) -> Problem:
    """Explain why changes of a project that only an environment variable trusts are rejected."""
    reason = f"{describe(changes)}; {VARIABLE}=1 covers only the content at the start"
    message = f"{project} changed since OneTool started: {reason}"
    return Problem(message, f"restart OneTool, or {TO_TRUST}", Location(str(project)), UNTRUSTED)


def changes_since_trusted(project: Path, user_directory: Path) -> list[Change] | None:
    """List the changes since the directory was trusted; None if it never was."""
    record = TrustFile(user_directory).get(_store_key(project))
    return None if record is None else _find_changes(record, project, user_directory.parent)


def make_record(project: Path, user_directory: Path) -> Mapping[str, Any]:
    """Return the record of the current content of a directory."""
    if link := find_outside_link(project):
        raise ToolError(f"cannot trust {project}: {link[0]}", hint=link[1])
    salt = os.urandom(16).hex()
    return {"salt": salt, "facts": take_snapshot(project, user_directory.parent, salt)}


def trust(project: Path, user_directory: Path, record: Mapping[str, Any] | None = None) -> None:
    """Store the record of a directory, or a record of its current content."""
    TrustFile(user_directory).put(_store_key(project), record or make_record(project, user_directory))


def untrust(project: Path, user_directory: Path) -> bool:
    """Delete the record of the directory; return False if there is none."""
    return TrustFile(user_directory).delete(_store_key(project))


def describe(changes: list[Change]) -> str:
    described = [str(change) for change in changes[:MAX_CHANGES_SHOWN]]
    more = len(changes) - len(described)
    return ", ".join([*described, *([f"and {more} more"] if more else [])])


# --- content of a project -------------------------------------------------------------------------------------------


def take_snapshot(project: Path, home: Path, salt: str = "") -> Snapshot:
    """Collect everything in a project directory that changes what OneTool does."""
    found: dict[str, Mapping[str, Any]] = {}
    files = [project / name for name in (paths.CONFIG, paths.PROMPTS, paths.SECRETS)]
    for file in (*files, *paths.agent_files(project)):
        if (content := _read_file(file, salt)) is not None:
            found[str(file.relative_to(project))] = content
    found[EXTENSIONS] = dict.fromkeys(_list_extension_names(project, home, found.get(paths.CONFIG, {})), "")
    return found


def _read_file(file: Path, salt: str) -> dict[str, Any] | None:
    is_secret = file.name == paths.SECRETS
    try:
        data = yaml_loader.read_file(file, typed=not is_secret).data
    except FileNotFoundError:
        return None
    except ConfigError as error:  # it cannot be loaded; once corrected, it counts as changed
        return {"[]": f"unreadable: {error}"}
    leaves = dict(_flatten(data))
    if not is_secret:
        return leaves
    return {key: sha256(f"{salt}{json.dumps(value)}".encode()).hexdigest() for key, value in leaves.items()}


def _flatten(data: Any, loc: tuple[str | int, ...] = ()) -> Iterator[tuple[str, Any]]:
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    if isinstance(data, dict | list) and data:
        for key, value in entries:
            yield from _flatten(value, (*loc, key))
    elif loc or data:  # a file with only comments equals a missing one
        yield json.dumps(loc), data


def _list_extension_names(project: Path, home: Path, config: Mapping[str, Any]) -> Iterator[str]:
    places = [json.loads(key) for key in config]
    named = [config[json.dumps(loc)] for loc in places if loc[:1] == ["tools_dir"] and len(loc) > 1]
    for text in ("tools", *(name for name in named if isinstance(name, str))):
        directory = paths.resolve_path(text, project, home)
        yield from (f"{text}/{file.relative_to(directory)}" for file in paths.extension_files(directory))


def find_outside_link(project: Path) -> tuple[str, str] | None:
    """Return the reason and a hint if a link leads out of a project directory, since its target was not reviewed."""
    if project.is_symlink():
        return "it is a symbolic link", "replace the link with a directory"
    inside = os.path.realpath(project)
    entries: list[Path] = []
    with suppress(OSError):
        entries = [path for path in (*project.iterdir(), *(project / "tools").glob("*")) if path.is_symlink()]
    for path in (*entries, *paths.agent_files(project), *paths.extension_files(project / "tools")):
        if os.path.commonpath([inside, os.path.realpath(path)]) != inside:
            return f"{path} is a symbolic link that leads out of it", "replace the link with the file"
    return None


# --- comparison ------------------------------------------------------------------------------------------------------


def _find_changes(record: Mapping[str, Any], project: Path, home: Path) -> list[Change]:
    salt, facts = record.get("salt"), record.get("facts")
    if not isinstance(salt, str) or not isinstance(facts, dict):
        return [Change(STORE, 0, "")]
    return compare_snapshots(facts, take_snapshot(project, home, salt), project)


def compare_snapshots(before: Snapshot, after: Snapshot, project: Path) -> list[Change]:
    """List the differences, ordered by file and line."""
    found: list[Change] = []
    for file in sorted({*before, *after}):
        old, new = before.get(file, {}), after.get(file, {})
        if file != EXTENSIONS:
            old, new = _merge_list_items(old), _merge_list_items(new)
        keys = [key for key in {**old, **new} if json.dumps(old.get(key)) != json.dumps(new.get(key)) or key not in old]
        document, file_changes = None, []
        if keys and file in after and file != EXTENSIONS:
            with suppress(ConfigError, FileNotFoundError):
                document = yaml_loader.read_file(project / file)
        for key in {*keys, *(old.keys() - new.keys())}:
            name = key if file == EXTENSIONS else _format_key(json.loads(key))
            line = document.line(tuple(json.loads(key))) if document is not None and key in new else 0
            file_changes.append(Change(file, line, name, old.get(key), new.get(key), key not in old, key not in new))
        found += sorted(file_changes, key=lambda change: (change.line, change.key))
    return found


def _merge_list_items(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content with one entry per list, so that changes are reported per list and not per item."""
    found: dict[str, Any] = {}
    for key, value in sorted(content.items()):  # the stored record does not keep the order
        loc = json.loads(key)
        above = list(takewhile(lambda step: isinstance(step, str), loc))
        if len(above) == len(loc):
            found[key] = value
        else:
            inside = loc[len(above) :]
            is_plain = len(inside) == 1
            found.setdefault(json.dumps(above), []).append(value if is_plain else {json.dumps(inside): value})
    return found


def _format_key(loc: list[str | int]) -> str:
    """Return the path of a key, without key names that could contain arbitrary text."""
    return ".".join(str(key) if _READABLE_KEY.fullmatch(str(key)) else "…" for key in loc)


def _store_key(directory: Path) -> str:
    return str(Path(os.path.realpath(directory.parent)) / directory.name)


# --- storage ----------------------------------------------------------------------------------------------------------


class TrustFile:
    """The trust records of all directories, in one file of the user's directory. `problems` are of the last read."""

    def __init__(self, user_directory: Path) -> None:
        self._file = user_directory / STORE
        self.problems: tuple[Problem, ...] = ()

    def get(self, project: str) -> Mapping[str, Any] | None:
        return self._read().get(project)

    def put(self, project: str, record: Mapping[str, Any]) -> None:
        with self._writing() as known:
            known[project] = record

    def delete(self, project: str) -> bool:
        with self._writing() as known:
            return known.pop(project, None) is not None

    def _read(self) -> dict[str, Mapping[str, Any]]:
        """Return the records by directory. Raise if a newer OneTool wrote the file."""
        self.problems = ()
        try:
            known = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError):
            known = None
        if isinstance(known, dict) and "version" in known:  # the first format had no version
            reject_newer(known["version"], VERSION, self._file)
            known = known.get("folders")
        if isinstance(known, dict) and all(isinstance(value, dict) for value in known.values()):
            return known
        hint = f"run `rm {quote(str(self._file))}`, then `onetool trust` in your projects"
        message = f"{self._file} is damaged, so no project directory is trusted"
        self.problems = (storage_problem(message, self._file, hint),)
        return {}

    @contextmanager
    def _writing(self) -> Iterator[dict[str, Mapping[str, Any]]]:
        """Lock the file, yield the records for changes, and write them."""
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(self._file.with_name(f"{STORE}.lock")):
                known = self._read()
                before = dict(known)
                yield known
                if known != before:
                    data = {"version": VERSION, "folders": known}
                    atomic.write(self._file, json.dumps(data, indent=2, sort_keys=True), durable=True)
        except OSError as error:
            raise storage_error(self._file.parent, error, StorageError) from error
