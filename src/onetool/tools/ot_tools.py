"""The `ot` pack: what a model asks OneTool about itself. Everything comes through the context.

All results are plain data, or text where a reader is meant; how they are shown is the runner's business. The texts of
`ot.help` are in `help_text`. `ot.call`, `ot.pack`, `ot.parallel` and `ot.snippet` are done on the code's side of the
pipe, in `onetool_child.pack_proxy`.
"""

import time
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, cast

import anyio.to_thread

from onetool._tool import Tool, tool
from onetool.context import Foreign, Permission, ToolContext
from onetool.errors import ArgumentError, ConfigError, SandboxDenied, ToolError
from onetool.registry import Registry, python_name
from onetool.search import SearchHit
from onetool.signature import arguments, signature
from onetool.system import System, system_of
from onetool.tools import help_text
from onetool.util.gc_pauses import no_gc_pauses
from onetool.version import __version__

if TYPE_CHECKING:
    from onetool.stats.summary import Summary

__all__ = [
    "aliases",
    "config",
    "health",
    "help",
    "load",
    "notify",
    "packs",
    "prompt",
    "reload",
    "resources",
    "result",
    "scaffold",
    "search",
    "snippets",
    "stats",
    "tools",
    "version",
]

Info = Literal["list", "min", "full"]
MAX_TEXT = 10_000  # characters of a query, a name or a pattern
MOST_SEARCHED = 1000  # where some of what is found may not be shown


# --- the running product ----------------------------------------------------------------------------------------------


@tool()
async def version() -> str:
    """The version of OneTool.

    Example:
        ot.version()
    """
    return __version__


@tool()
async def health(context: ToolContext) -> dict[str, Any]:
    """What is wrong right now: the status of OneTool and its parts, tools, isolation of code, problems found.

    Example:
        ot.health()
    """
    found = dict(await system_of(context).health())
    del found["findings"]  # `problems` says the same in fewer words
    return found


@tool()
async def reload(context: ToolContext) -> str:
    """Read all configuration again. Where the new one is wrong, the old one stays in force.

    Example:
        ot.reload()
    """
    try:
        return await system_of(context).reload()
    except ConfigError as error:
        hint = "nothing was changed; correct this, then type ot.reload() again"
        raise ConfigError(str(error), hint=hint) from None


@tool()
async def config(context: ToolContext) -> dict[str, Any]:
    """What is configured: aliases, snippets with their descriptions, names of servers.

    Example:
        ot.config()
    """
    settings = system_of(context).settings
    return {
        "aliases": dict(settings.aliases),
        "snippets": {name: {"description": snippet.description} for name, snippet in settings.snippets.items()},
        "servers": list(settings.servers),
    }


@tool(is_audited=True)
async def notify(context: ToolContext, topic: str, message: Any) -> str:
    """Leave a message for people: it is appended to the file that the configuration names for the topic.

    Args:
        topic: What it is about, like "notes" or "build:failed".
        message: A text, or data.

    Example:
        ot.notify(topic="notes", message="Remember to review PR #123")
    """
    from onetool.notify import publish

    system, settings = system_of(context), system_of(context).settings.notify
    if settings.topics:
        system.stores.notify_rate.take(context.agent_id, settings.per_minute)
    notices = system.stores.notices(settings)
    return await anyio.to_thread.run_sync(publish, settings.topics, notices, topic, message, time.time)


@tool(argument_permissions={"output": frozenset({Permission.WRITE})}, max_text=MAX_TEXT)
async def stats(context: ToolContext, period: str = "all", tool: str = "", output: str = "") -> dict[str, Any]:
    """Statistics of usage: which tools were called, how it went (errors, times), what it saved. Tokens are estimates.

    Over HTTP with a token they are those of the token's agent, otherwise those of all agents.

    Args:
        period: "day", "week", "month" or "all".
        tool: Only this tool, by its name or an alias.
        output: Also write a report to this HTML file, inside of the working folder.

    Example:
        ot.stats(period="day")
    """
    system = system_of(context)
    if not system.settings.stats.enabled:
        raise ToolError("Error: Statistics are disabled. Set stats: {enabled: true} in onetool.yaml to collect them.")
    summary = await anyio.to_thread.run_sync(partial(_summary, context, period, tool))
    if output:
        await anyio.to_thread.run_sync(partial(_write_report, context, summary, output))
    shown = {key: value for key, value in summary.items() if key != "series"}
    problem = system.stores.recorder.problem  # figures that lack what could not be written are to say so
    return {**shown, **({"html_report": output} if output else {}), **({"problem": problem} if problem else {})}


@tool(permissions=["write"], max_text=MAX_TEXT)
async def scaffold(context: ToolContext, pack: str) -> str:
    """Write an example extension pack, to add tools of your own: edit it into a real one.

    Args:
        pack: The name of the new pack.

    Example:
        ot.scaffold(pack="weather")
    """
    from onetool.config.scaffold import write_extension

    folders = system_of(context).folders
    file = await anyio.to_thread.run_sync(write_extension, folders.data, pack)
    asked = folders.data != folders.user
    more = " A person has to type `onetool trust` in that folder before it runs." if asked else ""
    return f"OK: wrote {file}.{more} Then try: {pack}.greet(name='Ada')"


# --- what there is ------------------------------------------------------------------------------------------------


@tool(max_text=MAX_TEXT)
async def tools(context: ToolContext, pattern: str = "", info: Info = "min") -> list[Any]:
    """List tools, all or those whose name contains the pattern.

    Args:
        pattern: Part of a name, in any case.
        info: "list" for names, "min" for a line each, "full" for signatures and arguments.

    Example:
        ot.tools(pattern="disk", info="full")
    """
    system = await _listed(context)
    return await anyio.to_thread.run_sync(_list_tools, system, pattern, info)


@tool(max_text=MAX_TEXT)
async def packs(context: ToolContext, pattern: str = "", info: Info = "min") -> list[Any] | str:
    """List packs, all or those whose name contains the pattern.

    Args:
        pattern: Part of a name, in any case.
        info: "list" for names, "min" for what they are, "full" for their tools too.

    Example:
        ot.packs(info="full")
    """
    system = await _listed(context)
    return await anyio.to_thread.run_sync(_list_packs, system, pattern, info)


@tool(max_text=MAX_TEXT)
async def aliases(context: ToolContext, pattern: str = "", info: Info = "min") -> list[Any]:
    """List aliases: short names for tools. All, or those where alias or target contains the pattern.

    Args:
        pattern: Part of an alias or of its target, in any case.
        info: "list" for names, "min" for `alias -> target`, "full" for both as data.

    Example:
        ot.aliases()
    """
    known = system_of(context).settings.aliases
    found = {name: target for name, target in sorted(known.items()) if _has(pattern, name, target)}
    if info == "full":
        return [{"name": name, "target": target} for name, target in found.items()]
    return list(found) if info == "list" else [f"{name} -> {target}" for name, target in found.items()]


@tool(max_text=MAX_TEXT)
async def snippets(context: ToolContext, pattern: str = "", info: Info = "min") -> list[Any] | str:
    """List snippets: code with blanks, run as `$name key=value`. All, or those that contain the pattern.

    Args:
        pattern: Part of a name or description, in any case.
        info: "list" for names, "min" for `name: description`, "full" for definition and an example.

    Example:
        ot.snippets()
    """
    system = system_of(context)
    known = system.settings.snippets
    found = [name for name in sorted(known) if _has(pattern, name, known[name].description)]
    if info == "full":
        texts = await anyio.to_thread.run_sync(lambda: [help_text.of_snippet(name, system) for name in found])
        none = f"No snippet matches {pattern!r}. Type ot.snippets() to see all."
        none = none if known else "No snippets are configured. They stand under snippets: in onetool.yaml."
        return "\n\n---\n\n".join(filter(None, texts)) or none
    return found if info == "list" else [f"{name}: {known[name].description}" for name in found]


@tool(max_text=MAX_TEXT)
async def search(context: ToolContext, query: str, limit: int = 10) -> list[dict[str, Any]]:
    """Find tools, packs, snippets and aliases by name, by a misspelt name, or by what they are for.

    `call` shows how to call what was found; ot.help(query=name) says what the arguments mean.

    Args:
        query: A name or some words.
        limit: How many at most.

    Example:
        ot.search(query="how much room is left on the disk")
    """
    if not query.strip() or limit < 1:
        wrong = f"limit must be >= 1, got {limit}" if query.strip() else "the query is empty"
        raise ArgumentError(f"{wrong}. Say what you are looking for: ot.search(query='free disk space', limit=5)")
    system = await _listed(context)
    hits = await system.search(query, limit if context.tools is None else MOST_SEARCHED)
    return await anyio.to_thread.run_sync(_describe_hits, system, hits, limit)


@tool(max_text=MAX_TEXT)
async def help(context: ToolContext, query: str = "", info: Info = "min") -> str:  # noqa: A001 - the name users know
    """Help: an overview, all about one tool, pack, snippet or alias, or what fits some words.

    Args:
        query: The name of a tool, pack or alias, `$name` of a snippet, or words to search for. Empty for an overview.
        info: "list" for names only, "min", or "full" for every field there is.

    Example:
        ot.help(query="machine.disk")
    """
    if not query.strip():
        return help_text.OVERVIEW
    system = await _seen(context)
    if info != "list":
        text = await anyio.to_thread.run_sync(help_text.of_name, query.strip(), system, info == "full")
        if text is not None:
            return text
    _note_unlisted(context)
    hits = await system.search(query)
    return await anyio.to_thread.run_sync(help_text.of_hits, query, hits, system, info)


# --- other servers ---------------------------------------------------------------------------------------------------


@tool(permissions=["network"], max_text=MAX_TEXT)
async def resources(context: ToolContext, server: str, uri: str = "") -> Any:
    """The resources of a proxied server: a list of them, or the content of one.

    Args:
        server: The name of the server.
        uri: Which one to read; leave it out for the list.

    Example:
        ot.resources(server="docs", uri="file:///readme.md")
    """
    upstream = system_of(context).servers.upstream(server)
    if uri:
        return await upstream.read_resource(uri, context)
    return await upstream.list_resources(context)


@tool(permissions=["network"], max_text=MAX_TEXT)
async def prompt(context: ToolContext, server: str, name: str = "", arguments: dict[str, str] | None = None) -> Any:
    """The prompts of a proxied server: a list of them, or one filled in.

    Args:
        server: The name of the server.
        name: Which prompt; leave it out for the list.
        arguments: What to fill in.

    Example:
        ot.prompt(server="docs", name="summarise", arguments={"topic": "cells"})
    """
    upstream = system_of(context).servers.upstream(server)
    if name:
        return await upstream.get_prompt(name, arguments or {}, context)
    return await upstream.list_prompts(context)


# --- large results ------------------------------------------------------------------------------------------------


@tool(logged=("handle", "offset", "limit", "search"), max_text=MAX_TEXT)
async def result(  # noqa: PLR0917 - each is an argument that a model may give by its place
    context: ToolContext,
    handle: str,
    offset: int = 1,
    limit: int = 100,
    search: str = "",
    fuzzy: bool = False,
    ignore_case: bool = False,
    unit: Literal["auto", "lines", "chars"] = "auto",
) -> dict[str, Any]:
    """A part of a result that was too large to be shown, by the handle that the summary named.

    Args:
        handle: The handle, as the answer named it.
        offset: The first line, from 1 on.
        limit: How many lines at most.
        search: Only lines that match this regular expression; offset and limit count those.
        fuzzy: Search for what is similar instead, the best first.
        ignore_case: Search in any case.
        unit: Count lines, or characters where lines are of no use; "auto" chooses.

    Example:
        ot.result(handle="abc123", search="error", limit=20)
    """
    window = partial(
        system_of(context).results.window,
        *(handle, offset, limit, search, fuzzy),
        unit=unit,
        ignore_case=ignore_case,
        agent=context.agent_id,
        token_id=context.token_id,
    )
    found: dict[str, Any] = await anyio.to_thread.run_sync(window)
    await _tell_origin(context, handle)
    return found


@tool(logged=("handle",), continued_by="part", max_text=MAX_TEXT)
async def load(context: ToolContext, handle: str, part: int | None = None) -> Any:
    """The whole of a stored result as data, for code to work with or to pass to another tool.

    Args:
        handle: The handle that the summary named.
        part: Only this part of its text, counted from 0; code that calls ot.load need not know.

    Example:
        len(ot.load(handle="abc123"))
    """
    results = system_of(context).results
    await _tell_origin(context, handle)
    if part is None:
        return await anyio.to_thread.run_sync(results.load, handle, context.agent_id, context.token_id)
    return await anyio.to_thread.run_sync(results.part, handle, part, context.agent_id, context.token_id)


async def _tell_origin(context: ToolContext, handle: str) -> None:
    """What a server said is still what it said when it is looked at later."""
    if context.heard is not None:
        origin = partial(system_of(context).results.origin, handle, context.agent_id, context.token_id)
        source, is_untrusted = await anyio.to_thread.run_sync(origin)
        if is_untrusted:
            context.heard(Foreign(source, {}, is_untrusted))


# --- parts --------------------------------------------------------------------------------------------------------


async def _seen(context: ToolContext) -> System:
    """The product with all tools there are at this moment and that the agent may call."""
    system = system_of(context)
    await system.discover()
    if context.tools is None:
        return system
    return cast("System", await anyio.to_thread.run_sync(_Narrowed, system, context))


async def _listed(context: ToolContext) -> System:
    """Return the same, and note which servers are missing from it."""
    system = await _seen(context)
    _note_unlisted(context)
    return system


def _note_unlisted(context: ToolContext) -> None:
    if context.notice is not None and (note := system_of(context).registry.note_unlisted(context)):
        context.notice(note)


class _Narrowed:
    """The product as an agent with a list of tools sees it."""

    def __init__(self, system: System, context: ToolContext) -> None:
        self.registry: Registry = system.registry.only(context.admits)
        self._system = system

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)


def _has(pattern: str, *texts: str) -> bool:
    return any(pattern.casefold() in text.casefold() for text in texts)


@no_gc_pauses()
def _list_tools(system: System, pattern: str, info: Info) -> list[Any]:
    entries = system.registry.entries(described=info == "min")
    found = [each for each in entries if each.enabled and _has(pattern, each.name, python_name(each.name))]
    if info == "list":
        return [each.name for each in found]
    if info == "min":
        return [{"name": each.name, "description": each.summary} for each in found]
    tools = filter(None, (system.registry.known(each.name) for each in found))
    return [_full(each, system.stores.shapes.text(each.name)) for each in tools]


def _list_packs(system: System, pattern: str, info: Info) -> list[Any] | str:
    found = [pack for pack in system.registry.packs() if _has(python_name(pattern), pack)]
    if info == "full":
        texts = [help_text.of_pack(pack, system) for pack in found]
        return "\n\n".join(texts) or f"No pack matches {pattern!r}. Type ot.packs() to see all."
    return found if info == "list" else [help_text.pack_facts(pack, system.registry) for pack in found]


def _describe_hits(system: System, hits: list[SearchHit], limit: int) -> list[dict[str, Any]]:
    found = (
        {"kind": hit.kind, "name": hit.name, **help_text.call(hit, system), "description": text, "score": hit.score}
        for hit in help_text.in_order(hits)
        if (text := help_text.line(hit, system)) is not None
    )
    return list(islice(found, limit))


def _full(entry: Tool, observed: str | None) -> dict[str, Any]:
    facts = {
        "name": entry.name,
        "signature": signature(entry),
        "description": entry.description,
        "source": entry.source,
        "args": arguments(entry),
        "returns": entry.returns,
        "observed": observed,
        "example": entry.example,
    }
    always = {"name", "signature", "description", "source"}
    return {key: value for key, value in facts.items() if value or key in always}


def _summary(context: ToolContext, period: str, name: str) -> "Summary":
    from onetool.stats.summary import summarise

    system, agent = system_of(context), None if context.is_owner else context.agent_id
    system.stores.recorder.flush()  # the calls of this very session count too
    entry = system.registry.get(name) if name in system.registry.aliases else None
    round_trip_ms = system.settings.stats.round_trip_ms
    wanted = entry.name if entry else name
    return summarise(system.stores.stats_file, period, wanted or None, agent=agent, round_trip_ms=round_trip_ms)


def _write_report(context: ToolContext, summary: "Summary", output: str) -> None:
    from onetool import files
    from onetool.stats.report import html

    try:
        files.write(files.Files(context), output, html(summary).encode("utf-8", "backslashreplace"), backup=False)
    except (OSError, ToolError) as error:
        reason = getattr(error, "message", "") or getattr(error, "strerror", "") or error
        kind = SandboxDenied if isinstance(error, SandboxDenied) else ToolError
        raise kind(f"Error: Cannot write to '{output}': {reason}") from None
