"""Makes an edit of settings: plan it, record it in the audit log, write it, and plan it again after a conflict.

The command line and REST make their edits with `make_edit`.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import anyio
from anyio.to_thread import run_sync as run_in_thread

from onetool.config.load import Loaded
from onetool.editing.edit_history import HistoryEntry
from onetool.editing.planned_edit import EditConflict, PlannedEdit
from onetool.editing.settings_editor import SettingsEditor
from onetool.state.audit import AuditLog

MAX_ATTEMPTS = 30  # each one that fails is an edit of somebody else that succeeded
MAX_WAIT_SECONDS = 0.1
T = TypeVar("T")
Plan = Callable[[SettingsEditor], PlannedEdit]


class MadeEdit(NamedTuple):
    """An edit; `entry` is None if it was not written. `after` are the settings that it leads to."""

    planned: PlannedEdit
    entry: HistoryEntry | None = None
    after: Loaded | None = None


async def make_edit(
    open_editor: Callable[[], SettingsEditor],
    plan: Plan,
    audit: AuditLog,
    *,
    actor: str,
    transport: str,
    is_dry_run: bool = False,
    check: Callable[[PlannedEdit], object] = lambda _planned: None,
    limiter: anyio.CapacityLimiter | None = None,
) -> MadeEdit:
    """Make an edit unless it changes nothing or is a dry run. `plan` is called again if the settings have changed.

    `check` raises if the edit must not be made. What `plan` raises is raised: a precondition is not tried again.
    """

    async def run(work: Callable[..., T], *arguments: Any) -> T:
        return await run_in_thread(work, *arguments, limiter=limiter)

    for left in reversed(range(MAX_ATTEMPTS)):
        editor = await run(open_editor)
        planned = await run(plan, editor)
        await run(check, planned)
        if is_dry_run or not planned.changes_anything:
            return MadeEdit(planned)
        changing = audit.changing(
            planned.action, planned.names, actor=actor, transport=transport, difference=planned.difference
        )
        try:
            async with changing:
                entry = await run(partial(editor.apply, planned, actor=actor, transport=transport))
                return MadeEdit(planned, entry, editor.after)
        except EditConflict:
            if not left:
                raise
        await anyio.sleep(random.uniform(0, MAX_WAIT_SECONDS))  # noqa: S311 - not for security
    raise AssertionError
