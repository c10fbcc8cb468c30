"""The texts of `ot.help`: an overview, one thing, or what a search found. Written for a model to act on.

It reads the registry and the settings; finding things is the business of `ot.search`. Both may change while a text is
made: what is gone by then is left out.
"""

import inspect
from collections.abc import Iterable, Mapping
from keyword import iskeyword
from pathlib import Path
from typing import Any, Literal

from onetool._tool import Tool
from onetool.errors import ToolNotFound
from onetool.registry import Registry, python_name, shown
from onetool.render import render
from onetool.search import SearchHit
from onetool.search.search_documents import IN_CODE
from onetool.signature import short_call, signature, type_word
from onetool.snippets import describe, signature as snippet_call
from onetool.system import System
from onetool_child.names import OWN_PACK, is_reserved

DOC_SLUGS = {
    "brave": "brave-search",
    "code": "code-search",
    "db": "database",
    "ground": "grounding-search",
    "llm": "transform",
    "web": "web-fetch",
}
SHIPPED = {path.stem.removesuffix("_tools") for path in Path(__file__).parent.glob("*_tools.py")} | DOC_SLUGS.keys()
GROUPS = {"tool": "Tools", "pack": "Packs", "snippet": "Snippets", "alias": "Aliases"}
MOST_IN_FULL = 5
LONGEST_LINE = 300
LONGEST_QUERY = 100
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
  ot.pack("machine").disk()                                 of a pack whose name a builtin, import or variable hides
  ot.parallel([machine.cpu, lambda: machine.disk(unit="MiB")])   side by side
  ot.snippet("name", key="value")                         a snippet from code

Large results are kept for you: the answer then has a handle. Look into it with
  ot.result(handle="...", search="error", limit=20)       a window, or the lines that match
  ot.load(handle="...")                                   all of it as data, for the code

For people: ot.notify(topic="notes", message="...") leaves a message. After a change of the configuration: ot.reload().

Tips: argument names may be shortened (p= for pattern=). Filter and combine in code, and return only what you need.
Set __format__ to "json", "json_h", "yml", "yml_h" or "raw" to choose how the answer is written.\
"""


def of_name(query: str, system: System, full: bool) -> str | None:
    """All about the one thing of this name; None where there is none."""
    registry: Registry = system.registry
    if query in IN_CODE:
        there = IN_CODE[query]
        return f"# {query}\n\n{there.description}\n\nSignature: {there.signature}\n\nExample:\n{there.example}"
    if (entry := registry.known(query) or registry.known(python_name(query))) is not None:
        return of_tool(entry, system, full=full)
    if registry.is_pack(python_name(query)):
        return of_pack(python_name(query), system, with_url=True, full=full)
    if query.startswith("$"):
        return of_snippet(query[1:], system)
    return _of_alias(query, system, full=full) or of_snippet(query, system)


def of_tool(entry: Tool, system: System, *, full: bool = False) -> str:
    texts = {
        name: " ".join(str(part.get("description") or "").split()) for name, part in entry.input.properties.items()
    }
    described = "\n".join(
        f"- {name} ({type_word(entry.input.properties[name])}){text and f' - {text}'}" for name, text in texts.items()
    )
    observed = system.stores.shapes.text(entry.name)
    needs = ", ".join(sorted(entry.permissions))
    parts = [
        f"# {entry.name}",
        "" if entry.enabled else "It is disabled: calls are refused.",
        entry.description,
        f"Signature: {signature(entry)}",
        _how_to_write(entry.name),
        f"Arguments:\n{described}" if described else "",
        f"Returns: {entry.returns}" if entry.returns else "",
        f"Returns, as observed so far: {observed}" if observed else "",
        f"Needs permission: {needs}" if needs else "",
        f"Example:\n{entry.example}" if entry.example else "",
        f"Source: {entry.source}" if full else "",
        f"Input schema:\n{render(dict(entry.input.json), 'json')}" if full else "",
        f"Output schema:\n{render(dict(entry.output.json), 'json')}" if full and entry.output is not None else "",
        _where_from([entry], system),
    ]
    return "\n\n".join(part for part in parts if part)


def of_pack(pack: str, system: System, *, with_url: bool = False, full: bool = False) -> str:
    entries = tools_of(pack, system.registry)
    lines = [_listed(signature(entry), entry.summary) for entry in entries]
    lines += [
        _listed(there.signature, there.description)
        for name, there in IN_CODE.items()
        if name.rpartition(".")[0] == pack
    ]
    parts = [f"# {pack}", f"source: {pack_facts(pack, system.registry)['source']}", _instructions(pack, system)]
    parts.append("\n".join(lines))
    parts += [of_tool(entry, system, full=True) for entry in entries] if full else []
    parts.append(_where_from(entries, system) if with_url else "")
    return "\n\n".join(part for part in parts if part)


def tools_of(pack: str, registry: Registry) -> list[Tool]:
    """Those that can be called, by name."""
    found = (registry.get(entry.name) for entry in registry.entries(pack))
    return [entry for entry in found if entry is not None and entry.enabled]


def pack_facts(pack: str, registry: Registry) -> dict[str, Any]:
    kinds = [source.kind for source in registry.sources_of(pack)]
    return {"name": pack, "source": kinds[0] if kinds else "local", "tool_count": registry.count(pack, enabled=True)}


def of_snippet(name: str, system: System) -> str | None:
    snippets = system.settings.snippets
    return describe(name, snippets[name], snippets) if name in snippets else None


def of_hits(query: str, hits: list[SearchHit], system: System, info: Literal["list", "min", "full"]) -> str:
    """What was found, by kind, the best first in each."""
    lines = {hit: text for hit in in_order(hits) if (text := line(hit, system)) is not None}
    if not lines:
        return _nothing(query, system)
    if info == "list":
        return "\n".join(dict.fromkeys(map(_called, lines)))
    parts = []
    for kind, title in GROUPS.items():
        found = [_listed(_called(hit), text) for hit, text in lines.items() if hit.kind == kind]
        parts += ["\n".join([f"## {title}", *found])] if found else []
    parts.append(f"Type ot.help(query={_called(next(iter(lines)))!r}) to see how it is called.")
    if info == "full":
        parts += [_in_full(hit, system) or "" for hit in list(lines)[:MOST_IN_FULL]]
    return "\n\n".join(part for part in parts if part)


def in_order(hits: list[SearchHit]) -> list[SearchHit]:
    """The best first; of one name a tool before a pack, a snippet and an alias, as `of_name` looks for them."""
    kinds = list(GROUPS)
    return sorted(hits, key=lambda hit: (-hit.score, hit.name, kinds.index(hit.kind)))


def line(hit: SearchHit, system: System) -> str | None:
    """A few words on what was found; None where it is gone since."""
    registry: Registry = system.registry
    match hit.kind:
        case "tool":
            there = IN_CODE.get(hit.name) or registry.known(hit.name)
            return None if there is None else _one_line(there.description.strip().partition("\n")[0])
        case "pack":
            names = [
                python_name(entry.name).rpartition(".")[2] for entry in registry.entries(hit.name) if entry.enabled
            ]
            return f"{len(names)} tool{'' if len(names) == 1 else 's'}: {shown(names)}" if names else None
        case "snippet":
            snippet = system.settings.snippets.get(hit.name)
            return None if snippet is None else _one_line(snippet.description)
    target = registry.aliases.get(hit.name)
    return None if target is None else f"alias of {target}"


def call(hit: SearchHit, system: System) -> dict[str, str]:
    """How what was found is called, under `call`; nothing for a pack, which is not."""
    match hit.kind:
        case "tool" if hit.name in IN_CODE:
            return {"call": IN_CODE[hit.name].example}
        case "tool" | "alias":
            entry = system.registry.get(hit.name)
            return {} if entry is None else {"call": _one_line(short_call(entry, hit.name))}
        case "snippet" if hit.name in system.settings.snippets:
            return {"call": _one_line(snippet_call(hit.name, system.settings.snippets[hit.name]))}
    return {}


def _in_full(hit: SearchHit, system: System) -> str | None:
    """By its kind, not by its name: an alias may be called like a pack. The tools of a pack are found themselves."""
    match hit.kind:
        case "pack":
            return of_pack(hit.name, system, with_url=True)
        case "alias":
            return _of_alias(hit.name, system, full=True)
    return of_name(_called(hit), system, full=True)


def _listed(name: str, text: str) -> str:
    return f"- {name}: {_one_line(text)}" if text.strip() else f"- {name}"


def _one_line(text: str) -> str:
    """Descriptions come from anywhere, and one must not look like several."""
    joined = " ".join(text.split())
    return joined if len(joined) <= LONGEST_LINE else f"{joined[:LONGEST_LINE]}…"


def _called(hit: SearchHit) -> str:
    return f"${hit.name}" if hit.kind == "snippet" else hit.name


def _nothing(query: str, system: System) -> str:
    asked = query if len(query) <= LONGEST_QUERY else f"{query[:LONGEST_QUERY]}…"
    there = [f"packs are {shown(system.registry.packs())}"]
    if system.settings.snippets:
        there.append(f"snippets are {shown([f'${name}' for name in system.settings.snippets])}")
    return (
        f"Nothing matches {asked!r}. Type ot.tools() or ot.packs() to see what there is, or ask with other words: "
        f'ot.search(query="..."). Now {"; ".join(there)}.'
    )


def _of_alias(alias: str, system: System, *, full: bool) -> str | None:
    registry: Registry = system.registry
    target = registry.aliases.get(alias)
    if target is None:
        return None
    heading = f"# {alias}\n\nAlias of {target}: call {alias}(...) as you would {target}(...)."
    try:
        return f"{heading}\n\n{of_tool(registry.find(alias), system, full=full)}"
    except ToolNotFound as error:
        return f"{heading}\n\nIt does not work now: {error.message} Aliases stand under aliases: in onetool.yaml."


def _how_to_write(name: str) -> str:
    """For a name that Python cannot write as it is."""
    written = python_name(name)
    pack, _, short = written.rpartition(".")
    if is_reserved(pack or written) and pack != OWN_PACK and not iskeyword(short):
        hidden = f'ot.pack("{pack}").{short}(...)' if pack else f'ot.call("{name}", ...)'
        return f"Call it as {hidden}: {pack or written} means something else in Python."
    if any(map(iskeyword, written.split("."))):
        return f'Call it as ot.call("{name}", ...): Python cannot write its name.'
    return "" if written == name else f'Call it as {written}(...), or ot.call("{name}", ...).'


def _instructions(pack: str, system: System) -> str:
    configured: Mapping[str, str] = system.settings.prompts.packs
    told = next((text.strip() for name, text in configured.items() if python_name(name) == pack), "")
    return told or system.registry.describe(pack).strip()


def _where_from(entries: Iterable[Tool], system: System) -> str:
    """Our packs have a page; those of the user have a file."""
    local = [entry for entry in entries if entry.source == "local" and not entry.file]
    ours = {entry.pack for entry in local if entry.pack in SHIPPED}
    base = str(system.settings.docs_url).rstrip("/")
    lines = [f"Documentation: {base}/{DOC_SLUGS.get(pack, pack)}/" for pack in sorted(ours)]
    files = {file for entry in entries if entry.pack not in ours and (file := _file(entry))}
    return "\n".join([*lines, *(f"File: {file}" for file in sorted(files))])


def _file(entry: Tool) -> str | None:
    """Where it is written down. Not every backend has a function, and not every function a file."""
    function = getattr(entry.backend, "function", None)
    try:
        return entry.file or None if function is None else inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:  # a callable object, or one written in C
        return None
