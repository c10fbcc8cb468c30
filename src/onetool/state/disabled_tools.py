"""Names in the list that `onetool.state.kinds` stores: disabled tools and packs."""

from collections.abc import Iterable

EVERYTHING = "*"  # not a valid name of a tool or pack
OWNER_MARK = "owner:"  # before the name or ID of what an owner disabled; not a part of a valid name


def list_owner_marks(off: Iterable[str]) -> frozenset[str]:
    """Return the names and IDs that an owner disabled; `EVERYTHING` if that is unknown."""
    marks = (name.removeprefix(OWNER_MARK) for name in off if name == EVERYTHING or name.startswith(OWNER_MARK))
    return frozenset(marks)
