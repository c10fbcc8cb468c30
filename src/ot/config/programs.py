"""Where the servers of the settings start, and which local files they execute.

A server of the user's own settings starts in a private directory, so that no file of the working directory decides
what it runs. A server of a trusted project starts in the working directory.
"""

import re
import shutil
from collections.abc import Iterator, Mapping
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

from ot.config.load import Loaded
from ot.config.model import Server
from ot.paths import Folders, is_folder, placed

PROJECT = "project"  # the value of `cwd` that means the working directory
PRIVATE = "servers"  # the directory of private directories, in the user's settings directory
# Options of launchers whose value is a directory with code, and variables that hold such directories.
CODE_OPTIONS = frozenset({"--directory", "--project", "--from", "--with", "--with-editable", "--prefix"})
CODE_VARIABLES = ("PYTHONPATH", "NODE_PATH", "PYTHONSTARTUP", "PYTHONHOME", "RUBYLIB", "PERL5LIB", "CLASSPATH")
CODE_SUFFIXES = frozenset({
    *(".py", ".pyw", ".pyz", ".js", ".cjs", ".mjs", ".ts", ".mts", ".cts", ".jsx", ".tsx", ".sh", ".bash", ".rb"),
    *(".pl", ".php", ".jar", ".lua", ".ps1", ".bat", ".cmd", ".exe", ".wasm"),
})  # fmt: skip
NO_CONFIG = {"UV_NO_CONFIG": "1"}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,63}", re.ASCII)
_MODULE_OPTION = "-m"


def private_directory(name: str, folders: Folders) -> Path:
    """Return the directory that belongs to the server of this name alone."""
    plain = name if _PLAIN_NAME.fullmatch(name) else sha256(name.encode()).hexdigest()[:32]
    return folders.user / PRIVATE / plain


def start_directory(name: str, server: Server, loaded: Loaded) -> Path:
    """Return the directory in which a server starts."""
    folders = loaded.folders
    if server.cwd is None:
        return private_directory(name, folders) if name in loaded.user_servers else folders.working_dir
    if server.cwd == PROJECT:
        return folders.working_dir
    return placed(server.cwd, folders.working_dir, folders.home)


def imports_from_directory(server: Server, directory: Path) -> bool:
    """Return whether Python would not find this server's code with PYTHONSAFEPATH: a script, or a module here."""
    words = [str(server.command), *server.args]
    scripts = (_placed(word, directory) for word in server.args if word.endswith((".py", ".pyw")))
    return any(script and script.is_file() for script in scripts) or any(_named_modules(words, directory))


def local_programs(server: Server, directory: Path) -> list[Path]:
    """Return the paths whose content this server executes, as far as its settings name them."""
    if server.command is None:
        return []
    words = [server.command, *server.args]
    found = [*_named_files(words, directory), *_named_modules(words, directory), *_code_directories(server, directory)]
    around = [path.parent for path in found if path.suffix.lower() in CODE_SUFFIXES]  # a script loads what is beside it
    return list(dict.fromkeys([*found, *around, *_environments(found)]))


def uv_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Have uv read the person's own configuration and none of the directory it starts in, nor of those above."""
    home = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "")) / ".config"
    files = [Path(home) / "uv" / "uv.toml", Path("/etc/uv/uv.toml")]
    known = next((str(file) for file in files if file.is_absolute() and file.is_file()), None)
    return {**NO_CONFIG, **({"UV_CONFIG_FILE": known} if known else {})}


def _named_files(words: list[str], directory: Path) -> Iterator[Path]:
    """Yield files that exist, and programs that somebody could still create."""
    yield from (path for word in words[:1] if (path := _program(word, directory)))
    for word in words[1:]:
        path = _placed(word.partition("=")[2] if word.startswith("-") else word, directory)
        if path is not None and (path.suffix.lower() in CODE_SUFFIXES or path.is_file()) and not is_folder(path):
            yield path


def _program(command: str, directory: Path) -> Path | None:
    if "/" in command:
        return _placed(command, directory)
    found = shutil.which(command)
    return Path(found) if found else None


def _named_modules(words: list[str], directory: Path) -> Iterator[Path]:
    """`python -m name` looks into its own directory first."""
    for option, module in pairwise(words):
        top = module.partition(".")[0]
        if option == _MODULE_OPTION and top.isidentifier():
            yield from (path for path in (directory / top, directory / f"{top}.py") if path.exists())


def _code_directories(server: Server, directory: Path) -> Iterator[Path]:
    words = [part for word in server.args for part in (word.split("=", 1) if word.startswith("--") else [word])]
    texts = [value for option, value in pairwise(words) if option in CODE_OPTIONS]
    texts += [part for name in CODE_VARIABLES for part in server.env.get(name, "").split(":")]
    for text in texts:
        path = _placed(text, directory)
        if path is not None and is_folder(path):
            yield path


def _environments(found: list[Path]) -> Iterator[Path]:
    """A program in a virtual environment loads all of it."""
    for path in found:
        if (path.parent.parent / "pyvenv.cfg").is_file():
            yield path.parent.parent


def _placed(text: str, directory: Path) -> Path | None:
    if not text or "\0" in text or "://" in text or len(text) > 4095:  # noqa: PLR2004 - the longest path
        return None
    return placed(text, directory, Path.home())
