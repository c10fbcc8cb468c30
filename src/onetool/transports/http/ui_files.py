"""Static files of the admin UI, served from the package at `/` and below `/page/`.

The UI gets its data from the public REST API. The files are read once, on the first request.
"""

import functools
import gzip
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

import anyio.to_thread
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onetool.transports.http.errors import ApiError
from onetool.transports.http.responses import REVALIDATED

DIRECTORY: Final = "ui"
URL_PREFIX: Final = "page"
FIRST: Final = "index.html"
TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
WORTH_PACKING: Final = 1000  # bytes


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    packed: bytes | None
    tag: str
    media_type: str

    @classmethod
    def of(cls, name: str, content: bytes) -> "_File":
        packed = gzip.compress(content, mtime=0) if len(content) > WORTH_PACKING else None
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        return cls(content, packed, tag, TYPES[name.rpartition(".")[2]])

    def answer(self, asked: Headers) -> Response:
        headers = {"etag": self.tag, "cache-control": REVALIDATED, "vary": "accept-encoding"}
        if self.tag in asked.get("if-none-match", ""):
            return Response(None, 304, headers)
        if self.packed is not None and "gzip" in asked.get("accept-encoding", ""):
            return Response(self.packed, 200, {**headers, "content-encoding": "gzip"}, self.media_type)
        return Response(self.content, 200, headers, self.media_type)


def routes() -> list[Route]:
    @functools.cache
    def content() -> dict[str, _File]:
        return {
            name: _File.of(name, file.read_bytes()) for name, file in _files(files("onetool.transports") / DIRECTORY)
        }

    async def show(request: Request) -> Response:
        found = await anyio.to_thread.run_sync(content)
        name = request.path_params.get("path", FIRST)
        if name not in found:
            raise ApiError("not_found", f"no such path: {request.url.path} (the admin UI is at /)")
        return found[name].answer(request.headers)

    return [Route(path, show) for path in ("/", f"/{URL_PREFIX}/{{path:path}}")]


def _files(folder: Traversable, before: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        name = f"{before}{entry.name}"
        if entry.is_dir():
            yield from _files(entry, f"{name}/")
        elif name.rpartition(".")[2] in TYPES:
            yield name, entry
