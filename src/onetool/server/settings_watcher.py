"""Reloads a running server when settings change, on SIGHUP, and for `onetool reload`.

One task follows the changes and never waits for a reload, so that a revoked token is rejected
promptly. Another task performs the reloads, one at a time, with the settings that the first one has
read.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import anyio
import anyio.to_thread

from onetool.app import OneTool
from onetool.errors import ToolError
from onetool.settings.contents import Stamp, StoredSettings, stamp_files
from onetool.settings.edit_history import EditHistory
from onetool.settings.load import Examined
from onetool.util.running_servers import Registration, ServerEntry, read_generation

TICK_SECONDS = 0.5
SIGHUP = getattr(signal, "SIGHUP", None)
T = TypeVar("T")


@asynccontextmanager
async def watching(
    app: OneTool,
    on_change: Callable[[Examined], None] = lambda _examined: None,
    on_tick: Callable[[], None] = lambda: None,
    *,
    url: str = "",
    port: int | None = None,
    handle_signals: bool = True,
) -> AsyncIterator[None]:
    """Register this server and watch for changes until the block ends.

    Signals may belong to another program.

    `on_change` gets the changed settings, and `on_tick` is called twice a second.
    """
    directory = str(app.directories.working_dir)
    user = app.directories.user
    entry = ServerEntry(
        os.getpid(), url, port, directory, await anyio.to_thread.run_sync(read_generation, user)
    )
    registration = await anyio.to_thread.run_sync(Registration.create, user, entry)
    watcher = SettingsWatcher(app, registration, on_change, on_tick, entry.generation)
    tasks = [
        asyncio.ensure_future(work)
        for work in (watcher.follow(), watcher.tick(), watcher.reload_on_request())
    ]
    if handle_signals and SIGHUP is not None:  # signal handlers work only in the main thread
        with suppress(NotImplementedError, RuntimeError, ValueError):
            asyncio.get_running_loop().add_signal_handler(SIGHUP, watcher.request_reload)
    try:
        yield
    finally:
        if handle_signals:
            with suppress(
                ValueError
            ):  # the loop prints a traceback for a signal while it is closed
                signal.set_wakeup_fd(-1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        registration.close()


@dataclass(slots=True)
class SettingsWatcher:
    app: OneTool
    registration: Registration
    on_change: Callable[[Examined], None]
    on_tick: Callable[[], None]
    generation: int  # of the last request to reload
    # Generations; None is a change.
    _requests: asyncio.Queue[int | None] = field(default_factory=asyncio.Queue)
    _limiter: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(1))
    _handled: tuple[Stamp, StoredSettings | None] | None = (
        None  # the last change, also if it was invalid
    )
    _examined: Examined | None = None  # the changed settings, until they are applied
    _times_applied: int = 0  # when they were read

    def request_reload(self) -> None:
        self._requests.put_nowait(self.generation)

    async def follow(self) -> None:
        """Handle changed settings and requests to reload until cancelled."""
        changes = self.app.changes
        changes.poll("settings", partial(self._run_in_thread, self._stamp_settings), settles=True)
        changes.poll(
            "reload",
            partial(self._run_in_thread, partial(read_generation, self.app.directories.user)),
        )
        async for _ in changes.watch("settings", "reload"):
            try:
                await self._handle_changes()
            except Exception as error:  # noqa: BLE001 - the next change may be readable
                self._log("settings.watch", "ERROR", f"cannot check for changed settings: {error}")

    async def tick(self) -> None:
        """Call the transport twice a second."""
        while True:
            try:
                self.on_tick()
            except Exception as error:  # noqa: BLE001 - the next one may succeed
                self._log("settings.watch", "ERROR", f"cannot check tokens: {error}")
            await asyncio.sleep(TICK_SECONDS)

    def _stamp_settings(self) -> object:
        return stamp_files(self.app.directories), EditHistory(self.app.directories.user).stamp

    async def _handle_changes(self) -> None:
        generation = await self._run_in_thread(partial(read_generation, self.app.directories.user))
        if generation > self.generation:
            self.generation = generation
            self.request_reload()
        if self.app.live_settings.reader.has_files:
            async with (
                self.app.live_settings.editing
            ):  # edits of this process are in effect afterwards
                await self._read_changed_settings()

    async def _read_changed_settings(self) -> None:
        """Read the settings if they are neither in effect nor the last that were read."""
        live = self.app.live_settings
        change = (
            await self._run_in_thread(partial(stamp_files, self.app.directories)),
            live.reader.get_stored(),
        )
        is_changed = change[0] != live.loaded.stamp or live.reader.is_outdated
        if is_changed and change != self._handled:
            self._handled = change
            self._times_applied = live.times_applied
            self._examined = await self._run_in_thread(live.reader.read)
            # Also if the settings are invalid and the reload will fail.
            self.on_change(self._examined)
            self._requests.put_nowait(None)

    # --- reloading --------------------------------------------------------------------------------

    async def reload_on_request(self) -> None:
        while True:
            generation = await self._requests.get()
            examined = None
            if generation is None:
                examined = self._examined
                self._examined = None
                if examined is None:  # two changes were applied at once
                    continue
            answer, is_ok = await self._reload(examined)
            if generation is not None:
                entry = replace(
                    self.registration.entry, generation=generation, is_ok=is_ok, answer=answer
                )
                await self._run_in_thread(partial(self.registration.update, entry))
            if is_ok:
                with suppress(Exception):  # failing servers are reported elsewhere
                    await self.app.discover()

    async def _reload(self, examined: Examined | None) -> tuple[str, bool]:
        live = self.app.live_settings
        try:
            async with live.editing:
                if examined is not None and live.times_applied != self._times_applied:
                    # An edit may have changed it.
                    examined = await self._run_in_thread(live.reader.read)
                answer = await live.apply(examined, unasked=examined is not None)
        except ToolError as error:
            self._log("settings.reload", "ERROR", f"reload failed, nothing changed: {error}")
            return str(error), False
        except Exception as error:  # noqa: BLE001 - the server must survive any content of its files
            self._log("settings.reload", "ERROR", f"reload failed, nothing changed: {error!r}")
            return f"internal error: {type(error).__name__}; see the log", False
        self._log("settings.reload", "INFO", answer)
        return "\n".join([answer, *(f"Note: {problem}" for problem in self.app.problems)]), True

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        """Run the function in a separate thread: the threads for tools may all be busy."""
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)

    def _log(self, event: str, level: str, text: str) -> None:
        self.app.log.event(event, level=level, text=text)
