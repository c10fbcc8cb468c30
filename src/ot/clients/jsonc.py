"""JSON as people write it, with comments and trailing commas, read into nodes that know where they stand.

Nothing is repaired: what neither JSON nor VS Code's "JSON with comments" allows is an error that names its line.
A key that stands twice is kept twice; as in every JSON parser, the last one counts.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from ot.clients.edits import line_of
from ot.errors import ConfigError
from ot.problem import Location

MAX_DEPTH = 200

_TRIVIA = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"')
_SCALAR = re.compile(r"(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)(?![\w.+-])")


@dataclass(slots=True)
class Node:
    """A value from `start` to `end`. `kind` is `{`, `[` or empty, `comma` where the last comma of its list stands."""

    start: int
    end: int = 0
    kind: str = ""
    value: Any = None
    members: list["Member"] = field(default_factory=list)
    items: list["Node"] = field(default_factory=list)
    comma: int | None = None

    @property
    def data(self) -> Any:
        if self.kind == "{":
            return {member.key: member.node.data for member in self.members}
        return [item.data for item in self.items] if self.kind == "[" else self.value

    def all_of(self, key: str) -> list["Member"]:
        return [member for member in self.members if member.key == key]


@dataclass(slots=True)
class Member:
    key: str
    start: int
    key_end: int
    node: Node


def parse(text: str, source: str) -> Node | None:
    """The value of the text; None where there are only comments and white space."""
    parser = _Parser(text, source)
    start = parser.skip(1 if text.startswith("\ufeff") else 0)
    if start == len(text):
        return None
    root = parser.value(start, 0)
    end = parser.skip(root.end)
    if end != len(text):
        raise parser.error(end, "something stands behind the end of the JSON value")
    return root


class _Parser:
    def __init__(self, text: str, source: str) -> None:
        self._text = text
        self._source = source

    def skip(self, at: int) -> int:
        """Behind white space and comments."""
        found = _TRIVIA.match(self._text, at)
        end = found.end() if found else at
        if self._text.startswith("/*", end):
            raise self.error(end, "this comment is not closed")
        return end

    def value(self, at: int, depth: int) -> Node:
        opening = self._text[at : at + 1]
        if depth > MAX_DEPTH:
            raise self.error(at, f"nested more than {MAX_DEPTH} deep")
        if opening == "{":
            return self._list(Node(at, kind="{"), "}", depth)
        if opening == "[":
            return self._list(Node(at, kind="["), "]", depth)
        found = (_STRING if opening == '"' else _SCALAR).match(self._text, at)
        if found is None:
            raise self.error(at, f"expected a value, found {self._shown(at)}")
        return Node(at, found.end(), value=self._decoded(found[0], at))

    def _list(self, node: Node, closing: str, depth: int) -> Node:
        """What stands between the brackets, with commas between and perhaps behind."""
        at = self.skip(node.start + 1)
        while self._text[at : at + 1] != closing:
            last = self._member(node, at, depth) if node.kind == "{" else self._item(node, at, depth)
            at, node.comma = self.skip(last), None
            if self._text[at : at + 1] == ",":
                node.comma = at
                at = self.skip(at + 1)
            elif self._text[at : at + 1] != closing:
                raise self.error(at, f"expected , or {closing}, found {self._shown(at)}")
        node.end = at + 1
        return node

    def _item(self, node: Node, at: int, depth: int) -> int:
        node.items.append(self.value(at, depth + 1))
        return node.items[-1].end

    def _member(self, node: Node, at: int, depth: int) -> int:
        found = _STRING.match(self._text, at)
        if found is None:
            raise self.error(at, f"expected a key in double quotes, found {self._shown(at)}")
        colon = self.skip(found.end())
        if self._text[colon : colon + 1] != ":":
            raise self.error(colon, f"expected : behind the key {found[0][:60]}, found {self._shown(colon)}")
        value = self.value(self.skip(colon + 1), depth + 1)
        node.members.append(Member(self._decoded(found[0], at), at, found.end(), value))
        return value.end

    def _decoded(self, token: str, at: int) -> Any:
        try:
            return json.loads(token)
        except ValueError:  # a wrong escape, or more digits than Python reads
            raise self.error(at, f"{token[:40]} cannot be read") from None

    def _shown(self, at: int) -> str:
        word = re.match(r"\w{1,20}|.", self._text[at : at + 20])
        return repr(word[0]) if word else "the end of the file" if at >= len(self._text) else "a line break"

    def error(self, at: int, what: str) -> ConfigError:
        place = Location(self._source, line_of(self._text, at))
        return ConfigError(f"{place}: is not valid JSON: {what}", location=place)
