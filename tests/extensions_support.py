"""Helpers for tests of extension packs: write files and open OneTool."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from anyio.from_thread import start_blocking_portal
from tests.support import ISOLATION_ENVIRONMENT, App

from onetool.app import OneTool
from onetool.settings.settings_reader import read_settings
from onetool.util.logging import Log

# The same for all tests, so that uv creates one environment for all of them.
HEADER = '# /// script\n# requires-python = ">=3.11"\n# dependencies = ["six"]\n# ///\n'


def write_pack(folder: Path, pack: str, text: str, name: str = "") -> Path:
    """Write an extension file in a directory of packs, such as `.onetool/tools`."""
    file = folder / pack / f"{name or pack}_tools.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def configure(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "onetool.yaml").write_text(text, encoding="utf-8")


def write_secrets(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "secrets.yaml"
    file.write_text(text, encoding="utf-8")
    file.chmod(0o600)


@contextmanager
def open_app_in(
    home: Path,
    project: Path | None = None,
    *,
    log: Log | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[App]:
    """Open OneTool in the directory of a project, or in the home directory without one."""
    onetool = OneTool(
        read=lambda: read_settings(ISOLATION_ENVIRONMENT, project or home, None, home),
        log=log or Log(),
        environment=environment,
    )
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(onetool) as app,
    ):
        yield App(portal, app)
