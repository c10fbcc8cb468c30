"""Errors of built-in tools on a bus without an application: they name what a program passes, and no
settings.
"""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.http_support import Site, page

from onetool import ToolBus, ToolContext
from onetool.core.tool import Tool
from onetool.runs.tool_loader import load_builtin_tools
from onetool.sources.builtin.http_tools import MAX_RESPONSE_BYTES
from onetool.util.context import Permission

SETTINGS = re.compile(r"\w\.ya?ml\b|\bsettings?\b|onetool (?!app)[a-z]+", re.IGNORECASE)
GRANTED = frozenset(Permission) - {Permission.EXEC}  # no tool starts a program
LOCAL = {"allowed_hosts": ["*"], "allow_private_addresses": True}
VALUES = {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}


@pytest.fixture(scope="module")
def bus() -> ToolBus:
    bus = ToolBus()
    for tool in load_builtin_tools(bus.threads):
        bus.register_tool(tool)
    return bus


def call(bus: ToolBus, name: str, params: Mapping[str, Any], **context: Any) -> str:
    """Return the error of a call, or an empty string."""
    result = anyio.run(bus.call_tool, name, params, ToolContext(**context))
    return "" if result.error is None else str(result.error)


def fill(tool: Tool, text: str) -> dict[str, Any]:
    """Return arguments for the required parameters of a tool; strings are this text."""
    properties = tool.input.json["properties"]
    required = tool.input.json.get("required", [])
    return {name: VALUES.get(properties[name].get("type"), text) for name in required}


def list_contexts(tool: Tool, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield contexts that refuse calls for different reasons."""
    sandbox = {"enabled": True, "allowed_paths": []}
    yield {}
    yield {"permissions": frozenset({Permission.READ}), "working_dir": folder}
    yield {"permissions": GRANTED, "tools": ("other.*",)}
    yield {"permissions": GRANTED, "sandbox": sandbox, "working_dir": folder}
    yield {"permissions": GRANTED, "hosts": ("example.com",), "agent_config": {tool.name: LOCAL}}
    for name in tool.input.json["properties"]:
        yield {
            "permissions": GRANTED,
            "working_dir": folder,
            "agent_config": {tool.name: {name: {"wrong": 1}}},
        }


@pytest.mark.parametrize("text", ["/etc/passwd", "http://localhost:9/", "["])
def test_no_error_of_a_bare_bus_names_a_setting(
    bus: ToolBus, tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some calls write a file with this name
    errors: set[str] = set()
    for name in bus.list_tools():
        tool = bus.get_tool(name)
        errors.add(call(bus, name, {"unknown": text}))
        for context in list_contexts(tool, tmp_path):
            errors.add(call(bus, name, fill(tool, text), **context))
    assert len(errors) > 20
    assert [error for error in sorted(errors) if SETTINGS.search(error)] == []


def test_errors_of_http_tools_name_arguments_of_the_context(bus: ToolBus, site: Site) -> None:
    fetch = partial(call, bus, "http.get", {"url": site.url()}, permissions=GRANTED)
    assert fetch().endswith(
        "To allow it, pass agent_config with http.get: {allowed_hosts:"
        f' ["127.0.0.1:{site.port}"]}} to ToolContext'
    )
    assert fetch(agent_config={"http.get": LOCAL}, hosts=()).endswith(
        "To allow it, pass hosts to ToolContext"
    )
    private = {"http.get": {"allowed_hosts": ["*"]}}
    advice = (
        "To allow it, pass agent_config with http.get: {allow_private_addresses: true} to"
        " ToolContext"
    )
    assert fetch(agent_config=private).endswith(f"is not public. {advice}")
    named = {"url": site.url().replace("127.0.0.1", "localhost")}
    assert advice in call(bus, "http.get", named, permissions=GRANTED, agent_config=private)
    site.pages["/large"] = page(bytes(MAX_RESPONSE_BYTES + 1))
    large = call(
        bus,
        "http.get",
        {"url": site.url("/large")},
        permissions=GRANTED,
        agent_config={"http.get": LOCAL},
    )
    assert large == f"response larger than {MAX_RESPONSE_BYTES:,} bytes"
