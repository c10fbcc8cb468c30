"""Manage bundles of HTTP tools. Running servers see changes at once."""

import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from onetool.cli.app_runner import run_with_settings
from onetool.cli.identity import identify_owner
from onetool.cli.options import add_destination, add_json, print_json
from onetool.cli.terminal import is_terminal, print_notices
from onetool.core.names import join_names, nearest, python_name
from onetool.errors import BundleError, ToolError
from onetool.util.sanitize import clean
from onetool.util.text import pluralize, quote, suggestion_hint
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.app import OneTool
    from onetool.bundles import BundleStore
    from onetool.bundles.model import Bundle, StoredTool

STDOUT = "-"
MAX_DESCRIPTION_LENGTH = 80
WHAT = "SLUG[.TOOL[@VERSION]]"


def add_arguments(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    listing = actions.add_parser("list", help="List enabled bundles (the default action)")
    export = actions.add_parser("export", help="Export a bundle to a ZIP archive")
    export.add_argument("slug", metavar="SLUG", help="name of the bundle")
    export.add_argument(
        "file",
        nargs="?",
        default="",
        metavar="FILE.zip",
        help=f"output file (default: SLUG.zip; {STDOUT} for standard output)",
    )
    import_ = actions.add_parser("import", help="Import a bundle from a ZIP archive")
    import_.add_argument("file", type=Path, metavar="FILE.zip", help="archive of the bundle")
    import_.add_argument("--name", default="", metavar="SLUG", help="name of the imported bundle")
    add_destination(import_)
    # What `onetool import` has in addition.
    import_.set_defaults(server=None, auth=None, header=None, update=False, replace_edits=False)
    import_.set_defaults(disable_removed=False, write=False, dry_run=False)
    delete = actions.add_parser("delete", help="Delete a bundle, a tool or a version of a tool")
    delete.add_argument("what", metavar=WHAT, help="a bundle, a tool (all versions) or a version of a tool")
    delete.add_argument("--yes", action="store_true", help="delete without asking")
    add_json(delete)
    for word in ("enable", "disable"):
        action = actions.add_parser(word, help=f"{word.capitalize()} a bundle or a tool")
        action.add_argument("what", metavar=WHAT, help="a bundle, a tool (all versions) or a version of a tool")
        add_json(action)
    parser.set_defaults(all=False)
    for action in (parser, listing):
        action.add_argument("--all", action="store_true", default=SUPPRESS, help="include disabled bundles")
    add_json(parser, listing, export, import_)


def main(options: Namespace) -> int:
    if options.action == "import":
        from onetool.cli import import_bundle

        return import_bundle.main(options, options.file, import_bundle.read_content(options.file))
    if options.action == "delete":
        return _confirm_and_delete(options)
    work = {"export": _export, "enable": _set_enabled, "disable": _set_enabled}.get(options.action, _list)

    async def execute(app: "OneTool") -> int:
        await app.discover()  # needed to check whether the functions of tools exist
        return await work(app, options)

    return run_with_settings(options, execute)


# --- list ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    bundle: "Bundle"
    tools: "list[StoredTool]"

    @property
    def in_use(self) -> int:
        return len({tool.slug for tool in self.tools if tool.in_use})

    def to_json(self) -> JsonObject:
        return {
            **self.bundle.as_json(),
            "toolCount": len({tool.slug for tool in self.tools}),
            "toolsInUse": self.in_use,
            "problems": [f"{tool.slug}@{tool.version}: {tool.disabled_reason}" for tool in self._broken],
        }

    @property
    def _broken(self) -> "list[StoredTool]":
        return [tool for tool in self.tools if tool.disabled_reason]

    def render(self, width: int) -> str:
        tools = len({tool.slug for tool in self.tools})
        state = "on " if self.bundle.is_enabled else "off"
        some = "" if self.in_use == tools or not self.bundle.is_enabled else f", {self.in_use} in use"
        origin = " (built-in)" if self.bundle.is_built_in else ""
        text = clean(self.bundle.description or self.bundle.display_name, MAX_DESCRIPTION_LENGTH * 10)  # untrusted text
        about = shorten(text, MAX_DESCRIPTION_LENGTH, placeholder=" …")
        line = f"{self.bundle.slug:{width}}  {state}  {pluralize(tools, 'tool')}{some}  {about}{origin}".rstrip()
        return "\n".join([line, *(f"  {tool.slug}@{tool.version}: {tool.disabled_reason}" for tool in self._broken)])


async def _list(app: "OneTool", options: Namespace) -> int:
    def read(store: "BundleStore") -> list[Row]:
        bundles = sorted(app.bundles.list_bundles(), key=lambda bundle: bundle.slug)
        return [Row(bundle, [*map(app.bundles.apply_state, store.list_bundle_tools(bundle.id))]) for bundle in bundles]

    rows = await app.bundles.read(read)
    chosen = rows if options.all else [row for row in rows if row.bundle.is_enabled]
    if options.json:
        print_json({"bundles": [row.to_json() for row in chosen]})
        return 0
    width = max((len(row.bundle.slug) for row in chosen), default=0)
    for row in chosen:
        print(row.render(width))
    if not chosen:
        print("No bundles are enabled. To create one from an OpenAPI document: onetool import petstore.yaml")
    if more := len(rows) - len(chosen):
        print(f"{pluralize(more, 'disabled bundle')} not shown. Run `onetool bundles list --all` to see all.")
    return 0


# --- export --------------------------------------------------------------------------------------------------------


async def _export(app: "OneTool", options: Namespace) -> int:
    from onetool.admin.imports import export_bundle

    bundle = await _find_bundle(app, options.slug)
    exported = await export_bundle(app, identify_owner(), bundle.id)
    secrets = exported.secrets
    if secrets:
        what = "a literal credential was" if len(secrets) == 1 else f"{len(secrets)} literal credentials were"
        names = ", ".join(f"${{secret:{name}}}" for name in secrets)
        print_notices(
            [f"{what} replaced in the archive by {names}. Set them with `onetool secret set` where you import it."]
        )
    if options.file == STDOUT:
        sys.stdout.buffer.write(exported.content)
        return 0
    file = Path(options.file or f"{bundle.slug}.zip")
    _write(file, exported.content)
    if options.json:
        count = exported.tool_count
        print_json(
            {"bundle": bundle.slug, "tools": count, "file": str(file), "replacedCredentials": secrets}, indent=None
        )
    else:
        count_text = pluralize(exported.tool_count, "tool")
        print(f"Wrote {file}: {bundle.slug}, {count_text}. Detected credentials are stored as references.")
    return 0


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


# --- delete --------------------------------------------------------------------------------------------------------


def _confirm_and_delete(options: Namespace) -> int:
    """Delete after confirmation. OneTool is closed while it waits for the answer, so that nothing stays locked."""
    slug, tool, version = _split_name(options.what)

    async def plan(app: "OneTool") -> "tuple[Bundle, list[StoredTool]]":
        bundle, tools = await _find_tools(app, slug, tool, version)
        if bundle.is_built_in:
            hint = f"onetool bundles disable {bundle.slug}"
            raise ToolError(f"cannot delete {bundle.slug}: it is part of OneTool", hint=hint)
        return bundle, tools

    bundle, tools = run_with_settings(options, plan)
    what = ", ".join(map(_name, tools))
    if not tool:
        what = f"the bundle {bundle.slug} with {pluralize(len({one.slug for one in tools}), 'tool')}"
    _confirm(what, options)

    async def delete(app: "OneTool") -> list[str]:
        from onetool.admin.stored_tools import delete_bundle_with_tools, delete_tool

        if not tool:
            return await delete_bundle_with_tools(app, identify_owner(), bundle.id)
        for one in tools:
            await delete_tool(app, identify_owner(), bundle.id, one.slug, one.version)
        return [*map(_name, tools)]

    deleted = run_with_settings(options, delete)
    if options.json:
        print_json({"deleted": deleted}, indent=None)
    else:
        print(f"Deleted {what}")
    return 0


def _confirm(what: str, options: Namespace) -> None:
    if options.yes:
        return
    if not is_terminal(sys.stdin):
        options.usage_error(f"cannot confirm the deletion of {what}: standard input is not a terminal; use --yes")
    print(f"Delete {what}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise ToolError("nothing was deleted: not confirmed")


# --- enable and disable --------------------------------------------------------------------------------------------


async def _set_enabled(app: "OneTool", options: Namespace) -> int:
    from onetool.admin.stored_tools import set_bundle_enabled, set_version_enabled

    on = options.action == "enable"
    switch = {"isEnabled": on}
    slug, tool, version = _split_name(options.what)
    bundle, tools = await _find_tools(app, slug, tool, version)
    owner = identify_owner()
    if not tool:
        await set_bundle_enabled(app, owner, bundle.id, switch)
        changed = [bundle.slug]
    else:
        try:
            for one in tools:
                await set_version_enabled(app, owner, bundle.id, one.slug, one.version, switch=switch)
        except BundleError as error:
            if error.fields.get("code") != "bundle_disabled":
                raise
            raise ToolError(error.message, hint=f"onetool bundles enable {bundle.slug}") from None
        changed = [_name(one) for one in tools]
    if options.json:
        print_json({"changed": changed, "isEnabled": on}, indent=None)
        return 0
    print("\n".join(f"{options.action.capitalize()}d {name}" for name in changed))
    if on and tool and not bundle.is_enabled:
        print(f"Its bundle is disabled. To enable the bundle: onetool bundles enable {bundle.slug}")
    return 0


def _split_name(what: str) -> tuple[str, str, str]:
    """Split SLUG.TOOL@VERSION. A slug contains neither a dot nor an @; a version may contain dots."""
    name, at, version = what.partition("@")
    slug, dot, tool = name.partition(".")
    if not slug or (dot and not tool) or (at and not (tool and version)):
        raise ToolError(f"invalid name {quote(what)}: expected {WHAT}, such as petstore or petstore.list-pets@1.0")
    return slug, tool, version


# --- lookup --------------------------------------------------------------------------------------------------------


def _name(tool: "StoredTool") -> str:
    return f"{tool.bundle_slug}.{tool.slug}@{tool.version}"


async def _find_bundle(app: "OneTool", slug: str) -> "Bundle":
    bundle = await app.bundles.read(lambda store: store.bundle_by_slug(slug))
    if bundle is None:
        names = await app.bundles.read(lambda _store: [bundle.slug for bundle in app.bundles.list_bundles()])
        raise _unknown(f"bundle {quote(slug)}", slug, names)
    return bundle


async def _find_tools(app: "OneTool", slug: str, tool: str, version: str) -> "tuple[Bundle, list[StoredTool]]":
    """Return a bundle and the versions with this name; all tools of the bundle if `tool` is empty."""
    bundle = await _find_bundle(app, slug)
    tools = await app.bundles.read(lambda store: store.list_bundle_tools(bundle.id))
    if not tool:
        return bundle, tools
    exact = [one for one in tools if one.slug == tool]
    versions = exact or [one for one in tools if python_name(one.slug) == tool]
    if not versions:
        raise _unknown(f"tool {quote(tool)} in bundle {bundle.slug}", tool, sorted({one.slug for one in tools}))
    chosen = [one for one in versions if version in {"", one.version}]
    if not chosen:
        existing = ", ".join(one.version for one in versions)
        raise ToolError(f"unknown version {quote(version)} of {bundle.slug}.{tool}: expected {existing}")
    return bundle, chosen


def _unknown(what: str, name: str, known: list[str]) -> ToolError:
    expected = f"expected one of {join_names(known)}" if known else "none exist"
    return ToolError(f"unknown {what}: {expected}", hint=suggestion_hint(nearest(name, known)))
