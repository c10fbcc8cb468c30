"""Prints what an import changes in an existing bundle."""

from collections.abc import Iterator

from onetool.bundles.difference import FieldChange, ToolChange
from onetool.bundles.importer import ImportResult
from onetool.util.invisible import escape_invisible
from onetool.util.text import pluralize

MAX_TOOLS = 50
MAX_CHANGES = 10  # of one tool


def describe_difference(result: ImportResult, *, is_dry: bool) -> Iterator[str]:
    """Yield the lines of the difference; nothing for a new bundle."""
    found = result.difference
    lines = [
        *(f"+ {tool.slug}@{tool.version}  {tool.request}" for tool in found.added),
        *(f"- {tool.slug}@{tool.version}  {tool.request}" for tool in found.removed),
        *(line for change in found.changed for line in _describe_change(change, is_kept=change.slug in result.kept)),
    ]
    if not lines:
        return
    yield "Difference (+ new, - not in the document, ~ changed):"
    yield from (f"  {escape_invisible(line)}" for line in lines[: MAX_TOOLS * MAX_CHANGES])
    if len(lines) > MAX_TOOLS * MAX_CHANGES:
        yield "  and more; use --json to see all"
    if found.unchanged:
        yield f"  {pluralize(found.unchanged, 'tool')} unchanged"
    if result.kept:
        yield f"Local edits stay in use: {', '.join(result.kept)}. To replace them: --replace-edits"
    if result.disabled:
        yield f"{'To be disabled' if is_dry else 'Disabled'}: {', '.join(result.disabled)}"
    elif found.removed:
        yield "Tools that are not in the document stay. To disable them: --disable-removed"


def _describe_change(change: ToolChange, *, is_kept: bool) -> Iterator[str]:
    note = " (edited here, not updated)" if is_kept else " (edited here)" if change.is_edited else ""
    yield f"~ {change.slug}@{change.version} -> {change.new_version}{note}"
    yield from (f"    {_describe_field(each)}" for each in change.changes[:MAX_CHANGES])
    if len(change.changes) > MAX_CHANGES:
        yield f"    and {len(change.changes) - MAX_CHANGES} more"


def _describe_field(change: FieldChange) -> str:
    name = f"{change.part} {change.name}"
    if change.before is None:
        return f"{name}: new: {change.after}"
    return f"{name}: removed" if change.after is None else f"{name}: {change.before} -> {change.after}"
