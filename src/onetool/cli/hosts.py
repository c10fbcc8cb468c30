"""List, add and remove the hosts that tools may call."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from onetool.cli.app_runner import check_settings
from onetool.cli.identity import identify_owner
from onetool.cli.options import add_actions, add_json
from onetool.cli.settings_edits import add_edit_options, print_edit, read_query
from onetool.cli.terminal import CommandOutput

if TYPE_CHECKING:
    from onetool.app import OneTool


def add_arguments(parser: ArgumentParser) -> None:
    actions = {"list": "List the allowed hosts", "add": "Allow hosts", "remove": "No longer allow hosts"}
    listing, *changes = add_actions(parser, actions)
    add_json(listing)
    for change in changes:
        change.add_argument("hosts", nargs="+", metavar="HOST", help="such as api.example.com or *.example.com")
    add_edit_options(*changes)


async def execute(app: "OneTool", options: Namespace, output: CommandOutput) -> int:
    from onetool.admin.settings import HostChanges, change_hosts, list_hosts

    check_settings(app, output)
    if options.action != "list":
        changes = HostChanges.parse({options.action: options.hosts})
        print_edit(app, options, output, await change_hosts(app, identify_owner(), read_query(options), changes))
        return 0
    hosts = (await list_hosts(app, identify_owner())).hosts
    if options.json:
        output.write_json({"hosts": hosts})
    else:
        output.write_lines(hosts or ["No allowed hosts. To allow one: onetool hosts add HOST"])
    return 0
