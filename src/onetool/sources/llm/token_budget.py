"""Limits on the tokens that language models may use, per run and per day.

Tokens are reserved before a request is sent, so that concurrent requests cannot exceed a limit.
Those of a day are stored, because all processes of a user share the limit.
"""

import time
from collections.abc import Callable
from contextlib import suppress

from anyio.to_thread import run_sync as run_in_thread

from onetool.errors import BudgetExceeded, StorageError
from onetool.settings.model import Llm
from onetool.state.documents import Documents
from onetool.util.bounded_dict import BoundedDict

MAX_RUNS = 10_000  # in memory


class TokenBudget:
    """The tokens that runs and days have used."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._runs: BoundedDict[str, int] = BoundedDict(MAX_RUNS)

    async def reserve(self, run: str, tokens: int, settings: Llm, usage: Documents) -> None:
        """Count the tokens of a request, or raise if a limit does not allow them."""
        used = self._runs.get(run, 0)
        _check_limit("max_tokens_per_run", settings.max_tokens_per_run, used, tokens)
        self._add_to_run(run, tokens)
        try:
            await run_in_thread(self._reserve_day, tokens, settings.max_tokens_per_day, usage)
        except BaseException:
            self._add_to_run(run, -tokens)
            raise

    async def correct(self, run: str, difference: int, usage: Documents) -> None:
        """Add the difference between the tokens that were used and those that were reserved.

        If it cannot be stored, more is counted than was used, which needs no error.
        """
        self._add_to_run(run, difference)
        with suppress(StorageError):
            await run_in_thread(
                usage.update, self._today(), lambda used: max(0, (used or 0) + difference)
            )

    def _reserve_day(self, tokens: int, limit: int, usage: Documents) -> None:
        def add(used: int | None) -> int:
            _check_limit("max_tokens_per_day", limit, used or 0, tokens)
            return (used or 0) + tokens

        usage.update(self._today(), add)

    def _add_to_run(self, run: str, tokens: int) -> None:
        self._runs[run] = max(0, self._runs.get(run, 0) + tokens)

    def _today(self) -> str:
        return time.strftime("%Y-%m-%d", time.gmtime(self._clock()))


def _check_limit(setting: str, limit: int, used: int, tokens: int) -> None:
    if used + tokens > limit:
        period = "run" if setting == "max_tokens_per_run" else "day"
        raise BudgetExceeded(
            f"the language model was not asked: the request needs up to {tokens:,} tokens, and"
            f" {used:,} of {limit:,} tokens of this {period} are used",
            hint=f"send less data, or raise llm.{setting} in ~/.onetool/onetool.yaml",
            budget=setting,
            limit=limit,
            spent=used,
        )
