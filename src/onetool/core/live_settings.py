"""The settings in effect: they are read at the start, and again for reloads and edits."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from anyio.to_thread import run_sync as run_in_thread

from onetool.errors import ToolError
from onetool.settings.contents import SettingsContents, stamp_files
from onetool.settings.load import Examined, Loaded
from onetool.settings.paths import extension_files
from onetool.settings.settings_reader import SettingsReader
from onetool.state.storage import State
from onetool.util.tasks import SharedFlight

STORE_SECONDS = 5.0  # to wait for the database when the application is opened
RELOADED = "OK: Configuration reloaded"


class LiveSettings:
    """The settings in effect.

    `configure` applies new ones to the application, and `get_state` returns its state.

    `discover` looks for the tools of new settings.
    """

    def __init__(
        self,
        reader: SettingsReader,
        configure: Callable[[Loaded], None],
        get_state: Callable[[], State],
        discover: Callable[[], Awaitable[None]],
    ) -> None:
        self.reader = reader
        self.editing = asyncio.Lock()  # held by an edit until it is in effect here
        self.times_applied = 0
        self._configure = configure
        self._get_state = get_state
        self._discover = discover
        self._reloading: SharedFlight[str] = SharedFlight()

    async def open(self) -> None:
        """Read the settings and apply them; if they are invalid, apply the defaults."""
        await self._put_into_effect(self.reader.read_first)

    async def reload(self) -> str:
        """Reload the settings and the tools, as an agent may request it.

        Raise, and change nothing, if the settings are invalid or would be left out.
        """
        key: object = (
            object()
        )  # only a program knows whether the settings that it passes have changed
        if self.reader.has_files:
            key = await run_in_thread(self._stamp_sources), self.reader.get_stored()
        return await self._reloading.join(self._reload_all, key)

    def _stamp_sources(self) -> object:
        """Return what changes if a reload has anything to read or to reject."""
        directories = self.loaded.directories
        tools = directories.pack_directories(self.loaded.settings.tools_dir)
        return tuple(stamp_files(directories).items()), tuple(map(extension_files, tools))

    async def _reload_all(self) -> str:
        answer = await self.apply(unasked=True)
        await self._discover()
        return answer

    async def apply(self, examined: Examined | None = None, *, unasked: bool = False) -> str:
        """Apply the settings as they were just read, or read them now.

        With `unasked`, when no person requested it, raise if a settings file would be dropped: the
        project directory lost its trust, or the file is gone.
        """
        await self._put_into_effect(
            partial(self.reader.reread, self.loaded, examined, unasked=unasked)
        )
        return RELOADED

    async def apply_edit(self, after: Loaded, files: SettingsContents) -> None:
        """Apply an edit that this process has validated and written. The files are not read again."""
        await self._put_into_effect(partial(self.reader.accept_edit, after, files, self.loaded))

    async def _put_into_effect(self, read: Callable[[], Loaded]) -> None:
        loaded = await run_in_thread(read)
        self._configure(loaded)
        self.loaded = loaded
        self.times_applied += 1
        await self._join_store()

    async def _join_store(self) -> None:
        """Wait for a store that was just opened, and apply the settings there."""
        state = self._get_state()
        is_new = self.reader.join(state.settings, self.loaded.settings.store or "")
        if not is_new:
            return
        await run_in_thread(state.wait, STORE_SECONDS)
        if self.reader.is_outdated:
            with suppress(ToolError):  # until the files are valid again, no agent may call anything
                await self.apply()

    async def is_current(self) -> bool:
        """Return whether the settings in effect are valid, and are those that the files have now."""
        try:
            loaded = await run_in_thread(partial(self.reader.reread, self.loaded, unasked=False))
        except ToolError:
            return False
        return loaded == self.loaded
