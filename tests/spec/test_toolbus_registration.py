"""Specification 5: registration and reload of tools, calls between tools, call events and spans."""

import asyncio
import importlib
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import anyio
import pytest
from tests.support import open_app

from onetool import Result, ToolBus, ToolContext, ToolError, tool
from onetool.core.bus.events import CallFinished, Event
from onetool.errors import ToolNotFound, describe
from onetool.state.counters import BudgetGuard, Limits
from onetool.util.context import permissions

CONTEXT = ToolContext()


def call(bus: ToolBus, name: str, context: ToolContext = CONTEXT, **params: Any) -> Result:
    return anyio.run(bus.call_tool, name, params, context)


def bus_with(*things: object) -> ToolBus:
    bus = ToolBus()
    for thing in things:
        bus.register_tool(thing)
    return bus


def get_failure(result: Result) -> dict[str, Any]:
    assert result.error is not None
    return describe(result.error)


@tool("math.add")
def add(left: int, right: int = 2) -> int:
    """Add two numbers."""
    return left + right


class Greeter:
    """A tool as a class."""

    name = "greet.by_class"
    permissions = ()

    def __init__(self, word: str = "hello") -> None:
        self.word = word

    async def call(self, params: dict[str, Any], _context: ToolContext) -> str:
        return f"{self.word} {params['who']}"


# --- registration ---------------------------------------------------------------------------------


@pytest.mark.spec("toolbus.register.unregister")
def test_an_unregistered_tool_is_gone_and_its_name_is_free() -> None:
    bus = bus_with(add, tool("math.more")(lambda: 1))
    bus.unregister_tool("math.add")
    assert bus.list_tools() == ["math.more"]
    assert get_failure(call(bus, "math.add", left=1))["type"] == "not_found"
    with pytest.raises(ToolNotFound):
        bus.unregister_tool("math.add")
    bus.register_tool(tool("math.add")(lambda: "another"))
    assert call(bus, "math.add").unwrap() == "another"


@pytest.mark.spec("toolbus.register.unregister")
@pytest.mark.parametrize("gone", ["p.x-y", "p.x+y", "p.x_y"])
def test_unregistering_a_tool_keeps_tools_with_the_same_python_name(gone: str) -> None:
    names = ["p.x-y", "p.x+y", "p.x_y"]
    bus = bus_with(*(tool(name)(lambda name=name: name) for name in names))
    assert call(bus, "p.x_y").unwrap() == "p.x_y"
    bus.unregister_tool(gone)
    left = [name for name in names if name != gone]
    assert [call(bus, name).unwrap() for name in left] == left
    assert call(bus, "p.x_y").unwrap() == ("p.x-y" if gone == "p.x_y" else "p.x_y")
    assert bus.registry.map_python_names("p")["x_y"] in left
    for name in left:
        bus.unregister_tool(name)
    assert (bus.list_tools(), bus.registry.packs()) == ([], [])


@pytest.mark.spec("toolbus.register.unregister")
def test_an_unregistered_tool_cannot_be_reloaded() -> None:
    bus = bus_with(add)
    bus.unregister_tool("math.add")
    bus.register_tool(bus_with(Greeter).get_tool("greet.by_class"))
    with pytest.raises(ToolError, match=r"cannot reload greet\.by_class"):
        bus.reload_tool("greet.by_class")


@pytest.mark.spec("toolbus.register.unregister")
def test_a_call_in_flight_completes_after_its_tool_is_unregistered() -> None:
    async def test() -> None:
        begun, go = anyio.Event(), anyio.Event()

        @tool("slow.one")
        async def slow() -> str:
            begun.set()
            await go.wait()
            return "done"

        bus = bus_with(slow)
        under_way = asyncio.ensure_future(bus.call_tool("slow.one"))
        await begun.wait()
        bus.unregister_tool("slow.one")
        go.set()
        assert (await under_way).unwrap() == "done"

    anyio.run(test)


def test_a_class_is_instantiated_and_an_instance_is_used_as_it_is() -> None:
    assert call(bus_with(Greeter), "greet.by_class", who="Ada").unwrap() == "hello Ada"
    assert (
        call(bus_with(Greeter("good day")), "greet.by_class", who="Ada").unwrap() == "good day Ada"
    )


def test_a_duplicate_name_is_rejected_for_every_kind_of_tool() -> None:
    bus = bus_with(Greeter("first"))
    for second in (Greeter, Greeter("second"), tool("greet.by_class")(lambda: "third")):
        with pytest.raises(ToolError, match="already registered"):
            bus.register_tool(second)
    assert call(bus, "greet.by_class", who="Ada").unwrap() == "first Ada"


# --- modules --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Modules:
    """A directory that Python imports from."""

    directory: Path

    def write(self, name: str, text: str) -> Path:
        file = self.directory / f"{name.replace('.', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text), encoding="utf-8")
        return file

    def load(self, name: str, text: str) -> ModuleType:
        self.write(name, text)
        importlib.invalidate_caches()
        return importlib.import_module(name)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Modules]:
    known = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Modules(tmp_path)
    for name in set(sys.modules) - known:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_a_module_registers_its_public_functions(modules: Modules) -> None:
    text = """
        from os.path import join
        from onetool import tool
        def one(): return 1
        async def two(): return 2
        @tool("other.three", permissions=["read"])
        def three(): return 3
        def _hidden(): return 4
        NUMBER = 5
        """
    made = bus_with(modules.load("sums_tools", text))
    assert made.list_tools() == ["other.three", "sums.one", "sums.two"]
    assert (call(made, "sums.one").unwrap(), call(made, "sums.two").unwrap()) == (1, 2)
    assert not call(made, "other.three").ok


def test_a_module_may_set_its_tools_and_its_pack(modules: Modules) -> None:
    text = """
        pack = "figures"
        __all__ = ["one"]
        def one(): return 1
        def two(): return 2
        """
    assert bus_with(modules.load("whatever", text)).list_tools() == ["figures.one"]


def test_a_function_named_pack_is_a_function(modules: Modules) -> None:
    assert bus_with(modules.load("zip_tools", "def pack(): return 1")).list_tools() == ["zip.pack"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def one(): ...\ndef taken(): ...", "already registered"),
        ("__all__ = ['one', 'gone']\ndef one(): ...", "'gone'"),
        ("__all__ = ['one', 'NUMBER']\nNUMBER = 1\ndef one(): ...", "'NUMBER'"),
        (
            "from onetool import tool\n__all__ = ['one']\ndef one(): ...\n@tool()\ndef two(): ...",
            "@tool 'two', but __all__ does not list it",
        ),
        (
            "from onetool import tool\ndef one(): ...\n@tool('no name')\ndef two(): ...",
            "invalid tool name",
        ),
    ],
)
def test_a_module_registers_all_its_tools_or_none(
    modules: Modules, text: str, message: str
) -> None:
    bus = bus_with(tool("half.taken")(lambda: "first"))
    with pytest.raises((ToolError, TypeError), match=message):
        bus.register_tool(modules.load("half_tools", text))
    assert bus.list_tools() == ["half.taken"]
    assert call(bus, "half.taken").unwrap() == "first"


# --- installed packages ---------------------------------------------------------------------------


def install(modules: Modules, package: str, entries: str) -> Path:
    """Write the metadata of an installed package with these entry points."""
    directory = modules.directory / f"{package}-1.0.dist-info"
    directory.mkdir()
    (directory / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8"
    )
    (directory / "entry_points.txt").write_text(
        f"[onetool.packs]\n{dedent(entries).strip()}\n", encoding="utf-8"
    )
    return directory


SHOUTER = """
    from onetool import tool

    @tool("shout.loud")
    def loud(text: str) -> str:
        "In capitals."
        return text.upper()

    class Whisper:
        name = "shout.softly"
        permissions = ["read"]
        def call(self, params, context):
            return params["text"].lower()
    """


@pytest.mark.spec("toolbus.register.entry-points")
def test_an_installed_package_registers_functions_classes_and_modules(modules: Modules) -> None:
    modules.write("shouter", SHOUTER)
    modules.write("sums_tools", "def one(): return 1\ndef two(): return 2")
    install(modules, "shouter", "loud = shouter:loud\nsoft = shouter:Whisper\nsums = sums_tools")
    bus = ToolBus()
    assert bus.register_installed() == []
    assert bus.list_tools() == ["shout.loud", "shout.softly", "sums.one", "sums.two"]
    assert call(bus, "shout.loud", text="hello").unwrap() == "HELLO"


@pytest.mark.spec("toolbus.register.entry-points")
def test_a_package_that_fails_does_not_affect_others(modules: Modules) -> None:
    modules.write("a_breaks", "1 / 0")
    modules.write("b_ends", "import sys\nsys.exit(3)")
    modules.write("e_shouter", SHOUTER)
    for name in ("a_breaks", "b_ends", "nowhere", "e_shouter:loud"):
        entry = name.replace(":", "_")
        install(modules, entry, f"{entry} = {name}")
    broken = install(modules, "f_metadata", "x = y")
    (broken / "entry_points.txt").write_bytes(b"[onetool.packs]\n\xff\xfe = \xff\n")
    install(modules, "g_half", "nothing")
    bus = ToolBus()
    problems = bus.register_installed()
    for message in (
        "a_breaks: ZeroDivisionError",
        "b_ends: SystemExit: 3",
        "nowhere: ModuleNotFoundError",
    ):
        assert any(message in problem for problem in problems), (message, problems)
    assert bus.list_tools() == ["shout.loud"]


# --- reload ---------------------------------------------------------------------------------------


ANSWER = """
    from onetool import tool
    @tool("answer.get")
    def get() -> str:
        return "old"
    """


@pytest.mark.spec("toolbus.reload.new-code")
def test_a_reloaded_tool_runs_the_new_code(modules: Modules) -> None:
    bus = bus_with(modules.load("answer_tools", ANSWER).get)
    for word in ("two", "six", "ten"):  # same length, within one second
        modules.write("answer_tools", ANSWER.replace("old", word))
        made = bus.reload_tool("answer.get")
        assert made is bus.get_tool("answer.get")
        assert call(bus, "answer.get").unwrap() == word
    assert sys.modules["answer_tools"].get() == "ten"
    assert bus.list_tools() == ["answer.get"]


@pytest.mark.spec("toolbus.reload.new-code")
def test_a_reload_updates_arguments_and_permissions(modules: Modules) -> None:
    bus = bus_with(modules.load("answer_tools", ANSWER).get)
    modules.write(
        "answer_tools",
        ANSWER.replace('get")', 'get", permissions=["read"])').replace("get()", "get(n: int)"),
    )
    bus.reload_tool("answer.get")
    assert bus.tool_info("answer.get")["permissions"] == ["read"]
    assert bus.tool_info("answer.get")["schema"]["required"] == ["n"]


@pytest.mark.spec("toolbus.reload.new-code")
def test_a_reloaded_tool_keeps_its_name(modules: Modules) -> None:
    bus = bus_with(modules.load("answer_tools", ANSWER).get)
    modules.write("answer_tools", ANSWER.replace("answer.get", "math.add").replace("old", "two"))
    bus.reload_tool("answer.get")
    assert bus.list_tools() == ["answer.get"]
    assert call(bus, "answer.get").unwrap() == "two"


@pytest.mark.spec("toolbus.reload.new-code")
@pytest.mark.parametrize("registered", ["class", "instance", "module"])
def test_classes_objects_and_modules_are_reloaded(modules: Modules, registered: str) -> None:
    text = """
        class Teller:
            name = "tell.it"
            permissions = ()
            def call(self, params, context): return "one"
        def it(): return "one"
        __all__ = ["it"]
        """
    module = modules.load("tell_tools", text)
    bus = bus_with(
        {"class": module.Teller, "instance": module.Teller(), "module": module}[registered]
    )
    modules.write("tell_tools", text.replace("one", "two"))
    bus.reload_tool("tell.it")
    assert call(bus, "tell.it").unwrap() == "two"


@pytest.mark.spec("toolbus.reload.new-code")
def test_a_reloaded_module_replaces_the_attribute_of_its_package(modules: Modules) -> None:
    modules.write("shop.__init__", "")
    bus = bus_with(modules.load("shop.answer_tools", ANSWER).get)
    modules.write("shop.answer_tools", ANSWER.replace("old", "two"))
    bus.reload_tool("answer.get")
    assert importlib.import_module("shop").answer_tools.get() == "two"


@pytest.mark.spec("toolbus.reload.unknown")
def test_reloading_an_unknown_name_is_not_found() -> None:
    with pytest.raises(ToolNotFound):
        bus_with(add).reload_tool("math.ad")


@pytest.mark.spec("toolbus.reload.failed")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def (", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError"),
        ("import sys\nsys.exit(1)", "SystemExit"),
        ("import nowhere_to_be_found", "ModuleNotFoundError"),
        ("def got(): ...", "has no get"),
        ("get = 5", r"int is not a tool: missing .*\nHint: register a function"),
        ("get = None", "NoneType is not a tool"),
        ("\0", "SyntaxError|null bytes"),
        (None, "FileNotFoundError"),
    ],
)
def test_a_failed_reload_keeps_the_old_version(
    modules: Modules, text: str | None, message: str
) -> None:
    module = modules.load("answer_tools", ANSWER)
    bus = bus_with(module.get)
    before = bus.get_tool("answer.get")
    file = modules.write("answer_tools", text or "")
    if text is None:
        file.unlink()
    with pytest.raises(ToolError, match=message) as caught:
        bus.reload_tool("answer.get")
    assert caught.value.message.startswith("cannot reload answer.get: ")
    assert bus.get_tool("answer.get") is before
    assert sys.modules["answer_tools"] is module
    assert call(bus, "answer.get").unwrap() == "old"
    modules.write("answer_tools", ANSWER.replace("old", "two"))
    bus.reload_tool("answer.get")
    assert call(bus, "answer.get").unwrap() == "two"


@pytest.mark.spec("toolbus.reload.failed")
def test_a_tool_that_is_not_defined_in_a_module_cannot_be_reloaded() -> None:
    def inner() -> int:
        return 1

    bus = bus_with(inner, tool("by.hand")(lambda: 1), bus_with(add).get_tool("math.add"))
    for name in ("inner", "by.hand", "math.add"):
        with pytest.raises(ToolError, match=f"cannot reload {re.escape(name)}: "):
            bus.reload_tool(name)
        assert name in bus.list_tools()
    assert call(bus, "inner").unwrap() == 1


@pytest.mark.spec("toolbus.reload.calls-in-flight")
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_calls_in_flight_complete_with_the_old_version(modules: Modules, kind: str) -> None:
    wait = "await asyncio.to_thread(go.wait)" if kind.startswith("async") else "go.wait()"
    text = f"""
        import asyncio, threading
        begun, go = threading.Event(), threading.Event()
        def word(): return "one"
        {kind} get():
            begun.set()
            {wait}
            return word()
        """
    module = modules.load("waiting", text)

    async def test() -> None:
        bus = bus_with(module.get)
        under_way = asyncio.ensure_future(bus.call_tool("get"))
        await asyncio.to_thread(module.begun.wait)
        modules.write("waiting", text.replace("one", "two"))
        bus.reload_tool("get")
        sys.modules["waiting"].go.set()
        assert (await bus.call_tool("get")).unwrap() == "two"
        assert not under_way.done()
        module.go.set()
        assert (await under_way).unwrap() == "one"

    anyio.run(test)


# --- tools that call tools ------------------------------------------------------------------------


@tool("deep.sync")
def sync_outer(context: ToolContext, number: int) -> int:
    return int(context.call_sync("deep.inner", number=number)) + 1


@tool("deep.async")
async def async_outer(context: ToolContext, number: int) -> int:
    return int(await context.call("deep.inner", number=number)) + 1


@tool("deep.inner")
def inner_tool(number: int) -> int:
    return 2 * number


@tool("deep.endless")
def endless(context: ToolContext) -> Any:
    return context.call_sync("deep.endless")


@tool("deep.endless_too")
async def endless_too(context: ToolContext) -> Any:
    return await context.call("deep.endless_too")


def call_concurrently(
    bus: ToolBus, count: int, name: str, context: ToolContext = CONTEXT
) -> list[Any]:
    async def calls() -> list[Any]:
        results = await asyncio.gather(
            *(bus.call_tool(name, {"number": n}, context) for n in range(count))
        )
        return [result.unwrap() for result in results]

    return anyio.run(calls)


@pytest.mark.spec("toolbus.compose.no-deadlock")
@pytest.mark.parametrize("name", ["deep.sync", "deep.async"])
def test_a_tool_may_call_another(name: str) -> None:
    bus = bus_with(sync_outer, async_outer, inner_tool)
    assert call(bus, name, number=20).unwrap() == 41


@pytest.mark.slow
@pytest.mark.spec("toolbus.compose.no-deadlock")
@pytest.mark.parametrize("name", ["deep.sync", "deep.async"])
def test_two_thousand_concurrent_tools_may_each_call_another(name: str) -> None:
    bus = bus_with(sync_outer, async_outer, inner_tool)
    assert call_concurrently(bus, 2000, name) == [2 * number + 1 for number in range(2000)]
    assert (
        threading.active_count() < 600
    )  # two levels of 256 at most, and the threads that existed before


@pytest.mark.slow
@pytest.mark.spec("toolbus.compose.no-deadlock")
def test_ten_thousand_concurrent_calls_complete() -> None:
    assert call_concurrently(bus_with(inner_tool), 10_000, "deep.inner") == [
        2 * number for number in range(10_000)
    ]


@pytest.mark.spec("toolbus.compose.no-deadlock")
@pytest.mark.parametrize("name", ["deep.endless", "deep.endless_too"])
def test_infinite_recursion_of_tools_is_a_clear_error(name: str) -> None:
    bus = bus_with(endless, endless_too, inner_tool)
    error = get_failure(call(bus, name))
    assert (
        f"{name} was not called: tool calls are nested more than 102 levels deep"
        in error["message"]
    )
    assert call(bus, "deep.inner", number=1).unwrap() == 2


@pytest.mark.spec("toolbus.compose.same-limits")
def test_a_nested_call_has_the_context_of_its_caller() -> None:
    seen: list[ToolContext] = []

    @tool("see.inner")
    def inner(context: ToolContext) -> None:
        seen.append(context)

    @tool("see.sync")
    def outer_sync(context: ToolContext) -> None:
        seen.append(context)
        context.call_sync("see.inner")

    @tool("see.async")
    async def outer(context: ToolContext) -> None:
        seen.append(context)
        await context.call("see.sync")

    given = ToolContext(
        "ci", permissions=permissions(["read"]), sandbox={"enabled": True}, correlation_id="c1"
    )
    assert call(bus_with(inner, outer_sync, outer), "see.async", given).ok
    assert seen[0] == given
    assert [context is seen[0] for context in seen] == [True, True, True]


@pytest.mark.spec("toolbus.compose.same-limits")
def test_a_nested_call_requires_the_permissions_of_the_caller() -> None:
    @tool("safe.inner", permissions=["write"])
    def inner() -> str:
        return "written"

    @tool("safe.outer")
    def outer(context: ToolContext) -> str:
        return str(context.call_sync("safe.inner"))

    bus = bus_with(inner, outer)
    assert get_failure(call(bus, "safe.outer"))["type"] == "permission_denied"
    assert (
        call(bus, "safe.outer", ToolContext(permissions=permissions(["write"]))).unwrap()
        == "written"
    )
    narrow = ToolContext(permissions=permissions(["write"]), tools=("safe.outer",))
    assert get_failure(call(bus, "safe.outer", narrow))["tool"] == "safe.inner"
    poor = ToolContext(
        permissions=permissions(["write"]), budget_guard=BudgetGuard(Limits(calls=1))
    )
    assert get_failure(call(bus, "safe.outer", poor))["type"] == "budget_exceeded"


@pytest.mark.spec("toolbus.compose.same-limits")
def test_an_error_of_a_nested_call_is_raised_in_the_caller() -> None:
    @tool("raise.inner")
    def inner() -> None:
        raise KeyError("nothing there")

    @tool("raise.outer")
    async def outer(context: ToolContext) -> str:
        try:
            await context.call("raise.inner")
        except KeyError as error:
            return f"caught {error}"
        return "nothing was raised"

    assert call(bus_with(inner, outer), "raise.outer").unwrap() == "caught 'nothing there'"


@pytest.mark.spec("toolbus.compose.same-limits")
def test_one_context_may_be_used_on_two_buses() -> None:
    def bus_that_adds(more: int) -> ToolBus:
        return bus_with(async_outer, tool("deep.inner")(lambda number: number + more))

    one, two = bus_that_adds(10), bus_that_adds(20)
    context = ToolContext()
    assert call(one, "deep.async", context, number=0).unwrap() == 11
    assert call(two, "deep.async", context, number=0).unwrap() == 21
    assert call(one, "deep.async", context, number=0).unwrap() == 11


@dataclass
class LateCaller:
    """A tool in a thread that calls another on request, and the outcomes of those calls."""

    begun: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    outcomes: list[str] = field(default_factory=list)

    def bus(self) -> ToolBus:
        @tool("late.sync")
        def sync_inner() -> None:
            self.outcomes.append("called")

        @tool("late.async")
        async def async_inner() -> None:
            self.outcomes.append("called")

        @tool("late.outer", timeout=1)
        def outer(context: ToolContext, name: str) -> None:
            self.begun.set()
            self.go.wait(10)
            try:
                context.call_sync(name)
            except BaseException as error:  # noqa: BLE001 - any error is recorded
                self.outcomes.append(type(error).__name__)
            self.over.set()

        return bus_with(sync_inner, async_inner, outer)


async def wait_for_timeout(late: LateCaller, name: str) -> None:
    assert (
        get_failure(await late.bus().call_tool("late.outer", {"name": name}))["type"] == "timeout"
    )


async def cancel_call(late: LateCaller, name: str) -> None:
    call = asyncio.ensure_future(late.bus().call_tool("late.outer", {"name": name}))
    assert await asyncio.to_thread(late.begun.wait, 10)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


@pytest.mark.spec("toolbus.compose.same-limits")
@pytest.mark.parametrize("ending", [wait_for_timeout, cancel_call])
@pytest.mark.parametrize("name", ["late.sync", "late.async"])
def test_a_tool_that_timed_out_or_was_cancelled_cannot_call_others(
    name: str, ending: Callable[[LateCaller, str], Coroutine[Any, Any, None]]
) -> None:
    late = LateCaller()

    async def test() -> None:
        await ending(late, name)
        late.go.set()
        assert await asyncio.to_thread(late.over.wait, 10)

    anyio.run(test)
    assert late.outcomes == ["Cancelled"]


@pytest.mark.spec("toolbus.compose.same-limits")
def test_a_nested_call_is_cancelled_with_its_caller() -> None:
    async def test() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        @tool("long.inner")
        async def inner() -> None:
            begun.set()
            try:
                await anyio.sleep_forever()
            finally:
                ended.set()

        @tool("long.outer")
        def outer(context: ToolContext) -> None:
            context.call_sync("long.inner")

        call = asyncio.ensure_future(bus_with(inner, outer).call_tool("long.outer"))
        await begun.wait()
        call.cancel()
        with anyio.fail_after(10):
            await ended.wait()

    anyio.run(test)


def test_call_sync_on_the_event_loop_is_an_error_with_a_hint() -> None:
    @tool("wrong.outer")
    async def outer(context: ToolContext) -> None:
        context.call_sync("deep.inner", number=1)

    @tool("wrong.thread")
    def thread(context: ToolContext) -> None:
        context.call_sync("wrong.outer")

    bus = bus_with(outer, thread, inner_tool)
    for name in ("wrong.outer", "wrong.thread"):
        assert "await context.call(...)" in get_failure(call(bus, name))["hint"]


# --- timeouts -------------------------------------------------------------------------------------


@pytest.mark.spec("toolbus.error.timeout")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_call_over_its_timeout_is_cancelled(kind: str) -> None:
    over = threading.Event()

    @tool("slow.sync", timeout=0.05)
    def in_thread() -> None:
        over.wait(20)

    @tool("slow.async", timeout=0.05)
    async def on_loop() -> None:
        await anyio.sleep_forever()

    error = get_failure(call(bus_with(in_thread, on_loop), f"slow.{kind}"))
    over.set()
    assert (error["type"], error["timeout_ms"]) == ("timeout", 50)
    assert f"slow.{kind} timed out after 0.05 s" in error["message"]


@pytest.mark.spec("toolbus.error.timeout")
def test_a_pack_may_have_a_timeout() -> None:
    with open_app({"tools": {"machine": {"timeout": 7}}}) as app:
        assert app.onetool.bus.get_tool("machine.disk").timeout == 7
        assert app.call("machine.disk").ok


# --- events ---------------------------------------------------------------------------------------


def record_events(bus: ToolBus) -> tuple[list[Event], Callable[[], None]]:
    events: list[Event] = []
    return events, bus.subscribe(events.append)


def test_each_call_emits_called_and_then_completed_or_failed() -> None:
    bus = bus_with(add)
    events, _ = record_events(bus)
    context = ToolContext("ci", correlation_id="c1")
    call(bus, "math.add", context, left=1)
    call(bus, "math.add", context, left="x")
    call(bus, "math.nothing", context)
    assert [(event.kind, event.call_id, event.name, event.error) for event in events] == [
        ("called", 1, "math.add", None),
        ("completed", 1, "math.add", None),
        ("called", 2, "math.add", None),
        ("failed", 2, "math.add", "validation_error"),
        ("called", 3, "math.nothing", None),
        ("failed", 3, "math.nothing", "not_found"),
    ]
    assert all(event.context == context for event in events)
    assert isinstance(events[1], CallFinished)
    assert events[1].seconds > 0


def test_events_of_concurrent_calls_have_distinct_ids() -> None:
    bus = bus_with(sync_outer, inner_tool)
    events, _ = record_events(bus)
    call_concurrently(bus, 50, "deep.sync")
    called = {event.call_id: event.name for event in events if event.kind == "called"}
    completed = {event.call_id: event.name for event in events if event.kind == "completed"}
    assert called == completed
    assert len(called) == 100


def test_a_cancelled_call_is_reported_as_failed() -> None:
    async def test() -> list[Event]:
        bus = bus_with(tool("slow.one")(anyio.sleep_forever))
        events, _ = record_events(bus)
        with anyio.move_on_after(0.01):
            await bus.call_tool("slow.one")
        return events

    assert [(event.kind, event.error) for event in anyio.run(test)] == [
        ("called", None),
        ("failed", "cancelled"),
    ]


def test_an_unsubscribed_listener_receives_no_events() -> None:
    bus = bus_with(add)
    events, end = record_events(bus)
    others, end_other = record_events(bus)
    end()
    end()
    call(bus, "math.add", left=1)
    assert (len(events), len(others)) == (0, 2)
    end_other()


def test_each_subscription_of_a_listener_ends_separately() -> None:
    bus = bus_with(add)
    received: list[Event] = []
    listener: Callable[[Event], None] = received.append
    end = bus.subscribe(listener)
    bus.subscribe(listener)
    end()
    call(bus, "math.add", left=1)
    assert len(received) == 2


def test_a_listener_may_unsubscribe_itself_and_others_during_an_event() -> None:
    bus = bus_with(add)
    received: list[str] = []
    ends: list[Callable[[], None]] = []

    def once(event: Event) -> None:
        received.append(f"once {event.kind}")
        for end in ends:
            end()

    ends.extend(
        [bus.subscribe(once), bus.subscribe(lambda event: received.append(f"second {event.kind}"))]
    )
    bus.subscribe(lambda event: received.append(f"third {event.kind}"))
    call(bus, "math.add", left=1)
    assert received == ["once called", "third called", "third completed"]


@pytest.mark.parametrize("raised", [ValueError("no"), SystemExit(1), RecursionError()])
def test_a_listener_that_raises_does_not_affect_others(raised: BaseException) -> None:
    def fails(_event: Event) -> None:
        raise raised

    bus = bus_with(add)
    bus.subscribe(fails)
    events, _ = record_events(bus)
    assert call(bus, "math.add", left=1).unwrap() == 3
    assert [event.kind for event in events] == ["called", "completed"]


# --- spans ----------------------------------------------------------------------------------------


SPANS = """
import json, sys, anyio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from onetool import ToolBus, ToolContext, ToolError, tool

exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)

@tool("span.inner")
def inner(text: str) -> str:
    if text == "canary-fails": raise ToolError("canary-message")
    return "canary-value"

@tool("span.middle")
def middle(context: ToolContext, text: str) -> str:
    return context.call_sync("span.inner", text=text)

@tool("span.outer")
async def outer(context: ToolContext, text: str) -> str:
    return await context.call("span.middle", text=text)

@tool("span.slow")
async def slow() -> None:
    await anyio.sleep_forever()

async def main():
    bus = ToolBus()
    for thing in (inner, middle, outer, slow):
        bus.register_tool(thing)
    context = ToolContext("ci", correlation_id="c1")
    await bus.call_tool("span.outer", {"text": "canary-argument"}, context)
    await bus.call_tool("span.inner", {"text": "canary-fails"}, context)
    with anyio.move_on_after(0.01):
        await bus.call_tool("span.slow", {}, context)

anyio.run(main)
spans = exporter.get_finished_spans()
names = {span.context.span_id: span.name for span in spans}
print(json.dumps([
    [span.name, names.get(span.parent.span_id) if span.parent else None, span.status.status_code.name,
     dict(span.attributes)] for span in spans
]))
assert not any("canary" in span.to_json() for span in spans), [span.to_json() for span in spans]
assert not any(span.events for span in spans)
"""


@pytest.mark.slow
def test_each_call_is_a_child_span_of_its_caller() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SPANS], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    facts = {"onetool.agent": "ci", "onetool.run": "c1"}

    def attributes(name: str, error: str = "") -> dict[str, str]:
        return {"onetool.tool": name, **facts, **({"error.type": error} if error else {})}

    assert json.loads(done.stdout) == [
        ["tool span.inner", "tool span.middle", "UNSET", attributes("span.inner")],
        ["tool span.middle", "tool span.outer", "UNSET", attributes("span.middle")],
        ["tool span.outer", None, "UNSET", attributes("span.outer")],
        ["tool span.inner", None, "ERROR", attributes("span.inner", error="execution_error")],
        ["tool span.slow", None, "ERROR", attributes("span.slow", error="cancelled")],
    ]


def test_without_the_sdk_opentelemetry_is_not_imported() -> None:
    code = """
        import sys
        class Missing:
            def find_spec(self, name, path=None, target=None):
                if name == "opentelemetry.sdk": raise ModuleNotFoundError(name)
        sys.meta_path.insert(0, Missing())
        import anyio
        from onetool import ToolBus, tool
        bus = ToolBus()
        bus.register_tool(tool("a.b")(lambda: 1))
        assert anyio.run(bus.call_tool, "a.b").unwrap() == 1
        print([name for name in sys.modules if name.startswith("opentelemetry.")])
        """
    done = subprocess.run(
        [sys.executable, "-c", dedent(code)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
