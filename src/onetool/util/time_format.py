"""Timestamps as text: RFC 3339, in UTC, with a Z."""

from datetime import UTC, datetime
from typing import Literal


def in_utc(seconds: float, precision: Literal["seconds", "milliseconds", "microseconds"]) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=precision).replace("+00:00", "Z")
