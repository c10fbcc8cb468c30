"""Start directories of upstream servers, the local files that they execute, and path protection.

A server of the user's settings starts in a private directory, so that files of the working
directory cannot influence it. A server of a trusted project starts in the project directory.

Tools may not read settings directories, trusted or not. They may not write what the server loads or
executes: extension directories, bundles, upstream programs, files of the working directory that
configure launchers, and the files from which assistants start programs.
"""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import pairwise
from pathlib import Path, PurePath
from typing import NamedTuple

from onetool.processes.daemon_connection import list_socket_directories
from onetool.settings.load import Loaded
from onetool.settings.model import Server
from onetool.settings.paths import (
    CONFIG,
    FOLDER,
    PROMPTS,
    SECRETS,
    Directories,
    extension_files,
    is_directory,
    resolve_path,
)
from onetool.util.logging import list_rotated

# the value of `cwd` that means the directory of the project, or else the working directory
PROJECT = "project"
PRIVATE = "servers"  # the directory of private directories, in the user's settings directory
# Options of launchers whose value is a directory with code, and variables that hold such
# directories.
CODE_OPTIONS = frozenset(
    {"--directory", "--project", "--from", "--with", "--with-editable", "--prefix"}
)
CODE_VARIABLES = (
    "PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH", "DYLD_INSERT_LIBRARIES", "PYTHONPATH",
    "PYTHONSTARTUP", "PYTHONHOME", "NODE_PATH", "RUBYLIB", "PERL5LIB", "CLASSPATH",
)  # fmt: skip
NPM = frozenset({"npm", "npx"})
DOWNLOAD_SECONDS = 120.0
PACKAGE_RUNNERS = frozenset({*NPM, "bunx", "pnpm", "pnpx", "yarn", "uv", "uvx"})
INTERPRETER = re.compile(
    r"(python|pypy|node|deno|bun|ruby|perl|php|java|lua)[\d.]*|tsx|ts-node|(ba|da|z|k|fi)?sh|make"
)
SHELL = re.compile(r"(ba|da|z|k|fi)?sh")
SHELL_TEXT = re.compile(r"-[a-z]*c|--command")
SUBCOMMANDS = frozenset({"run", "exec", "x", "tool", "dlx", "start"})
FLAGS = frozenset({
    "-y", "--yes", "-q", "--quiet", "--offline", "--prefer-offline", "-u", "-B", "-E", "-I", "-s", "-A",
})  # fmt: skip
# Files that a launcher reads in its start directory, and files that an interpreter executes in a
# given directory.
PROJECT_FILES = {
    **dict.fromkeys(("npm", "npx", "bun", "bunx", "pnpm", "pnpx", "yarn"), ("package.json",)),
    "deno": ("deno.json", "deno.jsonc", "package.json"),
    "uv": ("pyproject.toml", "uv.lock", "setup.py"),
    "make": ("GNUmakefile", "makefile", "Makefile"),
}
ENTRY_FILES = ("__main__.py", "package.json", "index.js")
NODE_SUFFIXES = (".js", ".mjs", ".cjs", ".json", ".node")
CODE_SUFFIXES = frozenset({
    ".py", ".pyw", ".pyz", ".js", ".cjs", ".mjs", ".ts", ".mts", ".cts", ".jsx", ".tsx", ".sh", ".bash", ".rb",
    ".pl", ".php", ".jar", ".lua", ".ps1", ".bat", ".cmd", ".exe", ".wasm",
})  # fmt: skip
NO_CONFIG = {"UV_NO_CONFIG": "1"}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,63}", re.ASCII)
_MODULE_OPTION = "-m"
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


def private_directory(name: str, directories: Directories) -> Path:
    """Return the private directory of the server with this name."""
    plain = name if _PLAIN_NAME.fullmatch(name) else sha256(name.encode()).hexdigest()[:32]
    return directories.user / PRIVATE / plain


def start_directory(name: str, server: Server, loaded: Loaded) -> Path:
    """Return the directory in which a server starts."""
    directories = loaded.directories
    if server.cwd is None and name in loaded.user_servers:
        return private_directory(name, directories)
    if server.cwd in {None, PROJECT}:
        return directories.root
    return resolve_path(server.cwd, directories.root, directories.home)


def imports_from_directory(server: Server, directory: Path) -> bool:
    """Return whether PYTHONSAFEPATH would hide a script or module that the server runs."""
    for word in server.args:
        script = _to_path(word, directory) if word.endswith((".py", ".pyw")) else None
        if script is not None and script.is_file():
            return True
    words = [str(server.command), *server.args]
    return any(_find_named_modules(words, directory))


def find_local_programs(
    server: Server, directory: Path, search_path: str | None = None
) -> list[Path]:
    """Return the paths whose content this server executes, as far as its settings name them.

    `search_path` is the PATH of the client, by default that of this process.
    """
    if server.command is None:
        return []
    words = [server.command, *server.args, *server.env.get("NODE_OPTIONS", "").split()]
    programs = [
        *_find_programs(server, directory, search_path),
        *_find_named_files(words, directory),
        *_find_named_modules(words, directory),
        *_find_shell_files(server, directory),
        *_find_code_directories(server, directory),
        *_find_scripts(server, directory),
    ]
    if not ignores_packages(server):
        names = PROJECT_FILES.get(PurePath(server.command).name, ())
        programs += [directory / name for name in names]
    directories = []
    for path in programs:
        if path.suffix.lower() in CODE_SUFFIXES:  # scripts import their neighbors
            directories.append(path.parent)
        environment = path.parent.parent
        if (environment / "pyvenv.cfg").is_file():  # a program in it loads all of it
            directories.append(environment)
    return list(dict.fromkeys([*programs, *directories]))


def ignores_packages(server: Server) -> bool:
    """Return whether npm downloads the server's program, so that local packages must not affect it.

    A server that names a directory with `cwd`, `--prefix` or a local package uses its packages.
    """
    name = PurePath(str(server.command)).name
    words = server.args
    is_fetched = name == "npx" or (name == "npm" and not {"exec", "x"}.isdisjoint(words[:1]))
    packages = _iterate_launch_words(words)
    is_local = any(package.startswith((".", "/", "~", "file:")) for package in packages)
    has_prefix = any(word.partition("=")[0] == "--prefix" for word in words)
    return is_fetched and not is_local and not has_prefix and server.cwd in {None, PROJECT}


def start_seconds(server: Server) -> float:
    """Return the server's start timeout. Package runners may have to download packages."""
    if PurePath(server.command or "").stem in PACKAGE_RUNNERS:
        return max(server.timeout, DOWNLOAD_SECONDS)
    return server.timeout


def uv_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that make uv read the user's configuration, and no file near its start."""
    home = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "")) / ".config"
    for file in (Path(home) / "uv" / "uv.toml", Path("/etc/uv/uv.toml")):
        if file.is_absolute() and file.is_file():
            return {**NO_CONFIG, "UV_CONFIG_FILE": str(file)}
    return dict(NO_CONFIG)


def _find_named_files(words: list[str], directory: Path) -> Iterator[Path]:
    """Yield existing files, and paths of programs that could be created later."""
    for word in words[1:]:
        name = word.partition("=")[2] if word.startswith("-") else word
        path = _to_path(name, directory)
        if path is None or is_directory(path):
            continue
        if path.suffix.lower() in CODE_SUFFIXES or path.is_file():
            yield path


def _find_shell_files(server: Server, directory: Path) -> Iterator[Path]:
    """Yield files that the text of `sh -c` names, also in directories that it names."""
    if not SHELL.fullmatch(PurePath(str(server.command)).name):
        return
    for option, text in pairwise(server.args):
        if not SHELL_TEXT.fullmatch(option):
            continue
        lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            words = ["", *lexer]
        except ValueError:  # an unclosed quote, which the shell rejects too
            words = ["", *text.split()]
        places = {directory: None}
        for word in words:
            place = _to_path(word, directory)
            if place is not None and is_directory(place):
                places[place] = None
        for place in places:
            yield from _find_named_files(words, place)
            yield from _find_named_modules(words, place)
            for word in words:
                path = _to_path(word, place) if "/" in word else None
                if path is not None and not is_directory(path):
                    yield path


def _find_programs(server: Server, directory: Path, search_path: str | None) -> Iterator[Path]:
    """Yield the server's program, and where its PATH could get another one of that name."""
    command = str(server.command)
    server_path = server.env.get("PATH", "")
    if "/" in command:
        yield from filter(None, [_to_path(command, directory)])
        return
    for search in (search_path, server_path or None):
        program = shutil.which(command, path=search)
        if program:
            yield Path(program)
    for entry in server_path.split(":"):
        place = _to_path(entry, directory)
        if place is not None:
            yield place / command


def _find_scripts(server: Server, directory: Path) -> Iterator[Path]:
    """Yield the files and directories that an interpreter or launcher executes."""
    command = PurePath(str(server.command)).name
    if command not in PACKAGE_RUNNERS and not INTERPRETER.fullmatch(command):
        return
    for word in _iterate_launch_words(server.args):
        path = _to_path(word, directory)
        if path is None or not ("/" in word or path.exists()):
            continue
        yield path
        if is_directory(path):
            yield from (path / name for name in ENTRY_FILES)
        elif command not in PACKAGE_RUNNERS:
            yield path.parent
            yield from (path.with_name(f"{path.name}{suffix}") for suffix in NODE_SUFFIXES)


def _iterate_launch_words(words: Sequence[str]) -> Iterator[str]:
    """Yield the values of options and the script, but not the arguments of the script."""
    for before, word in pairwise(["", *words]):
        if word.startswith("-"):
            yield from filter(None, [word.partition("=")[2]])
            continue
        yield word
        is_value = before.startswith("-") and "=" not in before and before not in FLAGS
        if before == _MODULE_OPTION or not (is_value or word in SUBCOMMANDS):
            return


def _find_named_modules(words: list[str], directory: Path) -> Iterator[Path]:
    """Yield modules that `python -m` finds in its start directory, which it searches first."""
    for option, module in pairwise(words):
        top = module.partition(".")[0]
        if option == _MODULE_OPTION and top.isidentifier():
            yield from filter(Path.exists, (directory / top, directory / f"{top}.py"))


def _find_code_directories(server: Server, directory: Path) -> Iterator[Path]:
    """Yield directories with code. Those in variables need not exist yet."""
    words: list[str] = []
    for word in server.args:
        words += word.split("=", 1) if word.startswith("--") else [word]
    for option, value in pairwise(words):
        path = _to_path(value, directory) if option in CODE_OPTIONS else None
        if path is not None and is_directory(path):
            yield path
    for name in CODE_VARIABLES:
        for entry in server.env.get(name, "").split(":"):
            yield from filter(None, [_to_path(entry, directory)])


def _to_path(text: str, directory: Path) -> Path | None:
    if not text or "\0" in text or "://" in text or len(text) > 4095:  # noqa: PLR2004 - PATH_MAX
        return None
    return resolve_path(text, directory, Path.home())


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
