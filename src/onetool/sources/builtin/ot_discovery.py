"""The tools of the `ot` pack to use before writing code: search, lists, help, snippets and plans.

`help_text` has the texts of `ot.help`. Hits of `ot.search` say how to call each, and what tells
tools with the same description apart.
"""

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any, Literal, NamedTuple, cast

from anyio.to_thread import run_sync as run_in_thread

from onetool.core.names import python_name
from onetool.core.policy.effects import describe_effects, is_declared
from onetool.core.signature import arguments, clean_if_foreign, required_types, signature
from onetool.core.tool import Tool, tool
from onetool.errors import ArgumentError
from onetool.runs.snippets import describe, render_signature
from onetool.settings.model import Snippet
from onetool.sources.builtin import help_text
from onetool.sources.search import SearchHit
from onetool.sources.system import System, get_system
from onetool.util.context import ToolContext
from onetool.util.gc_pauses import no_gc_pauses
from onetool.util.text import pluralize, quote
from onetool_child.json_types import JsonMapping, JsonObject

__all__ = ["aliases", "help", "packs", "plan", "save_snippet", "search", "snippets", "tools"]

MAX_HITS = 1000  # if some hits are removed
MAX_COUNTED_HITS = 100  # to say how many hits were omitted
MAX_QUERIES = 10  # in one search
MAX_TEXT_CHARS = 10_000  # of a query, a name or a pattern
MAX_SIBLINGS = 5
MIN_SIBLING_TEXT = 12  # characters; a shorter description says too little to call tools siblings
Info = Literal["list", "min", "full"]


@tool(effects=["read"], max_text=MAX_TEXT_CHARS)
async def tools(context: ToolContext, pattern: str = "", info: Info = "min") -> list[Any]:
    """List tools: all, or those whose name contains the pattern.

    Args:
        pattern: Part of a name, case-insensitive.
        info: "list" for names, "min" for one line each, "full" for signatures and arguments.

    Example:
        ot.tools(pattern="disk", info="full")
    """
    system = await _discover_and_note(context)
    return await run_in_thread(_list_tools, system, pattern, info)


@tool(effects=["read"], max_text=MAX_TEXT_CHARS)
async def packs(context: ToolContext, pattern: str = "", info: Info = "min") -> list[Any] | str:
    """List packs: all, or those whose name contains the pattern.

    Args:
        pattern: Part of a name, case-insensitive.
        info: "list" for names, "min" for source and tool count, "full" to include their tools.

    Example:
        ot.packs(info="full")
    """
    system = await _discover_and_note(context)
    return await run_in_thread(_list_packs, system, pattern, info)


@tool(effects=["read"], max_text=MAX_TEXT_CHARS)
async def aliases(context: ToolContext, pattern: str = "", info: Info = "min") -> list[Any]:
    """List aliases (short names for tools): all, or those whose name or target contains the
    pattern.

    Args:
        pattern: Part of an alias or its target, case-insensitive.
        info: "list" for names, "min" for `alias -> target`, "full" for both as data.

    Example:
        ot.aliases()
    """
    aliases = get_system(context).settings.aliases
    targets = {
        name: target for name, target in sorted(aliases.items()) if _contains(pattern, name, target)
    }
    if info == "full":
        return [{"name": name, "target": target} for name, target in targets.items()]
    if info == "list":
        return list(targets)
    return [f"{name} -> {target}" for name, target in targets.items()]


@tool(effects=["read"], max_text=MAX_TEXT_CHARS)
async def snippets(context: ToolContext, pattern: str = "", info: Info = "min") -> list[Any] | str:
    """List snippets (code templates, run as `$name key=value`): all, or those that contain the
    pattern.

    Args:
        pattern: Part of a name or description, case-insensitive.
        info: "list" for names, "min" for `name: description`, "full" for the definition and an example.

    Example:
        ot.snippets()
    """
    snippets = await _load_snippets(context)
    names = [
        name for name in sorted(snippets) if _contains(pattern, name, snippets[name].description)
    ]
    if info == "full":
        texts = await run_in_thread(
            lambda: [describe(name, snippets[name], snippets) for name in names]
        )
        message = f"no snippet matches {quote(pattern)}; call ot.snippets() to list all"
        if not snippets:
            message = "no snippets are configured; add them under snippets: in onetool.yaml"
        return "\n\n---\n\n".join(filter(None, texts)) or message
    return names if info == "list" else [f"{name}: {snippets[name].description}" for name in names]


async def _name_run(args: JsonMapping, context: ToolContext) -> JsonMapping:
    """Replace `last` by the run ID: another run may be last when a person answers."""
    run = await get_system(context).runs.find_own(
        args.get("run", "last"), context.agent_id, context.token_id
    )
    return {**args, "run": run.id}


@tool(effects=["write"], is_audited=True, max_text=MAX_TEXT_CHARS, complete=_name_run)
async def save_snippet(context: ToolContext, name: str, description: str, run: str = "last") -> str:
    """Save a run that worked as a snippet, to repeat it with other values.

    A person is always asked.

    Literals that are arguments of tools or variables become parameters, with the old values as
    defaults. The snippet is tested with the recorded answers of the run first.

    Args:
        name: Name of the snippet, called as `$name key=value`.
        description: What the snippet does.
        run: ID of the run; "last" is the last recorded run that worked.

    Example:
        ot.save_snippet(name="free_space", description="Free space of a disk", run="last")
    """
    saved = await get_system(context).runs.save_snippet(name, description, run, context)
    return f"OK: saved. Call it as: {render_signature(saved.name, saved.to_snippet())}"


@tool(effects=["read"], max_text=MAX_TEXT_CHARS)
async def search(context: ToolContext, query: str | list[str], limit: int = 10) -> list[JsonObject]:
    """Find tools, packs, snippets and aliases by name, misspelled name or purpose.

    `call` shows how to call a hit, `required` the types of its required arguments. Tools with the
    same description are one hit; `siblings` tells them apart. Hits that are far weaker than the
    best one are left out.

    Args:
        query: A name or keywords, or a list of several queries.
        limit: Maximum number of hits for each query.

    Example:
        ot.search(query=["how much room is left on the disk", "send an email"])
    """
    queries = list(dict.fromkeys([query] if isinstance(query, str) else query))
    _check_queries(queries, limit)
    system = await _discover_and_note(context)
    max_hits = MAX_HITS if _is_restricted(context) else MAX_COUNTED_HITS
    hits = {
        text: await system.catalog.search(text, max(limit, max_hits), context.agent_id)
        for text in queries
    }
    snippets = await _load_snippets(context)
    described = await run_in_thread(describe_hits, system, hits, limit, snippets)
    if described.omitted:
        context.note(
            f"ot.search: {pluralize(described.omitted, 'more hit')}. To see more: limit={2 * limit}"
        )
    if described.weak:
        context.note(f"ot.search: {pluralize(described.weak, 'weak hit')} left out")
    return described.hits


@tool(effects=["read"], max_text=MAX_TEXT_CHARS)
async def help(context: ToolContext, query: str = "", info: Info = "min") -> str:  # noqa: A001 - the name users know
    """Show help: an overview, one tool, pack, snippet or alias in detail, or search results.

    Args:
        query: Name of a tool, pack or alias, `$name` of a snippet, or search keywords. Empty for an overview.
        info: "list" for names only, "min", or "full" for all fields.

    Example:
        ot.help(query="machine.disk")
    """
    if not query.strip():
        return help_text.OVERVIEW
    system = await _discover(context)
    snippets = await _load_snippets(context)
    if info != "list":
        text = await run_in_thread(
            help_text.render_name, query.strip(), system, info == "full", snippets
        )
        if text is not None:
            return help_text.cut(text)
    _note_unlisted(context)
    hits = await system.catalog.search(query, agent=context.agent_id)
    return help_text.cut(
        await run_in_thread(help_text.render_hits, query, hits, system, info, snippets)
    )


@tool(effects=["read"], labels=())
async def plan(context: ToolContext, code: str) -> JsonObject:
    """Show what code would do, without doing it (dry run): execute tools that only read, and list
    all other calls.

    The result has the `calls` in order with `tool`, `arguments`, `effects` and the `account` if the
    server has several, and the `value` of the code. Results of these calls are unknown: the plan
    ends (`ended`) where the code uses one for anything but an argument.

    Args:
        code: Python code, as for `run`.

    Example:
        ot.plan(code="fs.write(path='notes.txt', content=str(machine.now()))")
    """
    return await get_system(context).runs.plan(code, context)


# --- what an agent sees ---------------------------------------------------------------------------


async def _load_snippets(context: ToolContext) -> dict[str, Snippet]:
    """Return the snippets that the agent can use, also those that were saved."""
    system = get_system(context)
    return await run_in_thread(
        system.state.snippets.merge, system.settings.snippets, context.agent_id
    )


async def _discover(context: ToolContext) -> System:
    """Refresh the tools and return the system, restricted to the tools that the agent may call."""
    system = get_system(context)
    await system.discover()
    if not _is_restricted(context):
        return system
    return cast("System", await run_in_thread(_RestrictedSystem, system, context))


def _is_restricted(context: ToolContext) -> bool:
    """Return whether there may be tools that the agent may not call, or that code cannot call."""
    return context.tools is not None or bool(context.run.hidden)


async def _discover_and_note(context: ToolContext) -> System:
    """Return the same as `_discover`, and note which servers are not listed yet."""
    system = await _discover(context)
    _note_unlisted(context)
    return system


def _note_unlisted(context: ToolContext) -> None:
    if note := get_system(context).registry.note_unlisted(context):
        context.note(note)


class _RestrictedSystem:
    """The system as an agent with a list of tools, or a run with hidden packs, sees it."""

    def __init__(self, system: System, context: ToolContext) -> None:
        self.registry = system.registry.only(
            lambda tool: context.admits(tool) and python_name(tool.pack) not in context.run.hidden
        )
        self._system = system

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)


# --- lists ----------------------------------------------------------------------------------------


def _contains(pattern: str, *texts: str) -> bool:
    return any(pattern.casefold() in text.casefold() for text in texts)


@no_gc_pauses()
def _list_tools(system: System, pattern: str, info: Info) -> list[Any]:
    entries = [
        entry
        for entry in system.registry.entries()
        if entry.enabled
        and (not pattern or _contains(pattern, entry.name, python_name(entry.name)))
    ]
    if info == "list":
        return [entry.name for entry in entries]
    if info == "min":
        return [{"name": entry.name, "description": entry.summary} for entry in entries]
    tools = filter(None, (system.registry.find_exact(entry.name) for entry in entries))
    return [_describe_tool(tool, system.state.shapes.text(tool.name)) for tool in tools]


def _list_packs(system: System, pattern: str, info: Info) -> list[Any] | str:
    packs = [pack for pack in system.registry.packs() if _contains(python_name(pattern), pack)]
    if info == "full":
        texts = [help_text.render_pack(pack, system) for pack in packs]
        return (
            "\n\n".join(texts) or f"no pack matches {quote(pattern)}; call ot.packs() to list all"
        )
    return (
        packs if info == "list" else [help_text.pack_facts(pack, system.registry) for pack in packs]
    )


def _describe_tool(entry: Tool, observed: str | None) -> JsonObject:
    fields = {
        "name": entry.name,
        "signature": signature(entry),
        "description": entry.description,
        "source": entry.source,
        "args": arguments(entry),
        "returns": entry.returns,
        "effects": describe_effects(entry) if is_declared(entry) else None,
        "observed": observed,
        "example": entry.example,
    }
    always = {"name", "signature", "description", "source"}
    return {key: value for key, value in fields.items() if value or key in always}


# --- hits -----------------------------------------------------------------------------------------


def _check_queries(queries: list[str], limit: int) -> None:
    problem = ""
    if not queries or not all(text.strip() for text in queries):
        problem = "the query is empty"
    elif len(queries) > MAX_QUERIES:
        problem = f"{len(queries)} queries (expected at most {MAX_QUERIES})"
    elif any(len(text) > MAX_TEXT_CHARS for text in queries):
        problem = f"a query has more than {MAX_TEXT_CHARS} characters"
    elif limit < 1:
        problem = f"invalid limit {limit} (expected 1 or more)"
    if problem:
        raise ArgumentError(
            problem, hint="describe what you need: ot.search(query='free disk space', limit=5)"
        )


class DescribedHits(NamedTuple):
    hits: list[JsonObject]
    omitted: int  # because of the limit
    weak: int  # omitted, because they are far weaker than the best


def describe_hits(
    system: System,
    hits_by_query: Mapping[str, list[SearchHit]],
    limit: int,
    snippets: help_text.Snippets,
) -> DescribedHits:
    """Return each query's best hits, in turn, and how many hits were omitted.

    If there are several queries, each hit names the one that found it first.
    """
    listed: list[list[JsonObject]] = []
    omitted = weak = 0
    for query, hits in hits_by_query.items():
        described = _join_siblings(
            _describe(system, [hit for hit in hits if not hit.is_weak], snippets), system
        )
        source = {"query": query} if len(hits_by_query) > 1 else {}
        listed.append([{**hit, **source} for hit in described[:limit]])
        omitted += len(described[limit:])
        weak += sum(
            hit.is_weak and help_text.describe_hit(hit, system, snippets) is not None
            for hit in hits
        )
    in_turn = (hit for several in zip_longest(*listed) for hit in several if hit is not None)
    unique: dict[tuple[str, str], JsonObject] = {}
    for hit in in_turn:
        unique.setdefault((hit["kind"], hit["name"]), hit)
    return DescribedHits(list(unique.values()), omitted, weak)


def _describe(
    system: System, hits: list[SearchHit], snippets: help_text.Snippets
) -> Iterator[JsonObject]:
    for hit in help_text.sort_hits(hits):
        text = help_text.describe_hit(hit, system, snippets)
        if text is not None:
            call = help_text.call_example(hit, system, snippets)
            tool = system.registry.get(hit.name) if hit.kind in {"tool", "alias"} else None
            types = {} if tool is None else required_types(tool)
            required = {"required": types} if types else {}
            yield {
                "kind": hit.kind,
                "name": hit.name,
                **call,
                **required,
                "description": text,
                "score": hit.score,
            }


def _join_siblings(hits: Iterator[JsonObject], system: System) -> list[JsonObject]:
    """Return the hits, with tools that share a description under the best one."""
    first: dict[str, JsonObject] = {}
    joined = []
    for hit in hits:
        text = hit["description"]
        if hit["kind"] != "tool" or len(text) < MIN_SIBLING_TEXT or text not in first:
            joined.append(hit)
            if hit["kind"] == "tool":
                first.setdefault(text, hit)
        elif len(siblings := first[text].setdefault("siblings", [])) < MAX_SIBLINGS:
            siblings.append(_tell_apart(first[text], hit, system))
    return joined


def _tell_apart(hit: JsonMapping, sibling: JsonMapping, system: System) -> str:
    """Return how to call a sibling, and the arguments in which it differs."""
    tools = [system.registry.get(one["name"]) for one in (hit, sibling)]
    names = [
        {clean_if_foreign(name, tool) for name in tool.input.properties} if tool else set()
        for tool in tools
    ]
    more = sorted(names[1] - names[0])
    fewer = sorted(names[0] - names[1])
    notes = [f"with {', '.join(more)}"] if more else []
    notes += [f"without {', '.join(fewer)}"] if fewer else []
    call = str(sibling.get("call", sibling["name"]))
    return f"{call} - {'; '.join(notes)}" if notes else call
