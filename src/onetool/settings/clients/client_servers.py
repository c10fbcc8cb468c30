"""Reads the servers from the configuration of any client. The format is detected from the content.

Servers are returned in the client's format; `onetool.settings.clients.translate` converts them.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from onetool.errors import ConfigError, ToolError
from onetool.settings.clients import json_edit, toml_edit
from onetool.settings.clients.edits import line_number
from onetool.settings.clients.text_files import TextFile
from onetool_child.json_types import JsonMapping, JsonObject

_KEYS = ("mcpServers", "servers", "context_servers", "mcp_servers")


class NoServersError(ToolError):
    """Raised for a valid file without servers."""


@dataclass(frozen=True, slots=True)
class ClientServers:
    """The servers of one file and its digest.

    `inputs` are VS Code's input variables, `notes` messages for the user.
    """

    file: Path
    servers: JsonMapping
    inputs: Mapping[str, JsonMapping] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    digest: str = ""


def read_servers(file: TextFile, directory: Path) -> ClientServers:
    """Return the servers of a file that apply to this directory."""
    text = file.text.removeprefix("\ufeff")
    if not text.strip():
        raise NoServersError(f"nothing to import: {file.path} is empty")
    data, notes = _parse(text, str(file.path))
    servers, more = _collect_servers(data, str(file.path), directory)
    digest = sha256(file.raw or b"").hexdigest()
    return ClientServers(file.path, servers, _read_inputs(data), (*notes, *more), digest)


def parse_settings(file: TextFile) -> Any:
    """Return the data of a client's file. Its format follows from its name."""
    parse = toml_edit.parse if file.path.suffix == ".toml" else json_edit.parse
    return parse(file.text, str(file.path))


def _parse(text: str, source: str) -> tuple[Any, tuple[str, ...]]:
    without_comments = re.sub(r"\A(?:\s+|//[^\n]*|/\*.*?\*/)*", "", text, flags=re.DOTALL)
    if without_comments.startswith("{"):
        document = json_edit.JsonDocument(text, source)
        assert document.root is not None
        return document.root.value, tuple(_find_duplicates(document, document.root))
    try:
        return toml_edit.parse(text, source), ()
    except ConfigError:
        if source.endswith(".toml"):
            raise
        raise ToolError(
            f"unknown format of {source}: expected a client's configuration (JSON or TOML) or an"
            " OpenAPI document (with `openapi:` or `swagger:` at the top)"
        ) from None


def _find_duplicates(document: json_edit.JsonDocument, root: json_edit.Node) -> Iterable[str]:
    for member in document.members(root):
        servers = (
            document.members(member)
            if member.key in _KEYS and isinstance(member.value, dict)
            else []
        )
        counts = Counter(server.key for server in servers)
        for server in {server.key: server for server in servers}.values():
            if counts[server.key] > 1:
                line = line_number(document.text, server.key_start)
                yield (
                    f"{document.source}:{line}: duplicate server {server.key}; the last one is used"
                )


def _collect_servers(data: Any, source: str, directory: Path) -> tuple[JsonObject, list[str]]:
    if not isinstance(data, dict):
        raise ToolError(f"invalid configuration {source}: expected an object")
    holders = [data, *([data["mcp"]] if isinstance(data.get("mcp"), dict) else [])]
    found = [
        holder[key] for holder in holders for key in _KEYS if isinstance(holder.get(key), dict)
    ]
    project, notes = _find_project_servers(data.get("projects"), directory)
    if project:
        found.append(project)
    keys = {"command", "url", "serverUrl", "httpUrl"}
    if (
        not found
        and data
        and all(isinstance(server, dict) and keys & server.keys() for server in data.values())
    ):
        found = [data]  # a bare `{name: {command: ...}}`, as READMEs show it
    if not found and not notes and not any(key in holder for holder in holders for key in _KEYS):
        raise NoServersError(f"no servers in {source}: looked for {', '.join(_KEYS)}")
    return {name: server for servers in found for name, server in servers.items()}, notes


def _find_project_servers(projects: Any, directory: Path) -> tuple[JsonObject, list[str]]:
    """Return the private servers of a directory, which Claude Code keeps in ~/.claude.json under
    its path.
    """
    own: JsonObject = {}
    others = []
    for path, project in projects.items() if isinstance(projects, dict) else ():
        servers = project.get("mcpServers") if isinstance(project, dict) else None
        if isinstance(servers, dict) and servers:
            if Path(path) == directory:
                own = servers
            else:
                others.append(f"skipped servers of {path}: {', '.join(servers)}")
    return own, others


def _read_inputs(data: Any) -> dict[str, JsonMapping]:
    holders = [data, data.get("mcp")] if isinstance(data, dict) else []
    lists = [
        holder["inputs"] for holder in holders if isinstance(holder, dict) and "inputs" in holder
    ]
    every = [item for items in lists if isinstance(items, list) for item in items]
    return {str(item["id"]): item for item in every if isinstance(item, dict) and "id" in item}
