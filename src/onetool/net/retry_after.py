"""The Retry-After header of a response."""

import datetime as dt
from email.utils import parsedate_to_datetime

from onetool.net.messages import Response

_MAX_DIGITS = 9  # more digits would exceed any timeout


def parse_retry_after(response: Response, now: dt.datetime | None = None) -> float:
    """Return the seconds of the Retry-After header, a number or a date; 0 without one."""
    text = (response.header("retry-after") or "").strip()
    if text.isascii() and text.isdecimal():
        return float(text[:_MAX_DIGITS])
    try:
        date = parsedate_to_datetime(text)
        wait = date.replace(tzinfo=date.tzinfo or dt.UTC) - (now or dt.datetime.now(dt.UTC))
    except (TypeError, ValueError, IndexError, OverflowError):
        return 0.0
    return max(0.0, wait.total_seconds())
