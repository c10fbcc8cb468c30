"""Scenarios of specifications 1 and 2 about proxied servers, with a real server."""

from collections.abc import Iterator

import pytest
from tests.proxy_support import hostile_server
from tests.support import App, eventually, open_app


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with open_app(
        {"servers": {"github": hostile_server("github"), "gone": hostile_server("dies")}}
    ) as app:
        yield app


@pytest.mark.slow
@pytest.mark.spec("ot-pack.tools.proxy-tool-signature-from-schema")
def test_the_signature_of_a_proxied_tool_is_based_on_its_schema(app: App) -> None:
    (search,) = app.data("ot.tools(pattern='github.search', info='full')")
    assert (
        search["signature"] == "github.search_code(query: str, repo: str = '...', count: int = 5)"
    )
    assert search["source"] == "proxy:github"


@pytest.mark.spec("ot-pack.tools.proxy-tool-arguments-from-schema")
def test_the_arguments_of_a_proxied_tool_are_described_by_its_schema(app: App) -> None:
    (search,) = app.data("ot.tools(pattern='github.search', info='full')")
    assert search["args"] == ["repo: Where to look.", "query: What to look for."]


@pytest.mark.spec("ot-pack.packs.proxy-pack")
def test_a_proxied_server_is_a_pack(app: App) -> None:
    text = app.value("ot.packs(pattern='github', info='full')")
    assert "search" in text
    assert "proxy" in text
    assert {"name": "github", "source": "proxy", "tool_count": 1} in app.data("ot.packs()")


@pytest.mark.spec("ot-pack.health.disconnected-server")
def test_a_disconnected_server_degrades_the_proxy(app: App) -> None:
    assert eventually(lambda: app.data("ot.health()")["proxy"]["servers"]["gone"] != "discovering")
    proxy = app.data("ot.health()")["proxy"]
    assert proxy["servers"]["gone"] == "disconnected"
    assert proxy["status"] == "degraded"
    assert proxy["server_count"] == 2


@pytest.mark.spec("run-tool.prefix-scope.mcp-proxy-tool-prefix-matching")
def test_argument_names_of_a_proxied_tool_may_be_abbreviated(app: App) -> None:
    assert app.data("github.search_code(q='cells', r='onetool')") == {
        "query": "cells",
        "repo": "onetool",
    }
    assert app.data("github.search_code(que='cells')") == {"query": "cells"}
