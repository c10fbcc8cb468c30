"""Notices to people that calls wait: a command, or a request to a webhook.

They never contain arguments.
"""

import asyncio
import json
import subprocess
from collections.abc import Callable

from onetool.errors import NetworkError, ToolError
from onetool.net import ANY_HOST, HostRules, Net, Request
from onetool.processes.process import Variables
from onetool.settings.access import ApprovalNotice
from onetool.util.invisible import escape_invisible
from onetool.util.logging import Log
from onetool.util.redact import Redactor
from onetool.util.tasks import BackgroundTasks
from onetool.util.text import pluralize, shorten

MIN_INTERVAL_SECONDS = 10.0  # between two notices; what happens meanwhile is in the next one
TIMEOUT_SECONDS = 10.0
MAX_WAITING = 100
MAX_SUMMARY_CHARS = 300
MAX_RESPONSE_BYTES = 64 << 10
# What programs such as notify-send and osascript need; everything else may be a secret.
ENVIRONMENT = (
    "PATH", "HOME", "USER", "LANG", "LC_ALL", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS", "SYSTEMROOT",
)  # fmt: skip


class ApprovalNotifier:
    """Sends notices in the background. `notify` returns at once; failures are logged."""

    def __init__(self, own_ports: Callable[[], set[int]]) -> None:
        self._net = Net(ANY_HOST, own_ports=own_ports)
        self._log = Log()
        self._settings = ApprovalNotice()
        self._redact = Redactor()
        self._allows_private = False
        self._environment: Variables = {}
        self._waiting: dict[str, str] = {}  # texts by run
        self._tasks = BackgroundTasks()
        self._is_sending = False

    def configure(
        self,
        settings: ApprovalNotice,
        redact: Redactor,
        log: Log,
        environment: Variables,
        *,
        allow_private_addresses: bool,
    ) -> None:
        self._settings = settings
        self._redact = redact
        self._log = log
        self._environment = {name: environment[name] for name in ENVIRONMENT if name in environment}
        self._allows_private = allow_private_addresses

    async def close(self) -> None:
        self._tasks.cancel()
        await self._net.close()

    def notify(self, run_id: str, agent: str, summary: str) -> None:
        """Report that calls of a run wait; `summary` has the names of their tools."""
        if not (self._settings.command or self._settings.webhook):
            return
        if len(self._waiting) < MAX_WAITING:
            text = f"calls of agent {agent} wait for approval: {summary} (run {run_id})"
            self._waiting[run_id] = shorten(escape_invisible(self._redact(text)), MAX_SUMMARY_CHARS)
        if not self._is_sending:
            self._is_sending = True
            self._tasks.start(self._send_all())

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                texts = list(self._waiting.values())
                self._waiting = {}
                more = f", and {pluralize(len(texts) - 1, 'more run')}" if len(texts) > 1 else ""
                await self._send(f"OneTool: {texts[0]}{more}")
                await asyncio.sleep(MIN_INTERVAL_SECONDS)
        finally:
            self._is_sending = False

    async def _send(self, text: str) -> None:
        settings = self._settings
        ways = (
            [_start_command([*settings.command, text], self._environment)]
            if settings.command
            else []
        )
        ways += [self._post(settings.webhook, text)] if settings.webhook else []
        for error in await asyncio.gather(*ways, return_exceptions=True):
            if isinstance(error, Exception):
                reason = self._redact(f"cannot send the notice: {error}")
                self._log.event("approval.notice", level="WARNING", text=reason)

    async def _post(self, url: str, text: str) -> None:
        rules = HostRules.for_url(url, allow_private_addresses=self._allows_private)
        request = Request(
            "POST", url, [("Content-Type", "application/json")], json.dumps({"text": text}).encode()
        )
        response = await self._net.send(
            request,
            follow_redirects=False,
            rules=(rules,),
            timeout=TIMEOUT_SECONDS,
            max_bytes=MAX_RESPONSE_BYTES,
        )
        if not 200 <= response.status < 300:  # noqa: PLR2004 - successful responses
            raise NetworkError(f"the webhook returned status {response.status}")


async def _start_command(command: list[str], environment: Variables) -> None:
    process = await asyncio.create_subprocess_exec(
        *command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        status = await asyncio.wait_for(process.wait(), TIMEOUT_SECONDS)
    except TimeoutError:
        raise ToolError(f"{command[0]} did not end within {TIMEOUT_SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if status:
        raise ToolError(f"{command[0]} exited with status {status}")
