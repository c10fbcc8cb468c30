"""Short reports of failed tools: the lines of the author's own files, the causes and the notes of
an exception.
"""

from __future__ import annotations

import os

from onetool_child.errors import ToolError, get_message

TYPE_CHECKING = False  # importing `typing` would double the start-up time of a worker
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

MAX_FRAMES = 3  # of one exception, the innermost
MAX_CAUSES = 3
MAX_NOTES = 5
MAX_LINE_CHARS = 300
OWN_DIRECTORY = os.path.dirname(__file__)  # noqa: PTH120 - importing pathlib is slow


def report_error(error: BaseException, directory: str) -> str:
    """Return where the error occurred in the files of this directory.

    Empty for a ToolError: its message says all.
    """
    return "" if isinstance(error, ToolError) else _join(_report(error, directory, MAX_CAUSES))


def report_causes(error: BaseException, file: str) -> str:
    """Return the notes, the members and the causes of an error, with their lines in this file."""
    return _join(_report_causes(error, file, MAX_CAUSES))


def _join(lines: Iterator[str]) -> str:
    try:
        return "\n".join(line[:MAX_LINE_CHARS] for line in lines)
    except Exception:  # noqa: BLE001 - the attributes of an exception may be anything
        return ""


def _report(error: BaseException, place: str, causes_left: int) -> Iterator[str]:
    yield from _list_frames(error, place)
    yield from _report_causes(error, place, causes_left)


def _report_causes(error: BaseException, place: str, causes_left: int) -> Iterator[str]:
    for note in list(getattr(error, "__notes__", ()))[:MAX_NOTES]:
        yield f"note: {str(note).strip()}".replace("\n", "\n  ")
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    related = [("contains", member) for member in members]
    if error.__cause__ is not None:  # an implicit context is usually a detail of the implementation
        related.append(("caused by", error.__cause__))
    for relation, other in related[:MAX_CAUSES] if causes_left else ():
        message = get_message(other).partition("\n")[0]
        yield f"{relation} {type(other).__name__}: {message}"
        yield from _report(other, place, causes_left - 1)


def _list_frames(error: BaseException, place: str) -> list[str]:
    """Return the innermost lines of the error in this directory or file."""
    import linecache

    frames = []
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        line = trace.tb_lineno
        if file == place:
            frames.append(f"line {line}: {linecache.getline(file, line).strip()}")
        elif file.startswith(f"{place}{os.sep}"):
            source = linecache.getline(file, line).strip()
            frames.append(
                f"{_shorten(file, place)}, line {line}, in {trace.tb_frame.f_code.co_name}:"
                f" {source}"
            )
        trace = trace.tb_next
    return frames[-MAX_FRAMES:]


def _shorten(file: str, directory: str) -> str:
    """Return the path from the directory that contains the pack."""
    return file.removeprefix(f"{os.path.dirname(directory)}{os.sep}")  # noqa: PTH120 - importing pathlib is slow


def strip_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames of OneTool at its beginning."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(OWN_DIRECTORY):
        trace = trace.tb_next
    return trace
