"""The `ot` pack: discovery, help, results and status of OneTool itself, available through the
context.

Tools return plain data, or text for readers; the runner renders them. `ot_discovery` has the tools
that a model uses before it writes code. `ot.call`, `ot.pack`, `ot.parallel` and `ot.snippet` run inside the cell, in
`onetool_child.pack_proxy`.
"""

import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from anyio.to_thread import run_sync as run_in_thread

from onetool.core.tool import tool
from onetool.errors import ArgumentError, ConfigError, SandboxDenied, ToolError
from onetool.sources.builtin.ot_discovery import (
    MAX_TEXT_CHARS,
    aliases,
    help,  # noqa: A004 - the name users know
    packs,
    plan,
    save_snippet,
    search,
    snippets,
    tools,
)
from onetool.sources.system import System, get_system
from onetool.util.context import Foreign, Permission, ToolContext
from onetool.util.text import quote
from onetool.util.version import __version__
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onetool.state.session_store import SessionValue
    from onetool.state.stats.summary import StatsSummary

__all__ = [
    "aliases", "background", "config", "health", "help", "load", "notify", "packs", "plan", "prompt",
    "reload", "resources", "result", "run_result", "save_snippet", "scaffold", "search", "session",
    "session_update", "snippets", "stats", "tools", "version",
]  # fmt: skip

ALL_LABELS = ("private", "untrusted")  # of data from upstream servers
# of session values: an untrusted server returned them, so that answers with them are marked
FOREIGN = "foreign"
MAX_WAIT_SECONDS = 20.0
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
    report = dict(await get_system(context).health())
    del report["findings"]  # `problems` has the same in short
    return report


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
    shown: JsonObject = await run_in_thread(window)
    await _mark_untrusted(context, handle)
    return shown


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
    """Mark run and session if the stored result came from an untrusted server."""
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
    stored = await run_in_thread(sessions.get, handle, keys, *owner)
    return {"session": handle, "values": await run_in_thread(_parse_values, context, stored)}


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
    """Return the labels on what the session has read; they stay with stored values."""
    labels = context.run.labels
    names = set() if labels is None else set(labels.names)
    if context.run.is_untrusted():
        names |= {"untrusted", FOREIGN}
    return tuple(sorted(names))


def _encode_value(key: str, value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        raise ArgumentError(
            f"the value of {quote(key)} has NaN or Infinity, which JSON does not have"
        ) from None


def _parse_values(context: ToolContext, values: "Mapping[str, SessionValue]") -> JsonObject:
    """Return stored values as data, and mark the run and the client session with their labels."""
    stored = {label for value in values.values() for label in value.labels}
    if (labels := context.run.labels) is not None:
        labels.add(stored, "ot.session")
    if FOREIGN in stored:
        context.run.record_foreign(Foreign("ot.session", {}, is_untrusted=True))
    return {key: json.loads(value.text) for key, value in values.items()}


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
