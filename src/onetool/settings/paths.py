"""Locate the working directory, the user's settings directory and the project's settings directory.

Paths are computed from the arguments; nothing is created. A directory whose settings file the user
named is trusted; `onetool.settings.trust` decides about any other project directory.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from os.path import commonpath, lexists, realpath
from pathlib import Path

FOLDER = ".onetool"
CONFIG = "onetool.yaml"
PROMPTS = "prompts.yaml"
SECRETS = "secrets.yaml"
PROJECTS = "projects"


@dataclass(frozen=True, slots=True)
class Directories:
    """The directories in use.

    `project` is None if there is none or if it would be the user's directory.

    It is in the working directory, or in a parent inside the same repository.
    """

    working_dir: Path
    user: Path
    project: Path | None = None
    config_file: Path | None = None
    trusted: bool = False

    @property
    def data(self) -> Path:
        """Return the directory of results, statistics, logs and bundles."""
        return self.layers[-1]

    @property
    def private(self) -> Path:
        """Return the directory of what a person has decided: approvals and grants, accepted tools
        and snippets.

        For a project, it is in the user's directory, because a cloned repository could contain such
        files.
        """
        if self.config_file is not None or self.data == self.user:
            return self.data
        return (
            self.user
            / PROJECTS
            / sha256(realpath(self.data).encode("utf-8", "surrogateescape")).hexdigest()[:32]
        )

    @property
    def root(self) -> Path:
        """Return the directory to which settings with paths refer: the project's, or else the
        working directory.
        """
        is_in_use = self.project is not None and self.trusted and self.config_file is None
        return self.project.parent if self.project is not None and is_in_use else self.working_dir

    @property
    def layers(self) -> tuple[Path, ...]:
        """Return the settings directories in use, lowest precedence first."""
        if self.project is None or not self.trusted:
            return (self.user,)
        return (self.user, self.project)

    @property
    def home(self) -> Path:
        return self.user.parent

    def config_path(self, directory: Path) -> Path:
        if self.config_file is not None and _same(self.config_file.parent, directory):
            return self.config_file
        return directory / CONFIG

    def pack_directories(self, tools_dir: Iterable[str]) -> list[Path]:
        """Return the directories of extension packs: the project's, the user's, then those of the
        settings.
        """
        configured = (resolve_path(text, self.working_dir, self.home) for text in tools_dir)
        return [*(layer / "tools" for layer in reversed(self.layers)), *configured]

    def find(self, name: str) -> Path | None:
        """Return the file with this name from the project's directory, or else from the user's."""
        candidates = (directory / name for directory in reversed(self.layers))
        return next((path for path in candidates if path.exists()), None)


def find_directories(
    env: Mapping[str, str], cwd: Path, config_file: Path | None, home: Path
) -> Directories:
    working_dir = resolve_path(env.get("OT_CWD", ""), cwd, home)
    user = home / FOLDER
    named = str(config_file) if config_file is not None else env.get("ONETOOL_CONFIG", "")
    file = resolve_path(named, cwd, home) if named else None
    project = file.parent if file is not None else _find_project(working_dir, user)
    if _same(project, user) or not (file or is_directory(project)):
        return Directories(working_dir, user, None, file)
    return Directories(working_dir, user, project, file, trusted=file is not None)


def _find_project(working_dir: Path, user: Path) -> Path:
    """Return the nearest `.onetool`, in the working directory or its parents up to the root of the
    repository.
    """
    directories = [working_dir, *Path(realpath(working_dir)).parents]
    root = next(
        (index for index, directory in enumerate(directories) if lexists(directory / ".git")), 0
    )
    projects = [directory / FOLDER for directory in directories[: root + 1]]
    found = (project for project in projects if is_directory(project) and not _same(project, user))
    return next(found, projects[0])


def resolve_path(text: str, base: Path, home: Path) -> Path:
    """Return the path for a user's input: expand `~` and resolve relative paths against `base`."""
    if text == "~" or text.startswith("~/"):
        return home / text[2:]
    return base / text


def is_inside(path: Path, directory: Path) -> bool:
    """Return whether a path leads to the directory or into it. Links are followed."""
    inside = realpath(directory)
    try:
        return commonpath([inside, realpath(path)]) == inside
    except ValueError:  # not a valid path
        return False


def agent_files(directory: Path) -> tuple[Path, ...]:
    found = (
        path for pattern in ("*.yml", "*.yaml") for path in (directory / "agents").glob(pattern)
    )
    return tuple(sorted(path for path in found if not path.name.startswith(".")))


def extension_files(tools: Path) -> tuple[Path, ...]:
    """Return the extension files in a directory of packs, such as `.onetool/tools`, and in its
    subdirectories.
    """
    found = (file for pattern in ("*_tools.py", "*/*_tools.py") for file in tools.glob(pattern))
    return tuple(sorted(file for file in found if not file.name.startswith(".")))


def is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a directory without access permission
        return False


def _same(one: Path, other: Path) -> bool:
    return realpath(one) == realpath(
        other
    )  # unlike Path.resolve, it does not raise for a link loop
