"""Specification 5: agents, their tool settings and their budgets, with real settings and a real
bus.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.extensions_support import configure, open_app_in, write_pack
from tests.support import App, open_app

from onetool import Permission, Result, ToolBus, ToolContext, ToolError, tool
from onetool.errors import BudgetExceeded, ConfigError, PermissionDenied, describe
from onetool.settings.settings_reader import read_settings
from onetool.util.context import permissions


@tool("fs2.peek", permissions=["read"])
def peek(path: str = ".") -> str:
    """A look at a path."""
    return f"read {path}"


@tool("fs2.poke", permissions=["write"])
def poke(path: str = ".") -> str:
    """A change of a path."""
    return f"wrote {path}"


@tool("net2.get-it", permissions=["network"])
def get_it() -> str:
    """What has a name that Python cannot write."""
    return "got it"


@tool("bare")
def bare() -> str:
    """A tool without a pack."""
    return "bare"


@tool("wrap.around")
async def around(context: ToolContext, name: str) -> Any:
    """Calls another tool."""
    return await context.call(name)


@tool("slack2.notify", limits=("max_size", "seconds"))
def notify(  # noqa: PLR0917 - a tool with many arguments
    context: ToolContext,
    message: str,
    channel: str = "#general",
    max_size: int | None = 100,
    seconds: float = 10,
    tags: list[str] | None = None,
) -> dict[str, Any]:
    """The example of the document, with limits."""
    return {
        "message": message,
        "channel": channel,
        "max_size": max_size,
        "seconds": seconds,
        "tags": tags,
        "own": dict(context.agent_config.get("slack2.notify", {})),
    }


TOOLS = (peek, poke, get_it, bare, around, notify)


def failure(result: Result) -> dict[str, Any]:
    assert result.error is not None
    return describe(result.error)


def read_agents(home: Path) -> Mapping[str, Any]:
    return read_settings({}, home, None, home).settings.agents


# --- agents ---------------------------------------------------------------------------------------


@pytest.mark.spec("toolbus.agent.from-files")
def test_an_agent_defined_in_a_file_has_its_limits(tmp_path: Path) -> None:
    directory = tmp_path / ".onetool"
    (directory / "agents").mkdir(parents=True)
    text = (
        'name: "slack_notifier"\ntools: ["slack2.notify", "fs2.peek"]\npermissions: [":read",'
        " write]\n"
    )
    text += 'tool_config:\n  slack2.notify:\n    channel: "#alerts"\n'
    (directory / "agents" / "notifier.yml").write_text(text, encoding="utf-8")
    with open_app_in(tmp_path) as app:
        for thing in TOOLS:
            app.onetool.bus.register_tool(thing)
        assert app.call("fs2.peek", agent="slack_notifier").unwrap() == "read ."
        assert failure(app.call("fs2.poke", agent="slack_notifier"))["type"] == "permission_denied"
        sent = app.call("slack2.notify", {"message": "x"}, agent="slack_notifier").unwrap()
        assert sent["channel"] == "#alerts"


@pytest.mark.spec("toolbus.agent.from-configuration")
def test_an_agent_defined_in_the_settings_has_its_limits() -> None:
    with open_app({"agents": {"writer": {"permissions": ["write"]}, "nobody": {}}}, TOOLS) as app:
        assert app.call("fs2.poke", agent="writer").unwrap() == "wrote ."
        assert failure(app.call("fs2.peek", agent="writer"))["granted"] == ["write"]
        assert failure(app.call("fs2.peek", agent="nobody"))["granted"] == []
        assert app.call("fs2.peek").unwrap() == "read ."
        assert "wrote" in app.run("fs2.poke()", agent="writer").text
        rejected = app.run("fs2.peek()", agent="writer")
        assert rejected.is_error
        assert "agents: {writer: {permissions: [read, write]}}" in rejected.text


@pytest.mark.spec("toolbus.agent.permissions-in-two-places")
def test_permissions_may_be_set_under_budgets(tmp_path: Path) -> None:
    configure(tmp_path / ".onetool", "agents: {ci: {budgets: {permissions: [':read', write]}}}")
    assert read_agents(tmp_path)["ci"].permissions == {Permission.READ, Permission.WRITE}


@pytest.mark.spec("toolbus.agent.permissions-in-two-places")
def test_permissions_in_both_locations_must_match(tmp_path: Path) -> None:
    same = "agents: {ci: {permissions: [write, read], budgets: {permissions: [read, write]}}}"
    configure(tmp_path / ".onetool", same)
    assert read_agents(tmp_path)["ci"].permissions == {Permission.READ, Permission.WRITE}
    configure(tmp_path / ".onetool", same.replace("[write, read]", "[read]"))
    with pytest.raises(
        ConfigError, match=r"agents\.ci has conflicting permissions and budgets\.permissions"
    ):
        read_agents(tmp_path)


# --- the list of tools ----------------------------------------------------------------------------


NARROW: dict[str, Any] = {
    "aliases": {"p": "fs2.poke", "g": "net2.get-it", "look": "fs2.peek"},
    "agents": {
        "exact": {
            "permissions": ["read", "write", "network"],
            "tools": ["fs2.peek", "wrap.around"],
        },
        "pack": {"permissions": ["read", "write", "network"], "tools": ["fs2"]},
        "pattern": {"permissions": ["read", "write", "network"], "tools": ["fs2.*", "b?re"]},
        "greedy": {"permissions": ["read"], "tools": ["*"]},
        "none": {"permissions": ["read", "write", "network"], "tools": []},
        "all": {"permissions": ["read", "write", "network"]},
    },
}


@pytest.fixture(scope="module")
def narrow() -> Iterator[App]:
    with open_app(NARROW, TOOLS) as app:
        yield app


@pytest.mark.spec("toolbus.agent.tools-narrow")
@pytest.mark.parametrize(
    ("agent", "callable_ones"),
    [
        ("exact", {"fs2.peek"}),
        ("pack", {"fs2.peek", "fs2.poke"}),
        ("pattern", {"fs2.peek", "fs2.poke", "bare"}),
        ("greedy", {"fs2.peek", "bare"}),  # it has no other permission
        ("none", set()),
        ("all", {"fs2.peek", "fs2.poke", "net2.get-it", "bare"}),
    ],
)
def test_the_tool_list_restricts_and_never_extends(
    narrow: App, agent: str, callable_ones: set[str]
) -> None:
    names = ("fs2.peek", "fs2.poke", "net2.get-it", "bare")
    assert {name for name in names if narrow.call(name, agent=agent).ok} == callable_ones


@pytest.mark.spec("toolbus.agent.tools-narrow")
@pytest.mark.parametrize(
    "code",
    [
        "fs2.poke()",
        "p()",
        "ot.call('p')",
        "ot.call('fs2.poke')",
        "ot.call('net2.get_it')",
        "net2.get_it()",
        "g()",
        "ot.parallel([fs2.poke])",
        "ot.call('wrap.around', name='fs2.poke')",
        "wrap.around('p')",
        "wrap.around('net2.get_it')",
        "ot.call('wrap.around', name='g')",
    ],
)
def test_no_form_of_a_call_bypasses_the_tool_list(narrow: App, code: str) -> None:
    answer = narrow.run(code, agent="exact")
    assert answer.is_error, answer.text
    assert answer.error == "permission_denied", answer.text
    assert "its tools are [fs2.peek, wrap.around]" in answer.text


@pytest.mark.spec("toolbus.agent.tools-narrow")
def test_an_alias_of_a_listed_tool_may_be_called(narrow: App) -> None:
    assert narrow.run("look()", agent="exact").text == "read ."
    assert narrow.run("wrap.around('look')", agent="exact").text == "read ."


@pytest.mark.spec("toolbus.agent.tools-narrow")
def test_the_error_suggests_the_setting(narrow: App) -> None:
    error = failure(narrow.call("fs2.poke", agent="exact"))
    assert error["tool"] == "fs2.poke"
    assert "agents: {exact: {tools: [fs2.peek, wrap.around, fs2.poke]}}" in error["message"]


@pytest.mark.spec("toolbus.agent.tools-narrow")
def test_ot_tools_without_permissions_are_callable_by_every_agent(narrow: App) -> None:
    for name in (
        "ot.version",
        "ot.health",
        "ot.tools",
        "ot.help",
        "ot.packs",
        "ot.aliases",
        "ot.config",
    ):
        assert narrow.call(name, agent="none").ok
    for name, args in (
        ("ot.resources", {"server": "x"}),
        ("ot.prompt", {"server": "x"}),
        ("ot.scaffold", {"pack": "x"}),
    ):
        assert failure(narrow.call(name, args, agent="none"))["type"] == "permission_denied"


@pytest.mark.spec("toolbus.agent.tools-narrow", "toolbus.context.frozen")
def test_changing_the_original_list_does_not_change_the_context() -> None:
    tools: Any = ["fs2.peek"]
    rights: Any = {Permission.READ}
    context = ToolContext(tools=tools, permissions=rights)
    tools.append("fs2.poke")
    rights.add(Permission.WRITE)
    assert (context.tools, context.permissions) == (("fs2.peek",), frozenset({Permission.READ}))


@pytest.mark.spec("toolbus.agent.tools-narrow")
def test_an_agent_sees_only_the_tools_in_its_list(narrow: App) -> None:
    def read_output(name: str, **args: Any) -> str:
        return json.dumps(narrow.call(name, args, agent="exact").unwrap())

    names = narrow.call("ot.tools", {"info": "list"}, agent="exact").unwrap()
    assert [name for name in names if not name.startswith("ot.")] == ["fs2.peek", "wrap.around"]
    assert narrow.call("ot.packs", {"info": "list"}, agent="exact").unwrap() == [
        "fs2",
        "ot",
        "wrap",
    ]
    everything = [
        read_output("ot.tools"),
        read_output("ot.tools", info="full"),
        read_output("ot.packs", info="full"),
        read_output("ot.help", query="fs2"),
        read_output("ot.help", query="fs2.poke"),
        read_output("ot.help", query="a change of a path", info="full"),
        read_output("ot.search", query="a change of a path", limit=50),
        read_output("ot.search", query="fs2.poke", limit=50),
    ]
    for text in everything:
        assert "A change of a path" not in text
        assert "alias of fs2.poke" not in text
    assert (
        "A change of a path" in narrow.call("ot.help", {"query": "fs2.poke"}, agent="all").unwrap()
    )
    assert "fs2.peek" in read_output("ot.search", query="look at a path", limit=1)


@pytest.mark.spec("toolbus.agent.tools-narrow")
def test_the_tool_list_applies_to_calls_from_workers(tmp_path: Path) -> None:
    text = "def through(name: str):\n    return ot.call(name)\n"
    write_pack(tmp_path / ".onetool" / "tools", "outer", text)
    agents = "agents: {ci: {permissions: [read, write], tools: [outer, fs2.peek]}}"
    configure(tmp_path / ".onetool", agents)
    with open_app_in(tmp_path) as app:
        for thing in TOOLS:
            app.onetool.bus.register_tool(thing)
        assert app.call("outer.through", {"name": "fs2.peek"}, agent="ci").unwrap() == "read ."
        rejected = app.call("outer.through", {"name": "fs2.poke"}, agent="ci")
        assert isinstance(rejected.error, PermissionDenied)


# --- tool settings --------------------------------------------------------------------------------


def context_with_config(config: Mapping[str, Any], agent_id: str = "ci") -> ToolContext:
    return ToolContext(agent_id=agent_id, agent_config={"slack2.notify": config})


def send(config: Mapping[str, Any], *positional: Any, **params: Any) -> Result:
    async def call() -> Result:
        bus = ToolBus()
        bus.register_tool(notify)
        return await bus.call_tool(
            "slack2.notify", params, context_with_config(config), positional=positional
        )

    return anyio.run(call)


@pytest.mark.spec("toolbus.tool-config.reaches-the-tool")
def test_a_tool_finds_its_settings_in_the_context() -> None:
    config = {"default_channel": "#alerts", "retries": 3}
    value = send(config, message="x").unwrap()
    assert value["own"] == config
    assert value["channel"] == "#general"


@pytest.mark.spec("toolbus.tool-config.precedence")
def test_arguments_override_settings_and_settings_override_defaults() -> None:
    config = {"channel": "#alerts", "tags": ["a", "b"]}
    assert send(config, message="x").unwrap()["channel"] == "#alerts"
    assert send(config, message="x").unwrap()["tags"] == ["a", "b"]
    for given in (
        send(config, message="x", channel="#mine"),
        send(config, message="x", chan="#mine"),
        send(config, "x", "#mine"),
    ):
        assert given.unwrap()["channel"] == "#mine"
    assert send(config, message="x", tags=None).unwrap()["tags"] is None


@pytest.mark.spec("toolbus.tool-config.precedence")
def test_a_setting_may_supply_a_required_parameter() -> None:
    assert send({"message": "as always"}).unwrap()["message"] == "as always"


@pytest.mark.spec("toolbus.tool-config.precedence")
def test_each_agent_has_its_own_tool_settings() -> None:
    agents = {
        name: {"tool_config": {"slack2.notify": {"channel": f"#{name}"}}} for name in ("one", "two")
    }
    with open_app({"aliases": {"n": "slack2.notify"}, "agents": agents}, TOOLS) as app:
        for name in ("one", "two"):
            assert app.call("n", {"message": "x"}, agent=name).unwrap()["channel"] == f"#{name}"
            assert f"#{name}" in app.run("n('x')['channel']", agent=name).text


@pytest.mark.spec("toolbus.tool-config.limits-only-tighten")
@pytest.mark.parametrize(
    ("given", "used"),
    [
        ({}, 50),
        ({"max_size": 20}, 20),
        ({"max_size": 50}, 50),
        ({"max_size": 51}, 50),
        ({"max_size": 10**30}, 50),
        ({"max_size": None}, 50),
        ({"max": 1000}, 50),
        ({"max_s": 7}, 7),
    ],
)
def test_a_call_may_lower_a_limit_but_not_raise_it(given: dict[str, Any], used: int) -> None:
    assert send({"max_size": 50}, message="x", **given).unwrap()["max_size"] == used


@pytest.mark.spec("toolbus.tool-config.limits-only-tighten")
def test_a_positional_limit_is_enforced() -> None:
    assert send({"max_size": 50}, "x", "#c", 1000).unwrap()["max_size"] == 50
    assert send({"max_size": 50}, "x", "#c", None).unwrap()["max_size"] == 50


@pytest.mark.spec("toolbus.tool-config.limits-only-tighten")
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e300])
def test_infinity_and_nan_do_not_exceed_a_limit(value: float) -> None:
    assert send({"seconds": 2.5}, message="x", seconds=value).unwrap()["seconds"] == 2.5


@pytest.mark.spec("toolbus.tool-config.limits-only-tighten")
def test_without_a_configured_limit_a_call_sets_any_limit() -> None:
    assert send({}, message="x", max_size=10**6).unwrap()["max_size"] == 10**6
    assert send({"max_size": None}, message="x", max_size=10**6).unwrap()["max_size"] == 10**6


@pytest.mark.spec("toolbus.tool-config.limits-only-tighten")
@pytest.mark.parametrize("given", [{}, {"max_size": 10}])
def test_an_invalid_limit_is_an_error_that_names_the_setting(given: dict[str, Any]) -> None:
    error = failure(send({"max_size": "lots"}, message="x", **given))
    assert error["type"] == "validation_error"
    assert "agent_config: {slack2.notify: {max_size: ...}} of ToolContext" in error["message"]


@pytest.mark.spec("toolbus.tool-config.precedence")
def test_an_invalid_value_is_attributed_to_its_source() -> None:
    assert (
        "agent_config: {slack2.notify: {channel: ...}}"
        in failure(send({"channel": 5}, message="x"))["message"]
    )
    assert "agent_config" not in failure(send({"channel": "#a"}, message="x", channel=5))["message"]
    assert "agent_config" not in failure(send({"channel": "#a"}, message=5))["message"]
    assert (
        "agent_config: {slack2.notify: {tags: ...}}"
        in failure(send({"tags": ["a", 1]}, message="x"))["message"]
    )


# --- budgets --------------------------------------------------------------------------------------


@tool("paid.look")
async def paid(size: int = 0, fails: bool = False) -> str:
    """What costs something."""
    if fails:
        raise ToolError("it failed")
    return "x" * size


@tool("paid.within")
async def within(context: ToolContext, times: int) -> int:
    """Calls what costs something."""
    for _ in range(times):
        await context.call("paid.look")
    return times


def settings_with_budgets(budgets: Mapping[str, Any], **settings: Any) -> dict[str, Any]:
    return {"agents": {"default": {"permissions": ["read"], "budgets": dict(budgets)}}, **settings}


@pytest.mark.spec("toolbus.budget.four-kinds")
@pytest.mark.parametrize("kind", ["time_seconds", "calls", "tokens", "cost"])
def test_each_of_the_four_kinds_of_budget_is_enforced(kind: str) -> None:
    tools = {"paid": {"cost_per_call": 1}}
    with open_app(
        settings_with_budgets({kind: 0.000001 if kind == "time_seconds" else 1}, tools=tools),
        [paid],
    ) as app:
        errors = [result for _ in range(2) if not (result := app.call("paid.look", {"size": 4})).ok]
        assert {(failure(error)["type"], failure(error)["budget"]) for error in errors} == {
            ("budget_exceeded", kind)
        }


@pytest.mark.spec("toolbus.budget.warns-once")
def test_at_80_percent_the_next_response_warns_the_client_once() -> None:
    with open_app(settings_with_budgets({"calls": 10}), [paid]) as app:
        first = app.run("for _ in range(7): paid.look()")
        assert "Note:" not in first.text
        second = app.run("paid.look()")
        assert second.blocks[0] == "Note: agent default has used 8 of 10 calls"
        assert "Note:" not in app.run("paid.look()").text


@pytest.mark.spec("toolbus.budget.refuses")
def test_a_call_over_the_budget_is_rejected() -> None:
    with open_app(settings_with_budgets({"calls": 3}), [paid]) as app:
        answer = app.run("for _ in range(5): paid.look()")
        assert (answer.is_error, answer.error) == (True, "budget_exceeded")
        assert "3 of 3 calls" in answer.text
        error = failure(app.call("paid.look"))
        assert (error["type"], error["budget"], error["limit"], error["spent"]) == (
            "budget_exceeded",
            "calls",
            3,
            3,
        )


@pytest.mark.spec("toolbus.budget.refuses")
def test_nested_calls_count_as_calls() -> None:
    with open_app(settings_with_budgets({"calls": 4}), [paid, within]) as app:
        assert app.call("paid.within", {"times": 3}).unwrap() == 3
        assert not app.call("paid.look").ok
    with open_app(settings_with_budgets({"calls": 3}), [paid, within]) as app:
        assert failure(app.call("paid.within", {"times": 3}))["type"] == "budget_exceeded"


@pytest.mark.spec("toolbus.budget.refuses")
def test_a_failed_call_counts_as_a_call() -> None:
    with open_app(settings_with_budgets({"calls": 2}), [paid]) as app:
        for _ in range(2):
            assert failure(app.call("paid.look", {"fails": True}))["type"] == "execution_error"
        assert failure(app.call("paid.look"))["type"] == "budget_exceeded"


@pytest.mark.spec("toolbus.budget.crossing-call")
def test_a_call_that_exceeds_the_token_budget_is_charged_and_withheld() -> None:
    with open_app(settings_with_budgets({"tokens": 100}), [paid]) as app:
        assert app.call("paid.look", {"size": 320}).unwrap() == "x" * 320
        error = failure(app.call("paid.look", {"size": 320}))
        assert (error["type"], error["budget"], error["spent"]) == (
            "budget_exceeded",
            "tokens",
            160,
        )
        assert "withheld" in error["message"]
        assert "xxx" not in json.dumps(error)
        assert "was not made" in failure(app.call("paid.look"))["message"]


@pytest.mark.spec("toolbus.budget.crossing-call", "toolbus.budget.cost")
def test_a_call_that_exceeds_the_cost_budget_is_charged_and_withheld() -> None:
    tools = {"paid": {"cost_per_call": 0.4}}
    with open_app(settings_with_budgets({"cost": 1}, tools=tools), [paid, bare]) as app:
        assert app.call("paid.look").ok
        assert app.call("bare").ok  # has no cost
        assert not app.call("paid.look", {"fails": True}).ok  # a failed call has its full cost
        error = failure(app.call("paid.look"))
        assert (error["budget"], error["limit"], error["spent"]) == ("cost", 1, 1.2)
        assert "was not made" in failure(app.call("bare"))["message"]


@pytest.mark.spec("toolbus.budget.no-overspending")
def test_concurrent_calls_never_exceed_the_budget() -> None:
    made: list[int] = []

    @tool("count.one")
    def one() -> None:
        made.append(1)

    async def at_once(app: App) -> list[Result]:
        context = app.onetool.context()
        return await asyncio.gather(
            *(app.onetool.bus.call_tool("count.one", {}, context) for _ in range(500))
        )

    with open_app(settings_with_budgets({"calls": 77}), [one]) as app:
        results = app.portal.call(at_once, app)
        assert (sum(result.ok for result in results), len(made)) == (77, 77)
        assert all(isinstance(result.error, BudgetExceeded) for result in results if not result.ok)


@pytest.mark.spec("toolbus.budget.no-overspending")
def test_concurrent_calls_share_the_time_budget() -> None:
    @tool("wait.forever")
    async def wait() -> None:
        await anyio.sleep_forever()

    async def at_once(app: App) -> list[Result]:
        context = app.onetool.context()
        calls = (app.onetool.bus.call_tool("wait.forever", {}, context) for _ in range(50))
        with anyio.fail_after(20):  # sequentially they would take 50 times the limit
            return await asyncio.gather(*calls)

    with open_app(settings_with_budgets({"time_seconds": 1}), [wait, bare]) as app:
        errors = [failure(result) for result in app.portal.call(at_once, app)]
        assert {(error["type"], error["budget"]) for error in errors} == {
            ("budget_exceeded", "time_seconds")
        }
        assert failure(app.call("bare"))["type"] == "budget_exceeded"


@pytest.mark.spec("toolbus.budget.refuses")
def test_a_reload_keeps_the_spent_budget(tmp_path: Path) -> None:
    text = "agents: {default: {permissions: [read], budgets: {calls: 3}}}"
    configure(tmp_path / ".onetool", text)
    with open_app_in(tmp_path) as app:
        app.onetool.bus.register_tool(bare)
        assert app.call("bare").ok
        assert app.call("ot.reload").ok
        assert app.call("bare").ok
        assert not app.call("bare").ok
        configure(tmp_path / ".onetool", text.replace("3", "6"))
        assert not app.call("ot.reload").ok  # this call counts too
        app.portal.call(app.onetool.live_settings.reload)
        assert [app.call("bare").ok for _ in range(4)] == [True, True, True, False]


@pytest.mark.spec("toolbus.agent.from-configuration")
def test_the_context_contains_the_limits_of_the_agent() -> None:
    settings = {
        "agents": {
            "ci": {
                "permissions": ["read"],
                "tools": ["fs2"],
                "sandbox": {"allowed_paths": ["/srv"]},
            }
        }
    }
    with open_app(settings) as app:
        context = app.onetool.context("ci")
        assert (context.agent_id, context.tools, context.permissions) == (
            "ci",
            ("fs2",),
            permissions(["read"]),
        )
        assert context.sandbox is not None
        assert context.sandbox["allowed_paths"] == ("/srv",)
