"""What all routes of REST share: the product, what it has been doing, and threads for what waits for the disk."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from ot.app import OneTool
from ot.faces.activity import Activity
from ot.faces.http import callers
from ot.faces.http.answers import answer
from ot.faces.http.bodies import Sent
from ot.faces.http.errors import ApiError

if TYPE_CHECKING:
    from ot.faces.http.models import ApiModel

T = TypeVar("T")
READERS, WRITERS = 16, 8  # apart, because writers may wait for another process and readers never do
SMALL_BYTES: Final = 16 << 10  # of a body that takes less time to read than a thread to start


@dataclass(frozen=True, slots=True)
class Api:
    app: OneTool
    activity: Activity
    _readers: anyio.CapacityLimiter = field(default_factory=partial(anyio.CapacityLimiter, READERS))
    _writers: anyio.CapacityLimiter = field(default_factory=partial(anyio.CapacityLimiter, WRITERS))

    async def in_thread(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, limiter=self._readers)

    async def writing(self, request: Request, work: Callable[[], T]) -> T:
        """Change the store in a thread, if the caller may."""
        self.check_change(request)
        return await anyio.to_thread.run_sync(work, limiter=self._writers)

    async def read(self, sent: Sent, parse: Callable[[Mapping[str, Any]], T]) -> T:
        """Return what the body means. A large one is read in a thread."""
        if len(sent.content) <= SMALL_BYTES:
            return parse(sent.data())
        return await self.in_thread(lambda: parse(sent.data()))

    def answer(self, shown: "ApiModel", status: int = 200) -> Response:
        """Return the response without secrets."""
        return answer(self.app.redact.in_data(shown.as_json()), status)

    def check_settings(self) -> None:
        """Raise if the settings are wrong: everything would be kept elsewhere."""
        error = self.app.config_error
        if error is not None:
            raise ApiError("busy", f"the configuration is wrong, so nothing works until it is right:\n{error}")

    def check_change(self, request: Request) -> None:
        """Raise if the caller may not change anything, or if nothing can be changed now."""
        callers.may_change(request, self.app)
        self.check_settings()
