"""The clients: where each keeps its servers on each system, and what an entry looks like there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ot.clients.launch import Launch
from ot.errors import ToolError

ENTRY = "onetool"


@dataclass(frozen=True, slots=True)
class Place:
    """This machine, as far as it decides where files are. `system` is `sys.platform`."""

    system: str
    env: Mapping[str, str]
    home: Path
    working_dir: Path

    @property
    def app_data(self) -> Path:
        if self.system == "darwin":
            return self.home / "Library" / "Application Support"
        if self.system == "win32":
            return Path(self.env.get("APPDATA") or self.home / "AppData" / "Roaming")
        return self.xdg_config

    @property
    def xdg_config(self) -> Path:
        return Path(self.env.get("XDG_CONFIG_HOME") or self.home / ".config")

    def named(self, variable: str, otherwise: Path) -> Path:
        return Path(self.env.get(variable) or otherwise)


@dataclass(frozen=True, slots=True)
class Client:
    """`has_folder` is False where the client starts servers in no folder of the person's."""

    name: str
    title: str
    key: str
    user: Callable[[Place], Path]
    project: tuple[str, ...] = ()
    typed: bool = False
    has_folder: bool = True

    @property
    def path(self) -> Sequence[str]:
        """The keys that lead to our entry."""
        return (self.key, ENTRY)

    def file(self, place: Place, *, project: bool) -> Path:
        if not project:
            return self.user(place)
        if not self.project:
            raise ToolError(f"{self.title} has no configuration for a single folder; leave --project out")
        return place.working_dir.joinpath(*self.project)

    def files(self, place: Place) -> list[Path]:
        """All of its files, the one that has the last word first."""
        own = [self.file(place, project=True)] if self.project else []
        return [*own, self.user(place)]

    def entry(self, launch: Launch, folder: Path | None) -> dict[str, Any]:
        kind = {"type": "stdio"} if self.typed else {}
        env = {"env": {"OT_CWD": str(folder)}} if folder is not None else {}
        return {**kind, "command": launch.command, "args": list(launch.args), **env}


def _claude_code(place: Place) -> Path:
    return place.named("CLAUDE_CONFIG_DIR", place.home) / ".claude.json"


def _claude_desktop(place: Place) -> Path:
    return place.app_data / "Claude" / "claude_desktop_config.json"


def _cursor(place: Place) -> Path:
    return place.home / ".cursor" / "mcp.json"


def _vscode(place: Place) -> Path:
    return place.app_data / "Code" / "User" / "mcp.json"


def _codex(place: Place) -> Path:
    return place.named("CODEX_HOME", place.home / ".codex") / "config.toml"


def _gemini(place: Place) -> Path:
    return place.home / ".gemini" / "settings.json"


def _windsurf(place: Place) -> Path:
    return place.home / ".codeium" / "windsurf" / "mcp_config.json"


def _zed(place: Place) -> Path:
    if place.system == "win32":
        return place.app_data / "Zed" / "settings.json"
    return (place.home / ".config" if place.system == "darwin" else place.xdg_config) / "zed" / "settings.json"


_ALL = (
    Client("claude-code", "Claude Code", "mcpServers", _claude_code, (".mcp.json",), typed=True),
    Client("claude-desktop", "Claude Desktop", "mcpServers", _claude_desktop, has_folder=False),
    Client("cursor", "Cursor", "mcpServers", _cursor, (".cursor", "mcp.json"), typed=True),
    Client("vscode", "VS Code", "servers", _vscode, (".vscode", "mcp.json"), typed=True),
    Client("codex", "Codex", "mcp_servers", _codex, (".codex", "config.toml")),
    Client("gemini", "Gemini CLI", "mcpServers", _gemini, (".gemini", "settings.json")),
    Client("windsurf", "Windsurf", "mcpServers", _windsurf, has_folder=False),
    Client("zed", "Zed", "context_servers", _zed, (".zed", "settings.json")),
)
CLIENTS = {client.name: client for client in _ALL}
