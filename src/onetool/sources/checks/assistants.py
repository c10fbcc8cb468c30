"""Checks of the assistants on this machine: which of them start OneTool, and whether the command
exists.
"""

import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from onetool.errors import ToolError
from onetool.settings.clients import text_files
from onetool.settings.clients.catalog import CLIENTS, Client, Machine
from onetool.settings.clients.client_servers import parse_settings
from onetool.settings.clients.text_files import value_at
from onetool.settings.paths import Directories
from onetool.util.problem import OK, WARNING, Location, Problem
from onetool_child.json_types import JsonMapping


def problems(directories: Directories, environment: Mapping[str, str]) -> list[Problem]:
    machine = Machine(sys.platform, environment, directories.home, directories.working_dir)
    found = [
        each
        for client in CLIENTS.values()
        for file in client.locate_files(machine)
        for each in _check_file(client, file, machine)
    ]
    hint = f"onetool connect CLIENT --write   ({', '.join(CLIENTS)})"
    return found or [Problem("no assistant is connected", hint, level=OK)]


def _check_file(client: Client, file: Path, machine: Machine) -> Iterator[Problem]:
    if not file.exists():
        return
    try:
        entry = value_at(parse_settings(text_files.read(file)), client.path)
    except ToolError as error:
        location = error.fields.get("location") or Location(str(file))
        yield Problem(f"{client.title}: {error.message}", error.hint, location, level=WARNING)
        return
    if isinstance(entry, Mapping):
        yield _check_entry(client, file, entry, machine)


def _check_entry(client: Client, file: Path, entry: JsonMapping, machine: Machine) -> Problem:
    scope = "" if file == client.locate_user_file(machine) else " --project"
    reconnect = f"onetool connect {client.name}{scope} --write"
    command = entry.get("command")
    env = entry.get("env")
    directory = env.get("OT_CWD") if isinstance(env, Mapping) else None
    if isinstance(command, str) and shutil.which(command, path=machine.env.get("PATH")) is None:
        what = f"{client.title} starts {command}, which does not exist ({file})"
        return Problem(what, reconnect, Location(str(file)))
    if isinstance(directory, str) and not Path(directory).is_dir():
        what = f"{client.title} starts OneTool in {directory}, which is not a directory ({file})"
        return Problem(what, f"{reconnect} --folder {machine.working_dir}", Location(str(file)))
    return Problem(f"{client.title} is connected ({file})", level=OK)
