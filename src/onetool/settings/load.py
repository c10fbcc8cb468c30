"""Loads settings files and environment variables and merges them into one validated `Settings`.

Later layers win: defaults, the user's directory, the project's directory, the settings in the store
of the state, `ONETOOL_<SECTION>__<KEY>`. Mappings are merged key by key, lists are replaced;
entries in the store replace those of files as a whole, and null removes them. All errors are
reported at once, with file and line and without secrets. `onetool.settings.model` defines the keys;
`onetool.settings.paths` and `onetool.settings.trust` choose the directories. Nothing is written.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onetool.errors import ConfigError
from onetool.settings import paths
from onetool.settings.contents import (
    NOTHING_STORED,
    SettingsContents,
    Stamp,
    StoredSettings,
    list_files,
)
from onetool.settings.layers import (
    QUOTE,
    STORED_CONFIG,
    STORED_SECRETS,
    LayerReader,
    Part,
    depth,
    format_path,
    shorten,
    value_at,
)
from onetool.settings.model import Settings
from onetool.settings.paths import Directories
from onetool.settings.sections import Loc
from onetool.settings.trust import Snapshot, TrustDecision, check_trust
from onetool.settings.validation import (
    ECHOING_PHRASES,
    PHRASES,
    UnknownKeyError,
    describe_unknown_key,
    find_contradictions,
    keep_valid,
    kind_at,
    known_keys,
    resolve_variable,
    validate,
)
from onetool.util import yaml_loader
from onetool.util.problem import STORAGE, WARNING, Location, Problem
from onetool.util.store_url import find_passwords
from onetool.util.text import describe_problem
from onetool_child.json_types import JsonMapping, JsonObject

Values = Mapping[str, str]  # of secrets and environment variables, by name
_PREFIX = "ONETOOL_"
# `version` is the version of a file, while packagers use ONETOOL_VERSION for the version of the
# program.
_NO_OVERRIDES = frozenset(
    {
        "ONETOOL_CONFIG",
        "ONETOOL_DEBUG",
        "ONETOOL_KEY",
        "ONETOOL_STANDALONE",
        "ONETOOL_TOKEN",
        "ONETOOL_TRUST",
        "ONETOOL_VERSION",
    }
)
_OWN_SECRETS = frozenset(
    {"ONETOOL_KEY", "ONETOOL_STORE"}
)  # that settings cannot pass on to programs
UNSET = "unset"  # the code of errors about references to secrets and variables that are not set
# Text that a model reads must never receive a secret.
_TEXT_FOR_MODELS = frozenset({"snippets", "prompts"})
_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
_INSIDE_REFERENCE = re.compile(r"(secret:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_PROGRAM_KEYS = frozenset({"command", "args", "cwd"})
_MAX_PROBLEMS = 100  # of values, in one error


@dataclass(frozen=True, slots=True)
class Loaded:
    settings: Settings = field(repr=False)
    secrets: Values = field(repr=False)
    problems: tuple[Problem, ...]
    files: tuple[Path, ...]
    directories: Directories
    stamp: Stamp = field(
        default_factory=dict, compare=False, repr=False
    )  # of the files before they were read
    user_secrets: Values = field(default_factory=dict, repr=False)
    user_servers: frozenset[str] = frozenset()  # servers whose command is not set by a project
    user_packs: frozenset[str] = frozenset()  # packs whose list of secrets is not set by a project
    project_approvals: frozenset[str] = frozenset()  # agents whose `approvals.via` a project sets
    snapshot: Snapshot | None = field(
        default=None, repr=False
    )  # of a project that only ONETOOL_TRUST=1 trusts
    environment: Values = field(default_factory=lambda: os.environ, repr=False)  # of the client
    agents: JsonMapping = field(
        default_factory=dict
    )  # as written, with references instead of their values
    references: Mapping[str, Sequence[Loc]] = field(
        default_factory=dict
    )  # to secrets and variables, by name
    error: ConfigError | None = None  # why these are the defaults; only help runs until it is fixed

    @property
    def secret_values(self) -> frozenset[str]:
        """Return all values to redact, including user secrets that a project's secret overrides."""
        keys = filter(None, self.store_key.split(","))
        return frozenset(
            {
                *self.secrets.values(),
                *self.user_secrets.values(),
                *find_passwords(self.settings.store),
                *keys,
            }
        )

    @property
    def audit_file(self) -> Path:
        return paths.resolve_path(
            self.settings.audit.file, self.directories.data, self.directories.home
        )

    @property
    def store_key(self) -> str:
        """Return the keys that seal the state in a database."""
        return self.environment.get("ONETOOL_KEY", "")

    def secrets_for(self, pack: str) -> Values:
        """Return the secrets that a pack may use: a project's secrets are for the project's own
        settings only.
        """
        return self.user_secrets if pack in self.user_packs else self.secrets


@dataclass(frozen=True, slots=True)
class Examined:
    """The result of a check: the valid settings, the errors, and a function that locates keys."""

    loaded: Loaded
    errors: tuple[Problem, ...]
    locate: Callable[[Loc], Location]
    files: SettingsContents = field(
        default_factory=SettingsContents, repr=False
    )  # as they were read

    def require(self) -> Loaded:
        """Return the settings. Raise ConfigError with all errors if there are some."""
        if self.errors:
            raise ConfigError("\n".join(map(str, self.errors)))
        return self.loaded


def load(directories: Directories, env: Values, *, trust: bool | None = None) -> Loaded:
    """Return the effective settings. `trust` overrides the stored trust in the project."""
    return examine(directories, env, trust=trust).require()


def examine(
    directories: Directories,
    env: Values,
    *,
    trust: bool | None = None,
    files: SettingsContents | None = None,
    stored: StoredSettings | None = None,
) -> Examined:
    """Return the settings without invalid values, and the errors. `load` raises them instead.

    `files` were read before, or have an edit that is not written yet. `stored` are the settings
    over the files.
    """
    files = files or SettingsContents()
    stored = stored or NOTHING_STORED
    stamp = files.take_stamp(replace(directories, trusted=True))
    directories, decision = _apply_trust(directories, env, trust, files)
    for path, text in ((STORED_CONFIG, stored.text), (STORED_SECRETS, stored.secrets)):
        if text:
            files.contents.setdefault(path, text)
    reader = LayerReader(directories, files)
    if stored.problem:
        reader.errors.append(Problem(stored.problem, code=STORAGE))
    by_layer = reader.read_secrets()
    user_secrets = {**by_layer[directories.user], **by_layer[STORED_SECRETS]}
    project_secrets = {**by_layer[directories.data], **by_layer[STORED_SECRETS]}
    merged = _Merged(reader.read_parts(), reader.errors)
    notes = merged.override(env, directories.working_dir)
    by_directory = {
        directories.data: {**user_secrets, **project_secrets},
        directories.user: user_secrets,
    }
    filled = merged.substitute(
        lambda directory: by_directory.get(directory, user_secrets),
        env,
        reader.secrets_are_valid,
    )
    settings = merged.validate(_resolve_tools_dir(filled, merged, directories))
    loaded = Loaded(
        settings,
        {**user_secrets, **project_secrets},
        (*decision.problems, *notes),
        tuple(reader.read_files),
        directories,
        stamp={path: stamp.get(path) for path in list_files(directories)},
        user_secrets=user_secrets,
        user_servers=frozenset(settings.servers) - merged.find_project_servers(directories.project),
        user_packs=frozenset(
            pack for pack in settings.tools if not merged.names_secrets(pack, directories.project)
        ),
        project_approvals=merged.find_project_approvals(settings.agents, directories),
        snapshot=decision.snapshot,
        environment=env,
        agents=merged.written_agents,
        references=merged.references,
    )
    errors = sorted(
        set(merged.errors), key=lambda error: (error.location or Location(""), error.message)
    )
    return Examined(loaded, tuple(errors), merged.locate, files)


def _apply_trust(
    directories: Directories, env: Values, trust: bool | None, files: SettingsContents
) -> tuple[Directories, TrustDecision]:
    if directories.project is None or directories.trusted:
        return directories, TrustDecision(trusted=True)
    decision = TrustDecision(bool(trust))
    if trust is None:
        decision = check_trust(directories.project, directories.user, env, files)
    if decision.trusted:
        return replace(directories, trusted=True), decision
    return replace(directories, project=None), decision


class _Merged:
    """The merged data of all parts. `errors` collects the problems."""

    def __init__(self, parts: list[Part], errors: list[Problem]) -> None:
        self.errors = errors
        self._parts = parts
        self._raw = _merge(part.data for part in parts)
        self._unresolved: set[Loc] = set()
        self.references: dict[str, list[Loc]] = {}  # the settings that refer to each name

    def override(self, env: Values, directory: Path) -> list[Problem]:
        """Apply environment variables; return warnings about variables that match no setting."""
        notes: list[Problem] = []
        for name in sorted(env):
            if name.startswith(_PREFIX) and name not in _NO_OVERRIDES:
                self._override(name, env[name], directory, notes)
        self._raw = _merge(part.data for part in self._parts)
        return notes

    def _override(self, name: str, text: str, directory: Path, notes: list[Problem]) -> None:
        segments = name.removeprefix(_PREFIX).split("__")
        place = Location(f"environment variable {name}")
        try:
            loc = resolve_variable(segments, self._raw)
            data: Any = yaml_loader.read(text, str(place)).data if text.strip() else text
        except UnknownKeyError as error:
            # Another program may use a name such as ONETOOL_X; only names with two underscores are
            # surely settings.
            message = f"{place}: {error.message}"
            is_ours = len(segments) > 1
            if is_ours:
                self.errors.append(Problem(message, error.hint, place))
            else:
                notes.append(Problem(message, error.hint or "unset it", place, level=WARNING))
        except ConfigError as error:
            self.errors.append(Problem.of(error))
        else:
            for key in reversed(loc):
                data = {key: data}
            self._parts.append(Part(data, lambda _: place, directory))

    def substitute(
        self, secrets: Callable[[Path], Values], env: Values, report_missing: bool
    ) -> JsonObject:
        """Replace references by values; a layer sees only its own secrets and those of the user."""

        def resolve(reference: re.Match[str], loc: Loc) -> str:
            part = self.find_part(loc)
            assert part is not None
            if (inside := _INSIDE_REFERENCE.fullmatch(reference[1] or "")) is not None:
                self.references.setdefault(inside[2], []).append(loc)
            try:
                return _resolve_reference(reference, secrets(part.directory), env)
            except ConfigError as error:
                self._unresolved.add(loc)
                if report_missing:
                    self._report(loc, error.message, error.hint, code=UNSET)
                return ""

        return {
            key: value if key in _TEXT_FOR_MODELS else _substitute(value, (key,), resolve)
            for key, value in self._raw.items()
        }

    def validate(self, data: JsonObject) -> Settings:
        """Return the settings without invalid values; a server with an invalid value is left out."""
        settings, errors = validate(data)
        own_errors = [error for error in errors if error["loc"] not in self._unresolved]
        for error in own_errors[:_MAX_PROBLEMS]:
            self._report(error["loc"], *self._phrase(error["type"], error["loc"], error))
        if len(own_errors) > _MAX_PROBLEMS:
            self.errors.append(
                Problem(f"the settings have {len(own_errors) - _MAX_PROBLEMS:,} more problems")
            )
        if settings is None or self._unresolved:
            settings = keep_valid(data, self._unresolved)
        written = self.written_agents if errors else {}
        for loc, reason, *hint in find_contradictions(settings):
            # The agent of a token may exist and have been left out as invalid.
            if loc[0] != "auth" or value_at(self._raw, loc) not in written:
                self._report(loc, reason, *hint)
        return settings

    @property
    def written_agents(self) -> JsonMapping:
        agents = self._raw.get("agents")
        return agents if isinstance(agents, dict) else {}

    def find_part(self, loc: Loc) -> Part | None:
        """Return the part that sets a key or its nearest parent last."""
        return max(reversed(self._parts), key=lambda part: depth(part.data, loc), default=None)

    def find_project_servers(self, project: Path | None) -> frozenset[str]:
        """Return the servers whose command the project sets."""
        sections = (part.data.get("servers") for part in self._parts if part.directory == project)
        servers = (
            item for section in sections if isinstance(section, dict) for item in section.items()
        )
        return frozenset(
            name
            for name, server in servers
            if isinstance(server, dict) and _PROGRAM_KEYS & server.keys()
        )

    def find_project_approvals(
        self, agents: Iterable[str], directories: Directories
    ) -> frozenset[str]:
        """Return the agents whose `approvals.via` a project sets, in a file that the user did not
        name.
        """
        found: set[str] = set()
        for agent in agents:
            loc = ("agents", agent, "approvals", "via")
            part = self.find_part(loc)
            is_project = (
                part is not None
                and part.directory == directories.project
                and not directories.config_file
            )
            if part is not None and is_project and depth(part.data, loc) == len(loc):
                found.add(agent)
        return frozenset(found)

    def names_secrets(self, pack: str, project: Path | None) -> bool:
        """Return whether the project's settings list the secrets of this pack."""
        loc = ("tools", pack, "secrets")
        return any(
            part.directory == project and depth(part.data, loc) == len(loc) for part in self._parts
        )

    def locate(self, loc: Loc) -> Location:
        part = self.find_part(loc)
        return part.where(loc) if part else Location("the configuration")

    def _report(self, loc: Loc, reason: str, hint: str = "", *, code: str = "") -> None:
        place = self.locate(loc)
        self.errors.append(Problem(f"{place}: {format_path(loc)} {reason}", hint, place, code))

    def _phrase(self, kind: str, loc: Loc, error: JsonMapping) -> tuple[str, str]:
        """Return the reason and a hint."""
        if kind == "extra_forbidden":
            return describe_unknown_key(str(loc[-1]), known_keys(kind_at(loc[:-1])))
        phrase = (
            PHRASES[kind].format_map(error.get("ctx", {}))
            if kind in PHRASES
            else describe_problem(error)
        )
        # The raw value may be shown; the substituted one may contain a secret.
        value = value_at(self._raw, loc)
        echo = kind in ECHOING_PHRASES and not isinstance(value, dict | list)
        return (
            f"{phrase}, not {shorten(value)}" if echo else phrase,
            QUOTE if kind == "string_type" else "",
        )


def _merge(layers: Iterable[JsonMapping]) -> JsonObject:
    merged: JsonObject = {}
    for layer in layers:
        merged = _overlay(merged, layer)
    return merged


def _overlay(below: JsonMapping, above: JsonMapping) -> JsonObject:
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            result[key] = _overlay(old, value)
        elif not (
            isinstance(old, dict) and value is None
        ):  # a bare `servers:` does not remove the servers
            result[key] = value
    return result


def _substitute(value: Any, loc: Loc, resolve: Callable[[re.Match[str], Loc], str]) -> Any:
    if isinstance(value, dict):
        return {key: _substitute(inner, (*loc, key), resolve) for key, inner in value.items()}
    if isinstance(value, list):
        return [_substitute(inner, (*loc, index), resolve) for index, inner in enumerate(value)]
    if isinstance(value, str):
        return _REFERENCE.sub(lambda reference: resolve(reference, loc), value)
    return value


def _resolve_reference(reference: re.Match[str], secrets: Values, env: Values) -> str:
    if reference[0] == "$${":
        return "${"
    inside = _INSIDE_REFERENCE.fullmatch(reference[1])
    if inside is None or not reference[2]:
        raise ConfigError(
            "contains ${ without a valid reference such as ${NAME}",
            hint="write $${ for a literal ${",
        )
    secret, name, default = inside.groups()
    value = secrets.get(name)
    # Only this variable is read: the daemon keeps the variables that are.
    if value is None and not secret and name not in _OWN_SECRETS:
        value = env.get(name)
    if value or (value is not None and default is None):
        return value
    if default is None:
        variable = "" if secret else ", set the environment variable"
        hint = (
            f"run `onetool secret set {name}`{variable}, or write"
            f" ${{{secret or ''}{name}:-default}}"
        )
        raise ConfigError(f"refers to {name}, which is not set", hint=hint)
    return str(default)


def _resolve_tools_dir(data: JsonObject, merged: _Merged, directories: Directories) -> JsonObject:
    """Resolve `tools_dir` relative to the file that sets it."""
    part = merged.find_part(("tools_dir",))
    entries = data.get("tools_dir")
    if (
        part is None
        or not isinstance(entries, list)
        or not all(isinstance(entry, str) for entry in entries)
    ):
        return data
    placed = [
        str(paths.resolve_path(entry, part.directory, directories.home)) if entry else entry
        for entry in entries
    ]
    return {**data, "tools_dir": placed}
