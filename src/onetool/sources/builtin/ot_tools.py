"""The `ot` pack: discovery, help, results and status of OneTool itself, available through the
context.

Tools return plain data, or text for readers; the runner renders them. `help_text` has the texts of
`ot.help`. `ot.call`, `ot.pack`, `ot.parallel` and `ot.snippet` run inside the cell, in
`onetool_child.pack_proxy`.
"""

import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

from anyio.to_thread import run_sync as run_in_thread

from onetool.core.names import python_name
from onetool.core.policy.effects import describe_effects, is_declared
from onetool.core.signature import arguments, signature
from onetool.core.tool import Tool, tool
from onetool.errors import ArgumentError, ConfigError, SandboxDenied, ToolError
from onetool.runs.snippets import describe, render_signature
from onetool.settings.model import Snippet
from onetool.sources.builtin import help_text, search_hits
from onetool.sources.system import System, get_system
from onetool.util.context import Foreign, Permission, ToolContext
from onetool.util.gc_pauses import no_gc_pauses
from onetool.util.text import pluralize, quote
from onetool.util.version import __version__
from onetool_child.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onetool.state.session_store import SessionValue
    from onetool.state.stats.summary import StatsSummary

__all__ = [
    "aliases",
    "background",
    "config",
    "health",
    "help",
    "load",
    "notify",
    "packs",
    "plan",
    "prompt",
    "reload",
    "resources",
    "result",
    "run_result",
    "save_snippet",
    "scaffold",
    "search",
    "session",
    "session_update",
    "snippets",
    "stats",
    "tools",
    "version",
]

Info = Literal["list", "min", "full"]
ALL_LABELS = ("private", "untrusted")  # of data from upstream servers
# of session values: an untrusted server returned them, so that answers with them are marked
FOREIGN = "foreign"
MAX_TEXT_CHARS = 10_000  # of a query, a name or a pattern
MAX_WAIT_SECONDS = 20.0
MAX_HITS = 1000  # if some hits are removed
MAX_COUNTED_HITS = 100  # to say how many hits were omitted
MAX_QUERIES = 10  # in one search
ADD_TOPIC = "a person adds a pattern and a file under notify.topics in onetool.yaml"


# --- status ---------------------------------------------------------------------------------------


@tool(effects=["read"])
async def version() -> str:
    """Return the version of OneTool.

    Example:
        ot.version()
    """
    return __version__


@tool(effects=["read"])
async def health(context: ToolContext) -> JsonObject:
    """Check what is wrong: the status of OneTool, its components, tools and code isolation, with
    all problems.

    Example:
        ot.health()
    """
    found = dict(await get_system(context).health())
    del found["findings"]  # `problems` has the same in short
    return found


@tool(effects=["read"], idempotent=True)
async def reload(context: ToolContext) -> str:
    """Reload all configuration. If the new configuration is invalid, the old one stays in effect.

    Example:
        ot.reload()
    """
    system = get_system(context)
    try:
        answer = await system.live_settings.reload()
    except ConfigError as error:
        hint = "nothing was changed; fix this, then call ot.reload() again"
        raise ConfigError(str(error), hint=hint) from None
    for problem in system.problems:
        context.note(f"ot.reload: {problem}")
    return answer


@tool(effects=["read"])
async def config(context: ToolContext) -> JsonObject:
    """Show the configuration: aliases, snippets with descriptions, server names.

    Example:
        ot.config()
    """
    settings = get_system(context).settings
    return {
        "aliases": dict(settings.aliases),
        "snippets": {
            name: {"description": snippet.description}
            for name, snippet in settings.snippets.items()
        },
        "servers": list(settings.servers),
    }


@tool(effects=["write"], is_audited=True)
async def notify(context: ToolContext, topic: str, message: Any) -> str:
    """Leave a message (notification) for people: append it to the file configured for the topic.

    Args:
        topic: The topic, like "notes" or "build:failed".
        message: A string or data.

    Example:
        ot.notify(topic="notes", message="Remember to review PR #123")
    """
    from onetool.state.notices import NO_TOPIC, count_message, publish

    system = get_system(context)
    settings = system.settings.notify
    if settings.topics:
        await run_in_thread(
            count_message, system.state.counters, context.agent_id, settings.per_minute
        )
    notices = system.state.notices(settings.max_file_bytes)
    answer = await run_in_thread(publish, settings.topics, notices, topic, message, time.time)
    if answer == NO_TOPIC:
        context.note(
            f"ot.notify: nobody gets this message. To keep messages on {quote(topic)}, {ADD_TOPIC}"
        )
    return answer


@tool(
    effects=["read"],
    argument_permissions={"output": frozenset({Permission.WRITE})},
    max_text=MAX_TEXT_CHARS,
)
async def stats(
    context: ToolContext, period: str = "all", tool: str = "", output: str = ""
) -> JsonObject:
    """Return usage statistics: how often each tool was called and failed, durations, savings.

    Tokens are estimates.

    Requests over HTTP with a token see the statistics of their agent, all others those of all
    agents.

    Args:
        period: "day", "week", "month" or "all".
        tool: Only this tool (name or alias).
        output: Also write a report to this HTML file in the working directory.

    Example:
        ot.stats(period="day")
    """
    system = get_system(context)
    if not system.settings.stats.enabled:
        raise ToolError(
            "Error: Statistics are disabled. Set stats: {enabled: true} in onetool.yaml to collect"
            " them."
        )
    agent = None if context.caller.is_owner else context.agent_id
    summarize = partial(run_in_thread, _summarize, system, agent, period, tool)
    summary = await system.state.recorder.summaries.join(summarize, (agent, period, tool))
    if output:
        await run_in_thread(partial(_write_report, context, summary, output))
    public = {key: value for key, value in summary.items() if key != "series"}
    problem = system.state.recorder.problem  # say so if some calls could not be recorded
    return {
        **public,
        **({"html_report": output} if output else {}),
        **({"problem": problem} if problem else {}),
    }


@tool(permissions=["write"], max_text=MAX_TEXT_CHARS)
async def scaffold(context: ToolContext, pack: str) -> str:
    """Write an example extension pack to edit, to add tools of your own.

    Args:
        pack: Name of the new pack.

    Example:
        ot.scaffold(pack="weather")
    """
    from onetool.settings.scaffold import write_extension

    directories = get_system(context).directories
    file = await run_in_thread(write_extension, directories.data, pack)
    needs_trust = directories.data != directories.user
    more = " A person must run `onetool trust` in that directory first." if needs_trust else ""
    return f"OK: wrote {file}.{more} Then try: {pack}.greet(name='Ada')"


# --- discovery ------------------------------------------------------------------------------------


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
    known = get_system(context).settings.aliases
    found = {
        name: target for name, target in sorted(known.items()) if _contains(pattern, name, target)
    }
    if info == "full":
        return [{"name": name, "target": target} for name, target in found.items()]
    return (
        list(found) if info == "list" else [f"{name} -> {target}" for name, target in found.items()]
    )


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
    known = await _load_snippets(context)
    found = [name for name in sorted(known) if _contains(pattern, name, known[name].description)]
    if info == "full":
        texts = await run_in_thread(lambda: [describe(name, known[name], known) for name in found])
        message = f"no snippet matches {quote(pattern)}; call ot.snippets() to list all"
        message = (
            message
            if known
            else "no snippets are configured; add them under snippets: in onetool.yaml"
        )
        return "\n\n---\n\n".join(filter(None, texts)) or message
    return found if info == "list" else [f"{name}: {known[name].description}" for name in found]


async def _name_run(args: "JsonMapping", context: ToolContext) -> "JsonMapping":
    """Replace `last` by the ID of the run, because another run may be the last one when a person
    answers.
    """
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
    wanted = MAX_HITS if _is_restricted(context) else MAX_COUNTED_HITS
    hits = {
        text: await system.catalog.search(text, max(limit, wanted), context.agent_id)
        for text in queries
    }
    snippets = await _load_snippets(context)
    found = await run_in_thread(search_hits.describe_hits, system, hits, limit, snippets)
    if found.omitted:
        context.note(
            f"ot.search: {pluralize(found.omitted, 'more hit')}. To see more: limit={2 * limit}"
        )
    if found.weak:
        context.note(f"ot.search: {pluralize(found.weak, 'weak hit')} left out")
    return found.hits


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


async def _load_snippets(context: ToolContext) -> dict[str, Snippet]:
    """Return the snippets that the agent can use, also those that were saved."""
    system = get_system(context)
    return await run_in_thread(
        system.state.snippets.merge, system.settings.snippets, context.agent_id
    )


# --- upstream servers -----------------------------------------------------------------------------


@tool(
    permissions=["network"],
    effects=["read", "external"],
    labels=ALL_LABELS,
    max_text=MAX_TEXT_CHARS,
)
async def resources(context: ToolContext, server: str, uri: str = "") -> Any:
    """List the resources of an upstream server, or read one.

    Args:
        server: Name of the server.
        uri: The resource to read; omit it to list all.

    Example:
        ot.resources(server="docs", uri="file:///readme.md")
    """
    upstream = get_system(context).servers.upstream(server)
    if uri:
        return await upstream.read_resource(uri, context)
    return await upstream.list_resources(context)


@tool(
    permissions=["network"],
    effects=["read", "external"],
    labels=ALL_LABELS,
    max_text=MAX_TEXT_CHARS,
)
async def prompt(
    context: ToolContext, server: str, name: str = "", arguments: dict[str, str] | None = None
) -> Any:
    """List the prompts of an upstream server, or render one.

    Args:
        server: Name of the server.
        name: The prompt to render; omit it to list all.
        arguments: Arguments of the prompt.

    Example:
        ot.prompt(server="docs", name="summarize", arguments={"topic": "cells"})
    """
    upstream = get_system(context).servers.upstream(server)
    if name:
        return await upstream.get_prompt(name, arguments or {}, context)
    return await upstream.list_prompts(context)


# --- large results --------------------------------------------------------------------------------


@tool(effects=["read"], logged=("handle", "offset", "limit", "search"), max_text=MAX_TEXT_CHARS)
async def result(  # noqa: PLR0917 - callers may pass all of these by position
    context: ToolContext,
    handle: str,
    offset: int = 1,
    limit: int = 100,
    search: str = "",
    fuzzy: bool = False,
    ignore_case: bool = False,
    unit: Literal["auto", "lines", "chars"] = "auto",
) -> JsonObject:
    """Read part of a stored (large) result by its handle.

    Args:
        handle: The handle from the summary.
        offset: First line, counted from 1.
        limit: Maximum number of lines.
        search: Only lines that match this regular expression; offset and limit then count matches.
        fuzzy: Search for similar text instead, best match first.
        ignore_case: Whether to search case-insensitively.
        unit: Count lines or characters; "auto" uses characters if lines are too long.

    Example:
        ot.result(handle="abc123", search="error", limit=20)
    """
    window = partial(
        get_system(context).results.window,
        *(handle, offset, limit, search, fuzzy),
        unit=unit,
        ignore_case=ignore_case,
        agent=context.agent_id,
        token_id=context.token_id,
    )
    found: JsonObject = await run_in_thread(window)
    await _mark_untrusted(context, handle)
    return found


@tool(effects=["read"])
async def background(context: ToolContext, tool: str, /, **arguments: Any) -> str:
    """Start a call that takes long, and return the ID of its run at once.

    The call outlives this run.

    Args:
        tool: Name of the tool
        arguments: Arguments of the tool

    Example:
        ot.background("test.run", path="tests")
    """
    return await get_system(context).runs.start_call(tool, arguments, context)


@tool(effects=["read"])
async def run_result(context: ToolContext, run: str, wait: float = 2.0) -> Any:
    """Return the value of a run that was paused or started in the background, once it is done.

    Before, it returns text that begins with `paused` (a person has not answered yet) or `running`.
    If the run failed, its error is raised.

    Args:
        run: ID of the run, such as r_0123...
        wait: Seconds to wait for the run (at most 20)

    Example:
        ot.run_result("r_8f14e45fceea167a5a36dedd4bea2543")
    """
    runs = get_system(context).runs
    return await runs.get_result(
        run, context.agent_id, context.token_id, min(max(wait, 0.0), MAX_WAIT_SECONDS)
    )


@tool(effects=["read"], logged=("handle",), continued_by="part", max_text=MAX_TEXT_CHARS)
async def load(context: ToolContext, handle: str, part: int | None = None) -> Any:
    """Load a complete stored result as data, to process in code or pass to another tool.

    Args:
        handle: The handle from the summary.
        part: Internal: only this part of the text, counted from 0.

    Example:
        len(ot.load(handle="abc123"))
    """
    results = get_system(context).results
    await _mark_untrusted(context, handle)
    if part is None:
        return await run_in_thread(results.load, handle, context.agent_id, context.token_id)
    return await run_in_thread(results.part, handle, part, context.agent_id, context.token_id)


async def _mark_untrusted(context: ToolContext, handle: str) -> None:
    """Mark the run as untrusted if the stored result came from an untrusted server, and label the
    session.
    """
    labels = context.run.labels
    origin = partial(get_system(context).results.origin, handle, context.agent_id, context.token_id)
    source, is_untrusted, stored = await run_in_thread(origin)
    if is_untrusted:
        context.run.record_foreign(Foreign(source, {}, is_untrusted))
    if labels is not None:
        labels.merge(stored)


# --- values between runs --------------------------------------------------------------------------


@tool(effects=["read"], labels=(), logged=("handle",), max_text=MAX_TEXT_CHARS)
async def session(
    context: ToolContext, handle: str = "", keys: list[str] | None = None
) -> JsonObject:
    """Create or open a session: JSON values that are kept between runs, for example state or
    progress.

    In code it is a dictionary: s = ot.session(); s["page"] = 1; s.id is the handle. Later runs:
    ot.session(handle). A session belongs to the agent and token that created it, and expires 24
    hours after its last use.

    Args:
        handle: The handle of a session; omit it to create one.
        keys: The values to read; omit it to list the keys.

    Example:
        s = ot.session(); s["page"] = 1; s.id
    """
    sessions = get_system(context).state.sessions
    owner = (context.agent_id, context.token_id)
    if not handle:
        return {"session": await run_in_thread(sessions.create, *owner), "keys": []}
    if keys is None:
        return {"session": handle, "keys": await run_in_thread(sessions.list_keys, handle, *owner)}
    found = await run_in_thread(sessions.get, handle, keys, *owner)
    return {"session": handle, "values": await run_in_thread(_parse_values, context, found)}


@tool(effects=["read"], labels=(), idempotent=True, logged=("handle",), max_text=MAX_TEXT_CHARS)
async def session_update(
    context: ToolContext,
    handle: str,
    values: JsonObject | None = None,
    remove: list[str] | None = None,
    replace: bool = True,
) -> JsonObject:
    """Store values in a session and remove keys, all at once. Return the removed values.

    Args:
        handle: The handle of the session.
        values: JSON values by key.
        remove: Keys to remove.
        replace: Whether to replace existing values; if not, they are kept and returned.

    Example:
        ot.session_update(handle="s_...", values={"page": 2})
    """
    sessions = get_system(context).state.sessions
    labels = _get_labels(context)

    def update() -> JsonObject:
        from onetool.state.session_store import SessionValue

        texts = {
            key: SessionValue(_encode_value(key, value), labels)
            for key, value in (values or {}).items()
        }
        owner = context.agent_id, context.token_id
        return _parse_values(
            context, sessions.update(handle, texts, *owner, removed=remove or (), replaces=replace)
        )

    return await run_in_thread(update)


def _get_labels(context: ToolContext) -> tuple[str, ...]:
    """Return the labels of what the client session has read so far; they stay with the values that
    it stores.
    """
    labels = context.run.labels
    found = set() if labels is None else set(labels.names)
    if context.run.is_untrusted():
        found |= {"untrusted", FOREIGN}
    return tuple(sorted(found))


def _encode_value(key: str, value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        raise ArgumentError(
            f"the value of {quote(key)} has NaN or Infinity, which JSON does not have"
        ) from None


def _parse_values(context: ToolContext, found: "Mapping[str, SessionValue]") -> JsonObject:
    """Return stored values as data, and mark the run and the client session with their labels."""
    stored = {label for value in found.values() for label in value.labels}
    if (labels := context.run.labels) is not None:
        labels.add(stored, "ot.session")
    if FOREIGN in stored:
        context.run.record_foreign(Foreign("ot.session", {}, is_untrusted=True))
    return {key: json.loads(value.text) for key, value in found.items()}


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


# --- helpers --------------------------------------------------------------------------------------


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


def _contains(pattern: str, *texts: str) -> bool:
    return any(pattern.casefold() in text.casefold() for text in texts)


@no_gc_pauses()
def _list_tools(system: System, pattern: str, info: Info) -> list[Any]:
    found = [
        entry
        for entry in system.registry.entries()
        if entry.enabled
        and (not pattern or _contains(pattern, entry.name, python_name(entry.name)))
    ]
    if info == "list":
        return [each.name for each in found]
    if info == "min":
        return [{"name": each.name, "description": each.summary} for each in found]
    tools = filter(None, (system.registry.find_exact(each.name) for each in found))
    return [_describe_tool(each, system.state.shapes.text(each.name)) for each in tools]


def _list_packs(system: System, pattern: str, info: Info) -> list[Any] | str:
    found = [pack for pack in system.registry.packs() if _contains(python_name(pattern), pack)]
    if info == "full":
        texts = [help_text.render_pack(pack, system) for pack in found]
        return (
            "\n\n".join(texts) or f"no pack matches {quote(pattern)}; call ot.packs() to list all"
        )
    return (
        found if info == "list" else [help_text.pack_facts(pack, system.registry) for pack in found]
    )


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


def _summarize(system: System, agent: str | None, period: str, name: str) -> "StatsSummary":
    from onetool.state.stats.summary import summarize

    system.state.recorder.flush()  # include the calls of this session
    entry = system.registry.get(name) if name in system.registry.aliases else None
    round_trip_ms = system.settings.stats.round_trip_ms
    tool_name = entry.name if entry else name
    statistics = system.state.recorder.database
    return summarize(
        statistics, period, tool_name or None, agent=agent, round_trip_ms=round_trip_ms
    )


def _write_report(context: ToolContext, summary: "StatsSummary", output: str) -> None:
    from onetool.sources import files
    from onetool.state.stats.report import render_html

    try:
        files.write(
            files.Files(context),
            output,
            render_html(summary).encode("utf-8", "backslashreplace"),
            backup=False,
        )
    except (OSError, ToolError) as error:
        reason = getattr(error, "message", "") or getattr(error, "strerror", "") or error
        kind = SandboxDenied if isinstance(error, SandboxDenied) else ToolError
        raise kind(
            f"Error: Cannot write to '{output}': {reason}", hint=getattr(error, "hint", "")
        ) from None
