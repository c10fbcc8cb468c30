"""Manage tokens for HTTP clients. Only their hashes are stored."""

import argparse
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onetool.cli import settings_file
from onetool.cli.terminal import print_notices
from onetool.clients import text_files, yaml_edit
from onetool.errors import ToolError
from onetool.paths import find_directories
from onetool.util.text import quote
from onetool.util.time_format import in_utc, parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from onetool.config.load import Loaded
    from onetool.config.model import Token
    from onetool.storage import LastUseStorage
    from onetool.transports.http.token_use import TokenUse

SECTION, KEY = "auth", "tokens"
SCOPES = ("use", "approve", "admin", "owner")
HEADINGS = ("NAME", "AGENT", "SCOPE", "CREATED", "EXPIRES", "LAST USED")
MAX_DAYS = 3650
NAME = re.compile(r"\w[\w.@-]{0,63}")
ACCEPTED = "Running servers accept it within 2 seconds."
REJECTED = "Running servers reject it within 2 seconds and end its open streams."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = actions.add_parser("create", help="Create a token and print it once")
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
    listing = actions.add_parser("list", help="List tokens and their last use")
    revoke = actions.add_parser("revoke", help="Revoke a token")
    revoke.add_argument("name", metavar="NAME", help="name of the token")
    for action in (create, listing, revoke):
        action.add_argument("--json", action="store_true", help="print JSON")


def main(options: argparse.Namespace) -> int:
    from onetool.config.load import load

    loaded = load(find_directories(os.environ, Path.cwd(), options.config, Path.home()), os.environ)
    print_notices(loaded.problems)
    if loaded.settings.store:
        from onetool.cli.stored_tokens import change_tokens

        return change_tokens(loaded, options)
    return {"create": _create, "list": _list, "revoke": _revoke}[options.action](loaded, options)


# --- create --------------------------------------------------------------------------------------------------------


def _create(loaded: "Loaded", options: argparse.Namespace) -> int:
    from onetool.transports.http.tokens import hash_token, new_token

    check_name_and_agent(loaded, options.name, options.agent)
    token, entry, (created, expires) = new_token(), {"name": options.name}, compute_times(options.expires)
    with settings_file.open_locked(loaded.directories) as before:
        source = str(before.path)
        existing = yaml_edit.read_list(before.text, source, SECTION, KEY)
        check_unused(options.name, [item.get("name") for item in existing if isinstance(item, dict)])
        entry |= {"hash": hash_token(token), "agent": options.agent}
        entry |= {"scope": options.scope} if options.scope != "use" else {}
        entry |= {"created": created} | ({"expires": expires} if expires is not None else {})
        text = yaml_edit.add_items(before.text, source, SECTION, KEY, [entry])
        settings_file.write(loaded.directories, before, text, keep=False)  # only this list was changed
    hidden = [] if existing else [known.name for known in loaded.settings.auth.tokens]
    notes = [_replacement_warning(hidden, before.path)] if hidden else []
    print_token(token, options, str(before.path), expires, notes)
    return 0


def compute_times(duration: str | None) -> tuple[str, str | None]:
    """Return when a token is created, and when it expires after this duration."""
    now = time.time()
    expires = None if duration is None else in_utc(now + parse_duration(duration, MAX_DAYS), "seconds")
    return in_utc(now, "seconds"), expires


def check_name_and_agent(loaded: "Loaded", name: str, agent: str) -> None:
    if not NAME.fullmatch(name):
        raise ToolError(f"invalid token name {name!a}: expected up to 64 letters, digits and _ . @ -, such as laptop")
    agents = loaded.settings.agents
    if agent not in agents:
        raise ToolError(f"unknown agent {quote(agent)}: expected {', '.join(sorted(agents))}")


def check_unused(name: str, names: list[Any]) -> None:
    if name in names:
        raise ToolError(
            f"token {quote(name)} already exists", hint=f"choose another name, or run `onetool token revoke {name}`"
        )


def _replacement_warning(names: list[str], file: Path) -> str:
    """Return a warning: the first token of a project disables the user's tokens, because its list replaces theirs."""
    listed = ", ".join(names)
    return f"the tokens in {file} replace those in your user settings; no longer accepted in this project: {listed}"


def print_token(token: str, options: argparse.Namespace, place: str, expires: str | None, notes: list[str]) -> None:
    """Print only the token to standard output, for scripts, and explanations to standard error."""
    if options.json:
        entry = {"name": options.name, "agent": options.agent, "scope": options.scope, "expires": expires}
        shown = {**entry, "token": token, "file": place, "notes": notes}
        print(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    print(token, flush=True)
    owner = "of scope approve" if options.scope == "approve" else f"for agent {options.agent}"
    scope = f" and scope {options.scope}" if options.scope in {"admin", "owner"} else ""
    lines = [
        f"Created token {options.name} {owner}{scope}. It is not shown again; {place} stores its hash.",
        f"Clients send it as `Authorization: Bearer TOKEN`. {ACCEPTED}",
        *([f"It expires at {expires}."] if expires is not None else []),
        *(f"Note: {note}" for note in notes),
    ]
    print("\n".join(lines), file=sys.stderr)


# --- list ----------------------------------------------------------------------------------------------------------


def _list(loaded: "Loaded", options: argparse.Namespace) -> int:
    print_tokens(loaded, loaded.settings.auth.tokens, options)
    return 0


def print_tokens(
    loaded: "Loaded",
    accepted: "Iterable[Token]",
    options: argparse.Namespace,
    shared: "LastUseStorage | None" = None,
) -> None:
    from onetool.transports.http.token_use import TokenUse

    use = TokenUse(lambda: loaded.directories.user, shared=lambda: shared)
    tokens = [_describe(token, use) for token in accepted]
    if options.json:
        print(json.dumps({"tokens": tokens}, indent=2, ensure_ascii=False))
    elif not tokens:
        print("No tokens exist. To create one: onetool token create NAME --agent default")
    else:
        rows = [HEADINGS, *(_format_row(token) for token in tokens)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _describe(token: "Token", use: "TokenUse") -> dict[str, Any]:
    """Return what is shown of a token: never its hash."""
    from onetool.transports.http.tokens import identify_token

    used = use.read(identify_token(token))
    return {
        "name": token.name,
        "agent": token.agent,
        "scope": token.scope,
        "created": token.created,
        "expires": token.expires,
        "is_expired": token.expires_at <= time.time(),
        "last_used": None if used is None else in_utc(used, "seconds"),
        **({"token_env": token.token_env} if token.token_env else {}),
    }


def _format_row(token: dict[str, Any]) -> tuple[str, ...]:
    variable = f" (${token['token_env']})" if "token_env" in token else ""
    expires = f"{token['expires'] or 'never'}{' (expired)' if token['is_expired'] else ''}"
    names = f"{token['name']}{variable}", token["agent"], token["scope"]
    return *names, token["created"] or "unknown", expires, token["last_used"] or "never"


# --- revoke --------------------------------------------------------------------------------------------------------


def _revoke(loaded: "Loaded", options: argparse.Namespace) -> int:
    from onetool.transports.http.token_use import TokenUse
    from onetool.transports.http.tokens import identify_token

    with settings_file.open_locked(loaded.directories) as before:
        index = _index(loaded, before, options.name)
        text = yaml_edit.remove_item(before.text, str(before.path), SECTION, KEY, index)
        settings_file.write(loaded.directories, before, text, keep=False)
    for token in loaded.settings.auth.tokens:
        if token.name == options.name:
            TokenUse(lambda: loaded.directories.user).forget(identify_token(token))
    if options.json:
        print(json.dumps({"revoked": options.name, "file": str(before.path)}, indent=2, ensure_ascii=False))
    else:
        print(f"Revoked token {options.name} and removed it from {before.path}. {REJECTED}")
    return 0


def _index(loaded: "Loaded", before: text_files.TextFile, name: str) -> int:
    entries = yaml_edit.read_list(before.text, str(before.path), SECTION, KEY)
    names = [item.get("name") if isinstance(item, dict) else None for item in entries]
    if name in names:
        return names.index(name)
    known = [token.name for token in loaded.settings.auth.tokens]
    if name in known:
        raise ToolError(f"token {quote(name)} is not in {before.path}", hint=f"remove it from one of {_files(loaded)}")
    existing = f"existing tokens: {', '.join(known)}" if known else "no tokens exist"
    raise ToolError(f"no token named {quote(name)}; {existing}")


def _files(loaded: "Loaded") -> str:
    return ", ".join(map(str, loaded.files))
