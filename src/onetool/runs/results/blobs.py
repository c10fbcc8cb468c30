"""Images, audio and other binary results, stored under handles, and the quota of stored results.

Code passes the handle on; a run that returns it sends the content to its client.
"""

import json
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Self

from onetool.errors import StorageError, ToolError
from onetool.state.result_parts import Part, ResultFiles, is_handle, new_handle
from onetool.util.clock_watch import Clock
from onetool.util.problem import check_version

if TYPE_CHECKING:
    from onetool.settings.model import Output
    from onetool.state.storage import State

VERSION = 1
DEFAULT_MAX_MEDIA_BYTES = 1 << 30
MEDIA_PARTS: tuple[Part, ...] = ("bin", "json")
DEFAULT_MAX_BYTES = 1 << 30
DEFAULT_MAX_AGENT_BYTES = 1 << 28
# of the results are removed beyond need, so that the next ones do not look at all others again
SPARE_SHARE = 20


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
        max_bytes: int = DEFAULT_MAX_MEDIA_BYTES,
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


# --- quota ----------------------------------------------------------------------------------------


class Stored(NamedTuple):
    """A result on disk. Results sort by age, the oldest first."""

    modified_at: float
    handle: str
    agent: str
    size: int


class Quota(NamedTuple):
    max_bytes: int = DEFAULT_MAX_BYTES
    max_agent_bytes: int = DEFAULT_MAX_AGENT_BYTES

    def check_size(self, size: int) -> None:
        """Raise StorageError for a result that would not fit even if it were the only one."""
        setting = (
            "max_stored_bytes"
            if self.max_bytes < self.max_agent_bytes
            else "max_stored_bytes_per_agent"
        )
        limit = min(self.max_bytes, self.max_agent_bytes)
        if size > limit:
            raise StorageError(
                f"the result is too large to be stored: output.{setting} is {limit} bytes",
                hint=f"return a smaller part of it, or raise output.{setting} in onetool.yaml",
                limit=limit,
            )

    def find_surplus(
        self, results: Iterable[Stored], new: Stored, unfinished: int = 0
    ) -> list[Stored]:
        """Return the results that the new one evicts: its agent's oldest, then others.

        `unfinished` is the size of results that are being written, which count and are not evicted.
        """
        oldest_first = sorted(result for result in results if result.handle != new.handle)
        same_agent = [result for result in oldest_first if result.agent == new.agent]
        oldest = _add_spare(select_oldest(same_agent, new.size, self.max_agent_bytes), same_agent)
        evicted = {result.handle for result in oldest}
        remaining = [result for result in oldest_first if result.handle not in evicted]
        surplus = select_oldest(remaining, new.size + unfinished, self.max_bytes)
        return [*oldest, *_add_spare(surplus, remaining)]


def select_oldest(oldest_first: Iterable[Stored], size: int, limit: int) -> list[Stored]:
    """Return the results to remove, so that a new one of this size fits the limit."""
    oldest_first = list(oldest_first)
    surplus = size + sum(result.size for result in oldest_first) - limit
    selected: list[Stored] = []
    for result in oldest_first:
        if surplus <= 0:
            break
        selected.append(result)
        surplus -= result.size
    return selected


def _add_spare(selected: list[Stored], oldest_first: list[Stored]) -> list[Stored]:
    spare = len(oldest_first) // SPARE_SHARE if selected else 0
    return oldest_first[: len(selected) + spare]
