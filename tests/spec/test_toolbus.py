"""Specification 5, the bus alone: without settings, cells or transports."""

import functools
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from onetool import Permission, Result, ToolBus, ToolContext, ToolError, tool
from onetool.core.python_backend import as_tool
from onetool.errors import describe
from onetool.sources.builtin import fs_tools
from onetool.util.context import permissions

CONTEXT = ToolContext()
SHOP_WINDOW = """
from onetool import OneTool, ToolBus, ToolContext, Permission, Result, ToolError, tool

@tool("shop.window", permissions=["read"])
def window() -> int:
    return 1

print(ToolBus().register_tool(window).name)
"""


def call(
    bus: ToolBus, name: str, params: Mapping[str, Any] | None = None, context: ToolContext = CONTEXT
) -> Result:
    return anyio.run(bus.call_tool, name, params, context)


def bus_with(*things: object) -> ToolBus:
    bus = ToolBus()
    for thing in things:
        bus.register_tool(thing)
    return bus


def context_with(*names: str) -> ToolContext:
    return ToolContext(permissions=permissions(names))


def get_failure(result: Result) -> dict[str, Any]:
    assert not result.ok
    assert result.error is not None
    return describe(result.error)


@tool("math.add")
def add(left: int, right: int = 2) -> int:
    """Add two numbers."""
    return left + right


class Reader:
    """The example of the specification: an object with the whole contract."""

    def name(self) -> str:
        return "fs.peek"

    def permissions(self) -> list[str]:
        return ["read"]

    def call(self, params: dict[str, Any], context: ToolContext) -> Any:
        return {"path": str(context.working_dir / params["path"]), "size": params["max_size"]}

    def validate_params(self, params: dict[str, Any]) -> str | None:
        return "path must not be empty" if not params["path"] else None

    def param_schema(self) -> dict[str, Any]:
        size = {"type": "integer", "default": 2_097_152}
        properties = {"path": {"type": "string"}, "max_size": size}
        return {"type": "object", "properties": properties, "required": ["path"]}


class MinimalTool:
    """An object with only the required parts, as plain attributes."""

    name = "smallest"
    permissions = ()

    async def call(self, params: dict[str, Any], _context: ToolContext) -> Any:
        return params


# --- the contract of a tool -----------------------------------------------------------------------


@pytest.mark.spec("toolbus.contract.decorated-function")
def test_a_decorated_function_is_a_tool() -> None:
    bus = bus_with(tool("net.fetch", permissions=["network"])(lambda: "got it"))
    assert bus.tool_info("net.fetch")["permissions"] == ["network"]
    assert call(bus, "net.fetch", {}, context_with("network")).unwrap() == "got it"


@pytest.mark.spec("toolbus.contract.decorated-function")
def test_the_decorator_returns_a_callable_function() -> None:
    assert add(1, right=3) == 4


@pytest.mark.spec("toolbus.contract.decorated-function")
def test_the_decorator_works_without_parentheses() -> None:
    def shout(text: str) -> str:
        return text.upper()

    decorate: Any = tool
    bus = bus_with(decorate(shout))
    assert bus.list_tools() == ["shout"]
    assert call(bus, "shout", {"text": "a"}).unwrap() == "A"


@pytest.mark.slow
@pytest.mark.spec("toolbus.contract.decorated-function")
def test_the_documented_imports_work() -> None:
    process = subprocess.run(
        [sys.executable, "-c", SHOP_WINDOW], capture_output=True, text=True, check=False
    )
    assert (process.stdout, process.stderr) == ("shop.window\n", "")


@pytest.mark.spec("toolbus.contract.object")
def test_an_object_with_name_permissions_and_call_is_a_tool() -> None:
    context = ToolContext(working_dir=Path("/app"), permissions=permissions(["read"]))
    value = call(bus_with(Reader()), "fs.peek", {"path": "a.txt", "max_size": 5}, context).unwrap()
    assert value == {"path": "/app/a.txt", "size": 5}


@pytest.mark.spec("toolbus.contract.optional-parts")
def test_an_object_without_a_schema_accepts_any_arguments() -> None:
    params = {"any": [1, {"thing": None}], "n": 1.5}
    assert call(bus_with(MinimalTool()), "smallest", params).unwrap() == params


@pytest.mark.spec("toolbus.contract.names")
@pytest.mark.parametrize(
    "name", ["grep", "fs.read", "brave.web_search", "get-sum", "pack.get-sum", "größe.é"]
)
def test_a_pack_in_a_name_is_optional(name: str) -> None:
    bus = bus_with(tool(name)(lambda: name))
    assert bus.list_tools() == [name]
    assert call(bus, name).unwrap() == name


@pytest.mark.spec("toolbus.contract.names")
@pytest.mark.parametrize(
    "name", [" ", "fs.", ".read", "fs..read", "fs read", "fs.read\n", "fs.read@1.0"]
)
def test_an_invalid_name_is_rejected(name: str) -> None:
    with pytest.raises(ToolError, match="invalid tool name"):
        bus_with(tool(name)(lambda: None))


@pytest.mark.spec("toolbus.contract.returned-value")
def test_the_value_of_a_tool_is_returned_unchanged() -> None:
    value = {"some": object()}
    assert call(bus_with(tool("a.b")(lambda: value)), "a.b").unwrap() is value


@pytest.mark.spec("toolbus.contract.returned-result")
def test_a_result_returned_by_a_tool_is_kept() -> None:
    error = ToolError("no luck", attempts=3)
    bus = bus_with(
        tool("good")(lambda: Result(ok=True, value=[1])),
        tool("bad")(lambda: Result(ok=False, error=error)),
    )
    assert call(bus, "good") == Result(ok=True, value=[1])
    assert call(bus, "bad") == Result(ok=False, error=error)


@pytest.mark.spec("toolbus.contract.returned-result")
def test_a_failed_result_without_an_error_is_a_failure() -> None:
    failure = get_failure(call(bus_with(tool("bad")(lambda: Result(ok=False))), "bad"))
    assert failure["type"] == "execution_error"
    assert "bad" in failure["message"]


class Echo:
    """A tool that returns what the test passes, as the examples of the specification do."""

    permissions = ()

    def __init__(self, name: str, outcome: object) -> None:
        self.name, self._outcome = name, outcome

    def call(self, _params: dict[str, Any], _context: ToolContext) -> object:
        return self._outcome


class AsyncEcho(Echo):
    async def call(self, _params: dict[str, Any], _context: ToolContext) -> object:
        return self._outcome


REASONS: Any = (
    ("File not found: a.txt", {"type": "execution_error", "message": "File not found: a.txt"}),
    (":not_found", {"type": "not_found", "message": "not found"}),
    (":rate_limited", {"type": "rate_limited", "message": "rate limited"}),
    ({"type": ":timeout", "timeout_ms": 30000}, {"type": "timeout", "timeout_ms": 30000}),
    (
        {"type": "external_error", "service": "slack", "status": 429, "message": "Rate limited"},
        {"type": "external_error", "service": "slack", "status": 429, "message": "Rate limited"},
    ),
    (None, {"type": "execution_error", "message": "a.b failed without a message"}),
)


@pytest.mark.spec("toolbus.contract.returned-tuple")
@pytest.mark.parametrize("kind", [Echo, AsyncEcho])
@pytest.mark.parametrize(("reason", "expected"), REASONS)
def test_an_object_may_return_an_error_as_a_tuple(
    kind: type[Echo], reason: object, expected: dict[str, Any]
) -> None:
    for outcome in (("error", reason), Result(ok=False, error=reason)):  # type: ignore[arg-type]  # any reason
        failure = get_failure(call(bus_with(kind("a.b", outcome)), "a.b"))
        assert {**failure, **expected} == failure
        assert failure["message"]


@pytest.mark.spec("toolbus.contract.returned-tuple")
def test_an_object_may_return_its_value_in_a_tuple() -> None:
    assert call(bus_with(Echo("a.b", ("ok", [1]))), "a.b").unwrap() == [1]
    for data in (["ok", 1], ("ok", 1, 2), ("okay", 1), ("ok",)):
        assert call(bus_with(Echo("a.b", data)), "a.b").unwrap() == data


@pytest.mark.spec("toolbus.contract.returned-tuple")
def test_a_tuple_of_a_function_is_data() -> None:
    for pair in (("ok", 1), ("error", "no")):
        assert call(bus_with(tool("a.b")(lambda pair=pair: pair)), "a.b").unwrap() == pair


@pytest.mark.spec("toolbus.contract.raised-error")
def test_a_raised_tool_error_is_the_failure() -> None:
    error = ToolError("File not found: a.txt")
    result = call(bus_with(tool("fs.fail")(raising(error))), "fs.fail")
    assert result == Result(ok=False, error=error)


def raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


# --- registration and lookup ----------------------------------------------------------------------


@pytest.mark.spec("toolbus.register.listed-afterwards", "toolbus.list.names")
def test_registered_tools_are_listed_and_callable() -> None:
    bus = bus_with(MinimalTool(), add, Reader())
    assert bus.list_tools() == ["fs.peek", "math.add", "smallest"]
    assert call(bus, "math.add", {"left": 1}).unwrap() == 3


class OnlyNamed:
    name = "a.b"


class NeedsMore(Reader):
    def __init__(self, where: str) -> None:
        self.where = where


@pytest.mark.spec("toolbus.register.not-a-tool")
@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (OnlyNamed(), "missing permissions, call"),
        (object(), "missing name, permissions, call"),
        ("fs.read", "str is not a tool: missing name"),
        (None, "NoneType is not a tool: missing name"),
        (NeedsMore, "register an instance"),
        (len, "is not a tool: missing .*permissions"),
    ],
)
def test_an_object_that_is_not_a_tool_is_rejected_with_the_reason(
    thing: object, message: str
) -> None:
    bus = ToolBus()
    with pytest.raises((ToolError, TypeError), match=message):
        bus.register_tool(thing)
    assert bus.list_tools() == []


@pytest.mark.spec("toolbus.register.duplicate-name")
def test_a_duplicate_name_is_rejected_and_the_first_tool_stays() -> None:
    bus = bus_with(tool("a.b")(lambda: "first"))
    with pytest.raises(ToolError, match=r"'a\.b' is already registered"):
        bus.register_tool(tool("a.b")(lambda: "second"))
    assert call(bus, "a.b").unwrap() == "first"


@pytest.mark.spec("toolbus.list.starts-empty")
def test_a_new_bus_has_no_tools() -> None:
    assert ToolBus().list_tools() == []


@pytest.mark.spec("toolbus.get.known")
def test_a_known_name_returns_the_tool() -> None:
    bus = ToolBus()
    assert bus.get_tool(bus.register_tool(add).name).name == "math.add"
    registered = as_tool(Reader())
    bus.register_tool(registered)
    assert bus.get_tool("fs.peek") is registered


@pytest.mark.spec("toolbus.get.unknown")
def test_getting_an_unknown_name_is_not_found() -> None:
    with pytest.raises(ToolError, match=r"'math\.ad'.*math\.add") as caught:
        bus_with(add).get_tool("math.ad")
    assert caught.value.type == "not_found"


@pytest.mark.spec("toolbus.info.known")
def test_tool_info_has_permissions_schema_and_source() -> None:
    info = bus_with(Reader()).tool_info("fs.peek")
    assert info["name"] == "fs.peek"
    assert info["permissions"] == ["read"]
    assert info["schema"] == Reader().param_schema()
    assert info["source"] == "local"
    assert info["module"] == f"{__name__}.Reader"
    assert bus_with(add).tool_info("math.add")["module"] == __name__


@pytest.mark.spec("toolbus.info.known")
def test_the_schema_of_a_function_is_its_signature() -> None:
    schema = bus_with(add).tool_info("math.add")["schema"]
    assert schema["properties"] == {
        "left": {"type": "integer"},
        "right": {"type": "integer", "default": 2},
    }
    assert schema["required"] == ["left"]


@pytest.mark.spec("toolbus.info.unknown")
def test_tool_info_of_an_unknown_name_is_not_found() -> None:
    with pytest.raises(ToolError) as caught:
        ToolBus().tool_info("nonexistent")
    assert caught.value.type == "not_found"


# --- calls ----------------------------------------------------------------------------------------


@pytest.mark.spec("toolbus.call.answers-with-a-result")
@pytest.mark.parametrize(
    ("name", "ok"), [("math.add", True), ("fs.fail", False), ("nowhere", False)]
)
def test_every_call_returns_a_result(name: str, ok: bool) -> None:
    bus = bus_with(add, tool("fs.fail")(raising(OSError("disk on fire"))))
    result = call(bus, name, {"left": 1} if name == "math.add" else {})
    assert isinstance(result, Result)
    assert result.ok is ok
    assert (result.error is None) is ok


@pytest.mark.spec("toolbus.call.unwrap")
def test_unwrap_returns_the_value_or_raises_the_original_error() -> None:
    original = LookupError("nothing there")
    bus = bus_with(add, tool("fail")(raising(original)))
    assert call(bus, "math.add", {"left": 40}).unwrap() == 42
    with pytest.raises(LookupError) as caught:
        call(bus, "fail").unwrap()
    assert caught.value is original


@pytest.mark.spec("toolbus.call.unknown-tool")
def test_calling_an_unknown_name_is_not_found() -> None:
    failure = get_failure(call(bus_with(add), "math.ad"))
    assert failure["type"] == "not_found"
    assert "Did you mean math.add?" in failure["message"]


@pytest.mark.spec("toolbus.call.refused-before-it-runs")
def test_a_rejected_call_does_not_run_the_tool() -> None:
    ran: list[int] = []
    bus = bus_with(tool("a.b", permissions=["write"])(_appender(ran)))
    assert get_failure(call(bus, "a.b", {"n": 1}))["type"] == "permission_denied"
    assert (
        get_failure(call(bus, "a.b", {"n": "one"}, context_with("write")))["type"]
        == "validation_error"
    )
    assert get_failure(call(bus, "a.b", {}, context_with("write")))["type"] == "validation_error"
    assert ran == []
    assert call(bus, "a.b", {"n": 2}, context_with("write")).ok
    assert ran == [2]


def _appender(ran: list[int]) -> Callable[[int], None]:
    def remember(n: int) -> None:
        ran.append(n)

    return remember


@pytest.mark.spec("toolbus.validation.schema")
@pytest.mark.parametrize("params", [{"left": "one"}, {"left": None}, {"left": 1.5}, {}])
def test_invalid_parameters_name_the_field(params: dict[str, Any]) -> None:
    failure = get_failure(call(bus_with(add), "math.add", params))
    assert failure["type"] == "validation_error"
    assert "left" in failure["message"].partition("Signature:")[0]


class Validated(MinimalTool):
    def __init__(self, answer: str | Exception) -> None:
        self._answer = answer

    def validate_params(self, _params: dict[str, Any]) -> str:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.mark.spec("toolbus.validation.own-validator")
@pytest.mark.parametrize(
    "answer",
    [
        "path parameter is required",
        ValueError("path parameter is required"),
        ToolError("path parameter is required"),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_the_error_of_a_validator_is_the_message(answer: str | Exception) -> None:
    failure = get_failure(call(bus_with(Validated(answer)), "smallest"))
    assert failure["type"] == "validation_error"
    assert "path parameter is required" in failure["message"]


@pytest.mark.spec("toolbus.validation.own-validator")
def test_a_validator_without_an_error_accepts_the_call() -> None:
    bus, context = bus_with(Reader()), context_with("read")
    assert call(bus, "fs.peek", {"path": "x"}, context).ok
    assert (
        "path must not be empty"
        in get_failure(call(bus, "fs.peek", {"path": ""}, context))["message"]
    )


# --- binding --------------------------------------------------------------------------------------


@pytest.mark.spec("toolbus.bind.prefix")
def test_an_abbreviation_matches_the_first_prefix() -> None:
    def pick(query_info: str = "", query: str = "", quality: str = "") -> list[str]:
        return [query_info, query, quality]

    bus = bus_with(tool("pick")(pick))
    assert call(bus, "pick", {"q": "x"}).unwrap() == ["x", "", ""]
    assert call(bus, "pick", {"query": "x"}).unwrap() == ["", "x", ""]
    assert call(bus, "pick", {"qua": "x"}).unwrap() == ["", "", "x"]


@pytest.mark.spec("toolbus.bind.prefix")
def test_abbreviations_work_for_objects_with_a_schema() -> None:
    value = call(bus_with(Reader()), "fs.peek", {"p": "x", "max": 3}, context_with("read")).unwrap()
    assert value["size"] == 3


@pytest.mark.spec("toolbus.bind.two-keys-one-parameter")
@pytest.mark.parametrize("params", [{"left": 1, "l": 2}, {"le": 1, "l": 2}])
def test_two_keys_for_one_parameter_are_an_error(params: dict[str, Any]) -> None:
    failure = get_failure(call(bus_with(add), "math.add", params))
    assert failure["type"] == "validation_error"
    assert "multiple values for 'left'" in failure["message"]


@pytest.mark.spec("toolbus.bind.unknown-parameter")
def test_an_unknown_parameter_shows_the_signature() -> None:
    result = call(bus_with(add), "math.add", {"left": 1, "xyz": 2})
    assert isinstance(result.error, TypeError)
    assert "'xyz'" in str(result.error)
    assert "math.add(left: int, right: int = 2) -> int" in str(result.error)


@pytest.mark.spec("toolbus.bind.defaults")
def test_defaults_are_applied_before_the_tool_runs() -> None:
    assert (
        call(bus_with(Reader()), "fs.peek", {"path": "x"}, context_with("read")).unwrap()["size"]
        == 2_097_152
    )
    assert call(bus_with(add), "math.add", {"left": 1}).unwrap() == 3


# --- sync and async -------------------------------------------------------------------------------


@pytest.mark.spec("toolbus.async.sync-tool")
def test_a_sync_function_runs_outside_the_event_loop() -> None:
    bus = bus_with(tool("where")(lambda: threading.get_ident()))  # noqa: PLW0108 - a new function is needed
    assert call(bus, "where").unwrap() != threading.get_ident()


@pytest.mark.spec("toolbus.async.sync-tool")
def test_positional_only_parameters_are_supported() -> None:
    def double(number: int, /) -> int:
        return number * 2

    assert call(bus_with(double), "double", {"number": 4}).unwrap() == 8


@pytest.mark.spec("toolbus.async.async-tool")
def test_a_coroutine_function_runs_on_the_event_loop() -> None:
    async def where() -> int:
        return threading.get_ident()

    assert call(bus_with(where), "where").unwrap() == threading.get_ident()


@pytest.mark.spec("toolbus.async.sync-tool", "toolbus.async.async-tool")
def test_a_wrapped_function_runs_according_to_its_wrapper() -> None:
    async def on_the_loop(number: int) -> list[int]:
        return [number, threading.get_ident()]

    @functools.wraps(on_the_loop)
    def in_a_thread(number: int) -> list[int]:
        return [number, threading.get_ident(), *anyio.run(on_the_loop, number)]

    @functools.wraps(in_a_thread)
    async def on_the_loop_again(number: int) -> list[int]:
        return [number, threading.get_ident()]

    bus = bus_with(tool("sync")(in_a_thread), tool("async")(on_the_loop_again))
    number, thread, *_ = call(bus, "sync", {"number": 1}).unwrap()
    assert number == 1
    assert thread != threading.get_ident()
    assert call(bus, "async", {"number": 2}).unwrap() == [2, threading.get_ident()]


class SlowObject(MinimalTool):
    name = "slow"

    def __init__(self, wait: Callable[[], object]) -> None:
        self._wait = wait

    def call(self, _params: dict[str, Any], _context: ToolContext) -> Any:
        return self._wait()


@pytest.mark.spec("toolbus.async.slow-tool")
@pytest.mark.parametrize("kind", ["sync", "async", "object"])
def test_a_slow_tool_does_not_delay_others(kind: str) -> None:
    answered: list[str] = []

    async def scenario() -> None:
        blocked, released = threading.Event(), anyio.Event()

        async def wait_on_the_loop() -> None:
            await released.wait()

        slow: object = {
            "sync": tool("slow")(lambda: blocked.wait(10)),
            "async": tool("slow")(wait_on_the_loop),
            "object": SlowObject(lambda: blocked.wait(10)),
        }[kind]
        bus = bus_with(slow, add, MinimalTool())

        async def remember(name: str, params: dict[str, Any]) -> None:
            assert (await bus.call_tool(name, params)).ok
            answered.append(name)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(remember, "slow", {})
            await anyio.lowlevel.checkpoint()
            await remember("math.add", {"left": 1})
            await remember("smallest", {})
            blocked.set()
            released.set()

    anyio.run(scenario)
    assert answered == ["math.add", "smallest", "slow"]


# --- permissions ----------------------------------------------------------------------------------


@pytest.mark.spec("toolbus.permission.four-words")
def test_there_are_exactly_four_permissions() -> None:
    assert [str(word) for word in Permission] == ["read", "write", "exec", "network"]
    for word in ("root", "READ", "", "read,write"):
        with pytest.raises(ValueError, match="unknown permission"):
            tool("a.b", permissions=[word])(lambda: None)


@pytest.mark.spec("toolbus.permission.all-required")
def test_every_required_permission_must_be_granted() -> None:
    bus = bus_with(tool("sync", permissions=["read", "write"])(lambda: "done"))
    for some in (context_with("read"), context_with("write"), context_with("exec", "network")):
        assert get_failure(call(bus, "sync", {}, some))["type"] == "permission_denied"
    assert call(bus, "sync", {}, context_with("read", "write")).unwrap() == "done"


@pytest.mark.spec("toolbus.permission.none-implied")
@pytest.mark.parametrize("needed", list(Permission))
def test_no_permission_includes_another(needed: Permission) -> None:
    bus = bus_with(tool("a.b", permissions=[needed])(lambda: "done"))
    others = context_with(*(word for word in Permission if word is not needed))
    assert get_failure(call(bus, "a.b", {}, others))["type"] == "permission_denied"
    assert call(bus, "a.b", {}, context_with(needed)).unwrap() == "done"


@pytest.mark.spec("toolbus.permission.none-granted")
def test_without_permissions_only_tools_without_requirements_are_callable() -> None:
    bus = bus_with(add, tool("a.b", permissions=["read"])(lambda: "done"))
    assert ToolContext().permissions == frozenset()
    assert call(bus, "math.add", {"left": 1}, ToolContext()).ok
    assert get_failure(call(bus, "a.b", {}, ToolContext()))["type"] == "permission_denied"


@pytest.mark.spec("toolbus.permission.message", "toolbus.permission.fields")
def test_the_error_names_required_and_granted_permissions() -> None:
    bus = bus_with(tool("http.fetch", permissions=["network"])(lambda: None))
    failure = get_failure(call(bus, "http.fetch", {}, context_with("write", "read")))
    assert failure["message"].startswith(
        "Tool requires network permission but agent only has [read, write]"
    )
    assert failure["required"] == ["network"]
    assert failure["granted"] == ["read", "write"]
    assert failure["message"].endswith("To allow it, pass permissions to ToolContext"), (
        "a bare bus has no settings"
    )
    narrow = replace(context_with("network"), tools=("other.*",))
    failure = get_failure(call(bus, "http.fetch", {}, narrow))
    assert failure["message"].endswith(
        "its tools are [other.*]. To allow it, pass tools to ToolContext"
    )


@pytest.mark.spec("toolbus.permission.fields")
def test_the_fields_list_all_required_permissions() -> None:
    bus = bus_with(tool("both", permissions=["network", "read"])(lambda: None))
    failure = get_failure(call(bus, "both", {}, context_with("read")))
    assert failure["required"] == ["read", "network"]
    assert failure["granted"] == ["read"]


@pytest.mark.spec("toolbus.permission.spelling")
@pytest.mark.parametrize("word", ["read", ":read", Permission.READ])
def test_a_permission_may_have_a_leading_colon(word: str) -> None:
    bus = bus_with(tool("a.b", permissions=[word])(lambda: "done"))
    assert bus.tool_info("a.b")["permissions"] == ["read"]
    assert call(bus, "a.b", {}, context_with(word)).unwrap() == "done"


# --- the context ----------------------------------------------------------------------------------


@pytest.mark.spec("toolbus.context.fields")
def test_the_context_has_the_documented_fields() -> None:
    documented = [
        "agent_id",
        "agent_config",
        "working_dir",
        "permissions",
        "sandbox",
        "budget_guard",
        "correlation_id",
        "metadata",
    ]
    assert [field.name for field in fields(ToolContext)][: len(documented)] == documented


@pytest.mark.spec("toolbus.context.reaches-the-tool")
def test_a_tool_receives_the_context_of_its_call() -> None:
    def seen(context: ToolContext) -> ToolContext:
        return context

    async def seen_async(*, facts: ToolContext) -> ToolContext:
        return facts

    context = ToolContext(agent_id="helper", correlation_id="42")
    bus = bus_with(seen, seen_async)
    assert call(bus, "seen", {}, context).unwrap() == context
    assert call(bus, "seen_async", {}, context).unwrap() == context


@pytest.mark.spec("toolbus.context.reaches-the-tool")
def test_the_context_is_not_an_argument_of_the_tool() -> None:
    def seen(context: ToolContext) -> str:
        return context.agent_id

    bus = bus_with(seen)
    assert bus.tool_info("seen")["schema"]["properties"] == {}
    assert (
        get_failure(call(bus, "seen", {"context": {"agent_id": "root"}}))["type"]
        == "validation_error"
    )


@pytest.mark.spec("toolbus.context.frozen")
@pytest.mark.parametrize("field", [field.name for field in fields(ToolContext)])
def test_fields_of_a_context_cannot_be_replaced(field: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(ToolContext(), field, None)


@pytest.mark.spec("toolbus.context.frozen")
@pytest.mark.parametrize("field", ["agent_config", "sandbox", "metadata"])
def test_a_tool_cannot_change_mappings_in_a_context(field: str) -> None:
    def meddle(context: ToolContext) -> None:
        getattr(context, field)["permissions"] = ["exec"]

    context = ToolContext(agent_config={"a": {}}, sandbox={"enabled": True}, metadata={"a": 1})
    before = dict(getattr(context, field))
    assert not call(bus_with(meddle), "meddle", {}, context).ok
    assert dict(getattr(context, field)) == before


@pytest.mark.spec("toolbus.context.metadata")
def test_metadata_is_empty_by_default() -> None:
    assert dict(ToolContext().metadata) == {}
    assert ToolContext(metadata={"ticket": 7}).metadata["ticket"] == 7


@pytest.mark.spec("toolbus.context.working-directory")
def test_the_working_directory_may_be_a_string(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hi")
    bus = ToolBus()
    bus.register_tool(fs_tools)
    context = ToolContext(working_dir=str(tmp_path), permissions=["read"])  # type: ignore[arg-type]  # as in the document
    assert context.working_dir == tmp_path
    assert call(bus, "fs.read", {"path": "a.txt"}, context).unwrap()["content"] == "hi"


# --- errors ---------------------------------------------------------------------------------------


class Silent(Exception):
    """An exception without a message."""


@pytest.mark.spec("toolbus.error.type-and-message")
@pytest.mark.parametrize(
    "raised",
    [
        ToolError("words"),
        ValueError("words"),
        KeyError("key"),
        ValueError(),
        Silent(),
        RecursionError(),
        StopIteration("words"),
        SystemExit(2),
    ],
    ids=repr,
)
def test_every_failure_has_a_type_and_a_message(raised: BaseException) -> None:
    failure = get_failure(call(bus_with(tool("fail")(raising(raised))), "fail"))
    assert failure["type"] == "execution_error"
    assert failure["message"]


@pytest.mark.spec("toolbus.error.fields-are-kept")
def test_the_fields_of_an_error_are_kept() -> None:
    error = ToolError("Rate limited", service="slack", status=429, retry_suggested=True)
    failure = get_failure(call(bus_with(tool("fail")(raising(error))), "fail"))
    assert failure == {
        "type": "execution_error",
        "class": "ToolError",
        "message": "Rate limited",
        "service": "slack",
        "status": 429,
        "retry_suggested": True,
    }


@pytest.mark.spec("toolbus.error.class-is-kept")
@pytest.mark.parametrize(
    "raised", [ValueError("offset must be >= 1"), Silent("x"), TimeoutError("late")]
)
def test_an_exception_keeps_its_class(raised: Exception) -> None:
    result = call(bus_with(tool("fail")(raising(raised))), "fail")
    assert result.error is raised
    assert get_failure(result)["class"] == type(raised).__name__


def test_a_tool_is_immutable() -> None:
    registered = as_tool(add)
    with pytest.raises(FrozenInstanceError):
        registered.name = "other"  # type: ignore[misc]
