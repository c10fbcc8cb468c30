"""Imports servers of clients: selects and renames them and moves their secrets.

Nothing is written here.
"""

import builtins
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, count
from keyword import iskeyword
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple

from onetool.settings.clients.client_servers import ClientServers, Translator, is_ours
from onetool.util.secret_finder import (
    find_secrets,
    looks_secret,
    names_before,
    secret_name,
    spans,
    split_scheme,
    unclear_options,
)
from onetool.util.text import describe_problem
from onetool_child.json_types import JsonMapping, JsonObject

PROJECT = "project"
_EDITORS = frozenset({".vscode", ".cursor", ".zed", ".codex", ".gemini"})


class ImportTarget(NamedTuple):
    """The state before the import: existing servers, secrets, packs and environment variables."""

    servers: JsonMapping
    secrets: Mapping[str, str]
    packs: frozenset[str]
    env: Mapping[str, str]
    working_dir: Path
    home: Path
    is_user: bool = False  # whether the servers are added to the user's settings


@dataclass(slots=True)
class ServerImport:
    servers: dict[str, JsonObject] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


def import_servers(
    files: Iterable[ClientServers], target: ImportTarget, *, inline_secrets: bool
) -> ServerImport:
    """Import the servers from all files. If two have the same name, the first one wins."""
    importer = _Importer(target, inline_secrets)
    for found in files:
        importer.import_file(found)
    return importer.result


class _Importer:
    def __init__(self, target: ImportTarget, inline_secrets: bool) -> None:
        self._target = target
        self._inline_secrets = inline_secrets
        self._imported: set[str] = set()
        self._names: set[str] = set()
        self.result = ServerImport()

    def import_file(self, found: ClientServers) -> None:
        self.result.notes += found.notes
        translator = self._make_translator(found)
        for name, server in found.servers.items():
            if name in self._imported:
                self.result.notes.append(f"{name}: skipped the duplicate in {found.file}")
                continue
            self._imported.add(name)
            self._import_server(name, server, translator)
        self.result.notes += translator.notes
        self.result.missing |= translator.missing

    def _make_translator(self, found: ClientServers) -> Translator:
        target = self._target
        gemini = ".gemini" in found.file.parts or any(
            isinstance(server, Mapping) and "httpUrl" in server for server in found.servers.values()
        )
        directory = _find_workspace(found.file, target.working_dir, target.home)
        return Translator(directory, target.home, self._is_known, found.inputs, gemini)

    def _is_known(self, variable: str) -> bool:
        return any(
            variable in names
            for names in (self._target.env, self._target.secrets, self.result.secrets)
        )

    def _import_server(self, name: str, server: Any, translator: Translator) -> None:
        if is_ours(name, server):
            self.result.notes.append(f"{name}: skipped, because it is OneTool itself")
            return
        entry = translator.translate(name, server) if isinstance(server, Mapping) else None
        problem = _validation_error(entry) if entry is not None else None
        if entry is None or problem:
            self.result.notes.append(f"{name}: skipped: {problem or 'not a valid server'}")
            return
        entry = self._set_project_directory(entry, translator.directory)
        unique = self._choose_name(name)
        hidden = entry if self._inline_secrets else self._move_secrets(unique, entry)
        self._warn_about_secrets(name, hidden)
        self._add_or_skip(name, unique, hidden)

    def _add_or_skip(self, name: str, unique: str, entry: JsonObject) -> None:
        if unique != name:
            self.result.notes.append(
                f"{name}: renamed to {unique}, because code needs a valid Python name"
            )
        old = self._target.servers.get(unique)
        if old is None:
            self.result.servers[unique] = entry
        elif _normalize(old) == _normalize(entry):
            self.result.notes.append(f"{unique}: already imported")
        else:
            self.result.notes.append(
                f"{unique}: skipped, because a server of this name exists with other settings"
            )

    def _choose_name(self, name: str) -> str:
        """Return a valid Python name that neither a pack nor another imported server has."""
        plain = re.sub(r"\W+", "_", unicodedata.normalize("NFKC", name)).strip("_") or "server"
        if (
            not plain.isidentifier()
            or iskeyword(plain)
            or plain in self._target.packs
            or hasattr(builtins, plain)
        ):
            plain = f"mcp_{plain}"
        unique = next(one for one in _number_names(plain) if one not in self._names)
        self._names.add(unique)
        return unique

    def _move_secrets(self, server: str, entry: JsonMapping) -> JsonObject:
        """Replace every secret of a server by a reference and collect the secret for secrets.yaml."""
        changed = dict(entry)
        for key in ("env", "headers"):
            if key in entry:
                changed[key] = {
                    name: self._replace_value(server, name, entry[key][name], key)
                    for name in entry[key]
                }
        if "args" in entry:
            named = zip(names_before(entry["args"]), entry["args"], strict=True)
            changed["args"] = [self._replace_secrets(server, name, value) for name, value in named]
        for key in ("command", "url"):
            if key in entry:
                changed[key] = self._replace_secrets(server, "", entry[key])
        return changed

    def _replace_value(self, server: str, name: str, value: str, key: str) -> str:
        if "${" in value or not looks_secret(name, value):
            return self._replace_secrets(server, name, value)
        wanted = _number_names(secret_name(server, name))
        scheme, secret = split_scheme(value)
        return f"{scheme}{self._make_reference(secret, chain([secret_name(name)], wanted) if key == 'env' else wanted)}"

    def _replace_secrets(self, server: str, name: str, text: str) -> str:
        for span in reversed(spans(name, text)):
            wanted = _number_names(secret_name(server, span.name or "SECRET"))
            text = f"{text[: span.start]}{self._make_reference(text[span.start : span.end], wanted)}{text[span.end :]}"
        return text

    def _make_reference(self, secret: str, wanted: Iterator[str]) -> str:
        known = {**self._target.secrets, **self.result.secrets}
        name = next(one for one in wanted if known.get(one, secret) == secret)
        if name not in known:
            self.result.secrets[name] = secret
        return f"${{{name}}}"

    def _set_project_directory(self, entry: JsonObject, directory: Path) -> JsonObject:
        """Set `cwd` for relative paths, because a server of the user's settings starts in a private
        directory.
        """
        if not self._target.is_user or "command" not in entry or "cwd" in entry:
            return entry
        if any(
            _is_relative_path(word, directory)
            for word in (entry["command"], *entry.get("args", []))
        ):
            return {**entry, "cwd": PROJECT}
        return entry

    def _warn_about_secrets(self, name: str, entry: JsonMapping) -> None:
        if any(find_secrets(entry)):
            self.result.notes.append(
                f"{name}: its settings contain a secret; run `onetool secret set NAME` and refer to"
                " it as ${NAME}"
            )
        if options := unclear_options(entry.get("args", ())):
            self.result.notes.append(
                f"{name}: the value of {', '.join(options)} was kept; if it is a secret, "
                "run `onetool secret set NAME` and refer to it as ${NAME}"
            )


def _is_relative_path(word: str, directory: Path) -> bool:
    value = word.partition("=")[2] if word.startswith("-") else word
    if (
        not value
        or "://" in value
        or value.startswith(("/", "~", "$", "@"))
        or PureWindowsPath(value).drive
    ):
        return False
    return (
        value in {".", ".."}
        or value.startswith(("./", "../"))
        or ("/" in value and (directory / value).exists())
    )


def _normalize(server: Any) -> str:
    """Return a form to compare servers, in which empty defaults of variables do not matter."""
    return json.dumps(server, sort_keys=True).replace(":-}", "}")


def _number_names(name: str) -> Iterator[str]:
    return chain([name], (f"{name}_{number}" for number in count(2)))


def _find_workspace(file: Path, working_dir: Path, home: Path) -> Path:
    """Return the directory that `${workspaceFolder}` means in this file."""
    if file.name == ".mcp.json":
        return file.parent
    around = file.parent.parent
    return around if file.parent.name in _EDITORS and around != home else working_dir


def _validation_error(entry: JsonMapping) -> str | None:
    from pydantic import ValidationError

    from onetool.settings.model import Server

    is_variable = entry.get("url", "").startswith("${")  # whose value is not known here
    try:
        Server.model_validate({**entry, "url": "https://host"} if is_variable else entry)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'it'}: {describe_problem(first)}"
    return None
