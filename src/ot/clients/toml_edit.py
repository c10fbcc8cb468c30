"""Adding one table to a TOML text: a new one goes to the end, of one that is there single lines are replaced.

The standard library reads TOML but tells no places, so that a change is a guess by lines that is then proven: the new
text must read as the old data with our change and nothing else. What cannot be proven is not written.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from ot.clients.edits import Edit, applied, insertion, line_break_of, line_of
from ot.errors import ConfigError

_PLACE = re.compile(r" \(at line ([0-9]+), column [0-9]+\)$")
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def parse(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        line = int(place[1]) if place else line_of(text, len(text))
        what = _PLACE.sub("", str(error)).removesuffix(" (at end of document)")
        raise ConfigError(f"{source}:{line}: is not valid TOML: {what}") from None
    except RecursionError:
        raise ConfigError(f"{source}: is nested too deep to be read") from None


def edits_for(
    text: str, source: str, path: Sequence[str], new: Mapping[str, Any], kept_current: Sequence[str]
) -> list[Edit]:
    """What makes `new` stand at the path. Of a table that is there, only the keys in `kept_current` are changed."""
    data = parse(text, source)
    there = _at(data, path)
    if there is None:
        return _proven(text, source, iter([[_table(text, path, new)]]), _with(data, path, dict(new)), path)
    changes = {key: _merged(there.get(key), new[key]) for key in kept_current if key in new}
    changes = {key: value for key, value in changes.items() if there.get(key, _absent(value)) != value}
    if not changes:
        return []
    return _proven(text, source, _replacements(text, path[-1], changes), _with(data, path, {**there, **changes}), path)


def rendered(path: Sequence[str], new: Mapping[str, Any]) -> str:
    """The table as a person would write it."""
    lines = [f"[{'.'.join(map(_key, path))}]", *(f"{_key(key)} = {_value(value)}" for key, value in new.items())]
    return "\n".join(lines) + "\n"


def _merged(old: Any, new: Any) -> Any:
    return {**old, **new} if isinstance(old, dict) and isinstance(new, dict) else new


def _absent(value: Any) -> Any:
    return [] if value == [] else None


def _at(data: Any, path: Sequence[str]) -> dict[str, Any] | None:
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else None


def _with(data: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    inner = data.get(path[0], {})
    if len(path) > 1:
        value = _with(inner if isinstance(inner, dict) else {}, path[1:], value)
    return {**data, path[0]: value}


def _table(text: str, path: Sequence[str], new: Mapping[str, Any]) -> Edit:
    line_break = line_break_of(text)
    before = "" if not text.strip("\ufeff") else "\n" if text.endswith("\n") else "\n\n"
    return insertion(len(text), (before + rendered(path, new)).replace("\n", line_break))


def _replacements(text: str, name: str, changes: Mapping[str, Any]) -> Iterator[list[Edit]]:
    """Every way to change the lines of these keys below what looks like the head of the table."""
    heads = re.finditer(rf"^[ \t]*\[[^\]\r\n#]*{re.escape(name)}[^\]\r\n]*\][^\r\n]*\r?$", text, re.MULTILINE)
    for head in heads:
        yield from map(list, product(*(list(_places(text, head.end(), key, changes[key])) for key in changes)))


def _places(text: str, head_end: int, key: str, value: Any) -> Iterator[Edit]:
    line = re.compile(rf"^([ \t]*[\"']?{re.escape(key)}[\"']?[ \t]*=[ \t]*)", re.MULTILINE)
    found = line.search(text, head_end)
    if found:
        yield from (Edit(found.end(), end, _value(value)) for end in _ends(text, found.end()))
    yield insertion(head_end, f"{line_break_of(text)}{_key(key)} = {_value(value)}")


def _ends(text: str, start: int) -> Iterator[int]:
    """Where a value may end: before the comment of its line, or where that line or one of the next few ends."""
    comment = re.compile(r"[^\r\n]*?(?=[ \t]*(?:#|\r?$))", re.MULTILINE)
    at = start
    for _ in range(20):  # a list of arguments over more lines is for a person to change
        for found in comment.finditer(text, at, text.find("\n", at) if "\n" in text[at:] else len(text)):
            yield found.end()
        following = text.find("\n", at)
        if following < 0:
            return
        at = following + 1


def _proven(
    text: str, source: str, candidates: Iterator[list[Edit]], wanted: Mapping[str, Any], path: Sequence[str]
) -> list[Edit]:
    for edits in candidates:
        try:
            if tomllib.loads(applied(text, edits).removeprefix("\ufeff")) == wanted:
                return edits
        except tomllib.TOMLDecodeError:
            continue
    shown = f"[{'.'.join(path)}]"
    raise ConfigError(f"{source}: {shown} cannot be changed without touching other lines; edit it by hand")


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return _text(value)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
