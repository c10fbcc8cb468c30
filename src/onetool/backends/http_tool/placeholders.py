"""Placeholders in the templates of an HTTP tool, and their values in a call.

`${name}` is an argument, `${name.key[0]}` a part of one, `${secret:NAME}` a secret, and `$${` a literal `${`.
`${csv:name}` is a list joined by commas, `${pipes:name}` by pipes, `${ssv:name}` by spaces and `${tsv:name}` by tabs.
In a URL, a comma in an item is encoded; elsewhere an item that contains the separator is rejected.

A template is parsed once into literal parts and placeholders. Values are never parsed: a value that looks like a
placeholder is plain text. Each part of the request escapes values for its own format.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from onetool.errors import ArgumentError, ToolError

MISSING: Final = object()
_DOLLARS = re.compile(r"(?<!\$)\$++(?=\{)")
SEPARATORS: Final = {"csv": ",", "pipes": "|", "ssv": " ", "tsv": "\t"}
_PLACEHOLDER = re.compile(
    r"\{(?:secret:(?P<secret>[A-Za-z_][A-Za-z0-9_]*)"
    rf"|(?:(?P<joined>{'|'.join(SEPARATORS)}):)?(?P<name>\w[\w-]*)(?P<steps>(?:\.\w[\w-]*|\[[0-9]{{1,9}}\])*))\}}"
)
_STEP = re.compile(r"\.([\w-]+)|\[([0-9]+)\]")


class Placeholder(NamedTuple):
    """The source of a value: a secret, or an argument with a path into it, and the separator of a list."""

    name: str
    steps: tuple[str | int, ...] = ()
    is_secret: bool = False
    joined: str | None = None  # one of SEPARATORS

    def __str__(self) -> str:
        steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.steps)
        kind = "secret:" if self.is_secret else f"{self.joined}:" if self.joined else ""
        return f"${{{kind}{self.name}{steps}}}"


class Spelling(NamedTuple):
    """The encoding of text and of the separators of joined lists."""

    text: Callable[[str], str]
    separator: Callable[[str], str]


AS_IT_IS: Final = Spelling(str, str)
# Only a comma is allowed as a separator in a URL; commas in items are encoded, so that both differ.
IN_A_URL: Final = Spelling(partial(quote, safe=""), partial(quote, safe=","))


Parts = tuple[str | Placeholder, ...]


def parse(text: str) -> Parts:
    """Parse a template into literal parts and placeholders. `$${` is a literal `${`."""
    if not is_whole(text):
        raise ValueError("contains an unpaired surrogate")
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
            f"invalid placeholder at {shown!r}: expected ${{name}}, ${{name.key[0]}}, ${{csv:name}} for a list "
            "(or pipes, ssv, tsv) or ${secret:NAME}; write $${ for a literal ${"
        )
    return match


def _placeholder(match: re.Match[str]) -> Placeholder:
    if match["secret"]:
        return Placeholder(match["secret"], is_secret=True)
    steps = (int(index) if index else key for key, index in _STEP.findall(match["steps"]))
    return Placeholder(match["name"], tuple(steps), joined=match["joined"])


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
    """Return a text; raise if it contains a placeholder."""
    parts = parse(text)
    if placeholders_in(parts):
        raise ValueError(f"{text!r}: placeholders are not allowed in {where}")
    return "".join(map(str, parts))


class Values:
    """The values of placeholders in one call. `revealed` collects the secrets that were used."""

    def __init__(self, args: Mapping[str, Any], required: frozenset[str], secrets: Callable[[str], str | None]) -> None:
        self._args, self._required, self._secrets = args, required, secrets
        self.revealed: set[str] = set()

    def of(self, placeholder: Placeholder) -> Any:
        """Return the value, or the text of a joined list; `MISSING` for an omitted optional argument."""
        found = self._found(placeholder)
        return _joined(found, placeholder, AS_IT_IS) if isinstance(found, _Items) else found

    def text(self, placeholder: Placeholder, spelling: Spelling = AS_IT_IS) -> str | None:
        """Return the value as text; None for an optional argument that is omitted or null."""
        found = self._found(placeholder)
        if isinstance(found, _Items):
            return _joined(found, placeholder, spelling)
        if found is not None and found is not MISSING:
            return spelling.text(text_of(found, placeholder))
        if self._is_required(placeholder):
            raise _needed(placeholder)
        return None

    def needed(self, placeholder: Placeholder, spelling: Spelling = AS_IT_IS) -> str:
        """Return the value as text; raise if there is none."""
        text = self.text(placeholder, spelling)
        if text is None:
            raise _needed(placeholder)
        return text

    def joined(self, parts: Parts) -> str:
        """Return the filled template; raise if a value is missing."""
        return "".join([part if isinstance(part, str) else self.needed(part) for part in parts])

    def _found(self, placeholder: Placeholder) -> Any:
        if placeholder.is_secret:
            return self._secret(placeholder.name)
        found = self._args.get(placeholder.name, MISSING)
        for step in placeholder.steps:
            found = _inside(found, step)
        if placeholder.joined and found is not None and found is not MISSING:
            found = _items(found)
        if found is MISSING and self._is_required(placeholder):
            raise _needed(placeholder)
        return found

    def _is_required(self, placeholder: Placeholder) -> bool:
        return not placeholder.steps and placeholder.name in self._required

    def _secret(self, name: str) -> str:
        secret = self._secrets(name)
        if secret is None:
            raise ToolError(f"secret {name} is not set", secret=name, hint=f"add it to secrets.yaml as {name}: …")
        self.revealed.add(secret)
        return secret


def _inside(found: Any, step: str | int) -> Any:
    if isinstance(step, int):
        return found[step] if isinstance(found, list | tuple) and step < len(found) else MISSING
    return found.get(step, MISSING) if isinstance(found, Mapping) else MISSING


class _Items(list[Any]):
    """The items of a list to join."""


def _items(value: Any) -> Any:
    """Return the items to join; a single value is a list of one. An empty list counts as missing."""
    given = value if isinstance(value, list | tuple) else [value]
    return _Items(item for item in given if item is not None) or MISSING


def _joined(items: _Items, placeholder: Placeholder, spelling: Spelling) -> str:
    plain = SEPARATORS[placeholder.joined or ""]
    separator = spelling.separator(plain)
    texts = [spelling.text(text_of(item, placeholder)) for item in items]
    if any(separator in text for text in texts):
        raise unfit([placeholder], f"has an item that contains the separator {plain!r}")
    return separator.join(texts)


def _needed(placeholder: Placeholder) -> ArgumentError:
    return ArgumentError(f"{placeholder} has no value: argument {placeholder.name} is required")


def unfit(placeholders: Sequence[Placeholder], problem: str) -> ToolError:
    """Return the error for an invalid value. An invalid secret is not the fault of the caller."""
    kind = ToolError if all(placeholder.is_secret for placeholder in placeholders) else ArgumentError
    return kind(f"{' and '.join(map(str, placeholders))} {problem}")


def text_of(value: Any, placeholder: Placeholder) -> str:
    """Return a string, number or boolean as text. Raise for lists and objects, which have no standard form."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str() if is_whole(value):
            return value
        case str():
            raise unfit([placeholder], "contains an unpaired surrogate")
    kind = "a list" if isinstance(value, list | tuple) else "an object"
    raise ArgumentError(f"{placeholder} is {kind}: expected a string, number or boolean")


def is_whole(text: str) -> bool:
    """Return whether the text can be encoded: JSON escapes can produce unpaired surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
