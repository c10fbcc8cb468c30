"""Placeholders in the templates of an HTTP tool, and their values in a call.

`${name}` is an argument, `${name.key[0]}` a part of one, `${secret:NAME}` a secret, and `$${` a literal `${`.
`${steps.name.body.key}` is a part of the response of an earlier step. `${file:name}` is the content of a file, which
only bodies accept.

`${csv:name}` is a list joined by commas, `${pipes:name}` by pipes, `${ssv:name}` by spaces and `${tsv:name}` by tabs.
In a URL, a comma in an item is encoded; elsewhere an item that contains the separator is rejected.

A template is parsed once into literal parts and placeholders. Values are never parsed: a value that looks like a
placeholder is plain text. Each part of the request escapes values for its own format.
"""

import json
import re
import secrets as random_tokens
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from onetool.errors import ArgumentError, ToolError

MISSING: Final = object()
STEPS: Final = "steps"  # the name before the name of a step
MAX_FILES: Final = 100  # of one argument
MAX_FILLED_CHARS: Final = 64 << 20  # of all values of one call, without files
_DOLLARS = re.compile(r"(?<!\$)\$++(?=\{)")
SEPARATORS: Final = {"csv": ",", "pipes": "|", "ssv": " ", "tsv": "\t"}
_PLACEHOLDER = re.compile(
    r"\{(?:secret:(?P<secret>[A-Za-z_][A-Za-z0-9_]*)"
    rf"|(?:(?P<kind>{'|'.join(SEPARATORS)}|file):)?(?P<name>\w[\w-]*)(?P<steps>(?:\.\w[\w-]*|\[[0-9]{{1,9}}\])*))\}}"
)
_STEP = re.compile(r"\.([\w-]+)|\[([0-9]+)\]")


class Placeholder(NamedTuple):
    """The source of a value: a secret, an argument with a path into it, or a file that an argument names."""

    name: str
    steps: tuple[str | int, ...] = ()
    is_secret: bool = False
    list_format: str | None = None  # one of SEPARATORS
    is_file: bool = False

    @property
    def may_be_step(self) -> bool:
        """Whether this is a part of the response of a step, if the tool has steps."""
        return self.name == STEPS and bool(self.steps) and not self.is_secret

    def __str__(self) -> str:
        steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.steps)
        kind = "secret" if self.is_secret else "file" if self.is_file else self.list_format
        return f"${{{f'{kind}:' if kind else ''}{self.name}{steps}}}"


class UploadedFile(NamedTuple):
    """The content of a file that an argument names, or that it contains."""

    data: bytes
    name: str = ""
    content_type: str = ""


class ValueEncoding(NamedTuple):
    """The encoding of text and of the separators of joined lists."""

    text: Callable[[str], str]
    separator: Callable[[str], str]


PLAIN: Final = ValueEncoding(str, str)
# Only a comma is allowed as a separator in a URL; commas in items are encoded, so that both differ.
URL_ENCODED: Final = ValueEncoding(partial(quote, safe=""), partial(quote, safe=","))


Parts = tuple[str | Placeholder, ...]


def parse(text: str, *, allow_file: bool = False) -> Parts:
    """Parse a template into literal parts and placeholders. `$${` is a literal `${`.

    With `allow_file`, the template may be a single `${file:name}`.
    """
    if not is_encodable(text):
        raise ValueError("contains an unpaired surrogate")
    parts: list[str | Placeholder] = []
    position = 0
    for dollars in _DOLLARS.finditer(text):
        escaped, opens = divmod(len(dollars[0]), 2)
        parts.append(text[position : dollars.start()] + "$" * escaped)
        position = dollars.end()
        if opens:
            match = _match_placeholder(text, position)
            parts.append(_to_placeholder(match))
            position = match.end()
    merged = _merge_literals([*parts, text[position:]])
    file = next((part for part in merged if isinstance(part, Placeholder) and part.is_file), None)
    if file and not (allow_file and len(merged) == 1):
        raise ValueError(f"{file} is only allowed as the whole body, or as the whole value of a multipart part")
    return merged


def _match_placeholder(text: str, position: int) -> re.Match[str]:
    match = _PLACEHOLDER.match(text, position)
    if match is None:
        excerpt = text[position - 1 : position + 40]
        raise ValueError(
            f"invalid placeholder at {excerpt!r}: expected ${{name}}, ${{name.key[0]}}, ${{csv:name}} for a list "
            "(or pipes, ssv, tsv), ${file:name} or ${secret:NAME}; write $${ for a literal ${"
        )
    return match


def _to_placeholder(match: re.Match[str]) -> Placeholder:
    if match["secret"]:
        return Placeholder(match["secret"], is_secret=True)
    steps = (int(index) if index else key for key, index in _STEP.findall(match["steps"]))
    is_file = match["kind"] == "file"
    return Placeholder(match["name"], tuple(steps), False, None if is_file else match["kind"], is_file)


def _merge_literals(parts: Iterable[str | Placeholder]) -> Parts:
    merged: list[str | Placeholder] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        elif part:
            merged.append(part)
    return tuple(merged)


def list_placeholders(parts: Iterable[str | Placeholder]) -> list[Placeholder]:
    return [part for part in parts if isinstance(part, Placeholder)]


def require_literal(text: str, location: str) -> str:
    """Return the unescaped text; raise if it contains a placeholder."""
    parts = parse(text)
    if list_placeholders(parts):
        raise ValueError(f"{text!r}: placeholders are not allowed in {location}")
    return "".join(map(str, parts))


ReadFile = Callable[[Any, Placeholder], UploadedFile]


def _reject_file(_value: Any, placeholder: Placeholder) -> UploadedFile:
    raise ToolError(f"{placeholder} cannot be read: this tool has no access to files")


class Values:
    """The values of placeholders in one call. `used_secrets` collects the secrets of the request.

    `steps` are the responses of the steps so far, None for a tool without steps. `read_file` reads an uploaded file.
    """

    def __init__(
        self,
        args: Mapping[str, Any],
        required: frozenset[str],
        secrets: Callable[[str], str | None],
        *,
        steps: dict[str, Any] | None = None,
        read_file: ReadFile = _reject_file,
    ) -> None:
        self._args, self._required, self.get_secret = args, required, secrets
        self.steps, self._read_file, self._filled_chars = steps, read_file, 0
        self.used_secrets: set[str] = set()
        self.tokens: Mapping[
            str, str
        ] = {}  # of the current request: a secret that is not set is the token of a sign-in

    @cached_property
    def boundary(self) -> str:
        """The boundary of a multipart body. It is random, so that no value can contain it."""
        return random_tokens.token_hex(16)

    def is_step(self, placeholder: Placeholder) -> bool:
        return self.steps is not None and placeholder.may_be_step

    def get_files(self, placeholder: Placeholder) -> list[UploadedFile]:
        """Return the files that an argument names: one, several for a list, none if it is omitted or null."""
        value = self._look_up(placeholder)
        if value is None or value is MISSING:
            return []
        items = value if isinstance(value, list | tuple) else [value]
        if len(items) > MAX_FILES:
            raise invalid_value_error([placeholder], f"has more than {MAX_FILES} files")
        return [self._read_file(item, placeholder) for item in items]

    def get(self, placeholder: Placeholder) -> Any:
        """Return the value, or the text of a joined list; `MISSING` for an omitted optional argument."""
        value = self._look_up(placeholder)
        return _join_items(value, placeholder, PLAIN) if isinstance(value, _Items) else value

    def get_text(self, placeholder: Placeholder, encoding: ValueEncoding = PLAIN) -> str | None:
        """Return the value as text; None for an optional argument that is omitted or null."""
        value = self._look_up(placeholder)
        if isinstance(value, _Items):
            return _join_items(value, placeholder, encoding)
        if value is not None and value is not MISSING:
            return encoding.text(to_text(value, placeholder))
        if self._is_required(placeholder):
            raise _missing_value_error(placeholder, is_step=self.is_step(placeholder))
        return None

    def require_text(self, placeholder: Placeholder, encoding: ValueEncoding = PLAIN) -> str:
        """Return the value as text; raise if there is none."""
        text = self.get_text(placeholder, encoding)
        if text is None:
            raise _missing_value_error(placeholder)
        return text

    def fill(self, parts: Parts) -> str:
        """Return the filled template; raise if a value is missing."""
        return "".join([part if isinstance(part, str) else self.require_text(part) for part in parts])

    def _look_up(self, placeholder: Placeholder) -> Any:
        if placeholder.is_secret:
            return self._get_secret(placeholder.name)
        is_step = self.is_step(placeholder)
        value = self.steps if is_step else self._args.get(placeholder.name, MISSING)
        for step in placeholder.steps:
            value = _get_step(value, step)
        if placeholder.list_format and value is not None and value is not MISSING:
            value = _to_items(value)
        self._count(value, placeholder)
        if value is MISSING and self._is_required(placeholder):
            raise _missing_value_error(placeholder, is_step=is_step)
        return value

    def _count(self, value: Any, placeholder: Placeholder) -> None:
        """Raise if the values exceed the limit: a template may contain a placeholder thousands of times."""
        if isinstance(value, Mapping | list | tuple):
            with suppress(RecursionError):  # the part of the request rejects such a value
                self._filled_chars += len(json.dumps(value, default=str))
        elif isinstance(value, str):
            self._filled_chars += len(value)
        if self._filled_chars > MAX_FILLED_CHARS:
            raise invalid_value_error([placeholder], f"makes the request larger than {MAX_FILLED_CHARS:,} characters")

    def _is_required(self, placeholder: Placeholder) -> bool:
        if self.is_step(placeholder):
            return True
        return not placeholder.steps and placeholder.name in self._required

    def _get_secret(self, name: str) -> str:
        secret = self.get_secret(name) or self.tokens.get(name)
        if secret is None:
            raise ToolError(f"secret {name} is not set", secret=name, hint=f"onetool secret set {name}")
        self.used_secrets.add(secret)
        return secret


def _get_step(value: Any, step: str | int) -> Any:
    if isinstance(step, int):
        return value[step] if isinstance(value, list | tuple) and step < len(value) else MISSING
    return value.get(step, MISSING) if isinstance(value, Mapping) else MISSING


class _Items(list[Any]):
    """The items of a list to join."""


def _to_items(value: Any) -> Any:
    """Return the items to join; a single value is a list of one. An empty list counts as missing."""
    items = value if isinstance(value, list | tuple) else [value]
    return _Items(item for item in items if item is not None) or MISSING


def _join_items(items: _Items, placeholder: Placeholder, encoding: ValueEncoding) -> str:
    separator = SEPARATORS[placeholder.list_format or ""]
    encoded_separator = encoding.separator(separator)
    texts = [encoding.text(to_text(item, placeholder)) for item in items]
    if any(encoded_separator in text for text in texts):
        raise invalid_value_error([placeholder], f"has an item that contains the separator {separator!r}")
    return encoded_separator.join(texts)


def _missing_value_error(placeholder: Placeholder, *, is_step: bool = False) -> ToolError:
    if is_step:
        return ToolError(f"{placeholder} has no value: the response of step {placeholder.steps[0]} does not contain it")
    return ArgumentError(f"{placeholder} has no value: argument {placeholder.name} is required")


def invalid_value_error(placeholders: Sequence[Placeholder], problem: str) -> ToolError:
    """Return the error for an invalid value. An invalid secret is not the fault of the caller."""
    error_class = ToolError if all(placeholder.is_secret for placeholder in placeholders) else ArgumentError
    return error_class(f"{' and '.join(map(str, placeholders))} {problem}")


def to_text(value: Any, placeholder: Placeholder) -> str:
    """Return a string, number or boolean as text. Raise for lists and objects, which have no standard form."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str() if is_encodable(value):
            return value
        case str():
            raise invalid_value_error([placeholder], "contains an unpaired surrogate")
    kind = "a list" if isinstance(value, list | tuple) else "an object"
    raise ArgumentError(f"{placeholder} is {kind}: expected a string, number or boolean")


def is_encodable(text: str) -> bool:
    """Return whether the text can be encoded: JSON escapes can produce unpaired surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
