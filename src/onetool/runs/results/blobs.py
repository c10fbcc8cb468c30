"""Images, audio and other binary results of tools, stored for a while and identified by a handle.

Code passes the handle on; a run that returns it sends the content to its client.
"""

import json
import time
from typing import TYPE_CHECKING, NamedTuple, Self

from onetool.errors import StorageError, ToolError
from onetool.runs.results.quota import Stored, select_oldest
from onetool.state.result_files import Part, ResultFiles, is_handle, new_handle
from onetool.util.clock_watch import Clock
from onetool.util.versioning import check_version

if TYPE_CHECKING:
    from onetool.settings.model import Output
    from onetool.state.storage import State

VERSION = 1
DEFAULT_MAX_BYTES = 1 << 30
MEDIA_PARTS: tuple[Part, ...] = ("bin", "json")


class Blob(NamedTuple):
    data: bytes
    mime_type: str


class Media:
    """A store of blobs. If they exceed `max_bytes` in total, the oldest are removed."""

    def __init__(
        self,
        parts: ResultFiles,
        ttl: float,
        clock: Clock = time.time,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        self._parts = parts
        self._place = parts.place
        self._ttl = ttl
        self._clock = clock
        self._max_bytes = max_bytes

    @classmethod
    def open(cls, state: "State", output: "Output") -> Self:
        """Open the stored media with limits from the settings."""
        return cls(
            state.open_parts("media"),
            output.result_ttl,
            state.clock_watch.clock,
            output.max_stored_bytes,
        )

    def put(self, data: bytes, mime_type: str, agent: str, token_id: str = "") -> str:
        """Store a blob and return its handle, which is valid for this agent and token."""
        handle = new_handle()
        facts = {
            "version": VERSION,
            "mime_type": mime_type,
            "agent": agent,
            "token_id": token_id,
            "created": self._clock(),
            "size": len(data),
        }
        try:
            self._parts.prepare()
            with self._parts.locked():
                self._make_room(len(data))
                self._parts.publish(handle, "bin", [data])
                self._parts.publish(handle, "json", [json.dumps(facts).encode()], agent)
        except OSError as error:
            self._parts.remove(handle, MEDIA_PARTS)
            reason = error.strerror or error
            raise StorageError(f"cannot store {mime_type} in {self._place}: {reason}") from None
        return handle

    def get(self, handle: object, agent: str, token_id: str = "") -> Blob:
        """Return the blob with this handle.

        Without a token, an agent reads the blobs of all its tokens.
        """
        missing = ToolError(f"media {str(handle)[:50]!r} not found or expired; run the call again")
        if not is_handle(handle):
            raise missing
        try:
            with self._parts.reading(handle, "json") as file:
                facts = json.load(file)
            check_version(facts.get("version"), VERSION, f"the media {handle}")
            is_allowed = facts["agent"] == agent and token_id in {"", facts["token_id"]}
            if not is_allowed or self._clock() - facts["created"] > self._ttl:
                raise missing
            with self._parts.reading(handle, "bin") as file:
                blob = Blob(file.read(), str(facts["mime_type"]))
            is_complete = len(blob.data) == facts["size"]
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            raise missing from None
        if not is_complete:  # a power failure may have truncated it
            raise missing
        return blob

    def _make_room(self, size: int) -> None:
        kept = self._parts.clean(self._ttl)
        if size > self._max_bytes:
            raise StorageError(
                f"cannot store {size} bytes: the limit is {self._max_bytes}"
                " (output.max_stored_bytes)"
            )
        blobs = sorted(
            Stored(files.modified_at, handle, "", files.size) for handle, files in kept.items()
        )
        for blob in select_oldest(blobs, size, self._max_bytes):
            self._parts.remove(blob.handle, MEDIA_PARTS)
