"""Computes from the settings which paths tools may not read and which they may not write.

Settings directories are hidden, trusted or not. Everything that the server loads or executes is
protected: extension directories, bundles, programs of upstream servers, files of the working
directory that configure launchers, and the files from which assistants start programs.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from onetool.processes.daemon_client import list_socket_directories
from onetool.settings.load import Loaded
from onetool.settings.paths import (
    CONFIG,
    FOLDER,
    PROMPTS,
    SECRETS,
    Directories,
    extension_files,
    resolve_path,
)
from onetool.settings.programs import find_local_programs, start_directory
from onetool.util.logging import list_rotated

PROCESSES = "/proc"  # the environment of every process can be read there
# Private files of OneTool in a settings directory that may contain other files too.
HIDDEN = (SECRETS, "trust.json", "logs", "stats", "tmp", "cache", "runs", "state")
PROTECTED = (PROMPTS, "agents", "tools", "bundles", "environments")
PACKAGES = ("onetool", "onetool_child")
# uv, npm, their relatives and the programs of `test.run` read or execute these in the directory in
# which they start.
LAUNCHER_FILES = (
    "pyproject.toml", "setup.py", "setup.cfg", "uv.toml", "uv.lock", ".python-version", ".python-versions", ".venv",
    "package.json", "package-lock.json", ".npmrc", "bunfig.toml", ".yarnrc", ".yarnrc.yml", ".pnpmfile.cjs",
    "pnpm-workspace.yaml", "deno.json", "deno.jsonc", "node_modules",
    "pytest.ini", ".pytest.ini", "tox.ini", "mix.exs",
)  # fmt: skip
# Assistants and editors start the programs that these name, in any directory in which they are
# opened.
ASSISTANT_NAMES = (
    ".mcp.json", "mcp.json", ".claude", ".claude.json", "claude_desktop_config.json", ".cursor", ".vscode", ".codex",
    ".gemini", ".windsurf", "mcp_config.json", ".zed",
)  # fmt: skip


class Protection(NamedTuple):
    """Paths that tools may not access.

    `names` are hidden in every directory, and `protected_names` are protected there; `hidden` and
    `protected` are absolute paths that include their contents. `pack_directories` contain the
    working directory, so only the packs in them are protected.
    """

    names: tuple[str, ...]
    hidden: tuple[str, ...]
    protected: tuple[str, ...]
    pack_directories: tuple[str, ...] = ()
    protected_names: tuple[str, ...] = ASSISTANT_NAMES


def compute_protection(loaded: Loaded) -> Protection:
    """Return the paths that tools must not access under these settings."""
    directories = loaded.directories
    audit = resolve_path(loaded.settings.audit.file, directories.data, directories.home)
    hidden = [
        Path(PROCESSES),
        audit,
        *list_rotated(audit, loaded.settings.audit.keep),
        *_find_hidden_settings(directories),
        *map(Path, list_socket_directories(loaded.environment)),
    ]
    protected = [
        path
        for path in _find_executed_paths(loaded)
        if not _contains(path, directories.working_dir)
    ]
    around = [
        path
        for path in directories.pack_directories(loaded.settings.tools_dir)
        if _contains(path, directories.working_dir)
    ]
    return Protection((FOLDER,), _to_strings(hidden), _to_strings(protected), _to_strings(around))


def _find_hidden_settings(directories: Directories) -> Iterator[Path]:
    """Yield settings files outside of directories named `.onetool`, which are hidden by name."""
    yield directories.user
    project = directories.working_dir / FOLDER
    if not _contains(project, directories.working_dir):  # it may be a link to another place
        yield project
    if directories.config_file is not None:
        directory = directories.config_file.parent
        yield from (
            directories.config_file,
            directory / CONFIG,
            *(directory / name for name in HIDDEN),
        )


def _find_executed_paths(loaded: Loaded) -> Iterator[Path]:
    directories = loaded.directories
    settings = loaded.settings
    if directories.config_file is not None:
        yield from (directories.config_file.parent / name for name in PROTECTED)
    yield resolve_path(settings.bundles.dir, directories.data, directories.home)
    for directory in directories.pack_directories(loaded.settings.tools_dir):
        yield from (directory, *_find_pack_paths(directory))
    for start in dict.fromkeys((directories.working_dir, directories.root)):
        yield from (start / name for name in LAUNCHER_FILES)
    yield from (Path(sys.prefix), *(Path(__file__).parents[2] / package for package in PACKAGES))
    for name, server in settings.servers.items():
        directory = start_directory(name, server, loaded)
        yield from find_local_programs(server, directory, loaded.environment.get("PATH"))


def _find_pack_paths(directory: Path) -> Iterator[Path]:
    """Yield every pack of a directory and the targets of its links, which can be executed."""
    packs = dict.fromkeys(file.parent for file in extension_files(directory))
    yield from packs
    yield from (
        Path(os.path.realpath(entry)) for entry in directory.glob("*") if entry.is_symlink()
    )
    for pack in packs:
        for parent, directories, files in os.walk(pack):
            for entry in (Path(parent, name) for name in (*directories, *files)):
                if entry.is_symlink():
                    real = Path(os.path.realpath(entry))
                    yield from (real, real.parent) if real.suffix == ".py" else (real,)


def _contains(path: Path, working_dir: Path) -> bool:
    """Return whether the path contains the working directory, which must stay usable."""
    real = Path(os.path.realpath(path))
    working = Path(os.path.realpath(working_dir))
    return working.is_relative_to(real) or working_dir.is_relative_to(path)


def _to_strings(paths: Iterable[Path]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(str, paths)))
