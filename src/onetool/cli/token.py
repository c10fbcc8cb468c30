"""Manage tokens for HTTP clients. Only their hashes are stored."""

from argparse import ArgumentParser
from typing import TYPE_CHECKING

from onetool.cli.invocation import Invocation
from onetool.cli.options import Actions
from onetool.cli.terminal import format_list
from onetool.util.token_ids import SCOPES

if TYPE_CHECKING:
    from onetool.admin.tokens import TokenInfo

HEADINGS = ("NAME", "AGENT", "SCOPE", "CREATED", "EXPIRES", "LAST USED")
ACCEPTED = "Running servers accept it within 2 seconds."
REJECTED = "Running servers reject it within 2 seconds and end its open streams."


def add_arguments(parser: ArgumentParser) -> None:
    actions = Actions(parser)
    create = actions.add("create", _create, "Create a token and print it once")
    actions.add("list", _list, "List tokens and their last use")
    revoke = actions.add("revoke", _revoke, "Revoke a token")
    create.add_argument("name", metavar="NAME", help="name of the token, such as laptop")
    create.add_argument(
        "--agent",
        default="default",
        metavar="AGENT",
        help="agent for clients that use the token (default: default)",
    )
    create.add_argument(
        "--scope",
        choices=SCOPES,
        default="use",
        help=(
            "what the token may do: use tools (the default), only approve calls, admin to manage,"
            " or owner for all"
        ),
    )
    create.add_argument(
        "--expires",
        metavar="DURATION",
        help="time after which the token is rejected, such as 12h or 30d (default: never)",
    )
    revoke.add_argument("name", metavar="NAME", help="name of the token")


async def _create(command: Invocation) -> None:
    """Print only the token to standard output, for scripts, and explanations to standard error."""
    from onetool.admin.tokens import TokenDraft, create_token

    draft = TokenDraft.parse(
        {name: getattr(command.options, name) for name in TokenDraft.model_fields}
    )
    new = await command.do(create_token, draft)
    place = command.app.state.tokens.place
    command.show(
        {**new.model_dump(exclude={"notes"}), "file": place, "notes": new.notes}, [new.token]
    )
    if command.options.json:
        return
    owner = "of scope approve" if new.scope == "approve" else f"for agent {new.agent}"
    scope = f" and scope {new.scope}" if new.scope in {"admin", "owner"} else ""
    lines = [
        f"Created token {new.name} {owner}{scope}. It is not shown again; {place} stores its hash.",
        f"Clients send it as `Authorization: Bearer TOKEN`. {ACCEPTED}",
        *([f"It expires at {new.expires}."] if new.expires is not None else []),
        *(f"Note: {note}" for note in new.notes),
    ]
    command.output.error("\n".join([*lines, ""]))


async def _list(command: Invocation) -> None:
    from onetool.admin.tokens import list_tokens

    tokens = (await command.do(list_tokens)).tokens
    data = {"tokens": [token.model_dump(exclude={"can_revoke"}) for token in tokens]}
    empty = "No tokens exist. To create one: onetool token create NAME --agent default"
    command.show(data, format_list(HEADINGS, map(_format_row, tokens)), empty)


def _format_row(token: "TokenInfo") -> tuple[str, ...]:
    variable = f" (${token.token_env})" if token.token_env else ""
    expires = f"{token.expires or 'never'}{' (expired)' if token.is_expired else ''}"
    created = token.created or "unknown"
    return (
        f"{token.name}{variable}",
        token.agent,
        token.scope,
        created,
        expires,
        token.last_used or "never",
    )


async def _revoke(command: Invocation) -> None:
    from onetool.admin.tokens import revoke_token

    revoked = await command.do(revoke_token, command.options.name)
    place = command.app.state.tokens.place
    command.show(
        {**revoked.model_dump(), "file": place},
        [f"Revoked token {revoked.revoked} in {place}. {REJECTED}"],
    )
