"""Checks of the assistants on this machine: which of them start OneTool, and whether the command exists."""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from onetool.clients import files, json_edit, toml_edit
from onetool.clients.catalogue import CLIENTS, Client, Place
from onetool.clients.edits import value_at
from onetool.errors import ToolError
from onetool.paths import Folders
from onetool.problem import OK, WARNING, Location, Problem


def problems(folders: Folders) -> list[Problem]:
    place = Place(sys.platform, os.environ, folders.home, folders.working_dir)
    found = [
        each for client in CLIENTS.values() for file in client.files(place) for each in _in_file(client, file, place)
    ]
    hint = f"onetool connect CLIENT --write   ({', '.join(CLIENTS)})"
    return found or [Problem("no assistant is connected", hint, level=OK)]


def _in_file(client: Client, file: Path, place: Place) -> Iterator[Problem]:
    if not file.exists():
        return
    try:
        entry = _entry(client, files.read(file))
    except ToolError as error:
        where = error.fields.get("location") or Location(str(file))
        yield Problem(f"{client.title}: {error.message}", error.hint, where, level=WARNING)
        return
    if isinstance(entry, Mapping):
        yield _check(client, file, entry, place)


def _entry(client: Client, read: files.Read) -> Any:
    parse = toml_edit.parse if read.path.suffix == ".toml" else json_edit.parse
    return value_at(parse(read.text, str(read.path)), client.path)


def _check(client: Client, file: Path, entry: Mapping[str, Any], place: Place) -> Problem:
    scope = "" if file == client.user(place) else " --project"
    again = f"onetool connect {client.name}{scope} --write"
    command, env = entry.get("command"), entry.get("env")
    folder = env.get("OT_CWD") if isinstance(env, Mapping) else None
    if isinstance(command, str) and shutil.which(command) is None:
        what = f"{client.title} starts {command}, which does not exist ({file})"
        return Problem(what, again, Location(str(file)))
    if isinstance(folder, str) and not Path(folder).is_dir():
        what = f"{client.title} starts OneTool in {folder}, which is not a directory ({file})"
        return Problem(what, f"{again} --folder {place.working_dir}", Location(str(file)))
    return Problem(f"{client.title} is connected ({file})", level=OK)
