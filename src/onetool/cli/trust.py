"""The commands trust and untrust, and the review that other commands show."""

import json
import os
import re
import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from onetool.cli.command import Command, choose_stream, find_command_directories, print_result
from onetool.errors import ConfigError, ToolError
from onetool.settings.clients import text_files
from onetool.settings.clients.catalog import CLIENTS, Machine
from onetool.settings.clients.client_servers import ClientServers, read_servers
from onetool.settings.paths import CONFIG, FOLDER, SECRETS, Directories, is_directory
from onetool.settings.trust import (
    EXTENSIONS,
    VARIABLE,
    Change,
    changes_since_trusted,
    flatten,
    is_file_trusted,
    make_record,
    trust,
    trust_file,
    untrust,
)
from onetool.util.problem import Problem
from onetool.util.redact import REDACTED
from onetool.util.secret_finder import names_before, spans
from onetool_child.json_types import JsonMapping, JsonObject

QUESTION = "Trust it? [y/N] "
YES = frozenset({"y", "yes"})
MAX_CHANGE_LENGTH = 80
Lines = list[str]
# What runs is always shown, even as the value of a key whose name looks like that of a secret.
_COMMAND = re.compile(r"\s|\A[/.~-]")


# --- trust ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Review:
    """The content of a project directory, with secrets masked.

    `changes` is None if it was never trusted.
    """

    servers: Mapping[str, Lines]
    agents: Mapping[str, Lines]
    extensions: Lines
    settings: Lines
    changes: Lines | None


def _add_trust_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", nargs="?", help="configuration with servers, instead of .onetool/"
    )


def _review(options: Namespace) -> int:
    if options.file is not None:
        return _trust_file(options)
    directories = project_folders(options)
    project = directories.project
    assert project is not None
    review, is_trusted = review_and_ask(directories, project, choose_stream(options))
    done = (
        f"{project} is trusted. OneTool asks again if a change could run code or reach data or the"
        " network."
    )
    data = {"folder": str(project), **asdict(review), "changes": review.changes or []}
    return _report(options, project, done, data, is_trusted=is_trusted)


def _report(
    options: Namespace, place: Path, done: str, data: JsonObject, *, is_trusted: bool
) -> int:
    if is_trusted or options.json:
        print_result(options, {**data, "trusted": is_trusted}, [done])
    else:
        print(f"trust in {place} was not changed: not confirmed", file=sys.stderr)
    return int(not is_trusted)


def project_folders(options: Namespace) -> Directories:
    directories = find_command_directories(options)
    if directories.project is not None:
        return directories
    if directories.working_dir / FOLDER == directories.user and is_directory(directories.user):
        raise ToolError(f"{directories.user} is your user directory, which is always trusted")
    raise ToolError(
        f"no .onetool directory in {directories.working_dir} or above it in its repository",
        hint="change to the directory of a project that has one",
    )


def review_and_ask(directories: Directories, project: Path, stream: TextIO) -> tuple[Review, bool]:
    """Show what trust in a project means and ask for it. Return whether it is trusted now.

    Raise ConfigError if its settings are invalid. What is trusted is what was shown.
    """
    if errors := find_errors(directories, project):
        problems = "\n".join(map(str, errors))
        raise ConfigError(f"cannot trust {project}: its settings are invalid:\n{problems}")
    record = make_record(project, directories.user)
    review = _make_review(record["facts"], changes_since_trusted(project, directories.user))
    print("\n".join(_render(project, review)), file=stream)
    is_trusted = confirm(QUESTION, stream)
    if is_trusted:
        trust(project, directories.user, record)
    return review, is_trusted


def require_trust(directories: Directories, project: Path, stream: TextIO) -> None:
    """Show an existing project before a command uses it, and ask. Raise if the answer is not yes."""
    print("This directory is not trusted yet, or changed since. Its content:\n", file=stream)
    if not review_and_ask(directories, project, stream)[1]:
        raise ToolError(
            f"{project} is not trusted: not confirmed", hint="review it, then run the command again"
        )


def confirm(question: str, stream: TextIO) -> bool:
    """Ask on a stream, and read the answer from standard input. No answer means no."""
    print(f"\n{question}", end="", file=stream, flush=True)
    answer = sys.stdin.readline() if sys.stdin is not None else ""
    if not answer.endswith("\n"):
        print(file=stream)
    return answer.strip().lower() in YES


# --- files of other programs ----------------------------------------------------------------------


def _trust_file(options: Namespace) -> int:
    file = read_servers(text_files.read(Path.cwd() / options.file), Path.cwd())
    is_trusted = _review_file(file, "Trust these servers? [y/N] ", choose_stream(options))
    if is_trusted:
        trust_file(file.file, file.digest, Path.home() / FOLDER)
    done = (
        f"{file.file} is trusted until it changes. Import its servers with: onetool import"
        f" {options.file}"
    )
    return _report(options, file.file, done, {"file": str(file.file)}, is_trusted=is_trusted)


def require_file_trust(file: ClientServers, machine: Machine, user: Path, stream: TextIO) -> None:
    """Show the servers of a file and ask, unless it is a client's own or trusted.

    Raise if the answer is not yes.
    """
    is_clients = file.file in {client.locate_user_file(machine) for client in CLIENTS.values()}
    if (
        is_clients
        or machine.env.get(VARIABLE) == "1"
        or is_file_trusted(file.file, file.digest, user)
    ):
        return
    if not _review_file(file, "Import these servers? [y/N] ", stream):
        raise ToolError(
            f"{file.file} was not imported: not confirmed",
            hint="review it, then run the command again",
        )


def _review_file(file: ClientServers, question: str, stream: TextIO) -> bool:
    """Show what the servers of a file run, as the file has it, and ask."""
    servers = _mapping(mask_secrets(file.servers))
    shown = {name: _list_values(server) or ["nothing"] for name, server in servers.items()}
    print("\n".join(_section(f"Servers of {file.file}", _align(shown))), file=stream)
    return confirm(question, stream)


def find_errors(directories: Directories, project: Path) -> list[Problem]:
    """Return settings errors as they would be with trust, except for missing secrets."""
    from onetool.settings.load import UNSET, examine

    errors = examine(replace(directories, project=project), os.environ, trust=True).errors
    # Secrets are no part of the review. `onetool secret set` sets them in a project that is
    # trusted.
    return [error for error in errors if error.code != UNSET and not _is_about_secrets(error)]


def _is_about_secrets(error: Problem) -> bool:
    return error.location is not None and Path(error.location.file).name == SECRETS


# --- contents -------------------------------------------------------------------------------------


def _make_review(facts: JsonMapping, changes: list[Change] | None) -> Review:
    config = _mapping(mask_secrets(facts.get(CONFIG)))
    agents = {**_mapping(config.get("agents"))}
    for file, content in facts.items():
        if file not in {CONFIG, EXTENSIONS}:
            data = _mapping(mask_secrets(content))
            agents[str(data.get("name") or Path(file).stem)] = data
    return Review(
        {
            name: _describe_server(_mapping(server))
            for name, server in _mapping(config.get("servers")).items()
        },
        {name: _describe_agent(_mapping(agent)) for name, agent in agents.items()},
        list(facts[EXTENSIONS]),
        _list_values(
            {key: value for key, value in config.items() if key not in {"servers", "agents"}}
        ),
        None if changes is None else [_difference(change) for change in changes],
    )


def mask_secrets(value: Any, name: str = "") -> Any:
    """Return the data with secrets masked, each only in its own place."""
    if isinstance(value, dict):
        return {key: mask_secrets(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [
            mask_secrets(item, option)
            for option, item in zip(names_before(value), value, strict=True)
        ]
    if not isinstance(value, str):
        return value
    for span in reversed(list(spans(name, value))):
        if not _COMMAND.search(value[span.start : span.end]):
            value = f"{value[: span.start]}{REDACTED}{value[span.end :]}"
    return value


def _mapping(value: Any) -> JsonMapping:
    return value if isinstance(value, dict) else {}


def _describe_server(server: JsonMapping) -> Lines:
    """Return the URL or the command, and all other settings of a server."""
    args = server["args"] if isinstance(server.get("args"), list) else []
    words = shlex.join(map(str, [server["command"], *args] if server.get("command") else args))
    words = words.replace(shlex.quote(REDACTED), REDACTED)
    directory = f"   (in {server['cwd']})" if server.get("cwd") else ""
    if server.get("url"):
        first = str(server["url"])
    elif server.get("command"):
        first = f"{words}{directory}"
    else:
        first = f"server of your user settings with other {', '.join(server)}: {words}{directory}".rstrip(
            ": "
        )
    shown = {"url", "command", "args", "cwd"}
    return [first, *_list_values({key: value for key, value in server.items() if key not in shown})]


def _describe_agent(agent: JsonMapping) -> Lines:
    """Return the permissions, and all other settings of an agent."""
    granted = agent.get("permissions") or _mapping(agent.get("budgets")).get("permissions") or []
    listed = ", ".join(map(str, granted)) if isinstance(granted, list) else str(granted)
    others = {key: value for key, value in agent.items() if key not in {"name", "permissions"}}
    return [listed or "no permissions", *_list_values(others)]


def _list_values(data: Any) -> Lines:
    return [f"{'.'.join(loc)}: {_format_value(value)}" for loc, value in flatten(data)]


def _difference(change: Change) -> str:
    if change.file == EXTENSIONS:
        return str(change)
    sides = [
        *([] if change.is_new else [change.before]),
        *([] if change.is_gone else [change.after]),
    ]
    texts = [_format_value(mask_secrets(side, change.key.rpartition(".")[2])) for side in sides]
    shortened = [
        text if len(text) <= MAX_CHANGE_LENGTH else f"{text[:MAX_CHANGE_LENGTH]}…" for text in texts
    ]
    return f"{change}: {' -> '.join(shortened)}"


def _format_value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


# --- output ---------------------------------------------------------------------------------------


def _render(project: Path, review: Review) -> Iterator[str]:
    yield str(project)
    yield from _section("Servers", _align(review.servers))
    yield from _section("Agents", _align(review.agents))
    yield from _section("Extension files", review.extensions)
    yield from _section("Other settings", review.settings)
    if review.changes is not None:
        yield from _section("Changed since trusted", review.changes or ["nothing"])


def _align(entries: Mapping[str, Lines]) -> Lines:
    """Return the lines of all entries, each with its name before the first line."""
    width = max(map(len, entries), default=0)
    aligned: Lines = []
    for name, lines in entries.items():
        aligned.append(f"{name:{width}}  {lines[0]}")
        aligned += [f"{'':{width}}  {line}" for line in lines[1:]]
    return aligned


def _section(title: str, lines: Lines) -> Iterator[str]:
    if lines:
        yield f"\n{title}"
        yield from (f"  {_printable(line)}" for line in lines)


def _printable(text: str) -> str:
    """Escape control characters and invisible characters."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


# --- untrust --------------------------------------------------------------------------------------


def _untrust(options: Namespace) -> int:
    directories = project_folders(options)
    assert directories.project is not None
    was_trusted = untrust(directories.project, directories.user)
    data = {"folder": str(directories.project), "trusted": False, "was": was_trusted}
    print_result(
        options,
        data,
        [f"{directories.project} {'is no longer' if was_trusted else 'was not'} trusted."],
    )
    return 0


TRUST_HELP = """\
Review .onetool/ in this directory and trust it after confirmation.

With FILE, review the servers of an assistant's configuration, such as .mcp.json, for `onetool
import FILE`. The answer is read from standard input, so scripts can use `echo yes | onetool trust`.
No answer means no.
"""
COMMANDS = {
    "trust": Command(TRUST_HELP, _add_trust_arguments, main=_review),
    "untrust": Command(
        "Revoke trust in .onetool/ in this directory, so that its settings and extensions are ignored.",
        main=_untrust,
    ),
}
