"""Which project folders a person trusts, and whether what they looked at is still what lies there.

A trusted folder is remembered with a fingerprint of all in it that can run code or grant rights. What only
changes how things look is left out, and so is the inside of extension files: a person edits those all day.
Whether the configuration is right is not asked here.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from ot import atomic, paths, yaml12
from ot.errors import ConfigError
from ot.locks import locked
from ot.newer import Newer, refuse_newer

STORE = "trust.json"
VERSION = 1
PRESENTATIONAL = frozenset({"version", "aliases", "snippets", "prompts", "output", "stats", "docs_url", "log_level"})


@dataclass(frozen=True, slots=True)
class Verdict:
    trusted: bool
    problems: tuple[str, ...] = ()


def is_trusted(project: Path, user_folder: Path, env: Mapping[str, str]) -> bool:
    return judge(project, user_folder, env).trusted


def judge(project: Path, user_folder: Path, env: Mapping[str, str]) -> Verdict:
    """Whether a project folder may be used and, where it may not, what to tell the person."""
    if env.get("ONETOOL_TRUST") == "1" or _key(project) == _key(user_folder):
        return Verdict(trusted=True)
    try:
        known, problems = _read_store(user_folder)
    except Newer as error:
        return Verdict(False, (f"{project} is not trusted and was ignored: {error.message}",))
    # Nothing of a folder that nobody vouched for is read, not even to compare it.
    if _key(project) not in known:
        return Verdict(False, (*problems, f"{project} is not trusted and was ignored: {_advice(project)}"))
    if known[_key(project)] != fingerprint(project, user_folder.parent):
        reason = "has changed since it was trusted (servers, agents, rights or new extension files)"
        return Verdict(False, (f"{project} {reason} and was ignored: {_advice(project)}",))
    return Verdict(trusted=True)


def still_trusted(folders: paths.Folders, env: Mapping[str, str]) -> Verdict:
    """Whether a project folder that is in use may still be used; one whose configuration a person named always may."""
    if folders.project is None or not folders.trusted or folders.config_file is not None:
        return Verdict(trusted=True)
    return judge(folders.project, folders.user, env)


def trust(project: Path, user_folder: Path) -> None:
    with _locked(user_folder):
        known, _ = _read_store(user_folder)
        _write_store(user_folder, {**known, _key(project): fingerprint(project, user_folder.parent)})


def untrust(project: Path, user_folder: Path) -> bool:
    """Forget the folder; False where it was not known."""
    with _locked(user_folder):
        known, _ = _read_store(user_folder)
        if known.pop(_key(project), None) is None:
            return False
        _write_store(user_folder, known)
        return True


def fingerprint(project: Path, home: Path) -> str:
    config = _content(project / paths.CONFIG)
    facts = {
        "config": _without_presentation(config),
        "agents": {file.name: _content(file) for file in paths.agent_files(project)},
        "extensions": [_names_in(tools) for tools in _tools_folders(config, project, home)],
    }
    return sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _content(path: Path) -> Any:
    try:
        return yaml12.read_file(path).data
    except FileNotFoundError:
        return None
    except ConfigError as error:  # it cannot be loaded as it is, and once mended it counts as changed
        return f"unreadable: {error}"


def _without_presentation(config: Any) -> Any:
    if not isinstance(config, dict):
        return config
    return {key: value for key, value in config.items() if key not in PRESENTATIONAL}


def _tools_folders(config: Any, project: Path, home: Path) -> Iterator[Path]:
    yield project / "tools"
    more = config.get("tools_dir") if isinstance(config, dict) else None
    for folder in more if isinstance(more, list) else []:
        yield paths.placed(str(folder), project, home)


def _names_in(tools: Path) -> list[str]:
    return [str(file.relative_to(tools)) for file in paths.extension_files(tools)]


def _key(folder: Path) -> str:
    return os.path.realpath(folder)


def _advice(project: Path) -> str:
    return f"look at what it holds, then type `onetool trust` in {project.parent}"


def _read_store(user_folder: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """The folders with their fingerprints, and what is wrong with the file. One of a newer OneTool raises."""
    path = user_folder / STORE
    try:
        known = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}, ()
    except (OSError, ValueError, RecursionError):
        known = None
    if isinstance(known, dict) and "version" in known:  # before there were versions, the folders stood there alone
        refuse_newer(known["version"], VERSION, path)
        known = known.get("folders")
    if isinstance(known, dict) and all(isinstance(value, str) for value in known.values()):
        return known, ()
    return {}, (f"{path} is damaged, so that no project folder is trusted: delete it, then type `onetool trust`",)


def _write_store(user_folder: Path, known: Mapping[str, str]) -> None:
    data = {"version": VERSION, "folders": known}
    atomic.write(user_folder / STORE, json.dumps(data, indent=2, sort_keys=True), durable=True)


def _locked(user_folder: Path) -> AbstractContextManager[None]:
    """Only one process at a time changes the store."""
    user_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return locked(user_folder / f"{STORE}.lock")
