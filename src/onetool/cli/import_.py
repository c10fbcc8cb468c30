"""Import MCP servers from an assistant's configuration, or HTTP tools from an OpenAPI document or ZIP archive.

Servers are added to .onetool/onetool.yaml, tools to a bundle. The file type is detected from its content. The imported
file is not changed. CLIENT stands for the assistant's files in your home directory. For other files with servers, such
as the .mcp.json of a project, the command shows the programs and asks. In a script, use `echo yes | onetool import
FILE`, or run `onetool trust FILE` before.
"""

import os
import shlex
import sys
from argparse import ArgumentParser, Namespace
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onetool import paths
from onetool.cli import settings_file
from onetool.cli.connect import next_step
from onetool.cli.options import add_destination, add_json, choose_stream, find_command_directories, print_json
from onetool.cli.sign_in_notes import find_sign_in_notes
from onetool.cli.trust import require_file_trust, require_trust
from onetool.clients import text_files, yaml_edit
from onetool.clients.catalog import CLIENTS, Machine
from onetool.clients.client_servers import ClientServers, read_servers
from onetool.clients.server_import import ServerImport, import_servers
from onetool.config import scaffold
from onetool.config.load import examine
from onetool.config.trust import is_trusted, trust
from onetool.editing.edit_history import EditedItem
from onetool.editing.server_changes import SERVERS, PlannedServers, ServerChanges, read_target
from onetool.errors import ToolError
from onetool.util.redact import Redactor
from onetool.util.secret_finder import find_secrets
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.editing.planned_edit import PlannedEdit
    from onetool.editing.settings_editor import SettingsEditor

QUESTION = "Which tools does {server} have in OneTool?"


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """The settings and secrets files of a directory, before and after the import."""

    result: ServerImport
    config: text_files.TextFile
    config_text: str
    secrets: text_files.TextFile
    secrets_text: str


def add_arguments(parser: ArgumentParser) -> None:
    known = ", ".join(CLIENTS)
    kinds = "an OpenAPI document, the ZIP archive of a bundle, an assistant's configuration file"
    parser.add_argument("source", metavar="FILE|CLIENT", help=f"{kinds}, or one of {known}")
    parser.add_argument("--name", default="", metavar="SLUG", help="name of the bundle (tools only)")
    parser.add_argument("--server", metavar="URL", help="base URL, instead of that in the document (tools only)")
    parser.add_argument(
        "--auth",
        metavar="KIND",
        help="authentication of operations that declare none: bearer, basic, header:NAME or query:NAME (tools only)",
    )
    parser.add_argument(
        "--header",
        action="append",
        metavar="'NAME: VALUE'",
        help="header that all tools send; can be repeated (tools only)",
    )
    parser.add_argument("--write", action="store_true", help="add hosts to http.allowedHosts (tools only)")
    parser.add_argument(
        "--update", action="store_true", help="store changed tools of a known version as new versions (tools only)"
    )
    parser.add_argument("--replace-edits", action="store_true", help="replace local edits of tools (tools only)")
    parser.add_argument(
        "--disable-removed", action="store_true", help="disable tools that the document lacks (tools only)"
    )
    add_destination(parser)
    parser.add_argument(
        "--inline-secrets", action="store_true", help="keep secrets in onetool.yaml instead of secrets.yaml"
    )
    parser.add_argument("--dry-run", action="store_true", help="show the changes without writing them")
    add_json(parser)


def main(options: Namespace) -> int:
    path = None if options.source in CLIENTS else paths.resolve_path(options.source, Path.cwd(), Path.home())
    if path is not None and path.is_file():
        from onetool.bundles.importer import is_bundle
        from onetool.cli import import_bundle

        content = import_bundle.read_content(path)
        if is_bundle(content):
            return import_bundle.main(options, path, content)
    return _import_servers(options)


def _import_servers(options: Namespace) -> int:
    is_update = options.update or options.replace_edits or options.disable_removed
    if options.name or options.server or options.auth or options.header or options.write or is_update:
        options.usage_error(
            "--name, --server, --auth, --header, --write, --update, --replace-edits and --disable-removed apply to "
            "OpenAPI documents and bundles, not to servers"
        )
    directories = find_command_directories(options)
    directory = directories.user if options.user else _target(directories)
    machine = Machine(sys.platform, os.environ, directories.home, directories.working_dir)
    found = _read_sources(options.source, machine)
    stream = choose_stream(options)
    if not options.dry_run and options.source not in CLIENTS:
        for file in found:
            require_file_trust(file, machine, directories.user, stream)
    if examine(directories, os.environ).loaded.settings.store:
        return _import_to_store(options, found)
    plan = make_plan(found, directories, directory, options.inline_secrets)
    if plan.result.servers and not options.dry_run and _needs_trust(directory, directories):
        require_trust(directories, directory, stream)
    # Secrets are recognized by their keys, which a diff may not show.
    redact = Redactor({*plan.result.secrets.values(), *find_secrets(plan.result.servers)})
    diff = text_files.diff(plan.config, plan.config_text, redact)
    done: list[str] = []
    if plan.result.servers and not options.dry_run:
        with settings_file.open_locked(directories), _recording(plan, diff, directories):
            done = _apply(plan, directory, directories)
    if options.json:
        print_json(_to_json(plan, diff, done))
    else:
        print(_render_text(plan, diff, done, options))
    if plan.result.servers and not options.dry_run and not options.json:
        for note in find_sign_in_notes(directories, plan.result.servers):
            print(note)
        client = options.source if options.source in CLIENTS else ""
        print(f"\n{next_step(machine, QUESTION.format(server=next(iter(plan.result.servers))), client)}")
    return 0


def _needs_trust(directory: Path, directories: paths.Directories) -> bool:
    """Return whether the content of a directory was not reviewed; a new one has none."""
    is_users = os.path.realpath(directory) == os.path.realpath(directories.user)
    is_new = not os.path.lexists(directory)
    return not (is_users or is_new or directories.config_file) and not is_trusted(directory, directories.user, {})


def _import_to_store(options: Namespace, found: list[ClientServers]) -> int:
    """Add the servers to the settings that replicas share."""
    from onetool.cli.settings_changes import SettingsCommand

    planned: list[PlannedServers] = []
    with SettingsCommand(options) as command:

        def plan(editor: "SettingsEditor") -> "PlannedEdit":
            changes = ServerChanges(editor, command.loaded.directories, os.environ)
            planned.append(changes.plan_import(found, inline_secrets=options.inline_secrets))
            return planned[-1].edit

        return command.edit(plan, lambda: command.describe_servers(planned[-1].result))


def make_plan(
    found: list[ClientServers], directories: paths.Directories, directory: Path, inline_secrets: bool
) -> ImportPlan:
    config = text_files.read(directories.config_path(directory))
    secrets = text_files.read(directory / paths.SECRETS)
    target = read_target(directories, directory, os.environ)
    result = import_servers(found, target, inline_secrets=inline_secrets)
    config_text = yaml_edit.add_keys(config.text, str(config.path), SERVERS, result.servers)
    secrets_text = yaml_edit.add_keys(secrets.text, str(secrets.path), None, result.secrets)
    return ImportPlan(result, config, config_text, secrets, secrets_text)


def _target(directories: paths.Directories) -> Path:
    if directories.project is not None:
        return directories.project
    if directories.config_file is not None:
        return directories.config_file.parent
    return directories.working_dir / paths.FOLDER


def _read_sources(source: str, machine: Machine) -> list[ClientServers]:
    candidates = (
        [CLIENTS[source].locate_user_file(machine)]
        if source in CLIENTS
        else [paths.resolve_path(source, Path.cwd(), machine.home)]
    )
    existing = [path for path in candidates if path.exists()]
    if not existing and source in CLIENTS:
        message = f"no configuration of {CLIENTS[source].title} found: looked for {candidates[0]}"
        project = [file for file in CLIENTS[source].locate_files(machine) if file.exists()]
        raise ToolError(message, hint=f"onetool import {shlex.quote(str(project[0]))}" if project else "")
    if source.startswith(("https://", "http://")):
        raise ToolError(
            f"cannot import from a URL: {source}", hint=f"download it first: curl -fsSLo api.json {shlex.quote(source)}"
        )
    if not existing:
        raise ToolError(f"file not found: {source} (expected a file, or one of {', '.join(CLIENTS)})")
    return [read_servers(text_files.read(existing[0]), machine.working_dir)]


def _apply(plan: ImportPlan, directory: Path, directories: paths.Directories) -> list[str]:
    is_users = os.path.realpath(directory) == os.path.realpath(directories.user)
    try:
        directory.mkdir(mode=0o700 if is_users else 0o777, parents=True, exist_ok=True)
    except OSError as error:
        raise ToolError(f"cannot create {directory}: {error.strerror or error}; nothing was changed") from None
    done = [*_write_secrets(plan, directory), _write(plan.config, plan.config_text)]
    if is_users or directories.config_file is not None:
        return done
    try:
        trust(directory, directories.user)
    except OSError as error:
        reason = f"cannot write to {directories.user}: {error.strerror or error}"
        raise ToolError(f"{directory} was written but not trusted: {reason}") from None
    return [*done, f"{directory} is trusted"]


def _recording(plan: ImportPlan, difference: str, directories: paths.Directories) -> AbstractContextManager[None]:
    items = [EditedItem(SERVERS, name, None, entry) for name, entry in plan.result.servers.items()]
    return settings_file.recording(
        directories,
        "servers.add",
        plan.config,
        plan.config_text,
        items,
        names=plan.result.servers,
        difference=difference,
        secrets=plan.result.secrets,
    )


def _write_secrets(plan: ImportPlan, directory: Path) -> list[str]:
    if not plan.result.secrets:
        return []
    ignore = text_files.read(directory / ".gitignore")
    lines = []
    if ignore.raw is None:
        lines.append(_write(ignore, scaffold.NOT_FOR_GIT))
    elif paths.SECRETS not in ignore.text.split():
        lines.append(f"{ignore.path} does not list {paths.SECRETS}: add it to keep secrets out of git")
    # No backup: lines are only added, and git might not ignore a second file with secrets.
    text_files.write(plan.secrets, plan.secrets_text, mode=text_files.OWNER_ONLY, keep=False)
    return [*lines, f"Wrote {plan.secrets.path} (readable only by you)"]


def _write(before: text_files.TextFile, text: str) -> str:
    backup = text_files.write(before, text)
    return f"Wrote {before.path}" + (f" (backup: {backup.name})" if backup else "")


def _to_json(plan: ImportPlan, diff: str, done: list[str]) -> JsonObject:
    return {
        "file": str(plan.config.path),
        "servers": list(plan.result.servers),
        "secrets": list(plan.result.secrets),
        "missing": plan.result.missing,
        "notes": plan.result.notes,
        "done": done,
        "diff": diff,
    }


def _render_text(plan: ImportPlan, diff: str, done: list[str], options: Namespace) -> str:
    result = plan.result
    lines = [diff, ""] if result.servers else []
    lines += result.notes
    if result.secrets:
        moved = "Would move" if options.dry_run else "Moved"
        names = ", ".join(result.secrets)
        lines.append(f"{moved} secrets to {plan.secrets.path}: {names} (--inline-secrets keeps them in onetool.yaml)")
    missing = (f"{name} ({text})" if text else name for name, text in result.missing.items())
    lines += [f"Missing secret: onetool secret set {what}" for what in missing]
    names = ", ".join(result.servers)
    ending = (
        f"Imported {names}. Remove imported servers from your assistant's configuration so that they do not run twice."
    )
    if options.dry_run:
        ending = f"Would import {names}. Nothing was written (--dry-run)."
    return "\n".join([*lines, *done, ending if names else "Nothing to import; no file was changed."])
