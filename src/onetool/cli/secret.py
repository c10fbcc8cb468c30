"""Manage the secrets in secrets.yaml, or in the store.

Values are read from a prompt or standard input, never shown.
"""

import sys
from argparse import ArgumentParser
from typing import TYPE_CHECKING

from onetool.cli.invocation import Invocation
from onetool.cli.options import Actions, add_edit_options
from onetool.errors import ToolError
from onetool.util.text import quote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onetool.admin.secrets import SecretInfo

LOCAL = frozenset({"set"})  # it asks for the value


def add_arguments(parser: ArgumentParser) -> None:
    actions = Actions(parser)
    actions.add("list", _list, "List the names of secrets, and what uses them")
    setting = actions.add("set", _set, "Set a secret, from a prompt or from standard input")
    delete = actions.add("delete", _delete, "Delete a secret")
    allow = actions.add("allow", _allow, "Let tools of a bundle send a secret to an origin")
    disallow = actions.add(
        "disallow", _allow, "No longer let tools of a bundle send a secret to an origin"
    )
    for action in (allow, disallow):
        action.add_argument("name", metavar="NAME", help="name of the secret")
        action.add_argument("--bundle", metavar="SLUG", required=True, help="name of the bundle")
        action.add_argument(
            "--host", metavar="ORIGIN", required=True, help="such as https://api.example.com"
        )
    add_edit_options(allow, disallow)
    for action in (setting, delete):
        action.add_argument("name", metavar="NAME", help="name of the secret, such as GITHUB_TOKEN")
    add_edit_options(setting, delete, chooses_file=True)


async def _list(command: Invocation) -> None:
    from onetool.admin.secrets import list_secrets

    secrets = (await command.do(list_secrets)).secrets
    data = {"secrets": [secret.as_json() for secret in secrets]}
    lines = (line for secret in secrets for line in _describe(secret))
    command.show(data, lines, "No secrets. To set one: onetool secret set NAME")


def _describe(secret: "SecretInfo") -> "Iterator[str]":
    yield f"{secret.name}  {', '.join(secret.files)}"
    if secret.used_by:
        yield f"  used by {', '.join(f'{user.kind} {user.name}' for user in secret.used_by)}"


async def _set(command: Invocation) -> None:
    from onetool.admin.secrets import SecretValue, set_secret
    from onetool.settings.planned_edit import check_secret_name

    name = command.options.name
    check_secret_name(name)
    value = SecretValue.parse({"value": _read_value(name)})
    edited = await command.do(
        set_secret, name, command.edit_query, value, directory=command.directory
    )
    command.show_edit(edited)


async def _delete(command: Invocation) -> None:
    from onetool.admin.secrets import delete_secret

    name = command.options.name
    edited = await command.do(delete_secret, name, command.edit_query, directory=command.directory)
    command.show_edit(edited)


async def _allow(command: Invocation) -> None:
    from onetool.admin.secrets import SecretUseInfo, set_secret_use

    options = command.options
    use = SecretUseInfo(
        bundle=options.bundle,
        name=options.name,
        origin=options.host,
        is_allowed=options.action == "allow",
    )
    edited = await command.do(set_secret_use, command.edit_query, use)
    command.show_edit(edited)


def _read_value(name: str) -> str:
    """Read the value from the terminal without showing it, or from standard input."""
    if sys.stdin.isatty():
        import getpass

        value = getpass.getpass(f"Value of {name}: ")
    else:
        value = sys.stdin.read().removesuffix("\n").removesuffix("\r")
    if not value:
        raise ToolError(
            f"the value of {quote(name)} is empty", hint=f"onetool secret set {name} < FILE"
        )
    return value
