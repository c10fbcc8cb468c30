"""Open the admin UI of a running HTTP server, signed in with a one-time code."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from onetool.errors import ToolError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, metavar="PORT", help="port of the server, if several are running")
    parser.add_argument("--print", action="store_true", help="print the URL instead of opening a browser")
    parser.add_argument("--json", action="store_true", help="print the URL as JSON")


def main(options: argparse.Namespace) -> int:
    from onetool.paths import find_directories
    from onetool.util.one_time_codes import CODE_SECONDS, create_code
    from onetool.util.running_servers import list_servers

    user = find_directories(os.environ, Path.cwd(), options.config, Path.home()).user
    servers = [entry for entry in list_servers(user) if entry.url and options.port in {None, entry.port}]
    if not servers:
        where = "" if options.port is None else f" on port {options.port}"
        raise ToolError(f"no HTTP server is running{where}", hint="start one with `onetool serve --http`")
    if len(servers) > 1:
        listed = ", ".join(str(entry.port) for entry in servers)
        raise ToolError(f"several HTTP servers are running: ports {listed}", hint="choose one with --port PORT")
    if not _is_loopback(servers[0].url):
        if (url := _find_sign_in(options)) is not None:
            return _show(options, url, {"url": url})
        raise ToolError(
            f"the server at {servers[0].url} listens for other machines, so every browser needs a token",
            hint="open it and sign in with a token: onetool token create NAME --scope approve",
        )
    # The code is in the fragment, which browsers neither send to servers nor pass on.
    url = f"{servers[0].url}/#/code/{create_code(user)}"
    return _show(options, url, {"url": url, "expires_in_seconds": CODE_SECONDS})


def _find_sign_in(options: argparse.Namespace) -> str | None:
    """Return the URL at which people can sign in with an issuer, if the settings have one."""
    from onetool.config.load import load
    from onetool.paths import find_directories

    loaded = load(find_directories(os.environ, Path.cwd(), options.config, Path.home()), os.environ)
    auth = loaded.settings.auth
    return auth.public_url if any(issuer.client_id for issuer in auth.issuers) else None


def _show(options: argparse.Namespace, url: str, data: dict[str, Any]) -> int:
    if options.json:
        print(json.dumps(data))
    elif options.print or not _open_browser(url):
        print(url)
    else:
        print(f"Opened {url.partition('/#/')[0]} in the browser.")
    return 0


def _is_loopback(url: str) -> bool:
    from ipaddress import ip_address
    from urllib.parse import urlsplit

    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _open_browser(url: str) -> bool:
    import webbrowser

    try:
        return webbrowser.open(url)
    except webbrowser.Error:
        return False
