"""`/api/results` and `/api/media`: what was too large to be shown, page by page, and pictures and sounds.

An agent finds its own and nobody else's: what is unknown, somebody else's or over looks the same.
"""

from typing import Final, cast, get_args

from starlette.requests import Request
from starlette.responses import Response

from ot.errors import ToolError
from ot.faces.http import paging
from ot.faces.http.answers import answer
from ot.faces.http.api import common
from ot.faces.http.api.common import Api
from ot.faces.http.gate import agent_of, token_id_of
from ot.faces.http.refusals import Refusal
from ot.results.window import Unit
from ot.schema import JSON

DEFAULT_LINES, MOST_LINES = 100, 10_000
MOST_CHARACTERS: Final = 1_000_000
GONE: Final = ("not_found", "expired")
# Whatever a browser shows without running anything in it. An SVG can hold scripts.
IMAGES: Final = ("png", "jpeg", "gif", "webp", "avif", "bmp")
SOUNDS: Final = ("mpeg", "wav", "x-wav", "ogg", "aac", "flac", "mp4", "webm")
SHOWN: Final = frozenset({*(f"image/{kind}" for kind in IMAGES), *(f"audio/{kind}" for kind in SOUNDS)})
BYTES: Final = "application/octet-stream"
NAMES: Final = {
    "total_lines": "totalLines",
    "has_more": "hasMore",
    "total_chars": "totalChars",
    "matched_lines": "matchedLines",
}


class Results:
    def __init__(self, api: Api) -> None:
        self._api = api

    async def window(self, request: Request) -> Response:
        query, handle = request.query_params, str(request.path_params["handle"])
        unit = cast("Unit", common.choice(query, "unit", get_args(Unit)) or "auto")
        most = MOST_CHARACTERS if unit == "chars" else MOST_LINES
        offset, limit = common.number(query, "offset", 1), common.number(query, "limit", DEFAULT_LINES)
        search = paging.single(query, "search") or ""
        fuzzy, ignore_case = (common.switch(query, name) or False for name in ("fuzzy", "ignoreCase"))
        whose = {"agent": agent_of(request.scope), "token_id": token_id_of(request.scope)}

        def read() -> Response:
            found = self._api.app.results.window(
                handle, offset, min(limit, most), search, fuzzy, unit=unit, ignore_case=ignore_case, **whose
            )
            return answer(_shown(found))

        try:
            return await self._api.in_thread(read)
        except ToolError as error:
            raise _refusal(error) from None

    async def media(self, request: Request) -> Response:
        handle, agent, token_id = (
            str(request.path_params["handle"]),
            agent_of(request.scope),
            token_id_of(request.scope),
        )
        try:
            data, mime_type = await self._api.in_thread(lambda: self._api.app.media.read(handle, agent, token_id))
        except ToolError:
            raise _gone() from None
        if mime_type in SHOWN:
            return Response(data, media_type=mime_type)
        return Response(data, media_type=BYTES, headers={"content-disposition": "attachment"})


def _shown(found: JSON) -> JSON:
    return {NAMES.get(key, key): value for key, value in found.items()}


def _refusal(error: ToolError) -> Refusal:
    return _gone() if error.fields.get("reason") in GONE else Refusal("invalid", error.message)


def _gone() -> Refusal:
    return Refusal("not_found", "there is nothing under this handle, or not any more; run the call again")
