"""File access for tools: check each path against the rules, and open it so that the check still holds.

A path is resolved and checked, and its directory is opened without following links: in one system
call (`openat2`), or name by name if it is unavailable. What was opened is checked again. All
operations then use names in that open directory. If a directory or file is replaced by a link in
the meantime, the operation fails and is retried from the start.
"""

import errno
import json
import os
import posixpath
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

from onetool.errors import ArgumentError, SandboxDenied, ToolError
from onetool.sources.files.requested_path import RequestedPath, parse_path, real_path
from onetool.sources.files.rules import Denial, Rules, get_allowed_paths, split_names
from onetool.util.context import ToolContext

MAX_ATTEMPTS = 40
TRASH = ".onetool-trash"
_REASONS = {
    Denial.DENIED: "It matches a pattern in denied_patterns.",
    Denial.HIDDEN: "It is reserved for OneTool.",
    Denial.PROTECTED: "Tools cannot write files that OneTool loads or executes.",
}
# If a link has replaced a directory, the kernel reports ENOTDIR, as it does for a file.
_MAY_HAVE_MOVED = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV, errno.EAGAIN}
T = TypeVar("T")
Opener = Callable[[int, Sequence[str], int], int]
# Some systems lack some of these flags. File tools may not work there, but the server must still
# start.
PATH_ONLY = getattr(os, "O_PATH", os.O_RDONLY)
DIRECTORY = getattr(os, "O_DIRECTORY", 0)
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
CLOSE_ON_EXEC = getattr(os, "O_CLOEXEC", 0)
NON_BLOCKING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_SYS_OPENAT2 = 437  # the same number on every architecture
_NO_MAGIC_LINKS = 0x02
_NO_LINKS = 0x04
_BENEATH = 0x08
_RESOLVE = _NO_MAGIC_LINKS | _NO_LINKS | _BENEATH


class Moved(Exception):
    """A file or directory was moved or replaced during an operation."""


@dataclass(frozen=True, slots=True)
class AnchoredPath:
    """A name in an open directory.

    `real` is the resolved path at the time when the directory was opened.
    """

    directory_fd: int
    name: str
    real: str

    def stat(self) -> os.stat_result:
        """Return the name's own status, without following a link."""
        return os.stat(self.name, dir_fd=self.directory_fd, follow_symlinks=False)

    def stat_no_link(self) -> os.stat_result:
        """Return the status; raise Moved if a link has replaced the file."""
        status = self.stat()
        if stat.S_ISLNK(status.st_mode):
            raise Moved
        return status

    def open(self, flags: int, mode: int = 0o600) -> int:
        return os.open(self.name, flags | NO_FOLLOW | CLOSE_ON_EXEC, mode, dir_fd=self.directory_fd)

    def sibling(self, name: str) -> "AnchoredPath":
        return AnchoredPath(
            self.directory_fd, name, posixpath.join(posixpath.dirname(self.real), name)
        )


class Files:
    """File access for one call, by the rules of its context.

    Nothing is read from disk before the first use.
    """

    def __init__(self, context: ToolContext, opener: Opener | None = None) -> None:
        self.context = context
        self._opener = opener

    @cached_property
    def rules(self) -> Rules:
        return Rules.from_context(self.context)

    @cached_property
    def open_beneath(self) -> Opener:
        return self._opener or choose_opener()

    # --- checks -----------------------------------------------------------------------------------

    def is_allowed(self, path: Path, *, writing: bool = False) -> bool:
        """Return whether the path may be opened. Links are followed; it need not exist."""
        try:
            requested = parse_path(str(path), self.context.working_dir)
        except ArgumentError:  # an invalid path
            return False
        return self._find_denial(requested, real_path(requested.absolute), writing) is None

    def resolve_search_root(self, path: str) -> Path:
        """Return the resolved path if it may be read; raise otherwise."""

        def real(anchored: AnchoredPath) -> Path:
            anchored.stat_no_link()
            return Path(anchored.real)

        return self.run_at(path, real)

    def list_denied_globs(self, root: Path) -> list[str]:
        """Return `--glob` values that exclude denied files, for ripgrep started in this directory.

        Not every rule can be expressed as a pattern of ripgrep: check what it finds with
        `is_allowed`.
        """
        return self.rules.list_excluded_globs(str(root))

    def _find_denial(self, requested: RequestedPath, real: str, writing: bool) -> Denial | None:
        named = (
            self.rules.find_name_denial(path) for path in requested.iter_paths() if path != real
        )
        return next(filter(None, named), None) or self.rules.find_denial(real, writing=writing)

    def check(self, path: str, real: str, *, writing: bool = False, advice: str = "") -> None:
        """Raise if the path `real`, to which the requested `path` resolves, may not be opened."""
        denial = self.rules.find_denial(real, writing=writing)
        if denial is not None:
            raise _denial_error(
                parse_path(path, self.context.working_dir), denial, self.context, advice
            )

    def check_opened(
        self, path: str, descriptor: int, *, writing: bool = False, name: str = ""
    ) -> None:
        """Raise if the file that was actually opened, or this name in it, may not be opened."""
        real = get_descriptor_path(descriptor)
        if real is not None and real.endswith(" (deleted)") and os.fstat(descriptor).st_nlink == 0:
            raise Moved
        if real is not None:
            self.check(path, posixpath.normpath(posixpath.join(real, name)), writing=writing)

    # --- opening ----------------------------------------------------------------------------------

    def run_at(
        self,
        path: str,
        operate: Callable[[AnchoredPath], T],
        *,
        writing: bool = False,
        follow: bool = True,
        create_folders: bool = False,
    ) -> T:
        """Run an operation at a path.

        Without `follow`, it applies to a link itself, not to its target.

        The operation must not have changed anything when it raises `Moved`: it is retried.
        """
        if os.open not in os.supports_dir_fd:
            raise ToolError(
                "file tools are not available on Windows: it cannot open files beneath an open"
                " directory"
            )
        requested = parse_path(path, self.context.working_dir)
        last: OSError | None = None
        for _ in range(MAX_ATTEMPTS):
            real = self._resolve_allowed(requested, follow, writing)
            try:
                with self._open_parent(real, create_folders) as anchored:
                    self.check_opened(
                        path, anchored.directory_fd, writing=writing, name=anchored.name
                    )
                    return operate(anchored)
            except Moved:
                last = None
            except OSError as error:
                last = error
                if error.errno not in _MAY_HAVE_MOVED or (
                    error.errno == errno.ENOENT and real == _resolve(requested, follow)
                ):
                    break
        raise _caller_error(last, path) from None

    def _resolve_allowed(self, requested: RequestedPath, follow: bool, writing: bool) -> str:
        real = _resolve(requested, follow)
        denial = self._find_denial(requested, real, writing)
        if denial is not None:
            raise _denial_error(requested, denial, self.context)
        return real

    @contextmanager
    def _open_parent(self, real: str, create_folders: bool) -> Iterator[AnchoredPath]:
        root = self.rules.find_root(real)
        directory, name = (real, ".") if real == root.base else posixpath.split(real)
        below = split_names(directory)[len(split_names(root.base)) :]
        with (
            self._open_directory(split_names(root.base)) as base,
            self._open_directory(below, base, create_folders) as descriptor,
        ):
            yield AnchoredPath(descriptor, name, real)

    @contextmanager
    def _open_directory(
        self, names: Sequence[str], start: int | None = None, create: bool = False
    ) -> Iterator[int]:
        if start is None:
            with (
                closing(os.open("/", PATH_ONLY | DIRECTORY | CLOSE_ON_EXEC)) as top,
                self._open_directory(names, top) as descriptor,
            ):
                yield descriptor
            return
        if create:
            self._make_directories(names, start)
        with closing(self.open_beneath(start, names, PATH_ONLY | DIRECTORY)) as descriptor:
            yield descriptor

    def _make_directories(self, names: Sequence[str], start: int) -> None:
        current = os.dup(start)
        try:
            for name in names:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=current)
                below = self.open_beneath(current, [name], PATH_ONLY | DIRECTORY)
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


def _resolve(requested: RequestedPath, follow: bool) -> str:
    directory, name = posixpath.split(requested.absolute)
    if follow or name in {"", ".."}:
        return real_path(requested.absolute)
    return posixpath.join(real_path(directory), name)


def _denial_error(
    requested: RequestedPath, denial: Denial, context: ToolContext, advice: str = ""
) -> SandboxDenied:
    """Return the error for a rejected path. It does not reveal whether the path exists."""
    reason = _REASONS.get(denial)
    if reason is None:
        kind = "It is read-only. " if denial is Denial.READ_ONLY else ""
        paths = [*get_allowed_paths(context.sandbox or {}), requested.normalized]
        listed = ", ".join(json.dumps(path, ensure_ascii=False) for path in paths)
        setting = f"agents: {{{context.agent_id}: {{sandbox: {{allowed_paths: [{listed}]}}}}}}"
        reason = f"{kind}{context.explain_setting(setting, 'sandbox')}"
    return SandboxDenied(
        f"File access denied by sandbox: {requested.original}. {reason}{advice}",
        path=requested.original,
    )


def _caller_error(error: OSError | None, path: str) -> Exception:
    """Return the caller's error, which shows the requested path and no other path."""
    if error is None or error.errno in {errno.ELOOP, errno.EXDEV, errno.EAGAIN}:
        return ToolError(
            f"cannot resolve {path}: its links are circular, or keep changing",
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


# --- Opening without following links --------------------------------------------------------------


def choose_opener() -> Opener:
    """Return `open_by_kernel` if kernel and sandbox allow it, else `open_by_walking`."""
    try:
        top = os.open("/", PATH_ONLY | DIRECTORY | CLOSE_ON_EXEC)
    except OSError:
        return open_by_walking
    try:
        os.close(open_by_kernel(top, (), PATH_ONLY | DIRECTORY))
    except (OSError, AttributeError):
        return open_by_walking
    finally:
        os.close(top)
    return open_by_kernel


@cache
def _libc() -> Any:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def open_by_kernel(start: int, names: Sequence[str], flags: int) -> int:
    import ctypes

    how = struct.pack("=QQQ", flags | NO_FOLLOW | CLOSE_ON_EXEC, 0, _RESOLVE)
    path = os.fsencode("/".join(names) or ".")
    number = ctypes.c_long(_SYS_OPENAT2)
    size = ctypes.c_size_t(len(how))
    descriptor = _libc().syscall(
        number, ctypes.c_long(start), ctypes.c_char_p(path), ctypes.c_char_p(how), size
    )
    if descriptor < 0:
        raise _error(ctypes.get_errno(), path)
    return int(descriptor)


def open_by_walking(start: int, names: Sequence[str], flags: int) -> int:
    current = os.open(".", PATH_ONLY | DIRECTORY | CLOSE_ON_EXEC, dir_fd=start)
    for name in names[:-1]:
        current = _open_and_close_parent(current, name, PATH_ONLY | DIRECTORY)
    return _open_and_close_parent(current, names[-1] if names else ".", flags)


def _open_and_close_parent(directory: int, name: str, flags: int) -> int:
    """Open a name in the directory, close the directory and return the new descriptor."""
    if name == "..":  # resolved names have none, and it would lead out of the directory
        os.close(directory)
        raise _error(errno.EXDEV, os.fsencode(name))
    try:
        return os.open(name, flags | NO_FOLLOW | CLOSE_ON_EXEC, dir_fd=directory)
    finally:
        os.close(directory)


def rename_without_replacing(old: str, old_directory: int, new: str, new_directory: int) -> None:
    """Rename atomically.

    Raise FileExistsError if the new name exists, another OSError if that is not supported.
    """
    import ctypes

    libc = _libc()
    if not hasattr(libc, "renameat2"):
        raise _error(errno.ENOSYS, os.fsencode(new))
    if (
        libc.renameat2(
            old_directory, os.fsencode(old), new_directory, os.fsencode(new), ctypes.c_uint(1)
        )
        != 0
    ):
        raise _error(ctypes.get_errno(), os.fsencode(new))


def _error(number: int, path: bytes) -> OSError:
    return OSError(number, os.strerror(number), os.fsdecode(path))


def get_descriptor_path(descriptor: int) -> str | None:
    """Return an open descriptor's path as the kernel reports it, or None if it does not."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - a Path would change what it says
    except OSError:
        return _get_path_by_fcntl(descriptor)


def _get_path_by_fcntl(descriptor: int) -> str | None:
    try:
        import fcntl

        answer = fcntl.fcntl(descriptor, getattr(fcntl, "F_GETPATH"), bytes(1024))  # noqa: B009 - only macOS has it
    except (ImportError, AttributeError, OSError):
        return None
    return os.fsdecode(answer.split(b"\0")[0])
