"""List, add and remove the hosts that tools may call."""

from argparse import ArgumentParser

from onetool.cli.invocation import Invocation
from onetool.cli.options import Actions, add_edit_options


def add_arguments(parser: ArgumentParser) -> None:
    actions = Actions(parser)
    actions.add("list", _list, "List the allowed hosts")
    add = actions.add("add", _change, "Allow hosts")
    remove = actions.add("remove", _change, "No longer allow hosts")
    for change in (add, remove):
        change.add_argument(
            "hosts", nargs="+", metavar="HOST", help="such as api.example.com or *.example.com"
        )
    add_edit_options(add, remove)


async def _list(command: Invocation) -> None:
    from onetool.admin.settings import list_hosts

    hosts = (await command.do(list_hosts)).hosts
    command.show({"hosts": hosts}, hosts, "No allowed hosts. To allow one: onetool hosts add HOST")


async def _change(command: Invocation) -> None:
    from onetool.admin.settings import HostChanges, change_hosts

    changes = HostChanges.parse({command.options.action: command.options.hosts})
    edited = await command.do(change_hosts, command.edit_query, changes)
    command.show_edit(edited)
