"""The share of each agent in the audit log, so that many calls of one agent do not displace the
records of others.

Calls beyond the share are counted instead of recorded, and summaries have their numbers.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from onetool_child.json_types import JsonMapping, JsonObject

SHARES = 10  # of all files; an agent may fill one of them in a period
MIN_SHARE_BYTES = 1 << 20
PERIOD_SECONDS = 86_400.0
SUMMARY_SECONDS = 60.0  # between summaries of an agent
RECORD_BYTES = 250  # of a record apart from its facts
MAX_TOOLS = 100  # in a summary


@dataclass(slots=True)
class _Share:
    bytes_left: int
    until: float
    calls: Counter[str] = field(default_factory=Counter)  # counted since the last summary, by tool
    refused: int = 0  # of these calls
    next_summary: float = 0.0


class AuditShares:
    """The shares of all agents, in memory. Use it in one thread."""

    def __init__(self) -> None:
        self._shares: dict[str, _Share] = {}
        self._bytes = sys.maxsize
        self.now: Callable[[], float] = time.monotonic

    def configure(self, log_bytes: int) -> None:
        self._bytes = max(MIN_SHARE_BYTES, log_bytes // SHARES)

    def take(self, facts: JsonMapping) -> bool:
        """Return whether both records of a call fit into the share of its agent.

        If not, `count` the call.
        """
        now = self.now()
        share = self._shares.setdefault(facts["agent"], _Share(self._bytes, now + PERIOD_SECONDS))
        if now >= share.until:
            share.bytes_left = self._bytes
            share.until = now + PERIOD_SECONDS
        share.bytes_left -= 2 * (len(json.dumps(facts)) + RECORD_BYTES)
        return share.bytes_left >= 0

    def count(self, agent: str, tool: str, *, is_refused: bool) -> None:
        share = self._shares[agent]
        share.calls[tool] += 1
        share.refused += is_refused

    def take_summaries(self, *, is_last: bool = False) -> Iterator[JsonObject]:
        """Yield what was counted: the first call of an agent at once, then once a minute, and the
        rest at the end.
        """
        now = self.now()
        for agent, share in self._shares.items():
            if share.calls and (is_last or now >= share.next_summary):
                tools = dict(share.calls.most_common(MAX_TOOLS))
                yield {
                    "agent": agent,
                    "calls": share.calls.total(),
                    "refused": share.refused,
                    "tools": tools,
                }
                share.calls.clear()
                share.refused = 0
                share.next_summary = now + SUMMARY_SECONDS
