"""The stores in files: results, statistics, result shapes, durable runs, sessions and the search index.

They are opened and closed together. Opening touches no disk; each store creates its files when it first writes.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from onetool.config.model import Notify, Output
from onetool.results import Quota, ResultStore
from onetool.results.blobs import Media
from onetool.search import Search
from onetool.snippets.saved_snippets import SavedSnippetFile
from onetool.state.notices import RATE_SECONDS, NoticeFiles, RateLimit, too_many_messages
from onetool.state.run_store import RunStore
from onetool.state.session_store import SessionStore
from onetool.state.storage import (
    MediaStorage,
    NoticeStorage,
    RemoteState,
    ResultStorage,
    RunStorage,
    SavedSnippetStorage,
    SessionStorage,
)
from onetool.stats.database import StatisticsFile
from onetool.stats.record import Recorder
from onetool.stats.shapes import Shapes
from onetool.util.problem import STORAGE, WARNING, Problem


@dataclass(frozen=True, slots=True)
class Stores:
    directory: Path
    recorder: Recorder
    shapes: Shapes
    search: Search
    runs: RunStorage
    sessions: SessionStorage
    snippets: SavedSnippetStorage
    remote: RemoteState | None = None  # state that replicas share, instead of that in the directory
    scope: str = ""  # the working directory, which shares results with the same one on other replicas
    notify_rate: RateLimit = field(default_factory=RateLimit)

    @classmethod
    def open(
        cls,
        directory: Path,
        private: Path,
        *,
        remote: RemoteState | None = None,
        scope: str = "",
    ) -> Self:
        if remote is not None:
            search = Search(directory / "cache")
            rows = remote.recorder, remote.shapes, search, remote.runs, remote.sessions, remote.snippets
            return cls(directory, *rows, remote, scope)
        statistics = StatisticsFile(directory / "stats" / "stats.db")
        return cls(
            directory,
            Recorder(statistics),
            Shapes(statistics),
            Search(directory / "cache"),
            RunStore(private),
            SessionStore(private),
            SavedSnippetFile(private),
        )

    def results(self, output: Output) -> ResultStorage:
        if self.remote is not None:
            return self.remote.results(output, self.scope)
        quota = Quota(output.max_stored_bytes, output.max_stored_bytes_per_agent)
        return ResultStore(self.directory / "tmp", output.result_ttl, output.preview_lines, quota=quota)

    def media(self, output: Output) -> MediaStorage:
        if self.remote is not None:
            return self.remote.media(output, self.scope)
        return Media(self.directory / "tmp", output.result_ttl, max_bytes=output.max_stored_bytes)

    def notices(self, settings: Notify) -> NoticeStorage:
        if self.remote is not None:
            return self.remote.notices(settings.max_file_bytes)
        return NoticeFiles(self.directory, settings.max_file_bytes)

    def count_notice(self, agent: str, per_minute: int) -> None:
        """Count one message of `ot.notify`. Raise BudgetExceeded if the agent has sent too many. May block."""
        if self.remote is None:
            self.notify_rate.take(agent, per_minute)
        elif wait := self.remote.counters.take(f"notices {agent}", per_minute, RATE_SECONDS):
            raise too_many_messages(per_minute, wait)

    @property
    def problems(self) -> list[Problem]:
        place = self.recorder.database.location
        messages = dict.fromkeys(filter(None, (self.recorder.problem, self.shapes.problem)))
        problems = [Problem(message, location=place, code=STORAGE) for message in messages]
        hint = "check the date of the machine; runs expire again when the clock has been steady for ten minutes"
        jumps = [Problem(self.runs.problem, hint, level=WARNING)] if self.runs.problem else []
        if self.remote is not None:
            away, ended = self.remote.problem, self.remote.ended_sessions.problem
            if away:
                return [Problem(away)]
            return [*jumps, *problems, *([ended] if ended else [])]
        return [*jumps, *problems]

    def close(self) -> None:
        """Write pending records and close. Blocks on disk access."""
        self.recorder.close()
        self.shapes.close()
        self.search.close()
        self.runs.close()
        self.sessions.close()
        if self.remote is not None:
            self.remote.close()
