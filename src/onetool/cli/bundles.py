"""Manage bundles of HTTP tools. Running servers see changes at once."""

import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from onetool.cli.command import Actions, Command, add_destination
from onetool.cli.invocation import Invocation
from onetool.cli.terminal import is_terminal
from onetool.core.names import join_names, nearest, python_name
from onetool.errors import BundleError, ToolError
from onetool.util.sanitize import clean
from onetool.util.text import pluralize, quote, suggestion_hint
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.app import OneTool
    from onetool.sources.bundles.model import Bundle, StoredTool

STDOUT = "-"
MAX_DESCRIPTION_LENGTH = 80
WHAT = "SLUG[.TOOL[@VERSION]]"


def add_arguments(parser: ArgumentParser) -> None:
    actions = Actions(parser, _list)
    listing = actions.add("list", _list, "List enabled bundles (the default action)")
    export = actions.add("export", _export, "Export a bundle to a ZIP archive")
    import_ = actions.add("import", _import, "Import a bundle from a ZIP archive")
    delete = actions.add("delete", _delete, "Delete a bundle, a tool or a version of a tool")
    enable = actions.add("enable", _set_enabled, "Enable a bundle or a tool")
    disable = actions.add("disable", _set_enabled, "Disable a bundle or a tool")
    export.add_argument("slug", metavar="SLUG", help="name of the bundle")
    export.add_argument(
        "file",
        nargs="?",
        default="",
        metavar="FILE.zip",
        help=f"output file (default: SLUG.zip; {STDOUT} for standard output)",
    )
    import_.add_argument("file", type=Path, metavar="FILE.zip", help="archive of the bundle")
    import_.add_argument("--name", default="", metavar="SLUG", help="name of the imported bundle")
    add_destination(import_)
    # What `onetool import` has in addition.
    import_.set_defaults(server=None, auth=None, header=None, update=False, replace_edits=False)
    import_.set_defaults(disable_removed=False, write=False, dry_run=False, main=_import)
    for action in (delete, enable, disable):
        action.add_argument(
            "what", metavar=WHAT, help="a bundle, a tool (all versions) or a version of a tool"
        )
    delete.add_argument("--yes", action="store_true", help="delete without asking")
    parser.set_defaults(all=False)
    for action in (parser, listing):
        action.add_argument(
            "--all", action="store_true", default=SUPPRESS, help="include disabled bundles"
        )


def _import(options: Namespace) -> int:
    from onetool.cli import import_bundle

    return import_bundle.main(options, options.file, import_bundle.read_content(options.file))


# --- list -----------------------------------------------------------------------------------------


async def _list(command: Invocation) -> None:
    from onetool.admin.stored_tools import BundlesQuery, StoredToolsQuery, list_bundles, list_tools

    everything = {"include_disabled": True}
    bundles = await command.list_all(list_bundles, BundlesQuery().model_copy(update=everything))
    tools: dict[str, list[StoredTool]] = {bundle.id: [] for bundle in bundles}
    for tool in await command.list_all(
        list_tools, StoredToolsQuery().model_copy(update=everything)
    ):
        tools.setdefault(tool.bundle_id, []).append(tool)
    bundles.sort(key=lambda bundle: bundle.slug)
    shown = [
        _Row(bundle, tools[bundle.id])
        for bundle in bundles
        if bundle.is_enabled or command.options.all
    ]
    more = len(bundles) - len(shown)
    command.show({"bundles": [row.to_json() for row in shown]}, _render(shown, more))


def _render(rows: "list[_Row]", more: int) -> Iterator[str]:
    width = max((len(row.bundle.slug) for row in rows), default=0)
    for row in rows:
        yield from row.render(width)
    if not rows:
        yield (
            "No bundles are enabled. To create one from an OpenAPI document: onetool import"
            " petstore.yaml"
        )
    if more:
        yield (
            f"{pluralize(more, 'disabled bundle')} not shown. Run `onetool bundles list --all` to"
            " see all."
        )


class _Row:
    def __init__(self, bundle: "Bundle", tools: "list[StoredTool]") -> None:
        self.bundle = bundle
        self._count = len({tool.slug for tool in tools})
        self._in_use = len({tool.slug for tool in tools if tool.in_use})
        self._problems = [
            f"{tool.slug}@{tool.version}: {tool.disabled_reason}"
            for tool in tools
            if tool.disabled_reason
        ]

    def to_json(self) -> JsonObject:
        counts = {"toolCount": self._count, "toolsInUse": self._in_use}
        return {**self.bundle.as_json(), **counts, "problems": self._problems}

    def render(self, width: int) -> Iterator[str]:
        bundle = self.bundle
        state = "on " if bundle.is_enabled else "off"
        some = ""
        if bundle.is_enabled and self._in_use != self._count:
            some = f", {self._in_use} in use"
        origin = " (built-in)" if bundle.is_built_in else ""
        # Untrusted text.
        text = clean(bundle.description or bundle.display_name, MAX_DESCRIPTION_LENGTH * 10)
        about = shorten(text, MAX_DESCRIPTION_LENGTH, placeholder=" …")
        yield (
            f"{bundle.slug:{width}}  {state}  {pluralize(self._count, 'tool')}{some} "
            f" {about}{origin}".rstrip()
        )
        yield from (f"  {problem}" for problem in self._problems)


# --- export ---------------------------------------------------------------------------------------


async def _export(command: Invocation) -> None:
    from onetool.admin.imports import export_bundle

    options = command.options
    bundle = await _find_bundle(command.app, options.slug)
    exported = await command.do(export_bundle, bundle.id)
    secrets = exported.secrets
    if secrets:
        what = f"{len(secrets)} literal credentials were"
        if len(secrets) == 1:
            what = "a literal credential was"
        names = ", ".join(f"${{secret:{name}}}" for name in secrets)
        hint = "Set them with `onetool secret set` where you import it."
        command.output.notify([f"{what} replaced in the archive by {names}. {hint}"])
    if options.file == STDOUT:
        sys.stdout.buffer.write(exported.content)
        return
    file = Path(options.file or f"{bundle.slug}.zip")
    _write(file, exported.content)
    count = exported.tool_count
    data = {
        "bundle": bundle.slug,
        "tools": count,
        "file": str(file),
        "replacedCredentials": secrets,
    }
    done = (
        f"Wrote {file}: {bundle.slug}, {pluralize(count, 'tool')}. Detected credentials are stored"
        " as references."
    )
    command.show(data, [done])


def _write(file: Path, content: bytes) -> None:
    try:
        with file.open("xb") as new:
            new.write(content)
    except FileExistsError:
        raise ToolError(
            f"{file} already exists", hint=f"choose another name, or {STDOUT} for standard output"
        ) from None
    except OSError as error:
        raise ToolError(f"cannot write {file}: {error.strerror or error}") from None


# --- delete ---------------------------------------------------------------------------------------


async def _delete(command: Invocation) -> None:
    from onetool.admin.stored_tools import delete_bundle_with_tools, delete_tool

    slug, tool, version = _split_name(command.options.what)
    bundle, tools = await _find_tools(command.app, slug, tool, version)
    if bundle.is_built_in:
        hint = f"onetool bundles disable {bundle.slug}"
        raise ToolError(f"cannot delete {bundle.slug}: it is part of OneTool", hint=hint)
    deleted = [*map(_name, tools)]
    what = ", ".join(deleted)
    if not tool:
        what = (
            f"the bundle {bundle.slug} with {pluralize(len({one.slug for one in tools}), 'tool')}"
        )
    if not command.options.yes:
        await _confirm(what, command.options)
    if not tool:
        deleted = await command.do(delete_bundle_with_tools, bundle.id)
    for one in tools if tool else ():
        await command.do(delete_tool, bundle.id, one.slug, one.version)
    command.show({"deleted": deleted}, [f"Deleted {what}"])


async def _confirm(what: str, options: Namespace) -> None:
    """Ask in a thread, so that Ctrl+C ends the command."""
    from anyio.to_thread import run_sync as run_in_thread

    if not is_terminal(sys.stdin):
        options.usage_error(
            f"cannot confirm the deletion of {what}: standard input is not a terminal; use --yes"
        )
    print(f"Delete {what}? [y/N] ", end="", file=sys.stderr, flush=True)
    answer = await run_in_thread(sys.stdin.readline, abandon_on_cancel=True)
    if answer.strip().lower() not in {"y", "yes"}:
        raise ToolError("nothing was deleted: not confirmed")


# --- enable and disable ---------------------------------------------------------------------------


async def _set_enabled(command: Invocation) -> None:
    from onetool.admin.stored_tools import set_bundle_enabled, set_version_enabled

    on = command.options.action == "enable"
    switch = {"isEnabled": on}
    slug, tool, version = _split_name(command.options.what)
    bundle, tools = await _find_tools(command.app, slug, tool, version)
    changed = [*map(_name, tools)] if tool else [bundle.slug]
    if not tool:
        await command.do(set_bundle_enabled, bundle.id, switch)
    try:
        for one in tools if tool else ():
            await command.do(set_version_enabled, bundle.id, one.slug, one.version, switch=switch)
    except BundleError as error:
        if error.fields.get("code") != "bundle_disabled":
            raise
        raise ToolError(error.message, hint=f"onetool bundles enable {bundle.slug}") from None
    lines = [f"{command.options.action.capitalize()}d {name}" for name in changed]
    if on and tool and not bundle.is_enabled:
        lines.append(
            f"Its bundle is disabled. To enable the bundle: onetool bundles enable {bundle.slug}"
        )
    command.show({"changed": changed, **switch}, lines)


def _split_name(what: str) -> tuple[str, str, str]:
    """Split SLUG.TOOL@VERSION. A slug contains neither a dot nor an @; a version may contain dots."""
    name, at, version = what.partition("@")
    slug, dot, tool = name.partition(".")
    if not slug or (dot and not tool) or (at and not (tool and version)):
        raise ToolError(
            f"invalid name {quote(what)}: expected {WHAT}, such as petstore or"
            " petstore.list-pets@1.0"
        )
    return slug, tool, version


# --- lookup ---------------------------------------------------------------------------------------


def _name(tool: "StoredTool") -> str:
    return f"{tool.bundle_slug}.{tool.slug}@{tool.version}"


async def _find_bundle(app: "OneTool", slug: str) -> "Bundle":
    bundle = await app.bundles.read(lambda store: store.bundle_by_slug(slug))
    if bundle is None:
        names = await app.bundles.read(
            lambda _store: [bundle.slug for bundle in app.bundles.list_bundles()]
        )
        raise _unknown(f"bundle {quote(slug)}", slug, names)
    return bundle


async def _find_tools(
    app: "OneTool", slug: str, tool: str, version: str
) -> "tuple[Bundle, list[StoredTool]]":
    """Return a bundle and the versions with this name; all tools of the bundle if `tool` is empty."""
    bundle = await _find_bundle(app, slug)
    tools = await app.bundles.read(lambda store: store.list_bundle_tools(bundle.id))
    if not tool:
        return bundle, tools
    exact = [one for one in tools if one.slug == tool]
    versions = exact or [one for one in tools if python_name(one.slug) == tool]
    if not versions:
        raise _unknown(
            f"tool {quote(tool)} in bundle {bundle.slug}", tool, sorted({one.slug for one in tools})
        )
    chosen = [one for one in versions if version in {"", one.version}]
    if not chosen:
        existing = ", ".join(one.version for one in versions)
        raise ToolError(
            f"unknown version {quote(version)} of {bundle.slug}.{tool}: expected {existing}"
        )
    return bundle, chosen


def _unknown(what: str, name: str, candidates: list[str]) -> ToolError:
    expected = f"expected one of {join_names(candidates)}" if candidates else "none exist"
    return ToolError(f"unknown {what}: {expected}", hint=suggestion_hint(nearest(name, candidates)))


COMMANDS = {
    "bundles": Command(
        __doc__,
        add_arguments,
        local_actions={"export", "import", "delete"},  # files of this machine, and a question
    )
}
