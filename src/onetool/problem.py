"""Problems as data. Every transport renders the same parts; no code reads the text of a message."""

from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any, Final, NamedTuple, Self

from onetool.errors import ToolError

OK: Final = "ok"
WARNING: Final = "warning"
PROBLEM: Final = "problem"
STORAGE: Final = "storage_unavailable"  # the code of problems with files and directories that the product keeps
UNTRUSTED: Final = "untrusted"


class Location(NamedTuple):
    """A place in a file, or in the environment; line 0 means all of it."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, what to do about it, where it is, and a code for programs. The message names the place too."""

    message: str
    hint: str = ""
    location: Location | None = None
    code: str = ""
    level: str = PROBLEM

    @classmethod
    def of(cls, error: ToolError, level: str = PROBLEM) -> Self:
        fields = error.fields
        return cls(error.message, error.hint, fields.get("location"), str(fields.get("code", "")), level)

    def __str__(self) -> str:
        return f"{self.message}\nHint: {self.hint}" if self.hint else self.message

    def to_json(self) -> dict[str, Any]:
        place = self.location
        return {**asdict(self), "location": {"file": place.file, "line": place.line or None} if place else None}


def storage_problem(message: str, file: PathLike[str], hint: str = "", level: str = PROBLEM) -> Problem:
    """Return a problem with a file or directory that the product keeps."""
    return Problem(message, hint, Location(str(file)), STORAGE, level)
