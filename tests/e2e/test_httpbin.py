"""Stored HTTP tools against the real httpbin, called through every interface.

One httpbin and one `onetool serve --http` serve the whole module. httpbin sees a request only after
its web server has decoded it, so the tests read the original request from the log of that server.
"""

import base64
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit
from urllib.request import urlopen
from xml.etree import ElementTree as ET

import pytest
import yaml
from anyio.from_thread import start_blocking_portal
from tests.conformance_support import Published
from tests.httpbin_support import Httpbin, httpbin
from tests.rest_support import Rest, http_draft, make_client, new_slug, serve_process
from tests.support import configure, run_cli

from onetool_child.json_types import JsonObject

pytestmark = pytest.mark.slow

TOKEN = "tok-en/4+5=that-nobody-sees"
PASSWORD = "pa55:wörd with spaces"
SECRETS = {
    "KEY": TOKEN,
    "PAIR": f"bob:{PASSWORD}",
    "OTHER_PAIR": "bob:another-password",
    "HTTPBIN_AUTHORIZATION": f"Bearer {TOKEN}",
}
TEXT = {"type": "string"}
HOSTILE = [
    "\"double\" and 'single' \\ back",
    "a\nb\r\nX-Evil: 1\r\n\r\nGET /evil HTTP/1.1",
    "\ttab and  two spaces ",
    "{{7*7}} ${id} $${id} ${secret:KEY} {% raw %} %(id)s {0}",
    "%2F..%2f%00%0d%0a%",
    "../../admin",
    "a/b?c=d#e&id=f;g+h",
    '","admin":true,"x":"',
    "]]><admin/>&amp;<!--",
    "Grüße, 日本, 🎉, \u202eabc, e\u0301, \u2028, \x00, \x7f",
    "null",
    "@evil.test:80",
    "x" * 1_500,
]


@dataclass(frozen=True)
class World:
    home: Path
    httpbin: Httpbin
    rest: Rest
    bundle: str
    slug: str
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def tool(
        self, path: str, args: Mapping[str, Any] | None = None, host: str = "127.0.0.1", **impl: Any
    ) -> "Stored":
        """Create a tool over REST."""
        slug = f"tool-{next(self.numbers)}"
        impl_body = http_draft(self.httpbin.url(path, host), **impl)
        return Stored(
            self, slug, self.rest.tool(self.bundle, slug, **impl_body, argSchema=build_schema(args))
        )

    def value(self, path: str, **impl: Any) -> Any:
        return self.tool(path, **impl).value()

    def error(self, path: str, **impl: Any) -> JsonObject:
        return self.tool(path, **impl).error()

    def run(self, expression: str) -> Any:
        """Return the value of an expression that a run evaluates."""
        answer = self.rest.send("POST", "/api/run", {"command": f"[{expression}]"}).json()
        assert not answer["isError"], answer
        return json.loads(answer["blocks"][-1])[0]

    def run_command(self, name: str, args: Mapping[str, Any]) -> Any:
        done = run_cli(
            self.home, "call", name, *(f"{key}={json.dumps(value)}" for key, value in args.items())
        )
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)


@dataclass(frozen=True)
class Stored:
    world: World
    slug: str
    path: str

    def value(self, **args: Any) -> Any:
        answer = self.world.rest.invoke(self.path, args)
        assert answer.json().get("ok") is True, answer.text
        return answer.json()["value"]

    def error(self, **args: Any) -> JsonObject:
        answer = self.world.rest.invoke(self.path, args)
        assert answer.status_code == 200, answer.text
        assert answer.json()["ok"] is False, answer.text
        error: JsonObject = answer.json()["error"]
        return error

    def run_code(self, **args: Any) -> Any:
        return self.world.run(f"{self.world.slug}.{self.slug.replace('-', '_')}(**{args!r})")

    def run_command(self, **args: Any) -> Any:
        return self.world.run_command(f"{self.world.slug}.{self.slug}", args)


def build_schema(args: Mapping[str, Any] | None) -> JsonObject:
    return {"type": "object", "properties": dict(args or {}), "additionalProperties": False}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = tmp_path_factory.mktemp("home")
    with httpbin(tmp_path_factory.mktemp("httpbin")) as bin_:
        hosts = [f"{host}:{bin_.port}" for host in ("127.0.0.1", "localhost")]
        allowed = {
            bundle: {name: [bin_.url("")] for name in SECRETS} for bundle in ("stored", "httpbin")
        }
        http = {"allowedHosts": hosts, "allowPrivateAddresses": True}
        configure(home, yaml.safe_dump({"http": http, "bundle_secrets": allowed}))
        secrets = home / ".onetool" / "secrets.yaml"
        secrets.touch(0o600)
        secrets.write_text(yaml.safe_dump(SECRETS, allow_unicode=True), encoding="utf-8")
        with serve_process(home) as (_, result), make_client(result["url"]) as client:
            rest = Rest(client)
            yield World(home, bin_, rest, rest.bundle("stored"), "stored")


# --- requests -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
def test_each_method_sends_its_path_query_headers_and_body(world: World, method: str) -> None:
    tool = world.tool(
        "/anything/items/${id}",
        {"id": TEXT, "count": {"type": "integer"}, "tags": {"type": "array"}, "note": TEXT},
        method=method,
        query={"count": "${count}", "tag": "${tags}", "note": "${note}", "fixed": "yes"},
        headers={"X-Note": "no. ${count}", "X-Missing": "${note}"},
        body={"id": "${id}", "deep": [{"count": "${count}"}, "of ${count}"], "note": "${note}"},
    )
    seen = tool.value(id="a b", count=3, tags=["x", "y"])
    assert seen["method"] == method
    assert seen["args"] == {"count": "3", "tag": ["x", "y"], "fixed": "yes"}
    assert seen["json"] == {"id": "a b", "deep": [{"count": 3}, "of 3"]}
    assert seen["headers"]["X-Note"] == "no. 3"
    assert seen["headers"]["Content-Type"] == "application/json"
    assert "X-Missing" not in seen["headers"]
    assert urlsplit(seen["url"]).path == "/anything/items/a%20b"
    assert world.tool(f"/{method.lower()}", method=method).value()["url"] == world.httpbin.url(
        f"/{method.lower()}"
    )


def test_head_returns_none_and_a_wrong_method_fails(world: World) -> None:
    assert world.value("/get", method="HEAD") is None
    assert world.error("/get", method="POST")["status"] == 405


@pytest.mark.parametrize("interface", ["value", "run_code", "run_command"])
def test_every_interface_returns_the_same_for_hostile_values(world: World, interface: str) -> None:
    tool = world.tool(
        "/anything",
        {"values": {"type": "array"}},
        method="POST",
        query={"v": "${values}"},
        body={"v": "${values}"},
    )
    call: Callable[..., Any] = getattr(tool, interface)
    seen = call(values=HOSTILE)
    assert seen["args"] == {"v": HOSTILE}
    assert seen["json"] == {"v": HOSTILE}
    assert seen["url"].startswith(world.httpbin.url("/anything?"))


def test_a_hostile_value_in_the_query_is_one_value(world: World) -> None:
    tool = world.tool("/anything?a=${id}&b=1", {"id": TEXT}, query={"c": "<${id}>"})
    for value in HOSTILE:
        assert tool.value(id=value)["args"] == {"a": value, "b": "1", "c": f"<{value}>"}


BODIES: list[tuple[str, Any, Callable[[JsonObject], Any]]] = [
    ("application/json", {"a": "${id}", "b": "<${id}>"}, lambda seen: seen["json"]),
    ("application/json", '{"a": ${id}, "b": "<${id}>"}', lambda seen: seen["json"]),
    ("application/x-www-form-urlencoded", "a=${id}&b=<${id}>", lambda seen: seen["form"]),
    ("application/xml", '<x a="${id}">&lt;${id}&gt;</x>', lambda seen: escape_xml(seen["data"])),
]


def escape_xml(text: str) -> JsonObject:
    element = ET.fromstring(text)
    assert list(element) == []
    return {**element.attrib, "b": element.text}


@pytest.mark.parametrize(("kind", "body", "read"), BODIES)
def test_a_hostile_value_in_a_body_is_one_value(
    world: World, kind: str, body: Any, read: Callable[[JsonObject], Any]
) -> None:
    tool = world.tool(
        "/anything", {"id": TEXT}, method="POST", headers={"Content-Type": kind}, body=body
    )
    for value in HOSTILE:
        if kind == "application/xml" and "\0" in value:
            continue  # XML cannot represent it
        assert read(tool.value(id=value)) == {"a": value, "b": f"<{value}>"}


def test_a_plain_text_body_is_sent_unchanged(world: World) -> None:
    plain = {"Content-Type": "text/plain"}
    tool = world.tool("/anything", {"id": TEXT}, method="POST", headers=plain, body="<${id}>")
    for value in HOSTILE:
        assert tool.value(id=value)["data"] == f"<{value}>"


def test_a_hostile_value_in_the_path_is_one_segment(world: World) -> None:
    tag = new_slug()
    tool = world.tool(f"/anything/{tag}/${{id}}/end", {"id": TEXT})
    for value in HOSTILE:
        world.rest.invoke(
            tool.path, {"id": value}
        )  # httpbin does not route paths with a line break
    targets = [seen.target.split("/") for seen in world.httpbin.find_requests(tag)]
    assert [[*target[:3], unquote(target[3]), *target[4:]] for target in targets] == [
        ["", "anything", tag, value, "end"] for value in HOSTILE
    ]


def test_a_segment_that_would_change_the_path_is_not_sent(world: World) -> None:
    tag = new_slug()
    tool = world.tool(f"/anything/{tag}/${{id}}/end", {"id": TEXT})
    for value in ("", ".", ".."):
        assert "which changes the path" in tool.error(id=value)["message"]
    assert world.httpbin.find_requests(f"/anything/{tag}/") == []


def test_a_hostile_value_in_a_header_is_sent_unchanged_or_rejected(world: World) -> None:
    tag = new_slug()
    tool = world.tool(f"/anything/{tag}", {"id": TEXT}, headers={"X-Note": "<${id}>"})
    rejected = [value for value in HOSTILE if any(character in value for character in "\r\n\0\x7f")]
    assert len(rejected) == 2
    for value in rejected:
        assert "which is not allowed in the header X-Note" in tool.error(id=value)["message"]
    assert world.httpbin.find_requests(tag) == []
    for value in set(HOSTILE) - set(rejected):
        headers = tool.value(id=value)["headers"]  # WSGI decodes headers as Latin-1
        assert headers["X-Note"].encode("latin-1").decode() == f"<{value}>"


# --- credentials ----------------------------------------------------------------------------------


def test_basic_authentication_succeeds_or_fails(world: World) -> None:
    path = "/basic-auth/bob/pa55%3Aw%C3%B6rd%20with%20spaces"
    right = {"type": "basic", "value": "${secret:PAIR}"}
    assert world.value(path, auth=right) == {"authenticated": True, "user": "bob"}
    assert world.error(path, auth={**right, "value": "${secret:OTHER_PAIR}"})["status"] == 401
    assert world.error(path)["status"] == 401
    named = world.tool(
        path, {"user": TEXT}, auth={"type": "basic", "value": f"${{user}}:{PASSWORD}"}
    )
    assert named.value(user="bob") == {"authenticated": True, "user": "bob"}
    assert named.error(user="eve")["status"] == 401
    assert "cannot contain a colon" in named.error(user="bob:x")["message"]


def test_a_bearer_token_is_sent_and_never_shown(world: World) -> None:
    auth = {"type": "bearer", "value": "${secret:KEY}"}
    tag = new_slug()
    assert world.value(f"/bearer?{tag}", auth=auth) == {
        "authenticated": True,
        "token": "[REDACTED]",
    }
    assert [seen.authorization for seen in world.httpbin.find_requests(f"/bearer?{tag}")] == [
        f"Bearer {TOKEN}"
    ]
    assert world.error("/bearer")["status"] == 401


def test_an_api_key_is_sent_in_its_header_or_parameter_and_never_shown(world: World) -> None:
    tag = new_slug()
    key = {"type": "apiKey", "value": "${secret:KEY}"}
    in_header = world.value(f"/anything/{tag}", auth={**key, "in": "header", "name": "X-Key"})
    in_query = world.value(f"/anything/{tag}", auth={**key, "in": "query", "name": "key"})
    first, second = world.httpbin.find_requests(f"/anything/{tag}")
    assert (first.key, first.target) == (TOKEN, f"/anything/{tag}")
    assert (second.key, unquote(second.target)) == ("-", f"/anything/{tag}?key={TOKEN}")
    assert in_header["headers"]["X-Key"] == "[REDACTED]"
    assert in_query["args"] == {"key": "[REDACTED]"}
    assert TOKEN not in json.dumps([in_header, in_query])


# --- responses ------------------------------------------------------------------------------------


def test_a_response_is_json_text_or_bytes_by_its_content_type(world: World) -> None:
    assert world.value("/json")["slideshow"]["author"] == "Yours Truly"
    assert world.value("/robots.txt") == "User-agent: *\nDisallow: /deny\n"
    assert "∮ E⋅da = Q" in world.value("/encoding/utf8")
    assert ET.fromstring(world.value("/xml")).tag == "slideshow"
    image = world.value("/image/png", response={"mode": "base64"})
    assert image["content_type"] == "image/png"
    assert base64.b64decode(image["base64"]).startswith(b"\x89PNG\r\n")
    assert world.value("/bytes/64?seed=1")["size"] == 64
    assert world.value("/json", response={"mode": "text"}).startswith("{")
    lines = world.value("/stream/3", response={"mode": "text"}).splitlines()
    assert [json.loads(line)["id"] for line in lines] == [0, 1, 2]
    assert "is not valid JSON" in world.error("/html", response={"mode": "json"})["message"]
    assert world.value("/status/200") is None


def test_an_image_is_the_same_through_every_interface(world: World) -> None:
    tool = world.tool("/image/png", response={"mode": "base64"})
    assert tool.value() == tool.run_code() == tool.run_command()


def test_a_selector_selects_part_of_the_response(world: World) -> None:
    titles = {"response": {"selector": "slideshow.slides[].title"}}
    assert world.value("/json", **titles) == ["Wake up to WonderWidgets!", "Overview"]
    chosen = world.tool(
        "/anything",
        {"rows": {"type": "array"}},
        method="POST",
        body={"rows": "${rows}"},
        response={"selector": "{method: method, big: json.rows[?n > `1`].name}"},
    )
    rows = [{"n": 1, "name": "a"}, {"n": 2, "name": "b"}, {"n": 3, "name": "ß"}]
    assert chosen.value(rows=rows) == {"method": "POST", "big": ["b", "ß"]}
    assert world.value("/json", response={"selector": "nothing.here"}) is None
    assert (
        "failed on the response"
        in world.error("/json", response={"selector": "abs(slideshow)"})["message"]
    )


def test_supported_compression_is_decoded_and_other_is_an_error(world: World) -> None:
    assert world.value("/gzip", response={"selector": "gzipped"}) is True
    assert world.value("/deflate", response={"selector": "deflated"}) is True
    for mode in ("auto", "json", "text"):
        message = world.error("/brotli", response={"mode": mode})["message"]
        assert "unsupported compression 'br' of the response (expected gzip or deflate)" in message


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [404, 418, 500, 503])
def test_a_status_is_a_failure_none_or_a_success(world: World, status: int) -> None:
    path, once = f"/status/{status}", {"retries": 0}
    error = world.error(path, **once)
    assert (error["type"], error["status"]) == ("http_status", status)
    assert f"returned {status}" in error["message"]
    assert world.value(path, **once, errorMode="empty") is None
    returned = world.value(path, **once, successCodes=[200, "400-599"])
    assert "teapot" in returned if status == 418 else returned is None
    assert world.error("/status/200", successCodes=[status])["status"] == 200


@pytest.mark.parametrize(
    ("status", "impl", "attempts"),
    [
        (503, {"retries": 2}, 3),
        (503, {"retries": 0}, 1),
        (429, {"retries": 1}, 2),
        (500, {"retries": 2}, 1),
        (404, {"retries": 2}, 1),
        (503, {"retries": 2, "method": "POST"}, 1),
        (503, {"retries": 1, "method": "POST", "retryNonIdempotent": True}, 2),
        (503, {"retries": 1, "method": "PUT", "errorMode": "empty"}, 2),
    ],
)
def test_retryable_failures_are_retried(
    world: World, status: int, impl: dict[str, Any], attempts: int
) -> None:
    tag = new_slug()
    world.rest.invoke(world.tool(f"/status/{status}?{tag}", **impl).path)
    assert [seen.status for seen in world.httpbin.find_requests(tag)] == [str(status)] * attempts


def test_redirects_are_followed_up_to_ten(world: World) -> None:
    for path in ("/redirect/3", "/absolute-redirect/3", "/relative-redirect/3"):
        assert world.value(path)["url"] == world.httpbin.url("/get")
    assert "more than 10 redirects" in world.error("/redirect/11")["message"]


@pytest.mark.parametrize(
    ("status", "method"), [(302, "GET"), (303, "GET"), (307, "POST"), (308, "POST")]
)
def test_the_status_of_a_redirect_determines_the_method(
    world: World, status: int, method: str
) -> None:
    query = {"url": "/anything", "status_code": str(status)}
    seen = world.value("/redirect-to", method="POST", query=query, body={"a": 1})
    assert (seen["method"], seen["json"]) == (method, {"a": 1} if method == "POST" else None)


def test_credentials_stay_with_their_host_and_other_hosts_get_no_request(world: World) -> None:
    tag = new_slug()
    auth = {"type": "bearer", "value": "${secret:KEY}"}
    sent: dict[str, Any] = {"auth": auth, "headers": {"X-Key": "${secret:KEY}", "X-Plain": "stays"}}
    tool = world.tool("/redirect-to", {"url": TEXT}, query={"url": "${url}"}, **sent)
    other = tool.value(url=world.httpbin.url(f"/anything/{tag}", "localhost"))["headers"]
    assert other["X-Plain"] == "stays"
    assert not {"Authorization", "X-Key"} & set(other)
    same = tool.value(url=world.httpbin.url(f"/anything/{tag}"))["headers"]
    assert (same["Authorization"], same["X-Key"]) == ("Bearer [REDACTED]", "[REDACTED]")
    requests = world.httpbin.find_requests(f"GET /anything/{tag}")
    sent_by_host = {request.host: (request.authorization, request.key) for request in requests}
    assert sent_by_host == {  # threads may log them in another order
        f"localhost:{world.httpbin.port}": ("-", "-"),
        f"127.0.0.1:{world.httpbin.port}": (f"Bearer {TOKEN}", TOKEN),
    }
    rejected = tool.error(url=f"http://127.0.0.2:{world.httpbin.port}/")
    assert rejected["type"] == "network"
    assert "127.0.0.2" in rejected["message"]
    assert "allowedHosts" in rejected["message"]
    assert TOKEN not in json.dumps(rejected)


def test_a_body_is_not_redirected_to_another_host(world: World) -> None:
    tag = new_slug()
    elsewhere = world.httpbin.url(f"/anything/{tag}", "localhost")
    query = {"url": elsewhere, "status_code": "307"}
    error = world.error("/redirect-to", method="POST", query=query, body={"a": 1})
    assert "a request body is not sent to another origin" in error["message"]
    assert not [
        seen
        for seen in world.httpbin.find_requests(f"/anything/{tag}")
        if seen.target.startswith("/anything")
    ]


def test_a_response_over_its_limit_is_rejected_while_reading(world: World) -> None:
    for path in ("/bytes/1001", "/stream-bytes/50000?chunk_size=100"):
        error = world.error(path, maxResponseBytes=1_000)
        assert (error["type"], error["reason"], error["limit"]) == ("network", "too_large", 1_000)
    assert world.value("/bytes/1000", maxResponseBytes=1_000)["size"] == 1_000
    streamed = world.value("/stream-bytes/900?chunk_size=100", maxResponseBytes=1_000)
    assert streamed["size"] == 900


def test_a_slow_response_times_out(world: World) -> None:
    assert world.error("/delay/5", timeoutMs=500)["type"] == "timeout"
    assert (
        "timed out after 500 ms"
        in world.error("/drip?duration=5&numbytes=5", timeoutMs=500)["message"]
    )
    assert world.value("/delay/0", timeoutMs=5_000)["url"] == world.httpbin.url("/delay/0")


def test_cookies_are_not_stored(world: World) -> None:
    assert world.value("/cookies/set?flavour=plain") == {"cookies": {}}
    assert world.value("/cookies") == {"cookies": {}}
    sent = world.tool("/cookies", {"flavour": TEXT}, headers={"Cookie": "flavour=${flavour}"})
    assert sent.value(flavour="oat") == {"cookies": {"flavour": "oat"}}
    assert (
        "which is not allowed in the header Cookie" in sent.error(flavour="oat; admin=1")["message"]
    )
    assert world.value("/cookies") == {"cookies": {}}


def test_calls_over_the_rate_limit_are_not_sent(world: World) -> None:
    tag = new_slug()
    tool = world.tool(f"/anything/{tag}", maxCallsPerMinute=2)
    tool.value()
    tool.run_code()
    rejected = world.rest.invoke(tool.path)
    assert "maxCallsPerMinute is 2" in rejected.text
    assert len(world.httpbin.find_requests(f"/anything/{tag}")) == 2


# --- files, several requests and full responses ---------------------------------------------------


@pytest.mark.parametrize("interface", ["value", "run_code"])
def test_a_multipart_body_reaches_the_server(world: World, interface: str) -> None:
    tool = world.tool(
        "/anything",
        {"title": TEXT, "meta": {"type": "object"}, "files": {"type": "array"}, "note": TEXT},
        method="POST",
        headers={"Content-Type": "multipart/form-data"},
        body={"title": "${title}", "meta": "${meta}", "upload": "${file:files}", "note": "${note}"},
    )
    (world.home / "a.txt").write_text("content of a", encoding="utf-8")
    files = ["a.txt", {"base64": base64.b64encode(b"\0\xff").decode(), "filename": "b.bin"}]
    title = "Grüße\r\n--boundary"
    seen = getattr(tool, interface)(title=title, meta={"k": [1]}, files=files)
    assert seen["form"] == {"title": title, "meta": '{"k":[1]}'}
    assert seen["files"]["upload"] in (
        "content of a",
        ["content of a", "data:application/octet-stream;base64,AP8="],
    )
    assert seen["headers"]["Content-Type"].startswith("multipart/form-data; boundary=")
    denied = tool.error(title="x", files=["/etc/hostname"])
    assert denied["type"] == "sandbox_denied"


def test_a_binary_response_is_a_handle_that_rest_serves(world: World) -> None:
    tool = world.tool("/image/png")
    image = tool.value()
    assert (image["type"], image["mimeType"]) == ("image", "image/png")
    stored = world.rest.send("GET", f"/api/media/{image['media']}")
    assert (stored.headers["content-type"], len(stored.content)) == ("image/png", image["size"])
    assert stored.content.startswith(b"\x89PNG")
    command = f"{world.slug}.{tool.slug.replace('-', '_')}()"
    [shown] = world.rest.send("POST", "/api/run", {"command": command}).json()["media"]
    assert shown["mimeType"] == "image/png"
    saving = world.tool("/image/png", {"path": TEXT}, response={"saveTo": "${path}"})
    assert saving.error(path="image.png")["type"] == "permission_denied"


def test_an_mcp_client_sees_images_and_pages_through_links(world: World) -> None:
    image = world.tool("/image/png")
    pages = world.tool(
        "/response-headers",
        {"link": {"type": ["string", "null"]}, "page": {"type": "integer"}},
        query={"Link": "${link}", "page": "${page}"},
        response={"full": True},
    )
    code = f"""
found, page = [], 1
while page:
    link = f'</get?page={{page + 1}}>; rel="next"' if page < 3 else None
    response = {world.slug}.{pages.slug.replace("-", "_")}(page=page, link=link)
    found.append(response["body"]["page"])
    page = page + 1 if "next" in response["links"] else None
found"""
    with start_blocking_portal("asyncio") as portal:
        server = Published(portal, cast("Any", None), f"http://127.0.0.1:{world.rest.port}")
        with server.client() as client:
            shown = client.call("run", command=f"{world.slug}.{image.slug.replace('-', '_')}()")
            assert client.said("run", command=code) == '["1","2","3"]'
    [picture] = [block for block in shown.content if block.type == "image"]
    assert (picture.mime_type, base64.b64decode(picture.data)[:4]) == ("image/png", b"\x89PNG")


def test_links_and_headers_of_a_response_are_data_for_code(world: World) -> None:
    query = {
        "Link": '</get?page=${page}>; rel="next"',
        "Set-Cookie": "a=b",
        "X-RateLimit-Remaining": "9",
    }
    tool = world.tool(
        "/response-headers", {"page": {"type": "integer"}}, query=query, response={"full": True}
    )
    seen = tool.run_code(page=2)
    assert seen["links"] == {"next": world.httpbin.url("/get?page=2")}
    assert (seen["status"], seen["headers"]["x-ratelimit-remaining"]) == (200, "9")
    assert seen["headers"]["set-cookie"] == "[REDACTED]"


def test_steps_are_sent_in_order(world: World) -> None:
    tag = new_slug()
    first = {"name": "id", "method": "GET", "urlTemplate": world.httpbin.url("/uuid")}
    second = {
        "name": "echo",
        "method": "POST",
        "urlTemplate": world.httpbin.url(f"/anything/{tag}/1"),
        "body": {"id": "${steps.id.body.uuid}", "name": "${name}"},
    }
    seen = world.tool(
        f"/anything/{tag}/2",
        {"name": TEXT},
        steps=[first, second],
        method="PUT",
        body={"id": "${steps.echo.body.json.id}", "type": "${steps.echo.headers.content-type}"},
    ).run_code(name="Ada")
    assert len(seen["json"]["id"]) == 36
    assert seen["json"]["type"] == "application/json"
    assert [request.method for request in world.httpbin.find_requests(tag)] == ["POST", "PUT"]


# --- its OpenAPI document -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def imported_world(world: World) -> World:
    """Import the OpenAPI document of httpbin into the running server."""
    with urlopen(world.httpbin.url("/spec.json")) as answer:
        (world.home / "spec.json").write_bytes(answer.read())
    options = ["--server", world.httpbin.url(""), "--name", "httpbin", "--json"]
    done = run_cli(world.home, "import", "spec.json", *options)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    assert len(result["tools"]) == 73
    assert (result["missingHosts"], result["missingSecrets"]) == ([], [])
    return world


@pytest.mark.parametrize(
    ("call", "select", "expected"),
    [
        ("get_json()", "['slideshow']['title']", "Sample Slide Show"),
        (
            "get_anything_anything(anything='a/b c')",
            "['url'].rpartition('/anything/')[2]",
            "a/b%20c",
        ),
        ("post_anything()", "['method']", "POST"),
        ("put_put()", "['json']", None),
        ("patch_patch()", "['form']", {}),
        ("delete_delete()", "['args']", {}),
        ("get_redirect_n(n=2)", "['url'].rpartition('/')[2]", "get"),
        (
            "get_redirect_to(url='/headers')",
            "['headers']['User-Agent'].partition('/')[0]",
            "onetool",
        ),
        ("get_base64_value(value='SGVsbG8=')", "", "Hello"),
        ("get_bearer()", "", {"authenticated": True, "token": "[REDACTED]"}),
        ("get_etag_etag(etag='x', If_Match='x')", "['headers']['If-Match']", "x"),
        ("get_range_numbytes(numbytes=5)", "['size']", 5),
        ("get_drip(numbytes=3, duration=0)", "['mimeType']", "application/octet-stream"),
        ("get_cookies_set_name_value(name='a', value='b')", "", {"cookies": {}}),
        ("get_gzip()", "['gzipped']", True),
        ("get_status_codes(codes=204)", "", None),
        ("put_delay_delay(delay=0)", "['url'].rpartition('/')[2]", "0"),
    ],
)
def test_tools_of_the_openapi_document_of_httpbin_work(
    imported_world: World, call: str, select: str, expected: object
) -> None:
    assert imported_world.run(f"httpbin.{call}{select}") == expected


def test_an_imported_tool_can_be_called_from_the_cli_and_over_rest(imported_world: World) -> None:
    assert (
        imported_world.run_command("httpbin.get-json", {})["slideshow"]["title"]
        == "Sample Slide Show"
    )
    assert imported_world.run_command("httpbin.get-anything-anything", {"anything": "7"})[
        "url"
    ].endswith("/anything/7")
    answer = imported_world.rest.send(
        "POST", "/api/tools/httpbin.get-status-codes/call", {"args": {"codes": 418}}
    ).json()
    assert (answer["ok"], answer["error"]["status"]) == (False, 418)
    failed = run_cli(
        imported_world.home, "call", "httpbin.get-basic-auth-user-passwd", "user=u", "passwd=p"
    )
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "returned 401 Unauthorized" in failed.stderr


def test_unknown_arguments_of_an_imported_tool_are_rejected(imported_world: World) -> None:
    for call in ("get_redirect_n()", "get_redirect_n(n='three')", "get_json(x=1)"):
        answer = imported_world.rest.send("POST", "/api/run", {"command": f"httpbin.{call}"}).json()
        assert answer["isError"] is True, answer
        assert "get_redirect_n" in answer["blocks"][-1] or "get-json" in answer["blocks"][-1]
