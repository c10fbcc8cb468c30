"""Reads the settings at start and at each reload, and rejects changes that a reload must not make."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from onetool.config.load import Examined, Loaded, examine, load
from onetool.config.model import Settings
from onetool.config.trust import Snapshot, TrustDecision, compare_snapshots, late_change_problem, still_trusted
from onetool.errors import ConfigError, ToolError
from onetool.paths import FOLDER, Directories, find_directories
from onetool.problem import Location


def read_settings(
    env: Mapping[str, str], cwd: Path, config_file: Path | None = None, home: Path | None = None
) -> Loaded:
    """Return the settings from the files and environment variables of this machine."""
    return load(find_directories(env, cwd, config_file, home or Path.home()), env)


def examine_settings(
    env: Mapping[str, str], cwd: Path, config_file: Path | None = None, home: Path | None = None
) -> Examined:
    """Return the settings for checks, with the errors instead of raising them."""
    return examine(find_directories(env, cwd, config_file, home or Path.home()), env)


def validate_settings(values: Mapping[str, Any]) -> Settings:
    """Return the settings that a program passed as a mapping; raise ConfigError if they are invalid."""
    from pydantic import ValidationError

    try:
        return Settings.model_validate(dict(values))
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        problems = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found)
        raise ConfigError(f"invalid settings: {'; '.join(problems)}") from None


def wrap_settings(settings: Settings, directory: Path) -> Loaded:
    """Return settings that a program passed in, without reading files."""
    return Loaded(settings, {}, (), (), Directories(working_dir=Path.cwd(), user=directory))


class SettingsReader:
    """Reader of the settings. `examine` reads them for checks and is None if a program passed the settings in."""

    def __init__(
        self, read: Callable[[], Loaded], examine: Callable[[], Examined] | None, environment: Mapping[str, str]
    ) -> None:
        self._read, self._examine, self._environment = read, examine, environment
        self.has_files = examine is not None
        self._at_start: Snapshot | None = None  # of a project that only ONETOOL_TRUST=1 trusts

    def read_first(self) -> tuple[Loaded, ConfigError | None]:
        """Return the settings; if they are invalid, the defaults with the same directories, and the error."""
        try:
            loaded = self._read()
        except ConfigError as error:
            directories = self._examine().loaded.directories if self._examine is not None else None
            if (
                directories is None or directories.config_file is not None
            ):  # a mistyped --config names no directory to write to
                return wrap_settings(Settings(), Path.home() / FOLDER), error
            return Loaded(Settings(), {}, (), (), directories), error
        self._at_start = loaded.snapshot or {}
        return loaded, None

    def reread(self, old: Loaded, *, unasked: bool) -> Loaded:
        """Read the settings again.

        With `unasked`, for a reload that no user requested, raise if a settings file would no longer apply: the project
        directory lost its trust, or the file was deleted.
        """
        loaded = self._read()
        if loaded.snapshot is not None:
            self._reject_later_changes(loaded, loaded.snapshot)
        if unasked and old.directories.project is not None and loaded.directories.project is None:
            why = "\n".join(map(str, loaded.problems))
            raise ToolError(why or f"{old.directories.project} is no longer trusted")
        for gone in set(config_files(old)).difference(loaded.files) if unasked else ():
            raise ToolError(f"{gone} was deleted", hint="restore it, or run `onetool reload` to continue without it")
        return loaded

    def _reject_later_changes(self, loaded: Loaded, snapshot: Snapshot) -> None:
        """Raise if a project trusted by ONETOOL_TRUST=1 changed: a run must not write what a reload executes."""
        if self._at_start is None:  # the first settings that could be read
            self._at_start = snapshot
        assert loaded.directories.project is not None
        if changes := compare_snapshots(self._at_start, snapshot, loaded.directories.project):
            problem = late_change_problem(loaded.directories.project, changes)
            raise ConfigError(problem.message, hint=problem.hint, location=problem.location, code=problem.code)

    def still_trusted(self, loaded: Loaded) -> TrustDecision:
        return still_trusted(loaded.directories, self._environment, self._at_start)

    def examine(self, loaded: Loaded) -> Examined:
        """Return the current settings with their problems, or `loaded` if a program passed the settings in."""
        if self._examine is not None:
            return self._examine()
        return Examined(loaded, (), lambda loc: Location(".".join(map(str, loc))))


def config_files(loaded: Loaded) -> tuple[Path, ...]:
    """Return the settings files that were read; none if a program passed the settings in."""
    configured = (loaded.directories.config_path(layer) for layer in loaded.directories.layers)
    return tuple(path for path in configured if path in loaded.files)
