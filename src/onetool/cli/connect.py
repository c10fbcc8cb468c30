"""Print the configuration that connects an assistant to OneTool, or write it with --write."""

import json
import os
import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from onetool.cli.command import Command, print_result
from onetool.cli.exit_status import blocked_signals
from onetool.cli.login import find_sign_in_notes
from onetool.errors import ConfigError, ToolError
from onetool.settings import paths
from onetool.settings.clients import json_edit, text_files, toml_edit
from onetool.settings.clients.catalog import (
    CLIENTS,
    DISTRIBUTION,
    PROGRAM,
    Client,
    Machine,
    OneToolCommand,
    find_start_command,
)
from onetool.settings.clients.client_servers import parse_settings
from onetool.settings.clients.text_files import apply_edits, line_number, value_at
from onetool.util.redact import Redactor
from onetool.util.secret_finder import find_secrets
from onetool_child.json_types import JsonMapping, JsonObject

QUESTION = "What tools do you have in OneTool?"


@dataclass(frozen=True, slots=True)
class ConnectPlan:
    """A planned change: `data` is the file's current content, `text` has the new entry."""

    client: Client
    data: Any
    entry: JsonMapping
    before: text_files.TextFile
    text: str
    notes: tuple[str, ...]

    @property
    def changes(self) -> bool:
        return self.text != self.before.text


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "client",
        choices=CLIENTS,
        metavar="CLIENT",
        help=f"assistant to connect: {', '.join(CLIENTS)}",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="write the entry to the configuration file and keep a .bak copy",
    )
    parser.add_argument(
        "--project",
        action="store_true",
        help="use the configuration file of the project, which is often shared",
    )
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="working directory of OneTool (OT_CWD)"
    )
    parser.add_argument(
        "--command", metavar="COMMAND", help="command that starts OneTool, such as onetool"
    )


def main(options: Namespace) -> int:
    start = _launch(options.command, is_shared=options.project)
    plan = make_plan(CLIENTS[options.client], current_machine(), start, options)
    # The context lines of a diff may contain secrets of other servers.
    redact = Redactor(find_secrets(plan.data))
    diff = text_files.diff(plan.before, plan.text, redact)
    with blocked_signals():
        backup = (
            text_files.write(plan.before, plan.text) if options.write and plan.changes else None
        )
    print_result(
        options, _to_json(plan, options, diff, backup), [_render_text(plan, options, diff, backup)]
    )
    if not options.json:
        machine = current_machine()
        directories = paths.find_directories(
            os.environ, machine.working_dir, getattr(options, "config", None), machine.home
        )
        for note in find_sign_in_notes(directories):
            print(note)
    return 0


def current_machine() -> Machine:
    working_dir = paths.resolve_path(os.environ.get("OT_CWD", ""), Path.cwd(), Path.home())
    return Machine(sys.platform, os.environ, Path.home(), working_dir)


def find_connected_clients(machine: Machine) -> list[Client]:
    """Return the clients that have an entry for OneTool in one of their files."""

    def has_entry(client: Client, file: Path) -> bool:
        try:
            return value_at(parse_settings(text_files.read(file)), client.path) is not None
        except ToolError:
            return False

    return [
        client
        for client in CLIENTS.values()
        if any(has_entry(client, file) for file in client.locate_files(machine))
    ]


def suggest_client(machine: Machine) -> str:
    """Return the name of the first client that seems to be installed, or any name."""
    return next((client.name for client in find_installed_clients(machine)), next(iter(CLIENTS)))


def find_installed_clients(machine: Machine) -> list[Client]:
    """Return the clients that seem to be installed, because their file or directory exists."""

    def is_present(file: Path) -> bool:
        try:
            return file.exists() or (file.parent != machine.home and file.parent.is_dir())
        except OSError:
            return False

    return [client for client in CLIENTS.values() if is_present(client.locate_user_file(machine))]


def next_step(machine: Machine, question: str, client: str = "") -> str:
    """Return a message on how to try new tools.

    `client` is the assistant that they were imported from, if any.
    """
    if find_connected_clients(machine):
        return f'Restart your assistant, then ask it: "{question}"'
    first = client or suggest_client(machine)
    return (
        f"Connect your assistant: onetool connect {first} --write. Restart it, then ask it:"
        f' "{question}"'
    )


def make_plan(
    client: Client, machine: Machine, start: OneToolCommand, options: Namespace
) -> ConnectPlan:
    file = client.locate_file(machine, project=options.project)
    if options.project and not paths.is_inside(file, machine.working_dir):
        hint = "replace the symbolic link with a file or directory"
        raise ToolError(f"{file} leads out of {machine.working_dir}", hint=hint)
    before = text_files.read(file)
    directory, notes = _find_directory(client, machine, options.folder)
    entry = client.make_entry(start, directory)
    current = ("command", "args", "env") if options.folder is not None else ("command", "args")
    data = parse_settings(before)
    _reject_remote(client, before, data)
    change = (before.text, str(before.path), client.path, entry, current)
    is_toml = before.path.suffix == ".toml"
    text = (
        toml_edit.update(*change)
        if is_toml
        else apply_edits(before.text, json_edit.edits_for(*change))
    )
    if start.note:
        notes.append(start.note)
    if options.project and options.command is None:
        notes.append(
            "Everyone who uses this file needs onetool on the PATH of their assistant (see"
            " --command)."
        )
    return ConnectPlan(client, data, entry, before, text, tuple(notes))


def _launch(command: str | None, *, is_shared: bool) -> OneToolCommand:
    """Return the command that starts OneTool. A shared file has no paths of this machine."""
    if command is None and is_shared:
        return OneToolCommand(PROGRAM)
    if command is not None:
        words = shlex.split(command, posix=os.name == "posix")
        if not words:
            raise ToolError(
                "--command is empty: expected a command that starts OneTool, such as onetool"
            )
        return OneToolCommand(words[0], tuple(words[1:]))
    try:
        direct_url = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        direct_url = None
    return find_start_command(Path(sys.executable), direct_url)


def _find_directory(
    client: Client, machine: Machine, folder: Path | None
) -> tuple[Path | None, list[str]]:
    if folder is not None:
        directory = paths.resolve_path(str(folder), machine.working_dir, machine.home)
        if not directory.is_dir():
            raise ToolError(f"invalid --folder: {directory} is not a directory")
        return directory, []
    if client.has_working_dir:
        return None, []
    # Otherwise OneTool would start in the root directory and allow access to the whole disk.
    note = (
        f"{client.title} starts servers without a working directory; OneTool uses"
        f" {machine.working_dir} (see --folder)."
    )
    return machine.working_dir, [note]


def _reject_remote(client: Client, before: text_files.TextFile, data: Any) -> None:
    entry = value_at(data, client.path)
    if (
        isinstance(entry, Mapping)
        and "command" not in entry
        and {"url", "serverUrl", "httpUrl"} & entry.keys()
    ):
        place = f"{before.path}:{line_number(before.text, before.text.find(client.path[-1]))}"
        raise ConfigError(
            f"{place}: an entry named onetool already exists and has a URL", hint="delete it first"
        )


def _snippet(plan: ConnectPlan) -> str:
    if plan.before.path.suffix == ".toml":
        return toml_edit.render(plan.client.path, plan.entry).rstrip()
    key, name = plan.client.path
    return json.dumps({key: {name: plan.entry}}, indent=2, ensure_ascii=False)


def _to_json(plan: ConnectPlan, options: Namespace, diff: str, backup: Path | None) -> JsonObject:
    return {
        "client": plan.client.name,
        "scope": "project" if options.project else "user",
        "file": str(plan.before.path),
        "exists": plan.before.raw is not None,
        "entry": plan.entry,
        "snippet": _snippet(plan),
        "changes": plan.changes,
        "written": bool(options.write and plan.changes),
        "backup": str(backup) if backup else None,
        "undo": _undo(plan, backup) if options.write and plan.changes else None,
        "diff": diff,
        "notes": plan.notes,
    }


def _render_text(plan: ConnectPlan, options: Namespace, diff: str, backup: Path | None) -> str:
    body = _describe_change(plan, diff, backup) if options.write else _describe_entry(plan, options)
    last = f'Restart {plan.client.title}, then ask it: "{QUESTION}"'
    return "\n".join([*body, *(f"Note: {note}" for note in plan.notes), "", last])


def _describe_entry(plan: ConnectPlan, options: Namespace) -> list[str]:
    scope = "this directory" if options.project else "all directories"
    state = "" if plan.before.raw is not None else " (new file)"
    again = f"onetool connect {plan.client.name}{' --project' if options.project else ''} --write"
    done = f"To write it: {again}" if plan.changes else "The file already contains this entry."
    other = []
    if plan.client.project_file and not options.project:
        other = ["For this directory only: add --project."]
    return [
        f"{plan.client.title}, for {scope}: {plan.before.path}{state}",
        "",
        _snippet(plan),
        "",
        done,
        *other,
    ]


def _describe_change(plan: ConnectPlan, diff: str, backup: Path | None) -> list[str]:
    if not plan.changes:
        return [f"{plan.before.path} already contains this entry; nothing was changed."]
    kept = f" (backup: {backup})" if backup else ""
    return [diff, "", f"Wrote {plan.before.path}{kept}", f"To undo: {_undo(plan, backup)}"]


def _undo(plan: ConnectPlan, backup: Path | None) -> str:
    """Return the command that undoes the change. Links are followed, as when the file was written."""
    target = os.path.realpath(plan.before.path)
    return shlex.join(["mv", str(backup), target] if backup else ["rm", target])


COMMANDS = {"connect": Command(__doc__, add_arguments, main=main)}
