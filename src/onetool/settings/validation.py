"""Validates the merged settings, and describes invalid values and unknown keys."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from keyword import iskeyword
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

from pydantic import ValidationError

from onetool.errors import ConfigError
from onetool.settings.layers import depth
from onetool.settings.model import Settings
from onetool.settings.sections import Loc, Section
from onetool.util.invisible import find_in_name
from onetool.util.text import suggestion_hint
from onetool_child.json_types import JsonObject

_MIN_SIMILARITY = 70
_MAX_REMOVALS = 100
_INTEGER = "must be an integer"
_NUMBER = "must be a number"
_BOOLEAN = "must be true or false"
_LIST = "must be a list such as [a, b]"
_MAPPING = "must be a mapping (`key: value`)"
ECHOING_PHRASES = {
    "literal_error": "must be {expected}",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "finite_number": "must be a finite number",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), _INTEGER),
    **dict.fromkeys(("float_type", "float_parsing"), _NUMBER),
    **dict.fromkeys(("bool_type", "bool_parsing"), _BOOLEAN),
}
PHRASES = {
    "missing": "is missing",
    "string_type": "must be a string",
    "string_too_short": "must not be empty",
    "tuple_type": _LIST,
    **dict.fromkeys(("mapping_type", "dict_type", "model_type", "model_attributes_type"), _MAPPING),
    "value_error": "{error}",
    **ECHOING_PHRASES,
}


def validate(data: JsonObject) -> tuple[Settings | None, list[Any]]:
    try:
        return Settings.model_validate(data), []
    except ValidationError as error:
        return None, list(error.errors(include_url=False, include_input=False))


def keep_valid(data: JsonObject, unresolved: Iterable[Loc]) -> Settings:
    """Return the settings without invalid values, removed one at a time because one error may cause
    others.
    """
    for loc in sorted(set(map(_smallest_unit, unresolved)), key=str):
        data = _remove(data, loc)
    for _ in range(_MAX_REMOVALS):
        settings, errors = validate(data)
        if settings is not None:
            return settings
        data = _remove(data, _smallest_unit(errors[0]["loc"]))
    return Settings()


def _smallest_unit(loc: Loc) -> Loc:
    """Return the path of the server or list around a value: without one part, it would mean
    something else.
    """
    return (
        loc[:2] if loc[0] == "servers" else tuple(takewhile(lambda key: isinstance(key, str), loc))
    )


def _remove(data: Any, loc: Loc) -> Any:
    """Return a copy without the value at this path, or without the nearest existing parent."""
    key = loc[0]
    inner = loc[1 : depth(data, loc)]
    return {
        name: _remove(each, inner) if name == key else each
        for name, each in data.items()
        if name != key or inner
    }


class UnknownKeyError(ConfigError):
    """An environment variable that matches no setting."""


def resolve_variable(segments: list[str], tree: Any) -> Loc:
    """Return the key path for the name of a variable, ignoring case."""
    loc: list[str] = []
    kind: Any = Settings
    for segment in segments:
        existing = list(tree) if isinstance(tree, dict) else []
        keys = (
            key for key in (*known_keys(kind), *existing) if key.casefold() == segment.casefold()
        )
        spelling = next(keys, None)
        if spelling is None and not accepts_any_key(kind):
            reason, hint = describe_unknown_key(segment.lower(), known_keys(kind))
            raise UnknownKeyError(f"{'.'.join([*loc, segment.lower()])} {reason}", hint=hint)
        # Names of environment variables keep their case; all other keys are lower case.
        name = spelling or (segment if loc[-1:] == ["env"] else segment.lower())
        loc.append(name)
        kind = kind_under(kind, name)
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tuple(loc)


def describe_unknown_key(key: str, known: tuple[str, ...]) -> tuple[str, str]:
    """Return the reason and a hint for an unknown key."""
    from rapidfuzz import fuzz, process

    if not known:
        return "is an unknown key: no keys are allowed here", ""
    plain = [word.casefold().replace("_", "").replace("-", "") for word in (key, *known)]
    found = process.extractOne(plain[0], plain[1:], scorer=fuzz.ratio, score_cutoff=_MIN_SIMILARITY)
    hint = suggestion_hint([known[found[2]]]) if found else f"known keys: {', '.join(known)}"
    return "is an unknown key", hint


def find_contradictions(settings: Settings) -> Iterator[tuple[Loc, str] | tuple[Loc, str, str]]:
    """Yield problems that involve more than one key: the location, the reason and, if there is one,
    a hint.
    """
    for alias in settings.aliases:
        if iskeyword(alias):
            yield (
                ("aliases", alias),
                "is a Python keyword, so code cannot call it",
                "choose another name",
            )
        elif not alias.isidentifier():
            yield ("aliases", alias), "is not a valid Python name", "use letters, digits and _"
    yield from _unknown_agents(settings)
    owners: dict[str, str] = {}
    for name, agent in settings.agents.items():
        for index, client in enumerate(agent.clients):
            if owners.setdefault(client, name) != name:
                yield (
                    ("agents", name, "clients", index),
                    f"is already a client of agent {owners[client]}",
                )
    yield from _invisible_names(settings)


def _unknown_agents(settings: Settings) -> Iterator[tuple[Loc, str]]:
    """Yield the tokens and issuers that name an agent that does not exist."""
    named: dict[Loc, str | None] = {}
    for index, token in enumerate(settings.auth.tokens):
        named["tokens", index, "agent"] = token.agent
    for index, issuer in enumerate(settings.auth.issuers):
        named |= {
            ("issuers", index, "agents", value): agent for value, agent in issuer.agents.items()
        }
        named["issuers", index, "default_agent"] = issuer.default_agent
    for loc, agent in named.items():
        if agent is not None and agent not in settings.agents:
            yield ("auth", *loc), f"must be an agent ({', '.join(settings.agents)})"


def _invisible_names(settings: Settings) -> Iterator[tuple[Loc, str]]:
    names: list[Loc] = [("auth", "tokens", token.name) for token in settings.auth.tokens]
    for section in ("agents", "servers", "snippets", "tools", "projects"):
        names += [(section, name) for name in getattr(settings, section)]
    for loc in names:
        if character := find_in_name(str(loc[-1])):
            yield (
                (*loc[:-1], ascii(loc[-1])),
                f"must not contain the invisible character {character}",
            )


def known_keys(kind: Any) -> tuple[str, ...]:
    return tuple(kind.kinds()) if _is_section(kind) else ()


def accepts_any_key(kind: Any) -> bool:
    return (
        kind is Any
        or get_origin(kind) is Mapping
        or (_is_section(kind) and kind.model_config["extra"] == "allow")
    )


def kind_under(kind: Any, key: str | int) -> Any:
    """Return the type of the value under a key or an index, or None if there cannot be one."""
    if _is_section(kind) and key in kind.kinds():
        return _strip_optional(kind.kinds()[key])
    if get_origin(kind) in {Mapping, tuple}:
        return _strip_optional(get_args(kind)[0 if get_origin(kind) is tuple else 1])
    return Any if accepts_any_key(kind) else None


def kind_at(loc: Loc) -> Any:
    kind: Any = Settings
    for key in loc:
        kind = kind_under(kind, key)
    return kind


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def _strip_optional(kind: Any) -> Any:
    """Return the type without annotations and without `| None`."""
    if get_origin(kind) is Annotated:
        return _strip_optional(get_args(kind)[0])
    others = [inner for inner in get_args(kind) if inner is not NoneType]
    return _strip_optional(others[0]) if NoneType in get_args(kind) else kind
