"""The commands store and backup."""

import json
import os
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from onetool.cli.command import Actions, Command, find_command_directories, print_result
from onetool.cli.terminal import print_notices
from onetool.errors import ToolError
from onetool.settings.paths import find_directories
from onetool.util.text import pluralize
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.admin.backup_archive import Contents
    from onetool.settings.load import Loaded

Answer = tuple[JsonObject, str]  # as JSON and as text
RESTORE = "restore"
MAX_NAMES = 5


# --- store ----------------------------------------------------------------------------------------


def _add_store_arguments(parser: ArgumentParser) -> None:
    actions = Actions(parser)
    actions.add(
        "status", _status, "Show where the state is, the replicas that use it, and the queues"
    )
    upgrade = actions.add(
        "upgrade",
        _upgrade,
        "Create or change the tables of the database (needs the migration role)",
    )
    grants = actions.add(
        "grants",
        _print_grants,
        "Print the SQL that grants the roles of replicas and workers their rights",
    )
    reset = actions.add("reset-budgets", _reset_budgets, "Reset the budgets that agents have used")
    migrate = actions.add(
        "migrate", _migrate, "Copy all state from files to PostgreSQL, and verify the copy"
    )
    upgrade.add_argument(
        "--grant",
        action="store_true",
        help="also grant the roles of replicas and workers their rights",
    )
    for action in (upgrade, grants):
        action.add_argument(
            "--replica", default="onetool_replica", metavar="ROLE", help="role of replicas"
        )
        action.add_argument(
            "--worker", default="onetool_worker", metavar="ROLE", help="role of workers"
        )
    reset.add_argument(
        "agent", nargs="?", default="", metavar="AGENT", help="name of one agent (default: all)"
    )
    migrate.add_argument("--to", required=True, metavar="URL", help="a postgresql:// URL")
    grants.set_defaults(main=_print_grants)


def _run_store(options: Namespace) -> int:
    from onetool.settings.load import load

    loaded = load(find_directories(os.environ, Path.cwd(), options.config, Path.home()), os.environ)
    print_notices(loaded.problems)
    facts, text = options.work(loaded, options)
    print(json.dumps(facts, indent=2, ensure_ascii=False) if options.json else text)
    return 0


def _print_grants(options: Namespace) -> int:
    from onetool.state.schema import render_grants

    print(render_grants(options.replica, options.worker), end="")
    return 0


def _status(loaded: "Loaded", _options: Namespace) -> Answer:
    from onetool.state.opening import open_state

    with open_state(loaded) as state:
        description = state.describe()
    return description.facts, "\n".join(description.lines)


def _upgrade(loaded: "Loaded", options: Namespace) -> Answer:
    from onetool.state.opening import require_store
    from onetool.state.postgres_database import Database
    from onetool.state.schema import render_grants

    grants = render_grants(options.replica, options.worker) if options.grant else ""
    with Database(require_store(loaded)) as database:
        before, after = database.upgrade()
        if grants:
            database.execute(grants)
    text = f"{database.place} has schema version {after}" + (
        "" if before == after else f", before {before}"
    )
    return {"store": database.place, "before": before, "schema": after}, text


def _reset_budgets(loaded: "Loaded", options: Namespace) -> Answer:
    from onetool.state.opening import open_state

    with open_state(loaded) as state:
        count = state.counters.reset(f"budget {options.agent} " if options.agent else "budget ")
    return {"reset": count}, f"Reset {count} counters."


def _migrate(loaded: "Loaded", options: Namespace) -> Answer:
    from onetool.admin.store_transfer import transfer

    counts = transfer(loaded, options.to)
    lines = [f"{kind:12} {count:>8}" for kind, count in counts.items()]
    return {"to": "postgresql", "verified": counts}, "\n".join(lines)


# --- backup ---------------------------------------------------------------------------------------


def _add_backup_arguments(parser: ArgumentParser) -> None:
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


def _run_backup(options: Namespace) -> int:
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


STORE_HELP = """\
Manage the store of the state: show it, create its tables, and copy state from files to
PostgreSQL.
"""
BACKUP_HELP = """\
Save settings, bundles, token hashes, runs, statistics and the audit log in one file, or restore
such a file.

Servers may run meanwhile. `onetool backup restore FILE` writes the files of an archive, and
replaces nothing.
"""
COMMANDS = {
    "store": Command(STORE_HELP, _add_store_arguments, main=_run_store, without_json={"grants"}),
    "backup": Command(BACKUP_HELP, _add_backup_arguments, main=_run_backup),
}
