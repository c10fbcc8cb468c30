"""Save settings, bundles, token hashes, runs, statistics and the audit log in one file, or restore
such a file.

Servers may run meanwhile. `onetool backup restore FILE` writes the files of an archive, and
replaces nothing.
"""

import os
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from onetool.cli.options import find_command_directories, print_result
from onetool.cli.terminal import print_notices
from onetool.errors import ToolError
from onetool.util.text import pluralize

if TYPE_CHECKING:
    from onetool.admin.backup_archive import Contents

RESTORE = "restore"
MAX_NAMES = 5


def add_arguments(parser: ArgumentParser) -> None:
    parser.usage = (
        "onetool backup [FILE] [--secrets] [--json]\n       onetool backup restore FILE [--json]"
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help="archive to write (default: onetool-backup-TIME.tar.gz)",
    )
    parser.add_argument(
        "archive", metavar="ARCHIVE", nargs="?", help="with `restore`: archive to read"
    )
    parser.add_argument(
        "--secrets",
        action="store_true",
        help="include secrets.yaml, keys and sign-ins; store the archive safely",
    )


def main(options: Namespace) -> int:
    if options.file == RESTORE:
        return _restore(options)
    if options.archive is not None:
        options.usage_error(f"unknown argument {options.archive!r}")
    return _save(options)


def _save(options: Namespace) -> int:
    from onetool.admin.backup_archive import write_archive
    from onetool.settings.load import load
    from onetool.state.opening import open_state

    loaded = load(find_command_directories(options), os.environ)
    print_notices(loaded.problems)
    name = options.file or time.strftime("onetool-backup-%Y%m%d-%H%M%S.tar.gz")
    target = Path.cwd() / name
    directories = loaded.directories
    contents = write_archive(
        directories.data, target, secrets=options.secrets, config_file=directories.config_file
    )
    notes = _list_notes(contents)
    with open_state(loaded) as state:
        notes += [state.backup_note] if state.backup_note else []
    done = f"Saved {pluralize(contents.files, 'file')} of {directories.data} in {target}."
    data = {"file": str(target), "files": contents.files, "bytes": contents.bytes, "notes": notes}
    print_result(options, data, [done, *(f"Note: {note}" for note in notes)])
    return 0


def _list_notes(contents: "Contents") -> list[str]:
    notes = []
    if contents.left_out:
        listed = _list_names(contents.left_out)
        notes.append(
            f"not included, because they are secret: {listed}. Include them with --secrets"
        )
    if contents.redacted:
        notes.append(
            f"literal credentials were replaced by REDACTED in {_list_names(contents.redacted)}."
            " Move them with `onetool secret set NAME`, or include them with --secrets"
        )
    return notes


def _list_names(names: tuple[str, ...]) -> str:
    return ", ".join(names[:MAX_NAMES]) + (", …" if len(names) > MAX_NAMES else "")


def _restore(options: Namespace) -> int:
    from onetool.admin.backup_archive import restore_archive
    from onetool.util.running_servers import list_servers

    if options.archive is None:
        options.usage_error("`onetool backup restore` needs the archive to read")
    directories = find_command_directories(options)
    if running := list_servers(directories.user):
        processes = ", ".join(str(entry.pid) for entry in running)
        raise ToolError(
            f"servers are running (processes {processes})",
            hint="stop them first, or `onetool daemon stop`",
        )
    contents = restore_archive(Path.cwd() / options.archive, directories.data)
    done = (
        f"Restored {pluralize(contents.files, 'file')} in {directories.data}. Check them with:"
        " onetool doctor"
    )
    data = {"directory": str(directories.data), "files": contents.files, "bytes": contents.bytes}
    print_result(options, data, [done])
    return 0
