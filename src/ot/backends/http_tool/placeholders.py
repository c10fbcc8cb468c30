"""`${name}`, `${name.path[0]}` and `${secret:NAME}` in the texts of an HTTP tool, and what they stand for in a call.

A text is parsed once into literal parts and placeholders. Values are looked up, never parsed: one that looks like a
placeholder is plain text. How a value is written, so that it stays in its place, is the business of each place.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ot.errors import ArgumentError, ToolError

MISSING: Final = object()
_DOLLARS = re.compile(r"(?<!\$)\$++(?=\{)")
_PLACEHOLDER = re.compile(
    r"\{(?:secret:(?P<secret>[A-Za-z_][A-Za-z0-9_]*)|(?P<name>\w[\w-]*)(?P<steps>(?:\.\w[\w-]*|\[[0-9]{1,9}\])*))\}"
)
_STEP = re.compile(r"\.([\w-]+)|\[([0-9]+)\]")


class Placeholder(NamedTuple):
    """Where a value comes from: a secret, or an argument and the steps down into it."""

    name: str
    steps: tuple[str | int, ...] = ()
    is_secret: bool = False

    def __str__(self) -> str:
        steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.steps)
        return f"${{{'secret:' if self.is_secret else ''}{self.name}{steps}}}"


Parts = tuple[str | Placeholder, ...]


def parse(text: str) -> Parts:
    """The literal parts and the placeholders, in order. Two dollars before a brace are one that is meant as such."""
    if not is_whole(text):
        raise ValueError("has half of a surrogate pair in it, which is no text")
    parts: list[str | Placeholder] = []
    at = 0
    for dollars in _DOLLARS.finditer(text):
        escaped, opens = divmod(len(dollars[0]), 2)
        parts.append(text[at : dollars.start()] + "$" * escaped)
        at = dollars.end()
        if opens:
            match = _match(text, at)
            parts.append(_placeholder(match))
            at = match.end()
    return _merged([*parts, text[at:]])


def _match(text: str, at: int) -> re.Match[str]:
    match = _PLACEHOLDER.match(text, at)
    if match is None:
        shown = text[at - 1 : at + 40]
        raise ValueError(
            f"{shown!r} begins with a placeholder that is not well formed; write ${{name}}, ${{name.key[0]}} or "
            "${secret:NAME}, and $${ for the text ${ itself"
        )
    return match


def _placeholder(match: re.Match[str]) -> Placeholder:
    if match["secret"]:
        return Placeholder(match["secret"], is_secret=True)
    steps = (int(index) if index else key for key, index in _STEP.findall(match["steps"]))
    return Placeholder(match["name"], tuple(steps))


def _merged(parts: Iterable[str | Placeholder]) -> Parts:
    merged: list[str | Placeholder] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        elif part:
            merged.append(part)
    return tuple(merged)


def placeholders_in(parts: Iterable[str | Placeholder]) -> list[Placeholder]:
    return [part for part in parts if isinstance(part, Placeholder)]


def fixed(text: str, where: str) -> str:
    """A text that may hold no placeholder."""
    parts = parse(text)
    if placeholders_in(parts):
        raise ValueError(f"{text!r}: a placeholder cannot stand in {where}")
    return "".join(map(str, parts))


class Values:
    """What the placeholders stand for in one call. `revealed` has the secrets that were looked up on the way."""

    def __init__(self, args: Mapping[str, Any], required: frozenset[str], secrets: Callable[[str], str | None]) -> None:
        self._args, self._required, self._secrets = args, required, secrets
        self.revealed: set[str] = set()

    def of(self, placeholder: Placeholder) -> Any:
        """The value as it is; `MISSING` for an optional one that was not given."""
        if placeholder.is_secret:
            return self._secret(placeholder.name)
        found = self._args.get(placeholder.name, MISSING)
        for step in placeholder.steps:
            found = _inside(found, step)
        if found is MISSING and self._is_required(placeholder):
            raise _needed(placeholder)
        return found

    def text(self, placeholder: Placeholder) -> str | None:
        """The value as text; None for an optional one that was not given, or given as null."""
        found = self.of(placeholder)
        if found is not None and found is not MISSING:
            return text_of(found, placeholder)
        if self._is_required(placeholder):
            raise _needed(placeholder)
        return None

    def needed(self, placeholder: Placeholder) -> str:
        """The value as text, where there must be one."""
        text = self.text(placeholder)
        if text is None:
            raise _needed(placeholder)
        return text

    def joined(self, parts: Parts) -> str:
        """The whole text, where no value may be missing."""
        return "".join([part if isinstance(part, str) else self.needed(part) for part in parts])

    def _is_required(self, placeholder: Placeholder) -> bool:
        return not placeholder.steps and placeholder.name in self._required

    def _secret(self, name: str) -> str:
        secret = self._secrets(name)
        if secret is None:
            raise ToolError(f"the secret {name} is not set; put it into secrets.yaml as {name}: …", secret=name)
        self.revealed.add(secret)
        return secret


def _inside(found: Any, step: str | int) -> Any:
    if isinstance(step, int):
        return found[step] if isinstance(found, list | tuple) and step < len(found) else MISSING
    return found.get(step, MISSING) if isinstance(found, Mapping) else MISSING


def _needed(placeholder: Placeholder) -> ArgumentError:
    return ArgumentError(f"{placeholder} has no value and the request needs one: give {placeholder.name}")


def unfit(placeholders: Sequence[Placeholder], problem: str) -> ToolError:
    """A value that cannot stand where it should. One that is a secret is not told, and not the caller's fault."""
    kind = ToolError if all(placeholder.is_secret for placeholder in placeholders) else ArgumentError
    return kind(f"{' and '.join(map(str, placeholders))} {problem}")


def text_of(value: Any, placeholder: Placeholder) -> str:
    """A text, a number or a boolean as text. Lists and objects have no text that a server would understand."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str() if is_whole(value):
            return value
        case str():
            raise unfit([placeholder], "has half of a surrogate pair in it, which is no text")
    kind = "a list" if isinstance(value, list | tuple) else "an object"
    raise ArgumentError(f"{placeholder} is {kind}; text, a number, true or false can stand there")


def is_whole(text: str) -> bool:
    """Whether it can be sent at all: JSON can spell half of a character that takes two."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
