"""A kernel that lacks a layer, without another kernel: a filter under which the layer's own calls do not exist.

It is inherited by every process that this one starts, so a server finds what it would find on an older machine.
"""

import ctypes
import errno
import platform
import struct
from collections.abc import Iterable

LOAD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, MODE_FILTER = 38, 22, 2
NUMBER, FIRST_ARGUMENT = 0, 16
PRCTL = {"x86_64": 157, "aarch64": 167}
CAPSET = {"x86_64": 126, "aarch64": 91}
LANDLOCK_CREATE_RULESET = 444


def pretend_that_this_kernel_has_no(layers: Iterable[str]) -> None:
    filters = {"landlock": _without_landlock, "seccomp": _without_seccomp, "capabilities": _without_capset}
    # the one that takes seccomp away comes last, or no other could be installed
    for layer in sorted(layers):
        _install(filters[layer]())


def _without_landlock() -> bytes:
    return _refuse(LANDLOCK_CREATE_RULESET, errno.ENOSYS)


def _without_capset() -> bytes:
    return _refuse(CAPSET[platform.machine()], errno.EPERM)


def _without_seccomp() -> bytes:
    number = PRCTL[platform.machine()]
    return b"".join([
        _do(LOAD, NUMBER), _do(JUMP_EQUAL, number, 0, 3),
        _do(LOAD, FIRST_ARGUMENT), _do(JUMP_EQUAL, PR_SET_SECCOMP, 0, 1), _do(RETURN, REFUSE | errno.EINVAL),
        _do(RETURN, ALLOW),
    ])  # fmt: skip


def _refuse(number: int, error: int) -> bytes:
    checks = [_do(LOAD, NUMBER), _do(JUMP_EQUAL, number, 0, 1), _do(RETURN, REFUSE | error)]
    return b"".join([*checks, _do(RETURN, ALLOW)])


def _do(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _install(program: bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    instructions = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(instructions))
    pointer = ctypes.create_string_buffer(header, len(header))
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0), (PR_SET_SECCOMP, MODE_FILTER, ctypes.addressof(pointer))):
        if libc.prctl(*map(ctypes.c_ulong, (*arguments, 0, 0))) != 0:
            raise OSError(ctypes.get_errno(), "the filter cannot be installed")
