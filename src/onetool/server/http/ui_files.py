"""Static files of the admin UI, served from the package at `/` and below `/page/`.

The UI gets its data from the public REST API. The files are read once, on the first request.
"""

import gzip
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from anyio.to_thread import run_sync as run_in_thread
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onetool.server.http.errors import ApiError
from onetool.server.http.responses import NO_CACHE

DIRECTORY = "ui"
URL_PREFIX = "page"
INDEX = "index.html"
TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
MIN_COMPRESSED_BYTES = 1000  # smaller files are not worth compressing


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    compressed: bytes | None
    tag: str
    media_type: str

    @classmethod
    def of(cls, name: str, content: bytes) -> "_File":
        compressed = (
            gzip.compress(content, mtime=0) if len(content) > MIN_COMPRESSED_BYTES else None
        )
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        return cls(content, compressed, tag, TYPES[name.rpartition(".")[2]])

    def respond(self, request_headers: Headers) -> Response:
        headers = {"etag": self.tag, "cache-control": NO_CACHE, "vary": "accept-encoding"}
        if self.tag in request_headers.get("if-none-match", ""):
            return Response(None, 304, headers)
        if self.compressed is not None and "gzip" in request_headers.get("accept-encoding", ""):
            return Response(
                self.compressed, 200, {**headers, "content-encoding": "gzip"}, self.media_type
            )
        return Response(self.content, 200, headers, self.media_type)


def routes() -> list[Route]:
    @cache
    def load_files() -> dict[str, _File]:
        return {
            name: _File.of(name, file.read_bytes())
            for name, file in _iter_files(files("onetool.server") / DIRECTORY)
        }

    async def serve_file(request: Request) -> Response:
        loaded = await run_in_thread(load_files)
        name = request.path_params.get("path", INDEX)
        if name not in loaded:
            raise ApiError("not_found", f"no such path: {request.url.path} (the admin UI is at /)")
        return loaded[name].respond(request.headers)

    return [Route(path, serve_file) for path in ("/", f"/{URL_PREFIX}/{{path:path}}")]


def _iter_files(directory: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in directory.iterdir():
        name = f"{prefix}{entry.name}"
        if entry.is_dir():
            yield from _iter_files(entry, f"{name}/")
        elif name.rpartition(".")[2] in TYPES:
            yield name, entry
