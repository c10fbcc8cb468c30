"""Specification 1, the `ot` pack: what a model learns about OneTool by asking it."""

import json
import platform
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from ruamel.yaml import YAML
from tests.support import App, opened

from ot import tool
from ot.version import __version__


@tool("weather.search_city", permissions=["network"])
def search_city(name: str, days: int = 3) -> list[str]:
    """Search the forecast of a city.

    It is always sunny.

    Args:
        name: Which city.
        days: How far to look ahead.

    Example:
        weather.search_city(name="Bern")
    """
    return [name] * days


@tool("weather.Ping")
def ping():  # type: ignore[no-untyped-def] # noqa: ANN201 - a tool of which nothing is known but its name
    return "pong"


SETTINGS = {"prompts": {"packs": {"weather": "Ask for one city at a time."}}}
QUERIES = (
    "ot.health()",
    "ot.tools()",
    "ot.tools(info='list')",
    "ot.tools(info='full')",
    "ot.packs()",
    "ot.packs(info='list')",
)


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with opened(SETTINGS, (search_city, ping)) as app:
        yield app


def load_yaml_1_2(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(StringIO(text))


# --- ot.tools ----------------------------------------------------------------------------------------------


@pytest.mark.spec("ot-pack.tools.list-all-tools", "ot-pack.tools.info-level-min")
def test_all_tools_are_listed_with_name_and_description(app: App) -> None:
    listed = app.data("ot.tools()")
    assert [entry["name"] for entry in listed] == app.onetool.bus.list_tools()
    assert all(entry.keys() == {"name", "description"} for entry in listed)
    assert {"name": "weather.search_city", "description": "Search the forecast of a city."} in listed
    assert listed == app.data("ot.tools(info='min')")


@pytest.mark.spec("ot-pack.tools.filter-by-pattern")
@pytest.mark.parametrize("pattern", ["search_", "SEARCH_", "arch_c", "weather.s"])
def test_a_pattern_keeps_tools_whose_name_contains_it(app: App, pattern: str) -> None:
    assert app.data(f"ot.tools(pattern={pattern!r}, info='list')") == ["weather.search_city"]


@pytest.mark.spec("ot-pack.tools.filter-by-pattern")
def test_a_pattern_is_plain_text_and_no_expression(app: App) -> None:
    assert app.data("ot.tools(pattern='.*', info='list')") == []
    assert app.data("ot.tools(pattern='ping', info='list')") == ["weather.Ping"]


@pytest.mark.spec("ot-pack.tools.info-level-list")
def test_level_list_gives_bare_tool_names(app: App) -> None:
    assert app.data("ot.tools(info='list')") == app.onetool.bus.list_tools()


@pytest.mark.spec("ot-pack.tools.info-level-full")
def test_level_full_gives_all_that_is_known(app: App) -> None:
    assert app.data("ot.tools(pattern='search_city', info='full')") == [
        {
            "name": "weather.search_city",
            "signature": "weather.search_city(name: str, days: int = 3) -> list[str]",
            "description": "Search the forecast of a city.\n\nIt is always sunny.",
            "source": "local",
            "args": ["name: Which city.", "days: How far to look ahead."],
            "returns": "list[str]",
            "example": 'weather.search_city(name="Bern")',
        }
    ]


@pytest.mark.spec("ot-pack.tools.info-level-full")
def test_level_full_leaves_out_what_is_unknown(app: App) -> None:
    bare = {"name": "weather.Ping", "signature": "weather.Ping()", "description": "", "source": "local"}
    assert app.data("ot.tools(pattern='Ping', info='full')") == [bare]


# --- ot.health ---------------------------------------------------------------------------------------------


@pytest.mark.spec("ot-pack.health.show-health")
def test_health_reports_every_component(app: App) -> None:
    health = app.data("ot.health()")
    assert health["version"] == __version__
    assert health["python"] == platform.python_version()
    assert health["cwd"] == str(Path.cwd())
    assert health["registry"] == {"status": "ok", "tool_count": len(app.onetool.bus.list_tools())}
    assert health["proxy"] == {"status": "ok", "server_count": 0, "servers": {}}


# --- YAML in flow style ------------------------------------------------------------------------------------


@pytest.mark.spec("ot-pack.flow-style.flow-style-formatting")
def test_an_object_is_inline_in_its_line(app: App) -> None:
    lines = app.value("ot.health()").splitlines()
    count = len(app.onetool.bus.list_tools())
    assert f'version: "{__version__}"' in lines
    assert f"registry: {{status: ok, tool_count: {count}}}" in lines
    assert "proxy: {status: ok, server_count: 0, servers: {}}" in lines


@pytest.mark.spec("ot-pack.flow-style.flow-style-formatting")
def test_a_list_of_objects_is_a_block_of_them(app: App) -> None:
    assert app.value("ot.packs(pattern='m')") == (
        "- {name: machine, source: local, tool_count: 4}"  # each on a line of its own, were there more
    )
    lines = app.value("ot.tools()").splitlines()
    assert len(lines) == len(app.onetool.bus.list_tools())
    assert all(line.startswith("- {name: ") and line.endswith("}") for line in lines)


@pytest.mark.spec("ot-pack.flow-style.readability")
@pytest.mark.parametrize("query", QUERIES)
def test_output_loads_back_to_the_same_data(app: App, query: str) -> None:
    assert load_yaml_1_2(app.value(query)) == app.data(query)


@pytest.mark.spec("ot-pack.flow-style.readability")
@pytest.mark.parametrize("query", QUERIES)
def test_output_flows_for_two_levels_at_most(app: App, query: str) -> None:
    depth = deepest = 0
    for event in yaml.parse(app.value(query), yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent) and (depth or event.flow_style):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent) and depth:
            depth -= 1
        deepest = max(deepest, depth)
    assert deepest in {1, 2}


# --- ot.packs ----------------------------------------------------------------------------------------------


@pytest.mark.spec("ot-pack.packs.list-all-packs", "ot-pack.packs.info-level-min")
def test_all_packs_are_listed_with_their_facts(app: App) -> None:
    listed = app.data("ot.packs()")
    assert [entry["name"] for entry in listed] == ["machine", "ot", "weather"]
    assert {"name": "weather", "source": "local", "tool_count": 2} in listed
    assert all(entry.keys() == {"name", "source", "tool_count"} for entry in listed)
    assert listed == app.data("ot.packs(info='min')")


@pytest.mark.spec("ot-pack.packs.filter-by-pattern")
@pytest.mark.parametrize("pattern", ["weath", "EATHE", "weather"])
def test_a_pattern_keeps_packs_whose_name_contains_it(app: App, pattern: str) -> None:
    assert app.data(f"ot.packs(pattern={pattern!r}, info='list')") == ["weather"]


@pytest.mark.spec("ot-pack.packs.info-level-list")
def test_level_list_gives_bare_pack_names(app: App) -> None:
    assert app.data("ot.packs(info='list')") == ["machine", "ot", "weather"]


@pytest.mark.spec("ot-pack.packs.info-level-full")
def test_level_full_shows_a_pack_with_its_tools(app: App) -> None:
    text = app.value("ot.packs(pattern='weather', info='full')")
    assert text.startswith("# weather\n")
    assert "Ask for one city at a time." in text
    assert "weather.search_city(name: str, days: int = 3) -> list[str]: Search the forecast" in text
    assert "weather.Ping()" in text
    assert "machine" not in text


# --- ot.help -----------------------------------------------------------------------------------------------


@pytest.mark.spec("ot-pack.help.general-help-no-query")
@pytest.mark.parametrize("query", ["ot.help()", "ot.help(query='  ')"])
def test_help_alone_is_an_overview(app: App, query: str) -> None:
    text = app.value(query)
    discovery = ["ot.tools()", "ot.packs()", "ot.help(query=", "ot.health()"]
    levels = ['info="list"', 'info="min"', 'info="full"']
    assert not [part for part in (*discovery, *levels, "machine.disk()", "Tips:") if part not in text]


@pytest.mark.spec("ot-pack.help.general-help-no-query")
def test_examples_of_the_overview_work(app: App) -> None:
    examples = [line.strip() for line in app.value("ot.help()").partition("Call tools:")[2].splitlines()[1:5]]
    assert len(examples) == 4
    for example in examples:
        app.value(example.partition("   ")[0])


@pytest.mark.spec("ot-pack.help.exact-tool-lookup")
def test_the_name_of_a_tool_gives_everything_about_it(app: App) -> None:
    text = app.value("ot.help(query='machine.memory')")
    assert text.startswith("# machine.memory\n")
    expected = [
        "Memory of the machine: total and available.",
        "machine.memory(unit: Literal['bytes', 'MiB', 'GiB'] = 'MiB') -> dict[str, Any]",
        "- unit (Literal['bytes', 'MiB', 'GiB']) - In what to count.",
        "Returns: dict[str, Any]",
        'machine.memory(unit="GiB")',
        "https://onetool.beycom.online/reference/tools/machine/",
    ]
    assert not [part for part in expected if part not in text]


@pytest.mark.spec("ot-pack.help.exact-pack-lookup")
def test_the_name_of_a_pack_gives_its_tools(app: App) -> None:
    text = app.value("ot.help(query='weather')")
    assert text.startswith("# weather\n")
    assert "Ask for one city at a time." in text
    assert "weather.search_city(" in text
    assert "weather.Ping()" in text
    assert "https://onetool.beycom.online/reference/tools/machine/" in app.value("ot.help(query='machine')")


@pytest.mark.spec("ot-pack.help.no-matches")
def test_a_query_that_finds_nothing_says_so(app: App) -> None:
    text = app.value("ot.help(query='xyznonexistent')")
    assert "Nothing matches 'xyznonexistent'" in text
    assert "ot.tools()" in text
    assert "ot.packs()" in text


# --- ot.version --------------------------------------------------------------------------------------------


@pytest.mark.spec("ot-pack.version.get-version")
def test_the_version_is_a_plain_string(app: App) -> None:
    assert app.value("ot.version()") == __version__
    assert json.loads(app.value("[ot.version()]")) == [__version__]
