"""Placeholders in the templates of an HTTP tool, and their values in a call.

`${name}` is an argument, `${name.key[0]}` a part of one, `${secret:NAME}` a secret, and `$${` a
literal `${`. `${steps.name.body.key}` is a part of the response of an earlier step. `${file:name}`
is the content of a file, which only bodies accept.

`${csv:name}` is a list joined by commas, `${pipes:name}` by pipes, `${ssv:name}` by spaces and
`${tsv:name}` by tabs. In a URL, a comma in an item is encoded; elsewhere an item that contains the
separator is rejected.

A template is parsed once into literal parts and placeholders. Values are never parsed: a value that
looks like a placeholder is plain text. Each part of the request escapes values for its own format.
"""

import json
import re
import secrets as random_tokens
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

from onetool.errors import ArgumentError, ToolError
from onetool.util.large_data import is_large
from onetool_child.json_types import JsonMapping, JsonObject

MISSING = object()
STEPS = "steps"  # the name before the name of a step
MAX_FILES = 100  # of one argument
MAX_FILLED_CHARS = 64 << 20  # of all values of one call, without files
LARGE_FILLED_CHARS = 20_000  # filling in more takes a millisecond or longer
SEPARATORS = {"csv": ",", "pipes": "|", "ssv": " ", "tsv": "\t"}
SECRET = "secret"  # noqa: S105 - a kind of placeholder
FILE = "file"
BOUNDARY = "boundary"
_DOLLARS = re.compile(r"(?<!\$)\$++(?=\{)")
_PLACEHOLDER = re.compile(
    r"\{(?:secret:(?P<secret>[A-Za-z_][A-Za-z0-9_]*)"
    rf"|(?:(?P<kind>{'|'.join(SEPARATORS)}|file):)?(?P<name>\w[\w-]*)(?P<path>(?:\.\w[\w-]*|\[[0-9]{{1,9}}\])*))\}}"
)
_PATH_KEY = re.compile(r"\.([\w-]+)|\[([0-9]+)\]")


class Placeholder(NamedTuple):
    """The source of a value: an argument or a part of it, a secret, a file, or a list to join."""

    name: str
    path: tuple[str | int, ...] = ()
    kind: str = ""  # SECRET, FILE, BOUNDARY or one of SEPARATORS

    @property
    def is_secret(self) -> bool:
        return self.kind == SECRET

    @property
    def is_file(self) -> bool:
        return self.kind == FILE

    @property
    def may_be_step(self) -> bool:
        """Whether this is a part of the response of a step, if the tool has steps."""
        return self.name == STEPS and bool(self.path) and not self.is_secret

    def __str__(self) -> str:
        path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.path)
        kind = f"{self.kind}:" if self.kind else ""
        return f"${{{kind}{self.name}{path}}}"


class UploadedFile(NamedTuple):
    """The content of a file that an argument names, or that it contains."""

    data: bytes
    name: str = ""
    content_type: str = ""


Parts = tuple[str | Placeholder, ...]
Encode = Callable[[str], str]  # for one part of a request
ReadFile = Callable[[Any, Placeholder], UploadedFile]


def parse(text: str, *, allow_file: bool = False) -> Parts:
    """Parse a template into literal parts and placeholders. `$${` is a literal `${`.

    With `allow_file`, the template may be a single `${file:name}`.
    """
    if not is_encodable(text):
        raise ValueError("contains an unpaired surrogate")
    parts: list[str | Placeholder] = []
    literal = ""
    position = 0
    for dollars in _DOLLARS.finditer(text):
        count = len(dollars[0])
        literal += text[position : dollars.start()] + "$" * (count // 2)
        position = dollars.end()
        if count % 2:
            match = _match_placeholder(text, position)
            parts += [literal, _to_placeholder(match)]
            literal = ""
            position = match.end()
    template = tuple(part for part in [*parts, literal + text[position:]] if part)
    for placeholder in list_placeholders(template):
        if placeholder.is_file and not (allow_file and len(template) == 1):
            raise ValueError(
                f"{placeholder} is only allowed as the whole body, or as the whole value of a"
                " multipart part"
            )
    return template


def _match_placeholder(text: str, position: int) -> re.Match[str]:
    match = _PLACEHOLDER.match(text, position)
    if match is None:
        excerpt = text[position - 1 : position + 40]
        raise ValueError(
            f"invalid placeholder at {excerpt!r}: expected ${{name}}, ${{name.key[0]}},"
            " ${csv:name} for a list (or pipes, ssv, tsv), ${file:name} or ${secret:NAME};"
            " write $${ for a literal ${"
        )
    return match


def _to_placeholder(match: re.Match[str]) -> Placeholder:
    if match["secret"]:
        return Placeholder(match["secret"], kind=SECRET)
    path = tuple(int(index) if index else key for key, index in _PATH_KEY.findall(match["path"]))
    return Placeholder(match["name"], path, match["kind"] or "")


def list_placeholders(parts: Iterable[str | Placeholder]) -> list[Placeholder]:
    return [part for part in parts if isinstance(part, Placeholder)]


def require_literal(text: str, location: str) -> str:
    """Return the unescaped text; raise if it contains a placeholder."""
    parts = parse(text)
    if list_placeholders(parts):
        raise ValueError(f"{text!r}: placeholders are not allowed in {location}")
    return "".join(map(str, parts))


def _reject_file(_value: Any, placeholder: Placeholder) -> UploadedFile:
    raise ToolError(f"{placeholder} cannot be read: this tool has no access to files")


class Values:
    """The values of placeholders in one call. `used_secrets` collects the secrets of the request.

    `steps` are the responses of the steps so far, None for a tool without steps. `read_file` reads
    an uploaded file.
    """

    def __init__(
        self,
        args: JsonMapping,
        required: frozenset[str],
        get_secret: Callable[[str], str | None],
        *,
        steps: JsonObject | None = None,
        read_file: ReadFile = _reject_file,
    ) -> None:
        self._args = args
        self._required = required
        self._read_file = read_file
        self._get_secret = get_secret
        self._steps = steps
        self._filled_chars = 0
        self.used_secrets: set[str] = set()

    @cached_property
    def boundary(self) -> str:
        """The boundary of a multipart body. It is random, so that no value can contain it."""
        return random_tokens.token_hex(16)

    def is_large(self, uses: int) -> bool:
        """Return whether it takes long to fill in the values if a template uses them this often."""
        return is_large([self._args, self._steps], LARGE_FILLED_CHARS // max(1, uses))

    def is_step(self, placeholder: Placeholder) -> bool:
        return self._steps is not None and placeholder.may_be_step

    def get_files(self, placeholder: Placeholder) -> list[UploadedFile]:
        """Return the files that an argument names: one, several, or none if omitted or null."""
        value = self._look_up(placeholder)
        if value is None or value is MISSING:
            return []
        items = value if isinstance(value, list | tuple) else [value]
        if len(items) > MAX_FILES:
            raise invalid_value_error(f"has more than {MAX_FILES} files", placeholder)
        return [self._read_file(item, placeholder) for item in items]

    def get(self, placeholder: Placeholder) -> Any:
        """Return the value, or the text of a joined list; `MISSING` if omitted."""
        value = self._look_up(placeholder)
        is_joined = placeholder.kind in SEPARATORS and isinstance(value, list)
        return _to_text(value, placeholder, str) if is_joined else value

    def get_text(self, placeholder: Placeholder, encode: Encode = str) -> str | None:
        """Return the value as text; None for an optional argument that is omitted or null."""
        value = self._look_up(placeholder)
        if value is not None and value is not MISSING:
            return _to_text(value, placeholder, encode)
        if self._is_required(placeholder):
            raise self._missing_value_error(placeholder)
        return None

    def require_text(self, placeholder: Placeholder, encode: Encode = str) -> str:
        """Return the value as text; raise if there is none."""
        text = self.get_text(placeholder, encode)
        if text is None:
            raise self._missing_value_error(placeholder)
        return text

    def fill(self, parts: Parts, encode: Encode = str) -> str:
        """Return the filled template; raise if a value is missing."""
        return fill_parts(parts, lambda placeholder: self.require_text(placeholder, encode)) or ""

    def _look_up(self, placeholder: Placeholder) -> Any:
        if placeholder.is_secret:
            return self._require_secret(placeholder.name)
        if placeholder.kind == BOUNDARY:
            return self.boundary
        value: Any = self._steps
        if not self.is_step(placeholder):
            value = self._args.get(placeholder.name, MISSING)
        for key in placeholder.path:
            value = _get_member(value, key)
        if placeholder.kind in SEPARATORS and value is not None and value is not MISSING:
            value = _list_items(value) or MISSING
        self._count(value, placeholder)
        if value is MISSING and self._is_required(placeholder):
            raise self._missing_value_error(placeholder)
        return value

    def _count(self, value: Any, placeholder: Placeholder) -> None:
        """Raise if the values exceed the limit: a template may repeat a placeholder."""
        if isinstance(value, Mapping | list | tuple):
            with suppress(RecursionError):  # the part of the request rejects such a value
                self._filled_chars += len(json.dumps(value, default=str))
        elif isinstance(value, str):
            self._filled_chars += len(value)
        if self._filled_chars > MAX_FILLED_CHARS:
            raise invalid_value_error(
                f"makes the request larger than {MAX_FILLED_CHARS:,} characters", placeholder
            )

    def _is_required(self, placeholder: Placeholder) -> bool:
        if self.is_step(placeholder):
            return True
        return not placeholder.path and placeholder.name in self._required

    def _missing_value_error(self, placeholder: Placeholder) -> ToolError:
        problem = f"{placeholder} has no value"
        if self.is_step(placeholder):
            return ToolError(
                f"{problem}: the response of step {placeholder.path[0]} does not contain it"
            )
        return ArgumentError(f"{problem}: argument {placeholder.name} is required")

    def _require_secret(self, name: str) -> str:
        secret = self._get_secret(name)
        if secret is None:
            raise ToolError(
                f"secret {name} is not set", secret=name, hint=f"onetool secret set {name}"
            )
        self.used_secrets.add(secret)
        return secret


def fill_parts(parts: Parts, get_text: Callable[[Placeholder], str | None]) -> str | None:
    """Return the filled template, or None if a value is missing."""
    texts = [part if isinstance(part, str) else get_text(part) for part in parts]
    return None if None in texts else "".join(map(str, texts))


def _get_member(value: Any, key: str | int) -> Any:
    if isinstance(key, int):
        return value[key] if isinstance(value, list | tuple) and key < len(value) else MISSING
    return value.get(key, MISSING) if isinstance(value, Mapping) else MISSING


def _list_items(value: Any) -> list[Any]:
    """Return the items to join; a single value is a list of one."""
    items = value if isinstance(value, list | tuple) else [value]
    return [item for item in items if item is not None]


def _to_text(value: Any, placeholder: Placeholder, encode: Encode) -> str:
    separator = SEPARATORS.get(placeholder.kind)
    if separator is None:
        return encode(to_text(value, placeholder))
    # The comma is the only separator that a URL may contain; commas in items are encoded, so that
    # both differ.
    encoded_separator = "," if separator == "," else encode(separator)
    texts = [encode(to_text(item, placeholder)) for item in value]
    if any(encoded_separator in text for text in texts):
        raise invalid_value_error(
            f"has an item that contains the separator {separator!r}", placeholder
        )
    return encoded_separator.join(texts)


def invalid_value_error(problem: str, *placeholders: Placeholder) -> ToolError:
    """Return the error for an invalid value. An invalid secret is not the fault of the caller."""
    is_secret = all(placeholder.is_secret for placeholder in placeholders)
    error_class = ToolError if is_secret else ArgumentError
    return error_class(f"{' and '.join(map(str, placeholders))} {problem}")


def to_text(value: Any, placeholder: Placeholder) -> str:
    """Return a string, number or boolean as text.

    Raise for lists and objects, which have no standard form.
    """
    text = format_scalar(value)
    if not isinstance(text, str):
        kind = "a list" if isinstance(value, list | tuple) else "an object"
        raise ArgumentError(f"{placeholder} is {kind}: expected a string, number or boolean")
    if not is_encodable(text):
        raise invalid_value_error("contains an unpaired surrogate", placeholder)
    return text


def format_scalar(value: Any) -> Any:
    """Return a number or boolean as text, and other values unchanged."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, int | float) else value


def is_encodable(text: str) -> bool:
    """Return whether the text can be encoded: JSON escapes can produce unpaired surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
