"""The `fs` pack: files and folders. It speaks of texts and results; what may be touched, and how, is in `ot.files`."""

import base64
import binascii
import builtins
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final, Literal

from onetool import files
from onetool._tool import tool
from onetool.context import ToolContext
from onetool.errors import ArgumentError, ToolError
from onetool.files import Files

__all__ = ["copy", "delete", "edit", "list", "move", "read", "stat", "write"]

Entries = builtins.list[dict[str, Any]]
Encoding = Literal["utf-8", "utf-16", "latin-1", "base64"]
DEFAULT_SIZE: Final = 2_097_152
LARGEST_SIZE: Final = 134_217_728  # the server holds it in memory
LARGEST_EDIT: Final = 16_777_216
LONGEST_PATTERN: Final = 4096


@tool(permissions=["read"], limits=("max_size",))
def read(path: str, context: ToolContext, max_size: int = DEFAULT_SIZE, encoding: Encoding = "utf-8") -> dict[str, Any]:
    """Read a file: its content, full path and size in bytes.

    For whatever is text: open a document, a log, a spreadsheet (CSV) and see what it says. Code takes it apart:
    fs.read("table.csv")["content"].splitlines() are the rows of a table, with its columns between commas.

    Args:
        path: The file. A relative path starts at the working folder, ~ is the home folder.
        max_size: The most bytes to read. A larger file is an error, not a part of it.
        encoding: How the text is encoded. base64 gives the bytes of any file as base64 text.

    Example:
        fs.read("README.md")["content"]
    """
    if not 0 <= max_size <= LARGEST_SIZE:
        raise ArgumentError(f"max_size is between 0 and {LARGEST_SIZE}", field="max_size")
    content = files.read(Files(context), path, max_size)
    return {"content": _text(content.data, encoding, path), "path": content.path, "size": len(content.data)}


@tool(permissions=["write"])
def write(  # noqa: PLR0917 - so many arguments may be given by position
    path: str,
    content: str,
    context: ToolContext,
    backup: bool = True,
    mode: int | str | None = None,
    create_folders: bool = False,
    encoding: Encoding = "utf-8",
) -> dict[str, Any]:
    """Write a file whole. Whoever reads it meanwhile sees the old content or the new, never a part.

    Args:
        path: The file. A relative path starts at the working folder, ~ is the home folder.
        content: What it will hold, all of it.
        backup: Whether the old file is kept beside it as <name>.bak.
        mode: Permissions such as "0644" or 0o644. Left out, a new file gets 0644 and an old one keeps its own.
        create_folders: Whether folders that are missing on the way are made.
        encoding: How the text is encoded. With base64 the content is the bytes of any file as base64 text.

    Example:
        fs.write("notes/today.md", "# Today", create_folders=True)
    """
    data, bits = _bytes(content, encoding), _mode(mode)
    try:
        written = files.write(Files(context), path, data, mode=bits, backup=backup, create_folders=create_folders)
    except FileNotFoundError:
        raise FileNotFoundError(f"Folder not found for {path}; create_folders=True makes it.") from None
    return asdict(written)


@tool(permissions=["read", "write"])
def edit(  # noqa: PLR0917 - so many arguments may be given by position
    path: str, old: str, new: str, context: ToolContext, count: int = 1, backup: bool = True
) -> dict[str, Any]:
    """Replace an exact text in a UTF-8 file. Nothing is changed unless the text is there as often as expected.

    Args:
        path: The file.
        old: The text to replace, with its white space and line ends.
        new: What to put in its place.
        count: How often the text is expected to be there; all of them are replaced.
        backup: Whether the old file is kept beside it as <name>.bak.

    Example:
        fs.edit("settings.py", "DEBUG = True", "DEBUG = False")
    """
    if not old or old == new:
        raise ArgumentError("old is empty, or the same as new: there is nothing to replace", field="old")
    opened = Files(context)
    content = files.read(opened, path, LARGEST_EDIT)
    text = _text(content.data, "utf-8", path)
    found = text.count(old)
    if found != count or not found:
        times = {0: "not at all", 1: "once"}.get(found, f"{found} times")
        message = f"The text to replace is {times} in {path}, and count says {count}. Nothing was changed."
        raise ToolError(message, path=path, found=found, count=count)
    if len(text) + found * (len(new) - len(old)) > LARGEST_SIZE:
        raise ToolError(f"The edit would make {path} larger than {LARGEST_SIZE} characters.", path=path)
    data = _bytes(text.replace(old, new), "utf-8")
    written = files.write(opened, path, data, backup=backup, expected=content.facts)
    return {**asdict(written), "replaced": found}


@tool(permissions=["read"], limits=("max_results",))
def list(  # noqa: A001 - the name that callers see
    context: ToolContext,
    path: str = ".",
    pattern: str | None = None,
    recursive: bool = False,
    max_results: int = 1000,
) -> Entries:
    """List a folder: name, type (file, dir or other) and size of each entry, in order.

    Says what is in a directory, or in all below it. Links are shown as what they lead to and are not walked into. What
    the sandbox denies is not shown.

    Args:
        path: The folder.
        pattern: Only entries that fit. * stays inside a name, ** stands for any number of folders: "src/**/*.py".
        recursive: Whether to look into all folders below.
        max_results: The most entries. More of them are an error, not a part of the list.

    Example:
        fs.list("src", pattern="**/*.py")
    """
    if max_results < 1:
        raise ArgumentError("max_results is 1 at least", field="max_results")
    found = files.entries(Files(context), path, _pattern(pattern, recursive), max_results)
    return [{"name": entry.name, "type": entry.type, "size": entry.size} for entry in found]


@tool(permissions=["read"])
def stat(path: str, context: ToolContext) -> dict[str, Any]:
    """What is known about a file or folder: full path, type (file, dir or other), size, time of change, mode.

    Args:
        path: The file or folder.

    Example:
        fs.stat("README.md")["modified"]
    """
    real, facts = files.facts_of(Files(context), path)
    return {
        "path": real,
        "type": files.kind_of(facts),
        "size": facts.st_size,
        "modified": datetime.fromtimestamp(facts.st_mtime, UTC).isoformat(),
        "mode": format(facts.st_mode & 0o7777, "04o"),
    }


@tool(permissions=["write"])
def delete(path: str, context: ToolContext, recursive: bool = False) -> dict[str, Any]:
    """Delete a file or folder so that it can be had back: it is moved to .onetool-trash in the allowed folder.

    fs.move(kept_at, path) undoes it. Only a person empties the trash.

    Args:
        path: The file or folder. A link is deleted itself, not what it leads to.
        recursive: Needed for a folder, which goes with all that is in it.

    Example:
        fs.delete("build", recursive=True)
    """
    return {"path": path, "kept_at": files.delete(Files(context), path, recursive=recursive)}


@tool(permissions=["write"])
def move(
    source: str, target: str, context: ToolContext, overwrite: bool = False, create_folders: bool = False
) -> dict[str, Any]:
    """Move or rename a file or folder.

    Args:
        source: What to move. A link is moved itself, not what it leads to.
        target: Its new path, with the name.
        overwrite: Whether a file that is there already is replaced.
        create_folders: Whether folders that are missing on the way are made.

    Example:
        fs.move("draft.md", "docs/guide.md")
    """
    moved = files.move(Files(context), source, target, overwrite=overwrite, create_folders=create_folders)
    return {"path": moved}


@tool(permissions=["read", "write"])
def copy(
    source: str, target: str, context: ToolContext, overwrite: bool = False, create_folders: bool = False
) -> dict[str, Any]:
    """Copy a file. The new one has the same bytes and permissions.

    Args:
        source: The file to copy.
        target: The path of the copy, with the name.
        overwrite: Whether a file that is there already is replaced.
        create_folders: Whether folders that are missing on the way are made.

    Example:
        fs.copy("settings.yaml", "settings.old.yaml")
    """
    copied = files.copy(Files(context), source, target, overwrite=overwrite, create_folders=create_folders)
    return {"path": copied.path, "size": copied.size}


def _text(data: bytes, encoding: str, path: str) -> str:
    if encoding == "base64":
        return base64.b64encode(data).decode("ascii")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ToolError(
            f'{path} is not {encoding} text (byte {error.start}); encoding="base64" reads the bytes of any file.',
            path=path,
            position=error.start,
        ) from None


def _bytes(content: str, encoding: str) -> bytes:
    try:
        return base64.b64decode(content, validate=True) if encoding == "base64" else content.encode(encoding)
    except UnicodeEncodeError as error:
        raise ToolError(
            f"The content cannot be written as {encoding}: character {error.start} has no form in it."
        ) from None
    except (binascii.Error, ValueError) as error:
        raise ToolError(f"The content is not base64: {error}.") from None


def _mode(mode: int | str | None) -> int | None:
    """The permissions, from a number or from octal text."""
    if mode is None:
        return None
    try:
        bits = int(mode.removeprefix("0o"), 8) if isinstance(mode, str) else int(mode)
    except ValueError:
        bits = -1
    if not 0 <= bits <= files.PERMISSIONS:
        raise ArgumentError('mode is permissions such as "0644" or 0o644, and "0777" at most', field="mode")
    return bits


def _pattern(pattern: str | None, recursive: bool) -> str:
    names = [] if pattern is None else pattern.split("/")
    if pattern is not None and (not pattern or not names[0] or ".." in names or len(pattern) > LONGEST_PATTERN):
        raise ArgumentError(
            f"the pattern {pattern[:200]!r} is empty, too long, or leads out of the folder", field="pattern"
        )
    return f"**/{pattern or '*'}" if recursive else pattern or "*"
