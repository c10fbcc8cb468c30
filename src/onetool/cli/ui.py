"""Print a one-time URL of the admin UI, which signs you in as the owner, and open it in the
browser.
"""

import os
import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from onetool.cli.options import find_command_directories, print_result
from onetool.errors import ToolError
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.util.running_servers import ServerEntry

JSON = "print the URL as JSON, without opening a browser"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--port", type=int, metavar="PORT", help="port of the server, if several are running"
    )
    parser.add_argument(
        "--no-browser", action="store_true", help="print the URL without opening a browser"
    )


def main(options: Namespace) -> int:
    from onetool.util.running_servers import CODE_SECONDS, create_code, list_servers

    directories = find_command_directories(options)
    server = _choose(list_servers(directories.user), options.port, str(directories.working_dir))
    if not server.is_on_loopback:
        if (url := _find_sign_in(options)) is not None:
            return _show(options, url, {"url": url})
        raise ToolError(
            f"the server at {server.url} listens for other machines, so every browser needs a"
            " token",
            hint="open it and sign in with a token: onetool token create NAME --scope owner",
        )
    # The code is in the fragment, which browsers neither send to servers nor pass on.
    url = f"{server.url}/#/code/{create_code(directories.user)}"
    return _show(options, url, {"url": url, "expires_in_seconds": CODE_SECONDS})


def _choose(running: "list[ServerEntry]", port: int | None, directory: str) -> "ServerEntry":
    """Return the HTTP server: the one on this port, the only one, or the one of this directory."""
    servers = [entry for entry in running if entry.url and port in {None, entry.port}]
    if not servers:
        where = "" if port is None else f" on port {port}"
        hint = "start one with `onetool serve --http`"
        if running:
            hint += (
                ", or set daemon: {http: true} in ~/.onetool/onetool.yaml and run `onetool daemon"
                " restart`"
            )
        raise ToolError(f"no HTTP server is running{where}", hint=hint)
    here = [entry for entry in servers if entry.directory == directory]
    if len(servers) > 1 and len(here) != 1:
        listed = ", ".join(f"{entry.port} ({entry.directory})" for entry in servers)
        raise ToolError(
            f"several HTTP servers are running: ports {listed}", hint="choose one with --port PORT"
        )
    return servers[0] if len(servers) == 1 else here[0]


def _find_sign_in(options: Namespace) -> str | None:
    """Return the URL at which people can sign in with an issuer, if the settings have one."""
    from onetool.settings.load import load

    loaded = load(find_command_directories(options), os.environ)
    auth = loaded.settings.auth
    return auth.public_url if any(issuer.client_id for issuer in auth.issuers) else None


def _show(options: Namespace, url: str, data: JsonObject) -> int:
    print_result(options, data, [url])
    sys.stdout.flush()
    if not (options.json or options.no_browser):
        _open_browser(url)
    return 0


def _open_browser(url: str) -> None:
    """Open the URL in `$BROWSER` or the usual browser. Without one, the person has the URL."""
    import contextlib
    import webbrowser

    with contextlib.suppress(webbrowser.Error, OSError):
        webbrowser.open(url)
