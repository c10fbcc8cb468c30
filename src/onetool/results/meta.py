"""The facts about a result, as they stand in its meta file."""

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import BinaryIO, Literal

from onetool.util.versioning import refuse_newer

VERSION = 1
_LONG_LINE = 1_000  # where lines are longer than this on average, they are no help


@dataclass(frozen=True, slots=True)
class Meta:
    handle: str
    total_lines: int
    size_bytes: int
    created_at: str
    tool: str
    agent: str
    kind: Literal["json", "text"]
    total_chars: int
    value_beside: bool  # whether the data has a file of its own, because the text shows it in another form
    token_id: str = ""  # of the token that the agent came with
    is_untrusted: bool = False  # whether it came from a server whose answers are always to be wrapped
    version: int = VERSION

    @property
    def created(self) -> float:
        return datetime.fromisoformat(self.created_at).timestamp()

    @property
    def has_long_lines(self) -> bool:
        return self.total_chars > _LONG_LINE * self.total_lines


def written(meta: Meta) -> bytes:
    return json.dumps(asdict(meta)).encode()


def read(file: BinaryIO) -> Meta:
    """One that says no version is of the first."""
    facts = json.load(file)
    refuse_newer(facts.get("version"), VERSION, f"the result {facts.get('handle')}")
    return Meta(**facts)


def as_written(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
