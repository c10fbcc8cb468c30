"""The texts of `ot.help`: an overview, one thing, or what a search found. Written for a model to act on.

It reads the registry and the settings; finding things is the business of `ot.search`.
"""

from collections.abc import Iterable
from typing import Any, Literal

from ot.context import System
from ot.registry import Registry, shown
from ot.search import Hit
from ot.signature import signature, type_word
from ot.snippets import describe
from ot.tool import Tool

DOC_SLUGS = {
    "brave": "brave-search",
    "code": "code-search",
    "db": "database",
    "ground": "grounding-search",
    "llm": "transform",
    "web": "web-fetch",
}
GROUPS = {"tool": "Tools", "pack": "Packs", "snippet": "Snippets", "alias": "Aliases"}
MOST_IN_FULL = 5
OVERVIEW = """\
OneTool: write Python, call tools as pack.tool(argument=value). The value of the last line is the answer.

Find tools:
  ot.search(query="free disk space")   by what they are for; misspelt names are found too
  ot.tools()                      all tools with a line each; ot.tools(pattern="disk") those with "disk" in the name
  ot.packs()                      the packs that tools come in
  ot.help(query="machine.disk")   all about one tool; also for a pack, an alias, a $snippet, or words to search for
  ot.aliases(), ot.snippets()     short names for tools, and code with blanks: $name key=value
  ot.health(), ot.config(), ot.stats()   what is running and what is wrong, what is configured, what was called

How much you see: info="list" (names), info="min" (the default, a line each), info="full" (everything).

Call tools:
  machine.disk()                                          one call
  {"disk": machine.disk(), "memory": machine.memory()}    several, one answer
  ot.call("machine.disk", unit="MiB")                       by name, also one that Python cannot write
  ot.parallel([machine.cpu, lambda: machine.disk(unit="MiB")])   side by side
  ot.snippet("name", key="value")                         a snippet from code

Large results are kept for you: the answer then has a handle. Look into it with
  ot.result(handle="...", search="error", limit=20)       a window, or the lines that match
  ot.load(handle="...")                                   all of it as data, for the code

Tips: argument names may be shortened (p= for pattern=). Filter and combine in code, and return only what you need.
Set __format__ to "json", "json_h", "yml", "yml_h" or "raw" to choose how the answer is written.\
"""
# What exists in the code of a run only, and is no tool of the registry.
IN_CODE = {
    "ot.call": "ot.call(name, *args, **kwargs)\n\nCall a tool by its name, also one whose name Python cannot write.\n\n"
    'Example:\not.call("machine.disk", unit="MiB")',
    "ot.parallel": "ot.parallel([functions])\n\nCall all of these side by side; their values, in order. "
    "An error of one is raised when all have ended.\n\n"
    "Example:\not.parallel([machine.cpu, lambda: machine.disk(unit='MiB')])",
    "ot.snippet": "ot.snippet(name, **values)\n\nRun a configured snippet and give its value. ot.snippets() lists "
    'them.\n\nExample:\not.snippet("name", key="value")',
}


def of_name(query: str, system: System, full: bool) -> str | None:
    """All about the one thing of this name; None where there is none."""
    registry: Registry = system.registry
    if query in IN_CODE:
        return f"# {query}\n\n{IN_CODE[query]}"
    if query in registry:
        return of_tool(registry.find(query), system, full=full)
    if registry.is_pack(query):
        return of_pack(query, system, with_url=True, full=full)
    if query.startswith("$") and query[1:] in system.settings.snippets:
        return of_snippet(query[1:], system)
    if query in registry.aliases:
        return _of_alias(query, system, full=full)
    return None


def of_tool(entry: Tool, system: System, *, full: bool = False) -> str:
    described = "\n".join(f"- {text}" for text in _argument_lines(entry))
    observed = system.stores.shapes.text(entry.name)
    needs = ", ".join(sorted(entry.permissions))
    parts = [
        f"# {entry.name}",
        entry.description,
        f"Signature: {signature(entry)}",
        f"Arguments:\n{described}" if described else "",
        f"Returns: {entry.returns}" if entry.returns else "",
        f"Returns, as observed so far: {observed}" if observed else "",
        f"Needs permission: {needs}" if needs else "",
        f"Example:\n{entry.example}" if entry.example else "",
        *(_more(entry) if full else ()),
        _url(entry.pack, system) if entry.source == "local" else "",
    ]
    return "\n\n".join(part for part in parts if part)


def of_pack(pack: str, system: System, *, with_url: bool = False, full: bool = False) -> str:
    registry: Registry = system.registry
    entries = [registry.find(name) for name in sorted(registry.in_pack(pack).values())]
    instructions = str(system.settings.prompts.packs.get(pack, "")).strip()
    parts = [f"# {pack}", f"source: {pack_facts(pack, registry)['source']}", instructions]
    parts.append("\n".join(f"- {signature(entry)}: {entry.summary}" for entry in entries))
    parts += [of_tool(entry, system, full=True) for entry in entries] if full else []
    parts.append(_url(pack, system) if with_url else "")
    return "\n\n".join(part for part in parts if part)


def pack_facts(pack: str, registry: Registry) -> dict[str, Any]:
    names = registry.in_pack(pack)
    source = registry.find(next(iter(names.values()))).source
    return {"name": pack, "source": source.partition(":")[0], "tool_count": len(names)}


def of_snippet(name: str, system: System) -> str:
    snippets = system.settings.snippets
    return describe(name, snippets[name], snippets)


def of_hits(query: str, hits: list[Hit], system: System, info: Literal["list", "min", "full"]) -> str:
    """What was found, by kind, the best first in each."""
    if not hits:
        packs = shown(system.registry.packs())
        return f"Nothing matches {query!r}. Type ot.tools() or ot.packs() to see what there is: {packs}."
    if info == "list":
        return "\n".join(_called(hit) for hit in hits)
    groups = {kind: [hit for hit in hits if hit.kind == kind] for kind in GROUPS}
    parts = [_group(GROUPS[kind], found, system) for kind, found in groups.items() if found]
    if info == "full":
        parts += [of_name(_called(hit), system, full=True) or "" for hit in hits[:MOST_IN_FULL]]
    return "\n\n".join(parts)


def line(hit: Hit, system: System) -> str:
    """A few words on what was found."""
    registry: Registry = system.registry
    match hit.kind:
        case "tool":
            return registry.find(hit.name).summary
        case "pack":
            return f"{len(registry.in_pack(hit.name))} tools: {shown(dict(registry.in_pack(hit.name)))}"
        case "snippet":
            return str(system.settings.snippets[hit.name].description)
    return f"alias of {registry.aliases[hit.name]}"


def _group(title: str, hits: Iterable[Hit], system: System) -> str:
    return "\n".join([f"## {title}", *(f"- {_called(hit)}: {line(hit, system)}" for hit in hits)])


def _called(hit: Hit) -> str:
    return f"${hit.name}" if hit.kind == "snippet" else hit.name


def _of_alias(alias: str, system: System, *, full: bool) -> str:
    target = system.registry.aliases[alias]
    heading = f"# {alias}\n\nAlias of {target}: call {alias}(...) as you would {target}(...)."
    entry = system.registry.get(alias)
    return f"{heading}\n\n{of_tool(entry, system, full=full)}" if entry else f"{heading}\n\nThere is no such tool now."


def _more(entry: Tool) -> Iterable[str]:
    from ot.render import render

    yield f"Source: {entry.source}"
    yield f"Input schema:\n{render(dict(entry.input.json), 'json')}"
    if entry.output is not None:
        yield f"Output schema:\n{render(dict(entry.output.json), 'json')}"


def _argument_lines(entry: Tool) -> Iterable[str]:
    for name, part in entry.input.properties.items():
        text = f" - {part['description']}" if part.get("description") else ""
        yield f"{name} ({type_word(part)}){text}"


def _url(pack: str, system: System) -> str:
    base = str(system.settings.docs_url).rstrip("/")
    return f"Documentation: {base}/{DOC_SLUGS.get(pack, pack)}/"
