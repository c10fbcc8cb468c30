"""The setting `expose`: which tools an MCP client sees besides `run`, and what code can call."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from mcp_types import Implementation, ResourceLink, TextContent, TextResourceContents
from tests.bundles_support import new_bundle, open_store, tool_body
from tests.extensions_support import write_pack
from tests.proxy_support import HOSTILE
from tests.support import PROGRAM, Connection, configure, connect, get_texts, run_cli

PLAN = {
    "name": "plan",
    "description": "Plan a project.",
    "inputSchema": {
        "type": "object",
        "properties": {"steps": {"type": "array", "items": {"type": "string"}}},
    },
}
HELLO = '''\
"""Greetings."""


def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello, {name}!"


def many(count: int) -> list[dict]:
    """Return many records."""
    return [{"number": number, "text": "a record with some text"} for number in range(count)]
'''


def prepare(
    home: Path, definitions: list[dict[str, Any]] | None = None, /, **settings: Any
) -> None:
    plans = home / "plans"
    plans.mkdir(exist_ok=True)
    (plans / "tools.json").write_text(json.dumps(definitions or [PLAN]), encoding="utf-8")
    planner = {"command": sys.executable, "args": [str(HOSTILE), "scripted", str(plans)]}
    planner |= {"expose": settings.pop("planner")} if "planner" in settings else {}
    configure(home, yaml.safe_dump({"servers": {"planner": planner}, **settings}))
    write_pack(home / ".onetool" / "tools", "hello", HELLO)
    with open_store(home / ".onetool" / "bundles") as store:
        if not store.packs() or "clock" not in {pack.slug for pack in store.packs()}:
            store.put_tool(
                new_bundle(store, "clock"),
                "now",
                "1",
                tool_body(pythonImpl={"function": "machine.now"}),
            )
    called = run_cli(
        home, "run", f"planner.{(definitions or [PLAN])[0]['name']}(steps=['a'])"
    )  # caches the list
    assert called.returncode == 0, called.stderr


def list_names(client: Connection) -> list[str]:
    return [tool.name for tool in client.tools()]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("settings", "published"),
    [
        ({}, []),
        ({"expose": "auto"}, ["greet", "many", "now", "plan"]),
        ({"expose": "both"}, ["greet", "many", "now", "plan"]),
        ({"expose": "both", "planner": "code"}, ["greet", "many", "now"]),
        ({"planner": "both"}, ["plan"]),
        ({"planner": "auto"}, ["plan"]),
        ({"planner": "direct"}, ["plan"]),
    ],
)
def test_the_setting_publishes_connected_tools(
    tmp_path: Path, settings: dict[str, Any], published: list[str]
) -> None:
    prepare(tmp_path, **settings)
    with connect(tmp_path) as client:
        assert list_names(client) == ["run", *published]
        if "plan" in published:
            assert get_texts(client.call("plan", {"steps": ["a"]})) == ['{"steps": ["a"]}']
        code = client.run("planner.plan(steps=['a'])")
        assert code.is_error == (settings.get("planner") == "direct"), get_texts(code)
        if published:
            stats = json.loads(get_texts(client.run("__format__ = 'json'\not.stats()"))[-1])
            assert {each["name"]: each["calls"] for each in stats["tools"]}["planner.plan"] >= 2


def test_code_neither_calls_nor_finds_what_is_only_direct(tmp_path: Path) -> None:
    prepare(tmp_path, planner="direct", aliases={"think": "planner.plan"})
    with connect(tmp_path) as client:
        for code in (
            "planner.plan()",
            "think()",
            "ot.call('Planner.Plan')",
            "ot.parallel([planner.plan])",
            "ot.background('planner.plan')",
            "ot.background('think', steps=['a'])",
            "ot.plan(code='planner.plan()')",
        ):
            text = get_texts(client.run(code))[-1]
            assert "planner.plan is not available in code: it is published directly" in text, code
            assert "expose: both" in text
        for code in (
            "ot.tools()",
            "ot.search('plan a project')",
            "ot.help('planner.plan')",
            "ot.packs()",
        ):
            assert "Plan a project" not in get_texts(client.run(code))[-1], code
    assert (
        run_cli(tmp_path, "run", "planner.plan(steps=[])").returncode == 0
    )  # no client to call it directly
    with connect(
        tmp_path, command=(PROGRAM, "serve", "--expose", "planner")
    ) as client:  # means both
        assert list_names(client) == ["run", "plan"]
        assert not client.run("planner.plan()").is_error


def test_hidden_tools_do_not_take_the_places_of_hits(tmp_path: Path) -> None:
    prepare(
        tmp_path, [{**PLAN, "name": f"plan_{number:03}"} for number in range(150)], planner="direct"
    )
    with connect(tmp_path) as client:
        hits = json.loads(
            get_texts(client.run("__format__ = 'json'\not.search('plan', limit=2)"))[-1]
        )
        assert hits[0]["name"] == "ot.plan"
        assert len(hits) == 2


FEW = [{**PLAN, "name": f"plan_{number:02}"} for number in range(30)]
MANY = [*FEW, *({**PLAN, "name": f"plan_more_{number:02}"} for number in range(20))]


@pytest.mark.nightly
def test_auto_publishes_nothing_if_the_definitions_are_large(tmp_path: Path) -> None:
    prepare(tmp_path, FEW, expose="auto")
    with connect(tmp_path) as client:
        tools = client.tools()[1:]
        assert (
            1_000
            < sum(len(tool.model_dump_json(by_alias=True, exclude_none=True)) for tool in tools) / 4
            < 1_500
        )
        before = list_names(client)
        assert before[1:5] == ["greet", "many", "now", "plan_00"]
        (tmp_path / "plans" / "tools.json").write_text(json.dumps(MANY), encoding="utf-8")
        assert not client.run("planner.plan_00()").is_error  # connects, and lists the tools again
        assert list_names(client) == before
        client.run("ot.reload()")
        assert list_names(client) == before
    with connect(tmp_path) as client:  # a new session decides again
        assert list_names(client) == ["run"]
        assert not client.run("planner.plan_more_00()").is_error
        assert "no tool 'plan_00'" in get_texts(client.call("plan_00", {}))[0]


def test_auto_counts_only_what_the_agent_may_call(tmp_path: Path) -> None:
    agents = {"narrow": {"tools": ["hello.greet"], "clients": ["narrow"]}}
    prepare(tmp_path, MANY, expose="auto", agents=agents)
    with connect(tmp_path) as client:
        assert list_names(client) == ["run"]
    with connect(tmp_path, client_info=Implementation(name="narrow", version="1")) as client:
        assert list_names(client) == ["run", "greet"]
        assert get_texts(client.call("greet", {"name": "Ada"})) == ["Hello, Ada!"]
        assert client.call("plan_00", {}).is_error


def test_tools_that_the_policy_denies_are_not_published(tmp_path: Path) -> None:
    """`now` reads; the other tools declare nothing. A rule with arguments denies some calls only."""
    some = {"tools": "hello.greet", "arguments": {"name": "Eve"}, "decision": "deny"}
    rules = [some, {"tools": "hello.many", "decision": "deny"}]
    agents = {
        "reader": {
            "permissions": ["read", "network"],
            "policy": "read-only",
            "clients": ["reader"],
        },
        "ruled": {"permissions": ["read", "network"], "policy": rules, "clients": ["ruled"]},
    }
    prepare(tmp_path, expose="both", agents=agents)
    with connect(tmp_path, client_info=Implementation(name="reader", version="1")) as client:
        assert list_names(client) == ["run", "now"]
        assert "the policy read-only denies" in get_texts(client.call("greet", {"name": "Ada"}))[0]
    with connect(tmp_path, client_info=Implementation(name="ruled", version="1")) as client:
        assert list_names(client) == ["run", "greet", "now", "plan"]


def test_a_large_result_of_a_direct_call_is_cut_and_linked(tmp_path: Path) -> None:
    prepare(tmp_path, expose="both", output={"max_inline_size": 2_000})
    with connect(tmp_path) as client:
        assert len(client.call("many", {"count": 10}).content) == 1
        result = client.call("many", {"count": 5_000})
        block, link = result.content
        assert isinstance(block, TextContent)
        text = block.text
        assert len(text) < 2_500
        assert '"number":1,' in text
        assert "[cut: the result has" in text
        assert result.structured_content is None
        assert isinstance(link, ResourceLink)
        (whole,) = client.portal.call(client.client.read_resource, str(link.uri)).contents
        assert isinstance(whole, TextResourceContents)
        assert json.loads(whole.text)[4_999]["number"] == 4_999
        handle = str(link.uri).rpartition("/")[2]
        found = client.run(f"ot.result(handle={handle!r}, search='\"number\":4711,')['lines']")
        assert json.loads(json.loads(get_texts(found)[-1])[0].rstrip(","))["number"] == 4_711
        large = client.call("plan", {"steps": ["long"] * 1_000})
        assert [block.type for block in large.content] == ["text", "resource_link"]
