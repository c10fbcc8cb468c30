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

from onetool.app import OneTool
from onetool.state.audit import Facts
from onetool.transports.http import identity
from onetool.transports.http.auth import ACTOR, get_agent
from onetool.transports.http.errors import ApiError
from onetool.transports.http.json_body import RequestBody
from onetool.transports.http.responses import json_response
from onetool.transports.run_history import LiveRuns
from onetool_child.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from onetool.transports.http.models import ApiModel

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
        self.check_change(request)
        state = request.scope["state"]
        names = map(str, request.path_params.values())
        agent = "owner" if state["agent"] is None else f"agent {state['agent']}"
        counted = "" if identity.has_scope(request, "admin") else get_agent(request.scope)
        source = {"actor": state.get(ACTOR) or agent, "transport": "http", "agent": counted}
        async with self.app.audit.changing(action, names, **source, frees_space=request.method == "DELETE") as facts:
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

    def check_settings(self) -> None:
        """Raise if the settings are invalid: data would be stored in the wrong place."""
        error = self.app.config_error
        if error is not None:
            raise ApiError("busy", f"invalid configuration; fix it to continue:\n{error}")

    def check_change(self, request: Request) -> None:
        """Raise if the caller lacks the permission for changes or the settings are invalid."""
        identity.require_write_permission(request, self.app)
        self.check_settings()
