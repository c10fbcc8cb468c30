"""Decides who may make an edit, by comparing the settings before and after it.

The scope `admin` may add servers by URL and change agents other than its own. Whatever names a program, a path to load,
a credential, an endpoint of credentials, isolation, authentication or the store needs the scope `owner`. What is not
listed here needs it too.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from onetool.clients import yaml_edit
from onetool.config.model import Agent, Http, OAuth, Server, Settings
from onetool.editing.planned_edit import PlannedEdit
from onetool.errors import PermissionDenied
from onetool.paths import Directories, resolve_path

ADMIN: Final = "admin"
OWNER: Final = "owner"
# Fields that `admin` may change. Everything that starts a program is not among them.
SERVER_FIELDS: Final = frozenset({"enabled", "timeout", "idle_timeout", "tools", "expose", "pin", "sanitize"})
URL_SERVER_FIELDS: Final = SERVER_FIELDS | {"headers", "transport", "accounts", "stateful", "shared"}
_REFERENCE = re.compile(r"(?<!\$)\$\{(?:secret:)?([^}:]*)")


def check_rights(planned: PlannedEdit, scope: str, own_agent: str | None) -> None:
    """Raise PermissionDenied unless a caller of this scope and agent may make the edit. The owner has no agent."""
    if scope == OWNER:
        return
    if scope != ADMIN:
        raise PermissionDenied(f"{planned.action} needs a token of scope 'admin'", required=ADMIN, scope=scope)
    reasons = list(dict.fromkeys(find_owner_reasons(planned, own_agent)))
    if reasons:
        message = f"{planned.action} needs a token of scope 'owner', because {' and '.join(reasons)}"
        hint = "run `onetool ui` on the machine of the server, or use the command line there"
        raise PermissionDenied(message, hint=hint, required=OWNER, scope=scope)


def find_owner_reasons(planned: PlannedEdit, own_agent: str | None) -> Iterator[str]:
    """Yield why an edit needs the scope `owner`; nothing if `admin` is enough."""
    before, after = planned.before.settings, planned.after.settings
    checks: Mapping[str, Callable[[Settings, Settings], Iterator[str]]] = {
        "servers": _check_servers,
        "agents": lambda old, new: _check_agents(old, new, own_agent, planned.before.directories),
        "http": lambda old, new: _check_http(old.http, new.http),
    }
    for key in Settings.model_fields:
        if getattr(before, key) != getattr(after, key):
            yield from checks[key](before, after) if key in checks else (f"it changes {key}",)
    yield from _check_secrets(planned)
    yield from _check_references(planned)


def _check_servers(before: Settings, after: Settings) -> Iterator[str]:
    for name in {**before.servers, **after.servers}:
        old, new = before.servers.get(name), after.servers.get(name)
        if old != new:
            yield from _check_server(f"servers.{name}", old, new)


def _check_server(name: str, old: Server | None, new: Server | None) -> Iterator[str]:
    if (old or new).url is None or (new or old).url is None:  # type: ignore[union-attr]
        if old is None or new is None or _find_changes(old, new) - SERVER_FIELDS:
            yield f"{name} names a program"
        elif new.enabled and not old.enabled:
            yield f"{name} would start a program"
        return
    if new is not None and (old is None or old.auth != new.auth) and new.auth not in {None, OAuth()}:
        yield f"{name}.auth names credentials"
    if old is not None and new is not None:
        for key in sorted(_find_changes(old, new) - URL_SERVER_FIELDS - {"auth"}):
            yield f"it changes {name}.{key}"
        if _get_host(old) != _get_host(new):
            yield f"{name}.headers.Host could send its credentials to another host"
        if old.auth is not None and new.auth != old.auth:
            yield f"it changes {name}.auth"


def _get_host(server: Server) -> str | None:
    return next((value for key, value in server.headers.items() if key.lower() == "host"), None)


def _check_agents(before: Settings, after: Settings, own_agent: str | None, directories: Directories) -> Iterator[str]:
    known = [os.path.realpath(directories.working_dir), *_list_directories(before.agents.values(), directories)]
    for name in {**before.agents, **after.agents}:
        old, new = before.agents.get(name), after.agents.get(name)
        if old == new:
            continue
        if name == own_agent:
            yield f"{name} is your own agent"
        if new is not None and not new.sandbox.enabled and (old or Agent()).sandbox.enabled:
            yield f"agents.{name}.sandbox.enabled turns off isolation"
        for path in _list_directories([new] if new is not None else [], directories):
            if not any(Path(path).is_relative_to(directory) for directory in known):
                yield f"agents.{name}.sandbox.allowed_paths opens {path}"


def _list_directories(agents: Iterable[Agent], directories: Directories) -> list[str]:
    texts = dict.fromkeys(text for agent in agents for text in agent.sandbox.allowed_paths)
    return [os.path.realpath(resolve_path(text, directories.working_dir, directories.home)) for text in texts]


def _check_http(before: Http, after: Http) -> Iterator[str]:
    for key in sorted(_find_changes(before, after) - {"allowed_hosts"}):
        yield f"it changes http.{key}"


def _check_secrets(planned: PlannedEdit) -> Iterator[str]:
    """Yield the secrets that had another value. A new one may be set, because nothing uses it yet."""
    for name in planned.secrets:
        if name in planned.before.secrets:
            yield f"it changes the secret {name}"


def _check_references(planned: PlannedEdit) -> Iterator[str]:
    """Yield new references to secrets or environment variables, which a server by URL would receive."""
    moved = {each for item in planned.items for each in _list_references(item.before, (item.section, item.name))}
    for edit in planned.files:
        source = str(edit.before.path)
        old, new = (yaml_edit.parse_mapping(text, source) for text in (edit.before.text, edit.text))
        known = {*_list_references(old), *moved}  # an edit in the store copies the entry of a file
        for place, name in _list_references(new):
            is_known = name in planned.before.secrets or name in planned.before.environment
            is_new_secret = planned.secrets.get(name) is not None and not is_known
            if (place, name) not in known and not is_new_secret:
                yield f"it refers to {name}"


def _list_references(data: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _list_references(value, (*place, str(key)))
    elif isinstance(data, list):
        for value in data:
            yield from _list_references(value, place)
    elif isinstance(data, str):
        yield from ((place, found[1]) for found in _REFERENCE.finditer(data))


def _find_changes(old: Any, new: Any) -> set[str]:
    return {key for key in type(old).model_fields if getattr(old, key) != getattr(new, key)}
