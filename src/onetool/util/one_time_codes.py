"""One-time codes, with which the owner of a home directory proves to a running server who they are.

A code is a file that only the owner can create. It is named by the hash of the code, valid for
CODE_SECONDS and deleted by its first use.
"""

import secrets
import time
from contextlib import suppress
from pathlib import Path

from onetool.util import atomic
from onetool.util.running_servers import DIRECTORY
from onetool.util.token_ids import hash_token

CODE_SECONDS = 120.0
SUFFIX = ".code"


def create_code(user: Path) -> str:
    """Create a code for the servers of this home directory, and delete those that have expired."""
    code = secrets.token_urlsafe(32)
    directory = user / DIRECTORY
    for path in directory.glob(f"*{SUFFIX}"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > CODE_SECONDS:
                path.unlink()
    atomic.write(_code_path(user, code), "")
    return code


def redeem_code(user: Path, code: str) -> bool:
    """Use up the code and return whether it was valid."""
    path = _code_path(user, code)
    try:
        age = time.time() - path.stat().st_mtime
        path.unlink()  # of two users, only one succeeds
    except OSError:
        return False
    return age <= CODE_SECONDS


def _code_path(user: Path, code: str) -> Path:
    return user / DIRECTORY / f"{hash_token(code)}{SUFFIX}"
