"""State that all REST handlers share: the app, the active runs, and threads for disk access."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from onetool.admin.person import check_settings
from onetool.app import OneTool
from onetool.state.audit import Facts
from onetool.transports.http import identity
from onetool.transports.http.json_body import RequestBody
from onetool.transports.http.responses import json_response
from onetool.transports.run_history import LiveRuns
from onetool_child.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from onetool.admin.model import ApiModel

T = TypeVar("T")
# separate, because writers may wait for another process and readers never do
READERS = 16
WRITERS = 8
SMALL_BYTES = 16 << 10  # parsing a smaller body is faster than starting a thread


@dataclass(frozen=True, slots=True)
class Api:
    app: OneTool
    live_runs: LiveRuns
    list_neighbors: Callable[[], Sequence[OneTool]] = tuple  # other applications of this process
    readers: anyio.CapacityLimiter = field(default_factory=partial(anyio.CapacityLimiter, READERS))
    _writers: anyio.CapacityLimiter = field(default_factory=partial(anyio.CapacityLimiter, WRITERS))

    switch_lock: anyio.Lock = field(default_factory=anyio.Lock)  # serializes precondition and change

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, limiter=self.readers)

    @asynccontextmanager
    async def changing(self, request: Request, action: str) -> AsyncIterator[Facts]:
        """Check the permission for a change and record it in the audit log while the block runs.

        The block updates the yielded facts with what it changed.
        """
        person = identity.get_person(request)
        person.require_change(self.app)
        check_settings(self.app)
        names = map(str, request.path_params.values())
        async with person.changing(self.app, action, names, frees_space=request.method == "DELETE") as facts:
            yield facts

    async def write(self, request: Request, action: str, work: Callable[[Facts], T]) -> T:
        """Run a change of the store in a thread."""
        async with self.changing(request, action) as facts:
            return await anyio.to_thread.run_sync(work, facts, limiter=self._writers)

    async def read(self, body: RequestBody, parse: Callable[[JsonMapping], T]) -> T:
        """Parse the body, in a thread if it is large."""
        if len(body.content) <= SMALL_BYTES:
            return parse(body.data())
        return await self.run_in_thread(lambda: parse(body.data()))

    async def parse(self, request: Request, parse: Callable[[JsonMapping], T]) -> T:
        """Read and parse the body of a request."""
        return await self.read(await RequestBody.from_request(request), parse)

    def to_json(self, model: "ApiModel") -> JsonObject:
        """Return the model as JSON with secrets redacted."""
        data: JsonObject = self.app.redact.redact_data(model.as_json())
        return data

    def respond(self, model: "ApiModel") -> Response:
        return json_response(self.to_json(model))
