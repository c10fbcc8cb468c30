"""Review .onetool/ in this directory and trust it after confirmation.

The answer is read from standard input, so scripts can use `echo yes | onetool trust`. No answer means no.
"""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onetool import paths
from onetool.config.trust import EXTENSIONS, Change, changes_since_trusted, make_record, take_snapshot, trust
from onetool.errors import ConfigError, ToolError
from onetool.paths import FOLDER, Directories, find_directories, is_directory
from onetool.redact import Redactor
from onetool.util import yaml_loader
from onetool.util.secret_finder import find_secrets

QUESTION = "Trust it? [y/N] "
YES = frozenset({"y", "yes"})
SHOWN_ABOVE = frozenset({"servers", "agents", "version"})
MAX_VALUE_LENGTH = 80


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(options: argparse.Namespace) -> int:
    directories = project_folders(options)
    assert directories.project is not None
    record = make_record(directories.project, directories.user)
    summary = _summarize(directories.project, directories)
    print("\n".join(_lines(directories.project, summary)), file=sys.stderr if options.json else sys.stdout)
    is_trusted = _confirm(sys.stderr if options.json else sys.stdout)
    if is_trusted:
        trust(directories.project, directories.user, record)
    if options.json:
        print(json.dumps(_to_json(directories.project, summary, is_trusted), ensure_ascii=False))
    elif is_trusted:
        print(f"{directories.project} is trusted. Run `onetool trust` again after changing its settings.")
    else:
        print(f"trust in {directories.project} was not changed: not confirmed", file=sys.stderr)
    return int(not is_trusted)


def project_folders(options: argparse.Namespace) -> Directories:
    directories = find_directories(os.environ, Path.cwd(), options.config, Path.home())
    if directories.project is not None:
        return directories
    if directories.working_dir / FOLDER == directories.user and is_directory(directories.user):
        raise ToolError(f"{directories.user} is your user directory, which is always trusted")
    raise ToolError(
        f"no .onetool directory in {directories.working_dir}", hint="change to the directory of a project that has one"
    )


def _confirm(stream: Any) -> bool:
    print(f"\n{QUESTION}", end="", file=stream, flush=True)
    answer = sys.stdin.readline() if sys.stdin is not None else ""
    if not answer.endswith("\n"):
        print(file=stream)
    return answer.strip().lower() in YES


# --- contents ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProjectSummary:
    """The contents of a project directory, for review. `changes` is None if it was never trusted."""

    servers: Mapping[str, str]
    agents: Mapping[str, str]
    extensions: list[str]
    others: list[str]
    unreadable: list[str]
    changes: list[Change] | None
    redact: Redactor


def _summarize(project: Path, directories: Directories) -> ProjectSummary:
    unreadable: list[str] = []
    config = _read(directories.config_path(project), unreadable)
    agents = {**_mapping(config.get("agents"))}
    for file in paths.agent_files(project):
        data = _read(file, unreadable)
        agents[str(data.get("name") or file.stem)] = data
    servers = _mapping(config.get("servers"))
    return ProjectSummary(
        {name: _command(server) for name, server in servers.items()},
        {name: _describe_permissions(agent) for name, agent in agents.items()},
        list(take_snapshot(project, directories.home)[EXTENSIONS]),
        [key for key in config if key not in SHOWN_ABOVE],
        unreadable,
        changes_since_trusted(project, directories.user),
        Redactor(find_secrets(config)),
    )


def _read(file: Path, unreadable: list[str]) -> Mapping[str, Any]:
    try:
        return _mapping(yaml_loader.read_file(file).data)
    except FileNotFoundError:
        return {}
    except ConfigError as error:
        unreadable.append(str(error))
        return {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _command(server: Any) -> str:
    data = _mapping(server)
    if data.get("url"):
        return str(data["url"])
    args = data["args"] if isinstance(data.get("args"), list) else []
    directory = f"   (in {data['cwd']})" if data.get("cwd") else ""
    if not data.get("command"):
        changed = f"server of your user settings with other {', '.join(data)}"
        return f"{changed}: {shlex.join(map(str, args))}{directory}".rstrip(": ")
    return f"{shlex.join(map(str, [data['command'], *args]))}{directory}"


def _describe_permissions(agent: Any) -> str:
    data = _mapping(agent)
    granted = data.get("permissions") or _mapping(data.get("budgets")).get("permissions") or []
    listed = ", ".join(map(str, granted)) if isinstance(granted, list) else str(granted)
    sandbox = ", no sandbox" if _mapping(data.get("sandbox")).get("enabled") is False else ""
    rules = data.get("policy")
    policy = "" if rules is None else f", policy {rules if isinstance(rules, str) else 'of its own'}"
    return f"{listed or 'no permissions'}{sandbox}{policy}"


# --- output -----------------------------------------------------------------------------------------------------------


def _lines(project: Path, summary: ProjectSummary) -> Iterator[str]:
    yield str(project)
    for title, entries in (("Servers", summary.servers), ("Agents", summary.agents)):
        width = max(map(len, entries), default=0)
        yield from _section(title, [f"{name:{width}}  {text}" for name, text in entries.items()], summary.redact)
    yield from _section("Extension files", summary.extensions, summary.redact)
    yield from _section("Other settings", [", ".join(summary.others)] if summary.others else [], summary.redact)
    yield from _section("Unreadable files", summary.unreadable, summary.redact)
    if summary.changes is not None:
        changed = [_difference(change) for change in summary.changes]
        yield from _section("Changed since trusted", changed or ["nothing"], summary.redact)


def _section(title: str, lines: list[str], redact: Redactor) -> Iterator[str]:
    if lines:
        yield f"\n{title}"
        yield from (f"  {_printable(redact(line))}" for line in lines)


def _difference(change: Change) -> str:
    if change.file in {EXTENSIONS, paths.SECRETS}:
        return str(change)
    sides = [*([] if change.is_new else [change.before]), *([] if change.is_gone else [change.after])]
    return f"{change}: {' -> '.join(_format_value(side) for side in sides)}"


def _format_value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[:MAX_VALUE_LENGTH]}…"


def _printable(text: str) -> str:
    """Escape control characters and invisible characters."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _to_json(project: Path, summary: ProjectSummary, is_trusted: bool) -> dict[str, Any]:
    redact = summary.redact
    changes = [redact(_difference(change)) for change in summary.changes or []]
    return {
        "folder": str(project),
        "trusted": is_trusted,
        "servers": {name: redact(text) for name, text in summary.servers.items()},
        "agents": dict(summary.agents),
        "extensions": summary.extensions,
        "changes": changes,
    }
