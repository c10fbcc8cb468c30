"""Problems as data. Every transport renders the same parts; no code reads the text of a message."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import NamedTuple, Self

from onetool.errors import ConfigError, ToolError
from onetool_child.json_types import JsonObject

OK = "ok"
WARNING = "warning"
PROBLEM = "problem"
STORAGE = (  # the code of problems with files and directories that OneTool stores
    "storage_unavailable"
)
UNTRUSTED = "untrusted"
MAX_LISTED_PROBLEMS = 20
DISABLED = "disabled"  # the code of packs that a person has disabled


class Location(NamedTuple):
    """A location in a file or in the environment; line 0 is the whole file."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem: a message, a hint, the location, and a code for programs.

    The message includes the location.
    """

    message: str
    hint: str = ""
    location: Location | None = None
    code: str = ""
    level: str = PROBLEM
    fix: str = ""  # a fix that is safe to make: see `onetool.sources.checks.disk`

    @classmethod
    def of(cls, error: ToolError, level: str = PROBLEM) -> Self:
        fields = error.fields
        return cls(
            error.message, error.hint, fields.get("location"), str(fields.get("code", "")), level
        )

    def to_error(self) -> ConfigError:
        return ConfigError(self.message, hint=self.hint, location=self.location, code=self.code)

    def __str__(self) -> str:
        return f"{self.message}\nHint: {self.hint}" if self.hint else self.message

    def to_line(self) -> str:
        """Return the message and the hint in one line, for lists."""
        text = f"{self.message}. Hint: {self.hint}" if self.hint else self.message
        return "; ".join(text.replace(":\n", ": ").splitlines())

    def to_json(self) -> JsonObject:
        location = self.location
        fields = {name: value for name, value in asdict(self).items() if name != "fix" or value}
        return {
            **fields,
            "location": (
                {"file": location.file, "line": location.line or None} if location else None
            ),
        }


def limit_problems(problems: Sequence[Problem], subject: str) -> list[Problem]:
    """Return the first problems of a subject, and one that counts the others."""
    more = len(problems) - MAX_LISTED_PROBLEMS
    if more <= 0:
        return list(problems)
    last = Problem(
        f"{subject} has {more:,} more problems", problems[-1].hint, level=problems[-1].level
    )
    return [*problems[:MAX_LISTED_PROBLEMS], last]


def storage_problem(
    message: str, file: PathLike[str], hint: str = "", level: str = PROBLEM
) -> Problem:
    """Return a problem with a file or directory that OneTool stores."""
    return Problem(message, hint, Location(str(file)), STORAGE, level)
