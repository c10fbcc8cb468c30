"""Copy stored results and media between their directory and the database, part by part."""

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from onetool.errors import StorageError
from onetool.postgres.database import Database
from onetool.postgres.results import CHUNK_BYTES, CONTENT, PartRows
from onetool.util.atomic import owner_only, replacing

FILE: Final = re.compile(r"(result|media)-([0-9a-f]{32})\.(txt|idx|json|meta\.json|bin)")
LAST: Final = "meta.json"  # written last: without it, the result does not exist


def write_parts(database: Database, directory: Path, scope: str) -> int:
    """Copy the files to the database and return their number."""
    found = {file: match for file in _list_files(directory) if (match := FILE.fullmatch(file.name)) is not None}
    known = {(handle, part) for handle, part in database.select("SELECT handle, part FROM files")}
    for file, match in sorted(found.items(), key=lambda item: item[1][3] == LAST):
        kind, handle, part = match.groups()
        if (handle, part) in known:
            continue
        modified, content = file.stat().st_mtime, file.read_bytes()
        agent = ""
        if part in {LAST, "json"}:
            with suppress(ValueError, TypeError, AttributeError):
                facts = json.loads(content)
                agent = str(facts.get("agent", "")) if kind == "media" or part == LAST else ""
                if kind == "media":
                    content = json.dumps({"created": modified, **facts}).encode()
        chunks = (content[start : start + CHUNK_BYTES] for start in range(0, len(content), CHUNK_BYTES))
        PartRows(database, scope, lambda at=modified: at, kind).publish(handle, part, chunks, agent)  # type: ignore[misc]
    stored = {(handle, part) for handle, part in database.select("SELECT handle, part FROM files")}
    if missing := [file.name for file, match in found.items() if (match[2], match[3]) not in stored]:
        raise StorageError(f"the copy of results is incomplete: {', '.join(missing[:5])}", hint="repeat it")
    return len(found)


def read_parts(database: Database, directory: Path) -> int:
    """Copy the rows of all working directories to files and return their number."""
    rows = database.select("SELECT kind, handle, part, modified FROM files")
    if rows:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    for kind, handle, part, modified in sorted(rows, key=lambda row: row[2] == LAST):
        file = directory / f"{kind}-{handle}.{part}"
        if file.exists():
            continue
        with replacing(file) as temporary:
            with open(temporary, "xb", opener=owner_only) as new:
                new.writelines(data for (data,) in database.select(CONTENT, handle, part))
            os.utime(temporary, (modified, modified))
    return len(rows)


def _list_files(directory: Path) -> list[Path]:
    return [file for file in directory.iterdir() if file.is_file()] if directory.is_dir() else []
