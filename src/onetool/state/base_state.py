"""The common part of the state in files and of the state in a database."""

from typing import Self

from onetool.search import Search
from onetool.state.run_store import RunTables
from onetool.state.session_store import SessionTables
from onetool.stats.record import Recorder
from onetool.stats.shapes import Shapes
from onetool.util.problem import STORAGE, WARNING, Problem

CLOCK_HINT = "check the date of the machine; runs expire again when the clock has been steady for ten minutes"


class BaseState:
    """The kinds of state that have one implementation over both databases."""

    recorder: Recorder
    shapes: Shapes
    search: Search
    runs: RunTables
    sessions: SessionTables

    @property
    def problems(self) -> list[Problem]:
        place = self.recorder.database.location
        messages = dict.fromkeys(filter(None, (self.recorder.problem, self.shapes.problem)))
        problems = [Problem(message, location=place, code=STORAGE) for message in messages]
        if self.runs.problem:
            problems.insert(0, Problem(self.runs.problem, CLOCK_HINT, level=WARNING))
        return problems

    def close(self) -> None:
        """Write pending records and close. Blocks on disk access."""
        self.recorder.close()
        self.shapes.close()
        self.search.close()
        self.runs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
