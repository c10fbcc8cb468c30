"""Reads JSON with comments and trailing commas, and adds members to it without changing the rest.

Comments and trailing commas are replaced by spaces, so that positions stay the same, and the
standard library parses the result. A new entry is only inserted. In an existing entry, only changed
values are replaced. If a key occurs twice, the last one wins, as in other JSON parsers.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from onetool.errors import ConfigError
from onetool.settings.clients.text_files import (
    Edit,
    apply_edits,
    detect_line_break,
    insertion,
    line_number,
    line_start,
    merge_entry,
    replace_value,
    value_at,
    verify,
)
from onetool.util.problem import Location
from onetool_child.data import MAX_DEPTH, is_deeper_than
from onetool_child.json_types import JsonMapping

TOO_DEEP = "is nested too deeply"
_TOKEN = re.compile(r'"(?:[^"\\\r\n]|\\.)*+"?|//[^\r\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_COMMA = re.compile(
    r'"(?:[^"\\\r\n]|\\.)*+"?|[\[{][ \t\r\n]*,|,(?=[ \t\r\n]*[\]}])'
)  # `[,` stays invalid
_SPACE = re.compile(r"[ \t\r\n]*")
_COMMENTS_TO_LINE_END = re.compile(r"(?:[ \t]*/\*(?:(?!\*/)[^\r\n])*\*/)*(?:[ \t]*//[^\r\n]*)?")
_COMMENTS_IN_LINE = re.compile(r"(?:[ \t]*/\*(?:(?!\*/)[^\r\n])*\*/)*")
_LAST_COMMENT = re.compile(r"(?:[ \t\r\n]*(?://[^\r\n]*|/\*.*?\*/))*", re.DOTALL)
_SHORT_LIST = re.compile(r'\[\n\s*+((?:"(?:[^"\\]|\\.)*+"(?:,\n\s*+)?)*+)\n\s*+\]')


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


_DECODER = json.JSONDecoder(parse_constant=_reject_constant)


class Node(NamedTuple):
    """A value from `start` to `end`, and its key if it is a member of an object."""

    key: str
    key_start: int
    key_end: int
    start: int
    end: int
    value: Any


class JsonDocument:
    """A parsed text. `root` is None if it contains only comments and white space."""

    def __init__(self, text: str, source: str) -> None:
        self.text = text
        self.source = source
        self.uncommented = _TOKEN.sub(
            self._blank, " " + text[1:] if text.startswith("\ufeff") else text
        )
        self._plain = _COMMA.sub(
            lambda found: " " if found[0] == "," else found[0], self.uncommented
        )
        start = self.skip(0)
        try:
            value = _DECODER.decode(self._plain) if start < len(text) else None
        except json.JSONDecodeError as error:
            raise self.error(error.pos, f"is not valid JSON: {error.msg}") from None
        except ValueError as error:  # NaN, or more digits than Python reads
            raise ConfigError(
                f"{source}: is not valid JSON: {error}", location=Location(source)
            ) from None
        except RecursionError:
            raise self.error(start, TOO_DEEP) from None
        self.root = Node("", start, start, start, len(text), value) if start < len(text) else None
        if is_deeper_than(value, MAX_DEPTH):
            raise self.error(start, TOO_DEEP)

    def members(self, node: Node) -> list[Node]:
        """Return the members of an object, including duplicate keys."""
        found = []
        at = self.skip(node.start + 1)
        while self._plain[at] != "}":
            key, key_end = _DECODER.raw_decode(self._plain, at)
            start = self.skip(self.skip(key_end) + 1)
            value, end = _DECODER.raw_decode(self._plain, start)
            found.append(Node(key, at, key_end, start, end, value))
            at = self.skip(end)
            at = self.skip(at + 1) if self._plain[at] == "," else at
        return found

    def skip(self, at: int) -> int:
        """Return the position after white space, comments and trailing commas."""
        found = _SPACE.match(self._plain, at)
        return found.end() if found else at

    def error(self, at: int, what: str) -> ConfigError:
        place = Location(self.source, line_number(self.text, at))
        return ConfigError(f"{place}: {what}", location=place)

    def _blank(self, found: re.Match[str]) -> str:
        token = found[0]
        if token.startswith("/*") and (len(token) < len("/**/") or not token.endswith("*/")):
            raise self.error(found.start(), "is not valid JSON: unterminated comment")
        return token if token.startswith('"') else " " * len(token)


def parse(text: str, source: str) -> Any:
    """Return the value of a text; an empty object if it contains only comments."""
    root = JsonDocument(text, source).root
    return {} if root is None else root.value


def edits_for(
    text: str, source: str, path: Sequence[str], new: JsonMapping, updated_keys: Sequence[str]
) -> list[Edit]:
    """Return the edits that put `new` at the path.

    In an existing entry, only the keys in `updated_keys` change.
    """
    document = JsonDocument(text, source)
    if document.root is None:
        line_break = detect_line_break(text)
        before = (
            line_break if text.strip("\ufeff \t\r\n") and not text.endswith(("\n", "\r")) else ""
        )
        rendered = json.dumps(replace_value({}, path, new), indent=2, ensure_ascii=False)
        return [insertion(len(text), before + rendered.replace("\n", line_break) + line_break)]
    edits = _Editor(document).edits(document.root, path, new, updated_keys)
    message = (
        f"cannot add {'.'.join(path)} to {source} without changing other lines; edit it manually"
    )
    old = value_at(document.root.value, path)
    entry = {**(old or {}), **merge_entry(old, new, updated_keys)}
    wanted = replace_value(document.root.value, path, entry)
    verify(apply_edits(text, edits), lambda edited: parse(edited, source), wanted, message)
    return edits


class _Editor:
    def __init__(self, document: JsonDocument) -> None:
        self._document = document
        self._text = document.text
        self._line_break = detect_line_break(document.text)
        indented = re.search(r'[\r\n]([ \t]+)"', document.text)
        self._unit = indented[1] if indented else "  "

    def edits(
        self, node: Node, path: Sequence[str], new: JsonMapping, updated_keys: Sequence[str]
    ) -> list[Edit]:
        is_flat = False
        for depth in range(len(path) + 1):
            if not isinstance(node.value, dict):
                what = ".".join(path[:depth]) or "the file"
                raise self._document.error(node.start, f"{what} must be an object ({{...}})")
            is_flat = self._is_flat(node, is_flat)
            if depth < len(path):
                found = self._find(node, path[depth])
                if found is None:
                    return self._add(node, replace_value({}, path[depth:], new), is_flat)
                node = found
        return self._update(node, {key: new[key] for key in updated_keys if key in new}, is_flat)

    def _update(self, node: Node, wanted: JsonMapping, is_flat: bool) -> list[Edit]:
        edits = []
        missing = {}
        for key, value in wanted.items():
            found = self._find(node, key)
            if found is None:
                missing[key] = value
            elif isinstance(value, dict) and isinstance(found.value, dict):
                edits += self._update(found, value, self._is_flat(found, is_flat))
            elif found.value != value:
                in_one_line = self._is_flat(found, True)
                edits.append(
                    Edit(
                        found.start,
                        found.end,
                        self._render(value, self._indent(found.start), in_one_line),
                    )
                )
        return edits + (self._add(node, missing, is_flat) if missing else [])

    def _add(self, node: Node, new: JsonMapping, is_flat: bool) -> list[Edit]:
        """Add after the last member and the comments in its line; the comma follows the value
        directly.
        """
        members = self._document.members(node)
        if not members:
            return [self._add_first(node, new, is_flat)]
        last = members[-1]
        comma = re.compile(r"[ \t\r\n]*,").match(self._document.uncommented, last.end)
        end = comma.end() if comma else last.end
        comments = (_COMMENTS_IN_LINE if is_flat else _COMMENTS_TO_LINE_END).match(self._text, end)
        at = comments.end() if comments else end
        is_first = not self._text[line_start(self._text, last.key_start) : last.key_start].strip(
            " \t"
        )
        indent = self._indent(last.key_start) if is_first else self._indent(node.start) + self._unit
        inserted = self._members(
            new, indent, is_flat, is_tight=self._text[last.key_end : last.start] == ":"
        )
        if comma:
            return [insertion(at, inserted + ",")]
        return (
            [insertion(end, "," + inserted)]
            if at == end
            else [insertion(end, ","), insertion(at, inserted)]
        )

    def _add_first(self, node: Node, new: JsonMapping, is_flat: bool) -> Edit:
        """Add to an object that is empty or contains only comments."""
        comments = _LAST_COMMENT.match(self._text, node.start + 1)
        at = comments.end() if comments else node.start + 1
        if is_flat:
            return insertion(at, self._members(new, "", is_flat).strip())
        outer = self._indent(node.start)
        closing = (
            ""
            if {"\n", "\r"} & set(self._text[at : self._document.skip(at)])
            else self._line_break + outer
        )
        return insertion(at, self._members(new, outer + self._unit, is_flat) + closing)

    def _members(self, new: JsonMapping, indent: str, is_flat: bool, is_tight: bool = False) -> str:
        is_tight = is_tight and is_flat
        before = ("" if is_tight else " ") if is_flat else self._line_break + indent
        colon = ":" if is_tight else ": "
        return ",".join(
            f"{before}{json.dumps(key, ensure_ascii=False)}{colon}{self._render(value, indent, is_flat, is_tight)}"
            for key, value in new.items()
        )

    def _render(self, value: Any, indent: str, is_flat: bool, is_tight: bool = False) -> str:
        if is_flat:
            return json.dumps(
                value, ensure_ascii=False, separators=(",", ":") if is_tight else None
            )
        lines = json.dumps(value, indent=self._unit, ensure_ascii=False)
        # Lists of arguments are written in one line.
        lines = _SHORT_LIST.sub(lambda found: "[" + re.sub(r",\n\s*", ", ", found[1]) + "]", lines)
        return lines.replace("\n", self._line_break + indent)

    def _is_flat(self, node: Node, inherited: bool) -> bool:
        """Return whether an object or list is written in one line; an empty object inherits it from
        its parent.
        """
        members = self._document.members(node) if isinstance(node.value, dict) else []
        inside = self._text[node.start : members[0].key_start if members else node.end]
        return not {"\n", "\r"} & set(inside) and (inherited or bool(members))

    def _indent(self, position: int) -> str:
        line = self._text[line_start(self._text, position) : position]
        return line[: len(line) - len(line.lstrip(" \t"))]

    def _find(self, node: Node, key: str) -> Node | None:
        found = [member for member in self._document.members(node) if member.key == key]
        if len(found) > 1:
            lines = " and ".join(str(line_number(self._text, member.start)) for member in found)
            source = self._document.source
            raise ConfigError(
                f"{source}: duplicate key {key} (lines {lines})", hint="delete one of them"
            )
        return found[0] if found else None
