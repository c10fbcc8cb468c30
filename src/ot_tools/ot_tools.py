"""The `ot` pack: what a model asks OneTool about itself. Everything comes through the context.

All results are plain data, or text where a reader is meant; how they are shown is the runner's business.
"""

from collections.abc import Iterable
from typing import Any, Literal

from ot.context import System, ToolContext
from ot.errors import ToolError
from ot.registry import Registry, nearest, shown
from ot.signature import arguments, signature
from ot.tool import Tool, tool
from ot.version import __version__

__all__ = ["health", "help", "packs", "reload", "tools", "version"]

Info = Literal["list", "min", "full"]
DOC_SLUGS = {
    "brave": "brave-search",
    "code": "code-search",
    "db": "database",
    "ground": "grounding-search",
    "llm": "transform",
    "web": "web-fetch",
}
OVERVIEW = """\
OneTool: write Python, call tools as pack.tool(argument=value). The value of the last line is the answer.

Find tools:
  ot.tools()                      all tools with a line each
  ot.tools(pattern="disk")        tools whose name has "disk" in it
  ot.packs()                      the packs that tools come in
  ot.help(query="machine.disk")   all about one tool; also for a pack, an alias, or words to search for
  ot.health()                     what is running, and what is wrong

How much you see: info="list" (names), info="min" (the default, a line each), info="full" (everything).

Call tools:
  machine.disk()                                          one call
  [ot.call(name) for name in ("machine.cpu", "machine.disk")]   by name, in a loop
  {"disk": machine.disk(), "memory": machine.memory()}    several, one answer

Tips: argument names may be shortened (p= for pattern=). Filter and combine in code, and return only what you need.
Set __format__ to "json", "json_h", "yml", "yml_h" or "raw" to choose how the answer is written.\
"""


@tool()
async def version() -> str:
    """The version of OneTool.

    Example:
        ot.version()
    """
    return __version__


@tool()
async def health(context: ToolContext) -> dict[str, Any]:
    """How OneTool and its parts are doing right now: tools, isolation of code, problems found.

    Example:
        ot.health()
    """
    return await _system(context).health()


@tool()
async def reload(context: ToolContext) -> str:
    """Read all configuration again. Where the new one is wrong, the old one stays in force.

    Example:
        ot.reload()
    """
    return await _system(context).reload()


@tool()
async def tools(context: ToolContext, pattern: str = "", info: Info = "min") -> list[Any]:
    """List tools, all or those whose name contains the pattern.

    Args:
        pattern: Part of a name, in any case.
        info: "list" for names, "min" for a line each, "full" for signatures and arguments.

    Example:
        ot.tools(pattern="disk", info="full")
    """
    found = _matching(_registry(context), pattern)
    if info == "list":
        return [entry.name for entry in found]
    describe = _full if info == "full" else _brief
    return [describe(entry) for entry in found]


@tool()
async def packs(context: ToolContext, pattern: str = "", info: Info = "min") -> list[Any] | str:
    """List packs, all or those whose name contains the pattern.

    Args:
        pattern: Part of a name, in any case.
        info: "list" for names, "min" for what they are, "full" for their tools too.

    Example:
        ot.packs(info="full")
    """
    registry = _registry(context)
    found = [pack for pack in registry.packs() if pattern.casefold() in pack.casefold()]
    if info == "full":
        return "\n\n".join(_pack_text(pack, context) for pack in found) or f"No pack matches {pattern!r}."
    return found if info == "list" else [_pack_facts(pack, registry) for pack in found]


@tool()
async def help(context: ToolContext, query: str = "", info: Info = "min") -> str:  # noqa: A001 - the name users know
    """Help: an overview, all about one tool or pack, or what fits some words.

    Args:
        query: The name of a tool, a pack or an alias, or words to search for. Empty for an overview.
        info: "list" for names only, "min" or "full".

    Example:
        ot.help(query="machine.disk")
    """
    if not query.strip():
        return OVERVIEW
    registry = _registry(context)
    if query in registry:
        return _tool_text(registry.find(query), context)
    if registry.is_pack(query):
        return _pack_text(query, context, with_url=True)
    if query in registry.aliases:
        target = registry.aliases[query]
        heading = f"# {query}\n\nAlias of {target}: call {query}(...) as you would {target}(...)."
        return f"{heading}\n\n{_tool_text(registry.find(target), context)}"
    return _search_text(query, registry, names_only=info == "list")


def _system(context: ToolContext) -> System:
    if context.system is None:
        raise ToolError("this needs the running OneTool; a bus alone does not have it")
    return context.system


def _registry(context: ToolContext) -> Registry:
    registry: Registry = _system(context).registry
    return registry


def _matching(registry: Registry, pattern: str) -> list[Tool]:
    wanted = pattern.casefold()
    return sorted((entry for entry in registry if wanted in entry.name.casefold()), key=lambda entry: entry.name)


def _brief(entry: Tool) -> dict[str, Any]:
    return {"name": entry.name, "description": entry.summary}


def _full(entry: Tool) -> dict[str, Any]:
    facts = {
        "name": entry.name,
        "signature": signature(entry),
        "description": entry.description,
        "source": entry.source,
        "args": arguments(entry),
        "returns": entry.returns,
        "example": entry.example,
    }
    always = {"name", "signature", "description", "source"}
    return {key: value for key, value in facts.items() if value or key in always}


def _pack_facts(pack: str, registry: Registry) -> dict[str, Any]:
    names = registry.in_pack(pack)
    source = registry.find(next(iter(names.values()))).source
    return {"name": pack, "source": source.partition(":")[0], "tool_count": len(names)}


def _pack_text(pack: str, context: ToolContext, *, with_url: bool = False) -> str:
    registry = _registry(context)
    entries = [registry.find(name) for name in sorted(registry.in_pack(pack).values())]
    instructions = str(_system(context).settings.prompts.packs.get(pack, "")).strip()
    parts = [f"# {pack}", f"source: {_pack_facts(pack, registry)['source']}", instructions]
    parts.append("\n".join(f"- {signature(entry)}: {entry.summary}" for entry in entries))
    parts.append(_url(pack, context) if with_url else "")
    return "\n\n".join(part for part in parts if part)


def _tool_text(entry: Tool, context: ToolContext) -> str:
    described = "\n".join(f"- {line}" for line in _argument_lines(entry))
    needs = ", ".join(sorted(entry.permissions))
    parts = [
        f"# {entry.name}",
        entry.description,
        f"Signature: {signature(entry)}",
        f"Arguments:\n{described}" if described else "",
        f"Returns: {entry.returns}" if entry.returns else "",
        f"Needs permission: {needs}" if needs else "",
        f"Example:\n{entry.example}" if entry.example else "",
        _url(entry.pack, context) if entry.source == "local" else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _argument_lines(entry: Tool) -> Iterable[str]:
    from ot.signature import type_word

    for name, part in entry.input.properties.items():
        text = f" - {part['description']}" if part.get("description") else ""
        yield f"{name} ({type_word(part)}){text}"


def _url(pack: str, context: ToolContext) -> str:
    base = str(_system(context).settings.docs_url).rstrip("/")
    return f"Documentation: {base}/{DOC_SLUGS.get(pack, pack)}/"


def _search_text(query: str, registry: Registry, *, names_only: bool) -> str:
    """By parts of names and words of descriptions; what is merely close, where that finds nothing."""
    words = query.casefold().split()
    found = [
        entry for entry in registry if all(word in f"{entry.name} {entry.description}".casefold() for word in words)
    ]
    found = found or [registry.find(name) for name in nearest(query, registry.names())]
    if not found:
        return (
            f"Nothing matches {query!r}. Type ot.tools() or ot.packs() to see what there is: {shown(registry.packs())}."
        )
    lines = sorted(entry.name if names_only else f"- {entry.name}: {entry.summary}" for entry in found)
    return "\n".join(lines if names_only else ["## Tools", *lines])
