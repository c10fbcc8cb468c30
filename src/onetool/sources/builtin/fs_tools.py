"""The `fs` pack: files and directories.

`onetool.sources.files` decides which paths are allowed and how they are opened.
"""

import base64
import binascii
import builtins
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Literal

from onetool.core.tool import tool
from onetool.errors import ArgumentError, ToolError
from onetool.sources import files
from onetool.sources.files import Files
from onetool.util.context import ToolContext
from onetool.util.text import pluralize, quote
from onetool_child.json_types import JsonObject

__all__ = ["copy", "delete", "edit", "list", "move", "read", "stat", "write"]

Entries = builtins.list[JsonObject]
Encoding = Literal["utf-8", "utf-16", "latin-1", "base64"]
DEFAULT_SIZE = 2_097_152
MAX_SIZE_BYTES = 134_217_728  # the server holds it in memory
MAX_EDIT_BYTES = 16_777_216
MAX_PATTERN_CHARS = 4096


@tool(permissions=["read"], limits=("max_size",))
def read(
    path: str, context: ToolContext, max_size: int = DEFAULT_SIZE, encoding: Encoding = "utf-8"
) -> JsonObject:
    """Read a file: its content, full path and size in bytes.

    Use it to open or show any text: a document, a log, a spreadsheet (CSV). Parse the content in
    code: fs.read("table.csv")["content"].splitlines() returns the rows of a table, with columns
    separated by commas.

    Args:
        path: The file, relative to the working directory; ~ is the home directory.
        max_size: Maximum size in bytes. A larger file is an error; content is never truncated.
        encoding: Text encoding; "base64" returns the bytes of any file, base64-encoded.

    Example:
        fs.read("README.md")["content"]
    """
    if not 0 <= max_size <= MAX_SIZE_BYTES:
        raise ArgumentError(
            f"invalid max_size {max_size} (expected 0-{MAX_SIZE_BYTES})", field="max_size"
        )
    content = files.read(Files(context), path, max_size)
    return {
        "content": _decode(content.data, encoding, path),
        "path": content.path,
        "size": len(content.data),
    }


@tool(permissions=["write"])
def write(  # noqa: PLR0917 - callers may pass all of these by position
    path: str,
    content: str,
    context: ToolContext,
    backup: bool = True,
    mode: int | str | None = None,
    create_folders: bool = False,
    encoding: Encoding = "utf-8",
) -> JsonObject:
    """Write a file, atomically: readers see the old content or the new content, never a part.

    Args:
        path: The file, relative to the working directory; ~ is the home directory.
        content: The complete new content.
        backup: Whether to keep the old file as <name>.bak.
        mode: Permissions such as "0644" or 0o644. By default 0644 for a new file; an existing file keeps its mode.
        create_folders: Whether to create missing parent directories.
        encoding: Text encoding; with "base64" the content is base64-encoded bytes.

    Example:
        fs.write("notes/today.md", "# Today", create_folders=True)
    """
    data = _encode(content, encoding)
    bits = _parse_mode(mode)
    try:
        written = files.write(
            Files(context), path, data, mode=bits, backup=backup, create_folders=create_folders
        )
    except FileNotFoundError:
        raise FileNotFoundError(
            f"directory not found for {path}; create_folders=True creates it"
        ) from None
    return asdict(written)


@tool(permissions=["read", "write"])
def edit(  # noqa: PLR0917 - callers may pass all of these by position
    path: str, old: str, new: str, context: ToolContext, count: int = 1, backup: bool = True
) -> JsonObject:
    """Replace exact text in a UTF-8 file.

    Nothing is changed unless the text occurs as often as expected.

    Args:
        path: The file.
        old: The exact text to replace, including whitespace and line endings.
        new: The replacement.
        count: Expected number of occurrences; all of them are replaced.
        backup: Whether to keep the old file as <name>.bak.

    Example:
        fs.edit("settings.py", "DEBUG = True", "DEBUG = False")
    """
    if not old or old == new:
        raise ArgumentError("nothing to replace: old is empty or equal to new", field="old")
    opened = Files(context)
    content = files.read(opened, path, MAX_EDIT_BYTES)
    text = _decode(content.data, "utf-8", path)
    found = text.count(old)
    if found != count or not found:
        occurrences = pluralize(found, "occurrence")
        message = (
            f"the text to replace has {occurrences} in {path}, expected {count}; nothing was"
            " changed"
        )
        raise ToolError(message, path=path, found=found, count=count)
    if len(text) + found * (len(new) - len(old)) > MAX_SIZE_BYTES:
        raise ToolError(
            f"the edit would make {path} larger than {MAX_SIZE_BYTES} characters", path=path
        )
    data = _encode(text.replace(old, new), "utf-8")
    written = files.write(opened, path, data, backup=backup, expected=content.status)
    return {**asdict(written), "replaced": found}


@tool(permissions=["read"], limits=("max_results",))
def list(  # noqa: A001 - the name that callers see
    context: ToolContext,
    path: str = ".",
    pattern: str | None = None,
    recursive: bool = False,
    max_results: int = 1000,
) -> Entries:
    """List a directory (folder): name, type (file, dir or other) and size of each entry, sorted.

    Shows which files a directory contains, optionally recursively. Symbolic links are shown as
    their targets and are not descended into. Entries that the sandbox denies are omitted.

    Args:
        path: The directory.
        pattern: Only entries that match. * matches within a name, ** any number of directories: "src/**/*.py".
        recursive: Whether to include all subdirectories.
        max_results: Maximum number of entries. More is an error; the list is never truncated.

    Example:
        fs.list("src", pattern="**/*.py")
    """
    if max_results < 1:
        raise ArgumentError(
            f"invalid max_results {max_results} (expected 1 or more)", field="max_results"
        )
    entries = files.list_entries(
        Files(context), path, _build_pattern(pattern, recursive), max_results
    )
    return [{"name": entry.name, "type": entry.type, "size": entry.size} for entry in entries]


@tool(permissions=["read"])
def stat(path: str, context: ToolContext) -> JsonObject:
    """Return facts about a file or directory: full path, type (file, dir or other), size,
    modification time, mode.

    Args:
        path: The file or directory.

    Example:
        fs.stat("README.md")["modified"]
    """
    real, status = files.stat_path(Files(context), path)
    return {
        "path": real,
        "type": files.get_file_type(status),
        "size": status.st_size,
        "modified": datetime.fromtimestamp(status.st_mtime, UTC).isoformat(),
        "mode": format(status.st_mode & 0o7777, "04o"),
    }


@tool(permissions=["write"])
def delete(path: str, context: ToolContext, recursive: bool = False) -> JsonObject:
    """Delete a file or directory by moving it to the trash (`.onetool-trash` in the allowed
    directory).

    fs.move(kept_at, path) restores it. Only a person empties the trash.

    Args:
        path: The file or directory. A symbolic link is deleted itself, not its target.
        recursive: Required for a directory, which is deleted with its contents.

    Example:
        fs.delete("build", recursive=True)
    """
    return {"path": path, "kept_at": files.delete(Files(context), path, recursive=recursive)}


@tool(permissions=["write"])
def move(
    source: str,
    target: str,
    context: ToolContext,
    overwrite: bool = False,
    create_folders: bool = False,
) -> JsonObject:
    """Move or rename a file or directory.

    Args:
        source: The path to move. A symbolic link is moved itself, not its target.
        target: The new path, including the name.
        overwrite: Whether to replace an existing file.
        create_folders: Whether to create missing parent directories.

    Example:
        fs.move("draft.md", "docs/guide.md")
    """
    moved = files.move(
        Files(context), source, target, overwrite=overwrite, create_folders=create_folders
    )
    return {"path": moved}


@tool(permissions=["read", "write"])
def copy(
    source: str,
    target: str,
    context: ToolContext,
    overwrite: bool = False,
    create_folders: bool = False,
) -> JsonObject:
    """Copy a file with its content and permissions.

    Args:
        source: The file to copy.
        target: The path of the copy, including the name.
        overwrite: Whether to replace an existing file.
        create_folders: Whether to create missing parent directories.

    Example:
        fs.copy("settings.yaml", "settings.old.yaml")
    """
    copied = files.copy(
        Files(context), source, target, overwrite=overwrite, create_folders=create_folders
    )
    return {"path": copied.path, "size": copied.size}


def _decode(data: bytes, encoding: str, path: str) -> str:
    if encoding == "base64":
        return base64.b64encode(data).decode("ascii")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ToolError(
            f'{path} is not valid {encoding} (byte {error.start}); encoding="base64" reads any'
            " file",
            path=path,
            position=error.start,
        ) from None


def _encode(content: str, encoding: str) -> bytes:
    try:
        if encoding == "base64":
            return base64.b64decode(content, validate=True)
        return content.encode(encoding)
    except UnicodeEncodeError as error:
        raise ToolError(
            f"cannot encode the content as {encoding}: character {error.start} is not supported"
        ) from None
    except (binascii.Error, ValueError) as error:
        raise ToolError(f"the content is not valid base64: {error}") from None


def _parse_mode(mode: int | str | None) -> int | None:
    """Return permission bits from an integer or an octal string."""
    if mode is None:
        return None
    try:
        bits = int(mode.removeprefix("0o"), 8) if isinstance(mode, str) else int(mode)
    except ValueError:
        bits = -1
    if not 0 <= bits <= files.PERMISSION_BITS:
        raise ArgumentError(
            f'invalid mode {quote(mode)}: expected permissions such as "0644" or 0o644, at most'
            ' "0777"',
            field="mode",
        )
    return bits


def _build_pattern(pattern: str | None, recursive: bool) -> str:
    names = [] if pattern is None else pattern.split("/")
    if pattern is not None and (
        not pattern or not names[0] or ".." in names or len(pattern) > MAX_PATTERN_CHARS
    ):
        raise ArgumentError(
            f"invalid pattern {quote(pattern)}: it is empty, too long, or leaves the directory",
            field="pattern",
        )
    return f"**/{pattern or '*'}" if recursive else pattern or "*"
