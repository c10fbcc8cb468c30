"""Two tables of calls with their expected values or errors: one for all transports, one for all
backends.

`TRANSPORTS` calls built-in tools, because only those exist on the command line; it is written for
an agent without any permission (`SETTINGS`). `BACKENDS` calls the small tools that `test_backends`
builds once for each backend.
"""

from dataclasses import dataclass, field
from typing import Any

from onetool.sources.builtin.help_text import OVERVIEW
from onetool.util.version import __version__


@dataclass(frozen=True)
class Call:
    name: str
    args: dict[str, Any] = field(default_factory=dict)
    value: Any = None
    error: str | None = None  # the type of the expected error, in place of a value

    def __str__(self) -> str:
        given = ", ".join(f"{key}={value!r}" for key, value in self.args.items())
        return f"{self.name}({given})"


SETTINGS: dict[str, Any] = {"agents": {"default": {"permissions": ["read"]}}}
HARD_TEXT = "ünï 😀 \"quoted\" 'it''s' \\n = {} $HOME\n\tline 2"

TRANSPORTS = (
    Call("ot.version", value=__version__),
    Call("ot.help", value=OVERVIEW),
    Call(
        "ot.tools",
        {"pattern": "machine.", "info": "list"},
        ["machine.cpu", "machine.disk", "machine.memory", "machine.now"],
    ),
    Call("ot.tools", {"p": "MACHINE.D", "i": "list"}, ["machine.disk"]),
    Call("ot.tools", {"pattern": HARD_TEXT}, []),
    Call(
        "ot.packs", {"pattern": "mach"}, [{"name": "machine", "source": "local", "tool_count": 4}]
    ),
    Call(
        "ot.packs",
        {"pattern": "1", "info": "full"},
        "no pack matches '1'; call ot.packs() to list all",
    ),
    Call("machine.dsk", error="not_found"),
    Call("nowhere.at_all", {"x": [1, {"y": None}]}, error="not_found"),
    Call("machine.memory", {"unit": "stone"}, error="validation_error"),
    Call("machine.now", {"utc": "perhaps"}, error="validation_error"),
    Call("machine.now", {"zone": 1}, error="validation_error"),
    Call("machine.now", {"utc": None}, error="validation_error"),
    Call("ot.tools", {"pattern": "a", "p": "b"}, error="validation_error"),
    Call("fs.write", {"path": "a.txt", "content": "a"}, error="permission_denied"),
    Call("fs.write", {"path": 1}, error="permission_denied"),  # before its arguments are validated
)

BACKENDS = (
    Call("echo", {"value": "text"}, "text"),
    Call("echo", {"value": None}, None),
    Call(
        "echo", {"value": {"deep": [1, 2.5, True, {"x": []}]}}, {"deep": [1, 2.5, True, {"x": []}]}
    ),
    Call("echo", {"value": HARD_TEXT}, HARD_TEXT),
    Call("echo", {"value": 2**70}, 2**70),
    Call("echo", {"v": 1}, 1),
    Call("add", {"left": 1, "right": 5}, 6),
    Call("add", {"left": 1}, 3),
    Call("add", {"l": 1, "r": 1}, 2),
    Call("add", {"left": "one"}, error="validation_error"),
    Call("add", {"left": True}, error="validation_error"),
    Call("add", {"right": 1}, error="validation_error"),
    Call("add", {"left": 1, "l": 2}, error="validation_error"),
    Call("add", {"left": 1, "third": 2}, error="validation_error"),
    Call("who", value=["helper", True]),
    Call("result", {"ok": True}, "fine"),
    Call("result", {"ok": False}, error="execution_error"),
    Call("fail", {"kind": "tool"}, error="execution_error"),
    Call("fail", {"kind": "timeout"}, error="timeout"),
    Call("fail", {"kind": "value"}, error="execution_error"),
    Call("guarded", value="allowed"),
    Call("forbidden", error="permission_denied"),
    Call("missing", error="not_found"),
)
