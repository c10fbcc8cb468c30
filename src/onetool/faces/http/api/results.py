"""`/api/results` and `/api/media`: what was too large to be shown, page by page, and pictures and sounds.

An agent finds its own and nobody else's: what is unknown, somebody else's or over looks the same.
"""

from collections.abc import Iterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from onetool.errors import ToolError
from onetool.faces.http.answers import answer
from onetool.faces.http.api.common import Api
from onetool.faces.http.errors import ApiError
from onetool.faces.http.gate import agent_of, token_id_of
from onetool.faces.http.models import ResultWindow, WindowQuery
from onetool.faces.http.routing import BYTES, Answer, Operation

MOST_LINES: Final = 10_000
MOST_CHARACTERS: Final = 1_000_000
GONE: Final = ("not_found", "expired")
# Whatever a browser shows without running anything in it. An SVG can hold scripts.
IMAGES: Final = ("png", "jpeg", "gif", "webp", "avif", "bmp")
SOUNDS: Final = ("mpeg", "wav", "x-wav", "ogg", "aac", "flac", "mp4", "webm")
SHOWN: Final = frozenset({*(f"image/{kind}" for kind in IMAGES), *(f"audio/{kind}" for kind in SOUNDS)})
OTHER: Final = "application/octet-stream"


class Results:
    def __init__(self, api: Api) -> None:
        self._api = api

    def operations(self) -> Iterator[Operation]:
        path, window = "/api/results/{handle}", {200: Answer("A part of the result", ResultWindow)}
        words, errors = "Get a part of a large result", ("not_found",)
        yield Operation("GET", path, self.window, words, window, WindowQuery, errors=errors)
        raw = {200: Answer("The bytes", media=dict.fromkeys(("image/*", "audio/*", OTHER), BYTES))}
        yield Operation("GET", "/api/media/{handle}", self.media, "Get a picture", raw, errors=errors)

    async def window(self, request: Request) -> Response:
        query, handle = WindowQuery.of(request), str(request.path_params["handle"])
        limit = min(query.limit, MOST_CHARACTERS if query.unit == "chars" else MOST_LINES)

        def read() -> Response:
            found = self._api.app.results.window(
                handle,
                query.offset,
                limit,
                query.search,
                query.fuzzy,
                unit=query.unit,
                ignore_case=query.ignore_case,
                agent=agent_of(request.scope),
                token_id=token_id_of(request.scope),
            )
            return answer(ResultWindow.model_validate(found).as_json())

        try:
            return await self._api.in_thread(read)
        except ToolError as error:
            raise (_gone() if error.fields.get("reason") in GONE else ApiError("invalid", error.message)) from None

    async def media(self, request: Request) -> Response:
        asked = str(request.path_params["handle"]), agent_of(request.scope), token_id_of(request.scope)
        try:
            data, mime_type = await self._api.in_thread(lambda: self._api.app.media.get(*asked))
        except ToolError:
            raise _gone() from None
        if mime_type in SHOWN:
            return Response(data, media_type=mime_type)
        return Response(data, media_type=OTHER, headers={"content-disposition": "attachment"})


def _gone() -> ApiError:
    return ApiError("not_found", "there is nothing under this handle, or not any more; run the call again")
