"""Adds or updates a table of a TOML text and preserves everything else byte for byte.

A new table is appended. tomlkit changes the values of an existing one. The standard library then
parses the result, which must equal the old data with the change, or nothing is written.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from onetool.errors import ConfigError
from onetool.settings.clients.text_files import (
    detect_line_break,
    line_number,
    merge_entry,
    replace_value,
    value_at,
    verify,
)
from onetool.util.problem import Location
from onetool_child.json_types import JsonMapping, JsonObject

MAX_EDITED_CHARACTERS = 500_000  # takes tomlkit ten seconds in the worst case
_PLACE = re.compile(r" \(at line ([0-9]+), column [0-9]+\)$")


def parse(text: str, source: str) -> JsonObject:
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        line = int(place[1]) if place else line_number(text, len(text))
        what = _PLACE.sub("", str(error)).removesuffix(" (at end of document)")
        raise ConfigError(
            f"{source}:{line}: is not valid TOML: {what}", location=Location(source, line)
        ) from None
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply") from None


def update(
    text: str, source: str, path: Sequence[str], new: JsonMapping, updated_keys: Sequence[str]
) -> str:
    """Return the text with `new` at the path.

    In an existing table, only the keys in `updated_keys` change.
    """
    data = parse(text, source)
    old = value_at(data, path)
    changes = merge_entry(old, new, updated_keys)
    if isinstance(old, dict):
        # A missing list of arguments is an empty one.
        changes = {
            key: value
            for key, value in changes.items()
            if value != old.get(key, [] if value == [] else None)
        }
        edited = _replace_values(text, path, changes) if changes else text
    else:
        before = "" if not text.strip("\ufeff") else "\n" if text.endswith("\n") else "\n\n"
        edited = text + (before + render(path, new)).replace("\n", detect_line_break(text))
    wanted = replace_value(data, path, {**(old if isinstance(old, dict) else {}), **changes})
    message = (
        f"cannot change [{'.'.join(path)}] in {source} without changing other lines; edit it"
        " manually"
    )
    return verify(edited, lambda text: parse(text, source), wanted, message)


def render(path: Sequence[str], new: JsonMapping) -> str:
    """Return the table as TOML."""
    import tomlkit

    return f"[{tomlkit.key(list(path)).as_string()}]\n{tomlkit.dumps(_set_values(tomlkit.document(), new))}"


def _replace_values(text: str, path: Sequence[str], changes: JsonMapping) -> str:
    """Return the text with new values in an existing table; unchanged if tomlkit would change
    anything else.
    """
    import tomlkit

    mark = "\ufeff" if text.startswith("\ufeff") else ""
    try:
        document = tomlkit.parse(
            text.removeprefix(mark) if len(text) <= MAX_EDITED_CHARACTERS else ""
        )
        if mark + tomlkit.dumps(document) != text:
            return text
        table: Any = document
        for key in path:
            table = table[key]
        _set_values(table, changes)
        edited = mark + tomlkit.dumps(document)
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ):  # the text is arbitrary
        return text
    has_only_crlf = "\r\n" in text and "\n" not in text.replace("\r\n", "")
    return re.sub(r"(?<!\r)\n", "\r\n", edited) if has_only_crlf else edited


def _set_values(table: Any, values: JsonMapping) -> Any:
    import tomlkit

    for key, value in values.items():
        old = table.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            _set_values(old, value)
        elif old != value:  # setting an equal value would change its quotes
            table[key] = (
                _set_values(tomlkit.inline_table(), value) if isinstance(value, Mapping) else value
            )
    return table
