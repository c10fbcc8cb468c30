"""The body of an HTTP tool: data that is sent as JSON, a form or multipart, or a string template.

In data, a string that is a single placeholder becomes the value with its type, and a missing value
removes its key. In a string template, each value is escaped for the format that `Content-Type`
names. A template that is a single placeholder is the value: as JSON if that is the format, else as
text; without a value there is no body. A single `${file:name}` is the content of a file.

An object is a form or multipart if `Content-Type` says so. A part of multipart is a template, or an
object with `value`, `filename` and `contentType`. `${file:name}` is a file, a list is one part per
item, an object is sent as JSON, and a missing value removes its part.
"""

import base64
import json
import mimetypes
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Self
from xml.sax.saxutils import escape

from onetool.errors import ArgumentError, ToolError
from onetool.net.client import FORBIDDEN_IN_VALUES
from onetool.sources.http.placeholders import (
    BOUNDARY,
    MISSING,
    Parts,
    Placeholder,
    UploadedFile,
    Values,
    fill_parts,
    format_scalar,
    invalid_value_error,
    list_placeholders,
    parse,
    require_literal,
    to_text,
)
from onetool.sources.http.request import ParameterTemplate, encode_form, encode_query, parse_query
from onetool.util.context import Permission, ToolContext
from onetool_child.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from onetool.runs.results.blobs import Media

MAX_FIELDS = 1_000  # of a form or a multipart body
JSON_TYPE = "application/json"
OTHER_TYPE = "application/octet-stream"
FORM_DATA = "multipart/form-data"
FORM = "application/x-www-form-urlencoded"
MAX_UPLOAD_BYTES = 32 * 1024 * 1024  # of all files of a call, without maxRequestBytes
EXPECTED_FILE = 'expected a path, {"base64": ...} or a result with media'
_JSON_SEQUENCE_TYPES = (
    "ndjson",
    "jsonl",
    "jsonlines",
    "json-lines",
    "json-seq",
    "json-stream",
    "stream+json",
)
_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+*-]+(?:\s*;[\x20-\x7e]*)?", re.ASCII)
_MARK = "\ufdd0"  # replaces values while a template is checked; valid text does not contain it
_TOKENS = re.compile(r'\\.?|"', re.DOTALL)
_SPACE = re.compile(r"\s*")
# Including white space that XML parsers normalize
_QUOTES = {'"': "&quot;", "'": "&apos;", "\r": "&#13;", "\n": "&#10;", "\t": "&#9;"}
# As browsers escape names:
# https://html.spec.whatwg.org/multipage/form-control-infrastructure.html#multipart-form-data
_PART_ESCAPES = str.maketrans({'"': "%22", "\r": "%0D", "\n": "%0A", "\0": "%00"})


@dataclass(frozen=True, slots=True)
class BodyTemplate:
    fill: Callable[[Values], bytes | None]
    content_type: Parts = ()  # replaces that of the headers


def parse_body(body: Any, content_type: str) -> BodyTemplate:
    kind = strip_parameters(content_type)
    if isinstance(body, str):
        return BodyTemplate(_parse_text(body, kind))
    if isinstance(body, dict) and kind.startswith(("multipart/", FORM)) and len(body) > MAX_FIELDS:
        raise ValueError(f"has more than {MAX_FIELDS:,} fields")
    if isinstance(body, dict) and kind.startswith("multipart/"):
        if "boundary" in content_type.lower():
            raise ValueError(
                "is multipart: remove the boundary from Content-Type, OneTool chooses it"
            )
        parts = [PartTemplate.of(str(name), part) for name, part in body.items()]
        boundary = (f"{content_type.strip()}; boundary=", Placeholder("", kind=BOUNDARY))
        return BodyTemplate(
            lambda values: _fill_parts(parts, values, is_form=kind == FORM_DATA), boundary
        )
    if isinstance(body, dict) and kind == FORM:
        fields = _parse_form(body)
        return BodyTemplate(lambda values: encode_query(fields, values).encode())
    if content_type and "json" not in content_type.lower():
        raise ValueError(
            f"is sent as JSON, but Content-Type is {content_type}; write the body as a string, or"
            " remove Content-Type"
        )
    try:
        data = _parse_data(body)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    return BodyTemplate(
        lambda values: dumps(_fill_data(data, values)), () if content_type else (JSON_TYPE,)
    )


def dumps(value: Any) -> bytes:
    """Serialize to JSON.

    `json` accepts what orjson rejects: large integers, lone surrogates, deep nesting.
    """
    import orjson

    try:
        return orjson.dumps(value)
    except TypeError:
        pass
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ArgumentError(f"cannot serialize a value as JSON: {reason}") from None


def strip_parameters(content_type: str) -> str:
    """Return the media type of a `Content-Type` in lower case, without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
    """Return whether the content type is a single JSON document, not a sequence of them."""
    return "json" in kind and not kind.endswith(_JSON_SEQUENCE_TYPES)


# --- data -----------------------------------------------------------------------------------------


def _parse_data(node: Any) -> Any:
    """Return the data with each string parsed; a tuple is a template."""
    if isinstance(node, str):
        return parse(node)
    if isinstance(node, dict):
        return {require_literal(str(key), "a key"): _parse_data(item) for key, item in node.items()}
    return [_parse_data(item) for item in node] if isinstance(node, list) else node


def _fill_data(node: Any, values: Values) -> Any:
    if isinstance(node, tuple):
        return _fill_string(node, values)
    if isinstance(node, dict):
        members = {key: _fill_data(item, values) for key, item in node.items()}
        return {key: item for key, item in members.items() if item is not MISSING}
    if isinstance(node, list):
        items = [_fill_data(item, values) for item in node]
        return [item for item in items if item is not MISSING]
    return node


def _fill_string(parts: Parts, values: Values) -> Any:
    if len(parts) == 1 and isinstance(parts[0], Placeholder):
        return values.get(parts[0])
    text = fill_parts(parts, lambda placeholder: _to_embedded_text(placeholder, values))
    return MISSING if text is None else text


def _to_embedded_text(placeholder: Placeholder, values: Values) -> str | None:
    value = values.get(placeholder)
    if value is None or value is MISSING:
        return None
    if isinstance(value, dict | list | tuple):
        return dumps(value).decode()
    return to_text(value, placeholder)


def _parse_form(body: JsonObject) -> list[ParameterTemplate]:
    for name, value in body.items():
        if not isinstance(value, str):  # pydantic reports a ValueError
            raise ValueError(f"{name}: a field of a form must be a string, such as ${{name}}")  # noqa: TRY004
    return [ParameterTemplate.of(name, value) for name, value in body.items()]


# --- text -----------------------------------------------------------------------------------------


def _parse_text(body: str, kind: str) -> Callable[[Values], bytes | None]:
    parts = parse(body, allow_file=True)
    single = parts[0] if len(parts) == 1 else None
    if isinstance(single, Placeholder) and single.is_file:
        return lambda values: _read_file(single, values)
    if not list_placeholders(parts):
        content = "".join(map(str, parts)).encode()
        return lambda _values: content
    if kind.startswith("multipart/"):
        raise ValueError(
            "cannot contain placeholders: write multipart bodies as an object with one member per"
            " part"
        )
    if isinstance(single, Placeholder):
        return lambda values: _write_value(single, values, kind)
    if kind == FORM:
        parameters = parse_query(body)
        return lambda values: encode_query(parameters, values).encode()
    writers = _list_writers(parts, kind)
    return lambda values: _fill_text(parts, writers, values)


def _read_file(placeholder: Placeholder, values: Values) -> bytes | None:
    files = values.get_files(placeholder)
    if len(files) > 1:
        raise invalid_value_error("is a list: a body is one file", placeholder)
    return files[0].data if files else None


def _write_value(placeholder: Placeholder, values: Values, kind: str) -> bytes | None:
    """Return a body that is a single value."""
    if kind != FORM and not is_json(kind):
        text = values.get_text(placeholder)
        return None if text is None else text.encode()
    value = values.get(placeholder)
    if value is MISSING or (value is None and kind == FORM):
        return None
    return encode_form(value, placeholder).encode() if kind == FORM else dumps(value)


ValueWriter = Callable[[Placeholder, Values], str]


def _list_writers(parts: Parts, kind: str) -> list[ValueWriter]:
    """Return a function for each part that writes a value there in the format of the template."""
    if "json" in kind or (not kind and _is_json_template(parts)):
        _check_json(parts)
        return [
            _write_in_json_string if is_inside else _write_json
            for is_inside in _find_strings(parts)
        ]
    return [_write_xml if "xml" in kind else _write_text] * len(parts)


def _fill_text(parts: Parts, writers: list[ValueWriter], values: Values) -> bytes:
    pairs = zip(parts, writers, strict=True)
    return "".join(
        [part if isinstance(part, str) else write(part, values) for part, write in pairs]
    ).encode()


def _write_text(placeholder: Placeholder, values: Values) -> str:
    return values.get_text(placeholder) or ""


def _write_xml(placeholder: Placeholder, values: Values) -> str:
    return escape(_write_text(placeholder, values), _QUOTES)


def _write_json(placeholder: Placeholder, values: Values) -> str:
    value = values.get(placeholder)
    return "null" if value is MISSING else dumps(value).decode()


def _write_in_json_string(placeholder: Placeholder, values: Values) -> str:
    text = _to_embedded_text(placeholder, values)
    return "" if text is None else dumps(text).decode()[1:-1]


def _is_json_template(parts: Parts) -> bool:
    if not _build_sample(parts).lstrip().startswith(("{", "[")):
        return False
    try:
        _check_json(parts)
    except ValueError:
        return False
    return True


def _check_json(parts: Parts) -> None:
    """Raise if a placeholder is in a key, in an escape, or next to a number."""

    def reject_marked_keys(pairs: list[tuple[str, Any]]) -> None:
        if any(_MARK in key for key, _ in pairs):
            raise ValueError("has a placeholder in a key, which is not supported")

    decoder = json.JSONDecoder(object_pairs_hook=reject_marked_keys)
    text = _build_sample(parts)
    position = _skip_space(text, 0)
    try:
        while position < len(text):  # several documents are valid, for formats such as NDJSON
            position = _skip_space(text, decoder.raw_decode(text, position)[1])
    except (json.JSONDecodeError, RecursionError):
        raise ValueError("is not valid JSON for any values of its placeholders") from None


def _skip_space(text: str, position: int) -> int:
    return _SPACE.match(text, position).end()  # type: ignore[union-attr]  # it always matches


def _build_sample(parts: Parts) -> str:
    samples = [_MARK if is_inside else f'"{_MARK}"' for is_inside in _find_strings(parts)]
    pairs = zip(parts, samples, strict=True)
    return "".join([part if isinstance(part, str) else sample for part, sample in pairs])


def _find_strings(parts: Parts) -> list[bool]:
    """Return for each part whether it begins inside a JSON string."""
    positions: list[bool] = []
    is_inside = False
    for part in parts:
        positions.append(is_inside)
        if isinstance(part, str):
            is_inside ^= _TOKENS.findall(part).count('"') % 2 == 1
    return positions


# --- multipart ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartTemplate:
    name: str
    value: Parts
    filename: Parts
    content_type: str

    @classmethod
    def of(cls, name: str, definition: Any) -> Self:
        fields = definition if isinstance(definition, Mapping) else {"value": definition}
        if unknown := sorted(fields.keys() - {"value", "filename", "contentType"}):
            raise ValueError(
                f"{name}: unknown field {unknown[0]!r} of a part (expected value, filename,"
                " contentType)"
            )
        if "value" not in fields:
            raise ValueError(f"{name}: value is required in a part that is an object")
        texts = {key: _require_text(value, f"{name}: {key}") for key, value in fields.items()}
        content_type = require_literal(texts.get("contentType", ""), "contentType")
        if content_type and not _MEDIA_TYPE.fullmatch(content_type):
            raise ValueError(f"{name}: contentType is not a media type like image/png")
        value = parse(texts["value"], allow_file=True)
        filename = parse(texts.get("filename", ""))
        return cls(require_literal(name, "the name of a part"), value, filename, content_type)

    def fill(self, values: Values) -> Iterator[UploadedFile]:
        """Yield the parts with their content."""
        for file in self._list_values(values):
            filename = values.fill(self.filename)
            content_type = self.content_type or file.content_type
            if FORBIDDEN_IN_VALUES.search(content_type):
                content_type = OTHER_TYPE
            yield UploadedFile(file.data, filename or file.name, content_type)

    def _list_values(self, values: Values) -> Iterator[UploadedFile]:
        placeholder = self.value[0] if len(self.value) == 1 else None
        if not isinstance(placeholder, Placeholder):
            text = fill_parts(self.value, values.get_text)
            if text is not None:
                yield UploadedFile(text.encode())
            return
        if placeholder.is_file:
            for file in values.get_files(placeholder):
                guessed = mimetypes.guess_type(file.name)[0] or OTHER_TYPE
                yield file._replace(
                    name=file.name or "file", content_type=file.content_type or guessed
                )
            return
        value = values.get(placeholder)
        is_whole = is_json(self.content_type)
        for item in value if isinstance(value, list | tuple) and not is_whole else [value]:
            if item is None or item is MISSING:
                continue
            if is_whole or isinstance(item, dict | list | tuple):
                yield UploadedFile(dumps(item), content_type=JSON_TYPE)
            else:
                yield UploadedFile(to_text(item, placeholder).encode())


def _require_text(value: Any, location: str) -> str:
    text = format_scalar(value)
    if isinstance(text, str):
        return text
    raise ValueError(f"{location} of a part must be a string, a number or a boolean")


def _fill_parts(templates: list[PartTemplate], values: Values, *, is_form: bool) -> bytes | None:
    """Return the body, or None if it has no parts. Only parts of `multipart/form-data` have names."""
    boundary = f"--{values.boundary}".encode()
    body = bytearray()
    for template in templates:
        for part in template.fill(values):
            head = _format_head(template.name, part, is_form=is_form)
            body += b"%b\r\n%b\r\n%b\r\n" % (boundary, head, part.data)
    return bytes(body + boundary + b"--\r\n") if body else None


def _format_head(name: str, part: UploadedFile, *, is_form: bool) -> bytes:
    head = ""
    if is_form:
        filename = f'; filename="{part.name.translate(_PART_ESCAPES)}"' if part.name else ""
        name = name.translate(_PART_ESCAPES)
        head = f'Content-Disposition: form-data; name="{name}"{filename}\r\n'
    if part.content_type:
        head += f"Content-Type: {part.content_type}\r\n"
    return head.encode("utf-8", "replace")  # names of files may not be text


# --- files ----------------------------------------------------------------------------------------


class FileUploads:
    """Reads the files of one call: by path, from base64, or by the handle of a stored result.

    Blocks on disk access.
    """

    def __init__(self, context: ToolContext, media: "Media | None", max_bytes: int | None) -> None:
        self._context = context
        self._media = media
        self._max_bytes = max_bytes or MAX_UPLOAD_BYTES
        self._bytes_left = self._max_bytes

    def __call__(self, value: Any, placeholder: Placeholder) -> UploadedFile:
        if isinstance(value, str):
            file = self._read_path(value, placeholder)
        elif isinstance(value, Mapping):
            file = self._read_value(value, placeholder)
        else:
            raise _not_a_file_error(placeholder)
        self._check_size(len(file.data), placeholder)
        self._bytes_left -= len(file.data)
        return file

    def _check_size(self, size: int, placeholder: Placeholder) -> None:
        if size > self._bytes_left:
            problem = (
                f"is too large: this tool sends files of at most {self._max_bytes:,} bytes in total"
            )
            raise invalid_value_error(problem, placeholder)

    def _read_path(self, path: str, placeholder: Placeholder) -> UploadedFile:
        from onetool.sources.files import Files, read, stat_path

        require_permission(self._context, Permission.READ, f"{placeholder} names a file")
        files = Files(self._context)
        self._check_size(stat_path(files, path)[1].st_size, placeholder)
        content = read(files, path, self._bytes_left)
        return UploadedFile(content.data, PurePath(content.path).name)

    def _read_value(self, value: JsonMapping, placeholder: Placeholder) -> UploadedFile:
        name = str(value.get("filename", ""))
        content_type = str(value.get("content_type", ""))
        if isinstance(value.get("base64"), str):
            try:
                return UploadedFile(
                    base64.b64decode(value["base64"], validate=True), name, content_type
                )
            except ValueError:
                raise invalid_value_error("is not valid base64", placeholder) from None
        if "media" not in value or self._media is None:
            raise _not_a_file_error(placeholder)
        blob = self._media.get(value["media"], self._context.agent_id, self._context.token_id)
        return UploadedFile(blob.data, name, content_type or blob.mime_type)


def _not_a_file_error(placeholder: Placeholder) -> ToolError:
    return invalid_value_error(f"is not a file: {EXPECTED_FILE}", placeholder)


def require_permission(context: ToolContext, permission: Permission, reason: str) -> None:
    if permission not in context.permissions:
        raise context.permission_error(
            frozenset({permission}), f"{reason}, which requires {permission} permission,"
        )
