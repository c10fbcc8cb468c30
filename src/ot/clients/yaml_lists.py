"""Adding items to a list of a YAML text and taking one out, so that everything else in it stays as it is.

The list stands under a key of a section, as `tokens` does under `auth`. As in `ot.clients.yaml_edit` the result is read
again: it must be the old data with the new list and nothing else, or it is not written.
"""

import re
from collections.abc import Sequence
from typing import Any

from ot import yaml12
from ot.clients import yaml_edit
from ot.clients.edits import Edit, applied, insertion
from ot.errors import ConfigError

_REST_OF_LINE = re.compile(r"[^\r\n]*")


def with_items(text: str, source: str, section: str, key: str, items: Sequence[Any]) -> str:
    """The text with these items at the end of the list, which is made where it is missing."""
    old = list_in(text, source, section, key)
    if not items:
        return text
    place = _place(text, source, section, key)
    if place is None:
        return yaml_edit.with_keys(text, source, section, {key: list(items)})
    edited = applied(text, [_addition(text, place, items)])
    return _checked(edited, text, source, (section, key), [*old, *items])


def without_item(text: str, source: str, section: str, key: str, index: int) -> str:
    """The text without one item of the list."""
    old = list_in(text, source, section, key)
    place = _place(text, source, section, key)
    assert place is not None
    edited = applied(text, _removal(text, place, index))
    return _checked(edited, text, source, (section, key), [*old[:index], *old[index + 1 :]])


def list_in(text: str, source: str, section: str, key: str) -> list[Any]:
    """What the list holds; nothing where there is none."""
    inside = yaml_edit.data_of(text, source).get(section) or {}
    if not isinstance(inside, dict):
        raise ConfigError(f"{source}: {section} must be a mapping, `key: value`; correct it, then try again")
    found = inside.get(key) or []
    if not isinstance(found, list):
        raise ConfigError(f"{source}: {section}.{key} must be a list like [a, b]; correct it, then try again")
    return found


class _Place:
    """The nodes of the key and of its list. The parser counts from behind a byte order mark, we from before it."""

    def __init__(self, key: Any, value: Any, shift: int) -> None:
        self.key, self.value, self.shift = key, value, shift

    def start(self, node: Any) -> int:
        return self.shift + int(node.start_mark.index)

    def end(self, node: Any) -> int:
        return self.shift + int(node.end_mark.index)


def _place(text: str, source: str, section: str, key: str) -> _Place | None:
    shift = 1 if text.startswith("\ufeff") else 0
    root = yaml_edit.composed(text[shift:], source)
    around = _member(root, section)
    inside = None if around is None else _member(around[1], key)
    return None if inside is None else _Place(*inside, shift)


def _member(mapping: Any, name: str) -> tuple[Any, Any] | None:
    if mapping is None or not isinstance(mapping.value, list):
        return None
    return next(((key, value) for key, value in mapping.value if key.value == name), None)


def _addition(text: str, place: _Place, items: Sequence[Any]) -> Edit:
    node, flow = place.value, yaml_edit.flow
    if not isinstance(node.value, list):  # `tokens:` and nothing more
        return Edit(place.start(node), place.end(node), f" {flow(list(items))}")
    if not node.value:
        return Edit(place.start(node), place.end(node), flow(list(items)))
    if node.flow_style:
        return insertion(place.end(node.value[-1]), "".join(f", {flow(item)}" for item in items))
    indent = " " * node.start_mark.column
    return yaml_edit.behind(text, node, place.shift, [f"{indent}- {flow(item)}" for item in items])


def _removal(text: str, place: _Place, index: int) -> list[Edit]:
    node = place.value
    items = node.value
    if not node.flow_style:
        rest = [] if len(items) > 1 else [insertion(text.index(":", place.end(place.key)) + 1, " []")]
        return [*rest, _without_lines(text, place, items[index])]
    if len(items) == 1:
        return [Edit(place.start(node), place.end(node), "[]")]
    if index + 1 < len(items):
        return [Edit(place.start(items[index]), place.start(items[index + 1]), "")]
    return [Edit(place.end(items[index - 1]), place.end(items[index]), "")]


def _without_lines(text: str, place: _Place, item: Any) -> Edit:
    """From the line break before the dash to the one behind the item, which stays."""
    dash = text.rindex("-", 0, place.start(item))
    start = max(text.rfind("\n", 0, dash), text.rfind("\r", 0, dash))
    start -= text[start - 1 : start + 1] == "\r\n"
    rest = _REST_OF_LINE.match(text, place.end(yaml_edit.last_leaf(item)))
    assert rest is not None
    return Edit(start, rest.end(), "")


def _checked(edited: str, text: str, source: str, path: tuple[str, str], wanted: list[Any]) -> str:
    section, key = path
    old = yaml_edit.data_of(text, source)
    try:
        works = yaml12.read(edited, source).data == {**old, section: {**(old.get(section) or {}), key: wanted}}
    except ConfigError:
        works = False
    if not works:
        raise ConfigError(f"{source}: {section}.{key} cannot be changed as it is written; change it by hand")
    return edited
