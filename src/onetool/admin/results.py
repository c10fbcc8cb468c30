"""Read stored results in parts, and images and audio.

An agent has access only to its own results. Unknown, foreign and expired handles give the same
error.
"""

from typing import Literal, NamedTuple

from anyio.to_thread import run_sync as run_in_thread
from pydantic import Field

from onetool.admin.action import action
from onetool.admin.errors import AdminError
from onetool.admin.model import ApiModel, Count, Flag, Number, Query, absent
from onetool.admin.person import Person
from onetool.app import OneTool
from onetool.errors import ToolError
from onetool.runs.results.window import Unit
from onetool.sources.bundles.model import is_none

DEFAULT_LINES = 100
MAX_LINES = 10_000
MAX_CHARACTERS = 1_000_000
MISSING_REASONS = ("not_found", "expired")


class WindowQuery(Query):
    offset: Number = Field(default=1, description="First line, character or match, counted from 1")
    limit: Number = Field(
        default=DEFAULT_LINES, description="Maximum number of lines, characters or matches"
    )
    search: str = Field(default="", description="Regular expression; with fuzzy=true, words")
    fuzzy: Flag = Field(default=False, description="Rank lines by similarity")
    ignore_case: Flag = Field(default=False, description="Ignore case")
    unit: Unit = Field(default="auto", description="Unit of offset and limit")


class ResultWindow(ApiModel):
    lines: list[str]
    total_lines: Count
    returned: Count
    offset: Count
    has_more: bool
    matched_lines: Count | None = Field(default=None, exclude_if=is_none)
    positions: list[int] | None = Field(default=None, exclude_if=is_none)
    unit: Literal["chars"] | None = absent(None)
    total_chars: Count | None = Field(default=None, exclude_if=is_none)


class StoredMedium(NamedTuple):
    content: bytes
    mime_type: str


@action("GET /api/results/{handle}", "Part of the result", is_redacted=False)
async def read_result(
    app: OneTool, person: Person, handle: str, query: WindowQuery
) -> ResultWindow:
    """Read part of a stored result."""

    def read() -> ResultWindow:
        window = app.results.window(
            handle,
            query.offset,
            min(query.limit, MAX_CHARACTERS if query.unit == "chars" else MAX_LINES),
            query.search,
            query.fuzzy,
            unit=query.unit,
            ignore_case=query.ignore_case,
            agent=person.agent_name,
            token_id=person.token_id,
        )
        return ResultWindow.model_validate(window)

    try:
        return await run_in_thread(read)
    except ToolError as error:
        if error.fields.get("reason") in MISSING_REASONS:
            raise _missing() from None
        raise AdminError("invalid", error.message) from None


@action("GET /api/media/{handle}", "File content")
async def read_medium(app: OneTool, person: Person, handle: str) -> StoredMedium:
    """Get an image or audio file."""
    try:
        return StoredMedium(
            *await run_in_thread(app.media.get, handle, person.agent_name, person.token_id)
        )
    except ToolError:
        raise _missing() from None


def _missing() -> AdminError:
    return AdminError("not_found", "unknown or expired handle", hint="run the call again")
