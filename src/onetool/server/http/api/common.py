"""State that all REST handlers share: the app, and threads for disk access."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from onetool.app import OneTool
from onetool.server.http.json_body import RequestBody
from onetool.server.http.responses import json_response
from onetool_child.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from onetool.admin.model import ApiModel

T = TypeVar("T")
READERS = 16
SMALL_BYTES = 16 << 10  # parsing a smaller body is faster than starting a thread


@dataclass(frozen=True, slots=True)
class Api:
    app: OneTool
    readers: anyio.CapacityLimiter = field(default_factory=partial(anyio.CapacityLimiter, READERS))

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, limiter=self.readers)

    async def run_in_thread_if(self, needs_thread: bool, work: Callable[[], T]) -> T:
        return await self.run_in_thread(work) if needs_thread else work()

    async def read(self, body: RequestBody, parse: Callable[[JsonMapping], T]) -> T:
        """Parse the body, in a thread if it is large."""
        return await self.run_in_thread_if(len(body.content) > SMALL_BYTES, lambda: parse(body))

    async def parse(self, request: Request, parse: Callable[[JsonMapping], T]) -> T:
        """Read and parse the body of a request."""
        return await self.read(await RequestBody.from_request(request), parse)

    def to_json(self, model: "ApiModel | JsonObject") -> JsonObject:
        """Return the model as JSON with secrets redacted."""
        data: JsonObject = self.app.redact.redact_data(
            model if isinstance(model, dict) else model.as_json()
        )
        return data

    def respond(self, model: "ApiModel") -> Response:
        return json_response(self.to_json(model))
