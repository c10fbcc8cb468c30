"""Tokens in the database of the settings: created and revoked for all replicas at once."""

import argparse
import json
from typing import TYPE_CHECKING

from onetool.cli.token import (
    REJECTED,
    check_name_and_agent,
    check_unused,
    compute_times,
    print_token,
    print_tokens,
)
from onetool.config.model import Token
from onetool.errors import ToolError
from onetool.postgres.opening import opened_state
from onetool.postgres.state import PostgresState
from onetool.transports.http.tokens import hash_token, new_token
from onetool.util.text import quote

if TYPE_CHECKING:
    from onetool.config.load import Loaded


def change_tokens(loaded: "Loaded", options: argparse.Namespace) -> int:
    """Create, list or revoke tokens as `onetool token` does with a settings file."""
    with opened_state(loaded) as state:
        assert state is not None
        accepted = state.tokens.apply(loaded.settings.auth.tokens)
        if options.action == "list":
            print_tokens(loaded, accepted, options, state.token_use)
        elif options.action == "create":
            _create(loaded, state, accepted, options)
        else:
            _revoke(state, accepted, options)
    return 0


def _create(loaded: "Loaded", state: PostgresState, accepted: list[Token], options: argparse.Namespace) -> None:
    check_name_and_agent(loaded, options.name, options.agent)
    check_unused(options.name, [token.name for token in accepted])
    text, (created, expires) = new_token(), compute_times(options.expires)
    fields = {"agent": options.agent, "scope": options.scope, "created": created, "expires": expires}
    if not state.tokens.create(Token(name=options.name, hash=hash_token(text), **fields)):
        check_unused(options.name, [options.name])
    print_token(text, options, state.place, expires, [])


def _revoke(state: PostgresState, accepted: list[Token], options: argparse.Namespace) -> None:
    known = [token.name for token in accepted]
    if options.name not in known:
        existing = f"existing tokens: {', '.join(known)}" if known else "no tokens exist"
        raise ToolError(f"no token named {quote(options.name)}; {existing}")
    state.tokens.revoke(options.name)
    if options.json:
        print(json.dumps({"revoked": options.name, "file": state.place}, indent=2, ensure_ascii=False))
    else:
        print(f"Revoked token {options.name} in {state.place}. {REJECTED}")
