"""What a reader without any knowledge can take from a text: calls, signatures, names, suggestions, values.

No name of a tool or a pack stands here. All that is assumed is that the reader knows Python and YAML.
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
INSTEAD = re.compile(r"Did you mean ([^?\n]+)\?")
DESCRIBED = re.compile(r"^- (\w+) \([^\n]*?\)(?: - ([^\n]*))?$", re.MULTILINE)
NAME = re.compile(r"\$?[A-Za-z_][\w-]*(?:\.[\w-]+)*")
LISTED = re.compile(rf"^- ({NAME.pattern}):", re.MULTILINE)
NOTE = re.compile(r"^Note: [^\n]*\n", re.MULTILINE)  # a content block of its own, before the value
CLOSING = {"(": ")", "[": "]", "{": "}"}
EMPTY_WORDS = re.compile(r"a|an|and|are|as|at|be|by|for|from|how|if|in|is|it|me|of|on|or|the|there|to|what|which|with")


@dataclass(frozen=True)
class Shown:
    """A call, with whatever stands around it."""

    code: str
    call: ast.Call
    name: str

    @property
    def given(self) -> dict[str, Any]:
        """The texts that it gives by name, and those that only stand there to be replaced."""
        return {part.arg: _constant(part.value) for part in self.call.keywords if part.arg}


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


@dataclass(frozen=True)
class Reading:
    text: str = ""
    calls: list[Shown] = field(default_factory=list)
    snippets: list[str] = field(default_factory=list)
    signatures: list[Signature] = field(default_factory=list)
    short: dict[str, Signature] = field(default_factory=dict)  # of what is listed with a call beside its name
    instead: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    entries: list[Mapping[str, Any]] = field(default_factory=list)


def read(text: str) -> Reading:
    found = list(_calls(text))
    data = _data(NOTE.sub("", text))
    entries = list(_entries(data))
    short = (
        (entry["name"], _signature(str(entry["call"]), {})) for entry in entries if {"name", "call"} <= entry.keys()
    )
    described = {name: words or "" for name, words in DESCRIBED.findall(text)}
    return Reading(
        text=text,
        calls=[shown for shown in map(_shown, found) if shown is not None],
        snippets=SNIPPET.findall(text),
        signatures=[one for code in found if _is_announced(code, text) and (one := _signature(code, described))],
        short={str(name): one for name, one in short if one},
        instead=[name.strip() for names in INSTEAD.findall(text) for name in names.split(" or ")],
        names=_names(text, data, entries),
        entries=entries,
    )


def without_advice(text: str) -> str:
    """The same text for a reader who is told nothing: no call, no signature, no suggestion."""
    for told in [*_calls(text), *SNIPPET.findall(text)]:
        text = text.replace(told, "")
    return INSTEAD.sub("", text)


# --- calls -----------------------------------------------------------------------------------------------------------


def _calls(text: str) -> Iterator[str]:
    """Everything that looks like `name(…)`, with the brackets behind it."""
    end = 0
    for match in CALL.finditer(text):
        if match.start() >= end and (closed := _closed(text, match.end() - 1)):
            end = closed
            while end < len(text) and text[end] == "[" and (closed := _closed(text, end)):
                end = closed
            yield text[match.start() : end]


def _closed(text: str, start: int) -> int:
    """Behind the bracket that closes the one at the start; 0 where there is none."""
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


def _shown(code: str) -> Shown | None:
    try:
        tree = ast.parse(code, mode="eval").body
    except SyntaxError:
        return None
    call = next((node for node in ast.walk(tree) if isinstance(node, ast.Call)), None)
    return None if call is None else Shown(code, call, ast.unparse(call.func))


def _constant(node: ast.expr) -> Any:
    return node.value if isinstance(node, ast.Constant) else node


def _is_announced(code: str, text: str) -> bool:
    """Whether the text says that this is how something is called, and not only what to type."""
    return any(f"{before}{code}" in text for before in ("Signature: ", "called as ", "- "))


def _signature(code: str, described: Mapping[str, str]) -> Signature | None:
    """`name(a: int, b: str = '')`, or without the types; three dots at the end are what may be left out."""
    name, _, rest = re.sub(r"(?:, )?\.\.\.\)$", ")", code).partition("(")
    try:
        tree = ast.parse(f"def _({rest}: ...").body[0]
    except SyntaxError:
        return None
    assert isinstance(tree, ast.FunctionDef)
    if tree.args.vararg or tree.args.kwarg:
        return None
    needed = len(tree.args.args) - len(tree.args.defaults)
    parameters = (_parameter(one, described, required=at < needed) for at, one in enumerate(tree.args.args))
    return Signature(name, tuple(parameters))


def _parameter(one: ast.arg, described: Mapping[str, str], *, required: bool) -> Parameter:
    kind = "Any" if one.annotation is None else ast.unparse(one.annotation)
    return Parameter(one.arg, kind, required, described.get(one.arg, ""))


# --- names and values ------------------------------------------------------------------------------------------------


def _data(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return None


def _entries(data: Any) -> Iterator[Mapping[str, Any]]:
    """Records, from the outside in."""
    if isinstance(data, dict):
        yield data
    for part in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from _entries(part)


def _names(text: str, data: Any, entries: list[Mapping[str, Any]]) -> list[str]:
    """Names under `name`, in a list of names, or before a colon in a list."""
    listed = [entry["name"] for entry in entries if isinstance(entry.get("name"), str)]
    plain = [part for part in data if isinstance(part, str)] if isinstance(data, list) else []
    found = [*listed, *plain, *LISTED.findall(text)]
    return list(dict.fromkeys(name for name in found if NAME.fullmatch(name)))


# --- words -----------------------------------------------------------------------------------------------------------


def words_of(text: str) -> list[str]:
    """Lower case, apart at underscores and capitals, without plurals and words that say nothing."""
    apart = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).replace("_", " ").lower())
    return [word.removesuffix("s") or word for word in apart if not EMPTY_WORDS.fullmatch(word)]


def likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one.casefold(), other.casefold()).ratio()
