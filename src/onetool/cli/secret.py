"""Manage the secrets in secrets.yaml, or in the store. Values are read from a prompt or standard input, never shown."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

from onetool.cli.app_runner import run_with_app
from onetool.cli.options import add_actions, add_json, print_json
from onetool.cli.settings_changes import SettingsCommand, add_edit_options
from onetool.errors import ToolError
from onetool.util.invisible import escape_invisible
from onetool.util.text import quote


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
        add_edit_options(action)
    for action in (setting, delete):
        action.add_argument("name", metavar="NAME", help="name of the secret, such as GITHUB_TOKEN")
        add_edit_options(action, chooses_file=True)


def main(options: Namespace) -> int:
    value = None
    if options.action == "set":
        from onetool.editing.planned_edit import check_secret_name

        check_secret_name(options.name)
        value = _read_value(options.name)
    with SettingsCommand(options) as command:
        if options.action == "list":
            return _list(command.open_editor().list_secrets(), options)
        if options.action in {"allow", "disallow"}:
            return _change_use(command, options)
        action = f"secrets.{options.action}"
        secrets = {options.name: value}
        directory = command.directory
        notes = _describe_uses(command, options.name) if options.action == "set" else []
        return command.edit(lambda editor: editor.plan(action, [], secrets=secrets, directory=directory), lambda: notes)


def _change_use(command: SettingsCommand, options: Namespace) -> int:
    from onetool.bundles.secret_bindings import SecretUse, normalize_origin
    from onetool.editing.secret_changes import plan_secret_use

    use = SecretUse(options.bundle, options.name, normalize_origin(options.host))
    return command.edit(lambda editor: plan_secret_use(editor, use, is_allowed=options.action == "allow"))


def _describe_uses(command: SettingsCommand, name: str) -> list[str]:
    bundles = command.loaded.settings.bundle_secrets.items()
    uses = [(bundle, ", ".join(origins[name])) for bundle, origins in bundles if name in origins]
    return [f"Tools of bundle {bundle} may send it to {origins}" for bundle, origins in uses]


def _list(found: Mapping[str, list[str]], options: Namespace) -> int:
    from onetool.admin.secret_users import map_secret_users

    users = run_with_app(options, map_secret_users)
    if options.json:
        secrets = [
            {"name": name, "files": files, "usedBy": [user._asdict() for user in users.get(name, ())]}
            for name, files in found.items()
        ]
        print_json({"secrets": secrets})
        return 0
    for name, files in found.items():
        print(f"{name}  {', '.join(files)}")
        if name in users:
            print(escape_invisible(f"  used by {', '.join(map(str, users[name]))}"))
    if not found:
        print("No secrets. To set one: onetool secret set NAME")
    return 0


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
