"""Reads the settings files of all layers, and the settings in the store of the state, as parts to
merge.

All errors are collected, with file and line and without secrets. Nothing is written.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from onetool.errors import ConfigError
from onetool.settings import paths
from onetool.settings.contents import SettingsContents
from onetool.settings.model import VERSION
from onetool.settings.paths import Directories
from onetool.settings.sections import Loc
from onetool.util.problem import Location, NewerVersion, Problem, check_version
from onetool.util.yaml_loader import YamlDocument
from onetool_child.json_types import JsonMapping, JsonObject

VERSION_KEY = "version"
# Sections that a project cannot set. See also `_list_user_keys`.
USER_KEYS = ("approvals", "audit", "auth", "bundle_secrets", "daemon", "llm", "store")
# Names of the settings in the store of the state, which are not files. The paths of files are
# absolute.
STORED_CONFIG = Path("store") / paths.CONFIG
STORED_SECRETS = Path("store") / paths.SECRETS
# Sections with entries that replicas share. Everything else belongs to a machine, or is read before
# the store is open.
STORED_SECTIONS = ("agents", "bundle_secrets", "http", "servers")
QUOTE = "put it in quotes"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_VALUE_LENGTH = 60


class Part(NamedTuple):
    """The data of one file or variable, with the location of each key."""

    data: JsonMapping
    where: Callable[[Loc], Location]
    directory: Path


class LayerReader:
    """A reader of the files of all layers, which collects errors instead of stopping at the first."""

    def __init__(self, directories: Directories, files: SettingsContents) -> None:
        self._directories = directories
        self._files = files
        self.errors: list[Problem] = []
        self.read_files: list[Path] = []
        self.secrets_are_valid = True
        if not paths.is_directory(directories.working_dir):
            place = Location(str(directories.working_dir))
            self._report(place, "the working directory is not a directory", "check OT_CWD")

    def _report(self, place: Location, reason: str, hint: str = "") -> None:
        self.errors.append(Problem(f"{place}: {reason}", hint, place))

    def read_secrets(self) -> dict[Path, dict[str, str]]:
        """Return the secrets of each layer."""
        before = len(self.errors)
        secrets: dict[Path, dict[str, str]] = {STORED_SECRETS: {}}
        for layer in self._directories.layers:
            secrets[layer] = dict(self._read_secrets(layer / paths.SECRETS))
        if STORED_SECRETS in self._files.contents:
            secrets[STORED_SECRETS] = dict(self._read_secrets(STORED_SECRETS))
        self.secrets_are_valid = len(self.errors) == before
        return secrets

    def read_parts(self) -> list[Part]:
        parts: list[Part] = []
        for directory in self._directories.layers:
            parts += self._read_parts(directory)
        if STORED_CONFIG not in self._files.contents:
            return parts
        document = self._read_mapping(STORED_CONFIG)
        if document is None:
            return parts
        rejected = tuple(self._reject_machine_keys(document))
        stored = _make_part(document, (), self._directories.user, exclude=rejected)
        return _place_over(parts, stored)

    def _reject_machine_keys(self, document: YamlDocument) -> Iterator[str]:
        """Report and yield the keys that the store cannot set."""
        for key in (document.data or {}).keys() - {*STORED_SECTIONS, VERSION_KEY}:
            place = Location(document.source, document.line((key,)))
            file = self._directories.config_path(self._directories.user)
            hint = f"set it in {file} of each machine"
            self._report(place, f"{shorten(key)} cannot be set in the store", hint)
            yield key

    def _read_mapping(self, path: Path, *, typed: bool = True) -> YamlDocument | None:
        try:
            document = self._files.read(path, typed=typed)
        except FileNotFoundError:
            if path == self._directories.config_file:
                hint = "check --config and ONETOOL_CONFIG"
                self._report(Location(str(path)), "file not found", hint)
            return None
        except ConfigError as error:
            self.errors.append(Problem.of(error))
            return None
        if path not in {STORED_CONFIG, STORED_SECRETS}:
            self.read_files.append(path)
        if document.data is not None and not isinstance(document.data, dict):
            place = Location(str(path), document.line())
            self._report(place, "the file must contain `key: value` lines")
            return None
        return document if not typed or self._check_version(document) else None

    def _check_version(self, document: YamlDocument) -> bool:
        """Return whether this version can read the file. If not, report only that."""
        version = (document.data or {}).get(VERSION_KEY)
        if version is None:
            return True
        place = Location(document.source, document.line((VERSION_KEY,)))
        try:
            check_version(version, VERSION, f"{place}:")
        except NewerVersion as error:
            self.errors.append(Problem(error.message, error.hint, place))
            return False
        except ValueError as error:
            self._report(place, str(error))
            return False
        return True

    def _read_secrets(self, path: Path) -> Iterator[tuple[str, str]]:
        if path != STORED_SECRETS and _is_open_to_others(path):
            hint = f"run `chmod 600 {quote(str(path))}`"
            self._report(Location(str(path)), "other users can read this file", hint)
            return
        document = self._read_mapping(path, typed=False)
        if document is None:
            return
        for name, text in (document.data or {}).items():
            place = Location(str(path), document.line((name,)))
            if not _NAME.fullmatch(name):
                reason = f"invalid secret name {shorten(name)}"
                self._report(place, reason, "use letters, digits and _")
            elif not isinstance(text, str) or not text:
                kind = "empty" if text == "" else "a list or a mapping"
                self._report(place, f"{name} must be a string, not {kind}")
            else:
                yield name, text

    def _read_parts(self, directory: Path) -> Iterator[Part]:
        inline = self._read_mapping(self._directories.config_path(directory))
        if prompts := self._read_mapping(directory / paths.PROMPTS):
            yield _make_part(prompts, ("prompts",), directory, exclude=(VERSION_KEY,))
        yield from self._read_agents(directory, _inline_agents(inline))
        if inline:
            rejected = tuple(self._reject_user_keys(inline, directory))
            yield _make_part(inline, (), directory, exclude=rejected)

    def _reject_user_keys(self, document: YamlDocument, directory: Path) -> Iterator[str]:
        """Report and yield the keys that a project cannot set.

        A file that the user named is not a project's.
        """
        user = self._directories.user
        named = self._directories.config_file
        if directory == user or self._directories.config_path(directory) == named:
            return
        for loc in _list_user_keys(document.data):
            place = Location(document.source, document.line(loc))
            hint = f"move it to {user / paths.CONFIG}"
            self._report(place, f"{format_path(loc)} cannot be set by a project", hint)
            yield str(loc[0])
        for loc, text in _list_paths(document.data):
            path = paths.resolve_path(text, directory, self._directories.home)
            if not paths.is_inside(path, directory.parent):
                place = Location(document.source, document.line(loc))
                reason = f"{format_path(loc)} leads out of the project: {shorten(text)}"
                self._report(
                    place, reason, f"name a file of the project, or set it in {user / paths.CONFIG}"
                )
                yield str(loc[0])

    def _read_agents(self, directory: Path, defined: dict[str, Location]) -> Iterator[Part]:
        for path in paths.agent_files(directory):
            if (document := self._read_mapping(path)) is None:
                continue
            name = (document.data or {}).get("name") or path.stem
            place = Location(str(path), document.line(("name",)))
            if not isinstance(name, str):
                self._report(place, "name must be a string", QUOTE)
                continue
            if name in defined:
                self._report(
                    place,
                    f"agent {shorten(name)} is already defined in {defined[name]}",
                    "delete one of them",
                )
            defined[name] = place
            yield _make_part(document, ("agents", name), directory, exclude=("name", VERSION_KEY))


def _list_user_keys(data: Any) -> Iterator[Loc]:
    """Yield the keys that a project cannot set."""
    packs = value_at(data, ("tools",))
    queues = [("tools", pack, "queue") for pack in packs] if isinstance(packs, dict) else []
    for loc in (*((key,) for key in USER_KEYS), ("execution", "isolation"), *queues):
        if value_at(data, loc) is not None:
            yield loc


def _list_paths(data: Any) -> Iterator[tuple[Loc, str]]:
    """Yield the files and directories that OneTool writes."""
    topics = value_at(data, ("notify", "topics"))
    files: list[Loc] = [("notify", "topics", index, "file") for index in range(len(topics or ()))]
    for loc in (("bundles", "dir"), *files):
        value = value_at(data, loc)
        if isinstance(value, str):
            yield loc, value


def _is_open_to_others(path: Path) -> bool:
    try:
        return os.name == "posix" and bool(path.stat().st_mode & 0o077)
    except OSError:  # reading the file reports the error
        return False


def _inline_agents(document: YamlDocument | None) -> dict[str, Location]:
    agents = (document.data or {}).get("agents") if document else None
    if document is None or not isinstance(agents, dict):
        return {}
    return {name: Location(document.source, document.line(("agents", name))) for name in agents}


def _make_part(
    document: YamlDocument, prefix: Loc, directory: Path, *, exclude: tuple[str, ...] = ()
) -> Part:
    data: Any = {key: value for key, value in (document.data or {}).items() if key not in exclude}
    for key in reversed(prefix):
        data = {key: data}
    return Part(
        data, lambda loc: Location(document.source, document.line(loc[len(prefix) :])), directory
    )


def _place_over(parts: Iterable[Part], above: Part) -> list[Part]:
    """Return the parts with another one, whose entries of sections replace theirs.

    None removes an entry.
    """
    sections = {name: entries for name, entries in above.data.items() if isinstance(entries, dict)}

    def uncover(data: JsonMapping) -> JsonObject:
        return {
            name: (
                {key: each for key, each in entries.items() if key not in sections.get(name, ())}
                if isinstance(entries, dict)
                else entries
            )
            for name, entries in data.items()
        }

    kept = {
        name: {key: each for key, each in entries.items() if each is not None}
        for name, entries in sections.items()
    }
    return [
        *(part._replace(data=uncover(part.data)) for part in parts),
        above._replace(data={**above.data, **kept}),
    ]


def _walk(data: Any, loc: Loc) -> list[Any]:
    """Return the values along a path, as far as they exist."""
    found: list[Any] = []
    for key in loc:
        entries = dict(enumerate(data)) if isinstance(data, list) else data
        if not isinstance(entries, dict) or key not in entries:
            break
        data = entries[key]
        found.append(data)
    return found


def depth(data: Any, loc: Loc) -> int:
    return len(_walk(data, loc))


def value_at(data: Any, loc: Loc) -> Any:
    found = _walk(data, loc)
    return found[-1] if len(found) == len(loc) else None


def format_path(loc: Loc) -> str:
    """Return the path of a setting, such as `servers.github.env`."""
    is_plain = re.compile(r"[\w-]{1,60}").fullmatch
    return "".join(
        f".{key}" if isinstance(key, str) and is_plain(key) else f"[{shorten(key)}]" for key in loc
    ).removeprefix(".")


def shorten(value: Any) -> str:
    """Return the value as JSON, shortened for a message."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[:_MAX_VALUE_LENGTH]}…"
