"""Detection of images, audio and files in the results of tools and the values of runs.

Objects of Pillow, matplotlib and FastMCP are recognized by their class, so that nothing is
imported.
"""

from __future__ import annotations

from onetool_child import messages
from onetool_child.errors import ToolError
from onetool_child.interface import File

TYPE_CHECKING = False  # importing `typing` would double the start-up time of a worker
if TYPE_CHECKING:
    from typing import Any

    from onetool_child.json_types import JsonObject
    from onetool_child.rpc import Peer

MAX_MEDIA = 20  # in the value of a run
BINARY = "application/octet-stream"
SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"OggS": "audio/ogg",
    b"ID3": "audio/mpeg",
}
RIFF_FORMATS = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
MP3_FRAMES = (b"\xff\xfb", b"\xff\xf3", b"\xff\xf2")
INVALID_BITRATES = {0x0, 0xF}  # of an MP3 frame
Content = tuple[bytes, str, str]  # data, MIME type and file name


def find_media(value: Any, max_bytes: int) -> Content | None:
    """Return the content of an image, of audio or of a file; None for any other value."""
    if isinstance(value, bytes | bytearray):
        kind = detect_type(bytes(value[:16]))
        return (bytes(value), kind, "") if kind else None
    if isinstance(value, File):
        return _read_file(value.path, value.mime, max_bytes)
    module = type(value).__module__.partition(".")[0]
    name = type(value).__name__
    if module == "PIL" and hasattr(value, "save"):
        return _render_pillow(value), "image/png", ""
    if module == "matplotlib" and hasattr(value, "savefig"):
        return _render(lambda stream: value.savefig(stream, format="png")), "image/png", ""
    if name in {"Image", "Audio"} and hasattr(value, "data") and hasattr(value, "path"):
        return _read_helper(value, max_bytes)
    return None


def detect_type(start: bytes) -> str:
    """Return the MIME type of an image or of audio by its first bytes, or an empty string."""
    if start[:4] == b"RIFF":
        return RIFF_FORMATS.get(start[8:12], "")
    if start[:2] in MP3_FRAMES and len(start) > 2 and start[2] >> 4 not in INVALID_BITRATES:  # noqa: PLR2004 - the third byte
        return "audio/mpeg"
    return next((kind for signature, kind in SIGNATURES.items() if start.startswith(signature)), "")


def get_content_kind(mime_type: str) -> str:
    """Return the kind of MCP content: `image`, `audio` or `blob`."""
    kind = mime_type.partition("/")[0]
    return kind if kind in {"image", "audio"} else "blob"


def describe_media(data: bytes, mime_type: str, name: str, handle: str) -> JsonObject:
    """Return the value that code sees instead of the content."""
    named = {"name": name} if name else {}
    return {
        "type": get_content_kind(mime_type),
        "mimeType": mime_type,
        **named,
        "size": len(data),
        "media": handle,
    }


def send_media(peer: Peer, content: Content, ident: int) -> JsonObject | None:
    """Send content to the server, for the call or run with this id.

    Return its description; None if it is not kept.
    """
    data, mime_type, name = content
    for piece in messages.split_bytes(data):  # one at a time: other messages may be sent in between
        peer.send_pieces(f"{messages.MEDIA}{ident}", [piece])
    handle = peer.request("media", {"within": ident, "mime_type": mime_type})
    return None if handle is None else describe_media(data, mime_type, name, handle)


def _read_file(path: Any, mime: str | None, max_bytes: int) -> Content:
    import os
    import stat

    status = os.stat(path)  # noqa: PTH116 - importing pathlib is slow
    if not stat.S_ISREG(status.st_mode):
        raise ToolError(f"cannot return {str(path)!r}: not a regular file")
    if status.st_size > max_bytes:
        raise ToolError(
            f"cannot return {str(path)!r}: it has {status.st_size} bytes, the limit is {max_bytes}"
        )
    with open(path, "rb") as stream:  # noqa: PTH123 - see above
        data = stream.read(max_bytes)
    return (
        data,
        mime or detect_type(data[:16]) or _guess_type(path),
        os.path.basename(path),  # noqa: PTH119 - pathlib costs start-up here
    )


def _guess_type(path: Any) -> str:
    import mimetypes

    return mimetypes.guess_type(str(path))[0] or BINARY


def _read_helper(value: Any, max_bytes: int) -> Content | None:
    """Return the content of an `Image` or `Audio` of FastMCP, which has data or a path."""
    declared = getattr(value, "mime_type", None) or getattr(value, "_mime_type", None)
    mime = declared if isinstance(declared, str) else None
    if isinstance(value.data, bytes):
        return value.data, mime or detect_type(value.data[:16]) or BINARY, ""
    return _read_file(value.path, mime, max_bytes) if value.path else None


def _render_pillow(image: Any) -> bytes:
    try:
        return _render(lambda stream: image.save(stream, format="PNG"))
    except OSError:  # PNG does not support its mode, such as CMYK
        return _render(lambda stream: image.convert("RGB").save(stream, format="PNG"))


def _render(save: Any) -> bytes:
    import io

    stream = io.BytesIO()
    save(stream)
    return stream.getvalue()
