"""OneTool in a program: lazy imports, runs without an event loop, and values of answers."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import THREE_LINES, eventually, list_descendants

import onetool
from onetool import Answer, OneTool, Settings, ToolBus, ToolError, tool
from onetool.errors import ArgumentError, ConfigError, ToolTimeout
from onetool.util.version import __version__

SECRET = "s3cret-value-of-a-key"
HEAVY = {
    "anyio",
    "asyncio",
    "mcp",
    "orjson",
    "pydantic",
    "starlette",
    "yaml",
    "jsonschema_rs",
    "typing_extensions",
}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneTool]:
    with OneTool(folder=tmp_path_factory.mktemp("library")) as app:
        app.bus.register_tool(read_key)
        yield app


@tool("library.secret")
def read_key() -> dict[str, str]:
    return {"key": SECRET}


def test_the_package_imports_nothing_before_a_name_is_used() -> None:
    code = (
        "import json, sys; before = set(sys.modules); import onetool; loaded = set(sys.modules) -"
        " before\nfrom onetool import tool, ToolError; print(json.dumps([sorted(loaded),"
        " sorted(set(sys.modules) - before)]))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded, with_tool = json.loads(done.stdout)
    assert [name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names] == [
        "onetool"
    ]
    assert not HEAVY & {name.partition(".")[0] for name in with_tool}


def test_every_public_name_exists_and_no_module_hides_one() -> None:
    directory = Path(onetool.__file__).parent
    modules = {
        path.stem
        for path in directory.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert not modules & set(onetool.__all__)
    for name in onetool.__all__:
        assert getattr(onetool, name) is not None
        assert name in dir(onetool)
    assert (directory / "py.typed").is_file()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = onetool.nothing


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", 2),
        ("'text'", "text"),
        ("{'a': [1, None, True]}", {"a": [1, None, True]}),
        ("x = 1", None),
        ("['x' * 1000] * 2000", ["x" * 1000] * 2000),  # larger than one message, and stored
        ("'y' * 2_000_000", "y" * 2_000_000),
    ],
)
def test_the_value_of_an_answer_is_data_of_any_size(app: OneTool, code: str, value: object) -> None:
    answer = app.run_sync(code)
    assert isinstance(answer, Answer)
    assert answer.value == answer.unwrap() == value
    assert answer.error is None
    assert len(answer.text) < 60_000  # as a client sees it


def test_the_text_of_an_answer_is_what_a_client_sees(app: OneTool) -> None:
    answer = app.run_sync("print('printed')\n[1, 2]")
    assert answer.text == "printed\n\n[1,2]"
    assert answer.value == [1, 2]


def test_an_error_is_raised_with_its_class_and_fields(app: OneTool) -> None:
    answer = app.run_sync("x = 1\n1 / 0")
    assert (answer.is_error, answer.error, answer.value) == (True, "execution_error", None)
    with pytest.raises(ZeroDivisionError, match="division by zero") as raised:
        answer.unwrap()
    assert raised.value.__notes__ == ["line 2 of the code: 1 / 0"]
    with pytest.raises(ArgumentError):
        app.run_sync("machine.disk(nothing=1)").unwrap()
    with pytest.raises(ToolError, match="too much") as found:
        app.run_sync("raise ToolError('too much', limit=3, hint='take less')").unwrap()
    assert (found.value.limit, found.value.hint) == (3, "take less")
    assert app.run_sync(3).error == "execution_error"


def test_a_value_and_an_error_contain_no_secret(tmp_path: Path) -> None:
    (tmp_path / ".onetool").mkdir()
    (tmp_path / ".onetool" / "secrets.yaml").write_text(f"KEY: {SECRET}\n", encoding="utf-8")
    (tmp_path / ".onetool" / "secrets.yaml").chmod(0o600)
    from onetool.settings.settings_reader import read_settings

    with OneTool(read=lambda: read_settings({}, tmp_path, None, tmp_path)) as app:
        app.bus.register_tool(read_key)
        assert SECRET not in json.dumps(app.run_sync("library.secret()").value)
        with pytest.raises(ToolError) as raised:
            app.run_sync(
                "raise ToolError('no ' + library.secret()['key'], key=library.secret()['key'])"
            ).unwrap()
        assert SECRET not in f"{raised.value} {raised.value.fields}"


def test_threads_share_an_application(app: OneTool) -> None:
    values: list[object] = []
    threads = [
        threading.Thread(target=lambda n=n: values.append(app.run_sync(f"{n} * 2").value))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, values)) == ["0", "2", "4", "6"]


def test_blocking_calls_are_rejected_on_an_event_loop(app: OneTool, tmp_path: Path) -> None:
    async def block() -> None:
        with pytest.raises(ToolError, match=r"write `await app\.run\(\.\.\.\)`"):
            app.run_sync("1")
        with pytest.raises(ToolError, match=r"await bus\.call_tool"):
            app.bus.call_tool_sync("machine.now")
        with pytest.raises(ToolError, match="async with OneTool"), OneTool(folder=tmp_path):
            pass
        async with OneTool(folder=tmp_path) as other:
            assert (await other.run("1 + 1")).value == 2

    asyncio.run(block())
    with pytest.raises(ToolError, match=r"with OneTool\(\) as app"):
        OneTool(folder=tmp_path).run_sync("1")


def test_nothing_outlives_the_block(tmp_path: Path) -> None:
    threads, processes = set(threading.enumerate()), list_descendants(os.getpid())
    with (
        contextlib.suppress(ZeroDivisionError),
        OneTool({"execution": {"timeout": 30}}, folder=tmp_path) as app,
    ):
        assert app.run_sync("machine.now() != ''").value is True
        threading.Thread(target=run_interrupted, args=[app]).start()
        assert eventually(lambda: list_descendants(os.getpid()) - processes)
        raise ZeroDivisionError
    assert eventually(lambda: not list_descendants(os.getpid()) - processes)
    assert eventually(lambda: not set(threading.enumerate()) - threads, 5), threading.enumerate()


def run_interrupted(app: OneTool) -> None:
    with pytest.raises(ToolError, match=r"cancelled|the run was ended: OneTool is shutting down"):
        app.run_sync(THREE_LINES).unwrap()


def test_settings_may_be_a_mapping(tmp_path: Path) -> None:
    with OneTool({"execution": {"timeout": 1}}, folder=tmp_path) as app:
        assert app.settings == Settings.model_validate({"execution": {"timeout": 1}})
        with pytest.raises(ToolTimeout):
            app.run_sync("while True: pass").unwrap()
    with pytest.raises(ConfigError, match=r"execution\.timeout"):
        OneTool({"execution": {"timeout": "soon"}})


def test_a_bus_alone_calls_tools_without_an_event_loop() -> None:
    bus = ToolBus()
    bus.register_tool(read_key, name="other.name", permissions=["read"])
    assert bus.call_tool_sync("other.name").error is not None
    context = onetool.ToolContext(permissions=frozenset({onetool.Permission.READ}))
    assert bus.call_tool_sync("other.name", {}, context).unwrap() == {"key": SECRET}


def test_the_entry_for_the_mcp_registry_names_this_version_and_the_readme_names_the_entry() -> None:
    root = Path(__file__).parents[2]
    entry = json.loads((root / "server.json").read_text("utf-8"))
    assert {entry["version"], entry["packages"][0]["version"]} == {__version__}
    assert len(entry["description"]) <= 100
    assert f"<!-- mcp-name: {entry['name']} -->" in (root / "README.md").read_text("utf-8")
