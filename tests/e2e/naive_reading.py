"""Extract calls, signatures, names, suggestions and values from a text, without knowledge of
OneTool.

This module contains no name of a tool or a pack. It only assumes the syntax of Python and YAML.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

import yaml

CALL = re.compile(r"(?<![\w.$\-\[])[A-Za-z_][\w.]*\(")
SNIPPET = re.compile(r"(?<!\S)\$[A-Za-z_]\w*(?: [A-Za-z_]\w*=\S+)+")
SUGGESTION = re.compile(r"Did you mean ([^?\n]+)\?")
DESCRIBED = re.compile(r"^- (\w+) \([^\n]*?\)(?: - ([^\n]*))?$", re.MULTILINE)
NAME = re.compile(r"\$?[A-Za-z_][\w-]*(?:\.[\w-]+)*")
LISTED = re.compile(rf"^- ({NAME.pattern}):", re.MULTILINE)
NOTE = re.compile(r"^Note: [^\n]*\n", re.MULTILINE)  # a separate content block before the value
CLOSING = {"(": ")", "[": "]", "{": "}"}
MORE = re.compile(r"To see more: (\w+)=(\d+)")
STOP_WORDS = re.compile(
    r"a|an|and|are|as|at|be|by|can|could|do|does|for|from|have|how|i|if|in|is|it|its|like|me|my|of|on|or|please|question"
    r"|some|thank|that|the|there|these|this|to|was|what|when|where|which|who|with|would|you"
)


@dataclass(frozen=True)
class ShownCall:
    """A call with the surrounding expression."""

    code: str
    call: ast.Call
    name: str

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments, including placeholders."""
        return {part.arg: _get_constant(part.value) for part in self.call.keywords if part.arg}


@dataclass(frozen=True)
class Parameter:
    name: str
    kind: str
    required: bool
    text: str = ""


@dataclass(frozen=True)
class Signature:
    name: str
    parameters: tuple[Parameter, ...]
    is_complete: bool = True  # whether it shows the optional parameters too


@dataclass(frozen=True)
class Reading:
    text: str = ""
    calls: list[ShownCall] = field(default_factory=list)
    snippets: list[str] = field(default_factory=list)
    signatures: list[Signature] = field(default_factory=list)
    short_signatures: dict[str, Signature] = field(
        default_factory=dict
    )  # signatures of list entries that have a call
    suggestions: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    entries: list[Mapping[str, Any]] = field(default_factory=list)
    more: dict[str, int] = field(default_factory=dict)  # the argument that shows more of a list
    value: Any = None


def read(text: str) -> Reading:
    found = list(_find_calls(text))
    data = _parse_yaml(NOTE.sub("", text))
    entries = list(_iterate_records(data))
    short_signatures = (
        (entry["name"], _parse_signature(str(entry["call"]), {}, entry.get("required")))
        for entry in entries
        if {"name", "call"} <= entry.keys()
    )
    described = {name: description or "" for name, description in DESCRIBED.findall(text)}
    return Reading(
        text=text,
        calls=[shown for shown in map(_parse_call, found) if shown is not None],
        snippets=SNIPPET.findall(text),
        signatures=[
            one
            for code in found
            if _is_announced(code, text) and (one := _parse_signature(code, described))
        ],
        short_signatures={str(name): one for name, one in short_signatures if one},
        suggestions=[
            name.strip() for names in SUGGESTION.findall(text) for name in names.split(" or ")
        ],
        names=_find_names(text, data, entries),
        entries=entries,
        more={name: int(number) for name, number in MORE.findall(text)},
        value=data,
    )


def remove_advice(text: str) -> str:
    """Return the text without calls, signatures and suggestions."""
    for advice in [*_find_calls(text), *SNIPPET.findall(text)]:
        text = text.replace(advice, "")
    return SUGGESTION.sub("", text)


# --- calls ----------------------------------------------------------------------------------------


def _find_calls(text: str) -> Iterator[str]:
    """Yield everything that looks like `name(…)`, with subscripts that follow it."""
    end = 0
    for match in CALL.finditer(text):
        if match.start() >= end and (closed := _find_end(text, match.end() - 1)):
            end = closed
            while end < len(text) and text[end] == "[" and (closed := _find_end(text, end)):
                end = closed
            yield text[match.start() : end]


def _find_end(text: str, start: int) -> int:
    """Return the position after the matching bracket, or 0."""
    open_, quote, at = [], "", start
    while at < len(text):
        sign = text[at]
        if quote:
            at += sign == "\\"
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in CLOSING:
            open_.append(CLOSING[sign])
        elif open_ and sign == open_[-1]:
            open_.pop()
            if not open_:
                return at + 1
        at += 1
    return 0


def _parse_call(code: str) -> ShownCall | None:
    try:
        tree = ast.parse(code, mode="eval").body
    except SyntaxError:
        return None
    call = next((node for node in ast.walk(tree) if isinstance(node, ast.Call)), None)
    return None if call is None else ShownCall(code, call, ast.unparse(call.func))


def _get_constant(node: ast.expr) -> Any:
    return node.value if isinstance(node, ast.Constant) else node


def _is_announced(code: str, text: str) -> bool:
    """Return whether the text presents this code as a signature."""
    return any(f"{before}{code}" in text for before in ("Signature: ", "called as ", "- "))


def _parse_signature(
    code: str, described: Mapping[str, str], kinds: object = None
) -> Signature | None:
    """Parse `name(a: int, b: str = '')`, also with `kinds` apart; trailing dots stand for optional
    parameters.
    """
    name, _, rest = (shown := re.sub(r"(?:, )?\.\.\.\)$", ")", code)).partition("(")
    try:
        tree = ast.parse(f"def _({rest}: ...").body[0]
    except SyntaxError:
        return None
    assert isinstance(tree, ast.FunctionDef)
    if tree.args.vararg or tree.args.kwarg:
        return None
    needed = len(tree.args.args) - len(tree.args.defaults)
    known = kinds if isinstance(kinds, dict) else {}
    parameters = (
        _make_parameter(one, described, known, required=at < needed)
        for at, one in enumerate(tree.args.args)
    )
    return Signature(name, tuple(parameters), is_complete=shown == code)


def _make_parameter(
    one: ast.arg, described: Mapping[str, str], kinds: Mapping[str, Any], *, required: bool
) -> Parameter:
    kind = str(kinds.get(one.arg, "Any")) if one.annotation is None else ast.unparse(one.annotation)
    return Parameter(one.arg, kind, required, described.get(one.arg, ""))


# --- names and values -----------------------------------------------------------------------------


def _parse_yaml(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return None


def _iterate_records(data: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all mappings, outer ones first; the types of required arguments are not values."""
    if isinstance(data, dict):
        yield data
        parts = [value for key, value in data.items() if key != "required"]
    else:
        parts = data if isinstance(data, list) else []
    for part in parts:
        yield from _iterate_records(part)


def _find_names(text: str, data: Any, entries: list[Mapping[str, Any]]) -> list[str]:
    """Return names under `name`, in a list of names, or before a colon in a list."""
    listed = [entry["name"] for entry in entries if isinstance(entry.get("name"), str)]
    plain = [part for part in data if isinstance(part, str)] if isinstance(data, list) else []
    found = [*listed, *plain, *LISTED.findall(text)]
    return list(dict.fromkeys(name for name in found if NAME.fullmatch(name)))


# --- words ----------------------------------------------------------------------------------------


def split_words(text: str) -> list[str]:
    """Split at underscores and capitals, and remove case, plurals and stop words."""
    apart = re.findall(
        r"[a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).replace("_", " ").lower()
    )
    return [word.removesuffix("s") or word for word in apart if not STOP_WORDS.fullmatch(word)]


def measure_similarity(one: str, other: str) -> float:
    return SequenceMatcher(None, one.casefold(), other.casefold()).ratio()
