"""Where the demonstration plays: a home of its own in a temporary folder, with all that its steps call.

Nothing of the person's settings is read and nothing is written beside the folder, which goes when the curtain falls:
also the cache of uv is in it, so that the package of the example is fetched each time.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from onetool import paths
from onetool.app import OneTool, read_settings
from onetool.bundles import taking
from onetool.cli.demo import orders
from onetool.config import scaffold
from onetool.errors import ToolError

SERVER = Path(__file__).with_name("tickets.py")
PATIENCE = 10  # seconds for whatever may not be there: the network, a slow disk


@dataclass(frozen=True, slots=True)
class Stage:
    home: Path
    api: str

    @property
    def working_dir(self) -> Path:
        return self.home / "work"

    def app(self) -> OneTool:
        return OneTool(
            read=lambda: read_settings({}, self.working_dir, home=self.home), environment=_environment(self.home)
        )

    def import_api(self, app: OneTool) -> None:
        """What `onetool import orders.json --write` does. It waits for the disk."""
        taking.take_over(app.bundles.store, taking.read(orders.document(self.api)))


@contextmanager
def built() -> Iterator[Stage]:
    with _folder() as home, orders.serving() as api:
        stage = Stage(home, api)
        try:
            stage.working_dir.mkdir()
            (home / "tmp").mkdir()
            _write_settings(home / paths.FOLDER, api)
            scaffold.write_folder(home / paths.FOLDER)
        except OSError as error:
            raise ToolError(f"{home} cannot be written: {error.strerror or error}") from None
        yield stage


@contextmanager
def _folder() -> Iterator[Path]:
    try:
        folder = tempfile.TemporaryDirectory(prefix="onetool-demo-", ignore_cleanup_errors=True)
    except OSError as error:
        raise ToolError(
            f"there is no folder for temporary files: {error.strerror or error}. "
            "Set TMPDIR to one that you may write to, and try again."
        ) from None
    with folder as name:
        yield Path(name).resolve()


def _write_settings(folder: Path, api: str) -> None:
    """As a person would write them: one server, and the one address that HTTP tools may reach."""
    settings = {
        "servers": {"tickets": {"command": sys.executable, "args": ["-P", str(SERVER)], "timeout": PATIENCE}},
        "http": {"allowedHosts": [urlsplit(api).netloc], "allowPrivateAddresses": True},
        "workers": {"start_timeout": PATIENCE},
    }
    folder.mkdir()
    (folder / paths.CONFIG).write_text(json.dumps(settings, indent=2), encoding="utf-8")


def _environment(home: Path) -> Mapping[str, str]:
    """What uv is told: to keep all it fetches in here, to use this Python, and to give up soon."""
    kept = {"UV_CACHE_DIR": str(home / "uv"), "TMPDIR": str(home / "tmp")}
    python = {"UV_PYTHON": sys.executable, "UV_PYTHON_DOWNLOADS": "never"}
    return {**os.environ, **kept, **python, "UV_HTTP_TIMEOUT": str(PATIENCE), "UV_HTTP_RETRIES": "1"}
