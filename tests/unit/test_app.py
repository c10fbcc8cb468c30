"""Opening, reloading and inspecting OneTool, with real files and real cells."""

import gc
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from tests.support import App, eventually, open_app

from onetool import tool
from onetool.app import OneTool
from onetool.core.threads import MAX_DEPTH
from onetool.errors import ConfigError, ToolError
from onetool.runs.cell_process import CellProcess
from onetool.runs.cells import Cells
from onetool.settings.settings_reader import examine_settings, read_settings
from onetool.settings.trust import trust
from onetool.util.logging import Log


def write_settings(home: Path, text: str) -> Path:
    file = home / ".onetool" / "onetool.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def make_onetool(home: Path, cwd: Path | None = None) -> OneTool:
    return OneTool(read=lambda: read_settings({}, cwd or home, None, home), log=Log())


@pytest.mark.slow
def test_a_reload_applies_changed_settings(tmp_path: Path) -> None:
    write_settings(tmp_path, "aliases: {t: machine.now}")
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(make_onetool(tmp_path)) as onetool,
    ):
        app = App(portal, onetool)
        assert "T" in app.value("t()")
        write_settings(tmp_path, "aliases: {u: machine.now}\nexecution: {timeout: 7}")
        assert app.value("ot.reload()") == "OK: Configuration reloaded"
        assert "T" in app.value("u()")
        assert "NameError" in app.failure("t()")
        assert onetool.settings.execution.timeout == 7


def test_concurrent_reloads_of_the_same_files_are_one(tmp_path: Path) -> None:
    write_settings(tmp_path, "aliases: {t: machine.now}")
    read = partial(read_settings, {}, tmp_path, None, tmp_path)
    onetool = OneTool(
        read=read, examine=partial(examine_settings, {}, tmp_path, None, tmp_path), log=Log()
    )
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(onetool):
        app = App(portal, onetool)
        before = onetool.live_settings.times_applied
        for answer in [app.start("ot.reload()") for _ in range(20)]:
            assert answer.result().text == "OK: Configuration reloaded"
        assert onetool.live_settings.times_applied == before + 1
        for name in ("u", "v"):  # changed files count at once
            write_settings(tmp_path, f"aliases: {{{name}: machine.now}}")
            app.value("ot.reload()")
            assert "T" in app.value(f"{name}()")


def test_health_is_computed_once_a_second_and_again_after_a_reload(tmp_path: Path) -> None:
    write_settings(tmp_path, "log_level: INFO")
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(make_onetool(tmp_path)) as onetool,
    ):
        first = portal.call(onetool.health)
        reports = [portal.start_task_soon(onetool.health) for _ in range(50)]
        assert [report.result() is first for report in reports] == [True] * 50
        write_settings(tmp_path, "log_level: DEBUG")
        portal.call(onetool.live_settings.reload)
        assert portal.call(onetool.health) is not first


def test_an_invalid_reload_changes_nothing(tmp_path: Path) -> None:
    write_settings(tmp_path, "aliases: {t: machine.now}")
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(make_onetool(tmp_path)) as onetool,
    ):
        app = App(portal, onetool)
        write_settings(tmp_path, "alias: {t: machine.now}")
        failure = app.failure("ot.reload()")
        assert "onetool.yaml:1" in failure
        assert "aliases" in failure
        assert "T" in app.value("t()")


@pytest.mark.slow
def test_invalid_settings_stop_all_runs_except_ot_tools(tmp_path: Path) -> None:
    file = write_settings(tmp_path, "execution: {timeout: soon}")
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(make_onetool(tmp_path)) as onetool,
    ):
        app = App(portal, onetool)
        assert isinstance(onetool.config_error, ConfigError)
        assert "onetool.yaml:1" in app.failure("1+1")
        assert "onetool.yaml:1" in app.value("ot.health()")
        assert "ot.tools()" in app.value("ot.help()")
        file.write_text("execution: {timeout: 9}", encoding="utf-8")
        assert app.value("ot.reload()") == "OK: Configuration reloaded"
        assert app.value("1+1") == "2"


@pytest.mark.slow
def test_an_untrusted_directory_is_reported_once(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    write_settings(project, "aliases: {t: machine.now}")
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(make_onetool(home, project)) as onetool,
    ):
        app = App(portal, onetool)
        first, second = app.run("1+1"), app.run("1+1")
        assert "onetool trust" in first.blocks[0]
        assert second.blocks == ("2",)
        assert "onetool trust" in app.value("ot.health()")
        trust(project / ".onetool", home / ".onetool")
        app.value("ot.reload()")
        assert "T" in app.value("t()")


def test_a_secret_is_redacted_in_output(tmp_path: Path) -> None:
    secrets = write_settings(tmp_path, "log_level: INFO").with_name("secrets.yaml")
    secrets.write_text("TOKEN: hunter2-hunter2\n", encoding="utf-8")
    secrets.chmod(0o600)
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(make_onetool(tmp_path)) as onetool,
    ):
        app = App(portal, onetool)
        assert app.value("'hunter2' + '-hunter2'") == "[REDACTED]"


def test_an_unknown_agent_is_rejected_with_the_known_names() -> None:
    with open_app() as app:
        answer = app.run("1+1", agent="nobody")
        assert answer.is_error
        assert "expected default" in answer.text


def test_an_unopened_app_is_an_error_with_a_hint() -> None:
    with pytest.raises(RuntimeError, match="async with OneTool"):
        OneTool().context()


def test_a_context_has_the_permissions_of_its_agent() -> None:
    settings = {"agents": {"writer": {"permissions": ["read", "write"]}}}
    with open_app(settings) as app:
        assert set(app.onetool.context("writer").permissions) == {"read", "write"}
        assert set(app.onetool.context().permissions) == {"read", "network"}
        with pytest.raises(ToolError, match="unknown agent 'other': expected default, writer"):
            app.onetool.context("other")


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "1 + 1",
        "machine.now()",
        "1 / 0",
        "machine.missing()",
        "fs.read(path='/etc/shadow')",
        "import os\nos._exit(1)",
    ],
)
def test_a_run_leaves_nothing_to_the_cyclic_collector(code: str) -> None:
    """Memory that only the collector frees grows until its next full collection, which a large heap
    delays.
    """
    runs = 10
    with open_app() as app:
        for _ in range(3):
            app.run(code)
        gc.collect()
        gc.disable()
        try:
            app.portal.call(run_repeatedly, app.onetool, code, runs)
            assert eventually(lambda: not has_open_cells())
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            kinds = Counter(type(garbage).__qualname__ for garbage in gc.garbage)
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert kinds["CellProcess"] + kinds["_Host"] <= 1, kinds
    assert kinds.total() < 8 * runs, kinds


async def run_repeatedly(onetool: OneTool, code: str, count: int) -> None:
    for _ in range(count):
        await onetool.run(code)


def has_open_cells() -> bool:
    """Return whether a cell that has run code has not been released."""
    cells: list[Any] = [thing for thing in gc.get_objects() if isinstance(thing, CellProcess)]
    return any(cell.host is not None and not cell.channel.closed.done() for cell in cells)


def test_a_cell_that_a_call_started_does_not_count_its_calls_as_nested() -> None:
    """Its requests are handled in the context in which it was created."""

    @tool("cells.replace")
    async def replace() -> None:
        """Start the next cell during this call."""
        cells = app.onetool.cells
        assert isinstance(cells, Cells)
        for cell in list(cells._idle):
            cells._idle.remove(cell)
            cells._end(cell)

    with open_app(tools=[replace]) as app:
        for _ in range(MAX_DEPTH + 2):
            app.value("cells.replace()\n1")
