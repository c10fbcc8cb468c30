"""What all routes of REST share: the product, what it has been doing, and threads for what waits for the disk."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from onetool.app import OneTool
from onetool.audit import Facts
from onetool.faces.activity import Activity
from onetool.faces.http import callers
from onetool.faces.http.answers import answer
from onetool.faces.http.bodies import Sent
from onetool.faces.http.errors import ApiError
from onetool.schema import JSON

if TYPE_CHECKING:
    from onetool.faces.http.models import ApiModel

T = TypeVar("T")
READERS, WRITERS = 16, 8  # apart, because writers may wait for another process and readers never do
SMALL_BYTES: Final = 16 << 10  # of a body that takes less time to read than a thread to start


@dataclass(frozen=True, slots=True)
class Api:
    app: OneTool
    activity: Activity
    _readers: anyio.CapacityLimiter = field(default_factory=partial(anyio.CapacityLimiter, READERS))
    _writers: anyio.CapacityLimiter = field(default_factory=partial(anyio.CapacityLimiter, WRITERS))

    switching: anyio.Lock = field(default_factory=anyio.Lock)  # that no other change comes after a precondition

    async def in_thread(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, limiter=self._readers)

    @asynccontextmanager
    async def changing(self, request: Request, action: str) -> AsyncIterator[Facts]:
        """Around a change of the store or a switch: raise unless the caller may, and the audit log has accepted it.

        The block says in what is yielded what it did.
        """
        self.check_change(request)
        actor, names = callers.seen_agent(request), map(str, request.path_params.values())
        who = {"actor": "owner" if actor is None else f"agent {actor}", "transport": "http"}
        async with self.app.audit.changing(action, names, **who, frees_space=request.method == "DELETE") as facts:
            yield facts

    async def write(self, request: Request, action: str, work: Callable[[Facts], T]) -> T:
        """Change the store in a thread."""
        async with self.changing(request, action) as facts:
            return await anyio.to_thread.run_sync(work, facts, limiter=self._writers)

    async def read(self, sent: Sent, parse: Callable[[Mapping[str, Any]], T]) -> T:
        """Return what the body means. A large one is read in a thread."""
        if len(sent.content) <= SMALL_BYTES:
            return parse(sent.data())
        return await self.in_thread(lambda: parse(sent.data()))

    def show(self, model: "ApiModel") -> JSON:
        """Return the data without secrets."""
        shown: JSON = self.app.redact.in_data(model.as_json())
        return shown

    def answer(self, model: "ApiModel") -> Response:
        return answer(self.show(model))

    def check_settings(self) -> None:
        """Raise if the settings are wrong: everything would be kept elsewhere."""
        error = self.app.config_error
        if error is not None:
            raise ApiError("busy", f"the configuration is wrong, so nothing works until it is right:\n{error}")

    def check_change(self, request: Request) -> None:
        """Raise if the caller may not change anything, or if nothing can be changed now."""
        callers.may_change(request, self.app)
        self.check_settings()
