"""The assistants on this machine: which of them start OneTool, and whether what they start is there."""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ot.checks.finding import WARNING, Finding, ok, problem, told
from ot.clients import files, jsonc, toml_edit
from ot.clients.catalogue import CLIENTS, Client, Place
from ot.errors import ToolError
from ot.paths import Folders


def findings(folders: Folders) -> list[Finding]:
    place = Place(sys.platform, os.environ, folders.home, folders.working_dir)
    found = [
        each for client in CLIENTS.values() for file in client.files(place) for each in _in_file(client, file, place)
    ]
    return found or [ok("no assistant is connected yet", f"onetool connect CLIENT --write   ({', '.join(CLIENTS)})")]


def _in_file(client: Client, file: Path, place: Place) -> Iterator[Finding]:
    if not file.exists():
        return
    try:
        entry = _entry(client, files.read(file))
    except ToolError as error:
        yield told(WARNING, f"{client.title}: {error.message}")
        return
    if isinstance(entry, Mapping):
        yield _judged(client, file, entry, place)


def _entry(client: Client, read: files.Read) -> Any:
    data: Any
    if read.path.suffix == ".toml":
        data = toml_edit.parse(read.text, str(read.path))
    else:
        root = jsonc.parse(read.text, str(read.path))
        data = {} if root is None else root.data
    for key in client.path:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def _judged(client: Client, file: Path, entry: Mapping[str, Any], place: Place) -> Finding:
    scope = "" if file == client.user(place) else " --project"
    again = f"onetool connect {client.name}{scope} --write"
    command, folder = entry.get("command"), _folder(entry)
    if isinstance(command, str) and shutil.which(command) is None:
        return problem(f"{client.title} is to start {command}, which is not there ({file})", again)
    if folder is not None and not Path(folder).is_dir():
        what = f"{client.title} is to start OneTool in {folder}, which is no folder ({file})"
        return problem(what, f"{again} --folder {place.working_dir}")
    return ok(f"{client.title} is connected ({file})")


def _folder(entry: Mapping[str, Any]) -> str | None:
    env = entry.get("env")
    folder = env.get("OT_CWD") if isinstance(env, Mapping) else None
    return folder if isinstance(folder, str) else None
