"""Specification 4, stored tools in code: packs of a run, versions, enabling, permissions and
secrets.
"""

import base64
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from anyio.from_thread import start_blocking_portal
from tests.bundles_support import open_store
from tests.http_support import Site, page, serve_site
from tests.rest_support import Rest, draft, http_draft, new_id, serve_app
from tests.support import App, eventually, give, search

from onetool import OneTool, ToolContext, tool
from onetool.errors import BundleError
from onetool.settings.load import Loaded
from onetool.settings.model import Settings
from onetool.settings.paths import Directories
from onetool.sources.bundles import BundleStore

SECRET = "canary-4f1d9c77ab"
PASSWORD = "wicked & spaced/ünï canary"
SECRETS = {"WEATHER_KEY": SECRET, "WEATHER_PASSWORD": PASSWORD}
OTHER_ORIGINS = {"weather": {"WEATHER_KEY": ["https://127.0.0.1", "http://127.0.0.1:1"]}}
NEAR: dict[str, Any] = {"allowedHosts": ["127.0.0.1"], "allowPrivateAddresses": True}
SETTINGS: dict[str, Any] = {
    "http": NEAR,
    "agents": {
        "default": {"permissions": ["read", "network"]},
        "hermit": {"permissions": ["read"]},
        "narrow": {"permissions": ["network"], "tools": ["weather.*"]},
    },
}


@tool("sample.where")
def where(context: ToolContext, city: str = "") -> list[str]:
    """Return the agent and the city."""
    return [context.agent_id, city]


@tool("sample.program", permissions=["exec"])
def program() -> None:
    """Start a program."""
    raise AssertionError("it must not be called")


TOOLS = (give, search, where, program)


@contextmanager
def open_app_with_state(
    directory: Path, settings: Mapping[str, Any] | None = None, tools: tuple[object, ...] = TOOLS
) -> Iterator[App]:
    """Start OneTool with its state and its log in the directory."""
    checked = Settings.model_validate(SETTINGS if settings is None else settings)
    loaded = Loaded(checked, SECRETS, (), (), Directories(working_dir=directory, user=directory))
    with start_blocking_portal("asyncio") as portal:
        onetool = OneTool(read=lambda: loaded)
        with portal.wrap_async_context_manager(onetool) as opened:
            for one in tools:
                opened.bus.register_tool(one)
            yield App(portal, opened)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with open_app_with_state(tmp_path) as app:
        yield app


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serve_site() as site:
        yield site


@pytest.fixture
def other(tmp_path: Path) -> Iterator[BundleStore]:
    """Open the store as another process would: it shares only the directory with the app."""
    with open_store(tmp_path / "bundles") as store:
        yield store


def put(store: BundleStore, slug: str, tools: Mapping[str, Mapping[str, Any]], **more: Any) -> str:
    """Store a bundle with these tools, given as `slug@version`, and return its id."""
    bundle = new_id()
    store.put_bundle(bundle, {"slug": slug, "displayName": slug, "isEnabled": True, **more})
    store.put_many(bundle, [(*name.split("@"), body) for name, body in tools.items()])  # type: ignore[misc]
    return bundle


def tool_returning(value: object) -> dict[str, Any]:
    """Return a tool that returns this value, the default of its argument."""
    schema = {"type": "object", "properties": {"value": {"default": value}}}
    return {**draft(), "argSchema": schema}


def forecast(site: Site, **impl: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "A city."},
            "days": {"type": "integer", "default": 3},
        },
        "required": ["city"],
        "additionalProperties": False,
    }
    given = {"query": {"q": "${city}", "n": "${days}"}, "response": {"selector": "query"}, **impl}
    return {
        **http_draft(site.url("/echo"), **given),
        "argSchema": schema,
        "description": "The weather of some days.",
    }


# --- packs ----------------------------------------------------------------------------------------


@pytest.mark.spec("bundles.pack.called-from-code")
def test_a_stored_tool_is_called_like_any_other(app: App, other: BundleStore, site: Site) -> None:
    put(other, "weather", {"forecast@1.0": forecast(site)})
    assert app.data("weather.forecast(city='Oslo')") == {"q": ["Oslo"], "n": ["3"]}
    assert app.data("weather.forecast('Oslo', d=5)") == {"q": ["Oslo"], "n": ["5"]}
    assert app.data("ot.call('weather.forecast', city='Rom')") == {"q": ["Rom"], "n": ["3"]}
    assert app.data("f = weather.forecast\n[f(city=city)['q'] for city in ('A', 'B')]") == [
        ["A"],
        ["B"],
    ]
    error = app.failure("weather.forecast(town='Oslo')")
    assert "weather.forecast(city: str, days: int = 3)" in error


@pytest.mark.spec("bundles.pack.other-characters-become-underscores")
@pytest.mark.parametrize(
    ("slug", "tool_slug", "code"),
    [
        ("my-weather", "seven-days", "my_weather.seven_days"),
        ("wetter-für-köln", "höhe-über-null", "wetter_für_köln.höhe_über_null"),
        ("天气", "预报-7", "天气.预报_7"),
    ],
)
def test_characters_that_python_names_cannot_contain_become_underscores(
    app: App, other: BundleStore, slug: str, tool_slug: str, code: str
) -> None:
    put(other, slug, {f"{tool_slug}@1": tool_returning("it")})
    assert app.data(f"ot.call('{slug}.{tool_slug}')") == "it"
    assert app.data(f"{code}()") == "it"


@pytest.mark.spec("bundles.pack.newest-enabled-version-answers", "bundles.version.opaque")
def test_the_last_modified_enabled_version_is_called(app: App, other: BundleStore) -> None:
    bundle = put(
        other,
        "weather",
        {
            "now@10.0": tool_returning("first"),
            "now@9": tool_returning("second"),
            "now@1.0": tool_returning("third"),
        },
    )
    for version, left in (("1.0", "second"), ("9", "first")):
        other.set_tool_enabled(bundle, "now", version, False)
        assert app.data("weather.now()") == left
    other.set_tool_enabled(bundle, "now", "1.0", True)
    assert app.data("weather.now()") == "third"
    other.put_tool(bundle, "now", "0", tool_returning("fourth"))
    assert app.data("weather.now()") == "fourth"
    other.delete_tool(bundle, "now", "0")
    assert app.data("weather.now()") == "third"


@pytest.mark.spec("bundles.pack.version-is-chosen")
def test_a_version_is_selected_by_argument_or_by_name(app: App, other: BundleStore) -> None:
    put(
        other,
        "my-weather",
        {"now-here@1.0": tool_returning("old"), "now-here@2.0": tool_returning("new")},
    )
    assert app.data("my_weather.now_here(__version__='1.0')") == "old"
    assert app.data("ot.call('my-weather.now-here@1.0')") == "old"
    assert app.data("ot.call('my_weather.now_here@2.0')") == "new"
    assert app.data("ot.call('my-weather.now-here', __version__='1.0', value='said')") == "said"
    for code in ("my_weather.now_here(__version__='3')", "ot.call('my-weather.now-here@3')"):
        assert "my-weather.now-here" in app.failure(code) or "my_weather.now_here" in app.failure(
            code
        )
        assert app.run(code).error == "not_found"


@pytest.mark.spec("bundles.pack.collisions-stay-reachable")
def test_colliding_names_are_callable_and_reported(app: App, other: BundleStore) -> None:
    put(other, "see", {"a-b@1": tool_returning("dash"), "A-B@1": tool_returning("large")})
    put(other, "s-e", {"x@1": tool_returning("one")})
    put(other, "s-é", {"x@1": tool_returning("two")})
    assert app.data("[see.a_b(), see.A_B(), ot.call('s-e.x'), ot.call('s-é.x')]") == [
        "dash",
        "large",
        "one",
        "two",
    ]
    put(other, "sample", {"now@1": tool_returning("stored")})
    (reported,) = [
        problem for problem in app.data("ot.health()")["problems"] if "bundle sample" in problem
    ]
    assert reported.startswith("bundle sample is not used: another pack has its name")
    bundles = {bundle.slug: bundle.id for bundle in other.list_bundles().items}
    other.delete_tool(bundles["sample"], "now", "1")
    other.delete_bundle(bundles["sample"])
    assert eventually(
        lambda: (
            not any("bundle sample" in problem for problem in app.data("ot.health()")["problems"])
        )
    )


@pytest.mark.spec("bundles.pack.collisions-stay-reachable")
def test_two_bundles_with_one_name_in_code_are_both_reachable(app: App, other: BundleStore) -> None:
    put(other, "a-b", {"x-y@1": tool_returning("first"), "only@1": tool_returning("mine")})
    put(
        other, "a-ﬁ", {"x@1": tool_returning("ligature")}
    )  # Python normalizes the ligature to two letters, so code cannot name it
    put(other, "weather", {"x-y@1": tool_returning("dash"), "x-y@2": tool_returning("newer")})
    assert app.data("[ot.call('a-b.x-y'), a_b.only(), ot.call('a-ﬁ.x')]") == [
        "first",
        "mine",
        "ligature",
    ]


def test_a_bundle_never_joins_another_pack(app: App, other: BundleStore) -> None:
    put(other, "sample", {"give@1": tool_returning("stored"), "more@1": tool_returning("more")})
    assert app.data("sample.give('registered')") == "registered"
    for name in ("sample.more", "sample.more@1", "sample.give@1"):
        assert app.run(f"ot.call('{name}')").error == "not_found"
    assert "sample.more" not in app.value("ot.tools(pattern='sample', info='list')")
    assert "sample.more" not in app.value("ot.search('sample more')")


@pytest.mark.parametrize("slug", ["fs", "ot", "json", "HTTP", "llm", "machine"])
def test_a_bundle_cannot_have_the_name_of_a_built_in_pack(other: BundleStore, slug: str) -> None:
    body = {"slug": slug, "displayName": "X", "isEnabled": True}
    with pytest.raises(
        BundleError, match="is the name of a built-in pack; choose another, such as"
    ):
        other.put_bundle(new_id(), body)


def test_an_alias_may_refer_to_a_stored_tool(tmp_path: Path, other: BundleStore) -> None:
    put(
        other, "weather", {"now-here@1": tool_returning("old"), "now-here@2": tool_returning("new")}
    )
    aliases = {"wn": "weather.now-here", "first": "weather.now-here@1"}
    with open_app_with_state(tmp_path, {**SETTINGS, "aliases": aliases}) as app:
        assert app.data("[wn(), ot.call('wn'), first()]") == ["new", "new", "old"]


@pytest.mark.slow
def test_help_describes_a_bundle_and_its_tools(app: App, other: BundleStore, site: Site) -> None:
    put(other, "weather", {"forecast@1.0": forecast(site)}, description="All about clouds.")
    output = app.value("ot.help('weather')")
    assert "All about clouds." in output
    assert "weather.forecast" in output
    output = app.value("ot.help('weather.forecast')")
    assert "weather.forecast(city: str, days: int = 3)" in output
    assert "The weather of some days." in output
    assert (
        app.data("[hit['name'] for hit in ot.search('weather of some days')]")[0]
        == "weather.forecast"
    )
    assert {"name": "weather", "source": "bundle", "tool_count": 1} in app.data("ot.packs()")
    assert app.data("ot.tools(pattern='weather', info='list')") == ["weather.forecast"]


# --- types ----------------------------------------------------------------------------------------


@pytest.mark.spec("bundles.type.python-or-http", "bundles.type.go-means-python")
@pytest.mark.parametrize("kind", ["python", "go"])
def test_a_function_gets_the_context_of_its_caller(app: App, other: BundleStore, kind: str) -> None:
    put(other, "weather", {"where@1": {**draft("sample.where"), "type": kind}})
    assert app.data("weather.where(city='Oslo')") == ["default", "Oslo"]
    assert app.run("weather.where(city='Oslo')", agent="hermit").text == '["hermit","Oslo"]'


@pytest.mark.spec("bundles.type.function-disappears", "bundles.type.function-returns")
def test_a_tool_is_disabled_while_its_function_is_missing(
    tmp_path: Path, app: App, other: BundleStore
) -> None:
    bundle = put(other, "weather", {"where@1": draft("sample.where")})
    files = {file: file.read_bytes() for file in (tmp_path / "bundles").rglob("where@1.json")}
    assert app.data("weather.where()") == ["default", ""]
    app.onetool.bus.unregister_tool("sample.where")
    message = app.failure("weather.where()")
    assert "weather.where is disabled: its function sample.where does not exist" in message
    output = app.onetool.bundles.apply_state(other.get_tool(bundle, "where", "1"))
    assert (output.in_use, output.is_enabled) == (False, True)
    assert "sample.where" in (output.disabled_reason or "")
    app.onetool.bus.register_tool(where)
    assert app.data("weather.where()") == ["default", ""]
    assert {file: file.read_bytes() for file in files} == files


def test_a_tool_that_refers_to_itself_is_an_error(app: App, other: BundleStore) -> None:
    put(
        other,
        "round",
        {"a@1": draft("round.b"), "b@1": draft("round.a"), "self@1": draft("round.self")},
    )
    for name in ("a", "self"):
        answer = app.run(f"round.{name}()")
        assert answer.is_error
        assert "Traceback" not in answer.text
    assert app.data("sample.give(1)") == 1


# --- enabling, and other processes ----------------------------------------------------------------


def test_the_next_call_sees_a_change_of_another_process(app: App, other: BundleStore) -> None:
    assert "weather" in app.failure("weather.now()")
    bundle = put(other, "weather", {"now@1": tool_returning("one")})
    assert app.call("weather.now").unwrap() == "one"
    other.put_tool(bundle, "now", "2", tool_returning("two"))
    assert app.call("weather.now").unwrap() == "two"
    other.set_bundle_enabled(bundle, False)
    assert "`onetool bundles enable weather`" in str(app.call("weather.now").error)
    other.set_bundle_enabled(bundle, True)
    other.put_bundle(bundle, {"slug": "climate", "displayName": "x", "isEnabled": True})
    assert app.call("climate.now").unwrap() == "two"
    assert app.call("weather.now").error is not None
    for version in ("1", "2"):
        other.delete_tool(bundle, "now", version)
    assert app.call("climate.now").error is not None
    assert app.call("climate.now@1").error is not None
    other.delete_bundle(bundle)
    assert not app.onetool.registry.is_pack("climate")


def test_a_bundle_disabled_during_a_run_is_disabled_for_the_next_call(
    tmp_path: Path, other: BundleStore
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    @tool("sample.pause")
    def pause() -> str:
        """Wait until the test continues."""
        asked.set()
        return "late" if not go_on.wait(30) else "done"

    bundle = put(
        other, "weather", {"now@1": tool_returning("sunny"), "pause@1": draft("sample.pause")}
    )
    code = "before = weather.now()\nwaited = weather.pause()\ntry:\n    after = weather.now()\n"
    code += "except ToolError as error:\n    after = str(error)\n[before, waited, after]"
    with open_app_with_state(tmp_path, tools=(*TOOLS, pause)) as app:
        running = app.start(code)
        assert asked.wait(30)
        other.set_bundle_enabled(bundle, False)
        go_on.set()
        before, waited, after = json.loads(running.result(30).text)
    assert (before, waited) == ("sunny", "done")  # calls in flight complete
    assert "bundle weather is disabled" in after


# --- permissions ----------------------------------------------------------------------------------


def test_an_http_tool_requires_the_network_permission(
    app: App, other: BundleStore, site: Site
) -> None:
    put(other, "weather", {"forecast@1": forecast(site)})
    before = len(site.requests)
    answer = app.run("weather.forecast(city='Oslo')", agent="hermit")
    assert answer.error == "permission_denied"
    assert "requires network permission but agent only has [read]" in answer.text
    assert len(site.requests) == before


def test_a_stored_tool_requires_the_permissions_of_its_function(
    app: App, other: BundleStore
) -> None:
    put(other, "weather", {"program@1": draft("sample.program"), "write@1": draft("fs.write")})
    assert app.run("weather.program()").error == "permission_denied"
    assert app.run("weather.write(path='x', content='y')").error == "permission_denied"


def test_a_stored_tool_cannot_call_a_tool_that_the_agent_may_not_call(
    app: App, other: BundleStore
) -> None:
    put(other, "weather", {"where@1": draft("sample.where")})
    rejected = app.call("weather.where", {}, "narrow")
    assert (rejected.ok, rejected.ran) == (False, False)
    assert "agent narrow may not call sample.where" in str(rejected.error)


@pytest.mark.slow
def test_an_agent_can_be_restricted_to_a_bundle(app: App, other: BundleStore, site: Site) -> None:
    put(other, "weather", {"forecast@1": forecast(site)})
    put(other, "climate", {"now@1": tool_returning("mild")})
    put(other, "weather-2", {"now@1": tool_returning("x")})
    assert app.call("weather.forecast", {"city": "Oslo"}, "narrow").unwrap() == {
        "q": ["Oslo"],
        "n": ["3"],
    }
    assert app.call("weather.forecast@1", {"city": "Oslo"}, "narrow").ok
    for name in ("climate.now", "climate.now@1", "weather-2.now", "weather_2.now", "sample.give"):
        rejected = app.call(name, {}, "narrow")
        assert (rejected.ok, rejected.ran) == (False, False)
        assert "may not call" in str(rejected.error)
    for code in (
        "ot.packs(info='list')",
        "ot.tools(info='list')",
        "ot.help('climate')",
        "ot.search('climate')",
    ):
        output = app.run(code, agent="narrow").text
        assert "climate.now" not in output
        assert "climate" not in output.replace("'climate'", "")
    assert "weather" in app.run("ot.packs(info='list')", agent="narrow").text


# --- call counts ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.spec("bundles.usage.exact", "bundles.usage.apart")
def test_calls_of_all_processes_are_counted_exactly(tmp_path: Path, other: BundleStore) -> None:
    bundle = put(
        other,
        "weather",
        {
            "now@1": tool_returning("x"),
            "now@2": tool_returning("y"),
            "lost@1": draft("sample.missing"),
        },
    )
    files = {file: file.read_bytes() for file in (tmp_path / "bundles").rglob("*@*.json")}
    with open_app_with_state(tmp_path) as one, open_app_with_state(tmp_path) as another:
        for app in (one, another):
            app.value("for _ in range(20): weather.now()\nweather.now(__version__='1')")
            app.call("weather.now")
            app.failure("weather.now(unknown__=1) if 0 else weather.lost()")
        one.call("weather.now", {}, "hermit").unwrap()
    counted = {(tool.slug, tool.version): tool for tool in other.list_bundle_tools(bundle)}
    assert counted["now", "1"].call_count == 2
    assert counted["now", "2"].call_count == 43
    assert counted["now", "2"].last_called_at is not None
    assert {file: file.read_bytes() for file in files} == files


@pytest.mark.spec("bundles.usage.apart")
def test_a_rejected_call_is_not_counted(tmp_path: Path, other: BundleStore, site: Site) -> None:
    bundle = put(other, "weather", {"forecast@1": forecast(site)})
    with open_app_with_state(tmp_path) as app:
        app.run("weather.forecast(city='Oslo')", agent="hermit")
        app.run("weather.forecast()")
    assert other.get_tool(bundle, "forecast", "1").call_count == 0


# --- without a network ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.spec("bundles.store.offline")
def test_everything_except_http_calls_works_without_a_network(
    tmp_path: Path, other: BundleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_to_connect(*_args: object, **_more: object) -> None:
        raise OSError(101, "Network is unreachable")

    with open_app_with_state(tmp_path) as app:
        for name in ("connect", "connect_ex"):
            monkeypatch.setattr(socket.socket, name, fail_to_connect)
        monkeypatch.setattr(socket, "getaddrinfo", fail_to_connect)
        put(
            other,
            "weather",
            {"now@1": tool_returning("x"), "far@1": http_draft("http://127.0.0.1:9/", retries=0)},
        )
        assert app.data("weather.now()") == "x"
        assert "weather.far" in app.value("ot.help('weather')")
        assert app.data("ot.search('weather now')")
        assert app.run("weather.far()").error == "network"
        assert app.data("weather.now()") == "x"


# --- secrets --------------------------------------------------------------------------------------


def tools_that_leak_secrets(site: Site) -> dict[str, dict[str, Any]]:
    """Return tools that send secrets to servers that echo them, in every part of a request and a
    response.
    """
    secret = "${secret:WEATHER_KEY}"
    site.pages["/paths/"] = site.pages["/echo"]
    site.pages["/back"] = page(f"you sent {SECRET}".encode(), status=500)
    auth = {"type": "apiKey", "in": "query", "name": "key", "value": secret}
    basic = {"type": "basic", "value": "me:${secret:WEATHER_PASSWORD}"}
    return {
        "header@1": http_draft(site.url("/echo"), headers={"X-Key": secret}),
        "query@1": http_draft(site.url("/echo"), query={"key": "${secret:WEATHER_PASSWORD}"}),
        "path@1": http_draft(site.url("/paths/${secret:WEATHER_KEY}")),
        "body@1": http_draft(site.url("/echo"), method="POST", body={"key": secret}),
        "auth@1": http_draft(site.url("/echo"), auth=auth),
        "basic@1": http_draft(site.url("/echo"), auth=basic),
        "fails@1": http_draft(site.url("/back"), headers={"X-Key": secret}, retries=0),
        "moved@1": http_draft(
            site.url("/redirect-to"), query={"url": "http://${secret:WEATHER_KEY}.example.com/"}
        ),
        "schema@1": {
            **http_draft(site.url("/echo"), headers={"X-Key": secret}),
            "outputSchema": {"type": "integer"},
        },
        "refused@1": http_draft("http://elsewhere.example.com/", headers={"X-Key": secret}),
        "cut@1": http_draft(site.url("/cut"), query={"key": secret}, retries=0),
    }


def encoded_secrets() -> list[str]:
    basic = base64.b64encode(f"me:{PASSWORD}".encode()).decode()
    return [
        SECRET,
        PASSWORD,
        quote(PASSWORD, safe=""),
        quote_plus(PASSWORD),
        json.dumps(PASSWORD)[1:-1],
        basic,
    ]


def allow_secrets(site: Site, bundle: str = "weather") -> dict[str, Any]:
    """Return settings in which the tools of a bundle may send the secrets to the site."""
    return {**SETTINGS, "bundle_secrets": {bundle: {key: [site.url("")] for key in SECRETS}}}


@pytest.mark.spec("bundles.template.secrets")
def test_a_tool_sends_a_secret_only_where_an_owner_allowed_it(tmp_path: Path, site: Site) -> None:
    login = {"name": "login", **http_draft(site.url("/login"))["httpImpl"]}
    key = {"headers": {"X-Key": "${secret:WEATHER_KEY}"}}
    tools = {
        "plain@1": http_draft(site.url(), **key),
        "late@1": http_draft(site.url(), steps=[login], **key),
    }
    site.requests.clear()
    command = f"onetool secret allow WEATHER_KEY --bundle weather --host {site.url('')}"
    with serve_app(tmp_path, SETTINGS, TOOLS, SECRETS) as server:
        rest, bundle = server.rest, server.rest.bundle("weather")
        stored = [rest.tool(bundle, name.partition("@")[0], "1", **tools[name]) for name in tools]
        for allowed in (
            SETTINGS,
            allow_secrets(site, "other"),
            {**SETTINGS, "bundle_secrets": OTHER_ORIGINS},
        ):
            server.change(allowed)
            for path in stored:
                error = rest.invoke(path).json()["error"]
                assert (error["code"], error["secret"]) == ("secret_not_bound", "WEATHER_KEY")
                assert command in error["hint"]
                assert command in rest.get(path)["problems"][0]
            assert any(command in problem for problem in rest.get("/api/health")["problems"])
        assert site.requests == []  # not even the first step was sent
        server.change(allow_secrets(site))
        assert rest.invoke(stored[0]).json()["ok"]
        assert site.last.header("x-key") == SECRET
        assert "problems" not in rest.get(stored[0])
        assert not any("WEATHER_KEY" in problem for problem in rest.get("/api/health")["problems"])


@pytest.mark.slow
@pytest.mark.spec("bundles.host.secrets-stay", "bundles.template.secrets")
def test_a_secret_is_in_no_response_and_in_no_file(tmp_path: Path, site: Site) -> None:
    settings = {**allow_secrets(site), "output": {"max_inline_size": 400}, "log_level": "DEBUG"}
    answers = []
    with open_store(tmp_path / "bundles") as store:
        put(store, "weather", tools_that_leak_secrets(site))
    with open_app_with_state(tmp_path, settings) as app:
        for name in tools_that_leak_secrets(site):
            slug = name.partition("@")[0]
            answers += [
                app.run(f"weather.{slug}()").text,
                app.run(f"repr([weather.{slug}()] * 9)").text,
            ]
            answers.append(repr(app.call(f"weather.{slug}")))
            answers.append(
                app.run(
                    f"try:\n    weather.{slug}()\nexcept Exception as e:\n    print(vars(e))"
                ).text
            )
        answers += [
            app.run(f"ot.{ask}").text
            for ask in ("stats()", "health()", "help('weather')", "config()")
        ]
        answers.append(app.run("ot.help('weather.header', info='full')").text)
    sent = [
        request for request in site.requests if SECRET in repr(request) or "canary" in repr(request)
    ]
    assert len(sent) > 10  # the secrets were sent and echoed
    files = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert {"onetool.log", "audit.jsonl"} <= {file.name for file in files}
    for secret in encoded_secrets():
        assert not [answer for answer in answers if secret in answer]
        assert not [file for file, content in files.items() if secret.encode() in content]


@pytest.mark.slow
@pytest.mark.spec("bundles.host.secrets-stay")
def test_a_secret_is_in_no_response_over_rest(tmp_path: Path, site: Site) -> None:
    with serve_app(tmp_path, allow_secrets(site), TOOLS, SECRETS) as server:
        bodies = list(list_rest_bodies(server.rest, site))
    assert SECRET in repr(site.requests)
    for secret in encoded_secrets():
        assert not [body for body in bodies if secret in body]


def list_rest_bodies(rest: Rest, site: Site) -> Iterator[str]:
    bundle = rest.bundle("weather")
    for name, body in tools_that_leak_secrets(site).items():
        path = rest.tool(bundle, name.partition("@")[0], **body)
        yield rest.invoke(path).text
        yield rest.send("GET", path).text
        yield rest.send(
            "POST", f"/api/tools/weather.{name.partition('@')[0]}/call", {"args": {}}
        ).text
    for path in (
        "/tools/tools",
        "/tools/search?q=weather",
        "/api/tools?q=weather",
        "/api/stats",
        "/metrics",
    ):
        yield rest.send("GET", path).text


def test_a_missing_secret_is_named_and_nothing_is_sent(
    app: App, other: BundleStore, site: Site
) -> None:
    put(
        other,
        "weather",
        {"now@1": http_draft(site.url("/echo"), headers={"X-Key": "${secret:NOT_THERE}"})},
    )
    before = len(site.requests)
    message = app.failure("weather.now()")
    assert "secret NOT_THERE is not set" in message
    assert "onetool secret set NOT_THERE" in message
    assert len(site.requests) == before


@pytest.mark.slow
def test_call_counts_are_written_while_the_server_runs(app: App, other: BundleStore) -> None:
    bundle = put(other, "weather", {"now@1": tool_returning("x")})
    app.value("weather.now()")
    assert eventually(lambda: other.get_tool(bundle, "now", "1").call_count == 1)


# --- files edited by hand -------------------------------------------------------------------------


def edit_tool_file(directory: Path, name: str, **changes: Any) -> None:
    """Change fields of a tool's file."""
    (file,) = (directory / "bundles").rglob(name)
    file.write_text(
        json.dumps({**json.loads(file.read_text("utf-8")), **changes}), encoding="utf-8"
    )


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"argSchema": {"properties": 5}},
        {"argSchema": {"properties": {"a": 3}}},
        {"argSchema": {"type": "object", "required": 7}},
        {"argSchema": {"type": "no such type"}},
        {"argSchema": {"$ref": "#/nowhere"}},
        {
            "argSchema": {
                "properties": {"a": {"type": 5, "default": {}, "description": 9, "enum": 4}}
            }
        },
        {"outputSchema": {"type": 5}},
        {"httpImpl": {}},
        {"httpImpl": {"method": "STEAL", "urlTemplate": "http://${a}/", "auth": {"value": SECRET}}},
        {"httpImpl": {"method": "GET", "urlTemplate": "http://127.0.0.1/", "auth": [SECRET]}},
    ],
    ids=str,
)
def test_a_tool_file_broken_by_hand_does_not_affect_other_tools(
    tmp_path: Path, other: BundleStore, site: Site, changes: dict[str, Any]
) -> None:
    put(
        other,
        "weather",
        {"broken@1": http_draft(site.url("/echo")), "now@1": tool_returning("fine")},
    )
    edit_tool_file(tmp_path, "broken@1.json", **changes)
    other.rescan()
    with open_app_with_state(tmp_path) as app:
        assert app.data("weather.now()") == "fine"
        answer = app.run("weather.broken()")
        assert answer.is_error, answer.text
        assert SECRET not in answer.text
        assert "pydantic" not in answer.text
        assert app.data("[tool['name'] for tool in ot.tools('weather')]")
        assert "weather" in app.value("ot.help('weather')")
        assert not app.run("ot.help('weather.broken')").is_error
        assert app.data("ot.search('weather broken')")


def test_a_tool_may_refer_to_a_tool_of_a_bundle_not_yet_loaded(
    tmp_path: Path, other: BundleStore
) -> None:
    put(other, "first", {"a@1": draft("second.b")})
    put(other, "second", {"b@1": tool_returning("it")})
    with open_app_with_state(tmp_path) as app:
        assert app.data("first.a()") == "it"


def test_a_tool_added_by_another_process_is_callable_at_once(app: App, other: BundleStore) -> None:
    bundle = put(other, "weather", {"now@1": tool_returning("one")})
    assert app.data("weather.now()") == "one"
    other.put_tool(bundle, "later", "1", tool_returning("two"))
    assert app.data("weather.later()") == "two"


def test_descriptions_are_sanitized_before_a_model_reads_them(app: App, other: BundleStore) -> None:
    trap = "Nice\u202e tool.\u200b\x1b[31m"
    schema = {"type": "object", "properties": {"city": {"type": "string", "description": trap}}}
    put(
        other,
        "poison",
        {"now@1": {**tool_returning("one"), "description": trap, "argSchema": schema}},
    )
    output = app.value("ot.help('poison.now', info='full')")
    assert "Nice tool." in output
    assert not {"\u202e", "\u200b", "\x1b"} & set(output)
