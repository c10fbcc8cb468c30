"""Sign out of an upstream server or an API: delete its tokens here and revoke them there."""

from argparse import ArgumentParser

from onetool.cli.invocation import Invocation


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", help="name of the server in onetool.yaml, or of a bundle"
    )
    parser.add_argument(
        "--account", default=None, metavar="ACCOUNT", help="account of the server (default: all)"
    )
    parser.add_argument(
        "--agent", default=None, metavar="AGENT", help="agent that was signed in for (default: all)"
    )


async def execute(command: Invocation) -> None:
    from onetool.admin.sign_ins import sign_out_all

    options = command.options
    name = options.name
    ended = await sign_out_all(
        command.app, command.person, name, account=options.account, agent=options.agent
    )
    labels = ", ".join(dict.fromkeys(ended))
    line = f"Signed out of {labels}." if ended else f"{name}: not signed in."
    command.show({"name": name, "signed_out": bool(ended)}, [line])
