"""Manage the store of the state: show it, create its tables, and copy state from files to PostgreSQL."""

import json
import os
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from onetool.cli.options import add_actions, add_json
from onetool.cli.terminal import print_notices
from onetool.paths import find_directories
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.config.load import Loaded


def add_arguments(parser: ArgumentParser) -> None:
    status, upgrade, grants, reset, migrate = add_actions(
        parser,
        {
            "status": "Show where the state is, the replicas that use it, and the queues",
            "upgrade": "Create or change the tables of the database (needs the migration role)",
            "grants": "Print the SQL that grants the roles of replicas and workers their rights",
            "reset-budgets": "Reset the budgets that agents have used",
            "migrate": "Copy all state from files to PostgreSQL, and verify the copy",
        },
    )
    upgrade.add_argument(
        "--grant", action="store_true", help="also grant the roles of replicas and workers their rights"
    )
    for action in (upgrade, grants):
        action.add_argument("--replica", default="onetool_replica", metavar="ROLE", help="role of replicas")
        action.add_argument("--worker", default="onetool_worker", metavar="ROLE", help="role of workers")
    reset.add_argument("agent", nargs="?", default="", metavar="AGENT", help="name of one agent (default: all)")
    migrate.add_argument("--to", required=True, metavar="URL", help="a postgresql:// URL")
    add_json(status, upgrade, reset, migrate)


def main(options: Namespace) -> int:
    from onetool.config.load import load

    if options.action == "grants":
        from onetool.state.roles import render_grants

        print(render_grants(options.replica, options.worker), end="")
        return 0
    loaded = load(find_directories(os.environ, Path.cwd(), options.config, Path.home()), os.environ)
    print_notices(loaded.problems)
    actions = {"status": _status, "upgrade": _upgrade, "reset-budgets": _reset_budgets, "migrate": _migrate}
    return actions[options.action](loaded, options)


def _status(loaded: "Loaded", options: Namespace) -> int:
    from onetool.state.opening import open_state

    with open_state(loaded) as state:
        description = state.describe()
    _print(options, description.facts, "\n".join(description.lines))
    return 0


def _upgrade(loaded: "Loaded", options: Namespace) -> int:
    from onetool.state.opening import require_store
    from onetool.state.postgres_database import Database
    from onetool.state.roles import render_grants

    grants = render_grants(options.replica, options.worker) if options.grant else ""
    with Database(require_store(loaded)) as database:
        before, after = database.upgrade()
        if grants:
            database.execute(grants)
    text = f"{database.place} has schema version {after}" + ("" if before == after else f", before {before}")
    _print(options, {"store": database.place, "before": before, "schema": after}, text)
    return 0


def _reset_budgets(loaded: "Loaded", options: Namespace) -> int:
    from onetool.state.opening import open_state

    with open_state(loaded) as state:
        count = state.counters.reset(f"budget {options.agent} " if options.agent else "budget ")
    _print(options, {"reset": count}, f"Reset {count} counters.")
    return 0


def _migrate(loaded: "Loaded", options: Namespace) -> int:
    from onetool.state.transfer import transfer

    counts = transfer(loaded, options.to)
    lines = [f"{kind:12} {count:>8}" for kind, count in counts.items()]
    _print(options, {"to": "postgresql", "verified": counts}, "\n".join(lines))
    return 0


def _print(options: Namespace, facts: JsonObject, text: str) -> None:
    print(json.dumps(facts, indent=2, ensure_ascii=False) if options.json else text)
