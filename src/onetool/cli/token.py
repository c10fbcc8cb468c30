"""Manage tokens for HTTP clients. Only their hashes are stored."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from onetool.cli.app_runner import check_settings
from onetool.cli.identity import identify_owner
from onetool.cli.options import add_actions, add_json
from onetool.cli.terminal import CommandOutput, format_table
from onetool.util.token_ids import SCOPES

if TYPE_CHECKING:
    from onetool.admin.tokens import TokenInfo
    from onetool.app import OneTool

LOCAL = True  # it creates tokens of scope `owner`
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


async def execute(app: "OneTool", options: Namespace, output: CommandOutput) -> int:
    check_settings(app, output)
    await {"create": _create, "list": _list, "revoke": _revoke}[options.action](app, options, output)
    return 0


async def _create(app: "OneTool", options: Namespace, output: CommandOutput) -> None:
    """Print only the token to standard output, for scripts, and explanations to standard error."""
    from onetool.admin.tokens import TokenDraft, create_token

    draft = TokenDraft.parse({name: getattr(options, name) for name in TokenDraft.model_fields})
    new = await create_token(app, identify_owner(), draft)
    place = app.state.tokens.place
    if options.json:
        output.write_json({**new.model_dump(exclude={"notes"}), "file": place, "notes": new.notes})
        return
    output.write(f"{new.token}\n")
    owner = "of scope approve" if new.scope == "approve" else f"for agent {new.agent}"
    scope = f" and scope {new.scope}" if new.scope in {"admin", "owner"} else ""
    lines = [
        f"Created token {new.name} {owner}{scope}. It is not shown again; {place} stores its hash.",
        f"Clients send it as `Authorization: Bearer TOKEN`. {ACCEPTED}",
        *([f"It expires at {new.expires}."] if new.expires is not None else []),
        *(f"Note: {note}" for note in new.notes),
    ]
    output.error("\n".join([*lines, ""]))


async def _list(app: "OneTool", options: Namespace, output: CommandOutput) -> None:
    from onetool.admin.tokens import list_tokens

    tokens = (await list_tokens(app, identify_owner())).tokens
    if options.json:
        output.write_json({"tokens": [token.model_dump(exclude={"can_revoke"}) for token in tokens]})
    elif not tokens:
        output.write("No tokens exist. To create one: onetool token create NAME --agent default\n")
    else:
        output.write_lines(format_table([HEADINGS, *map(_format_row, tokens)]))


def _format_row(token: "TokenInfo") -> tuple[str, ...]:
    variable = f" (${token.token_env})" if token.token_env else ""
    expires = f"{token.expires or 'never'}{' (expired)' if token.is_expired else ''}"
    created = token.created or "unknown"
    return f"{token.name}{variable}", token.agent, token.scope, created, expires, token.last_used or "never"


async def _revoke(app: "OneTool", options: Namespace, output: CommandOutput) -> None:
    from onetool.admin.tokens import revoke_token

    revoked = await revoke_token(app, identify_owner(), options.name)
    place = app.state.tokens.place
    if options.json:
        output.write_json({**revoked.model_dump(), "file": place})
    else:
        output.write(f"Revoked token {revoked.revoked} in {place}. {REJECTED}\n")
