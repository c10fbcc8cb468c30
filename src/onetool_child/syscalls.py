"""The system calls that a computing Python process needs, by name and number, and the filter made
of them.

This is an allow-list: system calls that are not listed fail with EPERM (or ENOSYS, where libc then
falls back by itself). Left out on purpose: everything that opens a network socket, starts a program
or a process, signals or traces another process, changes owners, maps memory that no limit counts,
or is an interface of its own (io_uring, bpf, keys, mounts). The numbers are the kernel's and never
change, for x86_64 and aarch64.

There are two filters, because the cost of installing one depends on its length: the long one is
installed in the zygote once and still allows it to fork, kill and confine; the short one is
installed in every cell and denies that too. A third one, a deny-list, is for extensions with a
sandbox.
"""

import errno
import struct
from collections.abc import Iterable

X86_64 = 0
AARCH64 = 1
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
COLUMN = {"x86_64": X86_64, "aarch64": AARCH64}
CAPSET = {"x86_64": 126, "aarch64": 91}
NONE = None  # the call does not exist on that architecture
Numbers = dict[str, tuple[int | None, int | None]]  # of calls by name: on x86_64 and on aarch64

# fmt: off
ALLOWED: Numbers = {
    # open files, and files that Landlock allows to open
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67), "pwrite64": (18, 68),
    "preadv": (295, 69), "pwritev": (296, 70), "preadv2": (327, 286), "pwritev2": (328, 287), "lseek": (8, 62),
    "open": (2, NONE), "openat": (257, 56), "creat": (85, NONE), "close": (3, 57),
    "dup": (32, 23), "dup2": (33, NONE), "dup3": (292, 24), "pipe": (22, NONE), "pipe2": (293, 59),
    "fsync": (74, 82), "fdatasync": (75, 83), "ftruncate": (77, 46), "fadvise64": (221, 223),
    "flock": (73, 32), "sendfile": (40, 71), "copy_file_range": (326, 285), "readahead": (187, 213),
    # inspecting the file system, and changing what Landlock allows
    "stat": (4, NONE), "fstat": (5, 80), "lstat": (6, NONE), "newfstatat": (262, 79), "statx": (332, 291),
    "statfs": (137, 43), "fstatfs": (138, 44), "access": (21, NONE), "faccessat": (269, 48), "faccessat2": (439, 439),
    "readlink": (89, NONE), "readlinkat": (267, 78), "getdents": (78, NONE), "getdents64": (217, 61),
    "getcwd": (79, 17), "chdir": (80, 49), "fchdir": (81, 50), "umask": (95, 166),
    "rename": (82, NONE), "renameat": (264, 38), "renameat2": (316, 276), "mkdir": (83, NONE), "mkdirat": (258, 34),
    "rmdir": (84, NONE), "unlink": (87, NONE), "unlinkat": (263, 35),
    # memory
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214), "mremap": (25, 216),
    "msync": (26, 227), "mincore": (27, 232), "madvise": (28, 233), "membarrier": (324, 283),
    # threads and waiting
    "futex": (202, 98), "futex_waitv": (449, 449), "set_robust_list": (273, 99), "get_robust_list": (274, 100),
    "set_tid_address": (218, 96), "rseq": (334, 293), "arch_prctl": (158, NONE), "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123), "sched_getparam": (143, 121), "sched_getscheduler": (145, 120),
    "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126), "getcpu": (309, 168),
    "poll": (7, NONE), "ppoll": (271, 73), "select": (23, NONE), "pselect6": (270, 72), "epoll_create": (213, NONE),
    "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, NONE), "epoll_pwait": (281, 22),
    "epoll_pwait2": (441, 441), "eventfd": (284, NONE), "eventfd2": (290, 19), "timerfd_create": (283, 85),
    "timerfd_settime": (286, 86), "timerfd_gettime": (287, 87), "pause": (34, NONE), "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115), "wait4": (61, 260), "waitid": (247, 95), "restart_syscall": (219, 128),
    "exit": (60, 93), "exit_group": (231, 94),
    # clocks, signals to itself, information about itself
    "gettimeofday": (96, 169), "time": (201, NONE), "times": (100, 153), "clock_gettime": (228, 113),
    "clock_getres": (229, 114), "getitimer": (36, 102), "setitimer": (38, 103), "alarm": (37, NONE),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133), "sigaltstack": (131, 132),
    "getpid": (39, 172), "gettid": (186, 178), "getppid": (110, 173), "getpgrp": (111, NONE), "getpgid": (121, 155),
    "getsid": (124, 156), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177),
    "getgroups": (115, 158), "getresuid": (118, 148), "getresgid": (120, 150), "getrlimit": (97, 163),
    "setrlimit": (160, 164), "getrusage": (98, 165), "getpriority": (140, 141), "sysinfo": (99, 179),
    "uname": (63, 160), "getrandom": (318, 278),
    # The two ends of a socket pair of the process; see SOCKETPAIR. Not sendmsg: a file whose
    # descriptor is queued in a socket stays alive, and its disk usage would be invisible.
    "sendto": (44, 206), "recvfrom": (45, 207), "recvmsg": (47, 212), "shutdown": (48, 210),
    "getsockname": (51, 204), "getpeername": (52, 205), "setsockopt": (54, 208), "getsockopt": (55, 209),
}

# Cells must not change modes and times of files, and Landlock does not prevent it: the call does
# nothing and reports success, so that shutil and tarfile work in the scratch directory. (The zygote
# removes directories of mode 0.)
PRETENDED: Numbers = {
    "chmod": (90, NONE), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "utime": (132, NONE), "utimes": (235, NONE), "futimesat": (261, NONE), "utimensat": (280, 88),
}

# libc tries these first and falls back by itself when they do not exist.
MISSING: Numbers = {"clone3": (435, 435), "openat2": (437, 437)}

# Python works without extended attributes, and libc without reserved space, if these are not
# supported.
UNSUPPORTED: Numbers = {
    "listxattr": (194, 11), "llistxattr": (195, 12), "flistxattr": (196, 13), "fallocate": (285, 47),
}

CLONE = (56, 220)
FCNTL = (72, 25)
IOCTL = (16, 29)
KILL = (62, 129)
TGKILL = (234, 131)
PIDFD_OPEN = (434, 434)
ZYGOTE_CALLS: Numbers = {
    "clone": CLONE, "kill": KILL, "tgkill": TGKILL, "setsid": (112, 157), "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445), "landlock_restrict_self": (446, 446), "pidfd_open": PIDFD_OPEN,
}
SOCKET = (41, 198)
# Calls with which a sandboxed extension could change files that it may only read, or leave data
# behind.
DENIED_TO_EXTENSIONS: Numbers = {
    "chown": (92, NONE), "lchown": (94, NONE), "fchown": (93, 55), "fchownat": (260, 54),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466),
    "file_setattr": (469, 469), "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195),
    "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187),
    "semget": (64, 190), "semop": (65, 193), "semtimedop": (220, 192), "semctl": (66, 191),
    "mq_open": (240, 180), "mq_unlink": (241, 181), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}
PRCTL = (157, 167)
PRLIMIT = (302, 261)
SOCKETPAIR = (53, 199)
CLOSE_RANGE = (436, 436)
# fmt: on

# A thread has to share its descriptors: the server counts the files that the main thread holds
# open.
CLONE_FILES_AND_THREAD = 0x400 | 0x10000
CLOSE_RANGE_FLAGS = (0, 4)  # not CLOSE_RANGE_UNSHARE, which gives a thread its own descriptors
# Not F_SETOWN, F_SETSIG, F_NOTIFY, F_SETLEASE (each sends signals), nor F_SETPIPE_SZ (memory that
# no limit counts).
FCNTL_COMMANDS = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032, 1034)
# TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
IOCTL_COMMANDS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME: not PR_SET_PDEATHSIG, which could disable the death
# with the parent
PRCTL_OPTIONS = (3, 15, 16)
# FS_IOC_SETFLAGS, FS_IOC32_SETFLAGS, FS_IOC_SETVERSION, FS_IOC_FSSETXATTR, FS_IOC_ENABLE_VERITY
IOCTL_FILE_COMMANDS = (0x40086602, 0x40046602, 0x40087602, 0x401C5820, 0x40806685)
# PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS
ZYGOTE_PRCTL_OPTIONS = (1, 22, 38)
AF_UNIX = 1
SOCK_STREAM = 1
SOCK_FLAGS = 0x800 | 0x80000

LOAD = 0x20
JUMP_EQUAL = 0x15
JUMP_AT_LEAST = 0x35
AND = 0x54
RETURN = 0x06
ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
ERRNO = 0x00050000
DENY = ERRNO | errno.EPERM
PRETEND = ERRNO
NO_SUCH_CALL = ERRNO | errno.ENOSYS
NOT_FOR_THIS = ERRNO | errno.ENOTTY
NOT_SUPPORTED = ERRNO | errno.EOPNOTSUPP
NUMBER_OFFSET = 0
ARCH_OFFSET = 4
X32_BIT = 0x40000000


# Placeholder for the ID of the process that installs the program, so that the program is built only
# once.
OWN_PID = 0x7EADBEEF


def find_pid_offsets(program: bytes) -> list[int]:
    """Return the positions of the process ID in the program."""
    placeholder = struct.pack("I", OWN_PID)
    return [
        offset
        for offset in range(4, len(program), 8)
        if program[offset : offset + 4] == placeholder
    ]


def zygote_filter(machine: str) -> bytes | None:
    """Return the filter of the zygote, which forks cells; None for unknown architectures."""
    if machine not in COLUMN:
        return None
    column = COLUMN[machine]
    parts = [_preamble(machine)]
    tables = (
        (ALLOWED, ALLOW),
        (ZYGOTE_CALLS, ALLOW),
        (PRETENDED, ALLOW),
        (MISSING, NO_SUCH_CALL),
        (UNSUPPORTED, NOT_SUPPORTED),
    )
    for table, action in tables:
        parts += [_return_action(numbers[column], action) for numbers in table.values()]
    parts += [
        _check_argument(FCNTL[column], 1, FCNTL_COMMANDS, DENY),
        _check_argument(IOCTL[column], 1, IOCTL_COMMANDS, NOT_FOR_THIS),
        _check_argument(PRCTL[column], 0, (*PRCTL_OPTIONS, *ZYGOTE_PRCTL_OPTIONS), DENY),
        _check_argument(PRLIMIT[column], 0, (0,), DENY),
        _check_argument(CLOSE_RANGE[column], 2, CLOSE_RANGE_FLAGS, DENY),
        _allow_stream_pairs_only(SOCKETPAIR[column]),
        _instruction(RETURN, DENY),
    ]
    return b"".join(parts)


def cell_filter(machine: str) -> bytes | None:
    """Return the filter that denies cells processes, signals and changed isolation."""
    if machine not in COLUMN:
        return None
    column = COLUMN[machine]
    return b"".join([
        _preamble(machine),
        _allow_threads_only(CLONE[column]),
        _check_argument(KILL[column], 0, (OWN_PID,), DENY),
        _check_argument(TGKILL[column], 0, (OWN_PID,), DENY),
        _check_argument(PRCTL[column], 0, PRCTL_OPTIONS, DENY),
        _return_action(PIDFD_OPEN[column], DENY),
        *(_return_action(numbers[column], PRETEND) for numbers in PRETENDED.values()),
        _instruction(RETURN, ALLOW),
    ])  # fmt: skip


def extension_filter(machine: str, *, network: bool) -> bytes | None:
    """Return the filter of a sandboxed extension, which denies what Landlock cannot.

    Modes and times cannot be changed, and the calls report success, as in cells. Without network,
    only connected socket pairs are allowed.
    """
    if machine not in COLUMN:
        return None
    column = COLUMN[machine]
    sockets = (
        []
        if network
        else [_return_action(SOCKET[column], DENY), _allow_stream_pairs_only(SOCKETPAIR[column])]
    )
    return b"".join([
        _preamble(machine),
        *sockets,
        *(_return_action(numbers[column], DENY) for numbers in DENIED_TO_EXTENSIONS.values()),
        *(_return_action(numbers[column], PRETEND) for numbers in PRETENDED.values()),
        _check_argument(IOCTL[column], 1, IOCTL_FILE_COMMANDS, ALLOW, then=DENY),
        _instruction(RETURN, ALLOW),
    ])  # fmt: skip


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _argument(index: int) -> int:
    # The low half on little-endian machines, which is all that the kernel reads of these arguments.
    return 16 + 8 * index


def _preamble(machine: str) -> bytes:
    """Kill processes of other architectures, including x32, whose numbers mean other calls."""
    return b"".join([
        _instruction(LOAD, ARCH_OFFSET), _instruction(JUMP_EQUAL, AUDIT_ARCH[machine], 1, 0),
        _instruction(RETURN, KILL_PROCESS),
        _instruction(LOAD, NUMBER_OFFSET), _instruction(JUMP_AT_LEAST, X32_BIT, 0, 1),
        _instruction(RETURN, KILL_PROCESS),
    ])  # fmt: skip


def _return_action(number: int | None, action: int) -> bytes:
    return (
        b""
        if number is None
        else _instruction(JUMP_EQUAL, number, 0, 1) + _instruction(RETURN, action)
    )


def _match_call(number: int | None, body: bytes) -> bytes:
    """Return instructions that run the body for this call; the body must always return."""
    return b"" if number is None else _instruction(JUMP_EQUAL, number, 0, len(body) // 8) + body


def _check_argument(
    number: int | None, index: int, values: Iterable[int], otherwise: int, then: int = ALLOW
) -> bytes:
    checks = b"".join(
        _instruction(JUMP_EQUAL, value, 0, 1) + _instruction(RETURN, then) for value in values
    )
    return _match_call(
        number, _instruction(LOAD, _argument(index)) + checks + _instruction(RETURN, otherwise)
    )


def _allow_threads_only(number: int | None) -> bytes:
    body = [
        _instruction(LOAD, _argument(0)),
        _instruction(AND, CLONE_FILES_AND_THREAD),
        _instruction(JUMP_EQUAL, CLONE_FILES_AND_THREAD, 0, 1),
        _instruction(RETURN, ALLOW),
        _instruction(RETURN, DENY),
    ]
    return _match_call(number, b"".join(body))


def _allow_stream_pairs_only(number: int | None) -> bytes:
    """Allow only pairs of stream sockets; a datagram socket could send to any address."""
    body = [
        _instruction(LOAD, _argument(0)), _instruction(JUMP_EQUAL, AF_UNIX, 1, 0), _instruction(RETURN, DENY),
        _instruction(LOAD, _argument(1)), _instruction(AND, ~SOCK_FLAGS & 0xFFFFFFFF),
        _instruction(JUMP_EQUAL, SOCK_STREAM, 0, 1), _instruction(RETURN, ALLOW), _instruction(RETURN, DENY),
    ]  # fmt: skip
    return _match_call(number, b"".join(body))
