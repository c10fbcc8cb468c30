"""Retry rules: which failures to retry, how long to wait, and when to stop. tenacity applies them.

No attempt starts after the timeout of the call.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from onetool.errors import NetworkError
from onetool.net.messages import Response
from onetool.net.retry_after import parse_retry_after

RETRIED_STATUSES: Final = frozenset({429, 502, 503, 504})
FIRST_PAUSE_SECONDS: Final = 0.25  # doubled each time
MAX_PAUSE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """A retry policy. `random` returns a number from 0 to 1, `clock` monotonic seconds."""

    sleep: Callable[[float], Awaitable[None]]
    random: Callable[[], float]
    clock: Callable[[], float]

    async def run(self, attempt: Callable[[float], Awaitable[Response]], retries: int, seconds: float) -> Response:
        """Return the first response that is not retried, or the last one. `attempt` takes the remaining seconds."""
        deadline = self.clock() + seconds
        if not retries:
            return await attempt(seconds)
        import tenacity

        async def attempt_once() -> Response:
            return await attempt(max(0.0, deadline - self.clock()))

        retrying = tenacity.AsyncRetrying(
            sleep=self.sleep,
            retry=tenacity.retry_if_exception(
                lambda error: isinstance(error, NetworkError) and error.fields.get("reason") == "connect"
            )
            | tenacity.retry_if_result(lambda response: response.status in RETRIED_STATUSES),
            wait=self._compute_pause,
            stop=lambda state: state.attempt_number > retries or self.clock() + state.upcoming_sleep >= deadline,
            retry_error_callback=lambda state: cast("Any", state.outcome).result(),  # raises if there is no response
        )
        return await retrying(attempt_once)

    def _compute_pause(self, state: Any) -> float:
        """Return the pause: doubled each time, with jitter, and at least what the server requests."""
        max_pause: float = min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (state.attempt_number - 1))
        pause = max_pause * (1 - self.random() / 2)
        return pause if state.outcome.failed else max(pause, parse_retry_after(state.outcome.result()))
