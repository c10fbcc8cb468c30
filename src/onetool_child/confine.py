"""Kernel isolation of a process: one function per layer, each usable alone and irreversible.

`landlock` restricts the file system, `seccomp` allows only the system calls in `syscalls.py`,
`drop_capabilities` removes the capabilities of root, and `limit_resources` limits memory, files and
descriptors. A layer that the machine does not support raises `Unavailable`; the caller decides what
to do.

Landlock and seccomp can be prepared in one process and applied in a child with a single system
call. All work is done before the fork, because a cell pays for every page it touches.
"""

import ctypes
import errno
import os
import platform
import struct
import sys
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import Any

from onetool_child import syscalls

if sys.platform != "win32":
    import resource

SYS_LANDLOCK_CREATE_RULESET = 444
SYS_LANDLOCK_ADD_RULE = 445
SYS_LANDLOCK_RESTRICT_SELF = 446
PR_SET_PDEATHSIG = 1
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2
SIGKILL = 9
SIGCONT = 18
M_ARENA_MAX = -8

# Access rights of Landlock, by bit.
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << bit for bit in range(6))
MAKE_DIR = 1 << 7
MAKE_REG = 1 << 8
REFER = 1 << 13
TRUNCATE = 1 << 14
IOCTL_DEV = 1 << 15
MAKE_SOCK = 1 << 9
MAKE_FIFO = 1 << 10
MAKE_SYM = 1 << 12
READ = READ_FILE | READ_DIR
WRITE = READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | REFER | TRUNCATE
FILE_RIGHTS = READ_FILE | WRITE_FILE | TRUNCATE | EXECUTE
RIGHTS_BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
TCP_BIND_AND_CONNECT = 0b11
ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


# What programs need of the system.
PROGRAM_PATHS = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/etc",
    "/proc/self",
    "/sys/devices/system/cpu",
)
DEVICE_PATHS = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")


class Unavailable(OSError):
    """The machine does not support the layer."""


@cache
def _libc() -> Any:
    """Return the C library with the two functions that are used."""
    if sys.platform != "linux":
        raise Unavailable(errno.ENOSYS, f"not supported on {sys.platform}")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    libc.syscall.restype = ctypes.c_long
    return libc


def _check_result(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        kind = (
            Unavailable
            if code in {errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EINVAL}
            else OSError
        )
        raise kind(code, f"{what}: {os.strerror(code)}")
    return result


def _syscall(number: int, *arguments: object) -> int:
    return _check_result(
        _libc().syscall(ctypes.c_long(number), *arguments), f"system call {number}"
    )


def _prctl(option: int, first: int, second: int = 0) -> None:
    _check_result(_libc().prctl(option, first, second, 0, 0), f"prctl {option}")


def forbid_new_privileges() -> None:
    _prctl(PR_SET_NO_NEW_PRIVS, 1)


def die_with_parent(parent: int) -> None:
    """Ask to be killed when the parent exits; exit immediately if it is gone already."""
    with suppress(Unavailable):
        _prctl(PR_SET_PDEATHSIG, SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def continue_without_parent() -> None:
    """Ask to be continued when the parent exits: a stopped process could not notice it.

    The signal is also sent when the thread ends that started this process, which does no harm.
    """
    with suppress(Unavailable):
        _prctl(PR_SET_PDEATHSIG, SIGCONT)


def can_confine_programs() -> bool:
    """Return whether the machine supports the layers of `confine_program`."""
    return (
        sys.platform == "linux" and landlock_version() > 0 and platform.machine() in syscalls.COLUMN
    )


def confine_program(
    read: Iterable[str],
    write: Iterable[str],
    *,
    network: bool,
    listed: Iterable[str] = (),
    makes_special_files: bool = False,
) -> None:
    """Confine this process and its children to these paths and system programs, or exit.

    Of `listed` directories, it reads only names. `makes_special_files` allows links, pipes and
    sockets in `write`.
    """
    special_files = MAKE_SYM | MAKE_FIFO | MAKE_SOCK if makes_special_files else 0
    try:
        drop_capabilities()
        landlock(
            [*PROGRAM_PATHS, *read],
            [*write, *DEVICE_PATHS],
            [(READ_DIR, listed), (special_files, write)],
            programs=True,
            network=network,
        )
        Filter(syscalls.extension_filter(platform.machine(), network=network)).install()
    except Unavailable as error:
        raise SystemExit(f"this machine does not support the sandbox: {error}") from None


# --- Landlock -------------------------------------------------------------------------------------


@cache
def landlock_version() -> int:
    try:
        return _syscall(SYS_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    except OSError:
        return 0


def landlock(
    read: Iterable[str],
    write: Iterable[str],
    extra_rights: Iterable[tuple[int, Iterable[str]]] = (),
    *,
    programs: bool = False,
    network: bool = False,
) -> None:
    """Restrict this process to these paths, without signals and sockets to the outside.

    `programs` allows executing readable files, `network` allows TCP. `extra_rights` are further
    rights for paths.
    """
    ruleset = landlock_ruleset(read, write, programs=programs, network=network)
    try:
        for rights, paths in extra_rights:
            for path in paths:
                _allow_beneath(ruleset, path, rights)
        forbid_new_privileges()
        restrict_to(ruleset)
    finally:
        os.close(ruleset)


def landlock_ruleset(
    read: Iterable[str], write: Iterable[str], *, programs: bool = False, network: bool = False
) -> int:
    """Return a ruleset descriptor for these paths, which `restrict_to` applies."""
    ruleset = _create_ruleset(network=network)
    execute = EXECUTE if programs else 0
    for rights, paths in ((READ | execute, read), (WRITE | execute, write)):
        for path in paths:
            _allow_beneath(ruleset, path, rights & _get_handled_rights())
    return ruleset


def restrict_to(ruleset: int) -> None:
    _syscall(SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0)


@cache
def _get_handled_rights() -> int:
    version = landlock_version()
    if version < 1:
        raise Unavailable(errno.ENOSYS, "this kernel does not support Landlock")
    return max(rights for since, rights in RIGHTS_BY_VERSION.items() if since <= version)


def _create_ruleset(*, network: bool) -> int:
    tcp = 0 if network else TCP_BIND_AND_CONNECT
    attributes = struct.pack("QQQ", _get_handled_rights(), tcp, ABSTRACT_SOCKETS_AND_SIGNALS)
    version = landlock_version()
    size = 24 if version >= 6 else 16 if version >= 4 else 8  # noqa: PLR2004 - versions of the interface
    return _syscall(
        SYS_LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(size), ctypes.c_uint32(0)
    )


def _allow_beneath(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # missing or unreachable paths need no permission
    try:
        allowed = rights if os.path.isdir(path) else rights & FILE_RIGHTS  # noqa: PTH112 - pathlib costs start-up here
        if allowed:
            _syscall(SYS_LANDLOCK_ADD_RULE, ruleset, 1, struct.pack("=Qi", allowed, descriptor), 0)
    finally:
        os.close(descriptor)


def standard_library() -> list[str]:
    """Return the files of the standard library, without installed packages."""
    roots = _python_directories()
    entries = [
        entry.path
        for root in roots
        for entry in os.scandir(root)
        if not entry.name.endswith("-packages")
    ]
    return [*entries, *_system_files()]


@cache
def around_standard_library(excluded_path: str) -> list[str]:
    """Return the directories above the standard library, after `standard_library`.

    A directory that contains `excluded_path` is omitted, because access to it must not be allowed.
    """
    directories = {
        os.path.realpath(path)
        for path in (*_python_directories(), "/usr", "/lib", "/lib64", "/etc", "/dev")
    }
    excluded = os.path.realpath(excluded_path)
    return sorted(path for path in directories if not excluded.startswith(f"{path}/"))


def _python_directories() -> list[str]:
    return sorted(
        {
            sysconfig.get_path("stdlib"),
            sysconfig.get_path("platstdlib"),
            os.path.dirname(os.__file__),  # noqa: PTH120 - pathlib costs start-up here
        }
    )


def _system_files() -> list[str]:
    """Return what the standard library reads elsewhere, such as time zones."""
    triplet = sysconfig.get_config_var("MULTIARCH") or "none"
    libraries = [
        f"/lib/{triplet}",
        f"/usr/lib/{triplet}",
        f"/usr/local/lib/{triplet}",
        "/lib64",
        "/usr/lib64",
    ]
    others = ["/etc/ld.so.cache", "/usr/share/zoneinfo", "/etc/localtime", "/etc/mime.types"]
    devices = ["/dev/zero", "/dev/urandom", "/dev/random"]
    real = (os.path.realpath(path) for path in (*libraries, *others, *devices))
    return sorted({path for path in real if os.path.exists(path)})  # noqa: PTH110 - see above


# --- seccomp --------------------------------------------------------------------------------------


class Filter:
    """A filter of `syscalls.py` in the format of the kernel."""

    def __init__(self, program: bytes | None) -> None:
        if program is None:
            raise Unavailable(errno.ENOSYS, f"no list of system calls for {platform.machine()}")
        self._pid_offsets = syscalls.find_pid_offsets(program)
        self._instructions = ctypes.create_string_buffer(program, len(program))
        header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(self._instructions))
        self._header = ctypes.create_string_buffer(header, len(header))
        self._address = ctypes.addressof(self._header)

    def install(self) -> None:
        """Restrict this process to the allowed system calls, irreversibly."""
        pid = os.getpid()
        for offset in self._pid_offsets:
            struct.pack_into("I", self._instructions, offset, pid)
        _prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, self._address)


# --- capabilities and limits ----------------------------------------------------------------------

LAST_CAPABILITY = 63
CAPABILITY_VERSION_3 = 0x20080522


def drop_capabilities() -> None:
    """Drop all capabilities of root, irreversibly."""
    forbid_new_privileges()
    for capability in range(LAST_CAPABILITY + 1):
        with suppress(OSError):
            _prctl(PR_CAPBSET_DROP, capability)
    number = syscalls.CAPSET.get(platform.machine())
    if number is None:
        raise Unavailable(errno.ENOSYS, f"no capset known for {platform.machine()}")
    _syscall(number, struct.pack("Ii", CAPABILITY_VERSION_3, 0), struct.pack("6I", *([0] * 6)))


def limit_resources(*, memory_bytes: int, file_bytes: int) -> None:
    """Limit the resources of this process. Memory is counted on top of what is mapped now."""
    if sys.platform == "linux":  # macOS rejects limits below the gigabytes that it maps itself
        _limit(resource.RLIMIT_AS, _read_mapped_bytes() + memory_bytes)
    limit_files(file_bytes)


def split_memory(process: int, memory_bytes: int) -> int:
    """Take half of its free memory from another process, for good.

    Return how much of `memory_bytes` it keeps.

    Where memory is not limited by `limit_resources`, nothing changes, and the result is 0.
    """
    if sys.platform != "linux":
        return 0
    try:
        limit = resource.prlimit(process, resource.RLIMIT_AS)[1]
        if limit == resource.RLIM_INFINITY:
            return 0
        kept = min(limit, (_read_mapped_bytes(process) + limit) // 2)
        resource.prlimit(process, resource.RLIMIT_AS, (kept, kept))
    except ProcessLookupError:  # it has ended
        return 0
    used = _read_mapped_bytes(process)  # it may have grown in between, but no further
    return memory_bytes - limit + max(kept, used)


def give_up_memory(memory_bytes: int) -> None:
    """Lower the memory limit of this process by so much."""
    _limit(resource.RLIMIT_AS, max(0, resource.getrlimit(resource.RLIMIT_AS)[1] - memory_bytes))


def limit_files(file_bytes: int) -> None:
    """Limit the size of each file, and write no core dumps."""
    if sys.platform != "win32":
        _limit(resource.RLIMIT_FSIZE, file_bytes)
        _limit(resource.RLIMIT_CORE, 0)


def limit_descriptors(max_descriptors: int) -> None:
    if sys.platform != "win32":
        _limit(resource.RLIMIT_NOFILE, max_descriptors)


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (bound, bound))


def limit_malloc_arenas() -> None:
    """Make threads share one malloc arena; separate ones take 64 MB of address space each."""
    with suppress(Unavailable, AttributeError):
        _libc().mallopt(M_ARENA_MAX, 1)


def _read_mapped_bytes(process: int | str = "self") -> int:
    try:
        with open(f"/proc/{process}/statm", encoding="ascii") as statm:  # noqa: PTH123 - see above
            return int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
