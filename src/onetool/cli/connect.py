"""Print what connects an assistant to OneTool; with --write, merge it into the assistant's own configuration."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from onetool import paths
from onetool.cli.signals import undisturbed
from onetool.clients import files, json_edit, launch, toml_edit
from onetool.clients.catalogue import CLIENTS, Client, Place
from onetool.clients.edits import applied, line_of, value_at
from onetool.errors import ConfigError, ToolError
from onetool.redact import Redactor
from onetool.util.secret_finder import secrets_in

QUESTION = "What tools do you have in OneTool?"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to stand where. `data` is what the file holds now, `text` the file with the entry in it."""

    client: Client
    data: Any
    entry: Mapping[str, Any]
    before: files.Read
    text: str
    notes: tuple[str, ...]

    @property
    def changes(self) -> bool:
        return self.text != self.before.text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("client", choices=CLIENTS, metavar="CLIENT", help=f"one of {', '.join(CLIENTS)}")
    parser.add_argument("--write", action="store_true", help="merge it into the file; the old one is kept as .bak")
    parser.add_argument("--project", action="store_true", help="for this folder only, in a file that is often shared")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="the folder that OneTool works in (OT_CWD)")
    parser.add_argument("--command", metavar="TEXT", help="the command that starts OneTool, such as onetool")
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(options: argparse.Namespace) -> int:
    plan = make_plan(CLIENTS[options.client], this_place(), _launch(options.command), options)
    # A diff shows the lines around, and those may hold keys of other servers.
    redact = Redactor(secrets_in(plan.data))
    diff = files.diff(plan.before, plan.text, redact)
    with undisturbed():
        backup = files.write(plan.before, plan.text) if options.write and plan.changes else None
    if options.json:
        print(json.dumps(_as_data(plan, options, diff, backup), indent=2, ensure_ascii=False))
    else:
        print(_as_text(plan, options, diff, backup))
    return 0


def this_place() -> Place:
    working_dir = paths.placed(os.environ.get("OT_CWD", ""), Path.cwd(), Path.home())
    return Place(sys.platform, os.environ, Path.home(), working_dir)


def connected(place: Place) -> list[Client]:
    """The clients that have us in one of their files."""

    def has_us(client: Client, file: Path) -> bool:
        try:
            return value_at(_data(files.read(file)), client.path) is not None
        except ToolError:
            return False

    return [client for client in CLIENTS.values() if any(has_us(client, file) for file in client.files(place))]


def present(place: Place) -> list[Client]:
    """The clients that seem to be installed: they have left a file, or a folder of their own."""

    def is_present(file: Path) -> bool:
        try:
            return file.exists() or (file.parent != place.home and file.parent.is_dir())
        except OSError:
            return False

    return [client for client in CLIENTS.values() if is_present(client.user(place))]


def what_to_ask(place: Place, question: str, client: str = "") -> str:
    """The last line of a command that has brought something new; `client` is the one it was about."""
    if connected(place):
        return f'Restart your assistant, then ask it: "{question}"'
    first = client or next((each.name for each in present(place)), next(iter(CLIENTS)))
    return f'Connect your assistant: onetool connect {first} --write. Restart it, then ask it: "{question}"'


def make_plan(client: Client, place: Place, start: launch.Launch, options: argparse.Namespace) -> Plan:
    before = files.read(client.file(place, project=options.project))
    folder, notes = _folder(client, place, options.folder)
    entry = client.entry(start, folder)
    current = ("command", "args", "env") if options.folder is not None else ("command", "args")
    data = _data(before)
    _refuse_remote(client, before, data)
    change = (before.text, str(before.path), client.path, entry, current)
    is_toml = before.path.suffix == ".toml"
    text = toml_edit.updated(*change) if is_toml else applied(before.text, json_edit.edits_for(*change))
    if start.note:
        notes.append(start.note)
    if options.project and options.command is None:
        notes.append(
            "The path is this machine's. For a file that others share give --command onetool, if they all have that."
        )
    return Plan(client, data, entry, before, text, tuple(notes))


def _launch(command: str | None) -> launch.Launch:
    if command is not None:
        words = shlex.split(command, posix=os.name == "posix")
        if not words:
            raise ToolError("--command is empty; give what starts OneTool, such as onetool")
        return launch.Launch(words[0], tuple(words[1:]))
    try:
        direct_url = metadata.distribution(launch.DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        direct_url = None
    return launch.launch(Path(sys.executable), direct_url)


def _folder(client: Client, place: Place, given: Path | None) -> tuple[Path | None, list[str]]:
    if given is not None:
        folder = paths.placed(str(given), place.working_dir, place.home)
        if not folder.is_dir():
            raise ToolError(f"{folder} is no folder; give --folder one that is there")
        return folder, []
    if client.has_folder:
        return None, []
    # Started in the root of the disk, OneTool would take the whole of it for the folder that may be read.
    note = (
        f"{client.title} starts servers in no folder, so OneTool works in {place.working_dir}; --folder names another."
    )
    return place.working_dir, [note]


def _data(before: files.Read) -> Any:
    parse = toml_edit.parse if before.path.suffix == ".toml" else json_edit.parse
    return parse(before.text, str(before.path))


def _refuse_remote(client: Client, before: files.Read, data: Any) -> None:
    entry = value_at(data, client.path)
    if isinstance(entry, Mapping) and "command" not in entry and {"url", "serverUrl", "httpUrl"} & entry.keys():
        place = f"{before.path}:{line_of(before.text, before.text.find(client.path[-1]))}"
        raise ConfigError(f"{place}: onetool is there already and reaches a server by its address; delete it first")


def _snippet(plan: Plan) -> str:
    if plan.before.path.suffix == ".toml":
        return toml_edit.render(plan.client.path, plan.entry).rstrip()
    key, name = plan.client.path
    return json.dumps({key: {name: plan.entry}}, indent=2, ensure_ascii=False)


def _as_data(plan: Plan, options: argparse.Namespace, diff: str, backup: Path | None) -> dict[str, Any]:
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


def _as_text(plan: Plan, options: argparse.Namespace, diff: str, backup: Path | None) -> str:
    body = _written(plan, diff, backup) if options.write else _shown(plan, options)
    last = f'Restart {plan.client.title}, then ask it: "{QUESTION}"'
    return "\n".join([*body, *(f"Note: {note}" for note in plan.notes), "", last])


def _shown(plan: Plan, options: argparse.Namespace) -> list[str]:
    scope = "this folder" if options.project else "you, in every folder"
    state = "" if plan.before.raw is not None else ", which is not there yet"
    again = f"onetool connect {plan.client.name}{' --project' if options.project else ''} --write"
    done = f"To have it written: {again}" if plan.changes else "It is there already: nothing is left to do."
    other = ["For this folder only: add --project."] if plan.client.project and not options.project else []
    return [f"{plan.client.title}, for {scope}: {plan.before.path}{state}", "", _snippet(plan), "", done, *other]


def _written(plan: Plan, diff: str, backup: Path | None) -> list[str]:
    if not plan.changes:
        return [f"{plan.before.path} has it already; nothing was changed."]
    kept = f"; what was there is kept in {backup}" if backup else ""
    return [diff, "", f"wrote {plan.before.path}{kept}", f"To undo it: {_undo(plan, backup)}"]


def _undo(plan: Plan, backup: Path | None) -> str:
    """What to type. A link is followed, as it was when the file was written."""
    target = os.path.realpath(plan.before.path)
    return shlex.join(["mv", str(backup), target] if backup else ["rm", target])
