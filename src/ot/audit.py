"""The audit log: who called what that writes, executes or goes out, with which arguments, and what became of it.

One JSON line a call, appended and never rewritten or rotated. Values of secrets are taken out; long arguments are cut.
What every call was, for whoever looks for a fault, is in `ot.logging`.
"""

import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from ot.bus.authorise import in_order, required
from ot.bus.bus import Call
from ot.context import Permission
from ot.errors import SandboxDenied
from ot.logging import Log
from ot.redact import Redactor

WATCHED = frozenset({Permission.WRITE, Permission.EXEC, Permission.NETWORK})
LONGEST = 1000  # characters of one argument


class Audit:
    def __init__(self, file: Path, redact: Redactor) -> None:
        self.file, self._redact = file, redact
        self._log = Log(file, "INFO", redact, rotates=False, gathers=False)

    def use(self, redact: Redactor) -> None:
        self._redact = redact
        self._log.use("INFO", redact)

    def call(self, call: Call) -> None:
        if call.tool is None or call.is_allowed is None:
            return
        needed = required(call.tool, call.args)
        if needed & WATCHED:
            self._log.event(
                "call",
                agent=call.context.agent_id,
                tool=call.tool.name,
                permissions=in_order(needed),
                arguments={name: self._shown(value) for name, value in call.args.items()},
                decision="allowed" if call.is_allowed and call.error != SandboxDenied.type else "refused",
                outcome=call.error or "ok",
                duration_ms=round(call.seconds * 1000, 3),
                correlation_id=call.context.correlation_id,
            )

    def _shown(self, value: Any) -> Any:
        """Its beginning, data as JSON writes it. Secrets are taken out before anything is cut or escaped."""
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            start = self._redact.beginning(value, LONGEST)
            return start if len(value) <= LONGEST else f"{start}… ({len(value)} characters)"
        try:
            text = json.dumps(self._clean(value), ensure_ascii=False)
        except Exception:  # noqa: BLE001 - circles, more depth than can be written, what the methods of an object raise
            return f"(a {type(value).__name__} that cannot be shown)"
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"

    def _clean(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, Mapping):
            return {self._clean(str(key)): self._clean(item) for key, item in islice(value.items(), LONGEST)}
        if isinstance(value, list | tuple | set | frozenset):
            return [self._clean(item) for item in islice(value, LONGEST)]
        return self._redact.beginning(str(value), LONGEST)

    @property
    def problem(self) -> str | None:
        return self._log.problem and self._log.problem.replace("the log", f"the audit log {self.file}")

    def close(self) -> None:
        self._log.close()
