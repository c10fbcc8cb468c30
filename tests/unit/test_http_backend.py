"""The backend of HTTP tools against a real server: repetition, limits, answers of every kind, and no secret shown."""

import asyncio
import base64
import datetime as dt
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import format_datetime
from typing import Any

import anyio
import pytest
from tests.http_support import Page, Received, Site, answer, page

from onetool import Permission, Result, ToolBus, ToolContext
from onetool._tool import Tool
from onetool.backends.http import HttpBackend
from onetool.backends.http_tool.answer import Reader
from onetool.backends.http_tool.impl import HttpImpl
from onetool.backends.http_tool.rates import Rates
from onetool.backends.http_tool.retry import retry_after
from onetool.config.model import Http
from onetool.errors import BudgetExceeded, ToolError, describe
from onetool.net import HostRules, Net
from onetool.net.exchange import Response
from onetool.schema import Schema

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
class Time:
    """A clock that only sleeping moves."""

    now: float = 1000.0
    pauses: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@dataclass
class Caller:
    """One HTTP tool, called through a bus; the time is the test's, and so is chance."""

    site: Site
    settings: Mapping[str, Any] = field(default_factory=dict)
    time: Time = field(default_factory=Time)
    chance: float = 0.0
    rates: Rates = field(default_factory=Rates)
    rules: HostRules = ANYWHERE

    def results(self, calls: list[Mapping[str, Any]], schema: Mapping[str, Any], **fields: Any) -> list[Result]:
        async def run() -> list[Result]:
            net = Net(self.rules)
            bus = ToolBus()
            backend = HttpBackend(
                HttpImpl.model_validate({"method": "GET", **fields}),
                lambda: net,
                lambda: Http.model_validate(self.settings),
                SECRETS.get,
                rates=self.rates,
                sleep=self.time.sleep,
                random=lambda: self.chance,
                clock=self.time,
            )
            bus.register_tool(
                Tool("api.tool", backend, Schema.from_json(schema), permissions=frozenset({Permission.NETWORK}))
            )
            try:
                return [await bus.call_tool("api.tool", call, NETWORK) for call in calls]
            finally:
                await net.close()

        return anyio.run(run)

    def __call__(self, path: str = "/echo", args: Mapping[str, Any] | None = None, **fields: Any) -> Result:
        return self.results([args or {}], {"type": "object"}, **{"urlTemplate": self.site.url(path), **fields})[0]

    def value(self, path: str = "/echo", args: Mapping[str, Any] | None = None, **fields: Any) -> Any:
        return self(path, args, **fields).unwrap()

    def failure(self, path: str = "/echo", args: Mapping[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
        result = self(path, args, **fields)
        assert result.error is not None
        return describe(result.error)


@pytest.fixture
def call(site: Site) -> Caller:
    return Caller(site)


def in_turn(*pages: Page) -> Page:
    """One page after the other, then the last for ever."""
    left = list(pages)

    async def show(received: Received, writer: asyncio.StreamWriter) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(received, writer)

    return show


# --- repetition --------------------------------------------------------------------------------------------

FINE = page(b'"fine"', JSON)
BUSY = page(b"busy", status=503)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_server_that_is_busy_is_asked_again(call: Caller, status: int) -> None:
    call.site.pages["/turns"] = in_turn(page(b"", status=status), page(b"", status=status), FINE)
    assert call.value("/turns") == "fine"
    assert call.time.pauses == [0.25, 0.5]


@pytest.mark.parametrize("status", [400, 404, 408, 409, 500, 501, 505])
def test_other_failures_are_final(call: Caller, status: int) -> None:
    call.site.pages["/turns"] = in_turn(page(b"", status=status), FINE)
    assert call.failure("/turns")["status"] == status
    assert len(call.site.requests) == 1


def test_a_host_that_cannot_be_reached_is_tried_again(call: Caller) -> None:
    failure = call.failure(urlTemplate="http://127.0.0.1:1/")
    assert (failure["type"], failure["reason"]) == ("network", "connect")
    assert call.time.pauses == [0.25, 0.5]


def test_an_answer_that_broke_off_is_not_tried_again(call: Caller) -> None:
    assert call.failure("/cut")["type"] == "network"
    assert len(call.site.requests) == 1


@pytest.mark.parametrize(("method", "requests"), [("GET", 3), ("PUT", 3), ("DELETE", 3), ("POST", 1), ("PATCH", 1)])
def test_what_may_not_happen_twice_is_tried_once(call: Caller, method: str, requests: int) -> None:
    call.site.pages["/busy"] = BUSY
    assert call.failure("/busy", method=method)["status"] == 503
    assert len(call.site.requests) == requests


def test_a_tool_may_say_that_twice_is_fine(call: Caller) -> None:
    call.site.pages["/busy"] = BUSY
    call("/busy", method="POST", retryNonIdempotent=True, retries=1, body={"same": "body"})
    assert [request.body for request in call.site.requests] == [b'{"same":"body"}'] * 2


@pytest.mark.parametrize(("retries", "requests"), [(0, 1), (1, 2), (5, 6)])
def test_there_are_as_many_repetitions_as_the_tool_says(call: Caller, retries: int, requests: int) -> None:
    call.site.pages["/busy"] = BUSY
    call("/busy", retries=retries, timeoutMs=100_000)
    assert len(call.site.requests) == requests


def test_the_settings_say_how_often_where_the_tool_does_not(site: Site) -> None:
    site.pages["/busy"] = BUSY
    Caller(site, {"retries": 0})("/busy")
    assert len(site.requests) == 1


def test_pauses_double_up_to_a_limit_and_vary_by_chance(site: Site) -> None:
    site.pages["/busy"] = BUSY
    longest, shorter = Caller(site), Caller(site, chance=1.0)
    longest("/busy", retries=8, timeoutMs=100_000)
    assert longest.time.pauses == [0.25, 0.5, 1, 2, 4, 8, 10, 10]
    shorter("/busy", retries=8, timeoutMs=100_000)
    assert shorter.time.pauses == [pause / 2 for pause in longest.time.pauses]


def test_the_server_says_how_long_to_wait(call: Caller) -> None:
    later = page(b"", ("Retry-After", "7"), status=429)
    sooner = page(b"", ("Retry-After", "0"), status=503)
    call.site.pages["/turns"] = in_turn(later, sooner, FINE)
    assert call.value("/turns") == "fine"
    assert call.time.pauses == [7.0, 0.5]


@pytest.mark.parametrize("wait", ["10", "3600", "9" * 400])
def test_a_wait_that_does_not_fit_ends_with_the_last_answer_at_once(call: Caller, wait: str) -> None:
    call.site.pages["/busy"] = page(b"", ("Retry-After", wait), status=503)
    assert call.failure("/busy", timeoutMs=10_000)["status"] == 503
    assert call.time.pauses == []


def test_all_attempts_share_one_time(call: Caller) -> None:
    call.site.pages["/busy"] = BUSY
    call("/busy", retries=10, timeoutMs=2_000)
    assert call.time.pauses == [0.25, 0.5, 1.0]


def test_a_server_that_says_nothing_is_given_up(call: Caller) -> None:
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
def test_what_a_server_may_write_as_time_to_wait(text: str, seconds: float) -> None:
    assert retry_after(Response(503, (("Retry-After", text),), b"", "", 0), NOW) == seconds


# --- limits ------------------------------------------------------------------------------------------------


def test_calls_are_counted_over_the_last_minute() -> None:
    time = Time()
    rates = Rates(time)
    rates.take("a", 2)
    time.now += 50
    rates.take("a", 2)
    rates.take("b", 1)
    with pytest.raises(BudgetExceeded) as caught:
        rates.take("a", 2)
    assert describe(caught.value)["code"] == "rate_limited"
    assert caught.value.retry_after == 10
    time.now += 10
    rates.take("a", 2)
    with pytest.raises(BudgetExceeded):
        rates.take("a", 2)


def test_a_tool_that_is_made_anew_remembers_its_calls(call: Caller) -> None:
    assert call(maxCallsPerMinute=1).ok
    assert call.failure(maxCallsPerMinute=1)["code"] == "rate_limited"
    assert len(call.site.requests) == 1


def test_wrong_arguments_are_no_call(call: Caller) -> None:
    fields: dict[str, Any] = {"maxCallsPerMinute": 1}
    assert call.failure("/status/${code}", **fields)["type"] == "validation_error"
    assert call("/status/${code}", {"code": 200}, **fields).ok


def test_a_url_that_nobody_takes_is_not_sent(call: Caller) -> None:
    assert call(args={"q": "x" * 60_000}, query={"q": "${q}"}).ok
    failure = call.failure(args={"q": "x" * 66_000}, query={"q": "${q}"})
    assert (failure["type"], len(call.site.requests)) == ("validation_error", 1)


def test_joined_lists_and_objects_arrive_as_they_were_written(call: Caller) -> None:
    fields: dict[str, Any] = {"query": {"ids": "${csv:ids}", "m": "${m}"}, "headers": {"X-Ids": "${csv:plain}"}}
    args = {"ids": ["a,b", "c d"], "m": {"k&": ["1", "2"], "deep": {"x": "="}}, "plain": ["a", "b"]}
    value = call.value(args=args, **fields)
    assert value["query"] == {"ids": ["a,b,c d"], "m[k&]": ["1", "2"], "m[deep][x]": ["="]}
    assert call.site.last.header("x-ids") == "a,b"
    call("/echo/${csv:ids}", args)
    assert call.site.last.path == "/echo/a%2Cb,c%20d"


def test_a_body_without_its_value_is_not_sent(call: Caller) -> None:
    fields: dict[str, Any] = {"method": "POST", "body": "${x}", "headers": {"Content-Type": "application/json"}}
    assert call(**fields).ok
    assert (call.site.last.body, call.site.last.header("content-type")) == (b"", None)
    assert call(args={"x": None}, **fields).ok
    assert (call.site.last.body, call.site.last.header("content-type")) == (b"null", "application/json")


def test_a_response_is_bounded_by_the_tool_and_by_the_settings(site: Site) -> None:
    failure = Caller(site).failure("/stream/5000", maxResponseBytes=4000)
    assert (failure["reason"], failure["limit"]) == ("too_large", 4000)
    assert "maxResponseBytes of the tool" in failure["message"]
    strict = Caller(site, {"maxResponseBytes": 1000})
    assert strict.failure("/stream/5000", maxResponseBytes=1_000_000)["limit"] == 1000
    assert Caller(site).failure("/bomb/100", timeoutMs=60_000)["reason"] == "too_large"


# --- answers -----------------------------------------------------------------------------------------------


def read(body: bytes, kind: str = "", mode: str = "auto", selector: str | None = None, limit: int = 10_000_000) -> Any:
    headers = (("Content-Type", kind),) if kind else ()
    return Reader(mode, selector).value(Response(200, headers, body, "", 0), None, limit)


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
def test_an_answer_is_read_by_its_kind(body: bytes, kind: str, value: Any) -> None:
    given = read(body, kind)
    if b"ud800" in body:
        assert given[:2] == ["\ud800", None]
    else:
        assert given == value


def test_the_tool_may_say_how_an_answer_is_read() -> None:
    assert read(b"[1]", "text/html", "json") == [1]
    assert read(b"[1]", "application/json", "text") == "[1]"
    assert read(b"", "application/json", "text") == ""
    with pytest.raises(ToolError, match="is not valid JSON"):
        read(b"<html>", "text/html", "json")
    with pytest.raises(ToolError, match="is not valid JSON"):
        read(b"<html>", "application/json")


def test_a_selector_takes_its_part() -> None:
    body = json.dumps({"items": [{"id": 1, "n": "a"}, {"id": 2, "n": "b"}]}).encode()
    assert read(body, "text/plain", selector="items[?id > `1`].n | [0]") == "b"
    assert read(body, "application/json", selector="nothing.here") is None
    assert read(b"", "application/json", selector="a") is None
    with pytest.raises(ToolError, match="failed on the response"):
        read(body, "application/json", selector="length(items[0].id)")
    with pytest.raises(ToolError, match="is not valid JSON"):
        read(b"text", "text/plain", selector="a")


@pytest.mark.parametrize(
    "body", [b"[" * n + b"]" * n for n in (201, 900, 5_000, 200_000)] + [b'{"a":' * 500 + b"1" + b"}" * 500]
)
def test_data_without_bottom_is_an_error_and_no_crash(body: bytes) -> None:
    for mode, selector in (("auto", None), ("json", "[]")):
        with pytest.raises(ToolError, match="nested more than 200 levels"):
            read(body, "application/json", mode, selector)


def test_deep_data_is_fine_up_to_the_limit() -> None:
    assert read(b"[" * 200 + b"]" * 200, "application/json") == json.loads("[" * 200 + "]" * 200)
    assert len(read(b"[" + b"[]," * 10_000 + b"[]]", "application/json")) == 10_001


@pytest.mark.slow
def test_a_selector_cannot_make_much_of_little() -> None:
    with pytest.raises(ToolError, match="larger than 10,000,000 bytes"):
        read(b'{"a": 1}', "application/json", selector=" | ".join(["[@,@]"] * 60))
    with pytest.raises(ToolError, match="larger than 1,000 bytes"):
        read(json.dumps("x" * 600).encode(), "application/json", selector="[@,@]", limit=1000)


def test_a_failed_status_says_what_the_server_said(call: Caller) -> None:
    call.site.pages["/wrong/x"] = page(b"no\n such   thing " + b"z" * 5000, status=404)
    failure = call.failure("/wrong/${id}", {"id": "x"})
    assert failure["type"] == "http_status"
    assert failure["status"] == 404
    assert failure["body"].startswith("no\n such   thing zzz")
    assert len(failure["body"]) == 2000
    start = f"GET {call.site.url('/wrong/${id}')} returned 404 Not Found: no such thing zzz"
    assert failure["message"].startswith(start)
    assert len(failure["message"]) < 400


def test_a_failed_status_may_be_nothing(call: Caller) -> None:
    assert call.value("/status/404", errorMode="empty") is None
    assert call.value("/status/404", successCodes=[404]) == "404"
    assert call.failure("/status/200", successCodes=["201-204"])["status"] == 200


def test_large_answers_are_read_all_the_same(call: Caller) -> None:
    items = [{"n": number} for number in range(20_000)]
    call.site.pages["/large"] = page(json.dumps(items).encode(), JSON)
    assert call.value("/large", response={"selector": "[-1].n"}) == 19_999


# --- secrets -----------------------------------------------------------------------------------------------


def everything(result: Result) -> str:
    shown = repr(result) if result.error is None else repr((describe(result.error), result.error, result.error.args))
    return shown + json.dumps(result.value) + repr(getattr(result.error, "__context__", None))


def assert_hidden(result: Result, *secrets: str) -> None:
    for secret in (*SECRETS.values(), "hunter22", "s3cr3t%2Fke", "s3cr3t/ke", *secrets):
        assert secret not in everything(result)


AUTHS: list[dict[str, str]] = [
    {"type": "bearer", "value": "${secret:KEY}"},
    {"type": "basic", "value": "${secret:PAIR}"},
    {"type": "basic", "value": "bob:${secret:KEY}"},
    {"type": "apiKey", "in": "header", "name": "X-Key", "value": "${secret:KEY}"},
    {"type": "apiKey", "in": "query", "name": "key", "value": "${secret:KEY}"},
]


@pytest.mark.parametrize("auth", AUTHS)
def test_a_server_that_echoes_a_secret_does_not_show_it(call: Caller, auth: dict[str, str]) -> None:
    async def tell(received: Received, writer: asyncio.StreamWriter) -> None:
        seen = repr(received) + " ".join(f"{name}: {value}" for name, value in received.headers)
        status = int(received.query["status"][0])
        answer(writer, seen.encode(), ("Content-Type", received.query["kind"][0]), status=status)

    call.site.pages["/tell"] = tell
    token = base64.b64encode(SECRETS["PAIR"].encode()).decode()
    for kind in ("text/plain", "image/png"):
        for status in (200, 400):
            result = call("/tell", auth=auth, query={"kind": kind, "status": status})
            assert_hidden(result, token)
            if kind == "image/png" and result.ok:
                content = base64.b64decode(result.value["base64"]).decode()
                assert not any(secret in content for secret in (*SECRETS.values(), token, "s3cr3t%2Fke"))
    assert_hidden(call(auth=auth), token)


def test_secrets_are_hidden_in_keys_numbers_and_pieces_of_json(call: Caller) -> None:
    number, key = SECRETS["NUMBER"], SECRETS["KEY"]
    body = f'{{"n": {number}, "f": 0.5, "b": true, {json.dumps(key)}: ["a {number} b"], "u": "s3cr3t\\u002fke y&1"}}'
    call.site.pages["/json"] = page(body.encode(), JSON)
    value = call.value("/json", query={"a": "${secret:NUMBER}"}, headers={"X": "${secret:KEY}"})
    hidden = "[REDACTED]"
    assert value == {"n": hidden, "f": 0.5, "b": True, hidden: [f"a {hidden} b"], "u": hidden}


@pytest.mark.parametrize("spelling", ["s3cr3t%2Fke%20y%261", "s3cr3t%2Fke+y%261", "s3cr3t/ke y&amp;1", "s3cr3t/ke y&1"])
def test_a_secret_is_hidden_as_urls_and_pages_spell_it(call: Caller, spelling: str) -> None:
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
def test_a_secret_is_hidden_however_json_spells_it(call: Caller, body: bytes) -> None:
    kind = "application/json; charset=utf-16" if body.startswith(b"\xff") else "application/json"
    call.site.pages["/spelt"] = page(body, ("Content-Type", kind))
    value = call.value("/spelt", method="POST", body="${secret:NUMBER} ${secret:LINES}")
    assert value[-1] == "it is [REDACTED]"


def test_a_selector_cannot_spell_a_secret(call: Caller) -> None:
    selector = {"selector": "join('-', [reverse(query.k[0]), query.k[0]])"}
    value = call.value(query={"k": "${secret:NUMBER}"}, response=selector)
    assert value == "]DETCADER[-[REDACTED]"


def test_a_credential_that_is_written_out_is_hidden_too(call: Caller) -> None:
    result = call(auth={"type": "apiKey", "in": "header", "name": "X-Key", "value": "written-out"})
    assert call.site.last.header("x-key") == "written-out"
    assert "written-out" not in everything(result)
    assert "open-sesame" not in everything(call(auth={"type": "basic", "value": "ali:open-sesame"}))


def test_an_argument_that_asks_for_a_secret_is_a_text(call: Caller) -> None:
    value = call.value(args={"q": "${secret:KEY}"}, query={"q": "${q}"}, headers={"X": "${q}"})
    assert value["query"]["q"] == ["${secret:KEY}"]
    assert ["x", "${secret:KEY}"] in value["headers"]


def test_a_secret_that_a_server_puts_into_a_host_is_hidden(call: Caller) -> None:
    async def leave(received: Received, writer: asyncio.StreamWriter) -> None:
        answer(writer, b"", ("Location", f"http://{received.header('x-key')}.elsewhere.test/"), status=302)

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


# --- together ----------------------------------------------------------------------------------------------


def test_calls_at_the_same_time_do_not_meet(site: Site) -> None:
    async def run() -> list[Result]:
        net = Net(ANYWHERE)
        impl = HttpImpl.model_validate({"method": "GET", "urlTemplate": site.url(), "query": {"n": "${n}"}})
        bus, results = ToolBus(), [Result(ok=False)] * 50
        backend = HttpBackend(impl, lambda: net, Http, SECRETS.get)
        bus.register_tool(Tool("api.tool", backend, Schema.from_json({"type": "object"})))

        async def one(number: int) -> None:
            results[number] = await bus.call_tool("api.tool", {"n": number}, NETWORK)

        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(one, number)
        await net.close()
        return results

    assert [result.unwrap()["query"]["n"] for result in anyio.run(run)] == [[str(number)] for number in range(50)]


def test_a_call_that_is_cancelled_is_not_tried_again(site: Site) -> None:
    async def run() -> None:
        net = Net(ANYWHERE)
        impl = HttpImpl.model_validate({"method": "GET", "urlTemplate": site.url("/never")})
        backend = HttpBackend(impl, lambda: net, Http, SECRETS.get)
        tool = Tool("api.tool", backend, Schema.from_json({"type": "object"}))
        with anyio.move_on_after(0.2) as scope:
            await backend.invoke(tool, {}, NETWORK)
        assert scope.cancelled_caught
        await net.close()

    anyio.run(run)
    assert len(site.requests) == 1


def test_nothing_heavy_is_loaded_with_the_backend() -> None:
    heavy = ("pydantic", "httpx2", "jmespath", "tenacity", "orjson")
    code = f"import sys, onetool.backends.http; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
