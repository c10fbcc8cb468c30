"""Do what a REST route does, as the owner and without a server, and print the response.

PATH may have query parameters: `onetool api GET '/api/runs?state=failed'`. The reference of REST
lists all routes.
"""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from onetool.cli.exit_status import FAILED
from onetool.cli.invocation import Invocation

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

CHECKS_SETTINGS = False  # like REST
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
JSON = "accepted for all commands: the response is JSON anyway"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("method", choices=METHODS, metavar="METHOD", help=", ".join(METHODS))
    parser.add_argument("path", metavar="PATH", help="path of the route, such as /api/packs")
    parser.add_argument("--data", default="", metavar="JSON", help="body of the request")


def check(options: Namespace) -> None:
    if not options.path.startswith("/"):
        options.usage_error(
            f"invalid path {options.path!r}: expected a path of REST, such as /api/packs"
        )


async def execute(command: Invocation) -> int:
    import httpx2

    from onetool.server.http.route_table import build_actions

    actions = build_actions(command.app)

    async def serve(scope: "Scope", receive: "Receive", send: "Send") -> None:
        scope["state"] = {"person": command.person}
        await actions(scope, receive, send)

    options = command.options
    headers = {"content-type": "application/json"} if options.data else {}
    transport = httpx2.ASGITransport(app=serve)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        response = await client.request(
            options.method, options.path, content=options.data, headers=headers
        )
    if response.is_error:
        command.output.error(f"onetool: {response.json()['error']['message']}\n")
        return FAILED
    is_json = response.headers.get("content-type") == "application/json"
    if is_json:
        command.output.write_json(response.json())
    else:
        command.output.write(response.text)
    return 0
