"""Finding the servers in a client's configuration, whatever the client: the content tells which format it is.

Servers come out as the client wrote them; `onetool.clients.translate` knows what that means.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onetool.clients import json_edit, toml_edit
from onetool.clients.edits import line_of
from onetool.clients.files import Read
from onetool.errors import ConfigError, ToolError

_KEYS = ("mcpServers", "servers", "context_servers", "mcp_servers")


class NoServers(ToolError):
    """A proper file that has nothing for us in it."""


@dataclass(frozen=True, slots=True)
class Found:
    """Servers as they stand in one file. `inputs` are what VS Code asks a person for, `notes` what to tell them."""

    file: Path
    servers: Mapping[str, Any]
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def find(read: Read, folder: Path) -> Found:
    """The servers of a file that count in this folder."""
    text = read.text.removeprefix("\ufeff")
    if not text.strip():
        raise NoServers(f"{read.path} is empty; there is nothing to import")
    data, notes = _parsed(text, str(read.path))
    servers, more = _servers(data, str(read.path), folder)
    return Found(read.path, servers, _inputs(data), (*notes, *more))


def _parsed(text: str, source: str) -> tuple[Any, tuple[str, ...]]:
    without_comments = re.sub(r"\A(?:\s+|//[^\n]*|/\*.*?\*/)*", "", text, flags=re.DOTALL)
    if without_comments.startswith("{"):
        document = json_edit.Document(text, source)
        assert document.root is not None
        return document.root.value, tuple(_repeated(document, document.root))
    try:
        return toml_edit.parse(text, source), ()
    except ConfigError:
        if source.endswith(".toml"):
            raise
        raise ToolError(
            f"{source} is no configuration of a client, which is JSON or TOML, and no OpenAPI document, "
            "which has `openapi:` or `swagger:` at its top"
        ) from None


def _repeated(document: json_edit.Document, root: json_edit.Node) -> Iterable[str]:
    for member in document.members(root):
        servers = document.members(member) if member.key in _KEYS and isinstance(member.value, dict) else []
        counts = Counter(server.key for server in servers)
        for server in {server.key: server for server in servers}.values():
            if counts[server.key] > 1:
                line = line_of(document.text, server.key_start)
                yield f"{document.source}:{line}: {server.key} stands there twice; the last one counts"


def _servers(data: Any, source: str, folder: Path) -> tuple[dict[str, Any], list[str]]:
    if not isinstance(data, dict):
        raise ToolError(f"{source} is no configuration of a client: it must be an object")
    holders = [data, *([data["mcp"]] if isinstance(data.get("mcp"), dict) else [])]
    found = [holder[key] for holder in holders for key in _KEYS if isinstance(holder.get(key), dict)]
    own, notes = _of_projects(data.get("projects"), folder)
    if own:
        found.append(own)
    keys = {"command", "url", "serverUrl", "httpUrl"}
    if not found and data and all(isinstance(server, dict) and keys & server.keys() for server in data.values()):
        found = [data]  # a bare `{name: {command: ...}}`, as READMEs show it
    if not found and not notes and not any(key in holder for holder in holders for key in _KEYS):
        raise NoServers(f"{source} holds no servers; looked for {', '.join(_KEYS)}")
    return {name: server for servers in found for name, server in servers.items()}, notes


def _of_projects(projects: Any, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Claude Code keeps a folder's private servers in ~/.claude.json, under the folder's path."""
    own: dict[str, Any] = {}
    others = []
    for path, project in projects.items() if isinstance(projects, dict) else ():
        servers = project.get("mcpServers") if isinstance(project, dict) else None
        if isinstance(servers, dict) and servers:
            if Path(path) == folder:
                own = servers
            else:
                others.append(f"servers of {path} were left there: {', '.join(servers)}")
    return own, others


def _inputs(data: Any) -> dict[str, Mapping[str, Any]]:
    holders = [data, data.get("mcp")] if isinstance(data, dict) else []
    lists = [holder["inputs"] for holder in holders if isinstance(holder, dict) and "inputs" in holder]
    every = [item for items in lists if isinstance(items, list) for item in items]
    return {str(item["id"]): item for item in every if isinstance(item, dict) and "id" in item}
