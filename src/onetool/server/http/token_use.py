"""Records the last use of each token, at most once a minute and in a thread."""

import asyncio
import time
from collections.abc import Callable

from onetool.state.document_kinds import LastUses
from onetool.util.bounded_dict import BoundedDict

PRECISION_SECONDS = 60.0
MAX_RECORDED = 10_000


class TokenUse:
    """The last uses of tokens, by `identify_token`."""

    def __init__(
        self, storage: Callable[[], LastUses], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._get_storage = storage
        self._clock = clock
        self._recorded: BoundedDict[str, float] = BoundedDict(MAX_RECORDED)

    def record(self, identifier: str) -> None:
        """Record that a token is used now. Returns at once."""
        now = self._clock()
        recorded = self._recorded.get(identifier)
        if recorded is not None and now - recorded < PRECISION_SECONDS:
            return
        self._recorded[identifier] = now
        asyncio.get_running_loop().run_in_executor(None, self._get_storage().touch, identifier)
