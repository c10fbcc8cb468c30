"""Files and variables, put together in layers into one checked `Settings`.

Defaults < the user's folder < the project's folder < `ONETOOL_<SECTION>__<KEY>`. Mappings merge key by key,
lists replace. All that is wrong is reported at once, by file and line, never with a secret in it. The keys
themselves are `onetool.config.model`, the folders that count `onetool.paths` and `onetool.config.trust`. It writes
nothing.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from shlex import quote
from typing import Any

from pydantic import ValidationError

from onetool import paths
from onetool.config.model import VERSION, Loc, Settings, contradictions, kind_at, kind_under, known_keys, takes_any_key
from onetool.config.trust import Facts, Verdict, judge
from onetool.errors import ConfigError
from onetool.paths import Folders
from onetool.problem import WARNING, Location, Problem
from onetool.util import yaml12
from onetool.util.newer import Newer, refuse_newer

_PREFIX = "ONETOOL_"
_VERSION_KEY = "version"
# A version is that of a file; what packagers put into ONETOOL_VERSION is that of the program.
_NO_OVERRIDES = frozenset({"ONETOOL_CONFIG", "ONETOOL_DEBUG", "ONETOOL_TRUST", "ONETOOL_VERSION"})
# Text that a model reads must never receive a secret.
_TEXT_FOR_MODELS = frozenset({"snippets", "prompts"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
_INSIDE_REFERENCE = re.compile(r"(secret:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_WHAT_A_PROGRAM_IS = frozenset({"command", "args", "cwd"})
_CLOSE_ENOUGH = 70
_MOST_MISTAKES = 100

_WHOLE, _NUMBER, _SWITCH = "must be a whole number", "must be a number", "must be true or false"
_QUOTE = "put it in quotes"
_LIST, _MAPPING = "must be a list like [a, b]", "must be a mapping, `key: value`"
_ECHOING_PHRASES = {
    "literal_error": "must be {expected}",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "finite_number": "must be a finite number",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), _WHOLE),
    **dict.fromkeys(("float_type", "float_parsing"), _NUMBER),
    **dict.fromkeys(("bool_type", "bool_parsing"), _SWITCH),
}
_PHRASES = {
    "missing": "is missing",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "tuple_type": _LIST,
    **dict.fromkeys(("mapping_type", "dict_type", "model_type", "model_attributes_type"), _MAPPING),
    "value_error": "{error}",
    **_ECHOING_PHRASES,
}


@dataclass(frozen=True, slots=True)
class Loaded:
    settings: Settings = field(repr=False)
    secrets: Mapping[str, str] = field(repr=False)
    problems: tuple[Problem, ...]
    files: tuple[Path, ...]
    folders: Folders
    user_secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    user_servers: frozenset[str] = frozenset()  # servers whose command no project's settings give
    user_packs: frozenset[str] = frozenset()  # packs whose list of secrets is the user's own
    snapshot: Facts | None = field(default=None, repr=False)  # of a project that only ONETOOL_TRUST=1 trusts

    @property
    def secret_values(self) -> frozenset[str]:
        """All that must never be shown, also where a project has a secret of the same name."""
        return frozenset({*self.secrets.values(), *self.user_secrets.values()})

    def secrets_for(self, pack: str) -> Mapping[str, str]:
        """Return the secrets that a pack may name: a project's secrets fill only the project's own settings."""
        return self.user_secrets if pack in self.user_packs else self.secrets


@dataclass(frozen=True, slots=True)
class _Part:
    """What one file or one variable says, as a piece of the whole, and where in it a key stands."""

    data: Mapping[str, Any]
    where: Callable[[Loc], Location]
    folder: Path


@dataclass(frozen=True, slots=True)
class Examined:
    """What is right of a configuration, what is wrong with it, and where in it a key stands."""

    loaded: Loaded
    errors: tuple[Problem, ...]
    place_of: Callable[[Loc], Location]


def load(folders: Folders, env: Mapping[str, str], *, trust: bool | None = None) -> Loaded:
    """The configuration in force. `trust`, where given, is the person's answer; else the store is asked."""
    examined = examine(folders, env, trust=trust)
    if examined.errors:
        raise ConfigError("\n".join(map(str, examined.errors)))
    return examined.loaded


def examine(folders: Folders, env: Mapping[str, str], *, trust: bool | None = None) -> Examined:
    """For who looks for faults: what is wrong is left out of the settings. They are not to be worked with."""
    folders, verdict = _judged(folders, env, trust)
    reader = _Reader(folders)
    by_layer = reader.secrets()
    own, theirs = by_layer[folders.user], by_layer.get(folders.data, {})
    whole = _Whole(reader.parts(), reader.errors)
    notes = whole.override(env, folders.working_dir)
    by_folder = {folders.data: {**own, **theirs}, folders.user: own}
    filled = whole.filled(lambda folder: by_folder.get(folder, own), env, reader.secrets_are_whole)
    settings = whole.checked(_with_placed_tools_dir(filled, whole, folders))
    loaded = Loaded(
        settings,
        {**own, **theirs},
        (*verdict.problems, *notes),
        tuple(reader.files),
        folders,
        user_secrets=own,
        user_servers=frozenset(settings.servers) - whole.servers_of(folders.project),
        user_packs=frozenset(pack for pack in settings.tools if not whole.names_secrets(pack, folders.project)),
        snapshot=verdict.snapshot,
    )
    in_order = sorted(set(whole.errors), key=lambda error: (error.location or Location(""), error.message))
    return Examined(loaded, tuple(in_order), whole.place_of)


def _judged(folders: Folders, env: Mapping[str, str], trust: bool | None) -> tuple[Folders, Verdict]:
    if folders.project is None or folders.trusted:
        return folders, Verdict(trusted=True)
    verdict = judge(folders.project, folders.user, env) if trust is None else Verdict(trust)
    if verdict.trusted:
        return replace(folders, trusted=True), verdict
    return replace(folders, project=None), verdict


class _Reader:
    """The files of all folders that count. What cannot be read is noted, and reading goes on."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders
        self.errors: list[Problem] = []
        self.files: list[Path] = []
        self.secrets_are_whole = True
        if not paths.is_folder(folders.working_dir):
            self._complain(Location(str(folders.working_dir)), "the working folder is no folder", "check OT_CWD")

    def _complain(self, place: Location, reason: str, hint: str = "") -> None:
        self.errors.append(Problem(f"{place}: {reason}", hint, place))

    def secrets(self) -> dict[Path, dict[str, str]]:
        """Return the secrets of each layer."""
        before = len(self.errors)
        found = {folder: dict(self._secrets_of(folder)) for folder in self._folders.layers}
        self.secrets_are_whole = len(self.errors) == before
        return found

    def parts(self) -> list[_Part]:
        return [part for folder in self._folders.layers for part in self._parts_of(folder)]

    def _mapping(self, path: Path, *, typed: bool = True) -> yaml12.Document | None:
        try:
            document = yaml12.read_file(path, typed=typed)
        except FileNotFoundError:
            if path == self._folders.config_file:
                self._complain(Location(str(path)), "there is no such file", "check --config and ONETOOL_CONFIG")
            return None
        except ConfigError as error:
            self.errors.append(Problem.of(error))
            return None
        self.files.append(path)
        if document.data is not None and not isinstance(document.data, dict):
            self._complain(Location(str(path), document.line()), "the file must hold `key: value` lines")
            return None
        return document if not typed or self._is_for_us(document) else None

    def _is_for_us(self, document: yaml12.Document) -> bool:
        """Of a file that a newer OneTool means, only that is said."""
        place = Location(document.source, document.line((_VERSION_KEY,)))
        try:
            refuse_newer((document.data or {}).get(_VERSION_KEY), VERSION, f"{place}:")
        except Newer as error:
            self.errors.append(Problem(error.message, error.hint, place))
            return False
        return True

    def _secrets_of(self, folder: Path) -> Iterator[tuple[str, str]]:
        path = folder / paths.SECRETS
        if _is_open_to_others(path):
            self._complain(Location(str(path)), "is open to others", f"type `chmod 600 {quote(str(path))}`")
            return
        if (document := self._mapping(path, typed=False)) is None:
            return
        for name, text in (document.data or {}).items():
            place = Location(str(path), document.line((name,)))
            if not _NAME.fullmatch(name):
                self._complain(place, f"{_shown(name)} is no name for a secret", "take letters, digits and _")
            elif not isinstance(text, str) or not text:
                self._complain(
                    place, f"{name} must be one text, not {'empty' if text == '' else 'a list or a mapping'}"
                )
            else:
                yield name, text

    def _parts_of(self, folder: Path) -> Iterator[_Part]:
        inline = self._mapping(self._folders.config_of(folder))
        if prompts := self._mapping(folder / paths.PROMPTS):
            yield _part(prompts, ("prompts",), folder, leave_out=(_VERSION_KEY,))
        yield from self._agents(folder, _inline_agents(inline))
        if inline:
            yield _part(inline, (), folder)

    def _agents(self, folder: Path, taken: dict[str, Location]) -> Iterator[_Part]:
        for path in paths.agent_files(folder):
            if (document := self._mapping(path)) is None:
                continue
            name = (document.data or {}).get("name") or path.stem
            place = Location(str(path), document.line(("name",)))
            if not isinstance(name, str):
                self._complain(place, "name must be text", _QUOTE)
                continue
            if name in taken:
                self._complain(place, f"the agent {_shown(name)} is in {taken[name]} already", "keep one")
            taken[name] = place
            yield _part(document, ("agents", name), folder, leave_out=("name", _VERSION_KEY))


def _is_open_to_others(path: Path) -> bool:
    try:
        return os.name == "posix" and bool(path.stat().st_mode & 0o077)
    except OSError:  # whatever is wrong with the file, reading it will say so
        return False


def _inline_agents(document: yaml12.Document | None) -> dict[str, Location]:
    agents = (document.data or {}).get("agents") if document else None
    if document is None or not isinstance(agents, dict):
        return {}
    return {name: Location(document.source, document.line(("agents", name))) for name in agents}


def _part(document: yaml12.Document, prefix: Loc, folder: Path, *, leave_out: tuple[str, ...] = ()) -> _Part:
    data: Any = {key: value for key, value in (document.data or {}).items() if key not in leave_out}
    for key in reversed(prefix):
        data = {key: data}
    return _Part(data, lambda loc: Location(document.source, document.line(loc[len(prefix) :])), folder)


class _Whole:
    """All parts together. `errors` collects what is wrong with them."""

    def __init__(self, parts: list[_Part], errors: list[Problem]) -> None:
        self.errors = errors
        self._parts = parts
        self._raw = _merged(part.data for part in parts)
        self._unfilled: set[Loc] = set()

    def override(self, env: Mapping[str, str], folder: Path) -> list[Problem]:
        """Put variables on top; what is left to say about those that are no settings comes back."""
        notes: list[Problem] = []
        for name in sorted(env):
            if name.startswith(_PREFIX) and name not in _NO_OVERRIDES:
                self._override(name, env[name], folder, notes)
        self._raw = _merged(part.data for part in self._parts)
        return notes

    def _override(self, name: str, text: str, folder: Path, notes: list[Problem]) -> None:
        segments = name.removeprefix(_PREFIX).split("__")
        place = Location(f"environment variable {name}")
        try:
            loc = _spelt(segments, self._raw)
            data: Any = yaml12.read(text, str(place)).data if text.strip() else text
        except _Unknown as error:
            # Only the form with two underscores is ours alone; another program may use a name like ONETOOL_X.
            message, is_ours = f"{place}: {error.message}", len(segments) > 1
            if is_ours:
                self.errors.append(Problem(message, error.hint, place))
            else:
                notes.append(Problem(message, error.hint or "unset it", place, level=WARNING))
        except ConfigError as error:
            self.errors.append(Problem.of(error))
        else:
            for key in reversed(loc):
                data = {key: data}
            self._parts.append(_Part(data, lambda _: place, folder))

    def filled(
        self, secrets: Callable[[Path], Mapping[str, str]], env: Mapping[str, str], complain_of_missing: bool
    ) -> dict[str, Any]:
        """Fill in references, each with what belongs to the layer that wrote it."""

        def value_of(reference: re.Match[str], loc: Loc) -> str:
            part = self.part_of(loc)
            assert part is not None
            try:
                return _referenced(reference, secrets(part.folder), env)
            except ConfigError as error:
                self._unfilled.add(loc)
                if complain_of_missing:
                    self._complain(loc, error.message, error.hint)
                return ""

        return {
            key: value if key in _TEXT_FOR_MODELS else _filled(value, (key,), value_of)
            for key, value in self._raw.items()
        }

    def checked(self, data: dict[str, Any]) -> Settings:
        """The settings, without what is wrong; a server counts whole or not at all."""
        settings, wrong = _validated(data)
        for one in wrong:
            if one["loc"] not in self._unfilled:
                self._complain(one["loc"], *self._phrase(one["type"], one["loc"], one))
        if settings is None or self._unfilled:
            settings = _what_is_right(data, self._unfilled)
        agents = self._raw.get("agents")
        written = agents if wrong and isinstance(agents, dict) else {}
        for loc, reason, *hint in contradictions(settings):
            # The agent of a token may be there and was left out.
            if loc[0] != "auth" or _value_at(self._raw, loc) not in written:
                self._complain(loc, reason, *hint)
        return settings

    def part_of(self, loc: Loc) -> _Part | None:
        """The part that had the last word about a key, or about the nearest thing around it."""
        return max(reversed(self._parts), key=lambda part: _depth(part.data, loc), default=None)

    def servers_of(self, project: Path | None) -> frozenset[str]:
        """Return the servers of which the project says what is started."""
        own = (part.data.get("servers") for part in self._parts if part.folder == project)
        named = (item for servers in own if isinstance(servers, dict) for item in servers.items())
        return frozenset(name for name, said in named if isinstance(said, dict) and _WHAT_A_PROGRAM_IS & said.keys())

    def names_secrets(self, pack: str, project: Path | None) -> bool:
        """Return whether the project's settings list the secrets of this pack."""
        loc = ("tools", pack, "secrets")
        return any(part.folder == project and _depth(part.data, loc) == len(loc) for part in self._parts)

    def place_of(self, loc: Loc) -> Location:
        part = self.part_of(loc)
        return part.where(loc) if part else Location("the configuration")

    def _complain(self, loc: Loc, reason: str, hint: str = "") -> None:
        place = self.place_of(loc)
        self.errors.append(Problem(f"{place}: {_dotted(loc)} {reason}", hint, place))

    def _phrase(self, kind: str, loc: Loc, error: Mapping[str, Any]) -> tuple[str, str]:
        """Return what is wrong, and what to do about it."""
        if kind == "extra_forbidden":
            return _unknown(str(loc[-1]), known_keys(kind_at(loc[:-1])))
        phrase = _PHRASES[kind].format_map(error.get("ctx", {})) if kind in _PHRASES else str(error["msg"])
        # Before filling in: what a person wrote may be shown, what a secret held may not.
        value = _value_at(self._raw, loc)
        echo = kind in _ECHOING_PHRASES and not isinstance(value, dict | list)
        return f"{phrase}, not {_shown(value)}" if echo else phrase, _QUOTE if kind == "string_type" else ""


def _validated(data: dict[str, Any]) -> tuple[Settings | None, list[Any]]:
    try:
        return Settings.model_validate(data), []
    except ValidationError as error:
        return None, list(error.errors(include_url=False, include_input=False))


def _what_is_right(data: dict[str, Any], unfilled: Iterable[Loc]) -> Settings:
    """What is wrong is left out, one thing after the other: without it the next may be right."""
    for loc in sorted(set(map(_smallest_whole, unfilled)), key=str):
        data = _without(data, loc)
    for _ in range(_MOST_MISTAKES):
        settings, wrong = _validated(data)
        if settings is not None:
            return settings
        data = _without(data, _smallest_whole(wrong[0]["loc"]))
    return Settings()


def _smallest_whole(loc: Loc) -> Loc:
    """A server, or a list: a part that is left out would make something else of it."""
    return loc[:2] if loc[0] == "servers" else tuple(takewhile(lambda key: isinstance(key, str), loc))


def _without(data: Any, loc: Loc) -> Any:
    """A copy without what stands there, or without the nearest thing around it where nothing does."""
    key, inner = loc[0], loc[1 : _depth(data, loc)]
    return {name: _without(each, inner) if name == key else each for name, each in data.items() if name != key or inner}


def _merged(layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for layer in layers:
        whole = _over(whole, layer)
    return whole


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            result[key] = _over(old, value)
        elif not (isinstance(old, dict) and value is None):  # `servers:` and nothing more takes nothing away
            result[key] = value
    return result


def _spelt(segments: list[str], tree: Any) -> Loc:
    """The path that a variable's name means, whatever the case of its letters."""
    loc: list[str] = []
    kind: Any = Settings
    for segment in segments:
        there = list(tree) if isinstance(tree, dict) else []
        keys = (key for key in (*known_keys(kind), *there) if key.casefold() == segment.casefold())
        spelling = next(keys, None)
        if spelling is None and not takes_any_key(kind):
            reason, hint = _unknown(segment.lower(), known_keys(kind))
            raise _Unknown(f"{'.'.join([*loc, segment.lower()])} {reason}", hint=hint)
        # The names of a program's variables keep their case; all else in the file is written small.
        name = spelling or (segment if loc[-1:] == ["env"] else segment.lower())
        loc.append(name)
        kind = kind_under(kind, name)
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tuple(loc)


def _filled(value: Any, loc: Loc, value_of: Callable[[re.Match[str], Loc], str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(inner, (*loc, key), value_of) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, (*loc, index), value_of) for index, inner in enumerate(value)]
    if isinstance(value, str):
        return _REFERENCE.sub(lambda reference: value_of(reference, loc), value)
    return value


def _referenced(reference: re.Match[str], secrets: Mapping[str, str], env: Mapping[str, str]) -> str:
    if reference[0] == "$${":
        return "${"
    inside = _INSIDE_REFERENCE.fullmatch(reference[1])
    if inside is None or not reference[2]:
        raise ConfigError("holds a ${ that starts no ${NAME}", hint="write $${ for the two characters themselves")
    secret, name, default = inside.groups()
    value = secrets.get(name) if secret else secrets.get(name, env.get(name))
    if value or (value is not None and default is None):
        return value
    if default is None:
        where = "secrets.yaml" if secret else "secrets.yaml or the environment"
        hint = f"put it into {where}, or write ${{{secret or ''}{name}:-default}}"
        raise ConfigError(f"needs {name}", hint=hint)
    return str(default)


def _with_placed_tools_dir(data: dict[str, Any], whole: _Whole, folders: Folders) -> dict[str, Any]:
    """Paths start at the folder of the file that names them; after merging nobody knows that any more."""
    part, entries = whole.part_of(("tools_dir",)), data.get("tools_dir")
    if part is None or not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        return data
    placed = [str(paths.placed(entry, part.folder, folders.home)) if entry else entry for entry in entries]
    return {**data, "tools_dir": placed}


def _walk(data: Any, loc: Loc) -> list[Any]:
    """Return what stands at each step of a path, as far as it leads somewhere."""
    found: list[Any] = []
    for key in loc:
        entries = dict(enumerate(data)) if isinstance(data, list) else data
        if not isinstance(entries, dict) or key not in entries:
            break
        data = entries[key]
        found.append(data)
    return found


def _depth(data: Any, loc: Loc) -> int:
    return len(_walk(data, loc))


def _value_at(data: Any, loc: Loc) -> Any:
    found = _walk(data, loc)
    return found[-1] if len(found) == len(loc) else None


class _Unknown(ConfigError):
    """A variable that names no setting."""


def _unknown(key: str, known: tuple[str, ...]) -> tuple[str, str]:
    """Return what is wrong with a key that is not known, and what to do about it."""
    from rapidfuzz import fuzz, process

    if not known:
        return "is unknown: nothing can stand there", ""
    plain = [word.casefold().replace("_", "").replace("-", "") for word in (key, *known)]
    found = process.extractOne(plain[0], plain[1:], scorer=fuzz.ratio, score_cutoff=_CLOSE_ENOUGH)
    return "is an unknown key", f"write {known[found[2]]}" if found else f"known here: {', '.join(known)}"


def _dotted(loc: Loc) -> str:
    is_plain = re.compile(r"[\w-]{1,60}").fullmatch
    return "".join(
        f".{key}" if isinstance(key, str) and is_plain(key) else f"[{_shown(key)}]" for key in loc
    ).removeprefix(".")


def _shown(value: Any) -> str:
    """A value as one short line of a message."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:60]}…"  # noqa: PLR2004 - the length of a glance
