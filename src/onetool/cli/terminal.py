"""Terminal output: colors, a progress line, escaping of invisible characters, and the streams of a
command.

In a pipe, with NO_COLOR or in a dumb terminal, text is unchanged. Progress is shown on standard
error only, so that the output can be piped.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import Any, Self, TextIO, cast

from onetool.util.invisible import escape_invisible

DELAY_SECONDS = 1.0  # before progress is shown
STEP_SECONDS = 0.1
CLEAR_LINE = "\r\033[K"
SPINNER = "|/-\\"
DEFAULT_WIDTH = 80
STYLE_MARK = f"\033{os.urandom(8).hex()}"


class TerminalStream:
    """A terminal stream that escapes control, direction and other invisible characters.

    Only styles of this module pass: they begin with a random mark that other text cannot contain.
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
    """Wrap the stream to escape invisible characters if it is a terminal."""
    return cast("TextIO", TerminalStream(stream)) if is_terminal(stream) else stream


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether the stream is a terminal; False for a stream that is closed."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def _colorize(code: str, text: str) -> str:
    """Return the text with a style if standard output supports it. See https://no-color.org."""
    if (
        not text
        or not is_terminal(sys.stdout)
        or os.environ.get("NO_COLOR")
        or not can_rewrite(os.environ)
    ):
        return text
    escape = STYLE_MARK if isinstance(sys.stdout, TerminalStream) else "\033"
    return f"{escape}[{code}m{text}{escape}[0m"


bold, dim, red, green, yellow = (partial(_colorize, code) for code in ("1", "2", "31", "32", "33"))


class Progress:
    """A progress line on standard error, shown after a second: `with Progress("searching") as
    progress:`.

    A thread draws it, so that it also moves while blocking code runs.
    """

    def __init__(self, text: str = "") -> None:
        self._stream = sys.stderr.raw if isinstance(sys.stderr, TerminalStream) else sys.stderr
        self._text = text
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_drawn = False

    def __enter__(self) -> Self:
        if is_terminal(self._stream) and can_rewrite(os.environ):
            self._thread = threading.Thread(target=self._show, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        if self._is_drawn:
            self._write(CLEAR_LINE)

    def update(self, text: str) -> None:
        self._text = text

    def on_event(self, event: str, what: Any) -> None:
        """Show the progress events of a run."""
        if event == "progress":
            self.update(str(what))

    def _show(self) -> None:
        started = time.monotonic()
        wait = DELAY_SECONDS
        for sign in cycle(SPINNER):
            if self._done.wait(wait):
                return
            wait = STEP_SECONDS
            try:
                width = os.get_terminal_size(self._stream.fileno()).columns or DEFAULT_WIDTH
            except (OSError, ValueError):
                width = DEFAULT_WIDTH
            self._draw(sign, time.monotonic() - started, width)

    def _draw(self, sign: str, seconds: float, width: int) -> None:
        line = f"{sign} {seconds:.0f} s  {self._text}"
        # The text may come from a server, so it must not move the cursor.
        shown = "".join(sign if sign.isprintable() else " " for sign in line)
        self._is_drawn = True
        self._write(CLEAR_LINE + shown[: width - 1])

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal was closed
            self._done.set()


class CommandOutput:
    """The standard streams of a command.

    `onetool.cli.remote` has those of a command that another process sent.
    """

    is_remote = False

    @property
    def is_terminal(self) -> bool:
        """Whether standard output is a terminal."""
        return is_terminal(sys.stdout)

    def write(self, text: str) -> None:
        """Write the text to standard output."""
        sys.stdout.write(text)

    def write_json(self, data: object, indent: int | None = 2) -> None:
        """Write data as JSON to standard output."""
        self.write(json.dumps(data, indent=indent, ensure_ascii=False, default=str) + "\n")

    def error(self, text: str) -> None:
        """Write the text to standard error."""
        sys.stderr.write(text)

    def progress(self, text: str) -> Progress:
        """Return a progress line on standard error."""
        return Progress(text)

    def notify(self, notices: Iterable[object]) -> None:
        """Write notices to standard error, so that standard output contains only data."""
        for notice in notices:
            self.error(f"onetool: note: {notice}\n")


def print_notices(notices: Iterable[object]) -> None:
    """Print notices to standard error, so that standard output contains only data."""
    CommandOutput().notify(notices)


def format_table(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return the lines of a table.

    The columns `right` are aligned to the right, all others to the left.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = (
        [
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    )
    return ["  ".join(cells).rstrip() for cells in aligned]


def format_list(
    headings: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[int] = ()
) -> list[str]:
    """Return the lines of a table with headings, or none without rows."""
    listed = list(rows)
    return format_table([headings, *listed], right) if listed else []


def can_rewrite(environment: Mapping[str, str]) -> bool:
    """Return whether a terminal with this environment can erase a line."""
    return environment.get("TERM") != "dumb"
