"""The words of a failed run: what went wrong, on which line, what was done before, what to do next.

These texts are the product: a model reads them and writes the next attempt. Nothing here decides anything.
"""

import re
from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any

from onetool.errors import ToolError
from onetool.registry import Registry, shown

EXAMPLE = "Example: ot.search(query='what you want to do')"
CALLS_SHOWN = 20
SOURCE_SHOWN = 200
NAME_SHOWN = 100
MESSAGE_SHOWN = 5000
CLOSE_ENOUGH, ABOUT_AS_NEAR, MOST_NEAR = 70, 10, 3
CONFINED = (
    "Code in a run can compute, but has no network, no programs and no files except in its own scratch folder (the "
    "current one). Call a tool for that: ot.search(query='what it is for') finds one."
)
IDENTIFIER = re.compile(r"[^\W\d]\w*")
NOT_CODE = f"A command is Python code. {EXAMPLE}"
UNKNOWN = "No pack or tool has this name, and the variables of earlier runs are gone: each run starts anew."
# What Python raises when the code itself tries what is not allowed; a tool may raise the same for reasons of its own.
BY_CLASS = {
    **dict.fromkeys(("PermissionError", "BlockingIOError", "FileNotFoundError", "URLError", "gaierror"), CONFINED),
    "ModuleNotFoundError": "Only Python's standard library can be imported in a run. Tools do the rest: "
    "ot.search(query='what it is for') finds one.",
    "MemoryError": "The run needed more memory than it may have, or is nested too deeply. Do less at once, or raise "
    "execution.memory_mb in onetool.yaml.",
    "EOFError": "Nobody can type into a run. Put the text into the code: name = '...'",
}
# Python's own errors have neither codes nor hints: only their words tell these apart from others of their class.
OF_PYTHON = {
    "SyntaxError: invalid syntax": NOT_CODE,
    "RuntimeError: can't start new thread": "A run has memory for some dozens of threads at a time. "
    "ot.parallel([function, ...]) calls tools side by side and needs few.",
    "TypeError: object .{1,100} can't be used in 'await' expression": "Tools are plain functions: leave out await.",
}


def failure(
    error: Mapping[str, Any],
    calls: list[tuple[str, str]],
    registry: Registry,
    snippet: str = "",
    snippets: Collection[str] = (),
) -> str:
    """What the code of a run raised; `snippet` is the one that the run was, `snippets` are all there are."""
    lines = [_headline(error), *_place(error, snippet), *_calls_before(calls)]
    if error.get("hint"):
        return "\n".join([*lines, shortened(f"Hint: {error['hint']}", MESSAGE_SHOWN)])
    hint = _hint(error, calls, registry, snippets)
    hint = None if snippet and hint == NOT_CODE else hint
    return "\n".join([*lines, hint] if hint else lines)


def refusal(error: ToolError, calls: list[tuple[str, str]]) -> str:
    """What kept a run from starting, or ended it from outside."""
    lines = [f"{type(error).__name__}: {error.message}", *_calls_before(calls)]
    return "\n".join([*lines, f"Hint: {error.hint}"] if error.hint else lines)


def _headline(error: Mapping[str, Any]) -> str:
    kind, message = str(error.get("class") or "Error"), str(error.get("message") or "")
    return kind if message in {"", kind} else shortened(f"{kind}: {message}", MESSAGE_SHOWN)


def shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def _place(error: Mapping[str, Any], snippet: str) -> list[str]:
    if not error.get("line"):
        return []
    source = str(error.get("source") or "").strip()[:SOURCE_SHOWN]
    place = f"  line {error['line']} of {shortened(snippet, NAME_SHOWN)}" if snippet else f"  line {error['line']}"
    return [f"{place}: {source}" if source else place]


def _calls_before(calls: list[tuple[str, str]]) -> list[str]:
    if not calls:
        return []
    listed = ", ".join(f"{shortened(name, NAME_SHOWN)} ({outcome})" for name, outcome in calls[-CALLS_SHOWN:])
    earlier = f"{len(calls) - CALLS_SHOWN} more, then " if len(calls) > CALLS_SHOWN else ""
    return [f"Calls already made: {earlier}{listed}"]


def _hint(
    error: Mapping[str, Any], calls: list[tuple[str, str]], registry: Registry, snippets: Collection[str]
) -> str | None:
    kind = str(error.get("class"))
    if kind == "NameError":
        return _unknown_name(str(error.get("name") or ""), registry, snippets)
    if (hint := _hidden_pack(error, registry)) is not None:
        return hint
    a_tool_failed = any(outcome == ToolError.type for _, outcome in calls)
    if kind in BY_CLASS:
        return None if a_tool_failed else BY_CLASS[kind]
    if kind == "AttributeError" and error.get("object") == "dict":
        return f"The values of a dict are read with brackets: value[{str(error.get('name'))[:NAME_SHOWN]!r}]"
    headline = _headline(error)
    return next((hint for words, hint in OF_PYTHON.items() if re.match(words, headline)), None)


# --- names ------------------------------------------------------------------------------------------------------------


def suspects(error: Mapping[str, Any]) -> set[str]:
    """Return the names in an error that may be packs: unknown or imported ones, or variables that hide one."""
    kind, names = str(error.get("class")), [error.get("name")]
    if kind in {"AttributeError", "UnboundLocalError"}:
        variables = error.get("variables")
        names = variables if isinstance(variables, list) else []
    elif kind not in {"ImportError", "ModuleNotFoundError", "NameError"}:
        return set()
    first = (str(name).partition(".")[0] for name in names)  # of a module, the package
    return {name for name in first if name.isidentifier() and len(name) <= NAME_SHOWN}


def _hidden_pack(error: Mapping[str, Any], registry: Registry) -> str | None:
    """Return a hint if the code meant a pack and got a module, or a variable of its own."""
    kind = str(error.get("class"))
    for name in sorted(suspects(error)):
        tool = str(error.get("name") or "")
        if kind == "ImportError":  # Python tells only the module: of the words in the line, the tool or the last
            source = str(error.get("source"))[:SOURCE_SHOWN]
            words = [word for word in IDENTIFIER.findall(source) if len(word) <= NAME_SHOWN]
            tool = next((word for word in words if word in registry.in_pack(name)), words[-1] if words else "")
        is_tool = tool in registry.in_pack(name) or (not registry.is_pack(name) and name in registry.problems())
        if kind == "ModuleNotFoundError" and registry.is_pack(name):
            return f"Hint: {name} is a pack, not a module; leave the import out and call {name}.tool(argument=value)"
        if kind == "ImportError" and is_tool:
            return f"Hint: {tool} is a tool of the pack {name!r}; leave the import out and call {name}.{tool}()"
        if kind == "AttributeError" and is_tool:
            what = "import" if error.get("object") == "module" else "variable"
            return f'Hint: the {what} hides the pack {name!r}; call ot.pack("{name}").{tool}()'
        if kind == "UnboundLocalError" and registry.is_pack(name):
            return f'Hint: the local variable hides the pack {name!r}; rename it, or use ot.pack("{name}")'
    return None


def _unknown_name(name: str, registry: Registry, snippets: Collection[str]) -> str:
    """Return the nearest names, then what there is."""
    packs = registry.all_packs()
    if name in packs:  # `eval` and `exec` look names up when they run
        return f'Hint: {name} is a pack; use ot.pack("{name}").tool(argument=value)'
    tools = sorted(tool.name for tool in registry if tool.enabled)
    near = _near(name, [*packs, *registry.aliases], [*tools, *registry.nearest(name)], snippets)
    start = f"Did you mean {' or '.join(near)}?" if near else UNKNOWN
    others = shown([tool for tool in tools if not tool.startswith("ot.")])
    return f"{start} Packs: {shown(packs)}. Tools: {others}. Type ot.help() for more."


def _near(name: str, packs: list[str], tools: list[str], snippets: Collection[str]) -> list[str]:
    """The packs, aliases and tools that are about as near as the nearest. Code may have left a tool's pack out."""
    from rapidfuzz import fuzz, process

    words = {snippet: f"${snippet}" for snippet in snippets}
    words.update(chain(((tool.rpartition(".")[2], tool) for tool in tools), zip(tools, tools, strict=True)))
    words.update(zip(packs, packs, strict=True))
    found = process.extract(name, list(words), scorer=fuzz.ratio, limit=MOST_NEAR, score_cutoff=CLOSE_ENOUGH)
    return list(dict.fromkeys(words[word] for word, score, _ in found if score > found[0][1] - ABOUT_AS_NEAR))
