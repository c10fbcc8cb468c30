"""The supported clients: their files on each system, the entry format and OneTool's start command.

The start command is the absolute path of the executable, because desktop clients do not know the
PATH of the user's shell. If uvx runs OneTool, the executable is in a cache that uv may delete, so
the command is uvx with the same source. No other command installs from a registry, so that no
client ever starts somebody else's package.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from onetool.errors import ToolError
from onetool_child.json_types import JsonObject

ENTRY = "onetool"
PROGRAM = "onetool"
DISTRIBUTION = "onetool-run"  # it also installs a command of this name, which is what uvx runs
_UV_CACHE = re.compile(r"(?:archive|environments|builds)-v[0-9]+")
Which = Callable[[str], str | None]


class OneToolCommand(NamedTuple):
    command: str
    args: tuple[str, ...] = ()
    note: str = ""


class Machine(NamedTuple):
    """The properties of this machine that determine file locations. `system` is `sys.platform`."""

    system: str
    env: Mapping[str, str]
    home: Path
    working_dir: Path

    @property
    def directories(self) -> dict[str, Path | str]:
        """Return the directories in which clients keep their files."""
        home = self.home
        env = self.env
        xdg_config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
        app_data = {
            "darwin": home / "Library" / "Application Support",
            "win32": Path(env.get("APPDATA") or home / "AppData" / "Roaming"),
        }.get(self.system, xdg_config)
        return {
            "home": home,
            "app_data": app_data,
            "claude": env.get("CLAUDE_CONFIG_DIR") or home,
            "codex": env.get("CODEX_HOME") or home / ".codex",
            "zed": (
                {"darwin": home / ".config" / "zed", "win32": app_data / "Zed"}.get(
                    self.system, xdg_config / "zed"
                )
            ),
        }


class Client(NamedTuple):
    """An MCP client.

    `has_working_dir` is False if it starts servers without a working directory of the user.
    """

    name: str
    title: str
    key: str
    user_file: str
    project_file: str = ""
    typed: bool = False
    has_working_dir: bool = True

    @property
    def path(self) -> Sequence[str]:
        """Return the keys that lead to the entry of OneTool."""
        return (self.key, ENTRY)

    def locate_user_file(self, machine: Machine) -> Path:
        return Path(self.user_file.format_map(machine.directories))

    def locate_file(self, machine: Machine, *, project: bool) -> Path:
        if not project:
            return self.locate_user_file(machine)
        if not self.project_file:
            raise ToolError(f"{self.title} has no project configuration", hint="omit --project")
        return machine.working_dir / self.project_file

    def locate_files(self, machine: Machine) -> list[Path]:
        """Return all of its files, highest precedence first."""
        project = [self.locate_file(machine, project=True)] if self.project_file else []
        return [*project, self.locate_user_file(machine)]

    def make_entry(self, start: OneToolCommand, directory: Path | None) -> JsonObject:
        kind = {"type": "stdio"} if self.typed else {}
        env = {"env": {"OT_CWD": str(directory)}} if directory is not None else {}
        return {**kind, "command": start.command, "args": list(start.args), **env}


_ALL = (
    Client(
        "claude-code", "Claude Code", "mcpServers", "{claude}/.claude.json", ".mcp.json", typed=True
    ),
    Client(
        "claude-desktop",
        "Claude Desktop",
        "mcpServers",
        "{app_data}/Claude/claude_desktop_config.json",
        has_working_dir=False,
    ),
    Client(
        "cursor", "Cursor", "mcpServers", "{home}/.cursor/mcp.json", ".cursor/mcp.json", typed=True
    ),
    Client(
        "vscode",
        "VS Code",
        "servers",
        "{app_data}/Code/User/mcp.json",
        ".vscode/mcp.json",
        typed=True,
    ),
    Client("codex", "Codex", "mcp_servers", "{codex}/config.toml", ".codex/config.toml"),
    Client(
        "gemini",
        "Gemini CLI",
        "mcpServers",
        "{home}/.gemini/settings.json",
        ".gemini/settings.json",
    ),
    Client(
        "windsurf",
        "Windsurf",
        "mcpServers",
        "{home}/.codeium/windsurf/mcp_config.json",
        has_working_dir=False,
    ),
    Client("zed", "Zed", "context_servers", "{zed}/settings.json", ".zed/settings.json"),
)
CLIENTS = {client.name: client for client in _ALL}


def find_start_command(
    interpreter: Path, direct_url: str | None, which: Which = shutil.which
) -> OneToolCommand:
    """Return the command.

    `interpreter` is Python's path, `direct_url` what direct_url.json contains.
    """
    names = (interpreter.parent / PROGRAM, interpreter.parent / f"{PROGRAM}.exe")
    beside = next(filter(Path.is_file, names), None)
    if beside is not None and not is_in_uv_cache(beside):
        return OneToolCommand(str(beside))
    found = which(PROGRAM)
    if found is not None and not is_in_uv_cache(Path(found)):
        return OneToolCommand(os.path.abspath(found))  # noqa: PTH100 - keeps links, whose targets change with updates
    if is_in_uv_cache(interpreter):
        return _build_uvx_command(direct_url, which)
    return OneToolCommand(
        str(interpreter), ("-c", "from onetool.cli.main import main; raise SystemExit(main())")
    )


def is_in_uv_cache(path: Path) -> bool:
    """Return whether the path is in a cache of uv."""
    return any(_UV_CACHE.fullmatch(part) for part in path.parts)


def _build_uvx_command(direct_url: str | None, which: Which) -> OneToolCommand:
    uvx = which("uvx")
    stable = uvx if uvx is not None and not is_in_uv_cache(Path(uvx)) else None
    args: tuple[str, ...] = (DISTRIBUTION,)
    if direct_url is not None:
        data = json.loads(direct_url)
        vcs = f"{data['vcs_info']['vcs']}+" if "vcs_info" in data else ""
        args = ("--from", f"{vcs}{data['url']}", PROGRAM)
    note = "" if stable else "uvx must be on the PATH that your assistant sees"
    return OneToolCommand(stable or "uvx", args, note)
