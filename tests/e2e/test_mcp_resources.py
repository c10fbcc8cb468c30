"""MCP resources for tools and MCP prompts for snippets, in both protocol versions."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
import yaml
from mcp import Client, MCPError
from mcp_types import (
    INVALID_PARAMS,
    GetPromptResult,
    Prompt,
    Resource,
    TextContent,
    TextResourceContents,
)
from tests.support import App, Connection, configure, connect, get_texts, open_app

from onetool.core.tool import tool
from onetool.server.mcp.mcp_server import OneToolServer

ERAS = ["auto", "legacy"]
SNIPPETS: dict[str, Any] = {
    "greet": {
        "description": "Greet somebody",
        "params": {"who": {"description": "whom to greet"}, "loud": {"default": False}},
        "body": "'Hello {{ who }}' + ('!' if {{ loud }} else '')",
    },
    "fenced": {"body": "'''\n```\ninside\n```\n'''"},
    "torn": {"body": "{% if %}"},
}
ODD_NAMES = [
    "odd.a/b",
    "odd.50%",
    "odd.%2F",
    "odd.what?x=1#y",
    "odd.größe",
    "odd.工具",
    "odd.a+b&c",
    "odd.'\"<b>",
    "bare",
]


def call_client(client: Connection, method: str, *positional: Any, **named: Any) -> Any:
    return client.portal.call(partial(getattr(client.client, method), *positional, **named))


def expect_error(client: Connection, method: str, *positional: Any, **named: Any) -> str:
    with pytest.raises(MCPError) as caught:
        call_client(client, method, *positional, **named)
    assert caught.value.code == INVALID_PARAMS
    return str(caught.value)


def list_all(client: Connection, kind: str) -> list[Any]:
    """Return all pages of a list."""
    found, cursor = [], None
    while True:
        page = call_client(client, f"list_{kind}", cursor=cursor, cache_mode="bypass")
        found += getattr(page, kind)
        cursor = page.next_cursor
        if cursor is None:
            return found


def read_text(client: Connection, uri: str) -> str:
    (content,) = call_client(client, "read_resource", uri, cache_mode="bypass").contents
    assert isinstance(content, TextResourceContents)
    assert content.uri == uri
    return content.text


def get_prompt_text(client: Connection, name: str, arguments: dict[str, str] | None = None) -> str:
    result: GetPromptResult = call_client(client, "get_prompt", name, arguments)
    (message,) = result.messages
    assert message.role == "user"
    assert isinstance(message.content, TextContent)
    return message.content.text


@contextmanager
def connect_in_process(app: App, mode: str) -> Iterator[Connection]:
    """Yield a client of an app in this process."""
    client = Client(OneToolServer(app.onetool), mode=mode)
    with app.portal.wrap_async_context_manager(client):
        yield Connection(app.portal, client, Path())


@pytest.fixture(scope="module", params=ERAS)
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Connection]:
    home = tmp_path_factory.mktemp("home")
    configure(home, yaml.safe_dump({"snippets": SNIPPETS}, sort_keys=False))
    with connect(home, request.param) as client:
        yield client


# --- resources ------------------------------------------------------------------------------------


def test_the_server_declares_resources_and_prompts(client: Connection) -> None:
    offered = client.client.server_capabilities
    assert offered is not None
    assert offered.resources is not None
    assert offered.prompts is not None


def test_resources_are_the_list_of_tools_and_each_tool(client: Connection) -> None:
    first, *others = list_all(client, "resources")
    assert first.uri == "ot://tools"
    names = yaml.safe_load(get_texts(client.run("ot.tools(info='list')"))[0])
    assert [resource.name for resource in others] == names
    assert {resource.mime_type for resource in others} == {"text/markdown"}


def test_the_template_resolves_to_a_tool(client: Connection) -> None:
    (template,) = call_client(client, "list_resource_templates").resource_templates
    assert template.uri_template == "ot://tool/{name}"
    uri = template.uri_template.replace("{name}", "machine.disk")
    assert read_text(client, uri).startswith("# machine.disk\n")


def test_the_tools_resource_equals_ot_tools(client: Connection) -> None:
    assert read_text(client, "ot://tools") == get_texts(client.run("ot.tools()"))[0]


def test_the_resource_of_a_tool_equals_ot_help(client: Connection) -> None:
    for name in ("machine.disk", "ot.result"):
        expected = get_texts(client.run(f"ot.help(query={name!r}, info='full')"))[0]
        assert read_text(client, f"ot://tool/{name}") == expected


@pytest.mark.parametrize(
    "uri",
    [
        "ot://packs",
        "ot://tool/",
        "ot://tool/nothing",
        "ot://tools/machine.disk",
        "ot://tool/../tools",
        "ot://tool/%2e%2e%2f",
        "ot://tool/%ff%fe",
        "ot://tool/" + "x" * 10_000,
        "file:///etc/passwd",
        "https://example.org/",
        "",
    ],
)
def test_an_unknown_resource_is_an_error_that_names_the_list(client: Connection, uri: str) -> None:
    message = expect_error(client, "read_resource", uri)
    assert "ot://tools" in message
    assert len(message) < 1000


def test_a_misspelled_tool_gets_the_nearest_uri(client: Connection) -> None:
    assert "Did you mean ot://tool/machine.disk?" in expect_error(
        client, "read_resource", "ot://tool/machine.dsk"
    )


@pytest.mark.parametrize("kind", ["resources", "prompts"])
@pytest.mark.parametrize("cursor", ["MTIz", "-1", "1e3", "٣", "9" * 30, " ", ""])
def test_a_cursor_of_another_list_is_an_error(client: Connection, kind: str, cursor: str) -> None:
    assert "invalid cursor" in expect_error(client, f"list_{kind}", cursor=cursor)


def test_a_cursor_past_the_end_returns_an_empty_page(client: Connection) -> None:
    page = call_client(client, "list_resources", cursor="999999")
    assert (page.resources, page.next_cursor) == ([], None)


def make_tools(names: list[str]) -> Iterator[Any]:
    for name in names:

        @tool(name)
        def answer() -> str:
            """Give an answer."""
            return "yes"

        yield answer


@pytest.mark.parametrize("mode", ERAS)
def test_tools_with_special_characters_can_be_read_by_their_uri(mode: str) -> None:
    with open_app(tools=make_tools(ODD_NAMES)) as app, connect_in_process(app, mode) as client:
        listed: dict[str, Resource] = {
            resource.name: resource for resource in list_all(client, "resources")
        }
        for name in ODD_NAMES:
            assert unquote(listed[name].uri) == f"ot://tool/{name}"
            assert (
                listed[name].uri == f"ot://tool/{quote(name, safe='')}"
            )  # the same as the expanded template
            assert read_text(client, listed[name].uri).startswith(f"# {name}\n")


@pytest.mark.parametrize("mode", ERAS)
def test_tools_are_paginated(mode: str) -> None:
    names = [f"many.tool{number:04}" for number in range(1200)]
    with open_app(tools=make_tools(names)) as app, connect_in_process(app, mode) as client:
        first = call_client(client, "list_resources")
        assert first.next_cursor is not None
        assert len(first.resources) < 600
        resources = list_all(client, "resources")
        assert [resource.name for resource in resources] == ["tools", *app.onetool.registry.names()]
        assert len({resource.uri for resource in resources}) == len(resources)
        assert read_text(client, "ot://tool/many.tool1199").startswith("# many.tool1199\n")


@pytest.mark.parametrize("mode", ERAS)
def test_added_and_removed_tools_are_reflected(mode: str) -> None:
    with open_app() as app, connect_in_process(app, mode) as client:
        (late,) = make_tools(["late.tool"])
        app.portal.call(app.onetool.bus.register_tool, late)
        assert "late.tool" in [resource.name for resource in list_all(client, "resources")]
        app.portal.call(app.onetool.bus.unregister_tool, "late.tool")
        assert "late.tool" not in [resource.name for resource in list_all(client, "resources")]
        assert "no resource" in expect_error(client, "read_resource", "ot://tool/late.tool")


# --- prompts --------------------------------------------------------------------------------------


def test_every_snippet_has_a_prompt(client: Connection) -> None:
    prompts: dict[str, Prompt] = {prompt.name: prompt for prompt in list_all(client, "prompts")}
    assert sorted(prompts) == sorted(SNIPPETS)
    greet = prompts["greet"]
    assert greet.description == "Greet somebody"
    assert [(one.name, one.description, one.required) for one in greet.arguments or []] == [
        ("who", "whom to greet", True),
        ("loud", None, False),
    ]


def test_a_prompt_contains_the_expanded_snippet(client: Connection) -> None:
    text = get_prompt_text(client, "greet", {"who": "you", "loud": "true"})
    code = text.partition("```python\n")[2].partition("\n```")[0]
    assert get_texts(client.run(code)) == ["Hello you!"]
    assert get_texts(client.run("$greet who=you loud=true")) == ["Hello you!"]


def test_a_value_of_a_prompt_never_becomes_code(client: Connection) -> None:
    hostile = "' + str(1 / 0) + '"
    code = (
        get_prompt_text(client, "greet", {"who": hostile})
        .partition("```python\n")[2]
        .partition("\n```")[0]
    )
    assert get_texts(client.run(code)) == [f"Hello {hostile}"]


def test_the_code_fence_of_a_prompt_is_longer_than_fences_inside(client: Connection) -> None:
    text = get_prompt_text(client, "fenced")
    assert text.partition("````python\n")[2].partition("\n````")[0] == SNIPPETS["fenced"]["body"]
    code = text[text.index("````") :]
    assert get_texts(client.run(code)) == ["\n```\ninside\n```\n"]


def test_a_prompt_name_may_start_with_a_dollar_sign(client: Connection) -> None:
    assert get_prompt_text(client, "$greet", {"who": "you"}) == get_prompt_text(
        client, "greet", {"who": "you"}
    )


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("greeet", {"who": "me"}, "unknown snippet $greeet. Did you mean $greet?"),
        ("", None, "unknown snippet $"),
        ("greet", None, "$greet requires who. Call it as: $greet who=… [loud=False]"),
        ("greet", {"loud": "true"}, "$greet requires who"),
        (
            "greet",
            {"who": "me", "volume": "11"},
            "$greet has no parameter 'volume'. Call it as: $greet who=…",
        ),
        ("torn", None, "cannot render the body of $torn: line 1"),
    ],
)
def test_invalid_prompt_requests_are_errors(
    client: Connection, name: str, arguments: dict[str, str] | None, expected: str
) -> None:
    assert expected in expect_error(client, "get_prompt", name, arguments)


@pytest.mark.parametrize("mode", ERAS)
def test_prompts_are_paginated(mode: str) -> None:
    snippets = {f"s{number:04}": {"body": str(number)} for number in range(1100)}
    with open_app({"snippets": snippets}) as app, connect_in_process(app, mode) as client:
        assert call_client(client, "list_prompts").next_cursor is not None
        assert [prompt.name for prompt in list_all(client, "prompts")] == sorted(snippets)


# --- change ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ERAS)
def test_resources_and_prompts_follow_a_successful_reload(tmp_path: Path, mode: str) -> None:
    configure(tmp_path, "snippets: {one: {body: '1'}}")
    with connect(tmp_path, mode) as client:
        assert [prompt.name for prompt in list_all(client, "prompts")] == ["one"]
        assert "https://example.org/" not in read_text(client, "ot://tool/machine.disk")
        configure(tmp_path, "{snippets: {two: {body: '2'}}, docs_url: 'https://example.org/'}")
        assert get_texts(client.run("ot.reload()")) == ["OK: Configuration reloaded"]
        configure(tmp_path, "snippets: [")
        assert client.run("ot.reload()").is_error
        assert [prompt.name for prompt in list_all(client, "prompts")] == ["two"]
        assert "https://example.org/machine/" in read_text(client, "ot://tool/machine.disk")
        assert "unknown snippet $one" in expect_error(client, "get_prompt", "one")


def test_without_snippets_there_are_no_prompts(tmp_path: Path) -> None:
    with connect(tmp_path) as client:
        assert list_all(client, "prompts") == []
        assert "unknown snippet $greet. Snippets: none." in expect_error(
            client, "get_prompt", "greet"
        )


def test_with_an_invalid_configuration_there_are_no_prompts(tmp_path: Path) -> None:
    configure(tmp_path, "snipets: {}")
    with connect(tmp_path) as client:
        assert list_all(client, "prompts") == []
        assert read_text(client, "ot://tool/machine.disk").startswith("# machine.disk\n")
