"""The audit log: calls that write, execute or use the network, with caller, arguments and outcome.

Two JSON lines per call: `call.started` before it is made, and `call` with the outcome. A call whose
first line cannot be written is not made. A change of stored tools or disabled tools likewise has
`change.started` and `change`. A rejected call is only a `call` line. Values of secrets are
redacted; long arguments are truncated. Calls beyond the share of their agent are counted in lines
`calls.counted` (`onetool.state.audit_records`). `onetool.util.logging` records every call, for
debugging.
"""

import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from itertools import takewhile
from math import inf
from typing import TYPE_CHECKING, Any

import anyio
from anyio.to_thread import run_sync as run_in_thread

from onetool.core.agents import required_permissions
from onetool.core.bus.events import CallFinished
from onetool.core.tool import Tool
from onetool.errors import SandboxDenied, error_type
from onetool.settings.load import Loaded
from onetool.state.audit_records import AuditFilter, AuditPage, AuditShares, read_page
from onetool.util.context import Permission, ToolContext, sort_permissions
from onetool.util.large_data import is_large, run_in_thread_if
from onetool.util.problem import is_full
from onetool.util.redact import Redactor
from onetool_child.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from onetool.state.file_kinds import AuditFile
    from onetool.state.storage import State

AUDITED_PERMISSIONS = frozenset({Permission.WRITE, Permission.EXEC, Permission.NETWORK})
MAX_ARGUMENT_CHARS = 1000
MAX_REFUSED_SECONDS = (
    0.02  # of processor time for the arguments of a rejected call, which delays others
)
MAX_NAME_CHARS = 200  # of an argument, or of what was changed
MAX_ARGUMENTS_BYTES = 14 << 10  # of arguments or names, as JSON; the rest of a record is short
MAX_NAMES = 100  # of changed tools
MAX_DIFFERENCE_CHARS = 12_000
SLOW_WRITE_SECONDS = 0.005  # after a slower write, the next one is done in a thread
Facts = JsonObject
COUNTED: Facts = {
    "is_counted": True
}  # instead of the facts of a call beyond the share of its agent


def open_audit_log(loaded: Loaded, state: "State") -> "AuditLog":
    """Return the configured audit log. The caller closes it."""
    settings = loaded.settings.audit
    redact = Redactor(loaded.secret_values)
    audit = AuditLog(state.audit(loaded.audit_file, redact), redact)
    audit.configure(redact, settings.max_bytes, settings.keep)
    return audit


class AuditLog:
    """The audit log, whose records are stored."""

    def __init__(self, records: "AuditFile", redact: Redactor) -> None:
        self._records = records
        self._redact = redact
        self._shares = AuditShares()
        self._is_slow = records.is_slow
        self.place = records.place
        self.on_record: Callable[[], object] = lambda: (
            None
        )  # called after each outcome, from any thread

    def configure(self, redact: Redactor, max_bytes: int, keep: int) -> None:
        self._redact = redact
        self._records.configure("INFO", redact)
        self._records.max_bytes = max_bytes
        self._records.keep = keep
        self._shares.configure(max_bytes * (keep + 1))

    async def admit(self, tool: Tool, args: JsonMapping, context: ToolContext) -> Facts | None:
        """Record that the call is about to be made.

        Raise AuditUnavailable if the system does not accept the record.

        A write to the page cache takes about 10 µs, less than a thread switch. A thread is used if
        writes are slow.
        """
        if not _is_audited(tool, args):
            return None
        shown = await run_in_thread_if(is_large(args), partial(self._render_arguments, tool, args))
        facts = _describe_call(tool, args, context, shown)
        if not self._shares.take(facts):
            return COUNTED
        try:
            await self._write_first("call.started", facts)
        except OSError as error:
            message = (
                f"{tool.name} was not called: cannot write the audit log {self.place}:"
                f" {error.strerror or error}"
            )
            raise self._records.make_refusal(message) from None
        return facts

    @asynccontextmanager
    async def changing(
        self,
        action: str,
        names: Iterable[str],
        *,
        actor: str,
        transport: str,
        agent: str = "",
        frees_space: bool = False,
        difference: str = "",
    ) -> AsyncIterator[Facts]:
        """Record a change of tools or settings before it is made, and its outcome.

        It has names only, never values, except for the difference of settings, which contains no
        secrets. The block may add to the yielded facts. On a full disk, a change that frees space
        is made anyway. Changes by an `agent`, and not by a person, beyond its share are counted
        like its calls.
        """
        facts: Facts = {
            "action": action,
            "names": list(names),
            "actor": actor,
            "transport": transport,
        }
        if difference:
            facts["difference"] = self._redact(difference)[:MAX_DIFFERENCE_CHARS]
        is_recorded = not agent or self._shares.take({**_limit_names(facts), "agent": agent})
        try:
            if is_recorded:
                await self._write_first("change.started", _limit_names(facts))
        except OSError as error:
            failure = self._records.make_error(error)
            if not (frees_space and is_full(failure)):
                raise failure from None
        outcome = "cancelled"
        try:
            yield facts
            outcome = "ok"
        except Exception as error:
            outcome = (
                getattr(error, "code", None)
                or getattr(error, "fields", {}).get("code")
                or error_type(error)
            )
            raise
        finally:
            if is_recorded:
                self._event("change", **_limit_names(facts), outcome=outcome)
            else:
                self._shares.count(agent, action, is_refused=outcome != "ok")
                self._summarize()

    async def _write_first(self, name: str, facts: Facts) -> None:
        """Write a line before something is done. Raise OSError if the system does not accept it."""
        write = partial(self._records.write, name, **facts)
        started = time.perf_counter()
        seconds = self._records.write_seconds
        try:
            if self._is_slow:
                with anyio.fail_after(seconds):
                    await run_in_thread(write, abandon_on_cancel=True)
            else:
                write()
        except TimeoutError:
            raise TimeoutError(
                f"the {self._records.device} did not respond within {seconds:g} s"
            ) from None
        finally:
            self._is_slow = (
                self._records.is_slow or time.perf_counter() - started > SLOW_WRITE_SECONDS
            )

    def finish(self, event: CallFinished) -> None:
        """Record the outcome of a call, or that it was rejected."""
        tool = event.tool
        args = event.args or {}
        if event.is_allowed is None or tool is None or not _is_audited(tool, args):
            return
        facts = event.admitted or self._describe_refused(tool, args, event.context)
        is_allowed = event.is_allowed and event.error != SandboxDenied.type
        if facts == COUNTED or not (event.admitted or self._shares.take(facts)):
            self._shares.count(event.context.agent_id, tool.name, is_refused=not is_allowed)
        else:
            self._event(
                "call",
                **facts,
                decision="allowed" if is_allowed else "refused",
                outcome=event.error or "ok",
                duration_ms=round(event.seconds * 1000, 3),
            )
        self._summarize()

    def _summarize(self, *, is_last: bool = False) -> None:
        for summary in self._shares.take_summaries(is_last=is_last):
            self._event("calls.counted", **summary, outcome="counted")

    def _describe_refused(self, tool: Tool, args: JsonMapping, context: ToolContext) -> Facts:
        return _describe_call(
            tool, args, context, self._render_arguments(tool, args, MAX_REFUSED_SECONDS)
        )

    def _render_arguments(self, tool: Tool, args: JsonMapping, max_seconds: float = inf) -> Facts:
        """Return the arguments that fit a record, declared ones first."""
        rendered: Facts = {}
        end = time.thread_time() + max_seconds
        bytes_left = MAX_ARGUMENTS_BYTES
        names = sorted(args, key=lambda name: name not in tool.input.properties)
        for number, name in enumerate(names):
            rest = {"...": f"{len(names) - number} more arguments"}
            if time.thread_time() > end:
                return rendered | rest
            short_name = self._redact.redact_prefix(name, MAX_NAME_CHARS)
            value = self._render_argument(args[name])
            bytes_left -= len(json.dumps([short_name, value]))
            if bytes_left < 0:
                return rendered | rest
            rendered[short_name] = value
        return rendered

    def _render_argument(self, value: Any) -> Any:
        """Return the start of a value, as JSON if it is data.

        Secrets are redacted before truncating and escaping.
        """
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            start = self._redact.redact_prefix(value, MAX_ARGUMENT_CHARS)
            return (
                start if len(value) <= MAX_ARGUMENT_CHARS else f"{start}… ({len(value)} characters)"
            )
        try:
            text = json.dumps(
                self._clean(value, _CharacterBudget(MAX_ARGUMENT_CHARS)), ensure_ascii=False
            )
        except Exception:  # noqa: BLE001 - cycles, too much depth, errors in methods of the object
            return f"(a {type(value).__name__} that cannot be serialized)"
        return text if len(text) <= MAX_ARGUMENT_CHARS else f"{text[:MAX_ARGUMENT_CHARS]}…"

    def _clean(self, value: Any, budget: "_CharacterBudget") -> Any:
        budget.take(1)
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, Mapping):
            items = takewhile(budget.is_left, value.items())
            return {self._clean(str(key), budget): self._clean(item, budget) for key, item in items}
        if isinstance(value, list | tuple | set | frozenset):
            return [self._clean(item, budget) for item in takewhile(budget.is_left, value)]
        text = self._redact.redact_prefix(str(value), MAX_ARGUMENT_CHARS)
        budget.take(len(text))
        return text

    def change(self, action: str, names: Iterable[str], *, actor: str, transport: str) -> None:
        """Record a change of stored tools. Names only: values may be credentials."""
        facts = {"action": action, "names": list(names), "actor": actor, "transport": transport}
        self._event("change", **_limit_names(facts), outcome="ok")

    async def record_decision(self, *, by: str, **facts: Any) -> None:
        """Record the decision of a person about calls before it is applied.

        Raise StorageError if that fails.
        """
        try:
            await self._write_first("decision", {"actor": by, **facts})
        except OSError as error:
            raise self._records.make_error(error) from None
        self.on_record()

    def _event(self, name: str, **fields: Any) -> None:
        self._records.event(name, **fields)
        self.on_record()

    def list_page(
        self, criteria: AuditFilter, position: str | None = None, size: int = 100
    ) -> AuditPage:
        """Return records after a position, newest first. Blocks on disk access."""
        return read_page(self._records.read(position), criteria, size)

    @property
    def problem(self) -> str | None:
        return self._records.problem

    def close(self) -> None:
        self._summarize(is_last=True)
        self._records.close()


class _CharacterBudget:
    """The remaining number of characters for an argument. The rest of the argument is not read."""

    def __init__(self, characters: int) -> None:
        self._characters = characters

    def take(self, characters: int) -> None:
        self._characters -= characters

    def is_left(self, _item: object) -> bool:
        return self._characters >= 0


def _limit_names(facts: Facts) -> Facts:
    """Return the facts with the first names, and how many others there are."""
    names = [name[:MAX_NAME_CHARS] for name in facts["names"][:MAX_NAMES]]
    while len(json.dumps(names)) > MAX_ARGUMENTS_BYTES:
        names.pop()
    left = len(facts["names"]) - len(names)
    return {**facts, "names": [*names, f"... and {left:,} more"] if left else names}


def _describe_call(tool: Tool, args: JsonMapping, context: ToolContext, shown: Facts) -> Facts:
    """Return the facts about a call; `shown` are its arguments as they are recorded."""
    return {
        "agent": context.agent_id,
        **({"actor": context.actor} if context.actor else {}),
        "tool": tool.name,
        **({"account": context.account} if context.account else {}),
        "permissions": sort_permissions(required_permissions(tool, args)),
        "arguments": shown,
        "correlation_id": context.correlation_id,
    }


def _is_audited(tool: Tool, args: JsonMapping) -> bool:
    return tool.is_audited or bool(required_permissions(tool, args) & AUDITED_PERMISSIONS)
