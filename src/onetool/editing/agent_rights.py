"""Compares the rights of agents: whether an agent may do anything that another agent may not."""

import os
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from onetool.config.model import Agent, Budgets, Rule, Sandbox
from onetool.net.hosts import covers_host
from onetool.paths import Directories, resolve_path

BUDGETS = ("time_seconds", "calls", "tokens", "cost")


def list_wider_settings(agent: Agent, bound: Agent, directories: Directories) -> list[str]:
    """Return the settings by which an agent may do more than `bound`, or something else; empty if it may not.

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
