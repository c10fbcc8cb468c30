"""Files that an HTTP tool sends or writes, by the permissions and the file rules of the caller."""

import base64
import binascii
from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from onetool.backends.http_tool.placeholders import Placeholder, UploadedFile, invalid_value_error
from onetool.core.context import Permission, ToolContext
from onetool.errors import ToolError
from onetool_child.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from onetool.results.blobs import Media

MAX_UPLOAD_BYTES = 32 * 1024 * 1024  # of all files of a call, without maxRequestBytes
EXPECTED = 'expected a path, {"base64": ...} or a result with media'


class FileUploads:
    """Reads the files of one call: by path, from base64, or by the handle of a stored result. Blocks on disk access."""

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
            problem = f"is too large: this tool sends files of at most {self._max_bytes:,} bytes in total"
            raise invalid_value_error([placeholder], problem)

    def _read_path(self, path: str, placeholder: Placeholder) -> UploadedFile:
        from onetool.files import Files, read, stat_path

        _require_permission(self._context, Permission.READ, f"{placeholder} names a file")
        files = Files(self._context)
        self._check_size(stat_path(files, path)[1].st_size, placeholder)
        content = read(files, path, self._bytes_left)
        return UploadedFile(content.data, PurePath(content.path).name)

    def _read_value(self, value: JsonMapping, placeholder: Placeholder) -> UploadedFile:
        name = str(value.get("filename", ""))
        content_type = str(value.get("content_type", ""))
        if isinstance(value.get("base64"), str):
            try:
                return UploadedFile(base64.b64decode(value["base64"], validate=True), name, content_type)
            except (binascii.Error, ValueError):
                raise invalid_value_error([placeholder], "is not valid base64") from None
        if "media" not in value or self._media is None:
            raise _not_a_file_error(placeholder)
        blob = self._media.get(value["media"], self._context.agent_id, self._context.token_id)
        return UploadedFile(blob.data, name, content_type or blob.mime_type)


def _not_a_file_error(placeholder: Placeholder) -> ToolError:
    return invalid_value_error([placeholder], f"is not a file: {EXPECTED}")


def save_file(context: ToolContext, path: str, data: bytes) -> JsonObject:
    """Write a response to a file. Blocks on disk access."""
    from onetool.files import Files, write

    _require_permission(context, Permission.WRITE, "the response is written to a file")
    written = write(Files(context), path, data)
    return {"path": written.path, "size": len(data)}


def _require_permission(context: ToolContext, permission: Permission, reason: str) -> None:
    if permission not in context.permissions:
        raise context.permission_error(frozenset({permission}), f"{reason}, which requires {permission} permission,")
