"""File access for tools. `Files` checks a path and opens it; the other modules work on what it opened."""

from onetool.files.files import Files
from onetool.files.listing import ListedEntry, list_entries
from onetool.files.moving import copy, move
from onetool.files.reading import FileContent, get_file_type, read, stat_path
from onetool.files.trash import TRASH, delete
from onetool.files.writing import BACKUP_SUFFIX, PERMISSION_BITS, WriteResult, write

__all__ = [
    "BACKUP_SUFFIX",
    "PERMISSION_BITS",
    "TRASH",
    "FileContent",
    "Files",
    "ListedEntry",
    "WriteResult",
    "copy",
    "delete",
    "get_file_type",
    "list_entries",
    "move",
    "read",
    "stat_path",
    "write",
]
