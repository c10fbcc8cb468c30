"""The contexts of calls: what a tool may do for an agent, and how it reaches the application and the client."""

from functools import partial
from pathlib import Path

from onetool.config.model import Settings
from onetool.core.agents import Agents
from onetool.core.bus.bus import ToolBus
from onetool.core.context import Caller, CallGates, RunGate, ToolContext
from onetool.logging import Log
from onetool.runner.run_output import ClientChannel, RunOutput
from onetool.state.storage import MediaStorage
from onetool.util.redact import Redactor
from onetool_child.json_types import JsonMapping

LOG_LEVELS = {"debug": "DEBUG", "info": "INFO", "notice": "INFO", "warning": "WARNING"}  # of MCP; others are errors


class Contexts:
    """Makes contexts. `system` is the application, as `onetool.core.system` describes it."""

    def __init__(self, bus: ToolBus, agents: Agents, system: object) -> None:
        self._bus = bus
        self._agents = agents
        self._system = system

    def configure(self, settings: Settings, working_dir: Path, media: MediaStorage, redact: Redactor, log: Log) -> None:
        self._settings = settings
        self._working_dir = working_dir
        self._media = media
        self._redact = redact
        self._log = log

    def make(
        self,
        caller: Caller,
        gate: RunGate | CallGates,
        correlation_id: str,
        output: RunOutput | None = None,
        meta: JsonMapping | None = None,
    ) -> ToolContext:
        """Return the context for the calls of a gate. `meta` is the metadata of the request."""
        self._bus.registry.apply_switches()
        channel = output.channel if output else ClientChannel()
        media = self._media
        return ToolContext(
            **self._agents.context_fields(caller.agent),
            working_dir=self._working_dir,
            correlation_id=correlation_id,
            gate=gate,
            bus=self._bus,
            system=self._system,
            on_progress=partial(self._report_progress, output) if output else None,
            on_log=partial(self._log_message, channel),
            on_ask=channel.ask,
            get_settings=self._get_pack_settings,
            store_media=lambda data, mime_type: media.put(data, mime_type, caller.agent, caller.token_id),
            on_foreign_value=output.record_foreign if output else None,
            is_untrusted=(lambda: output.is_untrusted) if output else None,
            notice=output.notify if output else None,
            ask_client=channel.ask_client,
            metadata={"_meta": meta} if meta else {},
            caller=caller,
        )

    def _get_pack_settings(self, pack: str) -> JsonMapping:
        settings = self._settings.tools.get(pack)
        return settings.options if settings is not None else {}

    def _report_progress(self, output: RunOutput, text: str, *numbers: float | None) -> None:
        output.report_progress(self._redact(text), *numbers)

    def _log_message(self, channel: ClientChannel, message: str, level: str) -> None:
        self._log.event("tool.log", level=LOG_LEVELS.get(level, "ERROR"), text=message)
        if channel.log is not None:
            channel.log(message, level)
