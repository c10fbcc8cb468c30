"""Sign out of an upstream server or an API: delete its tokens here and revoke them there."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from onetool.cli.app_runner import check_settings
from onetool.cli.identity import identify_owner
from onetool.cli.options import add_json
from onetool.cli.terminal import CommandOutput

if TYPE_CHECKING:
    from onetool.app import OneTool

LOCAL = True  # it ends sign-ins of all agents as the owner


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the server in onetool.yaml, or of a bundle")
    parser.add_argument("--account", default=None, metavar="ACCOUNT", help="account of the server (default: all)")
    parser.add_argument("--agent", default=None, metavar="AGENT", help="agent that was signed in for (default: all)")
    add_json(parser)


async def execute(app: "OneTool", options: Namespace, output: CommandOutput) -> int:
    from onetool.admin.sign_ins import sign_out_all

    check_settings(app, output)
    ended = await sign_out_all(app, identify_owner(), options.name, account=options.account, agent=options.agent)
    if options.json:
        output.write_json({"name": options.name, "signed_out": bool(ended)})
    else:
        labels = ", ".join(dict.fromkeys(ended))
        output.write(f"Signed out of {labels}.\n" if ended else f"{options.name}: not signed in.\n")
    return 0
