"""Specification 5, the tools http.get and http.post: on a bus alone, and in OneTool with its
settings.
"""

import asyncio
import base64
import json
from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from tests.http_support import ReceivedRequest, Site, page, send_response, serve_site
from tests.support import open_app

from onetool import ToolBus, ToolContext
from onetool.errors import ArgumentError, NetworkError, PermissionDenied, ToolError, ToolTimeout
from onetool.sources.builtin import http_tools
from onetool.util.context import permissions

LOOPBACK = {"allowed_hosts": ["127.0.0.1"], "allow_private_addresses": True}


def call(
    name: str,
    params: Mapping[str, Any],
    config: Mapping[str, Any] = LOOPBACK,
    granted: str = "network",
) -> Any:
    """Return the value of a call on a bus with only these tools."""
    bus = ToolBus()
    bus.register_tool(http_tools)
    context = ToolContext(agent_config={name: config}, permissions=permissions([granted]))
    return anyio.run(bus.call_tool, name, params, context).unwrap()


def get(url: str, config: Mapping[str, Any] = LOOPBACK, **params: Any) -> dict[str, Any]:
    value: dict[str, Any] = call("http.get", {"url": url, **params}, config)
    return value


def post(url: str, body: Any, **params: Any) -> dict[str, Any]:
    value: dict[str, Any] = call("http.post", {"url": url, "body": body, **params})
    return value


@pytest.mark.spec("toolbus.http.get")
def test_get_returns_status_headers_body_and_time(site: Site) -> None:
    value = get(site.url("/echo?a=1"))
    assert value["status"] == 200
    assert value["headers"]["content-type"] == "application/json"
    assert json.loads(value["body"])["query"] == {"a": ["1"]}
    assert isinstance(value["response_time_ms"], int)
    assert value["response_time_ms"] >= 0
    assert value["url"] == site.url("/echo?a=1")
    assert json.loads(json.dumps(value)) == value


@pytest.mark.spec("toolbus.http.get", "toolbus.http.post")
def test_nothing_is_sent_without_the_network_permission(site: Site) -> None:
    for name, params in (("http.get", {}), ("http.post", {"body": "x"})):
        with pytest.raises(PermissionDenied, match="requires network permission"):
            call(name, {"url": site.url(), **params}, granted="read")
    assert not site.requests


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_an_error_status_is_a_response(site: Site, status: int) -> None:
    assert get(site.url(f"/status/{status}"))["status"] == status


def test_repeated_headers_are_joined_and_cookies_are_a_list(site: Site) -> None:
    cookies = [("Set-Cookie", "x=1; Expires=Mon, 1 Jan"), ("Set-Cookie", "y")]
    site.pages["/vary"] = page(b"", ("Vary", "a"), ("vary", "b"), *cookies)
    headers = get(site.url("/vary"))["headers"]
    assert (headers["vary"], headers["set-cookie"]) == ("a, b", ["x=1; Expires=Mon, 1 Jan", "y"])


@pytest.mark.parametrize(
    ("content_type", "body", "text"),
    [
        ("text/html; charset=latin-1", b"gr\xfcn", "grün"),
        ("text/plain", b"a\xffb", "a\ufffdb"),
        ("application/problem+json", b"{}", "{}"),
        ("application/octet-stream", b"text all the same", "text all the same"),
        ("image/png", b"\x89PNG\r\n\x1a\n\0", None),
        ("application/octet-stream", b"a\0b", None),
        ("", b"\xff\xfe\0", None),
    ],
)
def test_a_body_is_text_or_marked_base64(
    site: Site, content_type: str, body: bytes, text: str | None
) -> None:
    site.pages["/typed"] = page(body, ("Content-Type", content_type))
    value = get(site.url("/typed"))
    if text is not None:
        assert (value["body"], "encoding" in value) == (text, False)
    else:
        assert (base64.b64decode(value["body"]), value["encoding"]) == (body, "base64")


@pytest.mark.spec("toolbus.http.post")
@pytest.mark.parametrize(
    ("body", "content_type", "sent"),
    [
        ("as it is ü", "text/plain", "as it is ü"),
        ('{"raw":1}', "application/json", '{"raw":1}'),
        ("", "application/json", ""),
        ({"name": "Löwe", "n": [1, None]}, "application/json", '{"name": "Löwe", "n": [1, null]}'),
        ([1, 2], "application/json", "[1, 2]"),
        ({"a": 1}, "application/merge-patch+json; charset=utf-8", '{"a": 1}'),
        (
            {"a": "x y&z", "b": [1, 2], "c": True, "d": None, "ü": "="},
            "application/x-www-form-urlencoded",
            "a=x+y%26z&b=1&b=2&c=true&d=&%C3%BC=%3D",
        ),
    ],
)
def test_post_sends_text_unchanged_and_a_mapping_as_json_or_form(
    site: Site, body: Any, content_type: str, sent: str
) -> None:
    value = post(site.url(), body, content_type=content_type)
    assert value["status"] == 200
    assert (site.last.method, site.last.body.decode()) == ("POST", sent)
    assert site.last.header("content-type") == content_type


@pytest.mark.spec("toolbus.http.post")
def test_post_sends_json_by_default(site: Site) -> None:
    post(site.url(), {"a": 1})
    assert site.last.header("content-type") == "application/json"
    post(site.url(), {"a": 1}, headers={"content-type": "application/x-www-form-urlencoded"})
    assert (site.last.header("content-type"), site.last.body) == (
        "application/x-www-form-urlencoded",
        b"a=1",
    )


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        ({"a": 1}, "text/plain"),
        ([1], "application/x-www-form-urlencoded"),
        ({"a": {"b": 1}}, "application/x-www-form-urlencoded"),
        ({"a": [[1]]}, "application/x-www-form-urlencoded"),
        ({"a": "\ud800"}, "application/json"),
        ("\ud800", "text/plain"),
        ({"a": float("nan")}, "application/json"),
        ({"a": 1}, "application/json\r\nX-Evil: 1"),
        (5, "application/json"),
        (None, "application/json"),
    ],
)
def test_a_body_that_does_not_fit_its_format_is_rejected(
    site: Site, body: Any, content_type: str
) -> None:
    with pytest.raises(ArgumentError):
        post(site.url(), body, content_type=content_type)
    assert not site.requests


@pytest.mark.spec("toolbus.http.headers")
def test_headers_of_the_caller_are_sent(site: Site) -> None:
    get(site.url(), headers={"Authorization": "token abc", "X-Mine": "1"})
    assert (site.last.header("authorization"), site.last.header("x-mine")) == ("token abc", "1")
    post(site.url(), "x", headers={"X-Mine": "2"})
    assert site.last.header("x-mine") == "2"


@pytest.mark.parametrize(
    "headers", [{"Host": "b"}, {"X": "a\r\nY: b"}, {"X Y": "a"}, {"Content-Length": "0"}, {"X": 1}]
)
def test_headers_that_would_change_the_request_are_rejected(
    site: Site, headers: dict[str, Any]
) -> None:
    with pytest.raises(ArgumentError):
        get(site.url(), headers=headers)
    assert not site.requests


@pytest.mark.slow
@pytest.mark.spec("toolbus.http.timeout")
@pytest.mark.parametrize("path", ["/never", "/drip-body"])
def test_a_request_ends_at_its_timeout(site: Site, path: str) -> None:
    with pytest.raises(ToolTimeout) as late:
        get(site.url(path), timeout_ms=150)
    assert late.value.timeout_ms == 150
    with pytest.raises(ToolTimeout):
        call("http.post", {"url": site.url(path), "body": "x", "timeout_ms": 150})


@pytest.mark.spec("toolbus.http.timeout")
def test_the_timeout_is_thirty_seconds_and_can_only_be_lowered(site: Site) -> None:
    for tool in ToolBus().register_tool(http_tools):
        assert tool.input.properties["timeout_ms"]["default"] == 30000
        assert tool.limits == ("timeout_ms",)
    with pytest.raises(ToolTimeout) as late:
        get(site.url("/never"), {**LOOPBACK, "timeout_ms": 100}, timeout_ms=60000)
    assert late.value.timeout_ms == 100


@pytest.mark.parametrize("timeout_ms", [0, -5])
def test_a_timeout_of_zero_is_rejected(site: Site, timeout_ms: int) -> None:
    with pytest.raises(ArgumentError, match="timeout_ms"):
        get(site.url(), timeout_ms=timeout_ms)


@pytest.mark.spec("toolbus.http.redirects")
def test_redirects_are_followed_unless_disabled(site: Site) -> None:
    assert get(site.url("/redirects/2"))["url"] == site.url("/echo")
    value = get(site.url("/redirects/2"), follow_redirects=False)
    assert (value["status"], value["headers"]["location"]) == (302, "/redirects/1")


@pytest.mark.spec("toolbus.http.redirects", "toolbus.http.host-rules")
def test_headers_of_the_caller_are_sent_only_to_the_origin(site: Site) -> None:
    headers = {"Authorization": "a", "X-Api-Key": "b", "Private-Token": "c", "Accept": "text/plain"}
    with serve_site() as other:
        site.pages["/away"] = page(b"", ("Location", other.url()), status=302)
        get(site.url("/away"), headers=headers)
        assert other.last.header("accept") == "text/plain"
        assert {
            other.last.header(name) for name in ("authorization", "x-api-key", "private-token")
        } == {None}
        site.pages["/away"] = page(b"", ("Location", other.url()), status=307)
        with pytest.raises(NetworkError, match="body is not sent to another origin"):
            post(site.url("/away"), {"password": "x"})
        assert len(other.requests) == 1


# --- host rules -----------------------------------------------------------------------------------


@pytest.mark.spec("toolbus.http.host-rules")
def test_a_bus_alone_reaches_only_hosts_of_the_agent(site: Site) -> None:
    with pytest.raises(NetworkError) as rejected:
        get(site.url(), {})
    assert rejected.value.message == (
        "host 127.0.0.1 is not allowed. To allow it, pass agent_config with "
        f'http.get: {{allowed_hosts: ["127.0.0.1:{site.port}"]}} to ToolContext'
    )
    with pytest.raises(NetworkError) as rejected:
        get(site.url(), {"allowed_hosts": "127.0.0.1"})
    assert rejected.value.reason == "address_not_allowed"
    assert not site.requests


@pytest.mark.spec("toolbus.http.host-rules")
def test_each_redirect_is_checked_again(site: Site) -> None:
    site.pages["/away"] = page(b"", ("Location", "http://localhost:1/"), status=302)
    with pytest.raises(NetworkError, match="host localhost is not allowed"):
        get(site.url("/away"))


@pytest.mark.spec("toolbus.http.host-rules")
def test_an_agent_can_only_restrict_the_settings(site: Site) -> None:
    settings = {
        "http": {
            "allowedHosts": ["127.0.0.1"],
            "allowPrivateAddresses": True,
            "maxResponseBytes": 1000,
        },
        "agents": {
            "default": {"permissions": ["network"]},
            "narrow": {
                "permissions": ["network"],
                "tool_config": {"http.get": {"allowed_hosts": ["a.example"]}},
            },
            "public": {
                "permissions": ["network"],
                "tool_config": {"http.get": {"allow_private_addresses": False}},
            },
            "none": {
                "permissions": ["network"],
                "tool_config": {"http.get": {"allowed_hosts": None}},
            },
            "wide": {
                "permissions": ["network"],
                "tool_config": {"http.get": {"allowed_hosts": ["*"]}},
            },
        },
    }
    with open_app(settings) as app:

        def ask(url: str, agent: str) -> Any:
            return app.call("http.get", {"url": url}, agent).unwrap()

        assert ask(site.url(), "default")["status"] == 200
        assert ask(site.url(), "wide")["status"] == 200
        for agent, url in (("default", "http://b.example/"), ("wide", "http://b.example/")):
            with pytest.raises(
                NetworkError, match=r"http: {allowedHosts: \[127.0.0.1, b.example\]}"
            ):
                ask(url, agent)
        with pytest.raises(NetworkError, match=r"agents: {narrow: {tool_config: "):
            ask(site.url(), "narrow")
        with pytest.raises(NetworkError, match="not public"):
            ask(site.url(), "public")
        with pytest.raises(NetworkError, match=r"agents: {none: {tool_config: "):
            ask(site.url(), "none")
        with pytest.raises(NetworkError, match="larger than 1,000 bytes"):
            ask(site.url("/bytes/1001"), "default")


@pytest.mark.spec("toolbus.http.host-rules")
def test_without_settings_no_host_is_allowed_and_the_error_names_the_setting(site: Site) -> None:
    with open_app() as app, pytest.raises(NetworkError) as rejected:
        app.call("http.get", {"url": "https://api.github.com/user"}).unwrap()
    assert rejected.value.message.endswith(
        "add this to onetool.yaml: http: {allowedHosts: [api.github.com]}"
    )
    assert not site.requests


def test_code_calls_the_tool_and_reads_the_response(site: Site) -> None:
    with open_app({"http": {"allowedHosts": ["127.0.0.1"], "allowPrivateAddresses": True}}) as app:
        code = f"""
answers = ot.parallel([lambda n=n: http.get({site.url()!r} + f"?n={{n}}") for n in range(3)])
[json.loads(answer["body"])["query"]["n"] for answer in answers]
"""
        assert app.data(code.strip()) == [["0"], ["1"], ["2"]]


def test_a_dying_server_is_an_error_and_the_next_call_works(site: Site) -> None:
    async def first_only(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if len(site.requests) == 1:
            writer.transport.abort()
        else:
            send_response(writer, received.body)

    site.pages["/dies"] = first_only
    with open_app({"http": {"allowedHosts": ["*"], "allowPrivateAddresses": True}}) as app:
        asked = {"url": site.url("/dies"), "body": "x"}
        with pytest.raises(ToolError):
            app.call("http.post", asked).unwrap()
        assert app.call("http.post", asked).unwrap()["body"] == "x"
