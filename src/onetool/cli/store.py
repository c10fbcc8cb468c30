"""Manage the store of the state: show it, create its tables, and copy state from files to PostgreSQL."""

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onetool.cli.terminal import print_notices
from onetool.errors import ToolError
from onetool.paths import find_directories

if TYPE_CHECKING:
    from onetool.config.load import Loaded

NO_STORE = "set store in ~/.onetool/onetool.yaml, or ONETOOL_STORE, to a postgresql:// URL"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    status = actions.add_parser("status", help="Show where the state is, the replicas that use it, and the queues")
    upgrade = actions.add_parser(
        "upgrade", help="Create or change the tables of the database (needs the migration role)"
    )
    grants = actions.add_parser(
        "grants", help="Print the SQL that grants the roles of replicas and workers their rights"
    )
    upgrade.add_argument(
        "--grant", action="store_true", help="also grant the roles of replicas and workers their rights"
    )
    for action in (upgrade, grants):
        action.add_argument("--replica", default="onetool_replica", metavar="ROLE", help="role of replicas")
        action.add_argument("--worker", default="onetool_worker", metavar="ROLE", help="role of workers")
    reset = actions.add_parser("reset-budgets", help="Reset the budgets that agents have used")
    reset.add_argument("agent", nargs="?", default="", metavar="AGENT", help="name of one agent (default: all)")
    migrate = actions.add_parser("migrate", help="Copy all state from files to PostgreSQL, and verify the copy")
    migrate.add_argument("--to", required=True, metavar="URL", help="a postgresql:// URL")
    for action in (status, upgrade, reset, migrate):
        action.add_argument("--json", action="store_true", help="print JSON")


def main(options: argparse.Namespace) -> int:
    from onetool.config.load import load

    if options.action == "grants":
        from onetool.state.roles import render_grants

        print(render_grants(options.replica, options.worker), end="")
        return 0
    loaded = load(find_directories(os.environ, Path.cwd(), options.config, Path.home()), os.environ)
    print_notices(loaded.problems)
    actions = {"status": _status, "upgrade": _upgrade, "reset-budgets": _reset_budgets, "migrate": _migrate}
    return actions[options.action](loaded, options)


def _status(loaded: "Loaded", options: argparse.Namespace) -> int:
    if not loaded.settings.store:
        _print(
            options,
            {"store": "files", "directory": str(loaded.directories.data)},
            f"files in {loaded.directories.data}",
        )
        return 0
    from onetool.state.opening import opened_state
    from onetool.state.status import describe_status

    with opened_state(loaded) as state:
        assert state is not None
        facts = describe_status(state.database)
    lines = [
        f"{facts['store']}, schema version {facts['schema']}, {facts['megabytes']} MB",
        f"replicas: {len(facts['replicas'])}",
        *(f"  {each['description']}, seen {each['seconds']} s ago" for each in facts["replicas"]),
        *(_describe_queue(each) for each in facts["queues"]),
    ]
    _print(options, facts, "\n".join(lines))
    return 0


def _describe_queue(queue: dict[str, Any]) -> str:
    counts = f"queue {queue['name']}: {queue['waiting']} waiting, {queue['running']} running"
    workers = [f"  worker: {worker}" for worker in queue["workers"]] or [
        f"  no worker: run `onetool worker --queue {queue['name']}`"
    ]
    return "\n".join([counts, *workers])


def _upgrade(loaded: "Loaded", options: argparse.Namespace) -> int:
    from onetool.state.postgres_database import Database
    from onetool.state.roles import render_grants

    grants = render_grants(options.replica, options.worker) if options.grant else ""
    with Database(_require_store(loaded)) as database:
        before, after = database.upgrade()
        if grants:
            database.execute(grants)
    text = f"{database.place} has schema version {after}" + ("" if before == after else f", before {before}")
    _print(options, {"store": database.place, "before": before, "schema": after}, text)
    return 0


def _reset_budgets(loaded: "Loaded", options: argparse.Namespace) -> int:
    from onetool.state.opening import opened_state

    _require_store(loaded)
    with opened_state(loaded) as state:
        assert state is not None
        count = state.counters.reset(f"budget {options.agent} " if options.agent else "budget ")
    _print(options, {"reset": count}, f"Reset {count} counters.")
    return 0


def _migrate(loaded: "Loaded", options: argparse.Namespace) -> int:
    from onetool.state.transfer import transfer

    counts = transfer(loaded, options.to)
    lines = [f"{kind:12} {count:>8}" for kind, count in counts.items()]
    _print(options, {"to": "postgresql", "verified": counts}, "\n".join(lines))
    return 0


def _require_store(loaded: "Loaded") -> str:
    if not loaded.settings.store:
        raise ToolError("the state is in files", hint=NO_STORE)
    return loaded.settings.store


def _print(options: argparse.Namespace, facts: dict[str, Any], text: str) -> None:
    print(json.dumps(facts, indent=2, ensure_ascii=False) if options.json else text)
