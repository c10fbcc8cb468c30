"""Trying again: what is worth a repetition, how long to wait before it, and when it is too late.

The waiting is tenacity's; here are the rules. Nothing begins that could not end inside the time of the call.
"""

import datetime as dt
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final, cast

from onetool.errors import NetworkError
from onetool.net.exchange import Response

BUSY: Final = frozenset({429, 502, 503, 504})
FIRST_PAUSE: Final = 0.25  # seconds, doubled each time
LONGEST_PAUSE: Final = 10.0
_DIGITS: Final = 9  # a server that wants more seconds wants for ever


@dataclass(frozen=True, slots=True)
class Repetition:
    """`random` gives a number from 0 to 1, `clock` seconds that only grow."""

    sleep: Callable[[float], Awaitable[None]]
    random: Callable[[], float]
    clock: Callable[[], float]

    async def run(self, attempt: Callable[[float], Awaitable[Response]], retries: int, seconds: float) -> Response:
        """The first answer that is not worth a repetition, or the last one. `attempt` is told the time that is left."""
        deadline = self.clock() + seconds
        if not retries:
            return await attempt(seconds)
        import tenacity

        async def once() -> Response:
            return await attempt(max(0.0, deadline - self.clock()))

        retrying = tenacity.AsyncRetrying(
            sleep=self.sleep,
            retry=tenacity.retry_if_exception(
                lambda error: isinstance(error, NetworkError) and error.fields.get("reason") == "connect"
            )
            | tenacity.retry_if_result(lambda response: response.status in BUSY),
            wait=self._pause,
            stop=lambda state: state.attempt_number > retries or self.clock() + state.upcoming_sleep >= deadline,
            retry_error_callback=lambda state: cast("Any", state.outcome).result(),  # raises without an answer
        )
        return await retrying(once)

    def _pause(self, state: Any) -> float:
        """Twice as long each time, less up to a half, and never shorter than the server asks for."""
        longest: float = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (state.attempt_number - 1))
        own = longest * (1 - self.random() / 2)
        return own if state.outcome.failed else max(own, retry_after(state.outcome.result()))


def retry_after(response: Response, now: dt.datetime | None = None) -> float:
    """The seconds that the server asks to wait, given as a number or as a date; 0 where it asks for nothing."""
    text = (response.header("retry-after") or "").strip()
    if text.isascii() and text.isdecimal():
        return float(text[:_DIGITS])
    try:
        moment = parsedate_to_datetime(text)
        wait = moment.replace(tzinfo=moment.tzinfo or dt.UTC) - (now or dt.datetime.now(dt.UTC))
    except (TypeError, ValueError, IndexError, OverflowError):
        return 0.0
    return max(0.0, wait.total_seconds())
