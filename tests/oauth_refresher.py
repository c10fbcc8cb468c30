"""A process that uses the tokens of a sign-in while they expire, for tests of refreshes in several
processes.

`python -m tests.oauth_refresher HOME URL COUNT` prints the number of expiries it went through.
Every tenth time, it calls the protected server.
"""

import asyncio
import sys
import time
from pathlib import Path

from onetool.app import OneTool
from onetool.net.oauth.sign_ins import identify
from onetool.settings.load import Loaded
from onetool.settings.model import Settings
from onetool.settings.paths import Directories
from onetool.util.logging import Log

CALL_EVERY = 10


async def use_tokens(home: Path, url: str, count: int) -> int:
    directories = Directories(working_dir=home, user=home / ".onetool")
    settings = Settings.model_validate({"servers": {"gh": {"url": url, "auth": "oauth"}}})
    loaded = Loaded(settings, {}, (), (), directories)
    expiries, before = 0, ""
    async with OneTool(read=lambda: loaded, log=Log()) as app:
        source = app.sign_ins.get_source(identify(await app.sign_ins.find_target("gh")))
        while expiries < count:
            token = await source.get()
            expiries += token != before
            before = token
            if expiries % CALL_EVERY == 0:
                assert (await app.bus.call_tool("gh.whoami", {}, app.context())).unwrap() == "ada"
            found = await source.read()
            assert found is not None
            await asyncio.sleep(max(0.0, (found.refresh_at or 0.0) - time.time()))
    return expiries


if __name__ == "__main__":
    sys.stdout.write(
        f"{asyncio.run(use_tokens(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))}\n"
    )
