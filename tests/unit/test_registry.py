"""Names of tools: exact names, Python forms, aliases and suggestions for unknown names."""

from typing import Any

import pytest

from onetool.core.bus.sources import RegisteredTools
from onetool.core.names import python_name
from onetool.core.registry import Registry
from onetool.core.schema import Schema
from onetool.core.threads import ToolThreads
from onetool.core.tool import Tool
from onetool.errors import ToolError, ToolNotFound
from onetool.util.context import ToolContext


class NullBackend:
    async def invoke(self, _tool: Tool, _args: Any, _context: ToolContext) -> None:
        return None


def make_tool(name: str) -> Tool:
    return Tool(name, NullBackend(), Schema.from_json({}))


def make_registry(*names: str, **aliases: str) -> Registry:
    return Registry(make_tools(*names), aliases=aliases)


def make_tools(*names: str) -> RegisteredTools:
    made = RegisteredTools(ToolThreads())
    for name in names:
        made.add(make_tool(name))
    return made


def test_a_name_with_dashes_has_a_python_form() -> None:
    made = make_registry("everything.get-sum")
    assert made.find("everything.get_sum").name == "everything.get-sum"
    assert made.map_python_names("everything") == {"get_sum": "everything.get-sum"}
    assert python_name("my-server.get-sum/2") == "my_server.get_sum_2"


def test_tools_with_the_same_python_form_are_both_kept() -> None:
    made = make_registry("a.get-sum", "a.get_sum")
    assert made.find("a.get-sum").name == "a.get-sum"
    assert made.find("a.get_sum").name == "a.get_sum"


@pytest.mark.parametrize("name", ["", ".", "a.", ".b", "a b", "a@1", "a..b"])
def test_an_invalid_name_is_rejected(name: str) -> None:
    with pytest.raises(ToolError, match="invalid tool name"):
        make_registry(name)


def test_a_duplicate_is_rejected_and_the_first_tool_is_kept() -> None:
    made = make_tools("a.b")
    with pytest.raises(ToolError, match="already registered"):
        made.add(make_tool("a.b"))
    assert list(made.held) == ["a.b"]


def test_an_alias_finds_its_target() -> None:
    made = make_registry("brave.web_search", ws="brave.web_search")
    assert made.find("ws").name == "brave.web_search"


def test_circular_aliases_are_not_found() -> None:
    made = make_registry("a.b", x="y", y="x")
    with pytest.raises(ToolNotFound):
        made.find("x")


def test_the_pack_of_the_last_removed_tool_is_removed() -> None:
    source = make_tools("a.b", "c.d")
    source.remove("a.b")
    made = Registry(source)
    assert made.packs() == ["c"]
    assert not made.is_pack("a")
    with pytest.raises(ToolNotFound):
        made.find("a.b")


def test_an_unknown_tool_lists_similar_names_and_then_the_pack() -> None:
    made = make_registry("fs.read", "fs.write", "grep")
    with pytest.raises(ToolNotFound) as caught:
        made.find("fs.raed")
    message = str(caught.value)
    assert message.index("fs.read") < message.index("fs has: read, write")
    assert caught.value.nearest[0] == "fs.read"


def test_an_unknown_pack_lists_packs() -> None:
    with pytest.raises(ToolNotFound, match="Packs: fs"):
        make_registry("fs.read").find("zzz.qqq")


def test_the_first_source_wins_and_exact_names_precede_python_forms() -> None:
    first, second = make_tools("a.same", "a.get-sum"), make_tools("a.same", "a.get_sum", "b.only")
    made = Registry(first, second)
    assert made.find("a.same") is first.held["a.same"]
    assert made.find("a.get_sum") is second.held["a.get_sum"]
    assert made.find("a.get-sum") is first.held["a.get-sum"]
    assert made.names() == ["a.get-sum", "a.get_sum", "a.same", "b.only"]
    assert [tool.name for tool in sorted(made, key=lambda each: each.name)] == made.names()
    assert (len(made), made.count("a"), made.packs()) == (4, 3, ["a", "b"])
    first.remove("a.same")
    assert made.find("a.same") is second.held["a.same"]


def test_a_view_has_only_the_admitted_tools_and_their_packs() -> None:
    some = make_registry("a.b", "a.c", "d.e", short="d.e", other="a.b").only(
        lambda tool: tool.name != "d.e"
    )
    assert (some.names(), some.packs(), len(some), some.is_pack("d")) == (
        ["a.b", "a.c"],
        ["a"],
        2,
        False,
    )
    assert (some.get("d.e"), some.get("other"), list(some.aliases)) == (
        None,
        some.find("a.b"),
        ["other"],
    )
