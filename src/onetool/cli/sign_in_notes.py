"""Notes about servers that nobody has signed in to, for commands that add servers or connect
assistants.
"""

import asyncio
import os
from collections.abc import Collection
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from onetool.errors import ToolError
from onetool.settings.paths import Directories

if TYPE_CHECKING:
    from onetool.net.oauth.credential import SignInTarget

PROBE_SECONDS = 3.0  # for all servers together; a server that does not answer is not mentioned
UNAUTHORIZED = 401


def find_sign_in_notes(directories: Directories, names: Collection[str] | None = None) -> list[str]:
    """Return a line for each of these servers (all by default) that requires a sign-in and has
    none.
    """
    from onetool.net.oauth.sign_ins import make_server_target
    from onetool.settings.load import load
    from onetool.state.credentials import CredentialFile, CredentialStore

    try:
        settings = load(directories, os.environ).settings
        with closing(CredentialFile(directories.user)) as database:
            signed_in = {key.resource for key in CredentialStore(database).list_keys()}
    except ToolError:  # the command itself reports it, or `onetool doctor` does
        return []
    wanted = {
        name: each
        for name, each in settings.servers.items()
        if each.enabled and (names is None or name in names)
    }
    targets = [
        target
        for name, each in wanted.items()
        if (target := make_server_target(name, each)) is not None
    ]
    missing = [
        target for target in targets if target.url not in signed_in and not target.is_machine
    ]
    rejecting = asyncio.run(_probe([target for target in missing if target.is_optional]))
    found = [
        target.name for target in missing if not target.is_optional or target.name in rejecting
    ]
    return [f"{name} requires a sign-in: onetool login {name}" for name in found]


async def _probe(targets: "Collection[SignInTarget]") -> set[str]:
    """Return the servers that answer 401 to a request without a token."""
    from onetool.net import ANY_HOST, Net
    from onetool.net.oauth.guarded_http import PROBES, GuardedHttp

    net = Net(ANY_HOST)
    found = set[str]()

    async def probe(target: "SignInTarget") -> None:
        with suppress(ToolError):
            answer = await GuardedHttp(net, target.url).post_json(
                target.url, PROBES[0], "url", target.headers
            )
            challenge = answer.header("www-authenticate") or ""
            if answer.status == UNAUTHORIZED and target.accepts_sign_in(challenge):
                found.add(target.name)

    tasks = [asyncio.ensure_future(probe(each)) for each in targets]
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=PROBE_SECONDS)
        for task in late:
            task.cancel()
    await net.close()
    return found
