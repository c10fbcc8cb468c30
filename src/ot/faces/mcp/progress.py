"""Progress messages of a run for an MCP client that asked for them: what the run prints, and that it is alive.

Printed text is sent within 100 ms. Messages are limited in number and length; the answer has all of the text.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any, Final

from ot.faces.mcp.callers import wants_progress
from ot.runner.answer import Journal
from ot_child.summary import number

IDLE_SECONDS: Final = 1.0
OUTPUT_SECONDS: Final = 0.05  # between two messages
MAX_MESSAGE_CHARS: Final = 4000


@contextlib.asynccontextmanager
async def reporting(context: Any, journal: Journal) -> AsyncIterator[None]:
    """Send progress messages while the block runs, if the client asked for them."""
    if not wants_progress(context):
        yield
        return
    reporter = ProgressReporter(context.session, journal)
    task = asyncio.ensure_future(reporter.run())
    try:
        yield
    finally:
        task.cancel()


class ProgressReporter:
    def __init__(self, session: Any, journal: Journal) -> None:
        self._session, self._journal = session, journal
        self._started, self._news, self._printed = time.perf_counter(), asyncio.Event(), ""
        journal.listener = self._hear

    async def run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(IDLE_SECONDS):
                    await self._news.wait()
            seconds, message = time.perf_counter() - self._started, self._printed
            self._printed = ""
            self._news.clear()
            await self._session.report_progress(round(seconds, 3), None, message or self._describe(seconds))
            await asyncio.sleep(OUTPUT_SECONDS)

    def _hear(self, event: str, what: Any) -> None:
        if event == "output":
            self._printed = (self._printed + what)[-MAX_MESSAGE_CHARS:]
            self._news.set()

    def _describe(self, seconds: float) -> str:
        calls = self._journal.calls
        last = f", last {calls[-1][0]}" if calls else ""
        doing = f"; {self._journal.doing}" if self._journal.doing else ""
        return f"running for {seconds:.0f} s, {number(len(calls), 'tool call')}{last}{doing}"
