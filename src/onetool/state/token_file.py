"""Tokens in the settings file of a user. Only their hashes are stored."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from onetool.errors import StorageError, ToolError
from onetool.settings.access import Agent, Token
from onetool.settings.clients import text_files, yaml_edit
from onetool.settings.load import examine
from onetool.settings.paths import CONFIG, Directories
from onetool.util.atomic import locked
from onetool.util.text import quote
from onetool_child.json_types import JsonObject

SECTION = "auth"
KEY = "tokens"
LOCK = "onetool.yaml.lock"
ERASED = "revoked".ljust(64, "-")  # instead of a hash; it matches no token


class TokenFile:
    """The accepted tokens: those in the file that the user named, or in the user's own.

    A project cannot set `auth`.
    """

    def __init__(self, directories: Directories) -> None:
        self._directories = directories
        self._file = directories.config_file or directories.user / CONFIG

    @property
    def place(self) -> str:
        """The place of new tokens, for people."""
        return str(self._file)

    def apply(self, tokens: Iterable[Token]) -> list[Token]:
        """Return the accepted tokens; `tokens` are those of the settings."""
        return [token for token in tokens if token.hash != ERASED]

    def can_change(self, *, has_settings_files: bool) -> bool:
        """Return whether tokens can be created and revoked."""
        return has_settings_files

    def list_agents(self, agents: Mapping[str, Agent]) -> Mapping[str, Agent]:
        """Return the agents for which tokens can be created: those that exist wherever the file
        applies.
        """
        if self._directories.config_file is not None or self._directories.project is None:
            return agents
        return examine(replace(self._directories, project=None), os.environ).loaded.settings.agents

    def create(
        self, token: Token, accepted: Iterable[Token] = (), *, may_replace: bool = True
    ) -> tuple[str, ...] | None:
        """Store a token, and return notes for the person; None if its name is in use.

        Without `may_replace`, raise if one of the accepted tokens would no longer be.
        """
        with self._open_locked() as before:
            existing = yaml_edit.read_list(before.text, self.place, SECTION, KEY)
            if token.name in (item.get("name") for item in existing if isinstance(item, dict)):
                return None
            warning = "" if existing else _warn_replaced(accepted, self._file)
            if warning and not may_replace:
                raise ToolError(f"only the owner may do this: {warning}")
            entries = [*existing, _make_entry(token)]
            self._write(
                before, yaml_edit.set_value(before.text, self.place, (SECTION, KEY), entries)
            )
        return (warning,) if warning else ()

    def revoke(self, name: str, accepted: Iterable[Token] = ()) -> bool:
        """Return whether there was such a token."""
        with self._open_locked() as before:
            entries = yaml_edit.read_list(before.text, self.place, SECTION, KEY)
            names = [item.get("name") if isinstance(item, dict) else None for item in entries]
            if name not in names and any(token.name == name for token in accepted):
                files = ", ".join(str(file) for file in self._list_files() if file.exists())
                raise ToolError(
                    f"token {quote(name)} is not in {self._file}",
                    hint=f"remove it from one of {files}",
                )
            if name not in names:
                return False
            index = names.index(name)
            remaining = [*entries[:index], *entries[index + 1 :]]
            try:
                self._write(
                    before, yaml_edit.set_value(before.text, self.place, (SECTION, KEY), remaining)
                )
            except StorageError:  # such as a full disk
                if not _erase(before, str(entries[index].get("hash"))):
                    raise
        return True

    def _list_files(self) -> list[Path]:
        return [self._directories.config_path(layer) for layer in self._directories.layers]

    @contextmanager
    def _open_locked(self) -> Iterator[text_files.TextFile]:
        user = self._directories.user
        try:
            user.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(user / LOCK):
                yield text_files.read(self._file)
        except OSError as error:
            raise StorageError(f"cannot write to {user}: {error.strerror or error}") from None

    def _write(self, before: text_files.TextFile, text: str) -> None:
        text_files.write(
            before, text, mode=text_files.OWNER_ONLY if before.raw is None else None, keep=False
        )


def _make_entry(token: Token) -> JsonObject:
    entry: JsonObject = {"name": token.name, "hash": token.hash, "agent": token.agent}
    if token.scope != "use":
        entry["scope"] = token.scope
    entry["created"] = token.created
    if token.expires is not None:
        entry["expires"] = token.expires
    return entry


def _warn_replaced(accepted: Iterable[Token], file: Path) -> str:
    """Return a warning: the first token of a file of --config disables the user's, because its list
    replaces theirs.
    """
    names = ", ".join(token.name for token in accepted)
    if not names:
        return ""
    return (
        f"the tokens in {file} replace those in your user settings; no longer accepted with this"
        f" file: {names}"
    )


def _erase(before: text_files.TextFile, token_hash: str) -> bool:
    """Overwrite the hash of a token in its file, which needs no space.

    Return whether that succeeded.

    A hash that is overwritten in part, because the machine stops, matches no token either.
    """
    old = token_hash.encode()
    if before.raw is None or len(old) != len(ERASED) or before.raw.count(old) != 1:
        return False
    try:
        with before.path.open("r+b", buffering=0) as file:
            if file.read() != before.raw:
                return False
            file.seek(before.raw.index(old))
            file.write(ERASED.encode())
            os.fsync(file.fileno())
    except OSError:
        return False
    return True
