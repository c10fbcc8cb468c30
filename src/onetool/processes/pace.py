"""Limit the share of the event loop that one child process may use: about half, in short slices."""

import time

SLICE_SECONDS = 0.005  # of work for one child before others get their turn
JSON_BYTES_PER_SECOND = 20 << 20  # handling a message costs time too, after it was parsed


class Pace:
    """Compute the pause after each message, so that a child that sends much is read slowly."""

    def __init__(self) -> None:
        self._until = 0.0
        self.now = time.perf_counter

    def charge(self, started: float, json_bytes: int) -> float:
        """Charge the work since `started`; return the seconds to pause, 0 below one slice."""
        now = self.now()
        self._until = (
            max(self._until, started) + 2 * (now - started) + json_bytes / JSON_BYTES_PER_SECOND
        )
        ahead = self._until - now
        return ahead if ahead > SLICE_SECONDS else 0.0
