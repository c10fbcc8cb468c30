"""How a local server is started: its command, its directory and its environment.

No file of the working directory decides what a server of the user's own settings runs. It starts in a private
directory; with `cwd: project` it starts in the working directory, and Python, npm and uv are told to ignore what is
there. A trusted project's server may run the project's own code, but a package that npx fetches is not looked for in
the project.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

from onetool.config.load import Loaded
from onetool.config.model import Server
from onetool.config.programs import (
    NPM,
    PROJECT,
    ignores_packages,
    imports_from_directory,
    private_directory,
    start_directory,
    uv_settings,
)

SAFE_PATH = {"PYTHONSAFEPATH": "1"}  # Python does not import from the directory it starts in
ELSEWHERE = Path("/")


@dataclass(frozen=True, slots=True)
class Launch:
    """`private` is the server's own directory, if it starts there or needs one; its first start creates it."""

    command: tuple[str, ...]
    directory: Path
    environment: Mapping[str, str]
    private: Path | None = None

    def has_program(self) -> bool:
        """Return whether the program is there; a path with a slash counts from the directory to start in."""
        program = self.command[0]
        found = self.directory / program if "/" in program else program
        return shutil.which(found, path=self.environment.get("PATH")) is not None

    def prepared_directory(self) -> Path:
        """Return the directory to start in, which exists. A home that cannot be written is no reason to fail."""
        try:
            if self.private is not None:
                self.private.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            return ELSEWHERE if self.directory == self.private else self.directory
        return self.directory


def launch_of(name: str, server: Server, loaded: Loaded, environment: Mapping[str, str]) -> Launch:
    """Decide how a server starts under these settings."""
    directory, private = start_directory(name, server, loaded), private_directory(name, loaded.folders)
    is_own = name in loaded.user_servers and not (server.cwd and Path(server.cwd).expanduser().is_absolute())
    ignores_files = is_own or server.cwd == PROJECT
    variables = {**environment, **uv_settings(environment)}
    if directory != private and (ignores_files or not imports_from_directory(server, directory)):
        variables |= SAFE_PATH
    own = private if ignores_files or ignores_packages(server) else None
    return Launch(_command(server, own), directory, {**variables, **server.env}, own)


def _command(server: Server, npm_prefix: Path | None) -> tuple[str, ...]:
    """Have npm and npx take `.npmrc` and `node_modules/.bin` from their prefix, not from where they start."""
    command = str(server.command)
    is_npm = PurePath(command).name in NPM
    return (command, *(("--prefix", str(npm_prefix)) if is_npm and npm_prefix else ()), *server.args)
