"""Imports servers of clients: selects and renames them and moves their secrets. Nothing is written here."""

import builtins
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, count
from keyword import iskeyword
from pathlib import Path, PureWindowsPath
from typing import Any

from onetool.clients.reading import Found
from onetool.clients.translate import Translator, is_ours
from onetool.util.secret_finder import (
    find_secrets,
    looks_secret,
    names_before,
    secret_name,
    spans,
    split_scheme,
    unclear_options,
)

PROJECT = "project"
_EDITORS = frozenset({".vscode", ".cursor", ".zed", ".codex", ".gemini"})


@dataclass(frozen=True, slots=True)
class ImportTarget:
    """The state before the import: existing servers, secrets, packs and environment variables."""

    servers: Mapping[str, Any]
    secrets: Mapping[str, str]
    packs: frozenset[str]
    env: Mapping[str, str]
    working_dir: Path
    home: Path
    is_user: bool = False  # whether the servers are added to the user's settings


@dataclass(slots=True)
class ServerImport:
    servers: dict[str, dict[str, Any]] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


def import_servers(files: Iterable[Found], target: ImportTarget, *, inline_secrets: bool) -> ServerImport:
    """Import the servers of all files; of two servers with the same name, the first one wins."""
    importer = _Importer(target, inline_secrets)
    for found in files:
        importer.file(found)
    return importer.taken


class _Importer:
    def __init__(self, target: ImportTarget, inline_secrets: bool) -> None:
        self._target = target
        self._inline_secrets = inline_secrets
        self._seen: set[str] = set()
        self._names: set[str] = set()
        self.taken = ServerImport()

    def file(self, found: Found) -> None:
        self.taken.notes += found.notes
        translator = self._translator(found)
        for name, server in found.servers.items():
            if name in self._seen:
                self.taken.notes.append(f"{name}: skipped the duplicate in {found.file}")
                continue
            self._seen.add(name)
            self._server(name, server, translator)
        self.taken.notes += translator.notes
        self.taken.missing |= translator.missing

    def _translator(self, found: Found) -> Translator:
        target = self._target
        gemini = ".gemini" in found.file.parts or any(
            isinstance(server, Mapping) and "httpUrl" in server for server in found.servers.values()
        )
        folder = _workspace(found.file, target.working_dir, target.home)
        return Translator(folder, target.home, self._is_known, found.inputs, gemini)

    def _is_known(self, variable: str) -> bool:
        return any(variable in names for names in (self._target.env, self._target.secrets, self.taken.secrets))

    def _server(self, name: str, server: Any, translator: Translator) -> None:
        if is_ours(name, server):
            self.taken.notes.append(f"{name}: skipped, because it is OneTool itself")
            return
        made = translator.server(name, server) if isinstance(server, Mapping) else None
        wrong = _validation_error(made) if made is not None else None
        if made is None or wrong:
            self.taken.notes.append(f"{name}: skipped: {wrong or 'not a valid server'}")
            return
        made = self._in_project(made, translator.folder)
        usable = self._usable(name)
        hidden = made if self._inline_secrets else self._move_secrets(usable, made)
        self._warn(name, hidden)
        self._keep(name, usable, hidden)

    def _keep(self, name: str, usable: str, made: dict[str, Any]) -> None:
        if usable != name:
            self.taken.notes.append(f"{name}: renamed to {usable}, because code needs a valid Python name")
        old = self._target.servers.get(usable)
        if old is None:
            self.taken.servers[usable] = made
        elif _without_defaults(old) == _without_defaults(made):
            self.taken.notes.append(f"{usable}: already imported")
        else:
            self.taken.notes.append(f"{usable}: skipped, because a server of this name exists with other settings")

    def _usable(self, name: str) -> str:
        """Return a valid Python name that neither a pack nor another imported server has."""
        plain = re.sub(r"\W+", "_", unicodedata.normalize("NFKC", name)).strip("_") or "server"
        if not plain.isidentifier() or iskeyword(plain) or plain in self._target.packs or hasattr(builtins, plain):
            plain = f"mcp_{plain}"
        usable = next(one for one in _numbered(plain) if one not in self._names)
        self._names.add(usable)
        return usable

    def _move_secrets(self, server: str, made: Mapping[str, Any]) -> dict[str, Any]:
        """Replace every secret of a server by a reference and collect the secret for secrets.yaml."""
        changed = dict(made)
        for key in ("env", "headers"):
            if key in made:
                changed[key] = {name: self._hide(server, name, made[key][name], key) for name in made[key]}
        if "args" in made:
            named = zip(names_before(made["args"]), made["args"], strict=True)
            changed["args"] = [self._without_secrets(server, name, value) for name, value in named]
        for key in ("command", "url"):
            if key in made:
                changed[key] = self._without_secrets(server, "", made[key])
        return changed

    def _hide(self, server: str, name: str, value: str, key: str) -> str:
        if "${" in value or not looks_secret(name, value):
            return self._without_secrets(server, name, value)
        wanted = _numbered(secret_name(server, name))
        scheme, secret = split_scheme(value)
        return f"{scheme}{self._reference(secret, chain([secret_name(name)], wanted) if key == 'env' else wanted)}"

    def _without_secrets(self, server: str, name: str, text: str) -> str:
        for span in reversed(spans(name, text)):
            wanted = _numbered(secret_name(server, span.name or "SECRET"))
            text = f"{text[: span.start]}{self._reference(text[span.start : span.end], wanted)}{text[span.end :]}"
        return text

    def _reference(self, secret: str, wanted: Iterator[str]) -> str:
        known = {**self._target.secrets, **self.taken.secrets}
        name = next(one for one in wanted if known.get(one, secret) == secret)
        if name not in known:
            self.taken.secrets[name] = secret
        return f"${{{name}}}"

    def _in_project(self, made: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Set `cwd` for relative paths, because a server of the user's settings starts in a private directory."""
        if not self._target.is_user or "command" not in made or "cwd" in made:
            return made
        if any(_is_relative_path(word, folder) for word in (made["command"], *made.get("args", []))):
            return {**made, "cwd": PROJECT}
        return made

    def _warn(self, name: str, made: Mapping[str, Any]) -> None:
        if any(find_secrets(made)):
            self.taken.notes.append(
                f"{name}: its settings contain a secret; move it to secrets.yaml and refer to it as ${{NAME}}"
            )
        if options := unclear_options(made.get("args", ())):
            self.taken.notes.append(
                f"{name}: the value of {', '.join(options)} was kept; if it is a secret, "
                "move it to secrets.yaml and refer to it as ${NAME}"
            )


def _is_relative_path(word: str, folder: Path) -> bool:
    value = word.partition("=")[2] if word.startswith("-") else word
    if not value or "://" in value or value.startswith(("/", "~", "$", "@")) or PureWindowsPath(value).drive:
        return False
    return value in {".", ".."} or value.startswith(("./", "../")) or ("/" in value and (folder / value).exists())


def _without_defaults(server: Any) -> str:
    """Return a form to compare servers, in which empty defaults of variables do not matter."""
    return json.dumps(server, sort_keys=True).replace(":-}", "}")


def _numbered(name: str) -> Iterator[str]:
    return chain([name], (f"{name}_{number}" for number in count(2)))


def _workspace(file: Path, working_dir: Path, home: Path) -> Path:
    """Return the directory that `${workspaceFolder}` means in this file."""
    if file.name == ".mcp.json":
        return file.parent
    around = file.parent.parent
    return around if file.parent.name in _EDITORS and around != home else working_dir


def _validation_error(made: Mapping[str, Any]) -> str | None:
    from pydantic import ValidationError

    from onetool.config.model import Server

    is_variable = made.get("url", "").startswith("${")  # whose value is not known here
    try:
        Server.model_validate({**made, "url": "https://host"} if is_variable else made)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg'].removeprefix('Value error, ')}"
    return None
