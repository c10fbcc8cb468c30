"""Create, list and revoke tokens: in the user's settings file, or in the store if the settings have one."""

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from onetool.clients import text_files, yaml_edit
from onetool.config.load import examine
from onetool.config.model import Agent, Settings, Token
from onetool.editing.edit_history import EditHistory, new_entry
from onetool.errors import ArgumentError, StorageError, ToolError, ToolNotFound
from onetool.paths import CONFIG, Directories
from onetool.state.storage import RemoteState
from onetool.transports.http.token_use import TokenUse
from onetool.transports.http.tokens import hash_token, identify_token, new_token
from onetool.util.locks import locked
from onetool.util.text import quote
from onetool.util.time_format import in_utc, parse_duration

SECTION, KEY = "auth", "tokens"
LOCK: Final = "onetool.yaml.lock"
MAX_DAYS: Final = 3650
NAME: Final = re.compile(r"\w[\w.@-]{0,63}")
Scope = Literal["use", "approve", "admin", "owner"]
ERASED: Final = "revoked".ljust(64, "-")  # instead of a hash; it matches no token
TAKEN: Final = "duplicate"  # the code of the error for a name that exists


class TokenRequest(NamedTuple):
    """A token to create. `duration` is the time after which it expires, such as `30d`."""

    name: str
    agent: str = "default"
    scope: Scope = "use"
    duration: str | None = None
    may_replace: bool = True  # whether it may be the first of a file of --config, which disables those of the user


@dataclass(frozen=True, slots=True)
class NewToken:
    """A created token, which is shown once. `place` has its hash."""

    token: str
    name: str
    agent: str
    scope: str
    expires: str | None
    place: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenChanges:
    """The tokens of an application. Methods block on disk access, or on the database."""

    directories: Directories
    settings: Settings
    files: tuple[Path, ...]
    remote: RemoteState | None = None
    actor: str = ""
    transport: str = ""

    def list_accepted(self) -> list[Token]:
        tokens = [token for token in self.settings.auth.tokens if token.hash != ERASED]
        return tokens if self.remote is None else self.remote.tokens.apply(tokens)

    def describe_all(self) -> list[dict[str, Any]]:
        """Return what is shown of each token: never its hash."""
        shared = None if self.remote is None else self.remote.token_use
        use = TokenUse(lambda: self.directories.user, shared=lambda: shared)
        return [_describe(token, use) for token in self.list_accepted()]

    def create(self, request: TokenRequest) -> NewToken:
        """Create a token. Raise a ToolError if the name is invalid or taken, or the agent unknown."""
        self._check(request)
        text, now = new_token(), time.time()
        duration = request.duration
        expires = None if duration is None else in_utc(now + parse_duration(duration, MAX_DAYS), "seconds")
        fields: dict[str, Any] = {"name": request.name, "hash": hash_token(text), "agent": request.agent}
        token = Token(**fields, scope=request.scope, created=in_utc(now, "seconds"), expires=expires)
        place, notes = (
            self._add_to_file(token, request) if self.remote is None else self._add_to_store(token, self.remote)
        )
        return NewToken(text, request.name, request.agent, request.scope, expires, place, notes)

    def _check(self, request: TokenRequest) -> None:
        if not NAME.fullmatch(request.name):
            message = f"invalid token name {request.name!r}: expected up to 64 letters, digits and _ . @ -"
            raise ArgumentError(f"{message}, such as laptop")
        agents = self.settings.agents
        if request.agent not in agents:
            raise ArgumentError(f"unknown agent {quote(request.agent)}: expected {', '.join(sorted(agents))}")
        if self.remote is None and request.agent not in self._find_agents_of_file():
            reason = f"agent {quote(request.agent)} is an agent of this project, but tokens are for all directories"
            raise ArgumentError(reason, hint=f"define it in {self._file}")

    def _find_agents_of_file(self) -> Mapping[str, Agent]:
        """Return the agents that exist wherever the file with the tokens applies."""
        if self.directories.config_file is not None or self.directories.project is None:
            return self.settings.agents
        return examine(replace(self.directories, project=None), os.environ).loaded.settings.agents

    def _add_to_store(self, token: Token, remote: RemoteState) -> tuple[str, tuple[str, ...]]:
        _check_unused(token.name, [known.name for known in self.list_accepted()])
        if not remote.tokens.create(token):
            _check_unused(token.name, [token.name])
        self._record("token.create", token.name)
        return remote.place, ()

    def _add_to_file(self, token: Token, request: TokenRequest) -> tuple[str, tuple[str, ...]]:
        with self._open_locked() as before:
            source = str(before.path)
            existing = yaml_edit.read_list(before.text, source, SECTION, KEY)
            _check_unused(token.name, [item.get("name") for item in existing if isinstance(item, dict)])
            hidden = [] if existing else [known.name for known in self.settings.auth.tokens]
            if hidden and not request.may_replace:
                raise ToolError(f"only the owner may do this: {_warn_replaced(hidden, before.path)}")
            entry: dict[str, Any] = {"name": token.name, "hash": token.hash, "agent": token.agent}
            entry |= {"scope": token.scope} if token.scope != "use" else {}
            entry |= {"created": token.created} | ({"expires": token.expires} if token.expires is not None else {})
            self._write(before, yaml_edit.add_items(before.text, source, SECTION, KEY, [entry]))
            self._record("token.create", token.name)
        return source, (_warn_replaced(hidden, before.path),) if hidden else ()

    def revoke(self, name: str) -> str:
        """Revoke a token and return the place that had it. Raise ToolNotFound if there is none."""
        known = [token.name for token in self.list_accepted()]
        if self.remote is not None:
            if name not in known:
                raise _unknown_token(name, known)
            self.remote.tokens.revoke(name)
            self._record("token.revoke", name)
            return self.remote.place
        with self._open_locked() as before:
            entries = yaml_edit.read_list(before.text, str(before.path), SECTION, KEY)
            names = [item.get("name") if isinstance(item, dict) else None for item in entries]
            if name not in names and name in known:
                hint = f"remove it from one of {', '.join(map(str, self.files))}"
                raise ToolError(f"token {quote(name)} is not in {before.path}", hint=hint)
            if name not in names:
                raise _unknown_token(name, known)
            index = names.index(name)
            try:
                self._write(before, yaml_edit.remove_item(before.text, str(before.path), SECTION, KEY, index))
            except StorageError:  # such as a full disk
                if not _erase(before, str(entries[index].get("hash"))):
                    raise
            self._record("token.revoke", name)
        use = TokenUse(lambda: self.directories.user)
        for token in self.settings.auth.tokens:
            if token.name == name:
                use.forget(identify_token(token))
        return str(before.path)

    def _record(self, action: str, name: str) -> None:
        """Add the change to the history of the settings, where it cannot be undone. The audit log has it anyway."""
        history = EditHistory(self.directories.user, None if self.remote is None else self.remote.settings)
        with suppress(ToolError, OSError):
            history.add(new_entry(action, [name], actor=self.actor, transport=self.transport))

    # --- the settings file --------------------------------------------------------------------------------------------

    @contextmanager
    def _open_locked(self) -> Iterator[text_files.TextFile]:
        """Lock and read the settings file of the data directory."""
        user = self.directories.user
        try:
            user.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(user / LOCK):
                yield text_files.read(self._file)
        except OSError as error:
            raise StorageError(f"cannot write to {user}: {error.strerror or error}") from None

    @property
    def _file(self) -> Path:
        """The file that the user named, or the user's own: a project cannot set `auth`."""
        return self.directories.config_file or self.directories.user / CONFIG

    def _write(self, before: text_files.TextFile, text: str) -> None:
        text_files.write(before, text, mode=text_files.OWNER_ONLY if before.raw is None else None, keep=False)


def _erase(before: text_files.TextFile, token_hash: str) -> bool:
    """Overwrite the hash of a token in its file, which needs no space. Return whether that succeeded.

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


def _describe(token: Token, use: TokenUse) -> dict[str, Any]:
    used = use.read(identify_token(token))
    return {
        "name": token.name,
        "agent": token.agent,
        "scope": token.scope,
        "created": token.created,
        "expires": token.expires,
        "is_expired": token.expires_at <= time.time(),
        "last_used": None if used is None else in_utc(used, "seconds"),
        **({"token_env": token.token_env} if token.token_env else {}),
    }


def _check_unused(name: str, names: Iterable[Any]) -> None:
    if name in names:
        hint = f"choose another name, or run `onetool token revoke {name}`"
        raise ToolError(f"token {quote(name)} already exists", hint=hint, code=TAKEN)


def _unknown_token(name: str, known: list[str]) -> ToolNotFound:
    existing = f"existing tokens: {', '.join(known)}" if known else "no tokens exist"
    return ToolNotFound(f"no token named {quote(name)}; {existing}")


def _warn_replaced(names: list[str], file: Path) -> str:
    """Return a warning: the first token of a file of --config disables the user's, because its list replaces theirs."""
    listed = ", ".join(names)
    return f"the tokens in {file} replace those in your user settings; no longer accepted with this file: {listed}"
