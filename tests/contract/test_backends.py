"""The contract of backends: the same calls of the same tools have the same results on every
backend.
"""

import asyncio
import functools
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.contract.calls import BACKENDS, Call
from tests.http_support import Page, ReceivedRequest, Site, send_response, serve_site
from tests.support import App, open_app

from onetool import Result, ToolContext, ToolError
from onetool.core.python_backend import function_tool
from onetool.core.schema import Schema
from onetool.core.tool import Tool
from onetool.errors import ToolTimeout, describe
from onetool.util.context import permissions

Function = Callable[..., Any]
AGENT = "helper"
SETTINGS = {
    "agents": {AGENT: {"permissions": ["read", "network"]}},
    "http": {"allowedHosts": ["127.0.0.1"], "allowPrivateAddresses": True},
}
NEEDS = {"guarded": ["read"], "forbidden": ["read", "exec"]}


# --- the tools ------------------------------------------------------------------------------------


def echo(value: Any = None) -> Any:
    return value


def add(left: int, right: int = 2) -> int:
    return left + right


def who(context: ToolContext) -> list[Any]:
    return [context.agent_id, len(context.correlation_id) > 0]


def result(ok: bool) -> Result:
    return (
        Result(ok=True, value="fine") if ok else Result(ok=False, error=ToolError("no", attempts=3))
    )


def fail(kind: str) -> None:
    if kind == "value":
        raise ValueError("a value is wrong")
    raise (
        ToolTimeout("too slow", timeout_ms=5) if kind == "timeout" else ToolError("no", attempts=3)
    )


def guarded() -> str:
    return "allowed"


def forbidden() -> str:
    raise AssertionError("it must not be called")


FUNCTIONS: tuple[Function, ...] = (echo, add, who, result, fail, guarded, forbidden)


# --- the backends ---------------------------------------------------------------------------------


def invoke(function: Function, params: Mapping[str, Any], context: ToolContext) -> Any:
    wanted = {"context": context} if "context" in inspect.signature(function).parameters else {}
    return function(**params, **wanted)


def needs(function: Function) -> list[str]:
    return NEEDS.get(function.__name__, [])


def sync_function(name: str, function: Function) -> object:
    return function_tool(function, name, permissions=permissions(needs(function)))


def async_function(name: str, function: Function) -> object:
    @functools.wraps(function)
    async def call_on_loop(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return sync_function(name, call_on_loop)


class SyncObject:
    def __init__(self, name: str, function: Function) -> None:
        self.name, self.permissions, self._function = name, needs(function), function

    def call(self, params: dict[str, Any], context: ToolContext) -> Any:
        return invoke(self._function, params, context)

    def param_schema(self) -> dict[str, Any]:
        return Schema.from_callable(self._function).json


class AsyncObject(SyncObject):
    async def call(self, params: dict[str, Any], context: ToolContext) -> Any:
        return super().call(params, context)


class CustomBackend:
    def __init__(self, function: Function) -> None:
        self._function = function

    async def invoke(self, _tool: Tool, args: Mapping[str, Any], context: ToolContext) -> Any:
        return invoke(self._function, args, context)


def custom_backend(name: str, function: Function) -> object:
    """Create a tool with a custom backend."""
    schema = Schema.from_source(Path(__file__).read_text("utf-8"), function.__name__)
    return Tool(name, CustomBackend(function), schema, permissions=permissions(needs(function)))


KINDS: dict[str, Callable[[str, Function], object]] = {
    "sync_function": sync_function,
    "async_function": async_function,
    "sync_object": SyncObject,
    "async_object": AsyncObject,
    "own_backend": custom_backend,
}

# Extension files have no context and no Result, and their permissions apply to the whole pack.
WORKER = "worker"
IN_WORKER: tuple[Function, ...] = (echo, add, fail, guarded)
TOP = "from typing import Any\nfrom ot import ToolError, ToolTimeout\npermissions = ['read']\n"


def write_extension(directory: Path) -> None:
    file = directory / "tools" / WORKER / f"{WORKER}_tools.py"
    file.parent.mkdir(parents=True)
    file.write_text("\n".join([TOP, *map(inspect.getsource, IN_WORKER)]), encoding="utf-8")


# A stored tool that names a registered one.
BUNDLE = "bundle"


def stored_tool(function: Function) -> dict[str, Any]:
    return {
        "displayName": function.__name__,
        "isEnabled": True,
        "argSchema": Schema.from_callable(function).json,
        "type": "python",
        "pythonImpl": {"function": f"sync_function.{function.__name__}"},
    }


# Stored HTTP tools have no context and no Result, and their errors are HTTP errors.
WEB = "web"
IN_WEB: tuple[Function, ...] = (echo, add, guarded)


def stored_http_tool(site: Site, function: Function) -> dict[str, Any]:
    body = {name: f"${{{name}}}" for name in inspect.signature(function).parameters}
    impl = {"method": "POST", "urlTemplate": site.url(f"/{function.__name__}"), "body": body}
    return {**without(stored_tool(function), "pythonImpl"), "type": "http", "httpImpl": impl}


def without(mapping: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if name != key}


def page_for(function: Function) -> Page:
    async def page(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        value = function(**json.loads(received.body))
        send_response(writer, json.dumps(value).encode(), ("Content-Type", "application/json"))

    return page


# An upstream MCP server over stdio in its own process, without context and Result.
UPSTREAM = "upstream"
IN_UPSTREAM: tuple[Function, ...] = (echo, add, guarded)
WRAPPED = {
    "type": "object",
    "properties": {"result": {}},
    "required": ["result"],
    "x-fastmcp-wrap-result": True,
}
SERVE = """
def answer(method, params):
    if method == "initialize":
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "contract", "version": "1"}}
        return {"protocolVersion": params["protocolVersion"], **about}
    if method == "tools/list":
        return {"tools": TOOLS}
    value = globals()[params["name"]](**params.get("arguments", {}))
    return {"content": [], "structuredContent": {"result": value}}

for line in sys.stdin:
    message = json.loads(line)
    known = message["method"] in {"initialize", "tools/list", "tools/call"}
    result = {"result": answer(message["method"], message.get("params"))} if known else {"error": UNKNOWN}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **result}), flush=True)
"""


def write_server(directory: Path) -> dict[str, Any]:
    """Write the source of a server, and return its settings."""
    tools = [
        {
            "name": each.__name__,
            "inputSchema": Schema.from_callable(each).json,
            "outputSchema": WRAPPED,
        }
        for each in IN_UPSTREAM
    ]
    top = f"import json, sys\nfrom typing import Any\nTOOLS = json.loads({json.dumps(tools)!r})\n"
    unknown = {"code": -32601, "message": "Method not found"}
    source = [top, f"UNKNOWN = {unknown}", *map(inspect.getsource, IN_UPSTREAM), SERVE]
    file = directory / "server.py"
    file.write_text("\n".join(source), encoding="utf-8")
    return {"command": sys.executable, "args": [str(file)]}


def store_bundles(app: App, site: Site) -> None:
    store = app.onetool.bundles.store
    bodies = {BUNDLE: {function: stored_tool(function) for function in FUNCTIONS}}
    bodies[WEB] = {function: stored_http_tool(site, function) for function in IN_WEB}
    for slug, tools in bodies.items():
        bundle = store.new_id()
        store.put_bundle(bundle, {"slug": slug, "displayName": slug, "isEnabled": True})
        store.put_many(bundle, [(function.__name__, "1", body) for function, body in tools.items()])


EVERY_KIND = (*KINDS, WORKER, BUNDLE, WEB, UPSTREAM)


def get_functions(kind: str) -> tuple[Function, ...]:
    return {WORKER: IN_WORKER, WEB: IN_WEB, UPSTREAM: IN_UPSTREAM}.get(kind, FUNCTIONS)


def has_function(kind: str, name: str) -> bool:
    left_out = {function.__name__ for function in set(FUNCTIONS) - set(get_functions(kind))}
    return name not in left_out


CASES = [
    pytest.param(kind, call, id=f"{kind}-{call}")
    for kind in EVERY_KIND
    for call in BACKENDS
    if has_function(kind, call.name)
]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serve_site() as site:
        site.pages.update({f"/{function.__name__}": page_for(function) for function in IN_WEB})
        yield site


@pytest.fixture(scope="module")
def app(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """Create an application with one pack per backend, each with the same tools."""
    settings = {**SETTINGS, "servers": {UPSTREAM: write_server(tmp_path_factory.mktemp("server"))}}
    tools = [
        make(f"{kind}.{function.__name__}", function)
        for kind, make in KINDS.items()
        for function in FUNCTIONS
    ]
    with open_app(settings, tools) as app:
        write_extension(app.onetool.directories.user)
        store_bundles(app, site)
        app.value("ot.tools(info='list')")
        yield app


@pytest.fixture(params=EVERY_KIND)
def kind(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


# --- the contract ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "call"), CASES)
def test_a_call_has_the_same_result_on_every_backend(app: App, kind: str, call: Call) -> None:
    result = app.call(f"{kind}.{call.name}", call.args, AGENT)
    if result.error is None:
        assert (result.value, None) == (call.value, call.error)
    else:
        assert describe(result.error)["type"] == call.error


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "call"), CASES)
def test_code_gets_the_same_result_from_every_backend(app: App, kind: str, call: Call) -> None:
    answer = app.run(f"[{kind}.{call.name}(**{call.args!r})]", agent=AGENT)
    assert answer.error == call.error, answer.text
    if call.error is None:
        assert json.loads(answer.text) == [call.value]


@pytest.mark.parametrize(
    ("name", "args", "error"),
    [
        (
            "fail",
            {"kind": "tool"},
            {"type": "execution_error", "class": "ToolError", "message": "no", "attempts": 3},
        ),
        (
            "fail",
            {"kind": "timeout"},
            {"type": "timeout", "class": "ToolTimeout", "message": "too slow", "timeout_ms": 5},
        ),
        (
            "fail",
            {"kind": "value"},
            {"type": "execution_error", "class": "ValueError", "message": "a value is wrong"},
        ),
        (
            "result",
            {"ok": False},
            {"type": "execution_error", "class": "ToolError", "message": "no", "attempts": 3},
        ),
    ],
)
def test_an_error_is_the_same_on_every_backend(
    app: App, kind: str, name: str, args: dict[str, Any], error: dict[str, Any]
) -> None:
    if not has_function(kind, name):
        return
    result = app.call(f"{kind}.{name}", args, AGENT)
    assert result.error is not None
    found = describe(result.error)
    found.pop("trace", None)  # only an extension says where in its file it failed
    assert found == error


def test_positional_arguments_work_on_every_backend(app: App, kind: str) -> None:
    assert app.data(f"[{kind}.add(1), {kind}.add(1, 5), {kind}.echo('x')]") == [3, 6, "x"]


def test_the_schema_is_the_same_on_every_backend(app: App, kind: str) -> None:
    for function in get_functions(kind):
        schema = app.onetool.bus.tool_info(f"{kind}.{function.__name__}")["schema"]
        assert schema == Schema.from_callable(function).json
