"""Import MCP servers from an assistant's configuration, or HTTP tools from an OpenAPI document or
ZIP archive.

Servers are added to .onetool/onetool.yaml, tools to a bundle. The file type is detected from its
content. The imported file is not changed. CLIENT stands for the assistant's files in your home
directory. For other files with servers, such as the .mcp.json of a project, the command shows the
programs and asks. In a script, use `echo yes | onetool import FILE`, or run `onetool trust FILE`
before.
"""

import os
import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from onetool.admin.server_changes import ServerChanges, read_target
from onetool.cli.command import (
    Command,
    add_destination,
    choose_stream,
    find_command_directories,
    print_result,
)
from onetool.cli.connect import next_step
from onetool.cli.invocation import Invocation, run_with_app
from onetool.cli.login import find_sign_in_notes
from onetool.cli.terminal import CommandOutput
from onetool.cli.trust import require_file_trust, require_trust
from onetool.errors import ToolError
from onetool.settings import paths
from onetool.settings.clients import text_files
from onetool.settings.clients.catalog import CLIENTS, Machine
from onetool.settings.clients.client_servers import ClientServers, read_servers
from onetool.settings.clients.server_import import import_servers
from onetool.settings.load import examine
from onetool.settings.trust import is_trusted, trust
from onetool.state.opening import open_state
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.admin.server_changes import PlannedServers
    from onetool.app import OneTool
    from onetool.settings.planned_edit import PlannedEdit

QUESTION = "Which tools does {server} have in OneTool?"


def add_arguments(parser: ArgumentParser) -> None:
    clients = ", ".join(CLIENTS)
    kinds = "an OpenAPI document, the ZIP archive of a bundle, an assistant's configuration file"
    parser.add_argument("source", metavar="FILE|CLIENT", help=f"{kinds}, or one of {clients}")
    parser.add_argument(
        "--name", default="", metavar="SLUG", help="name of the bundle (tools only)"
    )
    parser.add_argument(
        "--server", metavar="URL", help="base URL, instead of that in the document (tools only)"
    )
    parser.add_argument(
        "--auth",
        metavar="KIND",
        help=(
            "authentication of operations that declare none: bearer, basic, header:NAME or"
            " query:NAME (tools only)"
        ),
    )
    parser.add_argument(
        "--header",
        action="append",
        metavar="'NAME: VALUE'",
        help="header that all tools send; can be repeated (tools only)",
    )
    parser.add_argument(
        "--write", action="store_true", help="add hosts to http.allowedHosts (tools only)"
    )
    parser.add_argument(
        "--update",
        action="store_true",
        help="store changed tools of a known version as new versions (tools only)",
    )
    parser.add_argument(
        "--replace-edits", action="store_true", help="replace local edits of tools (tools only)"
    )
    parser.add_argument(
        "--disable-removed",
        action="store_true",
        help="disable tools that the document lacks (tools only)",
    )
    add_destination(parser)
    parser.add_argument(
        "--inline-secrets",
        action="store_true",
        help="keep secrets in onetool.yaml instead of secrets.yaml",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show the changes without writing them"
    )


def main(options: Namespace) -> int:
    path = (
        None
        if options.source in CLIENTS
        else paths.resolve_path(options.source, Path.cwd(), Path.home())
    )
    if path is not None and path.is_file():
        from onetool.cli import import_bundle
        from onetool.sources.bundles.importer import is_bundle

        content = import_bundle.read_content(path)
        if is_bundle(content):
            return import_bundle.main(options, path, content)
    return _import_servers(options)


def _import_servers(options: Namespace) -> int:
    is_update = options.update or options.replace_edits or options.disable_removed
    if (
        options.name
        or options.server
        or options.auth
        or options.header
        or options.write
        or is_update
    ):
        options.usage_error(
            "--name, --server, --auth, --header, --write, --update, --replace-edits and"
            " --disable-removed apply to OpenAPI documents and bundles, not to servers"
        )
    directories = find_command_directories(options)
    machine = Machine(sys.platform, os.environ, directories.home, directories.working_dir)
    sources = _read_sources(options.source, machine)
    stream = choose_stream(options)
    if not options.dry_run and options.source not in CLIENTS:
        for file in sources:
            require_file_trust(file, machine, directories.user, stream)
    directory = _find_target(options, directories)
    if directory is not None and not options.dry_run:
        _prepare(directory, directories, sources, options)
    planned, done = run_with_app(options, lambda app: _import(app, sources, directory, options))
    if (
        done
        and directory is not None
        and directories.project is None
        and not _is_same(directory, directories.user)
    ):
        done.append(_trust_new(directory, directories.user))
    print_result(
        options, _to_json(planned, done), [_render_text(planned, done, is_dry=options.dry_run)]
    )
    if not options.json and planned.result.servers and not options.dry_run:
        for note in find_sign_in_notes(directories, planned.result.servers):
            print(note)
        client = options.source if options.source in CLIENTS else ""
        question = QUESTION.format(server=next(iter(planned.result.servers)))
        print(f"\n{next_step(machine, question, client)}")
    return 0


def _find_target(options: Namespace, directories: paths.Directories) -> Path | None:
    """Return the settings directory that gets the servers; None for the store."""
    directory = directories.working_dir / paths.FOLDER
    if options.user:
        directory = directories.user
    elif directories.project is not None:
        directory = directories.project
    elif directories.config_file is not None:
        directory = directories.config_file.parent
    with open_state(examine(directories, os.environ).loaded) as state:
        return state.settings.choose_directory(directory)


def _prepare(
    directory: Path,
    directories: paths.Directories,
    sources: list[ClientServers],
    options: Namespace,
) -> None:
    """Ask for trust in a directory that gets servers, and hide its invalid secrets."""
    target = read_target(directories, directory, os.environ)
    expected = import_servers(sources, target, inline_secrets=options.inline_secrets)
    if expected.servers and _needs_trust(directory, directories):
        require_trust(directories, directory, choose_stream(options))
    if expected.secrets and (directory / paths.SECRETS).exists():
        (directory / paths.SECRETS).chmod(text_files.OWNER_ONLY)


def _is_same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _needs_trust(directory: Path, directories: paths.Directories) -> bool:
    """Return whether the content of a directory was not reviewed; a new one has none."""
    is_new = not os.path.lexists(directory)
    return not (
        _is_same(directory, directories.user) or is_new or directories.config_file
    ) and not is_trusted(directory, directories.user, {})


async def _import(
    app: "OneTool", sources: list[ClientServers], directory: Path | None, options: Namespace
) -> "tuple[PlannedServers, list[str]]":
    """Add the servers to a settings directory, or to the settings that replicas share.

    Return what was done.
    """
    from onetool.admin.servers import edit_servers

    command = Invocation(app, options, CommandOutput())
    command.check_settings()

    def plan(changes: ServerChanges) -> "PlannedServers":
        return changes.plan_import(sources, inline_secrets=options.inline_secrets)

    planned, edited = await edit_servers(
        app, command.person, command.edit_query, plan, directory, keeps_backups=True
    )
    if edited.id is None or directory is None:
        return planned, []
    return planned, [*_describe_secrets_file(planned.edit, directory), *edited.notes]


def _describe_secrets_file(edit: "PlannedEdit", directory: Path) -> Iterator[str]:
    if edit.secrets_file is not None:
        ignore = text_files.read(directory / ".gitignore")
        if paths.SECRETS not in ignore.text.split():
            yield f"{ignore.path} does not list {paths.SECRETS}: add it to keep secrets out of git"
        yield f"Wrote {edit.secrets_file.before.path} (readable only by you)"


def _trust_new(directory: Path, user: Path) -> str:
    try:
        trust(directory, user)
    except OSError as error:
        reason = f"cannot write to {user}: {error.strerror or error}"
        raise ToolError(f"{directory} was written but not trusted: {reason}") from None
    return f"{directory} is trusted"


def _read_sources(source: str, machine: Machine) -> list[ClientServers]:
    if source in CLIENTS:
        candidates = [CLIENTS[source].locate_user_file(machine)]
    else:
        candidates = [paths.resolve_path(source, Path.cwd(), machine.home)]
    existing = [path for path in candidates if path.exists()]
    if not existing and source in CLIENTS:
        message = f"no configuration of {CLIENTS[source].title} found: looked for {candidates[0]}"
        project = [file for file in CLIENTS[source].locate_files(machine) if file.exists()]
        raise ToolError(
            message, hint=f"onetool import {shlex.quote(str(project[0]))}" if project else ""
        )
    if source.startswith(("https://", "http://")):
        raise ToolError(
            f"cannot import from a URL: {source}",
            hint=f"download it first: curl -fsSLo api.json {shlex.quote(source)}",
        )
    if not existing:
        raise ToolError(
            f"file not found: {source} (expected a file, or one of {', '.join(CLIENTS)})"
        )
    return [read_servers(text_files.read(existing[0]), machine.working_dir)]


def _to_json(planned: "PlannedServers", done: list[str]) -> JsonObject:
    result = planned.result
    return {
        "file": str(planned.file),
        "servers": list(result.servers),
        "secrets": list(result.secrets),
        "missing": result.missing,
        "notes": result.notes,
        "done": done,
        "diff": planned.edit.difference,
    }


def _render_text(planned: "PlannedServers", done: list[str], *, is_dry: bool) -> str:
    result = planned.result
    lines = [planned.edit.difference, ""] if result.servers else []
    lines += result.notes
    if planned.edit.secrets_file is not None:
        moved = "Would move" if is_dry else "Moved"
        names = ", ".join(result.secrets)
        place = planned.edit.secrets_file.before.path
        lines.append(
            f"{moved} secrets to {place}: {names} (--inline-secrets keeps them in onetool.yaml)"
        )
    missing = (f"{name} ({text})" if text else name for name, text in result.missing.items())
    lines += [f"Missing secret: onetool secret set {what}" for what in missing]
    names = ", ".join(result.servers)
    ending = (
        f"Imported {names}. Remove imported servers from your assistant's configuration so that"
        " they do not run twice."
    )
    if is_dry:
        ending = f"Would import {names}. Nothing was written (--dry-run)."
    return "\n".join(
        [*lines, *done, ending if names else "Nothing to import; no file was changed."]
    )


COMMANDS = {"import": Command(__doc__, add_arguments, main=main)}
