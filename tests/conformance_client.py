"""The client of the official conformance scenarios `auth/*`: OneTool with one server, and a person
who signs in.

`python -m tests.conformance_client URL` calls every tool of the server, and signs in whenever a
call needs it.
"""

import asyncio
import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx2

from onetool.app import OneTool
from onetool.errors import SignInRequired, ToolError
from onetool.net import ANY_HOST, Net
from onetool.net.oauth import sign_ins
from onetool.net.oauth.credential import SignInTarget
from onetool.net.oauth.discovery import Discovery
from onetool.net.oauth.guarded_http import GuardedHttp
from onetool.net.oauth.pending import parse_callback
from onetool.util.logging import Log

MAX_SIGN_INS = 3
REDIRECT = "http://127.0.0.1:9/callback"
CLIENT_DOCUMENT = "/client-metadata.json"  # of the scenario, at this origin
PUBLIC_URL = "https://conformance-test.local"


async def find_issuer(url: str) -> str:
    """Return the issuer that the server names, as a person would look it up."""
    http = GuardedHttp(Net(ANY_HOST), url, allow_private_addresses=True)
    found = await Discovery(http, SignInTarget("server", url)).discover()
    return str(found.server.issuer)


def make_auth(context: dict[str, Any], issuer: str) -> dict[str, Any]:
    """Return the settings for the credentials that the scenario gives."""
    if "private_key_pem" in context:
        key = {"private_key": context["private_key_pem"]}
        return {
            "client_id": context["client_id"],
            **key,
            "grant": "client_credentials",
            "issuer": issuer,
        }
    if "client_secret" not in context:
        return {}
    client = {
        "client_id": context["client_id"],
        "client_secret": context["client_secret"],
        "issuer": issuer,
    }
    is_machine = "client-credentials" in os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    return {**client, "grant": "client_credentials"} if is_machine else client


async def sign_in(app: OneTool) -> None:
    """Sign in as a browser would: follow the authorization URL to the callback."""
    identity = sign_ins.identify(await app.sign_ins.find_target("server"))
    pending = await app.sign_ins.begin(identity, REDIRECT)
    async with httpx2.AsyncClient(trust_env=False) as browser:
        answer = await browser.get(pending.url)
    await app.sign_ins.finish(parse_callback(answer.headers["location"]))


async def call_tools(app: OneTool) -> None:
    await app.discover({"server"})
    upstream = app.servers.upstream("server")
    await upstream.main.connect()
    for name in upstream.tools.offered:
        (await app.bus.call_tool(name, {}, app.context())).unwrap()


async def main(url: str) -> None:
    sign_ins.CLIENT_PATH = CLIENT_DOCUMENT  # the scenario has a fixed URL
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    has_proof = not {"client_secret", "private_key_pem"}.isdisjoint(context)
    issuer = await find_issuer(url) if has_proof else ""
    settings = {
        "servers": {
            "server": {"url": url, "auth": {"type": "oauth", **make_auth(context, issuer)}}
        },
        "auth": {"public_url": PUBLIC_URL},
    }
    with tempfile.TemporaryDirectory() as directory:
        async with OneTool(settings, folder=Path(directory), log=Log()) as app:
            for attempt in range(MAX_SIGN_INS + 1):
                try:
                    await call_tools(app)
                    break
                except SignInRequired:
                    if attempt == MAX_SIGN_INS:
                        raise
                    await sign_in(app)


if __name__ == "__main__":
    logging.disable()
    try:
        asyncio.run(main(sys.argv[-1]))
    except ToolError as error:
        sys.exit(f"{type(error).__name__}: {error}")
