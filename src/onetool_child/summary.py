"""Short descriptions of large values, such as `847 matches in 42 files`, and of failed code.

They are created where the value is, in the cell or in the server, because large values cross the
pipe as text.
"""

from collections.abc import Collection
from itertools import chain, islice
from types import FrameType
from typing import Any

from onetool_child.json_types import JsonObject
from onetool_child.names import FILENAME

MAX_KEYS = 8
MAX_KEY_CHARS = 40
FILE_KEYS = ("file", "path", "filename", "file_path")
LINE_KEYS = {"line", "line_number", "lineno", "match"}


MAX_VARIABLES = 20
SNIPPET_FILE = "<$"


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
        description = _describe_matches(lists[0]) if len(lists) == 1 else None
        return (
            f"{description}, truncated"
            if description and value.get("truncated") is True
            else description
        )
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


def find_line(error: BaseException) -> int | None:
    """Return the innermost line of the code in the traceback, or the line of the syntax error."""
    if isinstance(error, SyntaxError) and error.filename == FILENAME:
        return error.lineno
    return next((line for file, line, _ in _list_traceback(error) if file == FILENAME), None)


def _list_traceback(error: BaseException) -> list[tuple[str, int, FrameType]]:
    """Return file, line and frame of each traceback entry, innermost first."""
    entries = []
    trace = error.__traceback__
    while trace is not None:
        entries.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno, trace.tb_frame))
        trace = trace.tb_next
    return entries[::-1]


def describe_missing_name(error: BaseException) -> JsonObject:
    """Return the missing attribute, if any, and the variables that refer to the object.

    One of them may hide a pack with the same name; so may an unbound local variable.
    """
    is_unbound = type(error) is UnboundLocalError
    if not is_unbound and (type(error) is not AttributeError or error.name is None):
        return {}
    frame = next((frame for file, _, frame in _list_traceback(error) if file == FILENAME), None)
    if frame is None or is_unbound:
        unbound = (
            [name for name in frame.f_code.co_varnames if name not in frame.f_locals]
            if frame
            else []
        )
        return {"variables": unbound[:MAX_VARIABLES]}
    assert isinstance(error, AttributeError)
    variables_by_name = [*frame.f_locals.items(), *list(frame.f_globals.items())]
    variables = [name for name, value in variables_by_name if value is error.obj]
    keys = (
        [key for key in islice(error.obj, MAX_VARIABLES) if type(key) is str]
        if type(error.obj) is dict
        else []
    )
    about = {
        "name": error.name,
        "object": type(error.obj).__name__,
        "variables": variables[:MAX_VARIABLES],
    }
    return {**about, "keys": keys} if keys else about


def describe_file(error: BaseException) -> dict[str, str]:
    """Return the file that the code could not open."""
    if (
        type(error) is FileNotFoundError or type(error) is PermissionError
    ):  # a subclass may do anything
        return {"file": error.filename} if type(error.filename) is str else {}
    return {}


def find_snippet_line(error: BaseException) -> str:
    """Return where in a snippet the error occurred, like Python's syntax errors."""
    places = (
        (file, line)
        for file, line, _ in _list_traceback(error)
        if file == FILENAME or file.startswith(SNIPPET_FILE)
    )
    file, line = next(places, (FILENAME, 0))
    return "" if file == FILENAME else f" ({file}, line {line})"
