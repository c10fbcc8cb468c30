"""Short descriptions of large values: `847 matches in 42 files`, `list of 5,000 items with keys
name, url`.

They are created where the value is, in the cell or in the server, because large values cross the
pipe as text.
"""

from collections.abc import Collection
from itertools import chain, islice
from typing import Any

MAX_KEYS = 8
MAX_KEY_CHARS = 40
FILE_KEYS = ("file", "path", "filename", "file_path")
LINE_KEYS = {"line", "line_number", "lineno", "match"}


def summary(value: Any) -> str:
    """Return a description of the value; empty for strings."""
    if isinstance(value, dict):
        return _describe_matches(value) or f"JSON object with {_describe_keys(value)}"
    if isinstance(value, list | tuple):
        return _describe_matches(value) or f"list of {_describe_items(value)}"
    return ""


def pluralize(count: int, noun: str) -> str:
    ending = "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}{ending}"


def _describe_matches(value: Any) -> str | None:
    """Return a description of the data if it looks like search results."""
    if isinstance(value, dict):
        lists = [item for item in value.values() if isinstance(item, list)]
        found = _describe_matches(lists[0]) if len(lists) == 1 else None
        return f"{found}, truncated" if found and value.get("truncated") is True else found
    if not value or not all(isinstance(item, dict) for item in value):
        return None
    key = next(
        (key for key in FILE_KEYS if all(isinstance(item.get(key), str) for item in value)), None
    )
    if key is None or any(LINE_KEYS.isdisjoint(item) for item in value):
        return None
    return (
        f"{pluralize(len(value), 'match')} in"
        f" {pluralize(len({item[key] for item in value}), 'file')}"
    )


def _describe_items(items: list[Any] | tuple[Any, ...]) -> str:
    if items and all(isinstance(item, dict) for item in items):
        return (
            f"{pluralize(len(items), 'item')} with"
            f" {_describe_keys(dict.fromkeys(chain.from_iterable(items)))}"
        )
    return pluralize(
        len(items), "string" if items and all(isinstance(item, str) for item in items) else "item"
    )


def _describe_keys(keys: Collection[Any]) -> str:
    names = ", ".join(_format_key(str(key)) for key in islice(keys, MAX_KEYS))
    rest = f" and {len(keys) - MAX_KEYS:,} more" if len(keys) > MAX_KEYS else ""
    return f"{'key' if len(keys) == 1 else 'keys'} {names}{rest}" if keys else "no keys"


def _format_key(key: str) -> str:
    start = key[:MAX_KEY_CHARS].encode("utf-8", "backslashreplace").decode()
    text = start if start.isprintable() and start else repr(start)
    return text if len(key) <= MAX_KEY_CHARS else f"{text}…"
