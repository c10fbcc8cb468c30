"""Sign out of an upstream server or an API: delete its tokens here and revoke them there."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from onetool.cli.app_runner import run_with_settings
from onetool.cli.options import add_json
from onetool.core.render import render
from onetool.errors import ToolError
from onetool.util.text import describe_unknown_account

if TYPE_CHECKING:
    from onetool.app import OneTool


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the server in onetool.yaml, or of a bundle")
    parser.add_argument("--account", default=None, metavar="ACCOUNT", help="account of the server (default: all)")
    parser.add_argument("--agent", default=None, metavar="AGENT", help="agent that was signed in for (default: all)")
    add_json(parser)


def main(options: Namespace) -> int:
    async def work(app: "OneTool") -> int:
        target = await app.sign_ins.find_target(options.name)
        if options.account and options.account not in target.accounts:
            raise ToolError(describe_unknown_account(target.name, options.account, target.accounts))
        wanted = [
            each
            for each in await app.sign_ins.list_identities(target)
            if options.account in {None, each.account} and options.agent in {None, each.subject}
        ]
        ended = [each.label for each in wanted if await app.sign_ins.sign_out(each)]
        if options.json:
            print(render({"name": options.name, "signed_out": bool(ended)}, "json"))
        else:
            print(f"Signed out of {', '.join(dict.fromkeys(ended))}." if ended else f"{options.name}: not signed in.")
        return 0

    return run_with_settings(options, work)
