"""Imports HTTP tools from an OpenAPI document or a bundle's archive, and prints what is left to do.

`onetool import` and `onetool bundles import` share this code. Only the user may allow hosts:
without --write, the setting is printed but not written.
"""

import json
import os
import shlex
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from onetool.admin.imports import ImportedBundle, ImportQuery, import_bundle
from onetool.admin.secrets import change_secret_uses
from onetool.admin.settings import HostChanges, change_hosts
from onetool.admin.settings_edits import EditQuery
from onetool.app import OneTool
from onetool.cli.command import choose_stream, find_command_directories, print_result
from onetool.cli.connect import current_machine, next_step
from onetool.cli.exit_status import blocked_signals, run_cancellable
from onetool.cli.invocation import check_settings, identify_owner, run_with_app
from onetool.cli.trust import require_trust
from onetool.core.names import python_name
from onetool.errors import BundleError, ToolError
from onetool.net.hosts import is_public, parse_address
from onetool.settings.clients import text_files
from onetool.settings.clients.yaml_edit import flow
from onetool.settings.load import Loaded, load
from onetool.settings.paths import FOLDER, Directories
from onetool.settings.trust import is_trusted, trust
from onetool.sources.bundles.imported import BundleImport
from onetool.sources.bundles.importer import FieldChange, ToolChange, UpdateOptions, read
from onetool.sources.bundles.source import bundles_directory
from onetool.sources.bundles.stored_tools import SecretUse
from onetool.util.invisible import escape_invisible
from onetool.util.problem import Problem
from onetool.util.text import pluralize
from onetool_child.json_types import JsonMapping, JsonObject

SECTION = "http"
KEY = "allowedHosts"
MAX_PROBLEMS = 10
MAX_TOOLS = 50
MAX_CHANGES = 10  # of one tool
QUESTION = "What can you do with {slug} in OneTool?"
INDENT = "  "


@dataclass(slots=True)
class Report:
    """The result of an import and the remaining steps. `secret_uses` are not allowed."""

    loaded: Loaded
    document: BundleImport
    imported: ImportedBundle
    is_dry: bool
    secret_uses: list[SecretUse]
    done: list[str]
    diff: str = ""
    is_written: bool = False

    @property
    def directories(self) -> Directories:
        return self.loaded.directories

    @property
    def config(self) -> Path:
        return self.directories.config_path(self.directories.data)

    @property
    def slug(self) -> str:
        return self.imported.slug

    @property
    def hosts(self) -> list[str]:
        """The hosts that the settings do not allow."""
        return self.imported.missing_hosts

    @property
    def secrets(self) -> list[str]:
        """The secrets that have no value."""
        return self.imported.missing_secrets


def read_content(path: Path) -> bytes:
    if not path.is_file():
        raise ToolError(f"{path} is not a file" if path.exists() else f"file not found: {path}")
    try:
        with path.open("rb") as file:
            content = file.read(text_files.MAX_BYTES + 1)
    except OSError as error:
        raise ToolError(f"cannot read {path}: {error.strerror or error}") from None
    if len(content) > text_files.MAX_BYTES:
        raise ToolError(f"{path} is too large: more than {text_files.MAX_BYTES:,} bytes")
    return content


def main(options: Namespace, path: Path, content: bytes) -> int:
    try:
        document = read(
            content,
            name=options.name,
            server=options.server,
            auth=options.auth,
            headers=options.header or (),
        )
        with blocked_signals():
            directories, done = _target(options)
        loaded = load(directories, os.environ, trust=True if directories.project else None)
        imported = run_cancellable(partial(_import, loaded, document, options))
    except BundleError as error:
        raise _add_hint(error, path) from None
    uses = [use.to_use() for use in imported.secret_uses if not use.is_allowed]
    report = Report(loaded, document, imported, options.dry_run, uses, done)
    if options.write and not options.dry_run:
        run_with_app(options, lambda app: _allow(report, app))
    print_result(options, _to_json(report), _text(report))
    return 0


async def _import(loaded: Loaded, document: BundleImport, options: Namespace) -> ImportedBundle:
    query = ImportQuery().model_copy(update={"dry_run": options.dry_run})
    update = UpdateOptions(
        renames_versions=options.update,
        replaced_edits=None if options.replace_edits else frozenset(),
        disables_removed=options.disable_removed,
    )
    async with OneTool(read=lambda: loaded) as app:
        imported, _ = await import_bundle(
            app, identify_owner(), query, b"", document=document, update=update
        )
        return imported


def _target(options: Namespace) -> tuple[Directories, list[str]]:
    """Return the directories to import into (by default `.onetool` here), and messages."""
    directories = find_command_directories(options)
    if options.user:
        return replace(directories, project=None, config_file=None), []
    if directories.config_file is not None:
        return directories, []
    is_home = os.path.realpath(directories.working_dir / FOLDER) == os.path.realpath(
        directories.user
    )
    if options.project or (directories.project is None and not is_home):
        return _project(directories, is_dry=options.dry_run, stream=choose_stream(options))
    if directories.project is None or is_trusted(directories.project, directories.user, os.environ):
        return directories, []
    left_alone = Problem(
        f"{directories.project} is not trusted and was not changed",
        "use --project to review it, trust it and import into it",
    )
    return replace(directories, project=None), [str(left_alone)]


def _project(
    directories: Directories, *, is_dry: bool, stream: TextIO
) -> tuple[Directories, list[str]]:
    project = directories.project or directories.working_dir / FOLDER
    chosen = replace(directories, project=project)
    is_new = not os.path.lexists(project)
    if is_dry or (not is_new and is_trusted(project, directories.user, os.environ)):
        return chosen, []
    if is_new:
        project.mkdir()
        trust(project, directories.user)
    else:
        require_trust(directories, project, stream)
    return chosen, [f"{project} is now trusted"]


def _add_hint(error: BundleError, path: Path) -> ToolError:
    command = f"onetool import {shlex.quote(str(path))}"
    details = error.fields.get("details", {})
    if details.get("needs") == "server":
        return ToolError(
            str(details.get("reason", error.message)),
            hint=f"{command} --server {details.get('example', 'https://api.example.com')}",
        )
    if "suggestion" in details:
        update = ""
        if details.get("needs") == "update":
            update = f", or store new versions: {command} --update"
        hint = f"choose another name: {command} --name {details['suggestion']}{update}"
        return ToolError(error.message, hint=hint)
    if error.fields.get("code") == "bundle_disabled":
        return ToolError(error.message, hint="onetool bundles list --all")
    return ToolError(f"{path}: {error.message}", hint=error.hint)


# --- the hosts ------------------------------------------------------------------------------------


async def _allow(report: Report, app: OneTool) -> None:
    """Allow the hosts beside the bundle, and sending those secrets that have no value."""
    check_settings(app)
    person = identify_owner()
    if report.hosts:
        hosts = HostChanges(add=report.hosts)
        edited = await change_hosts(
            app, person, EditQuery(), hosts, directory=report.directories.data
        )
        report.diff = edited.difference
        report.done.extend(edited.notes)
        report.is_written = True
    new = [use for use in report.secret_uses if use.name in report.secrets]
    if new:
        await change_secret_uses(app, person, EditQuery(), new, is_allowed=True)
        report.secret_uses = [use for use in report.secret_uses if use not in new]
        report.done += [
            f"Allowed tools of {report.slug} to send {use.name} to {use.origin}" for use in new
        ]


# --- output ---------------------------------------------------------------------------------------


def _to_json(report: Report) -> JsonObject:
    return {
        "bundle": report.slug,
        "folder": str(bundles_directory(report.loaded)),
        "isNew": report.imported.is_new,
        "written": not report.is_dry,
        "tools": report.imported.added,
        "difference": report.imported.difference.as_json(),
        "kept": report.imported.kept,
        "disabled": report.imported.disabled,
        "problems": report.imported.problems,
        "warnings": report.imported.warnings,
        "hosts": report.imported.hosts,
        "missingHosts": [] if report.is_written else report.hosts,
        "missingSecrets": report.secrets,
        "secretUses": [use._asdict() for use in report.secret_uses],
        "done": report.done,
        "diff": report.diff,
    }


def _text(report: Report) -> Iterator[str]:
    yield _headline(report)
    yield from _describe_difference(report.imported, is_dry=report.is_dry)
    if problems := report.imported.problems:
        yield "Not imported, or imported with changes:"
        yield from (f"{INDENT}{problem}" for problem in problems[:MAX_PROBLEMS])
        if len(problems) > MAX_PROBLEMS:
            yield f"{INDENT}and {len(problems) - MAX_PROBLEMS:,} more; use --json to see all"
    yield from (f"Warning: {warning}" for warning in report.imported.warnings[:MAX_PROBLEMS])
    if report.secrets:
        yield "Set these secrets:"
        yield from (f"{INDENT}onetool secret set {name}" for name in report.secrets)
        if _uses_oauth(report):
            yield f"Or sign in instead: onetool login {report.slug}"
    if report.secret_uses:
        what = "this secret" if len(report.secret_uses) == 1 else "these secrets"
        is_new = all(use.name in report.secrets for use in report.secret_uses)
        yield f"Allow the tools to send {what}{' (or use --write)' if is_new else ''}:"
        yield from (f"{INDENT}{use.command}" for use in report.secret_uses)
    yield from _about_hosts(report)
    if report.diff:
        yield report.diff
    yield from report.done
    if not report.is_dry:
        yield from _next_steps(report)


def _uses_oauth(report: Report) -> bool:
    auths = ((body.get("httpImpl") or {}).get("auth") or {} for _, _, body in report.document.tools)
    return any("oauth" in auth for auth in auths)


def _headline(report: Report) -> str:
    result = report.imported
    slug = report.slug
    if not result.added and not (result.kept or result.disabled):
        return (
            f"{slug}: already imported ({pluralize(len(report.document.tools), 'tool')}); nothing"
            " was changed."
        )
    versions = ", ".join(sorted({name.rpartition("@")[2] for name in result.added}))
    what = f"{pluralize(len(result.added), 'tool')} of version {versions}"
    where = bundles_directory(report.loaded)
    if report.is_dry:
        return f"{slug}: would import {what} into {where}. Nothing was written (--dry-run)."
    beside = "" if result.is_new else ", in addition to the existing tools"
    return f"{slug}: imported {what} into {where}{beside}"


def _about_hosts(report: Report) -> Iterator[str]:
    if report.hosts and not report.is_written:
        what = "this host" if len(report.hosts) == 1 else "these hosts"
        yield f"Allow {what} in {report.config} (or use --write):"
        # One line has to hold them all.
        all_hosts = [*report.loaded.settings.http.allowed_hosts, *report.hosts]
        yield f"{INDENT}{SECTION}: {{{KEY}: {flow(all_hosts)}}}"
    addresses = (
        host[1:].partition("]")[0] if host[:1] == "[" else host.partition(":")[0]
        for host in report.imported.hosts
    )
    is_near = any(
        name == "localhost" or (parse_address(name) is not None and not is_public(name))
        for name in addresses
    )
    if is_near and not report.loaded.settings.http.allow_private_addresses:
        yield "The host has a private or loopback address. To allow such addresses, also set:"
        yield f"{INDENT}{SECTION}: {{allowPrivateAddresses: true}}"


def _next_steps(report: Report) -> Iterator[str]:
    if report.secrets or report.hosts:
        yield (
            "Running servers see the tools at once, and changed settings and secrets within 2"
            " seconds."
        )
    if report.imported.bundle is not None and not report.imported.bundle.is_enabled:
        yield f"The bundle is disabled. To enable it: onetool bundles enable {report.slug}"
    # The easiest tool to try: one that only reads and has few required arguments.
    with_schema = [(slug, body) for slug, _, body in report.document.tools if "argSchema" in body]
    example = min(with_schema, key=_effort, default=None)
    if example is not None:
        name = f"{report.slug}.{example[0]}"
        schema = example[1]["argSchema"]
        parts = schema.get("properties", {})
        arguments = {name: _sample(parts.get(name, {})) for name in schema.get("required", ())}
        yield "Example:"
        words = (f"{key}={_value(value)}" for key, value in arguments.items())
        yield f"{INDENT}{shlex.join(['onetool', 'call', name, *words])}"
        yield (
            f"{INDENT}{python_name(name)}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        )
    yield f"\n{next_step(current_machine(), QUESTION.format(slug=report.slug))}"


# --- example --------------------------------------------------------------------------------------


def _effort(entry: tuple[str, JsonMapping]) -> tuple[bool, int]:
    reads = entry[1].get("httpImpl", {}).get("method", "GET") == "GET"
    return not reads, len(entry[1]["argSchema"].get("required", ()))


def _sample(part: Any) -> Any:
    if not isinstance(part, Mapping):
        return "text"
    lists = (values for key in ("examples", "enum") if isinstance(values := part.get(key), list))
    candidates = [
        part.get("example"),
        part.get("default"),
        *(value for values in lists for value in values[:1]),
    ]
    samples = {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}
    kind = part.get("type")
    return next(
        (value for value in candidates if value is not None), samples.get(str(kind), "text")
    )


def _value(value: Any) -> str:
    """Format a value for `onetool call`: a string that is valid JSON needs quotes."""
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return value
    return json.dumps(value, ensure_ascii=False)


# --- the difference -------------------------------------------------------------------------------


def _describe_difference(result: ImportedBundle, *, is_dry: bool) -> Iterator[str]:
    """Yield the lines of the difference; nothing for a new bundle."""
    difference = result.difference
    lines = [
        *(f"+ {tool.slug}@{tool.version}  {tool.request}" for tool in difference.added),
        *(f"- {tool.slug}@{tool.version}  {tool.request}" for tool in difference.removed),
        *(
            line
            for change in difference.changed
            for line in _describe_change(change, is_kept=change.slug in result.kept)
        ),
    ]
    if not lines:
        return
    yield "Difference (+ new, - not in the document, ~ changed):"
    yield from (f"  {escape_invisible(line)}" for line in lines[: MAX_TOOLS * MAX_CHANGES])
    if len(lines) > MAX_TOOLS * MAX_CHANGES:
        yield "  and more; use --json to see all"
    if difference.unchanged:
        yield f"  {pluralize(difference.unchanged, 'tool')} unchanged"
    if result.kept:
        yield f"Local edits stay in use: {', '.join(result.kept)}. To replace them: --replace-edits"
    if result.disabled:
        yield f"{'To be disabled' if is_dry else 'Disabled'}: {', '.join(result.disabled)}"
    elif difference.removed:
        yield "Tools that are not in the document stay. To disable them: --disable-removed"


def _describe_change(change: ToolChange, *, is_kept: bool) -> Iterator[str]:
    note = (
        " (edited here, not updated)" if is_kept else " (edited here)" if change.is_edited else ""
    )
    yield f"~ {change.slug}@{change.version} -> {change.new_version}{note}"
    yield from (f"    {_describe_field(field)}" for field in change.changes[:MAX_CHANGES])
    if len(change.changes) > MAX_CHANGES:
        yield f"    and {len(change.changes) - MAX_CHANGES} more"


def _describe_field(change: FieldChange) -> str:
    name = f"{change.part} {change.name}"
    if change.before is None:
        return f"{name}: new: {change.after}"
    return (
        f"{name}: removed" if change.after is None else f"{name}: {change.before} -> {change.after}"
    )
