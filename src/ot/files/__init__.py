"""Files and folders as tools may touch them. `Files` decides and opens; the rest is done with what it opened."""

from ot.files.files import Files
from ot.files.listing import Entry, entries
from ot.files.moving import copy, move
from ot.files.reading import Content, facts_of, kind_of, read
from ot.files.trash import TRASH, delete
from ot.files.writing import BACKUP, PERMISSIONS, Written, write

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
