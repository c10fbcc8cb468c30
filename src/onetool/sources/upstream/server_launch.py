"""The command, directory and environment of a local server.

Files in the working directory must not decide what a server of the user's settings runs. It starts
in a private directory; with `cwd: project` it starts in the working directory, and Python, npm and
uv ignore the files there. A server of a trusted project may run the code of the project, but npx
does not look for packages there.
"""

import shutil
from pathlib import Path, PurePath
from typing import NamedTuple

from onetool.processes.process import Variables
from onetool.settings.load import Loaded
from onetool.settings.model import Server
from onetool.settings.programs import (
    NPM,
    PROJECT,
    ignores_packages,
    imports_from_directory,
    private_directory,
    start_directory,
    uv_settings,
)

SAFE_PATH_VARIABLES = {
    "PYTHONSAFEPATH": "1"
}  # Python does not import from the directory it starts in
FALLBACK_DIRECTORY = Path("/")


class ServerLaunch(NamedTuple):
    """The parameters of a server process.

    `private` is its private directory, if it uses one; created on demand.
    """

    command: tuple[str, ...]
    directory: Path
    environment: Variables
    private: Path | None = None

    def has_program(self) -> bool:
        """Return whether the program exists; a path with a slash is relative to the start
        directory.
        """
        program = self.command[0]
        path = self.directory / program if "/" in program else program
        return shutil.which(path, path=self.environment.get("PATH")) is not None

    def prepare_directory(self) -> Path:
        """Create and return the start directory.

        If the home directory is not writable, return another one.
        """
        try:
            if self.private is not None:
                self.private.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            return FALLBACK_DIRECTORY if self.directory == self.private else self.directory
        return self.directory


def plan_launch(name: str, server: Server, loaded: Loaded, environment: Variables) -> ServerLaunch:
    """Return the parameters of the process of a server under these settings."""
    directory = start_directory(name, server, loaded)
    private = private_directory(name, loaded.directories)
    is_user_server = name in loaded.user_servers and not (
        server.cwd and Path(server.cwd).expanduser().is_absolute()
    )
    ignores_files = is_user_server or server.cwd == PROJECT
    variables = {**environment, **uv_settings(environment)}
    if directory != private and (ignores_files or not imports_from_directory(server, directory)):
        variables |= SAFE_PATH_VARIABLES
    command = str(server.command)
    if not (ignores_files or ignores_packages(server)):
        return ServerLaunch((command, *server.args), directory, {**variables, **server.env})
    # npm and npx read `.npmrc` and `node_modules/.bin` from the prefix only.
    options = ("--prefix", str(private)) if PurePath(command).name in NPM else ()
    return ServerLaunch(
        (command, *options, *server.args), directory, {**variables, **server.env}, private
    )
