"""Render JSON-like data as text, for people and models.

Callers convert other types (sets, dates) to data first, choose the format, and truncate and redact
the text. The text is always valid UTF-8.
"""

import json
import math
import re
import sys
from collections.abc import Callable, Iterable
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson

from onetool.errors import ToolError
from onetool_child.data import FORMATS

if TYPE_CHECKING:
    from yaml import Event
    from yaml.emitter import Emitter


_Collection: TypeAlias = dict[Any, Any] | list[Any] | tuple[Any, ...]
_IsFlow: TypeAlias = Callable[[_Collection, int], bool]

_MAX_FLOW_HEIGHT = 2
_MAX_FLOW_CHARS = 100  # of a list of texts
_MAX_SIMPLE_KEY_CHARS = 128

# Scalars that YAML 1.1 or 1.2, or a lenient loader of either, does not read as a string unless they
# are quoted.
_NEEDS_QUOTES = re.compile(
    r"[0-9]|[-+][0-9_]|[-+]?\.[0-9_]|(?:|~|=|<<|[-+]?\.(?:inf|nan)|null|true|false|yes|no|on|off|y|n)\Z",
    re.IGNORECASE,
)
# Excludes breaks on which the versions disagree, and leading spaces and trailing blank lines, which
# need indicators.
_FITS_BLOCK = re.compile(r"(?![ \n])(?=[^\n]*\n)[^\x85\u2028\u2029]*[^\n\x85\u2028\u2029]\n?")
_UNPRINTABLE = re.compile(r"[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def render(value: Any, format: str | None = None, *, flow: bool = False) -> str:  # noqa: A002 - as in __format__
    """Return a value as text. With `flow`, an absent or unknown format means flow-style YAML."""
    try:
        text = value if isinstance(value, str) else _text(value, format, flow)
    except RecursionError:
        raise ToolError(
            "the result is nested too deeply to be rendered; return the part that you need"
        ) from None
    except ValueError:
        digits = sys.get_int_max_str_digits()
        raise ToolError(
            f"an integer in the result has more than {digits} digits; return its hex()"
        ) from None
    # A lone surrogate becomes an escape that Python, JSON and quoted YAML understand.
    return text.encode("utf-8", "backslashreplace").decode()


def _text(value: Any, chosen: str | None, flow: bool) -> str:
    if chosen not in FORMATS and isinstance(value, dict | list | tuple):
        return _yaml(value, _is_short) if flow else _json(value)
    match chosen:
        case "json":
            return _json(value)
        case "json_h":
            return _json(value, indent=2)
        case "yml" | "yml_h":
            return _yaml(value, lambda _value, _height: chosen == "yml")
        case _:
            return str(value)


def _json(value: Any, indent: int | None = None) -> str:
    # A small result takes 0.4 µs with orjson and 3.4 µs with json. What orjson rejects (integers
    # over 64 bits, lone surrogates, keys that are not strings, more than 254 levels) is written by
    # json.
    try:
        option = orjson.OPT_INDENT_2 if indent else None
        return orjson.dumps(
            value, lambda other: [*other] if isinstance(other, tuple) else str(other), option
        ).decode()
    except TypeError:
        separators = None if indent else (",", ":")
        return json.dumps(
            _json_data(value), ensure_ascii=False, indent=indent, separators=separators
        )


def _json_data(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _json_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_data(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def _yaml(value: Any, is_flow: _IsFlow) -> str:
    if not isinstance(value, dict | list | tuple):
        return _yaml_scalar(value)
    import yaml

    events: list[Event] = [yaml.StreamStartEvent(), yaml.DocumentStartEvent()]
    _add_events(value, events, is_flow)
    events += [yaml.DocumentEndEvent(), yaml.StreamEndEvent()]
    text: str = yaml.emit(events, Dumper=_emitter(), width=sys.maxsize, allow_unicode=True)
    # If the last string ends with a line break, the break belongs to its YAML block.
    while isinstance(value, dict | list | tuple):
        value = next(reversed(value.values() if isinstance(value, dict) else value), None)
    without_break = text.removesuffix("\n")
    return (
        text
        if "\n" in without_break and isinstance(value, str) and value.endswith("\n")
        else without_break
    )


def _is_short(value: _Collection, height: int) -> bool:
    if height > _MAX_FLOW_HEIGHT:
        return False
    if isinstance(value, dict):
        return all(
            not isinstance(item, list | tuple) or _is_short(item, 1) for item in value.values()
        )
    return not any(isinstance(item, dict) for item in value) and not _is_text(value)


def _is_text(items: list[Any] | tuple[Any, ...]) -> bool:
    """Return whether the items are text lines, shown one below the other, not names."""
    if len(items) <= 1 or not all(isinstance(item, str) for item in items):
        return False
    is_long = sum(map(len, items)) > _MAX_FLOW_CHARS
    return is_long and any(" " in item or '"' in item for item in items)


def _add_events(value: Any, events: "list[Event]", is_flow: _IsFlow) -> int:
    """Append the YAML events of a value and return its height, which determines its style."""
    import yaml

    if not isinstance(value, dict | list | tuple):
        text = _yaml_scalar(value)
        style = None
        if not (value is None or isinstance(value, int | float)):
            # If the style is not possible, the emitter uses quotes.
            style = (
                "|" if _FITS_BLOCK.fullmatch(text) else '"' if _NEEDS_QUOTES.match(text) else None
            )
        events.append(yaml.ScalarEvent(None, None, (True, True), text, style=style))
        return 0
    start: yaml.CollectionStartEvent = yaml.SequenceStartEvent(None, None, True)
    end: yaml.CollectionEndEvent = yaml.SequenceEndEvent()
    children: Iterable[Any] = value
    if isinstance(value, dict):
        start = yaml.MappingStartEvent(None, None, True)
        end = yaml.MappingEndEvent()
        children = chain.from_iterable((str(key), item) for key, item in value.items())
    events.append(start)
    height = 1 + max([_add_events(child, events, is_flow) for child in children], default=0)
    start.flow_style = is_flow(value, height)
    events.append(end)
    return height


def _yaml_scalar(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if not isinstance(value, float):
        return str(value)
    if not math.isfinite(value):
        return {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}[repr(value)]
    text = repr(value)
    # Without the point, 1e+17 would be a string in YAML 1.1.
    return text if "." in text else text.replace("e", ".0e")


@cache
def _emitter() -> "type[Emitter]":
    from yaml import ScalarEvent
    from yaml.emitter import Emitter

    class PlainOrJsonEmitter(Emitter):
        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002 - overrides
            super().increase_indent(flow, indentless=False)

        def check_simple_key(self) -> bool:
            # Quoted as JSON, a key is one line, and a key this short stays below YAML's limit of
            # 1,024 characters.
            return (
                isinstance(self.event, ScalarEvent)
                and len(self.event.value) < _MAX_SIMPLE_KEY_CHARS
            )

        def choose_scalar_style(self) -> str:
            style = super().choose_scalar_style()
            text = getattr(self.event, "value", "")
            # A line of JSON is readable in single quotes. YAML folds a line break in them.
            is_readable = text.count('"') > text.count("'") and "\n" not in text
            return style if style != "'" or is_readable else '"'

        def write_double_quoted(self, text: str, split: bool = True) -> None:  # noqa: ARG002 - overrides
            # JSON quoting is valid YAML if the characters that YAML forbids are escaped.
            quoted = json.dumps(text, ensure_ascii=False)
            quoted = _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted)
            self.write_indicator(quoted, need_whitespace=True)

    return PlainOrJsonEmitter
