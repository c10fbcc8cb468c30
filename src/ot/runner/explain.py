"""The words of a failed run: what went wrong, on which line, what was done before, what to do next.

These texts are the product: a model reads them and writes the next attempt. Nothing here decides anything.
"""

from collections.abc import Mapping
from typing import Any

from ot.errors import ToolError
from ot.registry import Registry, nearest, shown

EXAMPLE = "Example: ot.tools()"
CALLS_SHOWN = 20
SOURCE_SHOWN = 200
NAME_SHOWN = 100
MESSAGE_SHOWN = 5000
CONFINED = (
    "Code in a run can compute, but has no network, no programs and no files except in its own scratch folder (the "
    "current one). Call a tool for that: ot.tools() lists them."
)


def failure(error: Mapping[str, Any], calls: list[tuple[str, str]], registry: Registry) -> str:
    """What the code of a run raised."""
    lines = [_headline(error), *_place(error), *_calls_before(calls)]
    hint = _hint(error, registry)
    return "\n".join([*lines, hint] if hint else lines)


def refusal(error: ToolError, calls: list[tuple[str, str]]) -> str:
    """What kept a run from starting, or ended it from outside."""
    return "\n".join([f"{type(error).__name__}: {error.message}", *_calls_before(calls)])


def _headline(error: Mapping[str, Any]) -> str:
    kind, message = str(error.get("class") or "Error"), str(error.get("message") or "")
    message = message.partition(" (<run>")[0] if kind in SYNTAX else message
    return kind if message in {"", kind} else shortened(f"{kind}: {message}", MESSAGE_SHOWN)


def shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def _place(error: Mapping[str, Any]) -> list[str]:
    if not error.get("line"):
        return []
    source = str(error.get("source") or "").strip()[:SOURCE_SHOWN]
    return [f"  line {error['line']}: {source}" if source else f"  line {error['line']}"]


def _calls_before(calls: list[tuple[str, str]]) -> list[str]:
    if not calls:
        return []
    listed = ", ".join(f"{shortened(name, NAME_SHOWN)} ({outcome})" for name, outcome in calls[-CALLS_SHOWN:])
    earlier = f"{len(calls) - CALLS_SHOWN} more, then " if len(calls) > CALLS_SHOWN else ""
    return [f"Calls already made: {earlier}{listed}"]


def _hint(error: Mapping[str, Any], registry: Registry) -> str | None:
    match error.get("class"):
        case "NameError":
            return _unknown_name(str(error.get("name") or ""), registry)
        case "ModuleNotFoundError":
            return f"Only Python's standard library can be imported in a run. For the rest there are tools: {EXAMPLE}"
        case "PermissionError" | "BlockingIOError":
            return CONFINED
        case "MemoryError":
            return (
                "The run needed more memory than execution.memory_mb allows, or is nested too deeply: do less at once."
            )
        case "ToolTimeout":
            return "Do less in one run, or raise execution.timeout in onetool.yaml."
    return None


def _unknown_name(name: str, registry: Registry) -> str:
    """Nearest names first, then what there is."""
    known = [*registry.packs(), *registry.aliases, *registry.names()]
    near = nearest(name, known) if name else []
    suggestion = f"Did you mean {' or '.join(near)}? " if near else ""
    tools = [name for name in registry.names() if not name.startswith("ot.")]
    return f"{suggestion}Packs: {shown(registry.packs())}. Tools: {shown(tools)}. Type ot.help() for more."


SYNTAX = {"SyntaxError", "IndentationError", "TabError"}
