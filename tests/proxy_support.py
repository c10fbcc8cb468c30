"""Servers for tests of the proxy: real ones, installed once, and hostile ones."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conftest import find_program

from onetool.util.atomic import locked

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "onetool-tests"
HOSTILE = Path(__file__).parent / "e2e" / "servers" / "hostile.py"
MODERN = HOSTILE.with_name("modern.py")
NPM = {
    "@modelcontextprotocol/server-everything": "2026.8.31",
    "@modelcontextprotocol/server-filesystem": "2026.8.31",
    "@modelcontextprotocol/server-memory": "2026.8.31",
}
PYPI = {
    "mcp-server-time": "2026.10.19",
    "mcp-server-git": "2026.10.19",
    "office-word-mcp-server": "1.1.11",
    "mcp-server-sqlite": "2025.4.25",
    "mcp": "2.3.0",
}


def hostile_server(way: str, notes: Path | None = None, **settings: Any) -> dict[str, Any]:
    """Return the settings of a server that misbehaves in this way; see `servers/hostile.py`."""
    return {
        "command": sys.executable,
        "args": [str(HOSTILE), way, str(notes or "/nowhere")],
        "timeout": 20,
        **settings,
    }


def node_modules() -> Path:
    """Return the directory with the servers of npm."""
    folder = CACHE / "npm"
    wanted = [f"{name}@{version}" for name, version in NPM.items()]
    install_once(
        folder,
        [
            find_program("npm"),
            "install",
            "--no-audit",
            "--no-fund",
            "--prefix",
            str(folder),
            *wanted,
        ],
        wanted,
    )
    return folder / "node_modules"


def node_server(name: str, *arguments: str, **settings: Any) -> dict[str, Any]:
    script = node_modules() / "@modelcontextprotocol" / f"server-{name}" / "dist" / "index.js"
    return {"command": find_program("node"), "args": [str(script), *arguments], **settings}


def python_server(name: str, *arguments: str, **settings: Any) -> dict[str, Any]:
    """Return the command of a server of PyPI, in a shared environment."""
    folder = CACHE / "pypi"
    python = folder / "bin" / "python"
    wanted = [f"{package}=={version}" for package, version in PYPI.items()]
    uv = find_program("uv")
    install = (
        f'"{uv}" venv -q --clear "{folder}" && "{uv}" pip install -q --python "{python}"'
        f" {' '.join(wanted)}"
    )
    install_once(folder, ["/bin/sh", "-c", install], wanted)
    return {"command": str(folder / "bin" / name), "args": list(arguments), **settings}


def install_once(folder: Path, command: list[str], wanted: list[str]) -> None:
    """Install unless it is installed already. Tests run concurrently."""
    note, content = CACHE / f"{folder.name}.installed", "\n".join(wanted)
    CACHE.mkdir(parents=True, exist_ok=True)
    with locked(CACHE / f"{folder.name}.lock"):
        if not note.exists() or note.read_text(encoding="utf-8") != content:
            # not in this repository, whose constraints uv would apply
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=300, cwd=CACHE
            )
            assert done.returncode == 0, done.stdout + done.stderr
            note.write_text(content, encoding="utf-8")
