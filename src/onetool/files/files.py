"""File access for tools: check each path against the rules, and open it so that the check still holds.

A path is resolved and checked, and its directory is opened without following links. What was opened is checked again.
All operations then use names in that open directory. If somebody replaces a directory or a file by a link in the
meantime, the operation fails and is retried from the start.
"""

import errno
import json
import os
import posixpath
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from onetool.context import ToolContext
from onetool.errors import ArgumentError, SandboxDenied, ToolError
from onetool.files.asked import Asked, asked as read_path, real_path
from onetool.files.beneath import FOLDER, NO_LINK, PATH_ONLY, PRIVATE, Opener, best_opener, location
from onetool.files.rules import Refusal, Rules, allowed_paths, names_of

ATTEMPTS = 40
_REASONS = {
    Refusal.DENIED: "It matches a pattern in denied_patterns.",
    Refusal.HIDDEN: "It is reserved for OneTool.",
    Refusal.PROTECTED: "Tools cannot write files that OneTool loads or executes.",
}
# If a link has replaced a directory, the kernel reports ENOTDIR, as it does for a file.
_MAY_HAVE_MOVED = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV, errno.EAGAIN}
Done = TypeVar("Done")


class Moved(Exception):
    """A file or directory was moved or replaced during an operation."""


@dataclass(frozen=True, slots=True)
class Place:
    """A name in an open directory. `real` is the resolved path at the time when the directory was opened."""

    folder: int
    name: str
    real: str

    def facts(self) -> os.stat_result:
        return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)

    def followed(self) -> os.stat_result:
        """Return the status of a file that is not a link; raise Moved if a link has replaced it."""
        facts = self.facts()
        if stat.S_ISLNK(facts.st_mode):
            raise Moved
        return facts

    def open(self, flags: int, mode: int = 0o600) -> int:
        return os.open(self.name, flags | NO_LINK | PRIVATE, mode, dir_fd=self.folder)

    def beside(self, name: str) -> "Place":
        return Place(self.folder, name, posixpath.join(posixpath.dirname(self.real), name))


class Files:
    """File access for one call, by the rules of its context. Nothing is read from disk before the first use."""

    def __init__(self, context: ToolContext, opener: Opener | None = None) -> None:
        self.context = context
        self._opener = opener

    @cached_property
    def rules(self) -> Rules:
        return Rules.of(self.context)

    @cached_property
    def open_beneath(self) -> Opener:
        return self._opener or best_opener()

    # --- deciding ---------------------------------------------------------------------------------------------

    def admits(self, path: Path, *, writing: bool = False) -> bool:
        """Return whether the path may be opened. Links are followed; it need not exist."""
        try:
            asked = read_path(str(path), self.context.working_dir)
        except ArgumentError:  # an invalid path
            return False
        return self._refusal(asked, real_path(asked.whole), writing) is None

    def search_root(self, path: str) -> Path:
        """Return the resolved path if it may be read; raise SandboxDenied or FileNotFoundError otherwise."""

        def real(place: Place) -> Path:
            place.followed()
            return Path(place.real)

        return self.at(path, real)

    def denied_globs(self, root: Path) -> list[str]:
        """Return `--glob` values that exclude denied files, for ripgrep started in this directory.

        Not every rule can be expressed as a pattern of ripgrep: check what it finds with `admits`.
        """
        return self.rules.globs_below(str(root))

    def _refusal(self, asked: Asked, real: str, writing: bool) -> Refusal | None:
        named = (self.rules.named_refusal(path) for path in asked.passed() if path != real)
        return next(filter(None, named), None) or self.rules.refusal(real, writing=writing)

    def check(self, path: str, real: str, *, writing: bool = False, advice: str = "") -> None:
        """Raise if the resolved path `real` of the requested `path` may not be opened."""
        refusal = self.rules.refusal(real, writing=writing)
        if refusal is not None:
            raise _denied(read_path(path, self.context.working_dir), refusal, self.context, advice)

    def check_opened(self, path: str, descriptor: int, *, writing: bool = False, name: str = "") -> None:
        """Raise if the file that was actually opened, or this name in it, may not be opened."""
        real = location(descriptor)
        if real is not None and real.endswith(" (deleted)") and os.fstat(descriptor).st_nlink == 0:
            raise Moved
        if real is not None:
            self.check(path, posixpath.normpath(posixpath.join(real, name)), writing=writing)

    # --- opening ----------------------------------------------------------------------------------------------

    def at(
        self,
        path: str,
        operate: Callable[[Place], Done],
        *,
        writing: bool = False,
        follow: bool = True,
        create_folders: bool = False,
    ) -> Done:
        """Run an operation at a path. Without `follow`, it applies to a link itself, not to its target.

        The operation must not have changed anything when it raises `Moved`: it is retried.
        """
        asked = read_path(path, self.context.working_dir)
        last: OSError | None = None
        for _ in range(ATTEMPTS):
            real = self._admitted(asked, follow, writing)
            try:
                with self._place(real, create_folders) as place:
                    self.check_opened(path, place.folder, writing=writing, name=place.name)
                    return operate(place)
            except Moved:
                last = None
            except OSError as error:
                last = error
                if error.errno not in _MAY_HAVE_MOVED or (
                    error.errno == errno.ENOENT and real == _resolved(asked, follow)
                ):
                    break
        raise _explained(last, path) from None

    def _admitted(self, asked: Asked, follow: bool, writing: bool) -> str:
        real = _resolved(asked, follow)
        refusal = self._refusal(asked, real, writing)
        if refusal is not None:
            raise _denied(asked, refusal, self.context)
        return real

    @contextmanager
    def _place(self, real: str, create_folders: bool) -> Iterator[Place]:
        root = self.rules.root_of(real)
        folder, name = (real, ".") if real == root.base else posixpath.split(real)
        below = names_of(folder)[len(names_of(root.base)) :]
        with self._opened(names_of(root.base)) as base, self._opened(below, base, create_folders) as descriptor:
            yield Place(descriptor, name, real)

    @contextmanager
    def _opened(self, names: Sequence[str], start: int | None = None, create: bool = False) -> Iterator[int]:
        if start is None:
            with closing(os.open("/", PATH_ONLY | FOLDER | PRIVATE)) as top, self._opened(names, top) as descriptor:
                yield descriptor
            return
        if create:
            self._make_folders(names, start)
        with closing(self.open_beneath(start, names, PATH_ONLY | FOLDER)) as descriptor:
            yield descriptor

    def _make_folders(self, names: Sequence[str], start: int) -> None:
        current = os.dup(start)
        try:
            for name in names:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=current)
                below = self.open_beneath(current, [name], PATH_ONLY | FOLDER)
                os.close(current)
                current = below
        finally:
            os.close(current)


@contextmanager
def closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _resolved(asked: Asked, follow: bool) -> str:
    folder, name = posixpath.split(asked.whole)
    if follow or name in {"", ".."}:
        return real_path(asked.whole)
    return posixpath.join(real_path(folder), name)


def _denied(asked: Asked, refusal: Refusal, context: ToolContext, advice: str = "") -> SandboxDenied:
    """Return the error for a rejected path. It does not reveal whether the path exists."""
    reason = _REASONS.get(refusal)
    if reason is None:
        kind = "It is read-only. To allow writing" if refusal is Refusal.READ_ONLY else "To allow it"
        paths = [*allowed_paths(context.sandbox or {}), asked.plain]
        listed = ", ".join(json.dumps(path, ensure_ascii=False) for path in paths)
        setting = f"agents: {{{context.agent_id}: {{sandbox: {{allowed_paths: [{listed}]}}}}}}"
        reason = f"{kind}, add this to onetool.yaml: {setting}"
    return SandboxDenied(f"File access denied by sandbox: {asked.given}. {reason}{advice}", path=asked.given)


def _explained(error: OSError | None, path: str) -> Exception:
    """Return the error for the caller, which shows the requested path and no other path of the machine."""
    if error is None or error.errno in {errno.ELOOP, errno.EXDEV, errno.EAGAIN}:
        return ToolError(
            f"cannot resolve {path}: its links form a circle, or keep changing",
            path=path,
            hint="use the path of the file itself",
        )
    if error.errno is None:  # already an error for the caller
        return error
    if error.errno in {errno.ENOENT, errno.ENOTDIR}:
        return FileNotFoundError(f"File not found: {path}")
    if error.errno in {errno.EACCES, errno.EPERM}:
        return PermissionError(f"Permission denied: {path}")
    return ToolError(f"{os.strerror(error.errno)}: {path}", path=path)
