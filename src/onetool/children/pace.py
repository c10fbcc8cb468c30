"""How much of the event loop's time one child process may take: about half, and never long without a break."""

import time

SLICE_SECONDS = 0.005  # of work for one child, after which others come first
JSON_BYTES_PER_SECOND = 20 << 20  # what is done with a message costs time too, after it has been parsed


class Pace:
    """Say how long to rest after each message, so that whoever sends much is read slowly."""

    def __init__(self) -> None:
        self._until = 0.0
        self.now = time.perf_counter

    def charge(self, started: float, json_bytes: int) -> float:
        """Charge the work since `started`; return the seconds to rest, 0 while it is little."""
        now = self.now()
        self._until = max(self._until, started) + 2 * (now - started) + json_bytes / JSON_BYTES_PER_SECOND
        ahead = self._until - now
        return ahead if ahead > SLICE_SECONDS else 0.0
