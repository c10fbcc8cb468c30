"""File access for tools.

`Files` checks a path and opens it; the other modules work on what it opened.
"""

from onetool.sources.files.files import TRASH, Files
from onetool.sources.files.moving import copy, delete, move
from onetool.sources.files.reading import (
    FileContent,
    ListedEntry,
    get_file_type,
    list_entries,
    read,
    stat_path,
)
from onetool.sources.files.writing import BACKUP_SUFFIX, PERMISSION_BITS, WriteResult, write

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
