"""Names: real ones, Python's form of them, aliases, and what is near a name that is not there."""

from typing import Any

import pytest

from onetool._tool import Tool
from onetool.backends.threads import ToolThreads
from onetool.bus.sources import RegisteredTools
from onetool.context import ToolContext
from onetool.errors import ToolError, ToolNotFound
from onetool.registry import Registry, python_name
from onetool.schema import Schema


class Nothing:
    async def invoke(self, _tool: Tool, _args: Any, _context: ToolContext) -> None:
        return None


def tool(name: str) -> Tool:
    return Tool(name, Nothing(), Schema.from_json({}))


def registry(*names: str, **aliases: str) -> Registry:
    return Registry(held(*names), aliases=aliases)


def held(*names: str) -> RegisteredTools:
    made = RegisteredTools(ToolThreads())
    for name in names:
        made.add(tool(name))
    return made


def test_a_name_with_dashes_has_a_python_form() -> None:
    made = registry("everything.get-sum")
    assert made.find("everything.get_sum").name == "everything.get-sum"
    assert made.map_python_names("everything") == {"get_sum": "everything.get-sum"}
    assert python_name("my-server.get-sum/2") == "my_server.get_sum_2"


def test_names_that_collide_in_python_both_stay() -> None:
    made = registry("a.get-sum", "a.get_sum")
    assert made.find("a.get-sum").name == "a.get-sum"
    assert made.find("a.get_sum").name == "a.get_sum"


@pytest.mark.parametrize("name", ["", ".", "a.", ".b", "a b", "a@1", "a..b"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ToolError, match="invalid tool name"):
        registry(name)


def test_a_duplicate_is_refused_and_the_first_stays() -> None:
    made = held("a.b")
    with pytest.raises(ToolError, match="already registered"):
        made.add(tool("a.b"))
    assert list(made.held) == ["a.b"]


def test_an_alias_finds_its_target() -> None:
    made = registry("brave.web_search", ws="brave.web_search")
    assert made.find("ws").name == "brave.web_search"


def test_aliases_in_a_circle_are_no_endless_loop() -> None:
    made = registry("a.b", x="y", y="x")
    with pytest.raises(ToolNotFound):
        made.find("x")


def test_what_is_removed_is_gone_with_its_pack() -> None:
    source = held("a.b", "c.d")
    source.remove("a.b")
    made = Registry(source)
    assert made.packs() == ["c"]
    assert not made.is_pack("a")
    with pytest.raises(ToolNotFound):
        made.find("a.b")


def test_an_unknown_tool_lists_near_names_then_the_pack() -> None:
    made = registry("fs.read", "fs.write", "grep")
    with pytest.raises(ToolNotFound) as caught:
        made.find("fs.raed")
    message = str(caught.value)
    assert message.index("fs.read") < message.index("fs has: read, write")
    assert caught.value.nearest[0] == "fs.read"


def test_an_unknown_pack_lists_packs() -> None:
    with pytest.raises(ToolNotFound, match="Packs: fs"):
        registry("fs.read").find("zzz.qqq")


def test_of_two_sources_with_a_name_the_first_is_meant_and_the_exact_name_before_its_form_in_python() -> None:
    first, second = held("a.same", "a.get-sum"), held("a.same", "a.get_sum", "b.only")
    made = Registry(first, second)
    assert made.find("a.same") is first.held["a.same"]
    assert made.find("a.get_sum") is second.held["a.get_sum"]
    assert made.find("a.get-sum") is first.held["a.get-sum"]
    assert made.names() == ["a.get-sum", "a.get_sum", "a.same", "b.only"]
    assert [tool.name for tool in sorted(made, key=lambda each: each.name)] == made.names()
    assert (len(made), made.count("a"), made.packs()) == (4, 3, ["a", "b"])
    first.remove("a.same")
    assert made.find("a.same") is second.held["a.same"]


def test_a_view_has_the_tools_that_are_admitted_and_their_packs() -> None:
    some = registry("a.b", "a.c", "d.e", short="d.e", other="a.b").only(lambda tool: tool.name != "d.e")
    assert (some.names(), some.packs(), len(some), some.is_pack("d")) == (["a.b", "a.c"], ["a"], 2, False)
    assert (some.get("d.e"), some.get("other"), list(some.aliases)) == (None, some.find("a.b"), ["other"])
