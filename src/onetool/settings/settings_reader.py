"""Reads the settings at start and at each reload, and rejects changes that a reload must not make."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from onetool.errors import ConfigError, StorageError
from onetool.settings.contents import (
    NOTHING_STORED,
    SettingsContents,
    SettingsStorage,
    StoredSettings,
    stamp_files,
)
from onetool.settings.layers import STORED_CONFIG, STORED_SECRETS, STORED_SECTIONS
from onetool.settings.load import Examined, Loaded, examine
from onetool.settings.model import Settings
from onetool.settings.paths import FOLDER, Directories, find_directories, is_directory
from onetool.settings.sections import Loc
from onetool.settings.trust import (
    Snapshot,
    TrustDecision,
    changes_since_trusted,
    check_trust,
    compare_snapshots,
    late_change_problem,
    still_trusted,
)
from onetool.util import yaml_loader
from onetool.util.problem import MAX_LISTED_PROBLEMS, UNTRUSTED, Location
from onetool_child.json_types import JsonMapping, JsonObject

RESTORE = "restore it, or run `onetool reload` to continue without it"


def read_settings(
    env: Mapping[str, str], cwd: Path, config_file: Path | None = None, home: Path | None = None
) -> Loaded:
    """Return the settings from the files and environment variables of this machine."""
    return examine_settings(env, cwd, config_file, home).require()


def examine_settings(
    env: Mapping[str, str], cwd: Path, config_file: Path | None = None, home: Path | None = None
) -> Examined:
    """Return the settings for checks, with the errors instead of raising them."""
    return examine(find_directories(env, cwd, config_file, home or Path.home()), env)


def validate_settings(values: JsonMapping) -> Settings:
    """Return the settings that a program passed as a mapping; raise ConfigError if they are
    invalid.
    """
    from pydantic import ValidationError

    try:
        return Settings.model_validate(dict(values))
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        problems = [
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}"
            for each in found[:MAX_LISTED_PROBLEMS]
        ]
        more = f"; and {len(found) - len(problems):,} more" if len(found) > len(problems) else ""
        raise ConfigError(f"invalid settings: {'; '.join(problems)}{more}") from None


def wrap_settings(settings: Settings, directory: Path | None = None) -> Loaded:
    """Return settings that a program passed in, without reading files.

    `directory` is the data directory.
    """
    user = Path.home() / FOLDER if directory is None else directory
    return Loaded(settings, {}, (), (), Directories(working_dir=Path.cwd(), user=user))


def apply_stored(
    loaded: Loaded, stored: StoredSettings, files: SettingsContents | None = None
) -> Examined:
    """Return the settings with those in the store over the files, which may have been read already."""
    if stored == NOTHING_STORED:
        return Examined(loaded, (), _locate_key, files or SettingsContents())
    examined = examine(loaded.directories, loaded.environment, stored=stored, files=files)
    read = replace(
        examined.loaded, problems=loaded.problems, snapshot=loaded.snapshot, stamp=loaded.stamp
    )
    return replace(examined, loaded=read)


class SettingsReader:
    """Reader of the settings.

    `examine` reads the files; without it, a program passes the settings with `read`.

    With a store, the settings there are over the files once `join` was called. Before, and if they
    cannot be read, no agent may call anything. Settings in the store that are invalid here do not
    take effect: the last valid ones stay, or those of the files at first, and what the invalid ones
    change is denied.
    """

    def __init__(
        self,
        read: Callable[[], Loaded] | None,
        examine: Callable[[], Examined] | None,
        environment: Mapping[str, str],
    ) -> None:
        self._read = read
        self._examine = examine
        self._environment = environment
        self.has_files = examine is not None
        self._first_files: SettingsContents | None = (
            None  # as they were read for the first settings
        )
        self._at_start: Snapshot | None = None  # of a project that only ONETOOL_TRUST=1 trusts
        self._storage: SettingsStorage | None = None
        self._store = ""  # the store of the settings that the storage belongs to
        self._seen: StoredSettings | None = NOTHING_STORED  # what was read from the storage last
        self._valid: tuple[Loaded, StoredSettings] | None = (
            None  # the last valid settings with those in the store
        )

    def join(self, storage: SettingsStorage, store: str) -> bool:
        """Use the settings in this store from now on.

        Return whether that is another one than before.
        """
        if storage is self._storage:
            return False
        self._storage = storage
        self._store = store
        self._valid = None
        return True

    @property
    def is_outdated(self) -> bool:
        """Whether a replica has changed the settings in the store since they were read here."""
        return self.has_files and self.get_stored() not in {None, self._seen}

    def get_stored(self) -> StoredSettings | None:
        """Return the settings in the store; None if they are not known."""
        try:
            return self._storage.get() if self._storage else NOTHING_STORED
        except StorageError:
            return None

    def _get_stored_over(self, loaded: Loaded) -> StoredSettings | None:
        """Return the settings in the store; None before `join` was called with the store of these
        settings.
        """
        is_joined = (loaded.settings.store or "") == self._store
        return self.get_stored() if is_joined else None

    # --- reading ----------------------------------------------------------------------------------

    def read(self) -> Examined:
        """Return what the files say now, with the settings in the store over them.

        Each file is read once.
        """
        examined = self._read_files()
        if not self.has_files:
            return examined
        return replace(examined, loaded=self._add_stored(examined))

    def _read_files(self) -> Examined:
        if self._read is None:
            assert self._examine is not None
            return self._examine()
        try:
            return Examined(self._read(), (), _locate_key)
        except ConfigError:
            if self._examine is None:
                raise
            return self._examine()

    def read_first(self) -> Loaded:
        """Return the settings; if they are invalid, the defaults with the same directories, and the
        error.
        """
        try:
            examined = self.read()
            loaded = examined.require()
        except ConfigError as error:
            return replace(self._use_defaults(), error=error)
        self._at_start = loaded.snapshot or {}
        self._first_files = examined.files
        return loaded

    def take_first_files(self, directories: Directories) -> SettingsContents | None:
        """Return the files as they were read at first, so that a command reads them once; None if
        they differ now.

        They are returned once.
        """
        files = self._first_files
        self._first_files = None
        is_current = files is not None and files.take_stamp(directories) == stamp_files(directories)
        return files if is_current else None

    def _use_defaults(self) -> Loaded:
        loaded = None if self._examine is None else self._examine().loaded
        if loaded is None or loaded.directories.config_file is not None:
            # A mistyped --config names no directory to write to.
            loaded = wrap_settings(Settings())
            return replace(loaded, stamp=stamp_files(loaded.directories))
        return Loaded(Settings(), {}, (), (), loaded.directories, loaded.stamp)

    def reread(self, old: Loaded, examined: Examined | None = None, *, unasked: bool) -> Loaded:
        """Return the settings for a reload, as they were just read, or read now.

        Raise ConfigError if they are invalid.

        Raise if a project would be dropped because it changed since a person trusted it. With
        `unasked`, for a reload that no person requested, also raise if it is no longer trusted at
        all, or if a settings file was deleted.
        """
        loaded = (examined or self.read()).require()
        if loaded.snapshot is not None:
            self._reject_later_changes(loaded, loaded.snapshot)
        project = old.directories.project
        if project is not None and loaded.directories.project is None:
            is_recorded = (
                is_directory(project)
                and changes_since_trusted(project, old.directories.user) is not None
            )
            if unasked or is_recorded:
                raise _untrusted_error(project, loaded)
        for gone in set(config_files(old)).difference(loaded.files) if unasked else ():
            raise ConfigError(f"{gone} was deleted", hint=RESTORE)
        return loaded

    def accept_edit(self, loaded: Loaded, files: SettingsContents, old: Loaded) -> Loaded:
        """Return the settings after an edit by this process, which has read and validated them."""
        directories = loaded.directories
        if directories.project is not None and directories.config_file is None:
            decision = check_trust(directories.project, directories.user, self._environment, files)
            if not decision.trusted:
                return self.reread(old, unasked=False)
            if decision.snapshot is not None:
                if not check_trust(directories.project, directories.user, {}, files).trusted:
                    self._reject_later_changes(loaded, decision.snapshot)
                self._at_start = decision.snapshot
        loaded = replace(loaded, problems=old.problems, snapshot=old.snapshot)
        text, secrets = (
            str(files.contents.get(path, "")) for path in (STORED_CONFIG, STORED_SECRETS)
        )
        self._seen = StoredSettings(text, secrets)
        self._valid = loaded, self._seen
        return loaded

    def _add_stored(self, examined: Examined) -> Loaded:
        loaded = examined.loaded
        stored = self._get_stored_over(loaded)
        if stored is None:
            self._seen = None
            return deny(loaded, set(loaded.settings.agents))
        covered = apply_stored(loaded, stored, examined.files)
        if examined.errors:  # of the files, so that nothing takes effect
            return covered.loaded
        self._seen = stored
        if not covered.errors:
            self._valid = covered.loaded, stored
            return covered.loaded
        base, known = self._valid or (loaded, StoredSettings())
        changes = compare_stored(known, stored)
        names = changes["agents"]
        if stored.problem:  # nobody knows what it would change
            names = set() if self._valid else set(base.settings.agents)
        denied = deny(
            base,
            names,
            changes["servers"],
            bundles=changes["bundle_secrets"],
            denies_hosts=bool(changes["http"]),
        )
        return replace(denied, problems=(*loaded.problems, *covered.errors), stamp=loaded.stamp)

    def _reject_later_changes(self, loaded: Loaded, snapshot: Snapshot) -> None:
        """Raise if a project trusted by ONETOOL_TRUST=1 changed: a run must not write what a reload
        executes.
        """
        if self._at_start is None:  # the first settings that could be read
            self._at_start = snapshot
        assert loaded.directories.project is not None
        if changes := compare_snapshots(self._at_start, snapshot, loaded.directories.project):
            raise late_change_problem(loaded.directories.project, changes).to_error()

    def still_trusted(self, loaded: Loaded) -> TrustDecision:
        return still_trusted(loaded.directories, self._environment, self._at_start)

    def examine(self, loaded: Loaded) -> Examined:
        """Return the current settings with their problems, or `loaded` if a program passed the
        settings in.
        """
        if self._examine is None:
            return Examined(loaded, (), _locate_key)
        examined = self._examine()
        stored = self._get_stored_over(examined.loaded)
        if stored is None or stored == NOTHING_STORED or examined.errors:
            return examined
        return apply_stored(examined.loaded, stored, examined.files)


def _locate_key(loc: Loc) -> Location:
    return Location(".".join(map(str, loc)))


def _untrusted_error(project: Path, loaded: Loaded) -> ConfigError:
    """Return why the settings of a project would no longer apply."""
    for problem in loaded.problems:
        if problem.code == UNTRUSTED:
            return problem.to_error()
    return ConfigError(f"{project} was deleted", hint=RESTORE)


def compare_stored(old: StoredSettings, new: StoredSettings) -> dict[str, set[str]]:
    """Return the names of the entries that differ, by section."""
    before, after = (_parse_sections(each.text) for each in (old, new))

    def find_changes(section: str) -> set[str]:
        one = before[section]
        other = after[section]
        return {name for name in {**one, **other} if one.get(name, ...) != other.get(name, ...)}

    return {section: find_changes(section) for section in STORED_SECTIONS}


def _parse_sections(text: str) -> dict[str, JsonObject]:
    try:
        data = yaml_loader.read(text, str(STORED_CONFIG)).data
    except ConfigError:
        data = None
    found = data if isinstance(data, dict) else {}
    return {
        name: found[name] if isinstance(found.get(name), dict) else {} for name in STORED_SECTIONS
    }


def deny(
    loaded: Loaded,
    agents: Collection[str],
    servers: Collection[str] = (),
    *,
    bundles: Collection[str] = (),
    denies_hosts: bool = False,
) -> Loaded:
    """Return the settings with agents that may call nothing, disabled servers and bundles without
    secrets.

    With `denies_hosts`, no host is allowed.
    """
    settings = loaded.settings
    changed: JsonObject = {
        "agents": {
            name: (
                agent.model_copy(update={"permissions": frozenset(), "tools": ()})
                if name in agents
                else agent
            )
            for name, agent in settings.agents.items()
        },
        "servers": {
            name: server.model_copy(update={"enabled": False}) if name in servers else server
            for name, server in settings.servers.items()
        },
        "bundle_secrets": {
            name: uses for name, uses in settings.bundle_secrets.items() if name not in bundles
        },
    }
    if denies_hosts:
        changed["http"] = settings.http.model_copy(update={"allowed_hosts": ()})
    return replace(loaded, settings=settings.model_copy(update=changed))


def config_files(loaded: Loaded) -> tuple[Path, ...]:
    """Return the settings files that were read; none if a program passed the settings in."""
    configured = (loaded.directories.config_path(layer) for layer in loaded.directories.layers)
    return tuple(path for path in configured if path in loaded.files)
