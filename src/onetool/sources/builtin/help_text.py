"""The texts of `ot.help`: an overview, one tool or pack in detail, or search results.

The registry and the settings may change while a text is rendered: entries that disappear are
omitted.
"""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from keyword import iskeyword
from pathlib import Path
from typing import Any, Literal

from onetool.core.functions import Outcome, outcome
from onetool.core.names import join_names, join_packs, python_name
from onetool.core.policy.effects import describe_effects
from onetool.core.registry import Registry
from onetool.core.schema_work import flatten_schema
from onetool.core.signature import MAX_CHOICES, short_call, signature, type_name
from onetool.core.tool import Tool
from onetool.errors import ToolNotFound
from onetool.runs.snippets import describe, render_signature as snippet_call
from onetool.settings.model import Snippet
from onetool.sources.search import SearchHit
from onetool.sources.search.search_documents import IN_CODE
from onetool.sources.system import System
from onetool.util.render import render
from onetool.util.text import pluralize
from onetool_child.json_types import JsonMapping, JsonObject
from onetool_child.names import OWN_PACK, PROJECTS, is_reserved

DOC_SLUGS = {
    "brave": "brave-search",
    "code": "code-search",
    "db": "database",
    "ground": "grounding-search",
    "llm": "transform",
    "web": "web-fetch",
}
BUILT_IN_PACKS = {
    path.stem.removesuffix("_tools") for path in Path(__file__).parent.glob("*_tools.py")
} | DOC_SLUGS.keys()
GROUPS = {"tool": "Tools", "pack": "Packs", "snippet": "Snippets", "alias": "Aliases"}
SERVER_SOURCE = "proxy:"
MAX_DETAILED_HITS = 5
Snippets = Mapping[str, Snippet]
MAX_ARGUMENT_LEVELS = 3  # of nested objects
MAX_ARGUMENT_LINES = 100
MAX_LISTED_CHOICES = 40
MAX_FIELD_CHARS = 500  # of the description of a field
MAX_DEFAULT_CHARS = 100
MAX_LINE_CHARS = 300
MAX_QUERY_CHARS = 100
MAX_HELP_CHARS = 60_000  # at most four bytes each, which an answer shows inline
OVERVIEW = """\
OneTool: write Python, call tools as pack.tool(argument=value). The value of the last line is the result.

Find tools:
  ot.search(query="free disk space")     by purpose; also finds misspelled names
  ot.tools()                             all tools, one line each; ot.tools(pattern="disk") filters by name
  ot.packs()                             all packs (namespaces of tools)
  ot.help(query="machine.disk")          details of a tool, pack, alias or $snippet, or a search
  ot.aliases(), ot.snippets()            short names for tools; code templates: $name key=value
  ot.health(), ot.config(), ot.stats()   status and problems, configuration, usage

Level of detail: info="list" (names), info="min" (default, one line each), info="full" (everything).

Call tools:
  machine.disk()                                                 one call
  {"disk": machine.disk(), "memory": machine.memory()}           several calls, one result
  ot.call("machine.disk", unit="MiB")                            by name, also if it is not a valid Python name
  ot.pack("machine").disk()                                      if a builtin, import or variable hides the pack
  ot.account("gh", "work").list_issues()                         with another account of the server
  ot.parallel([machine.cpu, lambda: machine.disk(unit="MiB")])   concurrently
  ot.snippet("name", key="value")                                a snippet, from code
  proj.name / "src"                                              a path in a project; see ot.help(query="proj")

Large results are stored, and you get a handle instead. Read them with
  ot.result(handle="...", search="error", limit=20)   a range of lines, or matching lines
  ot.load(handle="...")                               the complete result as data, for code

Variables do not persist between runs; a session does:
  s = ot.session(); s["page"] = 1; s   a dictionary of JSON values; note the handle
  ot.session("s_...")["page"]          in a later run
ot.plan(code="...") shows what code would do, without doing it.
run = ot.background("pack.tool", argument=value) makes a long call that outlives its run;
ot.run_result(run) has its value when it is done, and that of a run that waits for a person.

ot.notify(topic="notes", message="...") leaves a message for people. ot.reload() reloads the configuration.

Tips: argument names may be abbreviated (p= for pattern=). Filter and combine in code, and return only what you need.
Set __format__ to "json", "json_h", "yml", "yml_h" or "raw" to choose the output format.\
"""

PROJECTS_HELP = """\
# proj

The directories of your projects, by name. A path is a string with the methods of pathlib to join and read.

  proj.list()                            the names of the projects
  proj.app                               the directory of the project "app"; also proj.path("app")
  proj.app / "src" / "main.py"           a path in it, to pass to tools: fs.read(path=proj.app / "README.md")
  (proj.app / "README.md").read_text()   its text; also exists(), is_dir(), is_file(), read_bytes()
  list(proj.app.glob("**/*.py"))         the paths that match; also iterdir() and rglob()
  proj.app.outside("..", "other")        a path that leaves the directory of the project

Reading a path calls fs.read, fs.list or fs.stat, with the permissions of the agent.\
"""
NAME_IN_QUERY = re.compile(
    r"(?:<(?:tool|pack) (?P<shown>[^<>]+)>)|(?P<name>[\w.$-]+)\s*\(.*\)", re.DOTALL
)


def render_name(query: str, system: System, full: bool, snippets: Snippets) -> str | None:
    """Return the help for the tool, pack, snippet or alias with this name, or None.

    `snippets` are those that the agent can use.
    """
    registry = system.registry
    query = _extract_name(query)
    if query.partition(".")[0] == PROJECTS and not registry.is_pack(PROJECTS):
        return render_projects(system)
    if query in IN_CODE:
        function = IN_CODE[query]
        return (
            f"# {query}\n\n{function.description}\n\nSignature:"
            f" {function.signature}\n\nExample:\n{function.example}"
        )
    entry = registry.find_exact(query) or registry.find_exact(python_name(query))
    if entry is None and registry.is_pack(pack := registry.match_pack(python_name(query))):
        return render_pack(pack, system, with_url=True, full=full)
    if entry is None:
        name = query.removeprefix("$")
        text = None if query.startswith("$") else _render_alias(query, system, full=full)
        if text is None and name in snippets:
            text = describe(name, snippets[name], snippets)
        if text is not None or query.startswith("$"):
            return text
        entry = registry.find_folded(query)
    return None if entry is None else render_tool(entry, system, full=full)


def cut(text: str) -> str:
    """Return the text, cut if it is so long that it would be stored."""
    if len(text) <= MAX_HELP_CHARS:
        return text
    return f'{text[:MAX_HELP_CHARS]}…\n\n(cut: ask for one tool with ot.help(query="pack.tool"))'


def _extract_name(query: str) -> str:
    """Return the name in a call or a tool's `repr`: `brave.search(...)`, `<tool brave.search>`."""
    match = NAME_IN_QUERY.fullmatch(query)
    return query if match is None else match["shown"] or match["name"]


def render_projects(system: System) -> str:
    """Return help for `proj`, with the configured projects."""
    names = list(system.settings.projects)
    projects = join_names(names) if names else "none; add them under projects: in onetool.yaml"
    return f"{PROJECTS_HELP}\n\nProjects: {projects}"


def render_tool(entry: Tool, system: System, *, full: bool = False) -> str:
    argument_lines = "\n".join(list_arguments(entry.input.json))
    observed = system.state.shapes.text(entry.name)
    returned, raises = outcome(entry.docstring) if full else Outcome("", {})
    needs = ", ".join(sorted(entry.permissions))
    parts = [
        f"# {entry.name}",
        "" if entry.enabled else "Disabled: calls are rejected.",
        entry.description,
        f"Signature: {signature(entry)}",
        _call_note(entry.name),
        f"Arguments:\n{argument_lines}" if argument_lines else "",
        (
            f"Returns: {' - '.join(filter(None, (entry.returns, returned)))}"
            if entry.returns or returned
            else ""
        ),
        (
            "\n".join(["Raises:", *(_format_item(name, text) for name, text in raises.items())])
            if raises
            else ""
        ),
        f"Observed return value: {observed}" if observed else "",
        f"Needs permission: {needs}" if needs else "",
        f"Effects: {describe_effects(entry)}",
        f"Example:\n{entry.example}" if entry.example else "",
        f"Source: {entry.source}" if full else "",
        f"Input schema:\n{render(dict(entry.input.json), 'json')}" if full else "",
        (
            f"Output schema:\n{render(dict(entry.output.json), 'json')}"
            if full and entry.output is not None
            else ""
        ),
        _render_origin([entry], system),
    ]
    return "\n\n".join(part for part in parts if part)


def render_pack(pack: str, system: System, *, with_url: bool = False, full: bool = False) -> str:
    entries = enabled_tools(pack, system.registry)
    lines = [_format_item(signature(entry), entry.summary) for entry in entries]
    lines += [
        _format_item(function.signature, function.description)
        for name, function in IN_CODE.items()
        if name.rpartition(".")[0] == pack
    ]
    parts = [
        f"# {pack}",
        f"source: {pack_facts(pack, system.registry)['source']}",
        _instructions(pack, system),
    ]
    parts.append("\n".join(lines))
    parts += [render_tool(entry, system, full=True) for entry in entries] if full else []
    parts.append(_render_origin(entries, system) if with_url else "")
    return "\n\n".join(part for part in parts if part)


def enabled_tools(pack: str, registry: Registry) -> list[Tool]:
    """Return a pack's enabled tools, sorted by name."""
    tools = (registry.get(entry.name) for entry in registry.entries(pack))
    return [entry for entry in tools if entry is not None and entry.enabled]


def pack_facts(pack: str, registry: Registry) -> JsonObject:
    kinds = [source.describe_kind(pack) for source in registry.find_sources(pack)]
    return {
        "name": pack,
        "source": kinds[0] if kinds else "local",
        "tool_count": registry.count(pack, enabled=True),
    }


def render_hits(
    query: str,
    hits: list[SearchHit],
    system: System,
    info: Literal["list", "min", "full"],
    snippets: Snippets,
) -> str:
    """Return the hits grouped by kind, best first. Weak hits are left out."""
    lines = {
        hit: text
        for hit in sort_hits(hits)
        if not hit.is_weak and (text := describe_hit(hit, system, snippets)) is not None
    }
    if not lines:
        return _render_no_hits(query, system, snippets)
    if info == "list":
        return "\n".join(dict.fromkeys(map(_display_name, lines)))
    parts = []
    for kind, title in GROUPS.items():
        of_kind = {hit: text for hit, text in lines.items() if hit.kind == kind}
        items = [_format_item(_display_name(hit), text) for hit, text in of_kind.items()]
        if items:
            parts.append("\n".join([f"## {title}", *items]))
    parts.append(f"Call ot.help(query={_display_name(next(iter(lines)))!r}) for details.")
    if info == "full":
        parts += [
            _render_details(hit, system, snippets) or "" for hit in list(lines)[:MAX_DETAILED_HITS]
        ]
    return "\n\n".join(part for part in parts if part)


def sort_hits(hits: list[SearchHit]) -> list[SearchHit]:
    """Return the best hits first; equal names in the order in which `render_name` looks."""
    kinds = list(GROUPS)
    return sorted(hits, key=lambda hit: (-hit.score, hit.name, kinds.index(hit.kind)))


def describe_hit(hit: SearchHit, system: System, snippets: Snippets) -> str | None:
    """Return a hit's short description, or None if it no longer exists."""
    registry = system.registry
    match hit.kind:
        case "tool":
            tool = IN_CODE.get(hit.name) or registry.find_exact(hit.name)
            if tool is None:
                return None
            return _join_lines(tool.description.strip().partition("\n")[0])
        case "pack":
            enabled = [entry for entry in registry.entries(hit.name) if entry.enabled]
            names = [python_name(entry.name).rpartition(".")[2] for entry in enabled]
            return f"{pluralize(len(names), 'tool')}: {join_names(names)}" if names else None
        case "snippet":
            snippet = snippets.get(hit.name)
            return None if snippet is None else _join_lines(snippet.description)
    target = registry.aliases.get(hit.name)
    return None if target is None else f"alias of {target}"


def call_example(hit: SearchHit, system: System, snippets: Snippets) -> dict[str, str]:
    """Return an example call under `call`; empty for a pack, which cannot be called."""
    match hit.kind:
        case "tool" if hit.name in IN_CODE:
            return {"call": IN_CODE[hit.name].example}
        case "tool" | "alias":
            entry = system.registry.get(hit.name)
            return {} if entry is None else {"call": _join_lines(short_call(entry, hit.name))}
        case "snippet" if hit.name in snippets:
            return {"call": _join_lines(snippet_call(hit.name, snippets[hit.name]))}
    return {}


def _render_details(hit: SearchHit, system: System, snippets: Snippets) -> str | None:
    """Return a hit's help by kind, because an alias and a pack may share a name."""
    match hit.kind:
        case "pack":
            return render_pack(hit.name, system, with_url=True)
        case "alias":
            return _render_alias(hit.name, system, full=True)
    return render_name(_display_name(hit), system, True, snippets)


def _format_item(name: str, text: str) -> str:
    return f"- {name}: {_join_lines(text)}" if text.strip() else f"- {name}"


def _join_lines(text: str) -> str:
    """Join and truncate a text's lines, which may come from an upstream server."""
    joined = " ".join(text.split())
    return joined if len(joined) <= MAX_LINE_CHARS else f"{joined[:MAX_LINE_CHARS]}…"


def _display_name(hit: SearchHit) -> str:
    return f"${hit.name}" if hit.kind == "snippet" else hit.name


def _render_no_hits(query: str, system: System, snippets: Snippets) -> str:
    quoted_query = query if len(query) <= MAX_QUERY_CHARS else f"{query[:MAX_QUERY_CHARS]}…"
    available = [f"Packs: {join_packs(system.registry.enabled_packs())}."]
    if snippets:
        available.append(f"Snippets: {join_names([f'${name}' for name in snippets])}.")
    return (
        f"Nothing matches {quoted_query!r}. Call ot.tools() or ot.packs() to list all, or use other"
        " keywords: "
        f'ot.search(query="..."). {" ".join(available)}'
    )


def _render_alias(alias: str, system: System, *, full: bool) -> str | None:
    registry = system.registry
    target = registry.aliases.get(alias)
    if target is None:
        return None
    heading = f"# {alias}\n\nAlias of {target}: call it as {alias}(...)."
    try:
        return f"{heading}\n\n{render_tool(registry.find(alias), system, full=full)}"
    except ToolNotFound as error:
        hint = f"\nHint: {error.hint}" if error.hint else ""
        reason = error.message.rstrip(".")
        return (
            f"{heading}\n\nNot available: {reason}. Aliases are defined under aliases: in"
            f" onetool.yaml.{hint}"
        )


def _call_note(name: str) -> str:
    """Return how to call a tool whose name is not a valid or free Python name; empty otherwise."""
    python = python_name(name)
    pack, _, short = python.rpartition(".")
    if is_reserved(pack or python) and pack != OWN_PACK and not iskeyword(short):
        hidden = f'ot.pack("{pack}").{short}(...)' if pack else f'ot.call("{name}", ...)'
        return f"Call it as {hidden}: {pack or python} means something else in Python."
    if any(map(iskeyword, python.split("."))):
        return f'Call it as ot.call("{name}", ...): its name is not a valid Python name.'
    return "" if python == name else f'Call it as {python}(...), or ot.call("{name}", ...).'


def _instructions(pack: str, system: System) -> str:
    configured = system.settings.prompts.packs
    text = next(
        (text.strip() for name, text in configured.items() if python_name(name) == pack), ""
    )
    return text or system.registry.describe(pack).strip()


def _render_origin(entries: Iterable[Tool], system: System) -> str:
    """Return the documentation URL, and the file or server unless the pack is built in."""
    base = str(system.settings.docs_url).rstrip("/")
    lines: set[str] = set()
    for entry in entries:
        is_built_in = entry.source == "local" and not entry.file and entry.pack in BUILT_IN_PACKS
        file = None if is_built_in else _find_file(entry)
        if entry.pack:
            lines.add(f"Documentation: {base}/{DOC_SLUGS.get(entry.pack, entry.pack)}/")
        if file is not None:
            lines.add(f"File: {file}")
        if entry.source.startswith(SERVER_SOURCE):
            lines.add(f"Server: {entry.source.removeprefix(SERVER_SOURCE)}")
    return "\n".join(sorted(lines))


def _find_file(entry: Tool) -> str | None:
    """Return a tool's source file, if its backend has a function and the function a file."""
    function = getattr(entry.backend, "function", None)
    try:
        if function is None:
            return entry.file or None
        return inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:  # a callable object, or one written in C
        return None


# --- arguments ------------------------------------------------------------------------------------


def list_arguments(schema: JsonMapping) -> list[str]:
    """Return a line for each argument, and for the fields in objects and object lists."""
    properties = schema.get("properties") or {}
    lines = [*islice(_list_fields(properties, schema, 0, None, ()), MAX_ARGUMENT_LINES + 1)]
    if len(lines) > MAX_ARGUMENT_LINES:
        lines[MAX_ARGUMENT_LINES:] = ["- ... more fields: see info='full'"]
    return lines


def _list_fields(
    properties: JsonMapping, root: JsonMapping, level: int, required: Any, around: tuple[Any, ...]
) -> Iterator[str]:
    for name, declared in properties.items():
        part = declared if isinstance(declared, Mapping) else {}
        yield (
            f"{'  ' * level}- {name}"
            f" ({_describe_field(name, part, root, required)}){_describe_text(part, root)}"
        )
        if level + 1 >= MAX_ARGUMENT_LEVELS:
            continue
        forms = [
            form
            for form in _find_objects(part, root)
            if all(form["properties"] is not outer for outer in around)
        ]
        for number, form in enumerate(forms, 1):
            if len(forms) > 1:
                yield f"{'  ' * (level + 1)}form {number} of {len(forms)}:"
            fields = form["properties"]
            yield from _list_fields(
                fields, root, level + 1, form.get("required") or (), (*around, fields)
            )


def _describe_field(name: str, part: JsonMapping, root: JsonMapping, required: Any) -> str:
    """Return a field's type and, inside an object, whether it is required."""
    kind = type_name(part, root)
    if required is None:  # an argument: the signature has its default
        return kind
    if name in required:
        return f"{kind}, required"
    default = part.get("default")
    return kind if default is None else f"{kind}, default {repr(default)[:MAX_DEFAULT_CHARS]}"


def _describe_text(part: JsonMapping, root: JsonMapping) -> str:
    target = flatten_schema(part, root)
    text = " ".join(str(part.get("description") or target.get("description") or "").split())[
        :MAX_FIELD_CHARS
    ]
    choices = target.get("enum")
    if isinstance(choices, list) and len(choices) > MAX_CHOICES:
        more = ", ..." if len(choices) > MAX_LISTED_CHOICES else ""
        text = f"{text} One of: {', '.join(map(repr, choices[:MAX_LISTED_CHOICES]))}{more}".strip()
    return f" - {text}" if text else ""


def _find_objects(part: Any, root: JsonMapping, depth: int = 0) -> Iterator[JsonMapping]:
    """Yield the objects with fields that a value, its items or its values may be."""
    target = flatten_schema(part, root)
    if isinstance(target.get("properties"), Mapping) and target["properties"]:
        yield target
        return
    inner = [target.get("items"), target.get("additionalProperties")]
    for key in ("anyOf", "oneOf"):
        inner += target[key][:MAX_CHOICES] if isinstance(target.get(key), list) else ()
    for inner_part in inner:
        if isinstance(inner_part, Mapping) and depth < MAX_ARGUMENT_LEVELS:
            yield from _find_objects(inner_part, root, depth + 1)
