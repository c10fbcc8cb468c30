"""Specification 3, built-in tools: they run in the server's process."""

import ast
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from tests.support import App, open_app

import onetool.sources.builtin
from onetool.core.python_backend import PythonBackend
from onetool.runs.tool_loader import load_builtin_tools, load_tools
from onetool.util.context import ToolContext

FILES = sorted(Path(onetool.sources.builtin.__file__).parent.glob("*_tools.py"))
HEADER = re.compile(r"^# /// script\s*$", re.MULTILINE)
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with open_app({"docs_url": "https://example.com/docs/"}) as app:
        yield app


def get_pack(file: Path) -> str:
    """Return the pack of a file. The tool `grep` has no pack."""
    return file.stem.removesuffix("_tools").removeprefix("grep")


@pytest.mark.spec("tool-execution.internal.internal-tool-detection")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_built_in_files_without_header_are_loaded_in_process(app: App, file: Path) -> None:
    assert not HEADER.search(file.read_text("utf-8"))
    pack = get_pack(file)
    loaded = [
        app.onetool.bus.get_tool(name)
        for name in app.onetool.registry.map_python_names(pack).values()
    ]
    assert loaded
    assert all(isinstance(tool.backend, PythonBackend) for tool in loaded)


@pytest.mark.spec("tool-execution.internal.internal-tool-detection")
def test_a_built_in_function_runs_in_the_servers_process(app: App) -> None:
    def process() -> int:
        return os.getpid()

    module = ModuleType("onetool.sources.builtin.inside_tools")
    vars(module).update(process=process, __all__=["process"])
    for tool in load_tools(module):
        app.onetool.bus.register_tool(tool)
    server, cell = app.data("import os\n[inside.process(), os.getpid()]")
    assert server == os.getpid()
    assert cell != server


@pytest.mark.spec("tool-execution.internal.internal-tool-has-onetool-access")
def test_built_in_tools_can_access_registry_and_settings(app: App) -> None:
    assert app.data("ot.tools(info='list')") == app.onetool.bus.list_tools()
    assert "https://example.com/docs/machine/" in app.value("ot.help(query='machine.disk')")


@pytest.mark.spec("tool-execution.internal.internal-tool-has-onetool-access")
def test_a_built_in_tool_receives_the_running_system(app: App) -> None:
    def system_of(context: ToolContext) -> bool:
        return context.system is app.onetool

    module = ModuleType("onetool.sources.builtin.system_tools")
    vars(module).update(system_of=system_of, __all__=["system_of"])
    app.onetool.bus.register_tool(*load_tools(module))
    assert app.value("system.system_of()") == "True"


@pytest.mark.spec("tool-execution.internal.internal-tool-dependencies")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_imports_of_built_in_tools_are_declared(file: Path) -> None:
    project = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]
    declared = {
        re.split(r"[^\w-]", entry)[0].replace("-", "_") for entry in project["dependencies"]
    }
    known = {*sys.stdlib_module_names, "onetool", "onetool_child", *declared}
    assert not list_imports(file) - known


@pytest.mark.spec("tool-execution.type.internal-tool-identification")
def test_all_built_in_tools_are_internal() -> None:
    shipped = list(load_builtin_tools())
    assert {tool.pack for tool in shipped} == {get_pack(file) for file in FILES}
    assert {type(tool.backend) for tool in shipped} == {PythonBackend}
    assert {tool.source for tool in shipped} == {"local"}


def list_imports(file: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(file.read_text("utf-8"))))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    absolute = {
        node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level
    }
    return {name.partition(".")[0] for name in plain | absolute}
