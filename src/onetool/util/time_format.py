"""Timestamps as text (RFC 3339, in UTC, with a Z) and durations such as `30d`."""

import re
from datetime import UTC, datetime
from typing import Literal

from onetool.errors import ArgumentError

DURATION = re.compile(r"([1-9][0-9]{0,5})([smhd])")
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_time(text: str) -> float:
    """Return the seconds since 1970 of a time such as 2027-01-31T12:00:00Z.

    Without a zone, it is in UTC.
    """
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def in_utc(seconds: float, precision: Literal["seconds", "milliseconds", "microseconds"]) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def parse_duration(text: str, max_days: int) -> int:
    """Return the seconds of a duration such as `30m`, `2h` or `1d`. Raise ArgumentError otherwise."""
    match = DURATION.fullmatch(text.strip())
    seconds = int(match[1]) * UNITS[match[2]] if match else 0
    if not 0 < seconds <= max_days * UNITS["d"]:
        raise ArgumentError(
            f"invalid duration {text!r}: expected up to {max_days} days, such as 30m, 2h or 1d"
        )
    return seconds
