"""Specification 4, HTTP tools: stored definitions, registered on a bus and called against a real
server.
"""

import asyncio
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from pydantic import ValidationError
from tests.http_support import Page, ReceivedRequest, Site, page, serve_site

from onetool import Permission, Result, ToolBus, ToolContext
from onetool.core.schema import Schema
from onetool.core.tool import Tool
from onetool.errors import describe
from onetool.net import HostRules, Net, Resolve
from onetool.settings.model import Http
from onetool.sources.http.backend import HttpBackend
from onetool.sources.http.definition import HttpImpl

NETWORK = ToolContext(permissions=frozenset({Permission.NETWORK}))
SECRETS = {"TOKEN": "t0p-s3cret/&=", "PAIR": "bob:hunter22"}
JSON = ("Content-Type", "application/json")
HOSTILE = [
    "../../admin",
    "..",
    "",
    "a/b?c#d",
    "&admin=1",
    "\r\nX-Evil: 1",
    '","admin":true,"x":"',
    "@evil.test",
    "%2e",
    "ä",
]


@dataclass
class Calls:
    """Calls of HTTP tools on a bus. Pauses are recorded and take no time."""

    allowed: tuple[str, ...] = ("*",)
    private: bool = True
    resolve: Resolve | None = None
    chance: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    pauses: list[float] = field(default_factory=list)

    def run(
        self,
        definition: Mapping[str, Any],
        calls: Sequence[Mapping[str, Any]],
        required: Sequence[str],
    ) -> list[Result]:
        async def go() -> list[Result]:
            bus, net = ToolBus(), Net(HostRules(self.allowed, self.private), resolve=self.resolve)
            bus.register_tool(self._tool(definition, net, required))
            try:
                return [await bus.call_tool("shop.item", args, NETWORK) for args in calls]
            finally:
                await net.close()

        return anyio.run(go)

    def _tool(self, definition: Mapping[str, Any], net: Net, required: Sequence[str]) -> Tool:
        backend = HttpBackend(
            HttpImpl.model_validate({"method": "GET", **definition}),
            lambda: net,
            lambda: Http.model_validate(self.settings),
            lambda _origin, name: SECRETS.get(name),
            sleep=self._sleep,
            random=lambda: self.chance,
            clock=lambda: sum(self.pauses),
        )
        schema = Schema.from_json({"type": "object", "required": list(required)})
        return Tool(
            name="shop.item",
            backend=backend,
            input=schema,
            permissions=frozenset({Permission.NETWORK}),
        )

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def result(
        self, definition: Mapping[str, Any], required: Sequence[str] = (), **args: Any
    ) -> Result:
        return self.run(definition, [args], required)[0]

    def value(
        self, definition: Mapping[str, Any], required: Sequence[str] = (), **args: Any
    ) -> Any:
        return self.result(definition, required, **args).unwrap()

    def failure(
        self, definition: Mapping[str, Any], required: Sequence[str] = (), **args: Any
    ) -> dict[str, Any]:
        error = self.result(definition, required, **args).error
        assert error is not None
        return describe(error)


@pytest.fixture
def calls() -> Calls:
    return Calls()


def expect_rejection(definition: Mapping[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        HttpImpl.model_validate({"method": "GET", **definition})
    return str(caught.value)


def serve_in_turn(*pages: Page) -> Page:
    left = list(pages)

    async def show(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(received, writer)

    return show


# --- HTTP tools -----------------------------------------------------------------------------------


@pytest.mark.spec("bundles.http.url-scheme")
def test_a_url_starts_with_http_or_https() -> None:
    for url in (
        "ftp://shop.test/",
        "shop.test",
        "//shop.test",
        "${scheme}://shop.test",
        "file:///etc/passwd",
    ):
        assert "must start with http:// or https://" in expect_rejection({"urlTemplate": url})
    for url in ("http://shop.test/", "https://shop.test/"):
        assert HttpImpl.model_validate({"method": "GET", "urlTemplate": url}).url_template == url


@pytest.mark.spec("bundles.http.body")
def test_an_object_is_sent_as_json_and_a_string_as_it_is(calls: Calls, site: Site) -> None:
    url = {"method": "POST", "urlTemplate": site.url()}
    calls.value({**url, "body": {"id": "${id}", "note": "no. ${id}"}}, id=7)
    assert json.loads(site.last.body) == {"id": 7, "note": "no. 7"}
    assert site.last.header("content-type") == "application/json"
    calls.value({**url, "body": "no. ${id}\n", "headers": {"Content-Type": "text/plain"}}, id=7)
    assert site.last.body == b"no. 7\n"
    assert site.last.header("content-type") == "text/plain"


@pytest.mark.spec("bundles.http.steps")
def test_a_later_request_uses_the_response_of_an_earlier_one(calls: Calls, site: Site) -> None:
    first = {"name": "first", "method": "POST", "urlTemplate": site.url("/echo?n=${n}")}
    url = site.url("/echo?path=${steps.first.body.path}&n=${steps.first.body.query.n[0]}")
    assert calls.value({"urlTemplate": url, "steps": [first]}, n=7)["query"] == {
        "path": ["/echo"],
        "n": ["7"],
    }
    assert [received.method for received in site.requests] == ["POST", "GET"]


@pytest.mark.spec("bundles.http.hmac")
def test_a_request_is_signed(calls: Calls, site: Site) -> None:
    signing = {"recipe": "github-sha256", "key": "${secret:TOKEN}"}
    calls.value(
        {"urlTemplate": site.url(), "method": "POST", "body": {"a": "${a}"}, "hmac": signing}, a=1
    )
    digest = hmac.new(SECRETS["TOKEN"].encode(), site.last.body, "sha256").hexdigest()
    assert site.last.header("x-hub-signature-256") == f"sha256={digest}"


@pytest.mark.spec("bundles.http.events")
def test_server_sent_events_are_a_list(calls: Calls, site: Site) -> None:
    site.pages["/events"] = page(
        b"data: 1\n\ndata: 2\n\ndata: 3\n\n", ("Content-Type", "text/event-stream")
    )
    options = {"mode": "events", "maxEvents": 2}
    events = calls.value({"urlTemplate": site.url("/events"), "response": options})
    assert [event["data"] for event in events] == [1, 2]


@pytest.mark.spec("bundles.http.failed-status")
def test_a_status_outside_the_success_codes_fails_or_returns_none(calls: Calls, site: Site) -> None:
    tool = {"urlTemplate": site.url("/status/${code}")}
    failure = calls.failure(tool, code=404)
    assert (failure["type"], failure["status"], failure["body"]) == ("http_status", 404, "404")
    assert calls.value({**tool, "errorMode": "empty"}, code=404) is None
    assert calls.value({**tool, "successCodes": [404]}, code=404) == "404"
    assert calls.failure({**tool, "successCodes": [404]}, code=200)["status"] == 200


@pytest.mark.spec("bundles.http.api-key")
def test_an_api_key_is_sent_in_its_location(calls: Calls, site: Site) -> None:
    key = {"type": "apiKey", "name": "X-Key", "value": "${secret:TOKEN}"}
    calls.value({"urlTemplate": site.url(), "auth": {**key, "in": "header"}})
    assert site.last.header("x-key") == SECRETS["TOKEN"]
    calls.value({"urlTemplate": site.url("/echo?a=1"), "auth": {**key, "in": "query"}})
    assert site.last.query == {"a": ["1"], "X-Key": [SECRETS["TOKEN"]]}


@pytest.mark.spec("bundles.http.bearer")
def test_a_bearer_token_is_sent_in_the_authorization_header(calls: Calls, site: Site) -> None:
    calls.value({"urlTemplate": site.url(), "auth": {"type": "bearer", "value": "${secret:TOKEN}"}})
    assert site.last.header("authorization") == f"Bearer {SECRETS['TOKEN']}"


@pytest.mark.spec("bundles.http.basic")
def test_user_and_password_are_sent_as_basic_authentication(calls: Calls, site: Site) -> None:
    calls.value({"urlTemplate": site.url(), "auth": {"type": "basic", "value": "${secret:PAIR}"}})
    assert site.last.header("authorization") == "Basic Ym9iOmh1bnRlcjIy"


@pytest.mark.spec("bundles.http.response-modes")
def test_a_response_is_json_or_text_or_follows_its_content_type(calls: Calls, site: Site) -> None:
    site.pages["/json"] = page(b'{"a": 1}', JSON)
    site.pages["/text"] = page(b'{"a": 1}', ("Content-Type", "text/plain"))
    site.pages["/html"] = page(b"<p>", ("Content-Type", "text/html"))
    assert calls.value({"urlTemplate": site.url("/json")}) == {"a": 1}
    assert calls.value({"urlTemplate": site.url("/text")}) == '{"a": 1}'
    assert calls.value({"urlTemplate": site.url("/text"), "response": {"mode": "json"}}) == {"a": 1}
    assert (
        calls.value({"urlTemplate": site.url("/json"), "response": {"mode": "text"}}) == '{"a": 1}'
    )
    failure = calls.failure({"urlTemplate": site.url("/html"), "response": {"mode": "json"}})
    assert failure["type"] == "execution_error"


@pytest.mark.spec("bundles.http.selector")
def test_a_selector_selects_part_of_the_response(calls: Calls, site: Site) -> None:
    site.pages["/items"] = page(b'{"items": [{"id": 1}, {"id": 2}]}', JSON)
    assert calls.value(
        {"urlTemplate": site.url("/items"), "response": {"selector": "items[].id"}}
    ) == [1, 2]
    assert "JMESPath" in expect_rejection(
        {"urlTemplate": site.url(), "response": {"selector": "items[?"}}
    )


# --- placeholders ---------------------------------------------------------------------------------


@pytest.mark.spec("bundles.template.arguments")
def test_placeholders_are_filled_from_nested_arguments(calls: Calls, site: Site) -> None:
    query = {"a": "${a}", "b": "${deep.list[1].name}"}
    tool = {"urlTemplate": site.url(), "query": query, "headers": {"X-A": "is ${a}"}}
    calls.value(tool, a="x", deep={"list": [{}, {"name": "y"}]})
    assert site.last.query == {"a": ["x"], "b": ["y"]}
    assert site.last.header("x-a") == "is x"


@pytest.mark.spec("bundles.template.secrets")
def test_a_secret_placeholder_is_filled_from_the_secrets(calls: Calls, site: Site) -> None:
    tool = {"urlTemplate": site.url(), "query": {"t": "${secret:TOKEN}"}}
    calls.value(tool)
    assert site.last.query == {"t": [SECRETS["TOKEN"]]}
    assert HttpImpl.model_validate({"method": "GET", **tool}).required_secrets == {"TOKEN"}
    unset = {"urlTemplate": site.url(), "query": {"t": "${secret:NONE}"}}
    assert "NONE is not set" in calls.failure(unset)["message"]


@pytest.mark.spec("bundles.template.literal")
def test_two_dollars_escape_a_placeholder(calls: Calls, site: Site) -> None:
    calls.value({"urlTemplate": site.url(), "query": {"q": "$${a} costs $5 {b} ${a}"}}, a="x")
    assert site.last.query == {"q": ["${a} costs $5 {b} x"]}


@pytest.mark.spec("bundles.template.never-in-the-authority")
@pytest.mark.parametrize(
    "url",
    ["https://${h}/", "https://${h}.shop.test/", "https://shop.test:${p}/", "https://${u}@shop.test/",
     "https://shop.test${p}"],
)  # fmt: skip
def test_a_placeholder_in_the_host_is_rejected(url: str) -> None:
    assert "in the host" in expect_rejection({"urlTemplate": url})


@pytest.mark.spec("bundles.template.values-keep-their-place")
@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_value_stays_in_its_location(calls: Calls, site: Site, value: str) -> None:
    seen = {
        "urlTemplate": site.url("/echo"),
        "method": "POST",
        "query": {"q": "${v}"},
        "body": {"b": "${v}", "c": 1},
    }
    calls.value(seen, v=value)
    assert site.last.path == "/echo"
    assert site.last.query == {"q": [value]}
    assert json.loads(site.last.body) == {"b": value, "c": 1}
    in_path = calls.result({"urlTemplate": site.url("/files/${v}/meta")}, v=value)
    if value in {"", ".."}:
        assert describe(in_path.error or ValueError())["type"] == "validation_error"
    else:
        assert len(site.last.path.split("/")) == 4
    in_header = calls.result({"urlTemplate": site.url(), "headers": {"X-V": "${v}"}}, v=value)
    assert in_header.ok == ("\n" not in value)
    assert all(request.header("x-evil") is None for request in site.requests)


@pytest.mark.spec("bundles.template.missing-optional")
def test_a_missing_optional_argument_removes_its_parameter(calls: Calls, site: Site) -> None:
    query = {"q": "x ${a}", "r": "${b}"}
    tool = {"urlTemplate": site.url("/echo?u=${a}&v=1"), "query": query, "headers": {"X-A": "${a}"}}
    calls.value({**tool, "method": "POST", "body": {"a": "${a}", "b": "${b}"}}, b=2)
    assert site.last.query == {"v": ["1"], "r": ["2"]}
    assert site.last.header("x-a") is None
    assert json.loads(site.last.body) == {"b": 2}


@pytest.mark.spec("bundles.template.missing-required")
def test_a_missing_required_argument_is_an_error(calls: Calls, site: Site) -> None:
    assert calls.failure({"urlTemplate": site.url("/echo/${id}")})["type"] == "validation_error"
    tool = {"urlTemplate": site.url(), "query": {"id": "${id}"}}
    assert calls.failure(tool, ["id"])["type"] == "validation_error"
    assert calls.failure(tool, ["id"], id=None)["type"] == "validation_error"
    assert site.requests == []


# --- hosts ----------------------------------------------------------------------------------------


async def loopback(_host: str, _port: int) -> list[str]:
    return ["127.0.0.1"]


@pytest.mark.spec("bundles.host.patterns")
@pytest.mark.parametrize(
    ("allowed", "admitted"),
    [
        ([], False),
        (["api.shop.test"], True),
        (["shop.test"], False),
        (["*.shop.test"], True),
        (["*.api.shop.test"], False),
        (["*"], True),
        (["api.shop.test:PORT"], True),
        (["api.shop.test:1"], False),
        (["other.test", "*.shop.test:PORT"], True),
    ],
)
def test_a_tool_reaches_allowed_hosts(site: Site, allowed: list[str], admitted: bool) -> None:
    patterns = tuple(pattern.replace("PORT", str(site.port)) for pattern in allowed)
    result = Calls(patterns, resolve=loopback).result(
        {"urlTemplate": site.url(host="api.shop.test")}
    )
    assert result.ok == admitted
    if result.error is not None:
        assert describe(result.error)["reason"] == "host_not_allowed"
        assert site.requests == []


@pytest.mark.spec("bundles.host.final-url")
def test_the_host_is_checked_when_the_tool_is_called(site: Site) -> None:
    tool = {"urlTemplate": site.url("/echo/${id}"), "errorMode": "empty"}
    HttpImpl.model_validate({"method": "GET", **tool})  # storing a tool sends no request
    assert (
        Calls(("elsewhere.test",)).failure(tool, id="@elsewhere.test/")["reason"]
        == "host_not_allowed"
    )
    assert Calls(("127.0.0.1",)).result(tool, id="@elsewhere.test/").ok


@pytest.mark.spec("bundles.host.every-redirect")
def test_each_redirect_is_checked_again(site: Site) -> None:
    tool = {"urlTemplate": site.url("/redirect-to"), "query": {"url": "${to}"}}
    only = Calls(("127.0.0.1",))
    assert only.value(tool, to="/redirects/3")["path"] == "/echo"
    assert only.failure(tool, to="http://elsewhere.test/")["reason"] == "host_not_allowed"
    assert only.failure(tool, to="http://localhost/")["reason"] == "host_not_allowed"


@pytest.mark.spec("bundles.host.special-addresses")
@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "10.0.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1", "[::1]",
     "[fe80::1]", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]"],
)  # fmt: skip
def test_special_addresses_of_allowed_hosts_are_rejected(host: str) -> None:
    assert (
        Calls(private=False).failure({"urlTemplate": f"http://{host}/"})["reason"]
        == "address_not_allowed"
    )


@pytest.mark.spec("bundles.host.address-really-used")
def test_the_checked_address_is_used(site: Site) -> None:
    asked: list[str] = []

    async def resolve(host: str, _port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    tool = {"urlTemplate": site.url(host="harmless.test")}
    assert Calls(private=False, resolve=resolve).failure(tool)["reason"] == "address_not_allowed"
    assert site.requests == []
    assert Calls(resolve=resolve).result(tool).ok
    assert asked == [
        "harmless.test",
        "harmless.test",
    ]  # resolved once per call, so the address cannot change in between
    assert site.last.header("host") == f"harmless.test:{site.port}"


@pytest.mark.spec("bundles.host.allow-private-addresses")
def test_the_setting_allows_private_addresses(site: Site) -> None:
    tool = {"urlTemplate": site.url()}
    assert not Calls(private=False).result(tool).ok
    assert Calls(private=True).result(tool).ok


@pytest.mark.spec("bundles.host.secrets-stay")
def test_secrets_are_not_sent_to_other_hosts_and_not_shown(calls: Calls, site: Site) -> None:
    tool: dict[str, Any] = {
        "urlTemplate": site.url("/redirect-to"),
        "query": {"url": "${to}", "status": "${status}", "t": "${secret:TOKEN}"},
        "headers": {"X-Other": "${secret:TOKEN}"},
        "auth": {"type": "apiKey", "in": "header", "name": "X-Key", "value": "${secret:TOKEN}"},
    }
    with serve_site() as other:
        for status in (302, 307):
            calls.result(tool, to=other.url(), status=status)
            calls.result(
                {**tool, "method": "POST", "body": {"t": "${secret:TOKEN}"}},
                to=other.url(),
                status=status,
            )
        seen = repr(other.requests)
    assert len(other.requests) == 3  # a request with a body is not redirected to another origin
    assert SECRETS["TOKEN"] not in seen
    assert "t0p-s3cret" not in seen
    at_home = [
        calls.result(tool, to=path, status=302)
        for path in ("/echo", "/status/404", "/cut", "/nowhere")
    ]
    outcomes = [describe(result.error) if result.error else result.value for result in at_home]
    assert "t0p-s3cret" not in json.dumps(outcomes)
    assert SECRETS["TOKEN"] in (site.last.header("x-key") or "")


# --- retries --------------------------------------------------------------------------------------

FINE = page(b'"fine"', JSON)


@pytest.mark.spec("bundles.retry.what")
def test_only_connect_errors_and_four_statuses_are_retried(site: Site) -> None:
    for status in (400, 401, 404, 408, 429, 500, 501, 502, 503, 504, 505):
        site.requests.clear()
        site.pages["/turns"] = serve_in_turn(page(b"", status=status), FINE)
        Calls().result({"urlTemplate": site.url("/turns")})
        assert len(site.requests) == (2 if status in {429, 502, 503, 504} else 1)
    unreachable, cut = Calls(), Calls()
    assert unreachable.failure({"urlTemplate": "http://127.0.0.1:1/"})["reason"] == "connect"
    assert len(unreachable.pauses) == 2
    assert not cut.result({"urlTemplate": site.url("/cut")}).ok
    assert cut.pauses == []


@pytest.mark.spec("bundles.retry.how-often")
@pytest.mark.parametrize("retries", [0, 1, 3])
def test_retries_limits_the_number_of_attempts(calls: Calls, site: Site, retries: int) -> None:
    calls.result({"urlTemplate": site.url("/status/503"), "retries": retries})
    assert len(site.requests) == retries + 1


@pytest.mark.spec("bundles.retry.idempotent-only")
def test_non_idempotent_requests_are_retried_only_if_the_tool_allows_it(
    calls: Calls, site: Site
) -> None:
    tool = {"urlTemplate": site.url("/status/503"), "retries": 1}
    for method, requests in (("PUT", 2), ("DELETE", 2), ("POST", 1), ("PATCH", 1)):
        site.requests.clear()
        calls.result({**tool, "method": method})
        assert len(site.requests) == requests
    site.requests.clear()
    calls.result({**tool, "method": "POST", "retryNonIdempotent": True})
    assert len(site.requests) == 2


@pytest.mark.spec("bundles.retry.back-off")
def test_pauses_grow_with_jitter_and_respect_retry_after(site: Site) -> None:
    tool = {"urlTemplate": site.url("/status/503"), "retries": 4, "timeoutMs": 60_000}
    plain, lucky = Calls(), Calls(chance=0.9)
    plain.result(tool)
    lucky.result(tool)
    assert plain.pauses == sorted(set(plain.pauses))
    assert lucky.pauses == sorted(set(lucky.pauses))
    assert all(shorter < longer for shorter, longer in zip(lucky.pauses, plain.pauses, strict=True))
    site.pages["/later"] = serve_in_turn(page(b"", ("Retry-After", "9"), status=429), FINE)
    asked = Calls()
    assert asked.value({"urlTemplate": site.url("/later"), "timeoutMs": 10_000}) == "fine"
    assert asked.pauses == [9.0]


@pytest.mark.spec("bundles.retry.within-the-timeout")
def test_all_attempts_share_the_timeout(calls: Calls, site: Site) -> None:
    calls.result({"urlTemplate": site.url("/status/503"), "retries": 10, "timeoutMs": 5_000})
    assert 1 < sum(calls.pauses) < 5
    site.pages["/later"] = page(b"", ("Retry-After", "60"), status=503)
    impatient = Calls()
    assert (
        impatient.failure({"urlTemplate": site.url("/later"), "timeoutMs": 5_000})["status"] == 503
    )
    assert impatient.pauses == []
    failure = calls.failure({"urlTemplate": site.url("/drip-body"), "timeoutMs": 100})
    assert (failure["type"], failure["timeout_ms"]) == ("timeout", 100)


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.spec("bundles.limit.response-while-streaming")
def test_the_size_limit_applies_while_reading_and_after_decompression(
    calls: Calls, site: Site
) -> None:
    for path in ("/stream/1000000000", "/bomb/10000", "/gzip/100000"):
        failure = calls.failure(
            {"urlTemplate": site.url(path), "maxResponseBytes": 50_000, "timeoutMs": 60_000}
        )
        assert (failure["type"], failure["reason"], failure["limit"]) == (
            "network",
            "too_large",
            50_000,
        )
    assert (
        calls.value({"urlTemplate": site.url("/gzip/40000"), "maxResponseBytes": 50_000})
        == "a" * 40_000
    )
    tight = Calls(settings={"maxResponseBytes": 1000})
    assert (
        tight.failure({"urlTemplate": site.url("/gzip/40000"), "maxResponseBytes": 50_000})["limit"]
        == 1000
    )


@pytest.mark.spec("bundles.limit.request-bytes")
def test_a_request_over_its_limit_is_not_sent(calls: Calls, site: Site) -> None:
    tool = {
        "urlTemplate": site.url(),
        "method": "POST",
        "body": {"text": "${text}"},
        "maxRequestBytes": 500,
    }
    failure = calls.failure(tool, text="ä" * 300)
    assert (failure["type"], failure["limit"]) == ("validation_error", 500)
    assert failure["size"] > 600
    assert site.requests == []
    assert calls.result(tool, text="ä" * 200).ok


@pytest.mark.spec("bundles.limit.calls-per-minute")
def test_calls_over_the_rate_limit_are_rejected(calls: Calls, site: Site) -> None:
    tool = {"urlTemplate": site.url(), "maxCallsPerMinute": 2}
    first, second, third = calls.run(tool, [{}] * 3, ())
    assert first.ok
    assert second.ok
    failure = describe(third.error or ValueError())
    assert (failure["type"], failure["code"], failure["retry_after"]) == (
        "budget_exceeded",
        "rate_limited",
        60,
    )
    assert len(site.requests) == 2
