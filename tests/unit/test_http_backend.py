"""The backend of HTTP tools against a real server: retries, limits, responses of every type,
redacted secrets.
"""

import asyncio
import base64
import datetime as dt
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import anyio
import jmespath
import pytest
from tests.http_support import Page, ReceivedRequest, Site, page, send_response
from tests.state_support import open_media
from tests.support import TIMEOUT_SECONDS

from onetool import Permission, Result, ToolBus, ToolContext
from onetool.core.schema import Schema
from onetool.core.tool import Tool
from onetool.errors import BudgetExceeded, ToolError, describe
from onetool.net import HostRules, Net
from onetool.net.client import Response
from onetool.runs.results.blobs import Media
from onetool.settings.model import Http
from onetool.sources.http.backend import HttpBackend
from onetool.sources.http.definition import HttpImpl
from onetool.sources.http.response import ResponseReader, ResponseRedactor
from onetool.sources.http.selector import select
from onetool.state.counters import Counters, RateLimiter
from onetool.util.context import RunScope

NETWORK = ToolContext(permissions=frozenset({Permission.NETWORK}))
ANYWHERE = HostRules(("*",), allow_private_addresses=True)
JSON = ("Content-Type", "application/json")
SECRETS = {
    "KEY": "s3cr3t/ke y&1",
    "NUMBER": "1234567890",
    "PAIR": "bob:hunter22",
    "LINES": "first line\na line of a long secret\n",
}


@dataclass
class FakeClock:
    """A clock that advances only by sleeping."""

    now: float = 1000.0
    pauses: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@dataclass
class Caller:
    """An HTTP tool that is called through a bus, with a fake clock and a fixed random value."""

    site: Site
    settings: Mapping[str, Any] = field(default_factory=dict)
    time: FakeClock = field(default_factory=FakeClock)
    random_value: float = 0.0
    rate_limiter: RateLimiter = field(default_factory=RateLimiter)
    rules: HostRules = ANYWHERE
    context: ToolContext = NETWORK
    media: Media | None = None

    def results(
        self, calls: list[Mapping[str, Any]], schema: Mapping[str, Any], **fields: Any
    ) -> list[Result]:
        async def run() -> list[Result]:
            net = Net(self.rules)
            bus = ToolBus()
            backend = HttpBackend(
                HttpImpl.model_validate({"method": "GET", **fields}),
                lambda: net,
                lambda: Http.model_validate(self.settings),
                lambda _origin, name: SECRETS.get(name),
                media=(lambda: media) if (media := self.media) is not None else None,
                rate_limiter=self.rate_limiter,
                sleep=self.time.sleep,
                random=lambda: self.random_value,
                clock=self.time,
            )
            bus.register_tool(
                Tool(
                    "api.tool",
                    backend,
                    Schema.from_json(schema),
                    permissions=frozenset({Permission.NETWORK}),
                )
            )
            try:
                return [await bus.call_tool("api.tool", call, self.context) for call in calls]
            finally:
                await net.close()

        return anyio.run(run)

    def __call__(
        self, path: str = "/echo", args: Mapping[str, Any] | None = None, **fields: Any
    ) -> Result:
        return self.results(
            [args or {}], {"type": "object"}, **{"urlTemplate": self.site.url(path), **fields}
        )[0]

    def value(
        self, path: str = "/echo", args: Mapping[str, Any] | None = None, **fields: Any
    ) -> Any:
        return self(path, args, **fields).unwrap()

    def failure(
        self, path: str = "/echo", args: Mapping[str, Any] | None = None, **fields: Any
    ) -> dict[str, Any]:
        result = self(path, args, **fields)
        assert result.error is not None
        return describe(result.error)


@pytest.fixture
def call(site: Site) -> Caller:
    return Caller(site)


def respond_in_turn(*pages: Page) -> Page:
    """Return a page that serves these pages in turn, and the last one from then on."""
    left = list(pages)

    async def show(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(received, writer)

    return show


# --- retries --------------------------------------------------------------------------------------

FINE = page(b'"fine"', JSON)
BUSY = page(b"busy", status=503)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_busy_server_is_retried(call: Caller, status: int) -> None:
    call.site.pages["/turns"] = respond_in_turn(
        page(b"", status=status), page(b"", status=status), FINE
    )
    assert call.value("/turns") == "fine"
    assert call.time.pauses == [0.25, 0.5]


@pytest.mark.parametrize("status", [400, 404, 408, 409, 500, 501, 505])
def test_other_statuses_are_not_retried(call: Caller, status: int) -> None:
    call.site.pages["/turns"] = respond_in_turn(page(b"", status=status), FINE)
    assert call.failure("/turns")["status"] == status
    assert len(call.site.requests) == 1


def test_an_unreachable_host_is_retried(call: Caller) -> None:
    failure = call.failure(urlTemplate="http://127.0.0.1:1/")
    assert (failure["type"], failure["reason"]) == ("network", "connect")
    assert call.time.pauses == [0.25, 0.5]


def test_an_incomplete_response_is_not_retried(call: Caller) -> None:
    assert call.failure("/cut")["type"] == "network"
    assert len(call.site.requests) == 1


@pytest.mark.parametrize(
    ("method", "requests"), [("GET", 3), ("PUT", 3), ("DELETE", 3), ("POST", 1), ("PATCH", 1)]
)
def test_a_non_idempotent_request_is_not_retried(call: Caller, method: str, requests: int) -> None:
    call.site.pages["/busy"] = BUSY
    assert call.failure("/busy", method=method)["status"] == 503
    assert len(call.site.requests) == requests


def test_a_tool_may_allow_retries_of_non_idempotent_requests(call: Caller) -> None:
    call.site.pages["/busy"] = BUSY
    call("/busy", method="POST", retryNonIdempotent=True, retries=1, body={"same": "body"})
    assert [request.body for request in call.site.requests] == [b'{"same":"body"}'] * 2


@pytest.mark.parametrize(("retries", "requests"), [(0, 1), (1, 2), (5, 6)])
def test_the_tool_sets_the_number_of_retries(call: Caller, retries: int, requests: int) -> None:
    call.site.pages["/busy"] = BUSY
    call("/busy", retries=retries, timeoutMs=100_000)
    assert len(call.site.requests) == requests


def test_the_settings_have_the_default_number_of_retries(site: Site) -> None:
    site.pages["/busy"] = BUSY
    Caller(site, {"retries": 0})("/busy")
    assert len(site.requests) == 1


def test_pauses_double_up_to_a_limit_with_jitter(site: Site) -> None:
    site.pages["/busy"] = BUSY
    longest, shorter = Caller(site), Caller(site, random_value=1.0)
    longest("/busy", retries=8, timeoutMs=100_000)
    assert longest.time.pauses == [0.25, 0.5, 1, 2, 4, 8, 10, 10]
    shorter("/busy", retries=8, timeoutMs=100_000)
    assert shorter.time.pauses == [pause / 2 for pause in longest.time.pauses]


def test_retry_after_sets_the_minimum_pause(call: Caller) -> None:
    later = page(b"", ("Retry-After", "7"), status=429)
    sooner = page(b"", ("Retry-After", "0"), status=503)
    call.site.pages["/turns"] = respond_in_turn(later, sooner, FINE)
    assert call.value("/turns") == "fine"
    assert call.time.pauses == [7.0, 0.5]


@pytest.mark.parametrize("wait", ["10", "3600", "9" * 400])
def test_a_pause_beyond_the_timeout_returns_the_last_response_at_once(
    call: Caller, wait: str
) -> None:
    call.site.pages["/busy"] = page(b"", ("Retry-After", wait), status=503)
    assert call.failure("/busy", timeoutMs=10_000)["status"] == 503
    assert call.time.pauses == []


def test_all_attempts_share_one_timeout(call: Caller) -> None:
    call.site.pages["/busy"] = BUSY
    call("/busy", retries=10, timeoutMs=2_000)
    assert call.time.pauses == [0.25, 0.5, 1.0]


def test_a_silent_server_times_out(call: Caller) -> None:
    failure = call.failure("/never", timeoutMs=50)
    assert (failure["type"], failure["timeout_ms"]) == ("timeout", 50)
    assert failure["message"] == f"GET {call.site.url('/never')} timed out after 50 ms"


NOW = dt.datetime(2026, 11, 1, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 120),
        (" 3 ", 3),
        (format_datetime(NOW + dt.timedelta(seconds=90), usegmt=True), 90),
        (format_datetime(NOW - dt.timedelta(days=1), usegmt=True), 0),
        ("Sunday, 01-Nov-26 12:00:30 GMT", 30),
        ("Sun, 01 Nov 2026 12:00:30", 30),
        ("", 0), ("-5", 0), ("1.5", 0), ("soon", 0), ("nan", 0), ("inf", 0), ("١٢", 0), ("1e9", 0),
        ("Mon, 99 Foo 2026", 0),
        ("9" * 5000, 999_999_999),
    ],
)  # fmt: skip
def test_retry_after_is_a_number_or_a_date(text: str, seconds: float) -> None:
    assert Response(503, (("Retry-After", text),), b"", "", 0).parse_retry_after(NOW) == seconds


# --- limits ---------------------------------------------------------------------------------------


def test_calls_are_counted_over_the_last_minute() -> None:
    time = FakeClock()
    rate_limiter = RateLimiter(Counters(time))
    rate_limiter.acquire("a", 2)
    time.now += 50
    rate_limiter.acquire("a", 2)
    rate_limiter.acquire("b", 1)
    with pytest.raises(BudgetExceeded) as caught:
        rate_limiter.acquire("a", 2)
    assert describe(caught.value)["code"] == "rate_limited"
    assert caught.value.retry_after == 10
    time.now += 10
    rate_limiter.acquire("a", 2)
    with pytest.raises(BudgetExceeded):
        rate_limiter.acquire("a", 2)


def test_a_recreated_tool_keeps_its_call_count(call: Caller) -> None:
    assert call(maxCallsPerMinute=1).ok
    assert call.failure(maxCallsPerMinute=1)["code"] == "rate_limited"
    assert len(call.site.requests) == 1


def test_invalid_arguments_do_not_count_as_a_call(call: Caller) -> None:
    fields: dict[str, Any] = {"maxCallsPerMinute": 1}
    assert call.failure("/status/${code}", **fields)["type"] == "validation_error"
    assert call("/status/${code}", {"code": 200}, **fields).ok


def test_a_url_over_the_limit_is_not_sent(call: Caller) -> None:
    assert call(args={"q": "x" * 60_000}, query={"q": "${q}"}).ok
    failure = call.failure(args={"q": "x" * 66_000}, query={"q": "${q}"})
    assert (failure["type"], len(call.site.requests)) == ("validation_error", 1)


def test_joined_lists_and_objects_are_sent_as_written(call: Caller) -> None:
    fields: dict[str, Any] = {
        "query": {"ids": "${csv:ids}", "m": "${m}"},
        "headers": {"X-Ids": "${csv:plain}"},
    }
    args = {"ids": ["a,b", "c d"], "m": {"k&": ["1", "2"], "deep": {"x": "="}}, "plain": ["a", "b"]}
    value = call.value(args=args, **fields)
    assert value["query"] == {"ids": ["a,b,c d"], "m[k&]": ["1", "2"], "m[deep][x]": ["="]}
    assert call.site.last.header("x-ids") == "a,b"
    call("/echo/${csv:ids}", args)
    assert call.site.last.path == "/echo/a%2Cb,c%20d"


def test_a_body_without_its_value_is_not_sent(call: Caller) -> None:
    fields: dict[str, Any] = {
        "method": "POST",
        "body": "${x}",
        "headers": {"Content-Type": "application/json"},
    }
    assert call(**fields).ok
    assert (call.site.last.body, call.site.last.header("content-type")) == (b"", None)
    assert call(args={"x": None}, **fields).ok
    assert (call.site.last.body, call.site.last.header("content-type")) == (
        b"null",
        "application/json",
    )


def test_the_tool_and_the_settings_limit_the_size_of_a_response(site: Site) -> None:
    failure = Caller(site).failure("/stream/5000", maxResponseBytes=4000)
    assert (failure["reason"], failure["limit"]) == ("too_large", 4000)
    assert "maxResponseBytes of the tool" in failure["message"]
    strict = Caller(site, {"maxResponseBytes": 1000})
    assert strict.failure("/stream/5000", maxResponseBytes=1_000_000)["limit"] == 1000
    assert Caller(site).failure("/bomb/100", timeoutMs=60_000)["reason"] == "too_large"


# --- responses ------------------------------------------------------------------------------------


def read_response(
    body: bytes,
    kind: str = "",
    mode: str = "auto",
    selector: str | None = None,
    limit: int = 10_000_000,
) -> Any:
    headers = (("Content-Type", kind),) if kind else ()
    return ResponseReader(mode, selector, ResponseRedactor(()), limit).read(
        Response(200, headers, body, "", 0)
    )


@pytest.mark.parametrize(
    ("body", "kind", "value"),
    [
        (b'{"a": [1, null]}', "application/json; charset=utf-8", {"a": [1, None]}),
        (b"[1]", "application/problem+json", [1]),
        (b"[1]", "TEXT/JSON", [1]),
        (b"[1]", "text/plain", "[1]"),
        (b"<a/>", "image/svg+xml", "<a/>"),
        (b"{}\n{}", "application/x-ndjson", "{}\n{}"),
        ("grüße".encode("latin-1"), "text/plain; charset=iso-8859-1", "grüße"),
        (b"\xff", "text/plain", "\ufffd"),
        (b"plain", "", "plain"),
        (b"\xff\0", "", {"content_type": "application/octet-stream", "base64": "/wA="}),
        (b"\x89PNG", "image/png", {"content_type": "image/png", "base64": "iVBORw=="}),
        (b"", "application/json", None),
        (b" \n", "application/json", None),
        (b"", "image/png", None),
        (b"\xef\xbb\xbf[1]", "application/json", [1]),
        (b'["\\ud800", NaN, 1e999, 123456789012345678901234567890]', "application/json", None),
    ],
)
def test_a_response_is_parsed_by_its_content_type(body: bytes, kind: str, value: Any) -> None:
    given = read_response(body, kind)
    if b"ud800" in body:
        assert given[:2] == ["\ud800", None]
    else:
        assert given == value


def test_the_tool_may_set_the_response_mode() -> None:
    assert read_response(b"[1]", "text/html", "json") == [1]
    assert read_response(b"[1]", "application/json", "text") == "[1]"
    assert read_response(b"", "application/json", "text") == ""
    with pytest.raises(ToolError, match="is not valid JSON"):
        read_response(b"<html>", "text/html", "json")
    with pytest.raises(ToolError, match="is not valid JSON"):
        read_response(b"<html>", "application/json")


def test_a_selector_selects_part_of_the_response() -> None:
    body = json.dumps({"items": [{"id": 1, "n": "a"}, {"id": 2, "n": "b"}]}).encode()
    assert read_response(body, "text/plain", selector="items[?id > `1`].n | [0]") == "b"
    assert read_response(body, "application/json", selector="nothing.here") is None
    assert read_response(b"", "application/json", selector="a") is None
    with pytest.raises(ToolError, match="failed on the response"):
        read_response(body, "application/json", selector="length(items[0].id)")
    with pytest.raises(ToolError, match="is not valid JSON"):
        read_response(b"text", "text/plain", selector="a")


@pytest.mark.parametrize(
    "body",
    [b"[" * n + b"]" * n for n in (201, 900, 5_000, 200_000)]
    + [b'{"a":' * 500 + b"1" + b"}" * 500],
)
def test_deeply_nested_data_is_an_error(body: bytes) -> None:
    for mode, selector in (("auto", None), ("json", "[]")):
        with pytest.raises(ToolError, match="nested more than 200 levels"):
            read_response(body, "application/json", mode, selector)


def test_data_nested_up_to_the_limit_is_accepted() -> None:
    assert read_response(b"[" * 200 + b"]" * 200, "application/json") == json.loads(
        "[" * 200 + "]" * 200
    )
    assert len(read_response(b"[" + b"[]," * 10_000 + b"[]]", "application/json")) == 10_001


@pytest.mark.slow
def test_the_result_of_a_selector_is_limited_in_size() -> None:
    with pytest.raises(ToolError, match="larger than 10,000,000 bytes"):
        read_response(b'{"a": 1}', "application/json", selector=" | ".join(["[@,@]"] * 60))
    with pytest.raises(ToolError, match="larger than 1,000 bytes"):
        read_response(
            json.dumps("x" * 600).encode(), "application/json", selector="[@,@]", limit=1000
        )


def test_a_status_error_contains_the_response_body(call: Caller) -> None:
    call.site.pages["/wrong/x"] = page(b"no\n such   thing " + b"z" * 5000, status=404)
    failure = call.failure("/wrong/${id}", {"id": "x"})
    assert failure["type"] == "http_status"
    assert failure["status"] == 404
    assert failure["body"].startswith("no\n such   thing zzz")
    assert len(failure["body"]) == 2000
    start = f"GET {call.site.url('/wrong/${id}')} returned 404 Not Found: no such thing zzz"
    assert failure["message"].startswith(start)
    assert len(failure["message"]) < 400


def test_a_failed_status_may_return_none(call: Caller) -> None:
    assert call.value("/status/404", errorMode="empty") is None
    assert call.value("/status/404", successCodes=[404]) == "404"
    assert call.failure("/status/200", successCodes=["201-204"])["status"] == 200


def test_large_responses_are_parsed_too(call: Caller) -> None:
    items = [{"n": number} for number in range(20_000)]
    call.site.pages["/large"] = page(json.dumps(items).encode(), JSON)
    assert call.value("/large", response={"selector": "[-1].n"}) == 19_999


# --- secrets --------------------------------------------------------------------------------------


def render_everything(result: Result) -> str:
    output = (
        repr(result)
        if result.error is None
        else repr((describe(result.error), result.error, result.error.args))
    )
    return output + json.dumps(result.value) + repr(getattr(result.error, "__context__", None))


def assert_redacted(result: Result, *secrets: str) -> None:
    for secret in (*SECRETS.values(), "hunter22", "s3cr3t%2Fke", "s3cr3t/ke", *secrets):
        assert secret not in render_everything(result)


AUTHS: list[dict[str, str]] = [
    {"type": "bearer", "value": "${secret:KEY}"},
    {"type": "basic", "value": "${secret:PAIR}"},
    {"type": "basic", "value": "bob:${secret:KEY}"},
    {"type": "apiKey", "in": "header", "name": "X-Key", "value": "${secret:KEY}"},
    {"type": "apiKey", "in": "query", "name": "key", "value": "${secret:KEY}"},
]


@pytest.mark.parametrize("auth", AUTHS)
def test_a_secret_echoed_by_the_server_is_redacted(call: Caller, auth: dict[str, str]) -> None:
    async def tell(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        seen = repr(received) + " ".join(f"{name}: {value}" for name, value in received.headers)
        status = int(received.query["status"][0])
        send_response(
            writer, seen.encode(), ("Content-Type", received.query["kind"][0]), status=status
        )

    call.site.pages["/tell"] = tell
    token = base64.b64encode(SECRETS["PAIR"].encode()).decode()
    for kind in ("text/plain", "image/png"):
        for status in (200, 400):
            result = call("/tell", auth=auth, query={"kind": kind, "status": status})
            assert_redacted(result, token)
            if kind == "image/png" and result.ok:
                content = base64.b64decode(result.value["base64"]).decode()
                assert not any(
                    secret in content for secret in (*SECRETS.values(), token, "s3cr3t%2Fke")
                )
    assert_redacted(call(auth=auth), token)


def test_secrets_are_redacted_in_keys_numbers_and_parts_of_json(call: Caller) -> None:
    number, key = SECRETS["NUMBER"], SECRETS["KEY"]
    body = (
        f'{{"n": {number}, "f": 0.5, "b": true, {json.dumps(key)}: ["a {number} b"], "u":'
        ' "s3cr3t\\u002fke y&1"}'
    )
    call.site.pages["/json"] = page(body.encode(), JSON)
    value = call.value("/json", query={"a": "${secret:NUMBER}"}, headers={"X": "${secret:KEY}"})
    hidden = "[REDACTED]"
    assert value == {"n": hidden, "f": 0.5, "b": True, hidden: [f"a {hidden} b"], "u": hidden}


@pytest.mark.parametrize(
    "spelling", ["s3cr3t%2Fke%20y%261", "s3cr3t%2Fke+y%261", "s3cr3t/ke y&amp;1", "s3cr3t/ke y&1"]
)
def test_a_secret_is_redacted_in_url_and_html_encoding(call: Caller, spelling: str) -> None:
    call.site.pages["/spelt"] = page(f"it is {spelling}!".encode(), ("Content-Type", "text/html"))
    assert call.value("/spelt", headers={"X": "${secret:KEY}"}) == "it is [REDACTED]!"


@pytest.mark.parametrize(
    "body",
    [
        b'["it is 1234567890"]',
        b'["it is 123456789\\u0030"]',
        '["ä", "it is 1234567890"]'.encode(),
        '["it is 1234567890"]'.encode("utf-16"),
        b'["it is a line of a long secret"]',
    ],
)
def test_a_secret_is_redacted_in_every_json_escape(call: Caller, body: bytes) -> None:
    kind = "application/json; charset=utf-16" if body.startswith(b"\xff") else "application/json"
    call.site.pages["/spelt"] = page(body, ("Content-Type", kind))
    value = call.value("/spelt", method="POST", body="${secret:NUMBER} ${secret:LINES}")
    assert value[-1] == "it is [REDACTED]"


def test_a_selector_cannot_reassemble_a_secret(call: Caller) -> None:
    selector = {"selector": "join('-', [reverse(query.k[0]), query.k[0]])"}
    value = call.value(query={"k": "${secret:NUMBER}"}, response=selector)
    assert value == "]DETCADER[-[REDACTED]"


def test_a_literal_credential_is_redacted_too(call: Caller) -> None:
    result = call(auth={"type": "apiKey", "in": "header", "name": "X-Key", "value": "written-out"})
    assert call.site.last.header("x-key") == "written-out"
    assert "written-out" not in render_everything(result)
    assert "open-sesame" not in render_everything(
        call(auth={"type": "basic", "value": "ali:open-sesame"})
    )


def test_an_argument_with_a_secret_placeholder_is_plain_text(call: Caller) -> None:
    value = call.value(args={"q": "${secret:KEY}"}, query={"q": "${q}"}, headers={"X": "${q}"})
    assert value["query"]["q"] == ["${secret:KEY}"]
    assert ["x", "${secret:KEY}"] in value["headers"]


def test_a_secret_in_the_host_of_a_redirect_is_redacted(call: Caller) -> None:
    async def leave(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        send_response(
            writer,
            b"",
            ("Location", f"http://{received.header('x-key')}.elsewhere.test/"),
            status=302,
        )

    call.site.pages["/leave"] = leave
    call.rules = HostRules(("127.0.0.1",), allow_private_addresses=True)
    failure = call.failure("/leave", headers={"X-Key": "${secret:NUMBER}"})
    assert failure["reason"] == "host_not_allowed"
    assert SECRETS["NUMBER"] not in json.dumps(failure)


def test_errors_show_the_template_and_not_the_url(call: Caller) -> None:
    args = {"id": "private-id"}
    for path, fields in (
        ("/nowhere/${id}", {}),
        ("/never?id=${id}", {"timeoutMs": 20}),
        ("/cut?id=${id}", {}),
        ("/bytes/5000?id=${id}", {"maxResponseBytes": 10}),
    ):
        failure = call.failure(path, args, **fields)
        assert "private-id" not in json.dumps(failure)


# --- concurrency and imports ----------------------------------------------------------------------


def test_concurrent_calls_do_not_mix(site: Site) -> None:
    async def run() -> list[Result]:
        net = Net(ANYWHERE)
        impl = HttpImpl.model_validate(
            {"method": "GET", "urlTemplate": site.url(), "query": {"n": "${n}"}}
        )
        bus, results = ToolBus(), [Result(ok=False)] * 50
        backend = HttpBackend(impl, lambda: net, Http, lambda _origin, name: SECRETS.get(name))
        bus.register_tool(Tool("api.tool", backend, Schema.from_json({"type": "object"})))

        async def one(number: int) -> None:
            results[number] = await bus.call_tool("api.tool", {"n": number}, NETWORK)

        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(one, number)
        await net.close()
        return results

    assert [result.unwrap()["query"]["n"] for result in anyio.run(run)] == [
        [str(number)] for number in range(50)
    ]


def test_a_cancelled_call_is_not_retried(site: Site) -> None:
    async def run() -> None:
        net = Net(ANYWHERE)
        impl = HttpImpl.model_validate({"method": "GET", "urlTemplate": site.url("/never")})
        backend = HttpBackend(impl, lambda: net, Http, lambda _origin, name: SECRETS.get(name))
        tool = Tool("api.tool", backend, Schema.from_json({"type": "object"}))
        with anyio.move_on_after(0.2) as scope:
            await backend.invoke(tool, {}, NETWORK)
        assert scope.cancelled_caught
        await net.close()

    anyio.run(run)
    assert len(site.requests) == 1


def test_importing_the_backend_is_cheap() -> None:
    heavy = ("pydantic", "httpx2", "jmespath", "orjson")
    code = (
        f"import sys, onetool.sources.http.backend; print([name for name in {heavy} if name in"
        " sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- full responses -------------------------------------------------------------------------------


def test_a_full_response_has_status_headers_and_links(call: Caller) -> None:
    headers = (
        ("Link", '</items?page=3>; rel="next", <https://other.test/a,b>; rel="last first"'),
        ("X-RateLimit-Remaining", "7"),
        ("X-Twice", "1"),
        ("X-Twice", "2"),
        ("Set-Cookie", "session=s3ss10n"),
        ("X-Auth-Token", "t0ken"),
        ("X-Next-Token", "p4ge"),
        ("X-Echo", SECRETS["NUMBER"]),
    )
    call.site.pages["/items"] = page(b'{"items": [1]}', JSON, *headers, status=206)
    sent = {"X-Key": "${secret:NUMBER}"}
    full = call.value("/items", headers=sent, response={"full": True, "selector": "items"})
    assert (full["status"], full["body"]) == (206, [1])
    assert full["links"] == {
        "next": call.site.url("/items?page=3"),
        "last": "https://other.test/a,b",
        "first": "https://other.test/a,b",
    }
    kept = {
        "x-ratelimit-remaining": "7",
        "x-twice": "1, 2",
        "x-next-token": "p4ge",
        "content-type": "application/json",
    }
    hidden = dict.fromkeys(("set-cookie", "x-auth-token", "x-echo"), "[REDACTED]")
    assert full["headers"] == {**kept, **hidden, "content-length": "14", "link": headers[0][1]}


def test_an_argument_requests_the_full_response(call: Caller) -> None:
    call.site.pages["/items"] = page(b"[1]", JSON)
    response = {"full": "${full}"}
    assert call.value("/items", response=response) == [1]
    assert call.value("/items", {"full": False}, response=response) == [1]
    assert call.value("/items", {"full": True}, response=response)["status"] == 200


def test_an_error_tells_when_to_retry(call: Caller) -> None:
    call.site.pages["/busy"] = page(b"", ("Retry-After", "17"), status=429)
    failure = call.failure("/busy", retries=0)
    assert (failure["status"], failure["retry_after"]) == (429, 17)


# --- binary responses and files -------------------------------------------------------------------


def test_a_binary_response_is_stored(call: Caller, tmp_path: Path) -> None:
    call.media = open_media(tmp_path / "media", 60)
    call.site.pages["/image"] = page(
        b"\x89PNG" + SECRETS["NUMBER"].encode(), ("Content-Type", "image/png")
    )
    value = call.value("/image", headers={"X-Key": "${secret:NUMBER}"})
    assert (value["type"], value["mimeType"]) == ("image", "image/png")
    assert call.media.get(value["media"], "default").data == b"\x89PNG[REDACTED]"
    assert call.value("/image", response={"mode": "base64"})["content_type"] == "image/png"
    uploaded = call.value(
        args={"f": value}, method="PUT", body="${file:f}", headers={"Content-Type": "image/png"}
    )
    assert uploaded["body"].endswith("PNG[REDACTED]")


def test_a_response_is_written_to_a_file(call: Caller, tmp_path: Path) -> None:
    call.site.pages["/file"] = page(b"\0\1", ("Content-Type", "application/pdf"))
    options = {"response": {"saveTo": "${path}"}}
    sandbox = {"allowed_paths": [str(tmp_path)]}
    permissions = frozenset({Permission.NETWORK, Permission.WRITE})
    args = {"path": "a.pdf"}
    assert call.failure("/file", args, **options)["type"] == "permission_denied"
    call.context = ToolContext(permissions=permissions, sandbox=sandbox, working_dir=tmp_path)
    saved = call.value("/file", args, **options)
    assert saved == {"path": str(tmp_path / "a.pdf"), "size": 2, "content_type": "application/pdf"}
    assert (tmp_path / "a.pdf").read_bytes() == b"\0\1"
    assert call.failure("/file", {"path": "/etc/x"}, **options)["type"] == "sandbox_denied"
    assert call.value("/file", **options)["content_type"] == "application/pdf"
    assert "is not the path of a file" in call.failure("/file", {"path": 7}, **options)["message"]


def test_files_are_sent_by_path_or_base64(call: Caller, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"from a file")
    upload: dict[str, Any] = {
        "method": "POST",
        "headers": {"Content-Type": "multipart/form-data"},
        "body": {
            "kind": "note",
            "upload": {"value": "${file:upload}", "contentType": "text/x-note"},
        },
    }
    assert call.failure(args={"upload": "notes.txt"}, **upload)["type"] == "permission_denied"
    permissions = frozenset({Permission.NETWORK, Permission.READ})
    sandbox = {"allowed_paths": [str(tmp_path)]}
    call.context = ToolContext(permissions=permissions, sandbox=sandbox, working_dir=tmp_path)
    assert call.failure(args={"upload": "/etc/hostname"}, **upload)["type"] == "sandbox_denied"
    assert "is not a file: expected a path" in call.failure(args={"upload": 7}, **upload)["message"]
    assert "not valid base64" in call.failure(args={"upload": {"base64": "!"}}, **upload)["message"]
    assert call.site.requests == []
    call.value(args={"upload": "notes.txt"}, **upload)
    [kind, boundary] = (call.site.last.header("content-type") or "").split("; boundary=")
    assert kind == "multipart/form-data"
    assert call.site.last.body.decode().split("\r\n") == [
        f"--{boundary}",
        'Content-Disposition: form-data; name="kind"',
        "",
        "note",
        f"--{boundary}",
        'Content-Disposition: form-data; name="upload"; filename="notes.txt"',
        "Content-Type: text/x-note",
        "",
        "from a file",
        f"--{boundary}--",
        "",
    ]
    call.value(args={"upload": {"base64": "YWI="}}, method="PUT", body="${file:upload}")
    assert call.site.last.body == b"ab"
    too_large = call.failure(
        args={"upload": "notes.txt"}, method="PUT", body="${file:upload}", maxRequestBytes=5
    )
    assert too_large["message"].endswith(
        "is too large: this tool sends files of at most 5 bytes in total"
    )


# --- steps ----------------------------------------------------------------------------------------


def step(call: Caller, name: str, path: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "method": "POST", "urlTemplate": call.site.url(path), **fields}


def test_a_step_uses_the_responses_of_earlier_steps(call: Caller) -> None:
    token = "t0ken-of-the-session"
    cookies = ("Set-Cookie", "sid=c00kie; Path=/; HttpOnly")
    call.site.pages["/login"] = page(json.dumps({"data": {"token": token}}).encode(), JSON, cookies)
    call.site.pages["/items"] = page(b"[]", JSON, ("X-Item", "i/1"))
    login = step(call, "login", "/login", body={"user": "${user}", "password": "${secret:KEY}"})
    create = step(
        call,
        "create",
        "/items",
        auth={"type": "bearer", "value": "${steps.login.body.token}"},
        method="PUT",
    )
    login["response"] = {"selector": "data"}
    value = call.value(
        "/echo/",
        {"user": "ada"},
        urlTemplate=call.site.url("/echo")
        + "?item=${steps.create.headers.x-item}&n=${steps.create.status}",
        headers={
            "X-Token": "${steps.login.body.token}",
            "Cookie": "sid=${steps.login.cookies.sid}",
        },
        steps=[login, create],
    )
    assert json.loads(call.site.requests[0].body) == {"user": "ada", "password": SECRETS["KEY"]}
    assert call.site.requests[1].header("authorization") == f"Bearer {token}"
    assert call.site.last.header("x-token") == token
    assert call.site.last.header("cookie") == "sid=c00kie"
    assert value["query"] == {"item": ["i/1"], "n": ["200"]}
    assert token not in json.dumps(value)  # the page echoes the headers


def test_a_selector_of_a_step_never_sees_a_secret(call: Caller) -> None:
    selector = "[reverse(query.k[0]), starts_with(query.k[0], '12')]"
    leak = step(
        call, "leak", "/echo", query={"k": "${secret:NUMBER}"}, response={"selector": selector}
    )
    call.value("/echo", body={"v": "${steps.leak.body}"}, method="POST", steps=[leak])
    assert json.loads(call.site.last.body) == {"v": ["]DETCADER[", False]}


def test_headers_and_cookies_of_a_step_are_redacted(call: Caller) -> None:
    call.site.pages["/leak"] = page(
        b"{}", JSON, ("X-Echo", "1234567890"), ("Set-Cookie", "k=1234567890; Path=/")
    )
    leak = step(call, "leak", "/leak", headers={"X-Key": "${secret:NUMBER}"})
    query = {"h": "${steps.leak.headers.x-echo}", "c": "${steps.leak.cookies.k}"}
    call.value(query=query, steps=[leak])
    assert call.site.last.query == {"h": ["[REDACTED]"], "c": ["[REDACTED]"]}


@pytest.mark.parametrize("encode", [base64.b64encode, lambda text: text.hex().encode()])
def test_a_selector_never_sees_an_encoded_secret(
    call: Caller, encode: Callable[[bytes], bytes]
) -> None:
    echo = encode(b"user:1234567890")
    call.site.pages["/json"] = page(b'["' + echo + b'"]', JSON)
    value = call.value(
        "/json", headers={"X": "${secret:NUMBER}"}, response={"selector": "reverse([0])"}
    )
    assert "DETCADER" in value
    call.site.pages["/binary"] = page(b"\x89\0" + echo, ("Content-Type", "image/png"))
    value = call.value("/binary", headers={"X": "${secret:NUMBER}"}, response={"mode": "base64"})
    assert b"[REDACTED]" in base64.b64decode(value["base64"])


def test_a_failed_step_ends_the_call(call: Caller) -> None:
    failing = step(call, "login", "/status/401")
    failure = call.failure(steps=[failing], errorMode="empty")
    assert failure["status"] == 401
    assert failure["message"].startswith(
        f"step login: POST {call.site.url('/status/401')} returned 401"
    )
    call.site.pages["/login"] = page(b"{}", JSON)
    used: dict[str, Any] = {"headers": {"X-Token": "${steps.login.body.token}"}}
    failure = call.failure(steps=[step(call, "login", "/login")], **used)
    assert "the response of step login does not contain it" in failure["message"]
    assert [received.path for received in call.site.requests] == ["/status/401", "/login"]


def test_the_hosts_and_the_timeout_apply_to_every_step(call: Caller) -> None:
    failure = call.failure(steps=[step(call, "slow", "/never")], timeoutMs=200)
    assert failure["message"] == f"step slow: POST {call.site.url('/never')} timed out after 200 ms"
    call.rules = HostRules((f"127.0.0.1:{call.site.port}",), allow_private_addresses=True)
    elsewhere = {**step(call, "away", "/"), "urlTemplate": "https://other.test/"}
    assert call.failure(steps=[elsewhere])["reason"] == "host_not_allowed"


# --- server-sent events ---------------------------------------------------------------------------


def stream_events(*chunks: bytes, hang: bool = False) -> Page:
    async def show(_received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 x\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
        )
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()
            await asyncio.sleep(0.01)
        if hang:
            await asyncio.Event().wait()
        writer.close()

    return show


EVENTS: dict[str, Any] = {"response": {"mode": "events", "maxEvents": 3}}


def test_events_are_collected(call: Caller) -> None:
    chunks = (
        b": ping\n\nevent: a\nda",
        b'ta: {"n": 1}\n\n',
        b"id: 7\r\ndata: x\r\ndata: y\r\n\r\ndata: cut",
    )
    call.site.pages["/events"] = stream_events(*chunks)
    assert call.value("/events", **EVENTS) == [
        {"event": "a", "data": {"n": 1}},
        {"event": "message", "data": "x\ny", "id": "7"},
    ]
    assert call.value("/events", response={"mode": "events", "selector": "[].data.n"}) == [1]


def test_the_number_the_size_and_the_time_of_events_are_limited(call: Caller) -> None:
    notices: list[str] = []
    call.context = ToolContext(permissions=NETWORK.permissions, run=RunScope(notify=notices.append))
    call.site.pages["/events"] = stream_events(
        *[b"data: %d\n\n" % number for number in range(5)], hang=True
    )
    assert [event["data"] for event in call.value("/events", **EVENTS)] == [0, 1, 2]
    call.site.pages["/events"] = stream_events(b"data: 1\n\n", b"data: 2", hang=True)
    assert [event["data"] for event in call.value("/events", **EVENTS, timeoutMs=300)] == [1]
    call.site.pages["/events"] = stream_events(b"data: 1\n\n" + b"data: 2" * 1_000, hang=True)
    assert [event["data"] for event in call.value("/events", **EVENTS, maxResponseBytes=100)] == [1]
    assert [notice.partition("; ")[0] for notice in notices] == [
        "the event stream was closed after 3 events",
        "the event stream was closed after 0.3 s",
        "the event stream was closed after 100 bytes",
    ]
    assert call.site.hung_up.wait(TIMEOUT_SECONDS)


def test_secrets_in_events_are_redacted_and_errors_are_errors(call: Caller) -> None:
    call.site.pages["/events"] = stream_events(b"data: " + SECRETS["NUMBER"].encode() + b"!\n\n")
    sent = {"headers": {"X-Key": "${secret:NUMBER}"}}
    assert call.value("/events", **EVENTS, **sent)[0]["data"] == "[REDACTED]!"
    assert call.failure("/status/403", **EVENTS)["status"] == 403
    assert call.value("/echo", **EVENTS)["method"] == "GET"


SELECTED = {"items": [{"id": 2, "tags": ["b", "a"]}, {"id": 1, "tags": []}], "name": "x"}


@pytest.mark.parametrize(
    "selector",
    [
        "items[].tags[]",
        "items[*].tags",
        "items[::-1].id",
        "name[]",
        "name[::2]",
        "items[?id > `1`].tags | [0]",
        "items[?contains(tags, 'a')]",
        "sort_by(items, &id)[].id",
        "max_by(items, &id).{a: id, b: tags[0]}",
        "map(&id, items)",
        "reverse(sort(items[0].tags))",
        "items[?tags == `[]`].id",
        "to_string(items)",
        "[name, missing, @.items[0].id] | join('-', [[0], 'y'])",
    ],
)
def test_a_selector_selects_what_jmespath_selects(selector: str) -> None:
    assert select(selector, SELECTED) == jmespath.search(selector, SELECTED)
