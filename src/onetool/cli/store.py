"""Manage the store of the state: show it, create its tables, and copy state from files to
PostgreSQL.
"""

import json
import os
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from onetool.cli.options import Actions
from onetool.cli.terminal import print_notices
from onetool.settings.paths import find_directories
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.settings.load import Loaded

WITHOUT_JSON = frozenset({"grants"})
Answer = tuple[JsonObject, str]  # as JSON and as text


def add_arguments(parser: ArgumentParser) -> None:
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


def main(options: Namespace) -> int:
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
