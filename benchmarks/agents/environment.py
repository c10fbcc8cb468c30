"""The Python environment of the benchmark data: created by uv once, in the user's cache directory.

`bfcl-eval` is installed without its dependencies, which include old versions of numpy and CUDA. Its
classes need only `mpmath`.
"""

import os
import subprocess
import sys
from pathlib import Path

from onetool.errors import ToolError
from onetool.settings.paths import FOLDER
from onetool.sources.extensions.environments import find_uv, make_script_environment
from onetool.util.atomic import locked

PACKAGES = ("bfcl-eval==2026.3.23", "mpmath==1.4.1")
INSTALL_SECONDS = 300
MAX_ERROR_CHARS = 4000


def install_data(home: Path) -> Path:
    """Return the interpreter of the environment, which is created if necessary."""
    directory = home / FOLDER / "cache" / "bench"
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    environment, note = directory / "bfcl", directory / "bfcl.installed"
    python = environment / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    with locked(directory / "bfcl.lock"):
        wanted = "\n".join((*PACKAGES, sys.version))
        if not (python.exists() and note.exists() and note.read_text(encoding="utf-8") == wanted):
            note.unlink(missing_ok=True)
            _run_uv("venv", "--quiet", "--clear", "--python", sys.executable, str(environment))
            _run_uv("pip", "install", "--quiet", "--no-deps", "--python", str(python), *PACKAGES)
            note.write_text(wanted, encoding="utf-8")
    return python


def _run_uv(*arguments: str) -> None:
    command = [find_uv(), *arguments]
    environment = make_script_environment(os.environ)
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise _install_error(f"uv did not finish within {INSTALL_SECONDS} s") from None
    if done.returncode:
        raise _install_error(done.stderr.strip()[-MAX_ERROR_CHARS:])


def _install_error(reason: str) -> ToolError:
    hint = "check that uv can reach its package index, or set UV_DEFAULT_INDEX"
    return ToolError(f"cannot install {' and '.join(PACKAGES)}: {reason}", hint=hint)
