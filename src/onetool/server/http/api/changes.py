"""`GET /api/changes`: a stream with an event after each change of tools, packs and bundles, made by
any process.
"""

from collections.abc import Iterator
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from onetool.admin.catalog import read_version
from onetool.admin.person import check_settings
from onetool.server.http import identity
from onetool.server.http.api import events
from onetool.server.http.api.common import Api
from onetool.server.http.api.events import EventStream, Feed
from onetool.server.http.routing import TEXT, Operation, ResponseSpec

PATH = "/api/changes"
KIND = "tools"


class ChangeHandlers:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._read_version = partial(read_version, api.app)
        api.app.changes.poll(KIND, self._read_version)

    def operations(self) -> Iterator[Operation]:
        description = (
            "Events: start, then changed after each change, with the version of the tools; endless"
        )
        stream = {200: ResponseSpec(description, media={events.MEDIA_TYPE: TEXT})}
        yield Operation(
            "GET", PATH, self.stream, "Stream changes of tools, packs and bundles", stream
        )

    async def stream(self, request: Request) -> Response:
        identity.build_context(request, self._api.app)  # raises if the agent is unknown
        check_settings(self._api.app)
        return EventStream(self._watch, ends_with_server=True)

    async def _watch(self, feed: Feed) -> None:
        """Send the version of the tools, at first and after each change."""
        sent = None
        async for _ in self._api.app.changes.watch(KIND):
            version = await self._read_version()
            if version != sent:
                feed.put("start" if sent is None else "changed", {"version": version})
                sent = version
                await feed.wait_until_sent()
