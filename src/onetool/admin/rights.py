"""Decides who may make an edit, by comparing the settings before and after it.

The scope `admin` may add servers by URL and change agents other than its own: it may narrow an
agent, or grant what its own agent has, except `exec`. Whatever names a program, a path to load, a
private address, a credential, an endpoint of credentials, isolation, authentication or the store
needs the scope `owner`. What is not listed here needs it too.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from onetool.core.agents import find_client_agent
from onetool.errors import PermissionDenied
from onetool.net.hosts import covers_host, find_private_address, parse_target
from onetool.settings.access import Agent, Budgets, OAuth, Rule, Sandbox
from onetool.settings.clients import yaml_edit
from onetool.settings.model import Http, Server, Settings
from onetool.settings.paths import Directories, resolve_path
from onetool.settings.planned_edit import PlannedEdit
from onetool.util.context import Permission

ADMIN = "admin"
OWNER = "owner"
# Fields that `admin` may change. Everything that starts a program is not among them.
SERVER_FIELDS = frozenset(
    {"enabled", "timeout", "idle_timeout", "tools", "expose", "pin", "sanitize"}
)
URL_SERVER_FIELDS = SERVER_FIELDS | {"headers", "transport", "accounts", "stateful", "shared"}
BUDGETS = ("time_seconds", "calls", "tokens", "cost")
_REFERENCE = re.compile(r"(?<!\$)\$\{(?:secret:)?([^}:]*)")


def check_rights(planned: PlannedEdit, scope: str, own_agent: str | None) -> None:
    """Raise PermissionDenied unless a caller of this scope and agent may make the edit.

    The owner has no agent.
    """
    if scope == OWNER:
        return
    if scope != ADMIN:
        raise PermissionDenied(
            f"{planned.action} needs a token of scope 'admin'", required=ADMIN, scope=scope
        )
    reasons = list(dict.fromkeys(find_owner_reasons(planned, own_agent)))
    if reasons:
        message = (
            f"{planned.action} needs a token of scope 'owner', because {' and '.join(reasons)}"
        )
        hint = "run `onetool ui` on the machine of the server, or use the command line there"
        raise PermissionDenied(message, hint=hint, required=OWNER, scope=scope)


def find_owner_reasons(planned: PlannedEdit, own_agent: str | None) -> Iterator[str]:
    """Yield why an edit needs the scope `owner`; nothing if `admin` is enough."""
    before = planned.before.settings
    after = planned.after.settings
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
        old = before.servers.get(name)
        new = after.servers.get(name)
        if old != new:
            yield from _check_server(f"servers.{name}", old, new)


def _check_server(name: str, old: Server | None, new: Server | None) -> Iterator[str]:
    if (old or new).url is None or (new or old).url is None:  # type: ignore[union-attr]
        if old is None or new is None or _find_changes(old, new) - SERVER_FIELDS:
            yield f"{name} names a program"
        elif new.enabled and not old.enabled:
            yield f"{name} would start a program"
        return
    if (
        new is not None
        and old is None
        and (address := find_private_address(parse_target(str(new.url)).authority))
    ):
        yield f"{name}.url has the private address {address}"
    if (
        new is not None
        and (old is None or old.auth != new.auth)
        and new.auth not in {None, OAuth()}
    ):
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


def _check_agents(
    before: Settings, after: Settings, own_agent: str | None, directories: Directories
) -> Iterator[str]:
    own = before.agents.get(own_agent or "", Agent())
    for name in {**before.agents, **after.agents}:
        old = before.agents.get(name)
        new = after.agents.get(name)
        if old == new:
            continue
        if name == own_agent:
            yield f"{name} is your own agent"
        if new is not None:
            yield from _explain_grant(f"agents.{name}", new, old, own, directories)
    for client in _list_clients(before) | _list_clients(after):
        old_name = find_client_agent(before, client)
        new_name = find_client_agent(after, client)
        if new_name != old_name:
            yield from _explain_grant(
                f"client {client}: agents.{new_name}",
                after.agents[new_name],
                before.agents[old_name],
                own,
                directories,
            )


def _list_clients(settings: Settings) -> set[str]:
    return {client for agent in settings.agents.values() for client in agent.clients}


def explain_token_grant(
    settings: Settings, agent: str, own_agent: str, directories: Directories
) -> list[str]:
    """Return why a caller of scope `admin` may not create a token for an agent; empty if it may."""
    own = settings.agents.get(own_agent, Agent())
    return list(_explain_grant(f"agents.{agent}", settings.agents[agent], None, own, directories))


def _explain_grant(
    name: str, agent: Agent, old: Agent | None, own: Agent, directories: Directories
) -> Iterator[str]:
    """Yield why these rights need the scope `owner`.

    `old` is what their holder has already, `own` what the caller has.

    Rights are compared as a whole: `exec` of one agent with the tools of the other would be more
    than either has.
    """
    if old is not None and not list_wider_settings(agent, old, directories):
        return
    if Permission.EXEC in agent.permissions:
        yield f"{name}.permissions grants exec"
    for key in list_wider_settings(agent, own, directories):
        yield f"{name}.{key} grants more than your own agent has"


def _check_http(before: Http, after: Http) -> Iterator[str]:
    for key in sorted(_find_changes(before, after) - {"allowed_hosts"}):
        yield f"it changes http.{key}"
    for host in after.allowed_hosts:
        if host in before.allowed_hosts:
            continue
        if "*" in host and after.allow_private_addresses:
            yield f"{host} includes private addresses"
        elif address := find_private_address(host):
            yield f"{host} has the private address {address}"


def _check_secrets(planned: PlannedEdit) -> Iterator[str]:
    """Yield the secrets that had another value. A new one may be set, because nothing uses it yet."""
    for name in planned.secrets:
        if name in planned.before.secrets:
            yield f"it changes the secret {name}"


def _check_references(planned: PlannedEdit) -> Iterator[str]:
    """Yield new references to secrets or variables, which a remote server would get."""
    moved = {
        each
        for item in planned.items
        for each in _list_references(item.before, (item.section, item.name))
    }
    for edit in planned.files:
        source = str(edit.before.path)
        old, new = (yaml_edit.parse_mapping(text, source) for text in (edit.before.text, edit.text))
        # An edit in the store copies the entry of a file.
        old_references = {*_list_references(old), *moved}
        for place, name in _list_references(new):
            is_known = name in planned.before.secrets or name in planned.before.environment
            is_new_secret = planned.secrets.get(name) is not None and not is_known
            if (place, name) not in old_references and not is_new_secret:
                yield f"it refers to {name}"


def _list_references(
    data: Any, place: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _list_references(value, (*place, str(key)))
    elif isinstance(data, list):
        for value in data:
            yield from _list_references(value, place)
    elif isinstance(data, str):
        yield from ((place, match[1]) for match in _REFERENCE.finditer(data))


def _find_changes(old: Any, new: Any) -> set[str]:
    return {key for key in type(old).model_fields if getattr(old, key) != getattr(new, key)}


# --- the rights of agents -------------------------------------------------------------------------


def list_wider_settings(agent: Agent, bound: Agent, directories: Directories) -> list[str]:
    """Return the settings that let an agent do more than `bound`, or something else.

    `clients` are not compared: they say who uses the agent, not what it may do.
    """
    comparisons: Mapping[str, Callable[[Any, Any], bool]] = {
        "permissions": frozenset.issubset,
        "tools": lambda new, old: _is_list_within(new, old, _covers_tool),
        "hosts": lambda new, old: _is_list_within(new, old, covers_host),
        "sandbox": lambda new, old: _is_sandbox_within(new, old, directories),
        "budgets": _is_budget_within,
        "policy": _is_policy_within,
        "approvals": lambda new, old: set(new.via) <= set(old.via),
        "clients": lambda _new, _old: True,
    }
    wider = []
    for key in Agent.model_fields:
        new = getattr(agent, key)
        old = getattr(bound, key)
        if new != old and not (key in comparisons and comparisons[key](new, old)):
            wider.append(key)
    return wider


def _is_list_within(
    new: tuple[str, ...] | None, old: tuple[str, ...] | None, covers: Callable[[str, str], bool]
) -> bool:
    """Return whether each entry is covered by an old one. None stands for everything."""
    if old is None:
        return True
    return new is not None and all(any(covers(pattern, entry) for pattern in old) for entry in new)


def _covers_tool(pattern: str, entry: str) -> bool:
    """Return whether a name or pattern of tools matches every tool that another one matches."""
    if pattern == entry or entry.startswith(f"{pattern}."):
        return True
    return not set(pattern) & set("?[") and fnmatchcase(entry, pattern)


def _is_sandbox_within(new: Sandbox, old: Sandbox, directories: Directories) -> bool:
    if not old.enabled:
        return True
    if not new.enabled or not set(old.denied_patterns) <= set(new.denied_patterns):
        return False
    allowed = _list_directories(old, directories)
    opened = _list_directories(new, directories)
    return all(any(path.is_relative_to(parent) for parent in allowed) for path in opened)


def _list_directories(sandbox: Sandbox, directories: Directories) -> list[Path]:
    """Return the directories that a sandbox opens, with links resolved."""
    texts = sandbox.allowed_paths or (str(directories.working_dir),)
    paths = (resolve_path(text, directories.root, directories.home) for text in texts)
    return [Path(os.path.realpath(path)) for path in paths]


def _is_budget_within(new: Budgets, old: Budgets) -> bool:
    for key in BUDGETS:
        limit = getattr(new, key)
        old_limit = getattr(old, key)
        if old_limit is not None and (limit is None or limit > old_limit):
            return False
    return True


def _is_policy_within(new: str | tuple[Rule, ...], old: str | tuple[Rule, ...]) -> bool:
    if old == "open" or (new == "read-only" and old == "ask-writes"):
        return True
    if isinstance(new, str) or isinstance(old, str):
        return False
    added = new[: len(new) - len(old)]
    return new[len(added) :] == old and all(rule.decision == "deny" for rule in added)
