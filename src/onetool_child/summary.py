"""Short descriptions of large values: `847 matches in 42 files`, `list of 5,000 items with keys name, url`.

They are created where the value is, in the cell or in the server, because large values cross the pipe as text.
"""

from collections.abc import Collection
from itertools import chain, islice
from typing import Any

KEYS_SHOWN = 8
KEY_WIDTH = 40
FILE_KEYS = ("file", "path", "filename", "file_path")
LINE_KEYS = {"line", "line_number", "lineno", "match"}


def summary(value: Any) -> str:
    """Return a description of the value; empty for strings."""
    if isinstance(value, dict):
        return _matches(value) or f"JSON object with {_keys(value)}"
    if isinstance(value, list | tuple):
        return _matches(value) or f"list of {_items(value)}"
    return ""


def number(count: int, noun: str) -> str:
    ending = "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}{ending}"


def _matches(value: Any) -> str | None:
    """Return a description of search results, if the data looks like that."""
    if isinstance(value, dict):
        lists = [item for item in value.values() if isinstance(item, list)]
        found = _matches(lists[0]) if len(lists) == 1 else None
        return f"{found}, cut short" if found and value.get("truncated") is True else found
    if not value or not all(isinstance(item, dict) for item in value):
        return None
    key = next((key for key in FILE_KEYS if all(isinstance(item.get(key), str) for item in value)), None)
    if key is None or any(LINE_KEYS.isdisjoint(item) for item in value):
        return None
    return f"{number(len(value), 'match')} in {number(len({item[key] for item in value}), 'file')}"


def _items(items: list[Any] | tuple[Any, ...]) -> str:
    if items and all(isinstance(item, dict) for item in items):
        return f"{number(len(items), 'item')} with {_keys(dict.fromkeys(chain.from_iterable(items)))}"
    return number(len(items), "string" if items and all(isinstance(item, str) for item in items) else "item")


def _keys(keys: Collection[Any]) -> str:
    names = ", ".join(_name(str(key)) for key in islice(keys, KEYS_SHOWN))
    rest = f" and {len(keys) - KEYS_SHOWN:,} more" if len(keys) > KEYS_SHOWN else ""
    return f"{'key' if len(keys) == 1 else 'keys'} {names}{rest}" if keys else "no keys"


def _name(key: str) -> str:
    start = key[:KEY_WIDTH].encode("utf-8", "backslashreplace").decode()
    shown = start if start.isprintable() and start else repr(start)
    return shown if len(key) <= KEY_WIDTH else f"{shown}…"
