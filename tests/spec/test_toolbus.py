"""Specification 5, as far as it is built: the bus alone, without settings, cells or doors."""

import functools
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import anyio
import pytest

from onetool import Permission, Result, ToolBus, ToolContext, ToolError, tool
from onetool.bus.adapt import as_tool
from onetool.context import permissions
from onetool.errors import describe

NOBODY = ToolContext()
SHOP_WINDOW = """
from onetool import OneTool, ToolBus, ToolContext, Permission, Result, ToolError, tool

@tool("shop.window", permissions=["read"])
def window() -> int:
    return 1

print(ToolBus().register_tool(window).name)
"""


def call(bus: ToolBus, name: str, params: Mapping[str, Any] | None = None, context: ToolContext = NOBODY) -> Result:
    return anyio.run(bus.call_tool, name, params, context)


def bus_with(*things: object) -> ToolBus:
    bus = ToolBus()
    for thing in things:
        bus.register_tool(thing)
    return bus


def granted(*words: str) -> ToolContext:
    return ToolContext(permissions=permissions(words))


def failure_of(result: Result) -> dict[str, Any]:
    assert not result.ok
    assert result.error is not None
    return describe(result.error)


@tool("math.add")
def add(left: int, right: int = 2) -> int:
    """Add two numbers."""
    return left + right


class Reader:
    """The example of the document: an object that keeps the whole contract."""

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


class Smallest:
    """An object that keeps what must be kept, as plain attributes."""

    name = "smallest"
    permissions = ()

    async def call(self, params: dict[str, Any], _context: ToolContext) -> Any:
        return params


# --- the contract of a tool --------------------------------------------------------------------------------


@pytest.mark.spec("toolbus.contract.decorated-function")
def test_a_decorated_function_is_a_tool() -> None:
    bus = bus_with(tool("net.fetch", permissions=["network"])(lambda: "got it"))
    assert bus.tool_info("net.fetch")["permissions"] == ["network"]
    assert call(bus, "net.fetch", {}, granted("network")).unwrap() == "got it"


@pytest.mark.spec("toolbus.contract.decorated-function")
def test_the_decorator_leaves_the_function_a_function() -> None:
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
def test_the_documented_imports_give_the_decorator() -> None:
    process = subprocess.run([sys.executable, "-c", SHOP_WINDOW], capture_output=True, text=True, check=False)
    assert (process.stdout, process.stderr) == ("shop.window\n", "")


@pytest.mark.spec("toolbus.contract.object")
def test_an_object_with_the_three_parts_is_a_tool() -> None:
    context = ToolContext(working_dir=Path("/app"), permissions=permissions(["read"]))
    value = call(bus_with(Reader()), "fs.peek", {"path": "a.txt", "max_size": 5}, context).unwrap()
    assert value == {"path": "/app/a.txt", "size": 5}


@pytest.mark.spec("toolbus.contract.optional-parts")
def test_an_object_without_schema_takes_anything() -> None:
    params = {"any": [1, {"thing": None}], "n": 1.5}
    assert call(bus_with(Smallest()), "smallest", params).unwrap() == params


@pytest.mark.spec("toolbus.contract.names")
@pytest.mark.parametrize("name", ["grep", "fs.read", "brave.web_search", "get-sum", "pack.get-sum", "größe.é"])
def test_a_name_is_bare_or_has_a_pack(name: str) -> None:
    bus = bus_with(tool(name)(lambda: name))
    assert bus.list_tools() == [name]
    assert call(bus, name).unwrap() == name


@pytest.mark.spec("toolbus.contract.names")
@pytest.mark.parametrize("name", [" ", "fs.", ".read", "fs..read", "fs read", "fs.read\n", "fs.read@1.0"])
def test_what_cannot_be_a_name_is_refused(name: str) -> None:
    with pytest.raises(ToolError, match="invalid tool name"):
        bus_with(tool(name)(lambda: None))


@pytest.mark.spec("toolbus.contract.returned-value")
def test_the_very_value_of_a_tool_comes_back() -> None:
    value = {"some": object()}
    assert call(bus_with(tool("a.b")(lambda: value)), "a.b").unwrap() is value


@pytest.mark.spec("toolbus.contract.returned-result")
def test_a_result_of_a_tool_is_taken_as_it_is() -> None:
    error = ToolError("no luck", attempts=3)
    bus = bus_with(tool("good")(lambda: Result(ok=True, value=[1])), tool("bad")(lambda: Result(ok=False, error=error)))
    assert call(bus, "good") == Result(ok=True, value=[1])
    assert call(bus, "bad") == Result(ok=False, error=error)


@pytest.mark.spec("toolbus.contract.returned-result")
def test_a_result_that_failed_without_words_is_a_failure() -> None:
    failure = failure_of(call(bus_with(tool("bad")(lambda: Result(ok=False))), "bad"))
    assert failure["type"] == "execution_error"
    assert "bad" in failure["message"]


@pytest.mark.spec("toolbus.contract.raised-error")
def test_a_tool_error_that_is_raised_is_the_failure() -> None:
    error = ToolError("File not found: a.txt")
    result = call(bus_with(tool("fs.fail")(raising(error))), "fs.fail")
    assert result == Result(ok=False, error=error)


def raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


# --- registering, listing, finding -------------------------------------------------------------------------


@pytest.mark.spec("toolbus.register.listed-afterwards", "toolbus.list.names")
def test_registered_tools_are_listed_and_callable() -> None:
    bus = bus_with(Smallest(), add, Reader())
    assert bus.list_tools() == ["fs.peek", "math.add", "smallest"]
    assert call(bus, "math.add", {"left": 1}).unwrap() == 3


class OnlyNamed:
    name = "a.b"


class NeedsMore(Reader):
    def __init__(self, where: str) -> None:
        self.where = where


@pytest.mark.spec("toolbus.register.not-a-tool")
@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (OnlyNamed(), "missing permissions, call"),
        (object(), "missing name, permissions, call"),
        ("fs.read", "str is not a tool: missing name"),
        (None, "NoneType is not a tool: missing name"),
        (NeedsMore, "register an instance"),
        (len, "is not a tool: missing .*permissions"),
        (lambda *numbers: sum(numbers), r"\*numbers"),
    ],
)
def test_what_is_not_a_tool_is_rejected_with_the_reason(thing: object, words: str) -> None:
    bus = ToolBus()
    with pytest.raises((ToolError, TypeError), match=words):
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
def test_a_known_name_gives_the_tool() -> None:
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
def test_information_has_permissions_schema_and_source() -> None:
    info = bus_with(Reader()).tool_info("fs.peek")
    assert info["name"] == "fs.peek"
    assert info["permissions"] == ["read"]
    assert info["schema"] == Reader().param_schema()
    assert info["source"] == "local"


@pytest.mark.spec("toolbus.info.known")
def test_the_schema_of_a_function_is_its_signature() -> None:
    schema = bus_with(add).tool_info("math.add")["schema"]
    assert schema["properties"] == {"left": {"type": "integer"}, "right": {"type": "integer", "default": 2}}
    assert schema["required"] == ["left"]


@pytest.mark.spec("toolbus.info.unknown")
def test_information_on_an_unknown_name_is_not_found() -> None:
    with pytest.raises(ToolError) as caught:
        ToolBus().tool_info("nonexistent")
    assert caught.value.type == "not_found"


# --- calling -----------------------------------------------------------------------------------------------


@pytest.mark.spec("toolbus.call.answers-with-a-result")
@pytest.mark.parametrize(("name", "ok"), [("math.add", True), ("fs.fail", False), ("nowhere", False)])
def test_every_call_answers_with_a_result(name: str, ok: bool) -> None:
    bus = bus_with(add, tool("fs.fail")(raising(OSError("disk on fire"))))
    result = call(bus, name, {"left": 1} if name == "math.add" else {})
    assert isinstance(result, Result)
    assert result.ok is ok
    assert (result.error is None) is ok


@pytest.mark.spec("toolbus.call.unwrap")
def test_unwrap_gives_the_value_or_raises_the_original() -> None:
    original = LookupError("nothing there")
    bus = bus_with(add, tool("fail")(raising(original)))
    assert call(bus, "math.add", {"left": 40}).unwrap() == 42
    with pytest.raises(LookupError) as caught:
        call(bus, "fail").unwrap()
    assert caught.value is original


@pytest.mark.spec("toolbus.call.unknown-tool")
def test_calling_an_unknown_name_is_not_found() -> None:
    failure = failure_of(call(bus_with(add), "math.ad"))
    assert failure["type"] == "not_found"
    assert "Did you mean math.add?" in failure["message"]


@pytest.mark.spec("toolbus.call.refused-before-it-runs")
def test_a_refused_call_never_reaches_the_tool() -> None:
    ran: list[int] = []
    bus = bus_with(tool("a.b", permissions=["write"])(_appender(ran)))
    assert failure_of(call(bus, "a.b", {"n": 1}))["type"] == "permission_denied"
    assert failure_of(call(bus, "a.b", {"n": "one"}, granted("write")))["type"] == "validation_error"
    assert failure_of(call(bus, "a.b", {}, granted("write")))["type"] == "validation_error"
    assert ran == []
    assert call(bus, "a.b", {"n": 2}, granted("write")).ok
    assert ran == [2]


def _appender(ran: list[int]) -> Callable[[int], None]:
    def remember(n: int) -> None:
        ran.append(n)

    return remember


@pytest.mark.spec("toolbus.validation.schema")
@pytest.mark.parametrize("params", [{"left": "one"}, {"left": None}, {"left": 1.5}, {}])
def test_wrong_parameters_name_the_field(params: dict[str, Any]) -> None:
    failure = failure_of(call(bus_with(add), "math.add", params))
    assert failure["type"] == "validation_error"
    assert "left" in failure["message"].partition("Signature:")[0]


class Validated(Smallest):
    def __init__(self, answer: str | Exception) -> None:
        self._answer = answer

    def validate_params(self, _params: dict[str, Any]) -> str:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.mark.spec("toolbus.validation.own-validator")
@pytest.mark.parametrize(
    "answer",
    ["path parameter is required", ValueError("path parameter is required"), ToolError("path parameter is required")],
    ids=lambda answer: type(answer).__name__,
)
def test_the_words_of_a_validator_are_the_message(answer: str | Exception) -> None:
    failure = failure_of(call(bus_with(Validated(answer)), "smallest"))
    assert failure["type"] == "validation_error"
    assert "path parameter is required" in failure["message"]


@pytest.mark.spec("toolbus.validation.own-validator")
def test_a_validator_that_is_content_lets_calls_through() -> None:
    bus, context = bus_with(Reader()), granted("read")
    assert call(bus, "fs.peek", {"path": "x"}, context).ok
    assert "path must not be empty" in failure_of(call(bus, "fs.peek", {"path": ""}, context))["message"]


# --- binding -----------------------------------------------------------------------------------------------


@pytest.mark.spec("toolbus.bind.prefix")
def test_an_abbreviation_means_the_first_that_fits() -> None:
    def pick(query_info: str = "", query: str = "", quality: str = "") -> list[str]:
        return [query_info, query, quality]

    bus = bus_with(tool("pick")(pick))
    assert call(bus, "pick", {"q": "x"}).unwrap() == ["x", "", ""]
    assert call(bus, "pick", {"query": "x"}).unwrap() == ["", "x", ""]
    assert call(bus, "pick", {"qua": "x"}).unwrap() == ["", "", "x"]


@pytest.mark.spec("toolbus.bind.prefix")
def test_abbreviations_work_for_objects_with_a_schema() -> None:
    value = call(bus_with(Reader()), "fs.peek", {"p": "x", "max": 3}, granted("read")).unwrap()
    assert value["size"] == 3


@pytest.mark.spec("toolbus.bind.two-keys-one-parameter")
@pytest.mark.parametrize("params", [{"left": 1, "l": 2}, {"le": 1, "l": 2}])
def test_two_keys_for_one_parameter_are_an_error(params: dict[str, Any]) -> None:
    failure = failure_of(call(bus_with(add), "math.add", params))
    assert failure["type"] == "validation_error"
    assert "multiple values for 'left'" in failure["message"]


@pytest.mark.spec("toolbus.bind.unknown-parameter")
def test_an_unknown_parameter_shows_the_signature() -> None:
    result = call(bus_with(add), "math.add", {"left": 1, "xyz": 2})
    assert isinstance(result.error, TypeError)
    assert "'xyz'" in str(result.error)
    assert "math.add(left: int, right: int = 2) -> int" in str(result.error)


@pytest.mark.spec("toolbus.bind.defaults")
def test_defaults_are_filled_in_before_the_tool_runs() -> None:
    assert call(bus_with(Reader()), "fs.peek", {"path": "x"}, granted("read")).unwrap()["size"] == 2_097_152
    assert call(bus_with(add), "math.add", {"left": 1}).unwrap() == 3


# --- sync and async ----------------------------------------------------------------------------------------


@pytest.mark.spec("toolbus.async.sync-tool")
def test_a_plain_function_is_called_off_the_loop() -> None:
    bus = bus_with(tool("where")(lambda: threading.get_ident()))  # noqa: PLW0108 - a function is wanted
    assert call(bus, "where").unwrap() != threading.get_ident()


@pytest.mark.spec("toolbus.async.sync-tool")
def test_parameters_by_position_only_are_parameters() -> None:
    def double(number: int, /) -> int:
        return number * 2

    assert call(bus_with(double), "double", {"number": 4}).unwrap() == 8


@pytest.mark.spec("toolbus.async.async-tool")
def test_a_coroutine_function_is_called_on_the_loop() -> None:
    async def where() -> int:
        return threading.get_ident()

    assert call(bus_with(where), "where").unwrap() == threading.get_ident()


@pytest.mark.spec("toolbus.async.sync-tool", "toolbus.async.async-tool")
def test_a_wrapped_function_is_called_as_what_it_is() -> None:
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


class SlowObject(Smallest):
    name = "slow"

    def __init__(self, wait: Callable[[], object]) -> None:
        self._wait = wait

    def call(self, _params: dict[str, Any], _context: ToolContext) -> Any:
        return self._wait()


@pytest.mark.spec("toolbus.async.slow-tool")
@pytest.mark.parametrize("kind", ["sync", "async", "object"])
def test_a_slow_tool_holds_up_no_other(kind: str) -> None:
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
        bus = bus_with(slow, add, Smallest())

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


# --- permissions -------------------------------------------------------------------------------------------


@pytest.mark.spec("toolbus.permission.four-words")
def test_there_are_four_permissions_and_no_other() -> None:
    assert [str(word) for word in Permission] == ["read", "write", "exec", "network"]
    for word in ("root", "READ", "", "read,write"):
        with pytest.raises(ValueError, match="unknown permission"):
            tool("a.b", permissions=[word])(lambda: None)


@pytest.mark.spec("toolbus.permission.all-required")
def test_every_required_permission_must_be_granted() -> None:
    bus = bus_with(tool("sync", permissions=["read", "write"])(lambda: "done"))
    for some in (granted("read"), granted("write"), granted("exec", "network")):
        assert failure_of(call(bus, "sync", {}, some))["type"] == "permission_denied"
    assert call(bus, "sync", {}, granted("read", "write")).unwrap() == "done"


@pytest.mark.spec("toolbus.permission.none-implied")
@pytest.mark.parametrize("needed", list(Permission))
def test_no_permission_includes_another(needed: Permission) -> None:
    bus = bus_with(tool("a.b", permissions=[needed])(lambda: "done"))
    others = granted(*(word for word in Permission if word is not needed))
    assert failure_of(call(bus, "a.b", {}, others))["type"] == "permission_denied"
    assert call(bus, "a.b", {}, granted(needed)).unwrap() == "done"


@pytest.mark.spec("toolbus.permission.none-granted")
def test_without_grants_only_harmless_tools_are_callable() -> None:
    bus = bus_with(add, tool("a.b", permissions=["read"])(lambda: "done"))
    assert ToolContext().permissions == frozenset()
    assert call(bus, "math.add", {"left": 1}, ToolContext()).ok
    assert failure_of(call(bus, "a.b", {}, ToolContext()))["type"] == "permission_denied"


@pytest.mark.spec("toolbus.permission.message", "toolbus.permission.fields")
def test_the_refusal_says_what_is_required_and_granted() -> None:
    bus = bus_with(tool("http.fetch", permissions=["network"])(lambda: None))
    failure = failure_of(call(bus, "http.fetch", {}, granted("write", "read")))
    assert failure["message"].startswith("Tool requires network permission but agent only has [read, write]")
    assert failure["required"] == ["network"]
    assert failure["granted"] == ["read", "write"]


@pytest.mark.spec("toolbus.permission.fields")
def test_the_fields_name_all_that_is_required() -> None:
    bus = bus_with(tool("both", permissions=["network", "read"])(lambda: None))
    failure = failure_of(call(bus, "both", {}, granted("read")))
    assert failure["required"] == ["read", "network"]
    assert failure["granted"] == ["read"]


@pytest.mark.spec("toolbus.permission.spelling")
@pytest.mark.parametrize("word", ["read", ":read", Permission.READ])
def test_a_permission_may_be_written_with_a_colon(word: str) -> None:
    bus = bus_with(tool("a.b", permissions=[word])(lambda: "done"))
    assert bus.tool_info("a.b")["permissions"] == ["read"]
    assert call(bus, "a.b", {}, granted(word)).unwrap() == "done"


# --- the context -------------------------------------------------------------------------------------------


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
def test_a_tool_gets_the_context_of_its_call() -> None:
    def seen(context: ToolContext) -> ToolContext:
        return context

    async def seen_async(*, facts: ToolContext) -> ToolContext:
        return facts

    context = ToolContext(agent_id="helper", correlation_id="42")
    bus = bus_with(seen, seen_async)
    assert call(bus, "seen", {}, context).unwrap() == context
    assert call(bus, "seen_async", {}, context).unwrap() == context


@pytest.mark.spec("toolbus.context.reaches-the-tool")
def test_the_context_is_no_argument_of_the_tool() -> None:
    def seen(context: ToolContext) -> str:
        return context.agent_id

    bus = bus_with(seen)
    assert bus.tool_info("seen")["schema"]["properties"] == {}
    assert failure_of(call(bus, "seen", {"context": {"agent_id": "root"}}))["type"] == "validation_error"


@pytest.mark.spec("toolbus.context.frozen")
@pytest.mark.parametrize("field", [field.name for field in fields(ToolContext)])
def test_no_field_of_a_context_can_be_replaced(field: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(ToolContext(), field, None)


@pytest.mark.spec("toolbus.context.frozen")
@pytest.mark.parametrize("field", ["agent_config", "sandbox", "metadata"])
def test_no_tool_changes_what_a_context_holds(field: str) -> None:
    def meddle(context: ToolContext) -> None:
        getattr(context, field)["permissions"] = ["exec"]

    context = ToolContext(agent_config={"a": {}}, sandbox={"enabled": True}, metadata={"a": 1})
    before = dict(getattr(context, field))
    assert not call(bus_with(meddle), "meddle", {}, context).ok
    assert dict(getattr(context, field)) == before


@pytest.mark.spec("toolbus.context.metadata")
def test_metadata_is_empty_unless_given() -> None:
    assert dict(ToolContext().metadata) == {}
    assert ToolContext(metadata={"ticket": 7}).metadata["ticket"] == 7


# --- errors ------------------------------------------------------------------------------------------------


class Silent(Exception):
    """An exception that says nothing."""


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
    failure = failure_of(call(bus_with(tool("fail")(raising(raised))), "fail"))
    assert failure["type"] == "execution_error"
    assert failure["message"]


@pytest.mark.spec("toolbus.error.fields-are-kept")
def test_the_fields_of_an_error_come_through() -> None:
    error = ToolError("Rate limited", service="slack", status=429, retry_suggested=True)
    failure = failure_of(call(bus_with(tool("fail")(raising(error))), "fail"))
    assert failure == {
        "type": "execution_error",
        "class": "ToolError",
        "message": "Rate limited",
        "service": "slack",
        "status": 429,
        "retry_suggested": True,
    }


@pytest.mark.spec("toolbus.error.class-is-kept")
@pytest.mark.parametrize("raised", [ValueError("offset must be >= 1"), Silent("x"), TimeoutError("late")])
def test_an_exception_keeps_its_class(raised: Exception) -> None:
    result = call(bus_with(tool("fail")(raising(raised))), "fail")
    assert result.error is raised
    assert failure_of(result)["class"] == type(raised).__name__


def test_a_tool_is_frozen_data() -> None:
    registered = as_tool(add)
    with pytest.raises(FrozenInstanceError):
        registered.name = "other"  # type: ignore[misc]
