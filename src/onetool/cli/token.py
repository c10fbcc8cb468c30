"""Manage tokens for HTTP clients. Only their hashes are stored."""

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from onetool.cli.options import add_actions, add_json
from onetool.cli.terminal import print_notices
from onetool.paths import find_directories
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.transports.http.token_changes import TokenChanges

SCOPES = ("use", "approve", "admin", "owner")
HEADINGS = ("NAME", "AGENT", "SCOPE", "CREATED", "EXPIRES", "LAST USED")
ACCEPTED = "Running servers accept it within 2 seconds."
REJECTED = "Running servers reject it within 2 seconds and end its open streams."


def add_arguments(parser: ArgumentParser) -> None:
    create, listing, revoke = add_actions(
        parser,
        {
            "create": "Create a token and print it once",
            "list": "List tokens and their last use",
            "revoke": "Revoke a token",
        },
    )
    create.add_argument("name", metavar="NAME", help="name of the token, such as laptop")
    create.add_argument(
        "--agent", default="default", metavar="AGENT", help="agent for clients that use the token (default: default)"
    )
    create.add_argument(
        "--scope",
        choices=SCOPES,
        default="use",
        help="what the token may do: use tools (the default), only approve calls, admin to manage, or owner for all",
    )
    create.add_argument(
        "--expires",
        metavar="DURATION",
        help="time after which the token is rejected, such as 12h or 30d (default: never)",
    )
    revoke.add_argument("name", metavar="NAME", help="name of the token")
    add_json(create, listing, revoke)


def main(options: Namespace) -> int:
    from onetool.cli.identity import user_name
    from onetool.cli.signals import blocked_signals
    from onetool.config.load import load
    from onetool.config.settings_reader import apply_stored
    from onetool.state.audit import open_audit_log
    from onetool.state.opening import open_state
    from onetool.transports.http.token_changes import TokenChanges

    loaded = load(find_directories(os.environ, Path.cwd(), options.config, Path.home()), os.environ)
    print_notices(loaded.problems)
    with open_state(loaded) as state, blocked_signals():
        if options.action == "create":  # for an agent that the settings in the store define
            loaded = apply_stored(loaded, state.settings.refresh()).require()
        changes = TokenChanges(loaded.settings, state, user_name(), "cli")
        if options.action == "list":
            return _list(changes, options)
        status = {"create": _create, "revoke": _revoke}[options.action](changes, options)
        with closing(open_audit_log(loaded, state)) as audit:
            audit.change(f"token.{options.action}", [options.name], actor=user_name(), transport="cli")
        return status


# --- create --------------------------------------------------------------------------------------------------------


def _create(changes: "TokenChanges", options: Namespace) -> int:
    """Print only the token to standard output, for scripts, and explanations to standard error."""
    from onetool.transports.http.token_changes import TokenRequest

    new = changes.create(TokenRequest(options.name, options.agent, options.scope, options.expires))
    if options.json:
        entry = {"name": new.name, "agent": new.agent, "scope": new.scope, "expires": new.expires}
        shown = {**entry, "token": new.token, "file": new.place, "notes": new.notes}
        print(json.dumps(shown, indent=2, ensure_ascii=False))
        return 0
    print(new.token, flush=True)
    owner = "of scope approve" if new.scope == "approve" else f"for agent {new.agent}"
    scope = f" and scope {new.scope}" if new.scope in {"admin", "owner"} else ""
    lines = [
        f"Created token {new.name} {owner}{scope}. It is not shown again; {new.place} stores its hash.",
        f"Clients send it as `Authorization: Bearer TOKEN`. {ACCEPTED}",
        *([f"It expires at {new.expires}."] if new.expires is not None else []),
        *(f"Note: {note}" for note in new.notes),
    ]
    print("\n".join(lines), file=sys.stderr)
    return 0


# --- list ----------------------------------------------------------------------------------------------------------


def _list(changes: "TokenChanges", options: Namespace) -> int:
    tokens = changes.describe_all()
    if options.json:
        print(json.dumps({"tokens": tokens}, indent=2, ensure_ascii=False))
    elif not tokens:
        print("No tokens exist. To create one: onetool token create NAME --agent default")
    else:
        rows = [HEADINGS, *(_format_row(token) for token in tokens)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _format_row(token: JsonObject) -> tuple[str, ...]:
    variable = f" (${token['token_env']})" if "token_env" in token else ""
    expires = f"{token['expires'] or 'never'}{' (expired)' if token['is_expired'] else ''}"
    names = f"{token['name']}{variable}", token["agent"], token["scope"]
    return *names, token["created"] or "unknown", expires, token["last_used"] or "never"


# --- revoke --------------------------------------------------------------------------------------------------------


def _revoke(changes: "TokenChanges", options: Namespace) -> int:
    place = changes.revoke(options.name)
    if options.json:
        print(json.dumps({"revoked": options.name, "file": place}, indent=2, ensure_ascii=False))
    else:
        print(f"Revoked token {options.name} in {place}. {REJECTED}")
    return 0
