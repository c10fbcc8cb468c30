"""Each layer of the confinement alone: denied and allowed operations, and errors if the kernel
lacks the layer.

A layer cannot be removed, so each test installs its layer in a new process. The filters are also
run in this process, by a small interpreter, for every call of both architectures.
"""

import errno
import itertools
import json
import os
import platform
import re
import socket
import struct
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cells_support import IS_ROOT, ROOT, skip_or_fail

from onetool_child import confine, syscalls

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the layers require Linux")

MACHINES = ("x86_64", "aarch64")
PID = 4242
ALLOW, PRETEND, KILL = 0x7FFF0000, 0x00050000, 0x80000000


# --- BPF interpreter ------------------------------------------------------------------------------


def run_filter(program: bytes, arch: int, number: int, *arguments: int) -> int:
    """Return the kernel's decision about a call.

    Interprets the part of classic BPF that the filters use.
    """
    padded = (*arguments, *[0] * 6)[:6]
    call = struct.pack(
        "=IIQ6Q", number & 0xFFFFFFFF, arch, 0, *(value & 0xFFFFFFFFFFFFFFFF for value in padded)
    )
    code = list(struct.iter_unpack("HBBI", program))
    value, index = 0, 0
    while True:
        kind, if_true, if_false, constant = code[index]
        index += 1
        match kind:
            case 0x20:
                (value,) = struct.unpack_from("=I", call, constant)
            case 0x54:
                value &= constant
            case 0x15:
                index += if_true if value == constant else if_false
            case 0x35:
                index += if_true if value >= constant else if_false
            case 0x45:
                index += if_true if value & constant else if_false
            case 0x06:
                return int(constant)
            case _:
                raise AssertionError(f"unknown instruction {kind:#x}")


class Machine:
    """The two filters of one architecture, combined like in the kernel: the stricter one wins."""

    def __init__(self, name: str) -> None:
        zygote, cell = syscalls.zygote_filter(name), syscalls.cell_filter(name)
        assert zygote is not None
        assert cell is not None
        self.name, self.arch, self.column = name, syscalls.AUDIT_ARCH[name], syscalls.COLUMN[name]
        self.programs = {"zygote": zygote, "cell": _fill_pid(cell, PID)}

    def zygote(self, number: int, *arguments: int) -> int:
        return run_filter(self.programs["zygote"], self.arch, number, *arguments)

    def cell(self, number: int, *arguments: int, arch: int | None = None) -> int:
        arch = self.arch if arch is None else arch
        both = [run_filter(program, arch, number, *arguments) for program in self.programs.values()]
        return min(both, key=_severity)

    def number(self, numbers: tuple[int | None, int | None]) -> int | None:
        return numbers[self.column]


def _severity(result: int) -> int:
    """Return the rank in the kernel's order: kill is stricter than an error, an error is stricter
    than allow.
    """
    return (KILL, 0x00050000, ALLOW).index(result & 0xFFFF0000)


def _fill_pid(program: bytes, pid: int) -> bytes:
    filled = bytearray(program)
    for index in syscalls.find_pid_offsets(program):
        struct.pack_into("I", filled, index, pid)
    return bytes(filled)


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> Machine:
    return Machine(request.param)


def _error(number: int) -> int:
    return 0x00050000 | number


REFUSED, MISSING, NO_TERMINAL = _error(errno.EPERM), _error(errno.ENOSYS), _error(errno.ENOTTY)


def test_a_program_is_well_formed(machine: Machine) -> None:
    for program in machine.programs.values():
        assert len(program) % 8 == 0
        code = list(struct.iter_unpack("HBBI", program))
        assert 0 < len(code) <= 4096
        assert code[-1][0] == 0x06
        for index, (kind, if_true, if_false, constant) in enumerate(code):
            if kind in {0x15, 0x35, 0x45}:
                assert index + 1 + max(if_true, if_false) < len(code)
            if kind == 0x20:
                assert constant % 4 == 0
                assert constant < 64
            if kind == 0x06:
                assert constant & 0xFFFF0000 in {ALLOW, KILL, 0x00050000}


def test_the_filter_contains_the_pid_at_its_offsets(machine: Machine) -> None:
    program = syscalls.cell_filter(machine.name)
    assert program is not None
    assert len(syscalls.find_pid_offsets(program)) == 2
    assert struct.pack("I", syscalls.OWN_PID) not in machine.programs["cell"]
    assert syscalls.find_pid_offsets(machine.programs["zygote"]) == []


def test_calls_of_another_architecture_are_killed(machine: Machine) -> None:
    others = {0x40000003, 0xC000003E, 0xC00000B7, 0x40000028, 0} - {machine.arch}
    assert {machine.cell(number, arch=arch) for number in range(500) for arch in others} == {KILL}


def test_x32_calls_are_killed(machine: Machine) -> None:
    numbers = (*range(0x40000000, 0x40000300), 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
    assert {machine.cell(number) for number in numbers} == {KILL}


def test_every_allowed_call_is_allowed(machine: Machine) -> None:
    numbers = [machine.number(each) for each in syscalls.ALLOWED.values()]
    assert {machine.cell(number) for number in numbers if number is not None} == {ALLOW}


def test_ignored_calls_return_success(machine: Machine) -> None:
    numbers = [machine.number(each) for each in syscalls.PRETENDED.values()]
    assert {machine.cell(number) for number in numbers if number is not None} == {PRETEND}


def test_calls_with_a_libc_fallback_return_enosys(machine: Machine) -> None:
    numbers = [machine.number(each) for each in syscalls.MISSING.values()]
    assert {machine.cell(number) for number in numbers if number is not None} == {MISSING}


def test_no_number_is_in_two_tables(machine: Machine) -> None:
    tables = (syscalls.ALLOWED, syscalls.PRETENDED, syscalls.MISSING, syscalls.ZYGOTE_CALLS)
    decided = [
        syscalls.FCNTL,
        syscalls.IOCTL,
        syscalls.PRCTL,
        syscalls.PRLIMIT,
        syscalls.SOCKETPAIR,
    ]
    decided += [syscalls.CLOSE_RANGE]
    numbers = [machine.number(each) for table in tables for each in table.values()]
    numbers += [machine.number(each) for each in decided]
    known = [number for number in numbers if number is not None]
    assert len(known) == len(set(known))


def test_every_other_call_is_rejected(machine: Machine) -> None:
    tables = (syscalls.ALLOWED, syscalls.PRETENDED, syscalls.MISSING, syscalls.ZYGOTE_CALLS)
    known = {machine.number(each) for table in tables for each in table.values()}
    decided = {machine.number(each) for each in (syscalls.FCNTL, syscalls.IOCTL, syscalls.PRCTL)}
    decided |= {
        machine.number(each)
        for each in (syscalls.PRLIMIT, syscalls.SOCKETPAIR, syscalls.CLOSE_RANGE)
    }
    others = [number for number in range(1200) if number not in known | decided]
    assert {machine.cell(number, 0xFFFFFFFF, 0xFFFFFFFF) for number in others} <= {
        REFUSED,
        _error(errno.ENOTSUP),
    }


# Numbers from the kernel's tables for x86_64 and aarch64, so that a mistake in our table is
# detected.
FORBIDDEN = {
    "socket": (41, 198), "connect": (42, 203), "accept": (43, 202), "accept4": (288, 242), "bind": (49, 200),
    "listen": (50, 201), "execve": (59, 221), "execveat": (322, 281), "fork": (57, None), "vfork": (58, None),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_setup": (206, 0), "io_submit": (209, 2),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "seccomp": (317, 277),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "chroot": (161, 51),
    "pivot_root": (155, 41), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsmount": (432, 432), "mount_setattr": (442, 442), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "truncate": (76, 45), "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "link": (86, None), "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36), "mknod": (133, None),
    "mknodat": (259, 33), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "setuid": (105, 146), "setgid": (106, 144), "setreuid": (113, 145),
    "setresuid": (117, 147), "setresgid": (119, 149), "setgroups": (116, 159), "capset": (126, 91),
    "setpgid": (109, 154), "setpriority": (141, 140), "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119), "sched_setparam": (142, 118), "sched_setattr": (314, 274),
    "ioprio_set": (251, 30), "personality": (135, 92), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "shmget": (29, 194), "shmat": (30, 196), "semget": (64, 190), "msgget": (68, 186),
    "mq_open": (240, 180), "mlock": (149, 228), "mlockall": (151, 230), "mlock2": (325, 284), "mbind": (237, 235),
    "move_pages": (279, 239), "migrate_pages": (256, 238), "process_madvise": (440, 440), "splice": (275, 76),
    "tee": (276, 77), "vmsplice": (278, 75), "inotify_init1": (294, 26), "fanotify_init": (300, 262),
    "quotactl": (179, 60), "swapon": (167, 224), "reboot": (169, 142), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104), "acct": (163, 89),
    "sethostname": (170, 161), "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171),
    "clock_adjtime": (305, 266), "syslog": (103, 116), "vhangup": (153, 58), "timer_create": (222, 107),
    "sync": (162, 81), "syncfs": (306, 267), "fallocate": (285, 47), "sendmsg": (46, 211), "sendmmsg": (307, 269),
    "iopl": (172, None),
    "ioperm": (173, None), "modify_ldt": (154, None), "pkey_mprotect": (329, 288), "lookup_dcookie": (212, 18),
}  # fmt: skip


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_call_that_leaves_the_cell_is_rejected(name: str, machine: Machine) -> None:
    number = machine.number(FORBIDDEN[name])
    assert number is None or machine.cell(number) & 0xFFFF0000 == 0x00050000
    assert number is None or machine.cell(number) != PRETEND


def _read_numbers(header: Path) -> dict[str, int]:
    if not header.exists():
        skip_or_fail(f"the kernel headers are not installed: {header}")
    lines = re.findall(
        r"#define __NR(?:3264)?_(\w+)\s+(\d+)\s*$", header.read_text(encoding="ascii"), re.MULTILINE
    )
    return {name: int(number) for name, number in lines}


HEADERS = {
    "x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
    "aarch64": "/usr/include/asm-generic/unistd.h",
}
OTHER_NAMES = {"newfstatat": "fstatat", "fadvise64": "fadvise64"}


def test_the_numbers_match_the_kernel_headers(machine: Machine) -> None:
    numbers = _read_numbers(Path(HEADERS[machine.name]))
    own = (syscalls.ALLOWED, syscalls.PRETENDED, syscalls.MISSING, syscalls.ZYGOTE_CALLS)
    tables = (*own, syscalls.DENIED_TO_EXTENSIONS, FORBIDDEN)
    wrong = {}
    for name, pair in itertools.chain.from_iterable(table.items() for table in tables):
        listed = numbers.get(name, numbers.get(OTHER_NAMES.get(name, "")))
        if listed is not None and machine.number(pair) != listed:
            wrong[name] = (machine.number(pair), listed)
    assert wrong == {}


# --- calls that depend on their arguments ---------------------------------------------------------


def _number(machine: Machine, pair: tuple[int, int]) -> int:
    return pair[machine.column]


HIGH = 0xFFFFFFFF00000000  # the half of these arguments that the kernel ignores


@pytest.mark.parametrize("rubbish", [0, HIGH], ids=["plain", "with the upper half filled"])
def test_threads_may_be_created_and_processes_may_not(machine: Machine, rubbish: int) -> None:
    clone = _number(machine, syscalls.CLONE)
    thread = 0x3D0F00  # the flags of pthread_create
    assert machine.cell(clone, thread | rubbish) == ALLOW
    unshared = thread & ~0x400  # the server could not count unshared descriptors
    for flags in (
        0,
        17,
        0x100 | 17,
        0x4000 | 0x100,
        0x10000000,
        0x20000,
        0x7E020000,
        0x8000,
        unshared,
    ):
        assert machine.cell(clone, flags | rubbish) == REFUSED


@pytest.mark.parametrize("rubbish", [0, HIGH], ids=["plain", "with the upper half filled"])
def test_a_cell_may_only_signal_itself(machine: Machine, rubbish: int) -> None:
    for pair in (syscalls.KILL, syscalls.TGKILL):
        number = _number(machine, pair)
        assert machine.cell(number, PID | rubbish, 9) == ALLOW
        for other in (0, 1, PID + 1, -1, -PID, 0x100000000 | 1):
            assert machine.cell(number, other, 9) == REFUSED


def test_a_process_may_read_only_its_own_limits(machine: Machine) -> None:
    prlimit = _number(machine, syscalls.PRLIMIT)
    assert machine.cell(prlimit, 0) == ALLOW
    assert {machine.cell(prlimit, other) for other in (1, PID, 0xFFFFFFFF)} == {REFUSED}


def test_threads_cannot_have_their_own_descriptors(machine: Machine) -> None:
    close_range = _number(machine, syscalls.CLOSE_RANGE)
    assert {machine.cell(close_range, 3, 5, flags) for flags in (0, 4)} == {ALLOW}
    assert {machine.cell(close_range, 3, 5, flags) for flags in (2, 6, 0xFFFFFFFF)} == {REFUSED}


@pytest.mark.parametrize("network", [False, True])
def test_a_fenced_extension_cannot_change_read_only_files(machine: Machine, network: bool) -> None:
    program = syscalls.extension_filter(machine.name, network=network)
    assert program is not None

    def decide(number: int | None, *arguments: int) -> int:
        return REFUSED if number is None else run_filter(program, machine.arch, number, *arguments)

    assert {decide(machine.number(each)) for each in syscalls.DENIED_TO_EXTENSIONS.values()} == {
        REFUSED
    }
    numbers = [machine.number(each) for each in syscalls.PRETENDED.values()]
    assert {decide(number) for number in numbers if number is not None} == {PRETEND}
    ioctl = _number(machine, syscalls.IOCTL)
    assert decide(ioctl, 3, 0x40086602) == REFUSED
    assert decide(ioctl, 3, 0x5401) == ALLOW
    sockets = ALLOW if network else REFUSED
    assert decide(_number(machine, syscalls.SOCKET), 1, 2) == sockets
    assert decide(_number(machine, syscalls.SOCKETPAIR), 1, 2) == sockets
    assert decide(_number(machine, syscalls.SOCKETPAIR), 1, 1) == ALLOW
    assert run_filter(program, 0x40000003, 0) == KILL


def test_a_descriptor_cannot_be_set_to_signal_a_process(machine: Machine) -> None:
    fcntl = _number(machine, syscalls.FCNTL)
    for harmless in (0, 1, 2, 3, 4, 5, 6, 7, 1030):
        assert machine.cell(fcntl, 3, harmless) == ALLOW
    for command in (8, 10, 15, 1024, 1026, 1031, 1033, 1036, 1038, 0xFFFFFFFF):
        assert machine.cell(fcntl, 3, command) == REFUSED


def test_only_harmless_ioctls_are_allowed(machine: Machine) -> None:
    ioctl = _number(machine, syscalls.IOCTL)
    for harmless in (0x5401, 0x541B, 0x5421):
        assert machine.cell(ioctl, 3, harmless) == ALLOW
    for command in (0x5412, 0x541C, 0x8901, 0x8902, 0x5452, 0x40086602, 0x8004F50F, 0xFFFF, 0x5403):
        assert machine.cell(ioctl, 3, command) == NO_TERMINAL


def test_a_cell_may_set_its_name_and_no_other_process_attribute(machine: Machine) -> None:
    prctl = _number(machine, syscalls.PRCTL)
    assert {machine.cell(prctl, option) for option in (3, 15, 16)} == {ALLOW}
    others = [
        option
        for option in (*range(80), 0x53564D41, 0x59616D61, 0xFFFFFFFF)
        if option not in {3, 15, 16}
    ]
    assert {machine.cell(prctl, option) for option in others} == {REFUSED}


def test_only_stream_socket_pairs_are_allowed(machine: Machine) -> None:
    pair = _number(machine, syscalls.SOCKETPAIR)
    for flags in (0, 0x800, 0x80000, 0x80800):
        assert machine.cell(pair, 1, 1 | flags) == ALLOW
        assert {machine.cell(pair, 1, kind | flags) for kind in (0, 2, 3, 4, 5, 6, 10)} == {REFUSED}
    assert {machine.cell(pair, family, 1) for family in (0, 2, 10, 16, 17, 30, 38, 40)} == {REFUSED}
    assert machine.cell(pair, 1, 1 | 0x40000000) == REFUSED


def test_the_zygote_can_create_cells(machine: Machine) -> None:
    assert machine.zygote(_number(machine, syscalls.CLONE), 17) == ALLOW
    assert machine.zygote(_number(machine, syscalls.KILL), -5 & 0xFFFFFFFF, 9) == ALLOW
    assert {machine.zygote(_number(machine, syscalls.PRCTL), option) for option in (1, 22, 38)} == {
        ALLOW
    }
    assert {machine.zygote(number) for number in (434, 444, 445, 446)} == {ALLOW}


def test_the_zygote_can_change_file_modes(machine: Machine) -> None:
    """The zygote removes scratch directories when the server is gone; hostile code may have changed
    their modes.
    """
    numbers = [machine.number(syscalls.PRETENDED[name]) for name in ("chmod", "fchmod", "fchmodat")]
    assert {machine.zygote(number) for number in numbers if number is not None} == {ALLOW}


def test_the_zygote_cannot_make_forbidden_calls(machine: Machine) -> None:
    needed = {"pidfd_open"}
    numbers = [machine.number(pair) for name, pair in FORBIDDEN.items() if name not in needed]
    assert ALLOW not in {machine.zygote(number) for number in numbers if number is not None}


def test_an_unknown_architecture_has_no_filter() -> None:
    for name in ("riscv64", "i686", "armv7l", "ppc64le", "s390x", ""):
        assert syscalls.zygote_filter(name) is None
        assert syscalls.cell_filter(name) is None
        assert syscalls.extension_filter(name, network=False) is None
    with pytest.raises(confine.Unavailable, match="no list of system calls"):
        confine.Filter(None)


# --- layers, each in its own process --------------------------------------------------------------

BEFORE = """
import ctypes, errno, json, os, platform, resource, signal, socket, sys, tempfile, threading
sys.path[:0] = [{source!r}, {root!r}]
from onetool_child import confine, syscalls
results = {{}}
def tried(name, attempt):
    try: results[name] = attempt() or 'worked'
    except BaseException as error: results[name] = type(error).__name__
def read(path):
    with open(path) as file: return file.read(5) and 'worked'
def fork():
    child = os.fork()
    if child == 0: os._exit(0)
    os.waitpid(child, 0)
def thread():
    made = threading.Thread(target=int); made.start(); made.join()
"""
AFTER = """
sys.stdout.write(json.dumps(results))
sys.stdout.flush()
os._exit(0)
"""


def run_confined(code: str, **facts: Any) -> dict[str, str]:
    """Run the code in its own process and return the results that it recorded in `results`."""
    body = textwrap.dedent(code).strip()
    for name, fact in facts.items():
        body = body.replace(f"@{name}@", repr(fact))
    source = BEFORE.format(source=str(ROOT / "src"), root=str(ROOT))
    done = subprocess.run(
        [sys.executable, "-c", f"{source}\n{body}\n{AFTER}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    results: dict[str, str] = json.loads(done.stdout)
    return results


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Create `in` (writable), `seen` (readable) and `out` (neither)."""
    for name in ("in", "seen", "out"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("text", encoding="utf-8")
    return tmp_path


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def needs_landlock(version: int = 1) -> None:
    if confine.landlock_version() < version:
        skip_or_fail(
            f"this kernel has Landlock {confine.landlock_version()}, but {version} is required"
        )


FILES = """
os.chdir(@directory@)
confine.landlock(['seen', 'seen/file', 'nowhere'], ['in', '/dev/null'])
"""


def test_landlock_alone_allows_the_given_files_and_directories(directory: Path) -> None:
    needs_landlock()
    results = run_confined(
        FILES
        + """
tried('read', lambda: read('seen/file'))
tried('list', lambda: os.listdir('seen'))
tried('write', lambda: open('in/new', 'w').write('x'))
tried('again', lambda: read('in/new'))
tried('folder', lambda: os.makedirs('in/a/b'))
tried('rename', lambda: os.rename('in/new', 'in/a/b/new'))
tried('truncate', lambda: os.truncate('in/a/b/new', 0))
tried('remove', lambda: os.unlink('in/a/b/new'))
tried('remove folder', lambda: os.removedirs('in/a/b'))
tried('null', lambda: open('/dev/null', 'w').write('x'))
""",
        directory=str(directory),
    )
    assert "list" in results
    assert not [name for name, result in results.items() if str(result).endswith("Error")], results


def test_landlock_alone_denies_everything_else(directory: Path) -> None:
    needs_landlock()
    results = run_confined(
        FILES
        + """
tried('read', lambda: read('out/file'))
tried('list', lambda: os.listdir('out'))
tried('write', lambda: open('out/new', 'w'))
tried('append', lambda: open('out/file', 'a'))
tried('folder', lambda: os.mkdir('out/new'))
tried('remove', lambda: os.unlink('out/file'))
tried('move out', lambda: os.rename('in/file', 'out/taken'))
tried('move in', lambda: os.rename('out/file', 'in/taken'))
tried('link', lambda: os.link('out/file', 'in/link'))
tried('write what is to be read', lambda: open('seen/file', 'a'))
tried('make beside what is to be read', lambda: open('seen/new', 'w'))
tried('symlink', lambda: os.symlink('/', 'in/link'))
tried('fifo', lambda: os.mkfifo('in/fifo'))
tried('socket', lambda: socket.socket(socket.AF_UNIX).bind('in/socket'))
tried('device', lambda: os.mknod('in/device', 0o600 | 0o020000, os.makedev(1, 3)))
tried('program', lambda: os.posix_spawn('/bin/true', ['true'], {}))
tried('passwords', lambda: read('/etc/passwd'))
tried('processes', lambda: os.listdir('/proc'))
tried('itself', lambda: read('/proc/self/environ'))
""",
        directory=str(directory),
    )
    assert not {
        name: result
        for name, result in results.items()
        if result not in {"PermissionError", "OSError"}
    }


def test_landlock_3_denies_truncation(directory: Path) -> None:
    needs_landlock(3)
    results = run_confined(
        FILES + "tried('truncate', lambda: os.truncate('out/file', 0))", directory=str(directory)
    )
    assert results == {"truncate": "PermissionError"}


def test_landlock_4_denies_tcp(directory: Path, listener: int) -> None:
    needs_landlock(4)
    results = run_confined(
        FILES
        + """
tried('connect', lambda: socket.create_connection(('127.0.0.1', @port@), 2))
tried('bind', lambda: socket.create_server(('127.0.0.1', 0)))
tried('datagram', lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9)) and None)
""",
        directory=str(directory),
        port=listener,
    )
    # Landlock does not cover datagrams; the second layer does
    assert results == {
        "connect": "PermissionError",
        "bind": "PermissionError",
        "datagram": "worked",
    }


def test_landlock_6_denies_signals_and_abstract_sockets(directory: Path) -> None:
    needs_landlock(6)
    name = f"\0confine-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(name)
        abstract.listen()
        results = run_confined(
            FILES
            + """
tried('signal', lambda: os.kill(os.getppid(), 0))
tried('abstract', lambda: socket.socket(socket.AF_UNIX).connect(@name@))
tried('own child', fork)
""",
            directory=str(directory),
            name=name,
        )
    assert results == {
        "signal": "PermissionError",
        "abstract": "PermissionError",
        "own child": "worked",
    }


def test_landlock_is_inherited_and_cannot_be_extended(directory: Path) -> None:
    needs_landlock()
    results = run_confined(
        FILES
        + """
ruleset = confine.landlock_ruleset(['/'], ['/'])
child = os.fork()
if child == 0:
    confine.restrict_to(ruleset)
    try: read('out/file'); os._exit(1)
    except PermissionError: pass
    try: read('seen/file'); os._exit(0)
    except PermissionError: os._exit(2)
results['child'] = str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
        directory=str(directory),
    )
    assert results == {"child": "0"}


def test_a_given_file_is_readable_and_its_siblings_are_not(directory: Path) -> None:
    needs_landlock()
    (directory / "seen" / "other").write_text("text", encoding="utf-8")
    results = run_confined(
        """
os.chdir(@directory@)
confine.landlock(['seen/file'], [])
tried('named', lambda: read('seen/file'))
tried('beside', lambda: read('seen/other'))
""",
        directory=str(directory),
    )
    assert results == {"named": "worked", "beside": "PermissionError"}


def test_landlock_allows_the_standard_library_without_packages() -> None:
    needs_landlock()
    results = run_confined("""
import site
packages = [path for path in sys.path if path.endswith('-packages')]
confine.landlock(confine.standard_library(), ['/dev/null'])
sys.modules.pop('json', None)
for name in ('json', 'sqlite3', 'ssl', 'ctypes', 'decimal', 'asyncio', 'zoneinfo', 'lzma', 'unittest', 'xml.etree'):
    tried(name, lambda: __import__(name) and None)
tried('time zone', lambda: str(__import__('zoneinfo').ZoneInfo('Europe/Berlin')) and None)
tried('random', lambda: open('/dev/urandom', 'rb').read(1) and None)
tried('packages', lambda: [os.listdir(path) for path in packages] and None)
""")
    assert results.pop("packages") == "PermissionError"
    assert set(results.values()) == {"worked"}, results


def test_seccomp_alone_allows_computation_threads_and_files(directory: Path) -> None:
    results = run_confined(
        """
os.chdir(@directory@)
confine.forbid_new_privileges()
for each in (syscalls.zygote_filter, syscalls.cell_filter): confine.Filter(each(platform.machine())).install()
tried('read', lambda: read('out/file'))
tried('write', lambda: open('out/new', 'w').write('x'))
tried('thread', thread)
tried('pipe', lambda: os.pipe())
tried('pair', lambda: socket.socketpair() and None)
tried('timer', lambda: signal.setitimer(signal.ITIMER_REAL, 0) and None)
tried('itself', lambda: os.kill(os.getpid(), 0))
tried('import', lambda: __import__('sqlite3') and None)
tried('mode', lambda: os.chmod('out/file', 0o600))
tried('times', lambda: os.utime('out/file', (1, 1)))
results['mode'] = oct(os.stat('out/file').st_mode & 0o777) if results['mode'] == 'worked' else results['mode']
results['times'] = str(os.stat('out/file').st_mtime > 1)
""",
        directory=str(directory),
    )
    assert results.pop("mode") == "0o644"
    assert results.pop("times") == "True"
    assert not {name: result for name, result in results.items() if str(result).endswith("Error")}


def test_seccomp_alone_denies_processes_signals_and_networks(directory: Path) -> None:
    results = run_confined(
        """
os.chdir(@directory@)
confine.forbid_new_privileges()
for each in (syscalls.zygote_filter, syscalls.cell_filter): confine.Filter(each(platform.machine())).install()
tried('socket', lambda: socket.socket())
tried('datagram', lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
tried('unix', lambda: socket.socket(socket.AF_UNIX))
tried('datagram pair', lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
tried('fork', fork)
tried('program', lambda: os.execv('/bin/true', ['true']))
tried('spawn', lambda: os.posix_spawn('/bin/true', ['true'], {}))
tried('signal', lambda: os.kill(os.getppid(), 0))
tried('link', lambda: os.link('out/file', 'out/link'))
tried('symlink', lambda: os.symlink('out/file', 'out/link'))
tried('owner', lambda: os.chown('out/file', -1, -1))
tried('truncate', lambda: os.truncate('out/file', 0))
tried('memory file', lambda: os.memfd_create('x'))
tried('priority', lambda: os.setpriority(os.PRIO_PROCESS, 0, 5))
""",
        directory=str(directory),
    )
    assert set(results.values()) == {"PermissionError"}, results


def test_seccomp_cannot_be_removed(directory: Path) -> None:
    results = run_confined(
        """
confine.forbid_new_privileges()
for each in (syscalls.zygote_filter, syscalls.cell_filter): confine.Filter(each(platform.machine())).install()
tried('again', lambda: confine.Filter(syscalls.cell_filter(platform.machine())).install())
libc = ctypes.CDLL(None)
results['off'] = str(libc.prctl(22, 0, 0, 0, 0))
""",
        directory=str(directory),
    )
    assert results == {"again": "Unavailable", "off": "-1"}


def test_all_capabilities_are_dropped_permanently(directory: Path) -> None:
    if not IS_ROOT:
        pytest.skip("only root has capabilities")
    (directory / "out" / "theirs").write_text("text", encoding="utf-8")
    os.chown(directory / "out" / "theirs", 61234, 61234)
    (directory / "out" / "theirs").chmod(0o600)
    results = run_confined(
        """
os.chdir(@directory@)
tried('before', lambda: read('out/theirs'))
confine.drop_capabilities()
with open('/proc/self/status') as status: lines = [line.split() for line in status if line[:3] in ('Cap', 'NoN')]
results.update({line[0].rstrip(':'): line[1] for line in lines})
tried('read', lambda: read('out/theirs'))
tried('chown', lambda: os.chown('out/file', 1, 1))
tried('user', lambda: os.setuid(1))
tried('chroot', lambda: os.chroot('.'))
tried('nice', lambda: os.setpriority(os.PRIO_PROCESS, 0, -5))
tried('own files', lambda: read('out/file'))
""",
        directory=str(directory),
    )
    assert results["before"] == "worked"
    assert results["own files"] == "worked"
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(results[name], 16) == 0, name
    assert results["NoNewPrivs"] == "1"
    for name in ("read", "chown", "user", "chroot", "nice"):
        assert results[name] == "PermissionError", name


def test_dropping_capabilities_works_without_capabilities() -> None:
    results = run_confined("confine.drop_capabilities()\ntried('again', confine.drop_capabilities)")
    assert results == {"again": "worked"}


LIMITS = (
    "confine.limit_resources(memory_bytes=64 << 20, file_bytes=1 <<"
    " 20)\nconfine.limit_descriptors(32)\n"
)


def test_limits_alone_restrict_memory_files_and_descriptors(directory: Path) -> None:
    results = run_confined(
        LIMITS
        + """
os.chdir(@directory@)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
tried('some memory', lambda: bytearray(32 << 20) and None)
tried('memory', lambda: bytearray(128 << 20))
tried('small file', lambda: open('in/small', 'wb').write(bytes(1 << 19)))
tried('large file', lambda: open('in/large', 'wb', 0).write(bytes(3 << 20)) > (1 << 20) and 'too much')
tried('hole', lambda: os.truncate(open('in/hole', 'w').name, 1 << 30))
tried('descriptors', lambda: [os.pipe() for _ in range(40)])
tried('core', lambda: str(resource.getrlimit(resource.RLIMIT_CORE)))
""",
        directory=str(directory),
    )
    assert results["some memory"] == "worked"
    assert results["memory"] == "MemoryError"
    assert "Error" not in str(results["small file"])
    assert results["large file"] in {"worked", "OSError"}
    assert (directory / "in" / "large").stat().st_size <= 1 << 20
    assert results["hole"] == "OSError"
    assert results["descriptors"] == "OSError"
    assert results["core"] == "(0, 0)"


def test_limits_cannot_be_raised() -> None:
    results = run_confined(f"""confine.drop_capabilities()
{LIMITS}
for name in ('RLIMIT_AS', 'RLIMIT_FSIZE', 'RLIMIT_NOFILE', 'RLIMIT_CORE'):
    kind = getattr(resource, name)
    limit = resource.getrlimit(kind)[1]
    tried(name, lambda: resource.setrlimit(kind, (limit + 1, limit + 1)))
""")
    assert set(results.values()) == {"ValueError"}


def test_lower_limits_are_kept() -> None:
    results = run_confined("""
resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
confine.limit_resources(memory_bytes=1 << 40, file_bytes=1 << 40)
confine.limit_descriptors(999)
results['descriptors'] = str(resource.getrlimit(resource.RLIMIT_NOFILE))
""")
    assert results == {"descriptors": "(16, 16)"}


def test_two_hundred_threads_fit_into_512_megabytes() -> None:
    results = run_confined("""
confine.limit_malloc_arenas()
threading.stack_size(1 << 20)
confine.limit_resources(memory_bytes=512 << 20, file_bytes=1 << 20)
gate = threading.Barrier(201)
def work():
    kept = [bytes(1000) for _ in range(100)]
    gate.wait()
def start():
    for _ in range(200): threading.Thread(target=work).start()
    gate.wait()
tried('threads', start)
""")
    assert results == {"threads": "worked"}


def test_a_process_dies_with_its_parent() -> None:
    results = run_confined("""
import time
reader, writer = os.pipe()
parent = os.fork()
if parent == 0:
    child = os.fork()
    if child == 0:
        confine.die_with_parent(os.getppid())
        os.write(writer, str(os.getpid()).encode())
        signal.pause()
    signal.pause()
handle = os.pidfd_open(int(os.read(reader, 99)))
os.kill(parent, signal.SIGKILL)
import select
results['child'] = 'gone' if select.select([handle], [], [], 10)[0] else 'alive'
""")
    assert results == {"child": "gone"}


def test_a_process_whose_parent_is_gone_exits() -> None:
    results = run_confined("""
child = os.fork()
if child == 0:
    confine.die_with_parent(1 if os.getppid() != 1 else 2)
    os._exit(5)
results['status'] = str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")
    assert results == {"status": "0"}


# --- kernels without a layer ----------------------------------------------------------------------

LACKING = "from tests.e2e.missing_layers import pretend_that_this_kernel_has_no\n"


def test_a_kernel_without_landlock_is_reported() -> None:
    results = run_confined(
        LACKING
        + """
pretend_that_this_kernel_has_no(['landlock'])
results['version'] = confine.landlock_version()
tried('landlock', lambda: confine.landlock([], []))
tried('ruleset', lambda: confine.landlock_ruleset([], []))
tried('read', lambda: read('/etc/passwd'))
"""
    )
    assert results == {
        "version": 0,
        "landlock": "Unavailable",
        "ruleset": "Unavailable",
        "read": "worked",
    }


def test_a_kernel_without_seccomp_is_reported() -> None:
    results = run_confined(
        LACKING
        + """
pretend_that_this_kernel_has_no(['seccomp'])
confine.forbid_new_privileges()
tried('seccomp', lambda: confine.Filter(syscalls.cell_filter(platform.machine())).install())
tried('socket', lambda: socket.socket() and None)
"""
    )
    assert results == {"seccomp": "Unavailable", "socket": "worked"}


def test_a_container_that_forbids_dropping_capabilities_is_reported() -> None:
    results = run_confined(
        LACKING
        + """
pretend_that_this_kernel_has_no(['capabilities'])
tried('capabilities', confine.drop_capabilities)
"""
    )
    assert results == {"capabilities": "Unavailable"}


@pytest.mark.parametrize(
    "lacking", [["landlock"], ["seccomp"], ["landlock", "seccomp"], ["capabilities"]]
)
def test_the_zygote_installs_the_available_layers(lacking: list[str], tmp_path: Path) -> None:
    results = run_confined(
        LACKING
        + """
from onetool_child import zygote
pretend_that_this_kernel_has_no(@lacking@)
options = zygote.Options(scratch=@scratch@, memory_bytes=1 << 29, file_bytes=1 << 20, isolation='auto')
confinement = zygote.confine_zygote(options)
results['layers'] = '+'.join(confinement.layers)
results['filter'] = str(confinement.filter is not None)
""",
        lacking=lacking,
        scratch=str(tmp_path),
    )
    layers = [layer for layer in ("landlock", "seccomp") if layer not in lacking]
    assert results == {"layers": "+".join(layers), "filter": str("seccomp" in layers)}


def test_this_architecture_is_supported() -> None:
    assert platform.machine() in MACHINES or syscalls.cell_filter(platform.machine()) is None
