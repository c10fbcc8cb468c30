"""Archives of a settings directory: settings, bundles, tokens (hashes), history of runs, and the
audit log.

An archive is consistent while servers run: databases are copied with SQLite's backup function, and
other files are replaced atomically by those who write them. Secrets, keys and what is sealed with
them are included only on request; without it, literal credentials in settings, stored tools and
documents are replaced by `REDACTED`. What can be created again (caches, environments, temporary
files) is left out.
"""

import hashlib
import io
import json
import os
import re
import shutil
import sqlite3
import stat
import tarfile
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from onetool.errors import ToolError
from onetool.settings.contents import TRUST_FILE as TRUST
from onetool.settings.paths import PROMPTS, SECRETS
from onetool.sources.http import credentials
from onetool.util import yaml_loader
from onetool.util.problem import check_version, is_full_disk
from onetool.util.secret_finder import find_secrets
from onetool.util.text import pluralize
from onetool.util.version import __version__

FORMAT = "onetool-backup"
VERSION = 1
MANIFEST = "manifest.json"
MASK = "REDACTED"  # a valid value in YAML and JSON
SKIPPED = (
    *("cache", "environments", "tmp", "run", "logs/onetool.log*", "logs/daemon.log*", ".tmp"),
    *("*.lock", "*-wal", "*-shm", "*-journal", "*.sock", ".*.tmp"),
)
# Sealed databases are useless without their keys.
SECRET_NAMES = (
    "secrets.yaml*", ".env*", "*.key", ".key", "credentials", "settings-history.json",
    "runs.db", "sessions.db",
)  # fmt: skip
DATABASE_SUFFIX = ".db"
DOCUMENTS = "documents.db"
# The contents of a settings directory, beside other files if the settings file was named with
# --config.
OWN_NAMES = frozenset({
    *(PROMPTS, SECRETS, "agents", "tools", "bundles", "credentials", "logs", "runs", "state", "stats"),
    "trust.json", "settings-history.json",
})  # fmt: skip
SETTINGS_FILE = re.compile(r".*\.(json|ya?ml)(\.bak(\.[0-9]+)?)?", re.DOTALL)
TOOL_FILE = re.compile(r"bundles/[^@]*+@.*\.json", re.DOTALL)
MIN_SECRET_CHARS = 4  # shorter ones cannot be replaced without changing other text
MAX_MANIFEST_BYTES = 64 << 20
MAX_FILES = 1_000_000
OWNER_ONLY = 0o600


class Contents(NamedTuple):
    """The contents of an archive.

    `left_out` are files with secrets, `redacted` those without their literal ones.
    """

    files: int
    bytes: int
    left_out: tuple[str, ...] = ()
    redacted: tuple[str, ...] = ()


def write_archive(
    directory: Path, target: Path, *, secrets: bool = False, config_file: Path | None = None
) -> Contents:
    """Write an archive of the directory to a new file. Raise a ToolError if the file exists.

    If the user named the settings file, other files in its directory are not included.
    """
    if not directory.is_dir():
        raise ToolError(f"there is nothing to back up: {directory} does not exist")
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
    except FileExistsError:
        raise ToolError(f"{target} exists already", hint="choose another name") from None
    except OSError as error:
        raise ToolError(f"cannot write {target}: {error.strerror}") from None
    try:
        with (
            os.fdopen(descriptor, "wb") as raw,
            tarfile.open(fileobj=raw, mode="w:gz", compresslevel=6) as archive,
        ):
            names = None if config_file is None else {config_file.name, *OWN_NAMES}
            paths = (
                path for path in _list_files(directory, names) if path.resolve() != target.resolve()
            )
            return _add_all(archive, directory, paths, secrets=secrets)
    except OSError as error:
        target.unlink(missing_ok=True)
        full = " (the disk is full)" if is_full_disk(target.parent) else ""
        raise ToolError(f"cannot write {target}: {error.strerror or error}{full}") from None
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _add_all(
    archive: tarfile.TarFile, directory: Path, paths: Iterable[Path], *, secrets: bool
) -> Contents:
    files: dict[str, str] = {}
    left_out: list[str] = []
    redacted: list[str] = []
    size = 0
    with tempfile.TemporaryDirectory() as scratch:
        for path in paths:
            name = path.relative_to(directory).as_posix()
            try:
                content, is_redacted = _open_content(name, path, Path(scratch), secrets=secrets)
            except FileNotFoundError:  # deleted meanwhile
                continue
            except _Secret:
                left_out.append(name)
                continue
            if is_redacted:
                redacted.append(name)
            with content:
                files[name], added = _add_file(archive, name, content)
            size += added
    about = {"format": FORMAT, "version": VERSION, "created": time.time(), "program": __version__}
    manifest = json.dumps({**about, "has_secrets": secrets, "files": files}).encode()
    _add_file(archive, MANIFEST, io.BytesIO(manifest))
    return Contents(len(files), size, tuple(left_out), tuple(redacted))


class _Secret(Exception):
    """Raised for a file that is left out, because it is secret or may contain secrets."""


def _open_content(name: str, path: Path, scratch: Path, *, secrets: bool) -> tuple[BinaryIO, bool]:
    """Return the content to save, and whether literal credentials in it were replaced."""
    if not secrets and any(
        fnmatchcase(part, secret) for part in PurePosixPath(name).parts for secret in SECRET_NAMES
    ):
        raise _Secret
    if not secrets and SETTINGS_FILE.fullmatch(name):
        text = _redact(name, path)
        return (path.open("rb"), False) if text is None else (io.BytesIO(text.encode()), True)
    source = _copy_database(path, scratch) if path.suffix == DATABASE_SUFFIX else path
    is_redacted = (
        not secrets and path.name == DOCUMENTS and _redact_documents(source, is_copy=source != path)
    )
    return source.open("rb"), is_redacted


def _redact(name: str, file: Path) -> str | None:
    """Return the text without literal credentials; None if it has none.

    Raise _Secret if they cannot be replaced.
    """
    try:
        text = file.read_text("utf-8")
        literals = _find_literals(name, text)
        if not literals:
            return None
        for literal in sorted(literals, key=len, reverse=True):
            text = text.replace(literal, MASK)
        is_done = min(map(len, literals)) >= MIN_SECRET_CHARS and literals.isdisjoint(
            _find_literals(name, text)
        )
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError, ToolError):
        raise _Secret from None
    if not is_done:
        raise _Secret
    return text


def _find_literals(name: str, text: str) -> set[str]:
    """Return the literal credentials in a settings file or a stored tool.

    Hashes of tokens are none.
    """
    data = json.loads(text) if ".json" in name else yaml_loader.read(text, name).data
    if not isinstance(data, dict):
        return set()
    if TOOL_FILE.fullmatch(name):
        schema = credentials.find_in_schema(data.get("argSchema"))
        return {value for _, value in (*credentials.find(data.get("httpImpl")), *schema)}
    auth = data.get("auth")
    if isinstance(auth, dict):
        data = {**data, "auth": {key: value for key, value in auth.items() if key != "tokens"}}
    if name == TRUST:
        data = {folder: record.get("facts") for folder, record in data["folders"].items()}
    return set(find_secrets(data))


def _list_files(directory: Path, own_names: Collection[str] | None = None) -> Iterator[Path]:
    """Yield the regular files to save, without following links.

    `own_names` are names in the directory itself.
    """
    for root, names, files in os.walk(directory):
        place = Path(root)
        if own_names is not None and place == directory:
            names[:] = [name for name in names if name in own_names]
            files[:] = [name for name in files if name in own_names]
        names[:] = sorted(
            name for name in names if not _is_skipped((place / name).relative_to(directory))
        )
        for name in sorted(files):
            path = place / name
            if not _is_skipped(path.relative_to(directory)) and stat.S_ISREG(path.lstat().st_mode):
                yield path


def _is_skipped(path: Path) -> bool:
    return any(
        fnmatchcase(text, pattern) for text in (path.as_posix(), path.name) for pattern in SKIPPED
    )


def _copy_database(path: Path, scratch: Path) -> Path:
    """Return a consistent copy of a database, or the file itself if it is not one."""
    copy = scratch / "database"
    copy.unlink(missing_ok=True)
    try:
        with (
            closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
    except sqlite3.Error:
        return path
    return copy


def _redact_documents(copy: Path, *, is_copy: bool) -> bool:
    """Replace literal credentials in the copy of a database. Return whether there were any."""
    try:
        if is_copy:
            with closing(sqlite3.connect(copy, isolation_level=None)) as database:
                return _redact_rows(database)
    except (sqlite3.Error, ValueError):
        pass
    raise _Secret  # it is damaged, so nobody knows what is in it


def _redact_rows(database: sqlite3.Connection) -> bool:
    changes = []
    for kind, name, content in database.execute(
        "SELECT kind, name, content FROM documents"
    ).fetchall():
        document = json.loads(content or b"null")
        text = json.dumps(document)
        for literal in sorted(set(find_secrets({name: document})), key=len, reverse=True):
            text = text.replace(json.dumps(literal)[1:-1], MASK)
        if text != json.dumps(document):
            changes.append((text.encode(), kind, name))
    database.executemany("UPDATE documents SET content = ? WHERE kind = ? AND name = ?", changes)
    if changes:
        database.execute("VACUUM")  # old content is left in free pages
    return bool(changes)


def _add_file(archive: tarfile.TarFile, name: str, content: Any) -> tuple[str, int]:
    """Add a file and return its digest and size. It is read once, because it may grow meanwhile."""
    with tempfile.SpooledTemporaryFile(max_size=1 << 20) as buffer:
        shutil.copyfileobj(content, buffer)
        entry = tarfile.TarInfo(name)
        entry.size = buffer.tell()
        entry.mtime = int(time.time())
        entry.mode = OWNER_ONLY
        buffer.seek(0)
        digest = hashlib.file_digest(buffer, "sha256").hexdigest()
        buffer.seek(0)
        archive.addfile(entry, buffer)
    return digest, entry.size


# --- restoring ------------------------------------------------------------------------------------


def restore_archive(source: Path, directory: Path) -> Contents:
    """Write the files of an archive to the directory.

    Raise a ToolError if one of them exists: nothing is replaced.
    """
    try:
        with tarfile.open(source, "r:*") as archive:
            members = _check_members(archive, source)
            existing = [name for name in members if os.path.lexists(directory / name)]
            if existing:
                listed = ", ".join(existing[:3]) + (", …" if len(existing) > 3 else "")  # noqa: PLR2004 - a few examples
                raise ToolError(
                    f"{pluralize(len(existing), 'file')} of the archive exist in {directory}:"
                    f" {listed}",
                    hint=f"move the directory away first: mv {directory} {directory}.old",
                )
            return _extract(archive, members, directory)
    except (tarfile.TarError, EOFError, ValueError, KeyError, TypeError) as error:
        raise ToolError(f"{source} is not a backup of OneTool, or is damaged: {error}") from None
    except OSError as error:
        raise ToolError(f"cannot restore {source}: {error.strerror or error}") from None


def _check_members(archive: tarfile.TarFile, source: Path) -> dict[str, tarfile.TarInfo]:
    """Return the files of the archive by name.

    Raise ValueError unless they are exactly those of its manifest.
    """
    members: dict[str, tarfile.TarInfo] = {}
    for member in archive:
        path = PurePosixPath(member.name)
        if not member.isreg() or path.is_absolute() or ".." in path.parts or member.name in members:
            raise ValueError(f"unexpected entry {member.name!r}")
        members[member.name] = member
        if len(members) > MAX_FILES:
            raise ValueError("too many files")
    manifest = members.pop(MANIFEST)
    if manifest.size > MAX_MANIFEST_BYTES:
        raise ValueError("the manifest is too large")
    data = json.loads(archive.extractfile(manifest).read())  # type: ignore[union-attr]  # a regular file
    if data["format"] != FORMAT:
        raise ValueError("unknown format")
    check_version(data.get("version"), VERSION, source)
    if set(members) != set(data["files"]):
        raise ValueError("files are missing or were added")
    for name, member in members.items():
        digest = hashlib.file_digest(archive.extractfile(member), "sha256")  # type: ignore[arg-type]  # a regular file
        if digest.hexdigest() != data["files"][name]:
            raise ValueError(f"{name!r} was changed")
    return members


def _extract(
    archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], directory: Path
) -> Contents:
    for name, member in members.items():
        path = directory / name
        content = archive.extractfile(member)
        assert content is not None
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), OWNER_ONLY
        )
        with os.fdopen(descriptor, "wb") as file:
            shutil.copyfileobj(content, file)
    return Contents(len(members), sum(member.size for member in members.values()))
