"""Adding members to a JSON text as a careful person would: comments, order, indentation and line ends stay.

A new entry is only ever inserted; taking what was inserted away gives the old text back. Of an entry that is there,
only the values that differ are replaced.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ot.clients.edits import Edit, applied, indent_of, insertion, is_first_in_line, line_break_of, line_of, with_value
from ot.clients.jsonc import Member, Node, parse
from ot.errors import ConfigError

_COMMENTS_TO_LINE_END = re.compile(r"(?:[ \t]*/\*(?:(?!\*/)[^\r\n])*\*/)*(?:[ \t]*//[^\r\n]*)?")
_COMMENTS_IN_LINE = re.compile(r"(?:[ \t]*/\*(?:(?!\*/)[^\r\n])*\*/)*")
_LAST_COMMENT = re.compile(r"(?:[ \t\r\n]*(?://[^\r\n]*|/\*.*?\*/))*", re.DOTALL)


def edits_for(
    text: str, source: str, path: Sequence[str], new: Mapping[str, Any], kept_current: Sequence[str]
) -> list[Edit]:
    """What makes `new` stand at the path. Of an entry that is there, only the keys in `kept_current` are changed."""
    root = parse(text, source)
    if root is None:
        return [_document(text, _nested(path, new))]
    edits = _Editor(text, source, root).at(path, new, kept_current)
    _prove(text, source, edits, root, path)
    return edits


def _prove(text: str, source: str, edits: Sequence[Edit], root: Node, path: Sequence[str]) -> None:
    """Whatever we do not know about this text: all but our own entry must read as before."""
    old, new = root.data, parse(applied(text, edits), source)
    entry = new.data if new is not None else None
    for key in path:
        entry = entry.get(key) if isinstance(entry, dict) else None
    if new is None or entry is None or new.data != with_value(old, path, entry):
        raise ConfigError(f"{source}: {'.'.join(path)} cannot be added without touching other lines; do it by hand")


def _nested(path: Sequence[str], value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


def _document(text: str, value: Any) -> Edit:
    line_break = line_break_of(text)
    before = line_break if text.strip("\ufeff \t\r\n") and not text.endswith(("\n", "\r")) else ""
    rendered = json.dumps(value, indent=2, ensure_ascii=False).replace("\n", line_break)
    return insertion(len(text), before + rendered + line_break)


class _Editor:
    def __init__(self, text: str, source: str, root: Node) -> None:
        self._text = text
        self._source = source
        self._root = root
        self._line_break = line_break_of(text)
        self._unit = self._indent_unit()

    def at(self, path: Sequence[str], new: Mapping[str, Any], kept_current: Sequence[str]) -> list[Edit]:
        node, flat = self._object(self._root, "the file"), False
        for depth, key in enumerate(path):
            flat = self._is_flat(node, flat)
            found = self._only(node, key)
            if found is None:
                return self._added(node, {key: _nested(path[depth + 1 :], new)}, flat)
            node = self._object(found.node, ".".join(path[: depth + 1]))
        return self._updated(node, {key: new[key] for key in kept_current if key in new}, flat)

    def _updated(self, node: Node, wanted: Mapping[str, Any], flat: bool) -> list[Edit]:
        edits, missing = [], {}
        for key, value in wanted.items():
            found = self._only(node, key)
            if found is None:
                missing[key] = value
            elif isinstance(value, dict) and found.node.kind == "{":
                edits += self._updated(found.node, value, self._is_flat(node, flat))
            elif found.node.data != value:
                rendered = self._rendered(value, indent_of(self._text, found.start), self._is_flat(found.node, True))
                edits.append(Edit(found.node.start, found.node.end, rendered))
        flat = self._is_flat(node, flat)
        return edits + (self._added(node, missing, flat) if missing else [])

    def _added(self, node: Node, new: Mapping[str, Any], flat: bool) -> list[Edit]:
        return self._behind(node, new, flat) if node.members else [self._inside(node, new, flat)]

    def _behind(self, node: Node, new: Mapping[str, Any], flat: bool) -> list[Edit]:
        """Behind the last member and the comments in its line; its comma stands directly behind its value."""
        last = node.members[-1]
        end = last.node.end if node.comma is None else node.comma + 1
        comments = (_COMMENTS_IN_LINE if flat else _COMMENTS_TO_LINE_END).match(self._text, end)
        at = comments.end() if comments else end
        members = self._members(new, self._child_indent(node, last), flat, last)
        inserted = members + ("" if node.comma is None else ",")
        if node.comma is not None:
            return [insertion(at, inserted)]
        return [insertion(end, "," + inserted)] if at == end else [insertion(end, ","), insertion(at, inserted)]

    def _inside(self, node: Node, new: Mapping[str, Any], flat: bool) -> Edit:
        """Into an object that holds nothing, or nothing but comments."""
        comments = _LAST_COMMENT.match(self._text, node.start + 1, node.end - 1)
        at = comments.end() if comments else node.start + 1
        if flat:
            return insertion(at, self._members(new, "", flat, None).strip())
        outer, rest = indent_of(self._text, node.start), self._text[at : node.end - 1]
        closing = "" if "\n" in rest or "\r" in rest else self._line_break + outer
        return insertion(at, self._members(new, outer + self._unit, flat, None) + closing)

    def _members(self, new: Mapping[str, Any], indent: str, flat: bool, example: Member | None) -> str:
        tight = flat and example is not None and self._text[example.key_end : example.node.start] == ":"
        before = ("" if tight else " ") if flat else self._line_break + indent
        colon = ":" if tight else ": "
        rendered = (
            f"{before}{json.dumps(key, ensure_ascii=False)}{colon}{self._rendered(value, indent, flat, tight)}"
            for key, value in new.items()
        )
        return ",".join(rendered)

    def _rendered(self, value: Any, indent: str, flat: bool, tight: bool = False) -> str:
        if flat:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":") if tight else None)
        lines = json.dumps(value, indent=self._unit, ensure_ascii=False)
        # Lists of arguments stand in one line, as people write them.
        lines = re.sub(r'\[\n\s*((?:"(?:[^"\\]|\\.)*"(?:,\n\s*)?)*)\n\s*\]', _one_line, lines)
        return lines.replace("\n", self._line_break + indent)

    def _child_indent(self, node: Node, last: Member) -> str:
        if is_first_in_line(self._text, last.start):
            return indent_of(self._text, last.start)
        return indent_of(self._text, node.start) + self._unit

    def _is_flat(self, node: Node, inherited: bool) -> bool:
        """Whether the object stands in one line; an empty one does as the object around it does."""
        if node.kind == "[":
            return "\n" not in self._text[node.start : node.end]
        before = self._text[node.start : node.members[0].start if node.members else node.end]
        in_one_line = "\n" not in before and "\r" not in before
        return in_one_line if node.members else in_one_line and inherited

    def _indent_unit(self) -> str:
        """One step of indentation, as the first member that begins a line shows it."""
        node = self._root
        while node.kind == "{" and node.members:
            member = node.members[0]
            inner, outer = indent_of(self._text, member.start), indent_of(self._text, node.start)
            if is_first_in_line(self._text, member.start) and len(inner) > len(outer):
                return inner.removeprefix(outer)
            node = member.node
        return "  "

    def _only(self, node: Node, key: str) -> Member | None:
        found = node.all_of(key)
        if len(found) > 1:
            lines = " and ".join(str(line_of(self._text, member.start)) for member in found)
            raise ConfigError(f"{self._source}: {key} stands in lines {lines}; keep one of them, then try again")
        return found[0] if found else None

    def _object(self, node: Node, what: str) -> Node:
        if node.kind != "{":
            place = f"{self._source}:{line_of(self._text, node.start)}"
            raise ConfigError(f"{place}: {what} must be an object, {{...}}; correct it, then try again")
        return node


def _one_line(found: re.Match[str]) -> str:
    return "[" + re.sub(r",\n\s*", ", ", found[1]) + "]"
