"""The stores in the data directory: results, statistics, result shapes, durable runs, sessions and the search index.

They are opened and closed together. Opening touches no disk; each store creates its files when it first writes.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from onetool.config.model import Notify, Output, Stats
from onetool.notify import NoticeFiles, RateLimit
from onetool.problem import Problem, storage_problem
from onetool.results import Quota, ResultStore
from onetool.results.blobs import Media
from onetool.runs.run_store import RunStore
from onetool.runs.session_store import SessionStore
from onetool.search import Search
from onetool.stats.record import Recorder
from onetool.stats.shapes import ShapeFile
from onetool.storage import (
    MediaStorage,
    NoticeStorage,
    ResultStorage,
    RunStorage,
    SessionStorage,
    ShapeStorage,
    StatisticsStorage,
)


@dataclass(frozen=True, slots=True)
class Stores:
    directory: Path
    recorder: StatisticsStorage
    shapes: ShapeStorage
    search: Search
    runs: RunStorage
    sessions: SessionStorage
    notify_rate: RateLimit = field(default_factory=RateLimit)

    @classmethod
    def open(cls, directory: Path, settings: Stats, old_usage: Path | None = None) -> Self:
        stats, keep_days = directory / "stats", settings.keep_days
        recorder = Recorder(stats / "stats.db", enabled=settings.enabled, keep_days=keep_days, old_usage=old_usage)
        shapes, search = ShapeFile(stats / "shapes.json"), Search(directory / "cache")
        return cls(directory, recorder, shapes, search, RunStore(directory), SessionStore(directory))

    def results(self, output: Output) -> ResultStorage:
        quota = Quota(output.max_stored_bytes, output.max_stored_bytes_per_agent)
        return ResultStore(self.directory / "tmp", output.result_ttl, output.preview_lines, quota=quota)

    def media(self, output: Output) -> MediaStorage:
        return Media(self.directory / "tmp", output.result_ttl, max_bytes=output.max_stored_bytes)

    def notices(self, settings: Notify) -> NoticeStorage:
        return NoticeFiles(self.directory, settings.max_file_bytes)

    @property
    def stats_file(self) -> Path:
        return self.directory / "stats" / "stats.db"

    @property
    def problems(self) -> list[Problem]:
        shapes = self.directory / "stats" / "shapes.json"
        problems = ((self.recorder.problem, self.stats_file), (self.shapes.problem, shapes))
        return [storage_problem(problem, file) for problem, file in problems if problem]

    def close(self) -> None:
        """Write pending records and close. Blocks on disk access."""
        self.recorder.close()
        self.shapes.close()
        self.search.close()
        self.runs.close()
        self.sessions.close()
