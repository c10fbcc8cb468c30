"""Manage the secrets in secrets.yaml, or in the store. Values are read from a prompt or standard input, never shown."""

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from onetool.cli.app_runner import check_settings
from onetool.cli.identity import identify_owner
from onetool.cli.options import add_actions, add_json
from onetool.cli.settings_edits import add_edit_options, choose_directory, print_edit, read_query
from onetool.cli.terminal import CommandOutput
from onetool.errors import ToolError
from onetool.util.invisible import escape_invisible
from onetool.util.text import quote

if TYPE_CHECKING:
    from onetool.admin.settings_edits import EditResult
    from onetool.app import OneTool

LOCAL = True  # it asks for values in the terminal


def add_arguments(parser: ArgumentParser) -> None:
    listing, setting, delete, allow, disallow = add_actions(
        parser,
        {
            "list": "List the names of secrets, and what uses them",
            "set": "Set a secret, from a prompt or from standard input",
            "delete": "Delete a secret",
            "allow": "Let tools of a bundle send a secret to an origin",
            "disallow": "No longer let tools of a bundle send a secret to an origin",
        },
    )
    add_json(listing)
    for action in (allow, disallow):
        action.add_argument("name", metavar="NAME", help="name of the secret")
        action.add_argument("--bundle", metavar="SLUG", required=True, help="name of the bundle")
        action.add_argument("--host", metavar="ORIGIN", required=True, help="such as https://api.example.com")
    add_edit_options(allow, disallow)
    for action in (setting, delete):
        action.add_argument("name", metavar="NAME", help="name of the secret, such as GITHUB_TOKEN")
    add_edit_options(setting, delete, chooses_file=True)


async def execute(app: "OneTool", options: Namespace, output: CommandOutput) -> int:
    check_settings(app, output)
    if options.action == "list":
        await _list(app, options, output)
    else:
        print_edit(app, options, output, await _change(app, options))
    return 0


async def _change(app: "OneTool", options: Namespace) -> "EditResult":
    from onetool.admin import secrets
    from onetool.editing.planned_edit import check_secret_name

    person = identify_owner()
    query = read_query(options)
    if options.action in {"allow", "disallow"}:
        is_allowed = options.action == "allow"
        use = secrets.SecretUseInfo(
            bundle=options.bundle, name=options.name, origin=options.host, is_allowed=is_allowed
        )
        return await secrets.set_secret_use(app, person, query, use)
    directory = choose_directory(app, options)
    if options.action == "delete":
        return await secrets.delete_secret(app, person, options.name, query, directory=directory)
    check_secret_name(options.name)
    value = secrets.SecretValue.parse({"value": _read_value(options.name)})
    return await secrets.set_secret(app, person, options.name, query, value, directory=directory)


async def _list(app: "OneTool", options: Namespace, output: CommandOutput) -> None:
    from onetool.admin.secrets import list_secrets

    secrets = (await list_secrets(app, identify_owner())).secrets
    if options.json:
        output.write_json({"secrets": [secret.as_json() for secret in secrets]})
    elif not secrets:
        output.write("No secrets. To set one: onetool secret set NAME\n")
    else:
        for secret in secrets:
            output.write(f"{secret.name}  {', '.join(secret.files)}\n")
            if secret.used_by:
                users = (f"{user.kind} {user.name}" for user in secret.used_by)
                output.write(escape_invisible(f"  used by {', '.join(users)}\n"))


def _read_value(name: str) -> str:
    """Read the value from the terminal without showing it, or from standard input."""
    if sys.stdin.isatty():
        import getpass

        value = getpass.getpass(f"Value of {name}: ")
    else:
        value = sys.stdin.read().removesuffix("\n").removesuffix("\r")
    if not value:
        raise ToolError(f"the value of {quote(name)} is empty", hint=f"onetool secret set {name} < FILE")
    return value
