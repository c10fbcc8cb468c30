"""What a terminal gets and a file does not: colours, and one line that says that something is still going on.

Nothing here decides what is said. In a pipe, with NO_COLOR or in a dumb terminal, texts stay as they are; progress
is shown on the error stream only, so that the output can be piped while a person watches.
"""

import os
import sys
import threading
import time
from collections.abc import Iterable
from functools import partial
from itertools import cycle
from typing import Any, Self, TextIO, cast

from onetool.util.invisible import escape_invisible

PATIENCE = 1.0  # seconds that nobody minds
STEP = 0.1
WIPE = "\r\033[K"
SPINNER = "|/-\\"
NARROW = 80
STYLE_MARK = f"\033{os.urandom(8).hex()}"


class TerminalStream:
    """A terminal that shows control, direction and other invisible characters as escapes, whoever wrote the text.

    Only styles of this module pass: they begin with a mark that no other text can know.
    """

    def __init__(self, stream: TextIO) -> None:
        self.raw = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)

    def write(self, text: str) -> int:
        self.raw.write("\033".join(escape_invisible(part) for part in text.split(STYLE_MARK)))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)


def protect(stream: TextIO) -> TextIO:
    """Return the stream, as one that escapes invisible characters if it is a terminal."""
    return cast("TextIO", TerminalStream(stream)) if is_terminal(stream) else stream


def is_terminal(stream: TextIO | None) -> bool:
    """False also for a stream that was closed before we were started."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def _coloured(code: str, text: str) -> str:
    """Return the text for the output. See https://no-color.org: the variable counts where it is not empty."""
    if not text or not is_terminal(sys.stdout) or os.environ.get("NO_COLOR") or not _can_rewrite():
        return text
    escape = STYLE_MARK if isinstance(sys.stdout, TerminalStream) else "\033"
    return f"{escape}[{code}m{text}{escape}[0m"


bold, dim, red, green, yellow = (partial(_coloured, code) for code in ("1", "2", "31", "32", "33"))


class Progress:
    """`with Progress("looking") as progress:` shows what goes on, once it has taken a second; `say` changes the words.

    A thread draws, so that work on an event loop and work that blocks are both seen to go on.
    """

    def __init__(self, text: str = "") -> None:
        self._stream = sys.stderr.raw if isinstance(sys.stderr, TerminalStream) else sys.stderr
        self._text = text
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_drawn = False

    def __enter__(self) -> Self:
        if is_terminal(self._stream) and _can_rewrite():
            self._thread = threading.Thread(target=self._show, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._is_drawn:
            self._write(WIPE)

    def say(self, text: str) -> None:
        self._text = text

    def hear(self, event: str, what: Any) -> None:
        """As the listener of a run: what that waits for is what is shown."""
        if event == "progress":
            self.say(str(what))

    def _show(self) -> None:
        started = time.monotonic()
        wait = PATIENCE
        for sign in cycle(SPINNER):
            if self._over.wait(wait):
                return
            line, wait = f"{sign} {time.monotonic() - started:.0f} s  {self._text}", STEP
            # On one line, and without what would move the cursor: the text may come from elsewhere.
            shown = "".join(sign if sign.isprintable() else " " for sign in line)
            try:
                width = os.get_terminal_size(self._stream.fileno()).columns or NARROW
            except (OSError, ValueError):
                width = NARROW
            self._is_drawn = True
            self._write(WIPE + shown[: width - 1])

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal has gone: there is nobody left to show it to
            self._over.set()


def print_notices(notices: Iterable[object]) -> None:
    """Print notes to the error stream, so that the output stays data."""
    for notice in notices:
        print(f"onetool: note: {notice}", file=sys.stderr)


def _can_rewrite() -> bool:
    return os.environ.get("TERM") != "dumb"
