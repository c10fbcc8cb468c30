"""Simulate a kernel without an isolation layer by a system call filter that rejects the calls of
the layer.

All child processes inherit the filter, so a server behaves as on an older machine.
"""

import ctypes
import errno
import platform
import struct
from collections.abc import Iterable

LOAD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REJECT = 0x7FFF0000, 0x00050000
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, MODE_FILTER = 38, 22, 2
NUMBER, FIRST_ARGUMENT = 0, 16
PRCTL = {"x86_64": 157, "aarch64": 167}
CAPSET = {"x86_64": 126, "aarch64": 91}
LANDLOCK_CREATE_RULESET = 444


def pretend_that_this_kernel_has_no(layers: Iterable[str]) -> None:
    filters = {
        "landlock": _disable_landlock,
        "seccomp": _disable_seccomp,
        "capabilities": _disable_capset,
    }
    # sorted, so that the filter that disables seccomp is installed last
    for layer in sorted(layers):
        _install(filters[layer]())


def _disable_landlock() -> bytes:
    return _reject_call(LANDLOCK_CREATE_RULESET, errno.ENOSYS)


def _disable_capset() -> bytes:
    return _reject_call(CAPSET[platform.machine()], errno.EPERM)


def _disable_seccomp() -> bytes:
    number = PRCTL[platform.machine()]
    return b"".join([
        _encode(LOAD, NUMBER), _encode(JUMP_EQUAL, number, 0, 3),
        _encode(LOAD, FIRST_ARGUMENT), _encode(JUMP_EQUAL, PR_SET_SECCOMP, 0, 1),
        _encode(RETURN, REJECT | errno.EINVAL), _encode(RETURN, ALLOW),
    ])  # fmt: skip


def _reject_call(number: int, error: int) -> bytes:
    checks = [
        _encode(LOAD, NUMBER),
        _encode(JUMP_EQUAL, number, 0, 1),
        _encode(RETURN, REJECT | error),
    ]
    return b"".join([*checks, _encode(RETURN, ALLOW)])


def _encode(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _install(program: bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    instructions = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(instructions))
    pointer = ctypes.create_string_buffer(header, len(header))
    for arguments in (
        (PR_SET_NO_NEW_PRIVS, 1, 0),
        (PR_SET_SECCOMP, MODE_FILTER, ctypes.addressof(pointer)),
    ):
        if libc.prctl(*map(ctypes.c_ulong, (*arguments, 0, 0))) != 0:
            raise OSError(ctypes.get_errno(), "cannot install the filter")
