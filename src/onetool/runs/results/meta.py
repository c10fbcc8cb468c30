"""Metadata of a result, and its file format."""

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import BinaryIO, Literal

from onetool.util.versioning import check_version
from onetool_child.json_types import JsonMapping

VERSION = 1
_LONG_LINE_CHARS = 1_000  # if lines are longer on average, results are read by characters


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
    value_beside: (
        bool  # whether the data has its own file, because the text renders it in another format
    )
    token_id: str = ""  # of the token that the agent used
    # whether it is always sanitized: it came from an untrusted server, or the code asked for it
    is_untrusted: bool = False
    labels: JsonMapping | None = (
        None  # of the session that stored it, for the policy `guarded`; None: unknown
    )
    version: int = VERSION

    @property
    def created(self) -> float:
        return datetime.fromisoformat(self.created_at).timestamp()

    @property
    def has_long_lines(self) -> bool:
        return self.total_chars > _LONG_LINE_CHARS * self.total_lines


def encode(meta: Meta) -> bytes:
    return json.dumps(asdict(meta)).encode()


def read(file: BinaryIO) -> Meta:
    fields = json.load(file)
    check_version(fields.get("version"), VERSION, f"the result {fields.get('handle')}")
    return Meta(**fields)


def format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
