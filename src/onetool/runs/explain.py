"""Error messages of failed runs: what failed, on which line, the calls made before, and a hint.

A model reads these texts to write its next attempt.
"""

import re
import sys
from collections.abc import Callable, Collection
from itertools import chain
from typing import TYPE_CHECKING

from onetool.core.names import MAX_LIST_CHARS, join_names, join_packs, nearest, python_name
from onetool.errors import ToolError
from onetool.runs.run_output import MadeCalls, RunOutput
from onetool.util.text import did_you_mean, quote
from onetool_child.json_types import JsonMapping

if TYPE_CHECKING:
    from onetool.core.registry import Registry

EXAMPLE = "Example: ot.search(query='what you want to do')"
MAX_CALLS_SHOWN = 20
MAX_SOURCE_CHARS = 200
MAX_NAME_CHARS = 100
MAX_MESSAGE_CHARS = 5000
MAX_TRACE_CHARS = 4000
MAX_SHAPE_CHARS = 1000
MIN_SCORE = 70
MAX_SCORE_DIFFERENCE = 10
MAX_MATCHES = 3
MAX_KEYS = 20
CONFINED = (
    "Code in a run has no network, no subprocesses and no files except in its scratch directory"
    " (the current directory). Call a tool instead: "
)
FIND_TOOL = "ot.search(query='what it is for') finds one."
FIND_OTHERS = "ot.search(query='what it is for') finds others."
StoreNames = Callable[[list[str]], str]  # stores names, and returns the call that reads them
IDENTIFIER = re.compile(r"[^\W\d]\w*")
NOT_CODE = f"A command is Python code. {EXAMPLE}"
UNKNOWN = "No pack or tool has this name, and variables do not persist between runs."
# Raised by Python if the code does something that is not allowed; a tool may raise the same for
# other reasons.
BY_CLASS = {
    "BlockingIOError": f"{CONFINED}{FIND_TOOL}",
    "ModuleNotFoundError": (
        "Only Python's standard library can be imported in a run. Use tools for the rest: "
        f"{FIND_TOOL}"
    ),
    "MemoryError": (
        "The run exceeded its memory limit, or is nested too deeply. Process less at once, or raise"
        " execution.memory_mb in onetool.yaml."
    ),
    "EOFError": "A run has no standard input. Put the text into the code: name = '...'",
}
# A tool that does what the code tried to do itself, and how to call it.
TOOL_CALLS = {
    **dict.fromkeys(
        ("FileNotFoundError", "PermissionError"),
        ("fs.read", "fs.read(path={file}) reads it, fs.write writes it"),
    ),
    **dict.fromkeys(
        ("URLError", "gaierror"), ("http.get", "http.get(url='...') or http.post(url='...')")
    ),
}
# Python's errors have no codes; only their messages distinguish these from others of their class.
BY_MESSAGE = {
    "SyntaxError: invalid syntax": NOT_CODE,
    "SyntaxError: f-string: (unmatched|expecting)": (
        "Hint: before Python 3.12, an f-string cannot contain its own kind "
        "of quotes; use the other kind: f\"{value['key']}\""
    ),
    "RuntimeError: can't start new thread": (
        "A run has memory for a few dozen threads. "
        "ot.parallel([function, ...]) calls tools concurrently and needs few."
    ),
    "TypeError: object .{1,100} can't be used in 'await' expression": (
        "Tools are plain functions: remove await."
    ),
}


def render_failure(
    error: JsonMapping,
    output: RunOutput,
    registry: "Registry",
    store_names: StoreNames,
    *,
    snippet: str,
    snippets: Collection[str],
) -> str:
    """Return the message for an error raised by code.

    `snippet` is the snippet that was run, `snippets` are all.

    If this is the error of the call that failed last, that call is not listed again.
    """
    listed = list(output.calls)
    failed_call = output.failed_call
    if (
        failed_call is not None
        and failed_call.message
        and failed_call.message in str(error.get("message"))
    ):
        del listed[failed_call.position]
    made = _list_calls(listed)
    lines = [_headline(error), *_locate(error, snippet), *indent_trace(error.get("trace")), *made]
    if error.get("hint"):
        return "\n".join([*lines, truncate(f"Hint: {error['hint']}", MAX_MESSAGE_CHARS)])
    hint = _find_hint(error, output.calls, registry, snippets, store_names)
    hint = None if snippet and hint == NOT_CODE else hint
    return "\n".join([*lines, hint] if hint else lines)


def render_error(error: ToolError, calls: MadeCalls) -> str:
    """Return the message for an error that prevented or ended a run."""
    lines = [f"{type(error).__name__}: {error.message}", *_list_calls(calls)]
    return "\n".join([*lines, f"Hint: {error.hint}"] if error.hint else lines)


def _headline(error: JsonMapping) -> str:
    kind = str(error.get("class") or "Error")
    message = str(error.get("message") or "")
    return kind if message in {"", kind} else truncate(f"{kind}: {message}", MAX_MESSAGE_CHARS)


def truncate(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[:max_chars]}… ({len(text)} characters)"


def _locate(error: JsonMapping, snippet: str) -> list[str]:
    if not error.get("line"):
        return []
    source = str(error.get("source") or "").strip()[:MAX_SOURCE_CHARS]
    place = (
        f"  line {error['line']} of {truncate(snippet, MAX_NAME_CHARS)}"
        if snippet
        else f"  line {error['line']}"
    )
    return [f"{place}: {source}" if source else place]


def indent_trace(trace: object) -> list[str]:
    """Return the lines that say where in its file a tool failed. Code may have forged them."""
    if not isinstance(trace, str):
        return []
    return [f"  {line}" for line in truncate(trace, MAX_TRACE_CHARS).splitlines()]


def _list_calls(calls: MadeCalls) -> list[str]:
    if not calls:
        return []
    listed = ", ".join(
        f"{truncate(name, MAX_NAME_CHARS)} ({outcome})"
        for name, outcome in calls[-MAX_CALLS_SHOWN:]
    )
    earlier = f"{len(calls) - MAX_CALLS_SHOWN} more, then " if len(calls) > MAX_CALLS_SHOWN else ""
    return [f"Calls already made: {earlier}{listed}"]


def _find_hint(
    error: JsonMapping,
    calls: MadeCalls,
    registry: "Registry",
    snippets: Collection[str],
    store_names: StoreNames,
) -> str | None:
    kind = str(error.get("class"))
    if kind == "NameError":  # that of a tool has no name here
        return (
            _hint_unknown_name(str(error["name"]), registry, snippets, store_names)
            if error.get("name")
            else None
        )
    if kind == "ToolNotFound" and isinstance(pack := error.get("unlisted_pack"), str):
        names = [f"{pack}.{name}" for name in sorted(registry.map_python_names(pack))]
        return f"Hint: {store_names(names)} lists all" if names else None
    if (hint := _hint_hidden_pack(error, registry)) is not None:
        return hint
    has_failed_call = any(outcome == ToolError.type for _, outcome in calls)
    if kind in BY_CLASS or kind in TOOL_CALLS:
        return (
            None
            if has_failed_call
            else BY_CLASS.get(kind) or _hint_tool(kind, error.get("file"), registry)
        )
    if (hint := _hint_value(kind, error)) is not None:
        return hint
    headline = _headline(error)
    return next((hint for pattern, hint in BY_MESSAGE.items() if re.match(pattern, headline)), None)


def _hint_tool(kind: str, file: object, registry: "Registry") -> str:
    """Return the call that does what the code may not do."""
    name, call = TOOL_CALLS[kind]
    tool = registry.get(name)
    if tool is None or not tool.enabled or ("{file}" in call and not isinstance(file, str)):
        return f"{CONFINED}{FIND_TOOL}"
    return f"{CONFINED}{call.format(file=quote(file))}; {FIND_OTHERS}"


def _hint_value(kind: str, error: JsonMapping) -> str | None:
    """Return what the value is whose attribute or subscript failed."""
    if kind == "AttributeError" and error.get("object") == "dict":
        return _hint_keys(str(error.get("name"))[:MAX_NAME_CHARS], error.get("keys"))
    shape = error.get("shape")
    return f"The value is {truncate(shape, MAX_SHAPE_CHARS)}" if isinstance(shape, str) else None


def _hint_keys(name: str, keys: object) -> str:
    """Return how to read a dict value that was used like an attribute. Keys may be forged."""
    shown_keys = (
        [str(key)[:MAX_NAME_CHARS] for key in keys[:MAX_KEYS]] if isinstance(keys, list) else []
    )
    if not shown_keys or name in shown_keys:
        return f"Use brackets to read a value of a dict: value[{name!r}]"
    return (
        f"A dict has no such attribute. Its keys are {join_names(shown_keys)}; use brackets:"
        f" value[{shown_keys[0]!r}]"
    )


# --- names ----------------------------------------------------------------------------------------


def find_suspects(error: JsonMapping) -> set[str]:
    """Return the names in an error that may be packs or hide one."""
    kind = str(error.get("class"))
    names = [error.get("name")]
    if kind in {"AttributeError", "UnboundLocalError"}:
        variables = error.get("variables")
        names = variables if isinstance(variables, list) else []
    elif kind not in {"ImportError", "ModuleNotFoundError", "NameError"}:
        return set()
    first = (str(name).partition(".")[0] for name in names)  # the package of a module
    return {name for name in first if name.isidentifier() and len(name) <= MAX_NAME_CHARS}


def _hint_hidden_pack(error: JsonMapping, registry: "Registry") -> str | None:
    """Return a hint if an import or a variable hides a pack."""
    kind = str(error.get("class"))
    for name in sorted(find_suspects(error)):
        tool = str(error.get("name") or "")
        if (
            kind == "ImportError"
        ):  # Python names only the module: use the word in the line that is a tool, or the last
            source = str(error.get("source"))[:MAX_SOURCE_CHARS]
            words = [word for word in IDENTIFIER.findall(source) if len(word) <= MAX_NAME_CHARS]
            tool = next(
                (word for word in words if word in registry.map_python_names(name)),
                words[-1] if words else "",
            )
        is_tool = tool in registry.map_python_names(name) or (
            not registry.is_pack(name) and name in registry.problems()
        )
        if kind == "ModuleNotFoundError" and (near := nearest(name, registry.all_packs())):
            return did_you_mean(near).strip()
        if kind == "ImportError" and is_tool:
            return (
                f"Hint: {tool} is a tool of the pack {name!r}; remove the import and call"
                f" {name}.{tool}()"
            )
        if kind == "ImportError" and registry.is_pack(name):
            tools = registry.map_python_names(name)
            return (
                f"Hint: the pack {name} has:"
                f" {join_names(list(tools))}.{did_you_mean(nearest(tool, list(tools)))}"
            )
        if kind == "AttributeError" and is_tool:
            what = "import" if error.get("object") == "module" else "variable"
            return f'Hint: the {what} hides the pack {name!r}; call ot.pack("{name}").{tool}()'
        if kind == "UnboundLocalError" and registry.is_pack(name):
            return (
                f"Hint: the local variable hides the pack {name!r}; rename it, or use"
                f' ot.pack("{name}")'
            )
    return None


def _hint_unknown_name(
    name: str, registry: "Registry", snippets: Collection[str], store_names: StoreNames
) -> str:
    """Return a hint with the closest names, then the available packs and tools."""
    packs = registry.all_packs()
    if name in packs:  # `eval` and `exec` look names up when they run
        return f'Hint: {name} is a pack; use ot.pack("{name}").tool(argument=value)'
    if name in sys.stdlib_module_names:
        return f"Hint: {name} is a module of the standard library; add: import {name}"
    tools = sorted(python_name(tool.name) for tool in registry if tool.enabled)
    stored = map(python_name, registry.nearest(name))
    near = _find_near(name, [*packs, *registry.aliases], [*tools, *stored], snippets)
    opening = did_you_mean(near).strip() or UNKNOWN
    names = [tool for tool in tools if not tool.startswith("ot.")]
    listed = ", ".join(names) or "none"
    if len(listed) > MAX_LIST_CHARS:
        listed = f"{join_names(names)}; {store_names(names)} lists all"
    listed_packs = join_packs(registry.enabled_packs())
    return f"{opening} Packs: {listed_packs}. Tools: {listed}. {EXAMPLE}. Call ot.help() for more."


def _find_near(
    name: str, packs: list[str], tools: list[str], snippets: Collection[str]
) -> list[str]:
    """Return the closest packs, aliases and tools. Tools are also matched without their pack."""
    from rapidfuzz import fuzz, process

    words = {snippet: f"${snippet}" for snippet in snippets}
    words.update(
        chain(((tool.rpartition(".")[2], tool) for tool in tools), zip(tools, tools, strict=True))
    )
    words.update(zip(packs, packs, strict=True))
    matches = process.extract(
        name, list(words), scorer=fuzz.ratio, limit=MAX_MATCHES, score_cutoff=MIN_SCORE
    )
    return list(
        dict.fromkeys(
            words[word]
            for word, score, _ in matches
            if score > matches[0][1] - MAX_SCORE_DIFFERENCE
        )
    )
