"""Results and media in the files of a directory, with clocks of tests."""

import time
from pathlib import Path

from onetool.runs.results.blobs import DEFAULT_MAX_MEDIA_BYTES, Media, Quota
from onetool.runs.results.store import StoredResults
from onetool.state.result_parts import ResultFiles
from onetool.util.clock_watch import Clock, ClockWatch, read_steady_clock

SEARCH_SECONDS = 30.0


class ResultStore(StoredResults):
    """The results of a directory."""

    def __init__(
        self,
        directory: Path,
        ttl: float,
        preview_lines: int,
        clock: Clock = time.time,
        search_seconds: float = SEARCH_SECONDS,
        *,
        quota: Quota | None = None,
        steady: Clock = read_steady_clock,
    ) -> None:
        files = ResultFiles(directory, ClockWatch(clock, steady))
        super().__init__(
            files, ttl, preview_lines, clock=clock, search_seconds=search_seconds, quota=quota
        )


def open_media(
    directory: Path,
    ttl: float,
    clock: Clock = time.time,
    max_bytes: int = DEFAULT_MAX_MEDIA_BYTES,
    *,
    steady: Clock = read_steady_clock,
) -> Media:
    """Return the blobs in the files of a directory."""
    files = ResultFiles(directory, ClockWatch(clock, steady), kind="media")
    return Media(files, ttl, clock, max_bytes)
