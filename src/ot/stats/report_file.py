"""The report as a file: an ordinary one, in place of what stood there."""

import os
import stat
from pathlib import Path

from ot.stats.report import html
from ot.stats.summary import Summary


def write(path: Path, summary: Summary) -> None:
    """Through no link that was put there meanwhile, and waiting for no pipe. Raises OSError or ValueError."""
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(path, flags | getattr(os, "O_BINARY", 0), 0o644), "wb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("it is no regular file")
        file.truncate()
        file.write(html(summary).encode("utf-8", "backslashreplace"))
