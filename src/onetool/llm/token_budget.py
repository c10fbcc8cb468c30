"""Limits on the tokens that language models may use, per run and per day.

Tokens are reserved before a request is sent, so that concurrent requests cannot exceed a limit. Those of a day are
stored in a file, because all processes of a user share the limit.
"""

import json
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shlex import quote

import anyio.to_thread

from onetool.config.model import Llm
from onetool.errors import BudgetExceeded, StorageError
from onetool.state.storage import TokenUsageStorage
from onetool.util import atomic
from onetool.util.locks import locked
from onetool.util.problem import STORAGE, Location
from onetool.util.storage_errors import storage_error
from onetool.util.versioning import check_version

VERSION = 1
MAX_DAYS = 400  # in the file
MAX_RUNS = 10_000  # in memory


class TokenBudget:
    """The tokens that runs and days have used."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._runs: OrderedDict[str, int] = OrderedDict()  # least recently used first

    async def reserve(self, run: str, tokens: int, settings: Llm, usage: TokenUsageStorage) -> None:
        """Count the tokens of a request, or raise if a limit does not allow them."""
        used = self._runs.get(run, 0)
        _check_limit("max_tokens_per_run", settings.max_tokens_per_run, used, tokens)
        self._add_to_run(run, tokens)
        try:
            await anyio.to_thread.run_sync(self._reserve_day, tokens, settings.max_tokens_per_day, usage)
        except BaseException:
            self._add_to_run(run, -tokens)
            raise

    async def correct(self, run: str, difference: int, usage: TokenUsageStorage) -> None:
        """Add the difference between the tokens that were used and those that were reserved.

        If it cannot be stored, more is counted than was used, which needs no error.
        """
        self._add_to_run(run, difference)
        with suppress(StorageError):
            await anyio.to_thread.run_sync(usage.update, self._today(), lambda used: max(0, used + difference))

    def _reserve_day(self, tokens: int, limit: int, usage: TokenUsageStorage) -> None:
        def add(used: int) -> int:
            _check_limit("max_tokens_per_day", limit, used, tokens)
            return used + tokens

        usage.update(self._today(), add)

    def _add_to_run(self, run: str, tokens: int) -> None:
        self._runs[run] = max(0, self._runs.pop(run, 0) + tokens)
        if len(self._runs) > MAX_RUNS:
            self._runs.popitem(last=False)

    def _today(self) -> str:
        return time.strftime("%Y-%m-%d", time.gmtime(self._clock()))


def _check_limit(setting: str, limit: int, used: int, tokens: int) -> None:
    if used + tokens > limit:
        period = "run" if setting == "max_tokens_per_run" else "day"
        raise BudgetExceeded(
            f"the language model was not asked: the request needs up to {tokens:,} tokens, and {used:,} of {limit:,} "
            f"tokens of this {period} are used",
            hint=f"send less data, or raise llm.{setting} in ~/.onetool/onetool.yaml",
            budget=setting,
            limit=limit,
            spent=used,
        )


class TokenUsageFile:
    """The tokens used on each day, in one file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def get(self, day: str) -> int:
        return self._read().get(day, 0)

    def days(self) -> dict[str, int]:
        return self._read()

    def update(self, day: str, change: Callable[[int], int]) -> int:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with locked(self._file.with_name(f"{self._file.name}.lock")):
                days = self._read()
                days[day] = change(days.get(day, 0))
                kept = dict(list(days.items())[-MAX_DAYS:])
                atomic.write(self._file, json.dumps({"version": VERSION, "days": kept}, indent=1))
        except OSError as error:
            raise storage_error(self._file.parent, error, StorageError) from error
        return days[day]

    def _read(self) -> dict[str, int]:
        try:
            data = json.loads(self._file.read_bytes())
            check_version(data.get("version"), VERSION, self._file)
            return {str(day): int(tokens) for day, tokens in data["days"].items()}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise StorageError(
                f"cannot read {self._file}: it is damaged",
                hint=f"delete it to count tokens from zero: `rm {quote(str(self._file))}`",
                location=Location(str(self._file)),
                code=STORAGE,
            ) from None
