"""Multipart bodies: an object whose members are parts.

A part is a template, or an object with `value`, `filename` and `contentType`. `${file:name}` is a file, a list is one
part per item, an object is sent as JSON, and a missing value removes its part.
"""

import mimetypes
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from onetool.backends.http_tool.placeholders import (
    MISSING,
    Parts,
    Placeholder,
    UploadedFile,
    Values,
    list_placeholders,
    parse,
    require_literal,
    to_text,
)
from onetool.backends.http_tool.serialize import dumps, is_json
from onetool.net.outgoing import FORBIDDEN_IN_VALUES

FORM_DATA: Final = "multipart/form-data"
_FIELDS: Final = {"value", "filename", "contentType"}
_DEFAULT_TYPE: Final = "application/octet-stream"
_JSON_TYPE: Final = "application/json"
_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+*-]+(?:\s*;[\x20-\x7e]*)?", re.ASCII)
# As browsers escape names: https://html.spec.whatwg.org/multipage/form-control-infrastructure.html#multipart-form-data
_ESCAPES: Final = str.maketrans({'"': "%22", "\r": "%0D", "\n": "%0A", "\0": "%00"})


@dataclass(frozen=True, slots=True)
class PartTemplate:
    name: str
    value: Parts
    filename: Parts = ()
    content_type: str = ""

    @classmethod
    def of(cls, name: str, definition: Any) -> Self:
        fields = definition if isinstance(definition, Mapping) else {"value": definition}
        if unknown := sorted(fields.keys() - _FIELDS):
            raise ValueError(f"{name}: unknown field {unknown[0]!r} of a part (expected value, filename, contentType)")
        if "value" not in fields:
            raise ValueError(f"{name}: value is required in a part that is an object")
        content_type = require_literal(_require_text(fields, "contentType", name), "contentType")
        if content_type and not _MEDIA_TYPE.fullmatch(content_type):
            raise ValueError(f"{name}: contentType is not a media type like image/png")
        value = parse(_require_text(fields, "value", name), allow_file=True)
        filename = parse(_require_text(fields, "filename", name))
        return cls(require_literal(name, "the name of a part"), value, filename, content_type)

    @property
    def placeholders(self) -> list[Placeholder]:
        return list_placeholders([*self.value, *self.filename])

    def fill(self, values: Values) -> Iterator[UploadedFile]:
        """Yield the parts with their content."""
        for file in self._list_values(values):
            filename = values.fill(self.filename)
            content_type = self.content_type or file.content_type
            if FORBIDDEN_IN_VALUES.search(content_type):
                content_type = _DEFAULT_TYPE
            yield UploadedFile(file.data, filename or file.name, content_type)

    def _list_values(self, values: Values) -> Iterator[UploadedFile]:
        placeholder = self.value[0] if len(self.value) == 1 else None
        if not isinstance(placeholder, Placeholder):
            texts = [part if isinstance(part, str) else values.get_text(part) for part in self.value]
            if None not in texts:
                yield UploadedFile("".join(map(str, texts)).encode())
            return
        if placeholder.is_file:
            for file in values.get_files(placeholder):
                guessed = mimetypes.guess_type(file.name)[0] or _DEFAULT_TYPE
                yield file._replace(name=file.name or "file", content_type=file.content_type or guessed)
            return
        value = values.get(placeholder)
        is_whole = is_json(self.content_type)
        for item in value if isinstance(value, list | tuple) and not is_whole else [value]:
            if item is None or item is MISSING:
                continue
            if is_whole or isinstance(item, dict | list | tuple):
                yield UploadedFile(dumps(item), content_type=_JSON_TYPE)
            else:
                yield UploadedFile(to_text(item, placeholder).encode())


def _require_text(fields: Mapping[str, Any], key: str, name: str) -> str:
    value = fields.get(key, "")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return value
    raise ValueError(f"{name}: {key} of a part must be a string, a number or a boolean")


@dataclass(frozen=True, slots=True)
class MultipartTemplate:
    """The parts of a body. Only those of `multipart/form-data` have names."""

    parts: tuple[PartTemplate, ...]
    is_form: bool

    @classmethod
    def of(cls, body: Mapping[str, Any], media_type: str) -> Self:
        return cls(tuple(PartTemplate.of(str(name), part) for name, part in body.items()), media_type == FORM_DATA)

    @property
    def placeholders(self) -> list[Placeholder]:
        return [placeholder for part in self.parts for placeholder in part.placeholders]

    def fill(self, values: Values) -> bytes | None:
        """Return the body, or None if it has no parts."""
        boundary = values.boundary.encode()
        pieces = [
            b"--%b\r\n%b\r\n%b\r\n" % (boundary, self._format_head(part.name, content), content.data)
            for part in self.parts
            for content in part.fill(values)
        ]
        return b"".join([*pieces, b"--%b--\r\n" % boundary]) if pieces else None

    def _format_head(self, name: str, content: UploadedFile) -> bytes:
        filename = f'; filename="{content.name.translate(_ESCAPES)}"' if content.name else ""
        lines = [f'Content-Disposition: form-data; name="{name.translate(_ESCAPES)}"{filename}'] if self.is_form else []
        lines += [f"Content-Type: {content.content_type}"] if content.content_type else []
        return "".join(f"{line}\r\n" for line in lines).encode("utf-8", "replace")  # names of files may not be text
