"""`/api/results` and `/api/media`: stored results in parts, images and audio.

An agent has access only to its own results. Unknown, foreign and expired handles give the same error.
"""

from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response

from onetool.errors import ToolError
from onetool.transports.http.api.common import Api
from onetool.transports.http.auth import get_agent, get_token_id
from onetool.transports.http.errors import ApiError
from onetool.transports.http.models import ResultWindow, WindowQuery
from onetool.transports.http.responses import json_response
from onetool.transports.http.routing import BYTES, Operation, ResponseSpec, read_query

MAX_LINES = 10_000
MAX_CHARACTERS = 1_000_000
MISSING_REASONS = ("not_found", "expired")
# Types that browsers display without running scripts; SVG can contain scripts.
IMAGES = ("png", "jpeg", "gif", "webp", "avif", "bmp")
AUDIO = ("mpeg", "wav", "x-wav", "ogg", "aac", "flac", "mp4", "webm")
INLINE_TYPES = frozenset({*(f"image/{kind}" for kind in IMAGES), *(f"audio/{kind}" for kind in AUDIO)})
OTHER = "application/octet-stream"


class ResultHandlers:
    def __init__(self, api: Api) -> None:
        self._api = api

    def operations(self) -> Iterator[Operation]:
        path = "/api/results/{handle}"
        window = {200: ResponseSpec("Part of the result", ResultWindow)}
        summary = "Read part of a stored result"
        errors = ("not_found",)
        yield Operation("GET", path, self.window, summary, window, WindowQuery, errors=errors)
        content = {200: ResponseSpec("File content", media=dict.fromkeys(("image/*", "audio/*", OTHER), BYTES))}
        yield Operation("GET", "/api/media/{handle}", self.media, "Get an image or audio file", content, errors=errors)

    async def window(self, request: Request) -> Response:
        query = read_query(WindowQuery, request)
        handle = str(request.path_params["handle"])
        limit = min(query.limit, MAX_CHARACTERS if query.unit == "chars" else MAX_LINES)

        def read() -> Response:
            found = self._api.app.results.window(
                handle,
                query.offset,
                limit,
                query.search,
                query.fuzzy,
                unit=query.unit,
                ignore_case=query.ignore_case,
                agent=get_agent(request.scope),
                token_id=get_token_id(request.scope),
            )
            return json_response(ResultWindow.model_validate(found).as_json())

        try:
            return await self._api.run_in_thread(read)
        except ToolError as error:
            raise (
                _handle_error() if error.fields.get("reason") in MISSING_REASONS else ApiError("invalid", error.message)
            ) from None

    async def media(self, request: Request) -> Response:
        arguments = str(request.path_params["handle"]), get_agent(request.scope), get_token_id(request.scope)
        try:
            data, mime_type = await self._api.run_in_thread(lambda: self._api.app.media.get(*arguments))
        except ToolError:
            raise _handle_error() from None
        if mime_type in INLINE_TYPES:
            return Response(data, media_type=mime_type)
        return Response(data, media_type=OTHER, headers={"content-disposition": "attachment"})


def _handle_error() -> ApiError:
    return ApiError("not_found", "unknown or expired handle", hint="run the call again")
