"""The environment of the demonstration: a temporary home directory with everything that its steps call.

The user's settings are not read, and nothing is written outside of the directory, which is removed at the end. It also
contains the cache of uv, so the package of the example is downloaded each time.
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
from onetool.bundles import importer
from onetool.cli.demo import orders
from onetool.config import scaffold
from onetool.errors import ToolError

SERVER = Path(__file__).with_name("tickets.py")
TIMEOUT_SECONDS = 10  # for the network and slow disks


@dataclass(frozen=True, slots=True)
class DemoEnvironment:
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
        """Import the API as `onetool import orders.json --write` does. Blocks on the disk."""
        importer.import_bundle(app.bundles.store, importer.read(orders.document(self.api)))


@contextmanager
def create_environment() -> Iterator[DemoEnvironment]:
    with _temporary_directory() as home, orders.run_server() as api:
        stage = DemoEnvironment(home, api)
        try:
            stage.working_dir.mkdir()
            (home / "tmp").mkdir()
            _write_settings(home / paths.FOLDER, api)
            scaffold.write_settings_directory(home / paths.FOLDER)
        except OSError as error:
            raise ToolError(f"cannot write to {home}: {error.strerror or error}") from None
        yield stage


@contextmanager
def _temporary_directory() -> Iterator[Path]:
    try:
        directory = tempfile.TemporaryDirectory(prefix="onetool-demo-", ignore_cleanup_errors=True)
    except OSError as error:
        raise ToolError(
            f"no usable directory for temporary files: {error.strerror or error}",
            hint="set TMPDIR to a writable directory",
        ) from None
    with directory as name:
        yield Path(name).resolve()


def _write_settings(directory: Path, api: str) -> None:
    """Write settings with one server and one allowed host."""
    settings = {
        "servers": {"tickets": {"command": sys.executable, "args": ["-P", str(SERVER)], "timeout": TIMEOUT_SECONDS}},
        "http": {"allowedHosts": [urlsplit(api).netloc], "allowPrivateAddresses": True},
        "workers": {"start_timeout": TIMEOUT_SECONDS},
    }
    directory.mkdir()
    (directory / paths.CONFIG).write_text(json.dumps(settings, indent=2), encoding="utf-8")


def _environment(home: Path) -> Mapping[str, str]:
    """Return the environment of uv: a cache in this directory, this Python, and short timeouts."""
    kept = {"UV_CACHE_DIR": str(home / "uv"), "TMPDIR": str(home / "tmp")}
    python = {"UV_PYTHON": sys.executable, "UV_PYTHON_DOWNLOADS": "never"}
    return {**os.environ, **kept, **python, "UV_HTTP_TIMEOUT": str(TIMEOUT_SECONDS), "UV_HTTP_RETRIES": "1"}
