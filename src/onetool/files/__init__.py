"""File access for tools. `Files` checks a path and opens it; the other modules work on what it opened."""

from onetool.files.files import Files
from onetool.files.listing import Entry, entries
from onetool.files.moving import copy, move
from onetool.files.reading import Content, facts_of, kind_of, read
from onetool.files.trash import TRASH, delete
from onetool.files.writing import BACKUP, PERMISSIONS, Written, write

__all__ = [
    "BACKUP",
    "PERMISSIONS",
    "TRASH",
    "Content",
    "Entry",
    "Files",
    "Written",
    "copy",
    "delete",
    "entries",
    "facts_of",
    "kind_of",
    "move",
    "read",
    "write",
]
