"""The HTTP client against real servers on loopback: requests, redirects, limits and timeouts."""

import asyncio
import gzip
import json
import logging
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, strategies as st
from tests.http_support import (
    Certificate,
    Page,
    ReceivedRequest,
    Site,
    page,
    send_response,
    serve_site,
)
from tests.support import TIMEOUT_SECONDS, eventually

from onetool.errors import ArgumentError, NetworkError, ToolError, ToolTimeout
from onetool.net import HostRules, Net, Request, Response
from onetool.sources.upstream.http_client import http_client

LOOPBACK = HostRules(("*",), allow_private_addresses=True)
LIMIT = 1_000_000
OLD_CONTENT = b'{"secret": 1}'
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


@pytest.fixture
def other() -> Iterator[Site]:
    """Serve another origin: the same host on another port."""
    with serve_site() as site:
        yield site


def send(
    url: str,
    *,
    rules: HostRules = LOOPBACK,
    resolve: Resolve | None = None,
    method: str = "GET",
    **options: Any,
) -> Response:
    """Send a request with a new client."""
    sent = {
        name: options.pop(name)
        for name in ("headers", "content", "credentials", "secret_query")
        if name in options
    }

    async def run() -> Response:
        net = Net(rules, resolve=resolve)
        try:
            return await net.send(
                Request(method, url, **sent),
                **{"timeout": TIMEOUT_SECONDS, "max_bytes": LIMIT, **options},
            )
        finally:
            await net.close()

    return anyio.run(run)


def get_failure_reason(url: str, **options: Any) -> str:
    with pytest.raises(NetworkError) as failed:
        send(url, **options)
    return str(failed.value.reason)


def resolve_to(*addresses: str) -> Resolve:
    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return addresses

    return resolve


def add_redirect(site: Site, to: str, status: int = 302) -> str:
    path = f"/to-{len(site.pages)}"
    site.pages[path] = page(b"", ("Location", to), status=status)
    return site.url(path)


# --- requests -------------------------------------------------------------------------------------


def test_a_request_is_sent_unchanged(site: Site) -> None:
    headers = [("X-One", "1"), ("X-Two", "ü"), ("X-One", " 2 ")]
    response = send(site.url("/echo?a=1&b=%20x"), method="post", headers=headers, content=b"body")
    seen = json.loads(response.body)
    assert (response.status, seen["method"], seen["query"], seen["body"]) == (
        200,
        "POST",
        {"a": ["1"], "b": [" x"]},
        "body",
    )
    assert site.last.header("x-one") == "1, 2"
    assert site.last.header("host") == f"127.0.0.1:{site.port}"
    assert site.last.header("content-length") == "4"
    assert (site.last.header("x-two") or "").encode("latin-1").decode() == "ü"
    assert response.url == site.url("/echo?a=1&b=%20x")
    assert response.seconds > 0


def test_headers_of_the_caller_replace_default_headers(site: Site) -> None:
    send(site.url())
    assert (site.last.header("user-agent") or "").startswith("onetool/")
    assert site.last.header("accept-encoding") == "gzip, deflate"
    send(site.url(), headers=[("User-Agent", "me"), ("accept", "text/plain")])
    assert (site.last.header("user-agent"), site.last.header("accept")) == ("me", "text/plain")


def test_an_empty_post_has_a_content_length(site: Site) -> None:
    send(site.url(), method="POST")
    assert site.last.header("content-length") == "0"


@pytest.mark.parametrize(
    "header",
    [
        *[
            ("Host", "evil.com"),
            ("content-length", "5"),
            ("Transfer-Encoding", "chunked"),
            ("CONNECTION", "close"),
        ],
        *[
            ("X-A", "a\r\nX-B: b"),
            ("X-A", "a\nb"),
            ("X-A", "a\0"),
            ("X-A", "a\x7f"),
            ("X-A", "\ud800"),
        ],
        *[
            ("X A", "a"),
            ("", "a"),
            ("X\r\nY", "a"),
            ("X:", "a"),
            ("Ü", "a"),
            ("Upgrade", "h2c"),
            ("Expect", "100-continue"),
        ],
    ],
)
def test_a_header_that_would_change_the_request_is_rejected(
    site: Site, header: tuple[str, str]
) -> None:
    with pytest.raises(ArgumentError) as rejected:
        send(site.url(), headers=[header])
    assert not site.requests
    assert "header" in rejected.value.message


@pytest.mark.parametrize("method", ["", "GET /x", "GET\r\n", "CONNECT", "trace", "Ü"])
def test_an_invalid_method_is_rejected(site: Site, method: str) -> None:
    with pytest.raises(ArgumentError, match="method"):
        send(site.url(), method=method)
    assert not site.requests


def test_no_url_can_inject_into_the_request_line_or_the_headers(site: Site) -> None:
    send(site.url("/echo?a= HTTP/1.1&ü=\u2028#fragment"))
    assert site.last.query == {"a": [" HTTP/1.1"], "ü": ["\u2028"]}


def test_proxies_and_passwords_of_the_environment_are_ignored(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    passwords = tmp_path / "netrc"
    passwords.write_text("machine 127.0.0.1 login me password hunter2\n", encoding="utf-8")
    monkeypatch.setenv("NETRC", str(passwords))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert send(site.url()).status == 200
    assert site.last.header("authorization") is None


# --- hosts and addresses --------------------------------------------------------------------------


def test_a_host_that_is_not_allowed_is_not_resolved() -> None:
    async def resolve(_host: str, _port: int) -> Sequence[str]:
        raise AssertionError("the host was resolved")

    assert (
        get_failure_reason("http://b.example/", rules=HostRules(("a.example",)), resolve=resolve)
        == "host_not_allowed"
    )


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["10.0.0.1"],
        ["8.8.8.8", "127.0.0.1"],
        ["::ffff:127.0.0.1"],
        ["64:ff9b::7f00:1"],
        ["fe80::1%lo"],
    ],
)
def test_a_host_with_a_private_address_is_rejected(addresses: list[str]) -> None:
    rules = HostRules(("a.example",))
    assert (
        get_failure_reason("http://a.example/", rules=rules, resolve=resolve_to(*addresses))
        == "address_not_allowed"
    )


def test_localhost_is_rejected(site: Site) -> None:
    assert (
        get_failure_reason(site.url(host="localhost"), rules=HostRules(("localhost",)))
        == "address_not_allowed"
    )
    assert (
        send(
            site.url(host="localhost"),
            rules=HostRules(("localhost",), allow_private_addresses=True),
        ).status
        == 200
    )
    assert len(site.requests) == 1


def test_a_host_is_resolved_once_and_the_checked_address_is_used(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [
        ["127.0.0.1"],
        ["127.0.0.2"],
        ["127.0.0.2"],
    ]  # the test treats the first address as public, and the others as private
    monkeypatch.setattr("onetool.net.hosts.is_public", lambda address: address == "127.0.0.1")
    asked: list[str] = []

    async def rebinding(host: str, _port: int) -> Sequence[str]:
        asked.append(host)
        return answers.pop(0)

    assert (
        send(site.url(host="a.example"), rules=HostRules(("a.example",)), resolve=rebinding).status
        == 200
    )
    assert asked == ["a.example"]
    assert site.last.header("host") == f"a.example:{site.port}"


def test_the_next_address_is_tried_if_the_first_does_not_respond(site: Site) -> None:
    assert (
        send(site.url(host="a.example"), resolve=resolve_to("127.0.0.9", "127.0.0.1")).status == 200
    )


def test_strict_rules_do_not_reuse_connections_of_permissive_rules(site: Site) -> None:
    async def run() -> None:
        net = Net(
            HostRules(("a.example",), allow_private_addresses=True), resolve=resolve_to("127.0.0.1")
        )
        request = Request("GET", site.url(host="a.example"))
        await net.send(request, timeout=TIMEOUT_SECONDS, max_bytes=LIMIT)
        for rules in (
            HostRules(("a.example",)),
            HostRules(("b.example",), allow_private_addresses=True),
        ):
            with pytest.raises(NetworkError, match="not"):
                await net.send(request, timeout=TIMEOUT_SECONDS, max_bytes=LIMIT, rules=(rules,))
        await net.close()

    anyio.run(run)
    assert len(site.requests) == 1


def test_rules_of_a_call_cannot_extend_those_of_the_client(site: Site) -> None:
    assert (
        get_failure_reason(site.url(), rules=HostRules(), follow_redirects=True)
        == "host_not_allowed"
    )

    async def run() -> None:
        with pytest.raises(NetworkError, match="not allowed"):
            await Net(HostRules()).send(
                Request("GET", site.url()),
                timeout=TIMEOUT_SECONDS,
                max_bytes=LIMIT,
                rules=(LOOPBACK,),
            )

    anyio.run(run)
    assert not site.requests


# --- TLS ------------------------------------------------------------------------------------------


@pytest.fixture
def secure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    certificate = Certificate(tmp_path, "a.example", "127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.file))
    with serve_site(certificate) as site:
        yield site


def test_tls_uses_the_host_name_at_the_checked_address(secure: Site) -> None:
    assert send(secure.url(host="A.example."), resolve=resolve_to("127.0.0.1")).status == 200
    assert secure.names == ["a.example"]
    assert secure.last.header("host") == f"a.example:{secure.port}"
    assert send(secure.url()).status == 200


def test_a_certificate_for_another_name_is_rejected_before_sending(secure: Site) -> None:
    with pytest.raises(NetworkError, match="certificate") as failed:
        send(secure.url(host="b.example"), resolve=resolve_to("127.0.0.1"))
    assert failed.value.reason == "connect"
    assert not secure.requests


def test_an_untrusted_certificate_is_rejected(
    secure: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    assert get_failure_reason(secure.url()) == "connect"
    assert not secure.requests


def test_a_redirect_from_https_to_http_drops_credentials(secure: Site, site: Site) -> None:
    start = add_redirect(secure, site.url())
    headers = [("Authorization", "Bearer x"), ("X-Key", "k"), ("Accept", "text/plain")]
    send(start, headers=headers, credentials=frozenset({"x-key"}))
    assert site.last.header("accept") == "text/plain"
    assert {site.last.header("authorization"), site.last.header("x-key")} == {None}


def test_cancelling_during_the_handshake_closes_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        async def run() -> bytes:
            net = Net(LOOPBACK)
            url = f"https://127.0.0.1:{listener.getsockname()[1]}/"
            async with anyio.create_task_group() as group:
                group.start_soon(
                    lambda: net.send(Request("GET", url), timeout=TIMEOUT_SECONDS, max_bytes=LIMIT)
                )
                connection, _ = await anyio.to_thread.run_sync(listener.accept)
                hello = await anyio.to_thread.run_sync(connection.recv, 1 << 16)
                assert hello
                group.cancel_scope.cancel()
            connection.settimeout(TIMEOUT_SECONDS)
            with connection:
                return await anyio.to_thread.run_sync(connection.recv, 1 << 16)

        assert anyio.run(run) == b""


# --- redirects ------------------------------------------------------------------------------------


def test_redirects_are_followed_unless_disabled(site: Site) -> None:
    response = send(site.url("/redirects/3"))
    assert (response.status, response.url, len(site.requests)) == (200, site.url("/echo"), 4)
    response = send(site.url("/redirects/3"), follow_redirects=False)
    assert (response.status, response.url, response.header("location")) == (
        302,
        site.url("/redirects/3"),
        "/redirects/2",
    )


def test_a_redirect_that_is_not_followed_has_its_body(site: Site) -> None:
    assert send(site.url("/redirect-to?url=/echo"), follow_redirects=False).body == b"over there"


@pytest.mark.parametrize("status", [300, 304, 302])
def test_a_redirect_without_location_is_a_response(site: Site, status: int) -> None:
    assert send(site.url(f"/status/{status}")).status == status


def test_a_redirect_loop_ends(site: Site) -> None:
    assert get_failure_reason(site.url("/loop")) == "redirects"
    assert len(site.requests) == 11


@pytest.mark.parametrize(
    ("to", "why"),
    [
        ("http://b.example/", "host_not_allowed"),
        ("//b.example/", "host_not_allowed"),
        ("http://user:pw@a.example/", "host_not_allowed"),
        ("http://2130706433/", "host_not_allowed"),
        ("http://[::1]/", "host_not_allowed"),
        ("ftp://a.example/", "protocol"),
        ("file:///etc/passwd", "protocol"),
        ("http://a.example:x/", "protocol"),
    ],
)
def test_each_redirect_is_checked_like_the_first_request(site: Site, to: str, why: str) -> None:
    rules = HostRules(("a.example",), allow_private_addresses=True)
    start = add_redirect(site, to).replace("127.0.0.1", "a.example")
    assert get_failure_reason(start, rules=rules, resolve=resolve_to("127.0.0.1")) == why
    assert len(site.requests) == 1


def test_the_address_behind_a_redirect_is_checked_too(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onetool.net.hosts.is_public", lambda address: address == "127.0.0.1")

    async def resolve(host: str, _port: int) -> Sequence[str]:
        return ["127.0.0.1" if host == "a.example" else "127.0.0.2"]

    start = add_redirect(site, site.url(host="b.example")).replace("127.0.0.1", "a.example")
    assert (
        get_failure_reason(start, rules=HostRules(("*.example",)), resolve=resolve)
        == "address_not_allowed"
    )
    start = add_redirect(site, site.url(host="127.0.0.2")).replace("127.0.0.1", "a.example")
    assert (
        get_failure_reason(start, rules=HostRules(("*",)), resolve=resolve) == "address_not_allowed"
    )
    assert len(site.requests) == 2


CREDENTIALS = [
    ("Authorization", "Bearer x"),
    ("cookie", "a=1"),
    ("Proxy-Authorization", "y"),
    ("X-Key", "k"),
]


def test_credentials_are_dropped_for_other_origins_and_not_restored(
    site: Site, other: Site
) -> None:
    back = add_redirect(other, site.url("/echo"))
    send(
        add_redirect(site, back),
        headers=[*CREDENTIALS, ("X-Plain", "p")],
        credentials=frozenset({"x-key"}),
    )
    first, last = site.requests
    assert [first.header(name.lower()) for name, _ in CREDENTIALS] == [
        value for _, value in CREDENTIALS
    ]
    for received in (other.last, last):
        assert {received.header(name.lower()) for name, _ in CREDENTIALS} == {None}
        assert received.header("x-plain") == "p"


def test_credentials_are_kept_for_redirects_within_the_origin(site: Site) -> None:
    send(add_redirect(site, "/echo"), headers=CREDENTIALS, credentials=frozenset({"x-key"}))
    assert [site.last.header(name.lower()) for name, _ in CREDENTIALS] == [
        value for _, value in CREDENTIALS
    ]


@pytest.mark.parametrize("status", [301, 302, 303])
def test_a_redirected_post_becomes_a_get_without_body(site: Site, other: Site, status: int) -> None:
    send(
        add_redirect(site, other.url(), status),
        method="POST",
        content=OLD_CONTENT,
        headers=[("Content-Type", "a/b")],
    )
    assert (other.last.method, other.last.body, other.last.header("content-type")) == (
        "GET",
        b"",
        None,
    )
    assert other.last.header("content-length") is None


@pytest.mark.parametrize(
    ("method", "status"), [("POST", 307), ("POST", 308), ("PUT", 302), ("PATCH", 301)]
)
def test_a_repeated_request_keeps_its_body_only_within_the_origin(
    site: Site, other: Site, method: str, status: int
) -> None:
    send(add_redirect(site, "/echo", status), method=method, content=OLD_CONTENT)
    assert (site.last.method, site.last.body) == (method, OLD_CONTENT)
    assert (
        get_failure_reason(
            add_redirect(site, other.url(), status), method=method, content=OLD_CONTENT
        )
        == "redirects"
    )
    assert not other.requests


def test_a_redirected_head_stays_a_head(site: Site) -> None:
    send(add_redirect(site, "/echo", 303), method="HEAD")
    assert [received.method for received in site.requests] == ["HEAD", "HEAD"]


# --- size limits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [f"/bytes/{LIMIT}", f"/stream/{LIMIT}", f"/gzip/{LIMIT}"])
def test_a_body_of_exactly_the_limit_is_read(site: Site, path: str) -> None:
    assert len(send(site.url(path)).body) == LIMIT


@pytest.mark.parametrize(
    "path", [f"/bytes/{LIMIT + 1}", f"/stream/{LIMIT + 1}", f"/gzip/{LIMIT + 1}", "/bomb/100000"]
)
def test_a_body_over_the_limit_is_rejected_in_every_encoding(site: Site, path: str) -> None:
    assert get_failure_reason(site.url(path)) == "too_large"


def test_a_content_length_over_the_limit_is_rejected_at_once(site: Site) -> None:
    async def boast(_received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 x\r\nContent-Length: 99999999999999999999999\r\n\r\n")
        await asyncio.Event().wait()

    site.pages["/boast"] = boast
    assert get_failure_reason(site.url("/boast")) in {"too_large", "protocol"}
    site.pages["/boast"] = stream_forever(b"HTTP/1.1 200 x\r\nContent-Length: 1000001\r\n\r\n", b"")
    assert get_failure_reason(site.url("/boast")) == "too_large"


def stream_forever(start: bytes, more: bytes) -> Page:
    async def show(_received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        while more:
            writer.write(more)
            await writer.drain()
        await asyncio.Event().wait()

    return show


def test_data_after_a_gzip_member_counts_toward_the_limit(site: Site) -> None:
    head = b"HTTP/1.1 200 x\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n"
    site.pages["/tail"] = stream_forever(head + gzip.compress(b"small"), b"\0" * 65536)
    assert get_failure_reason(site.url("/tail")) == "too_large"
    site.pages["/tail"] = stream_forever(head, gzip.compress(b"") * 1000)
    assert get_failure_reason(site.url("/tail")) == "protocol"


def test_too_many_headers_are_rejected(site: Site) -> None:
    assert len(send(site.url("/headers/100")).headers) == 101
    assert get_failure_reason(site.url("/headers/5000")) == "too_large"
    site.pages["/one-header"] = stream_forever(b"HTTP/1.1 200 x\r\nX: ", b"x" * 65536)
    assert get_failure_reason(site.url("/one-header")) == "too_large"


def test_a_head_response_may_announce_more_than_the_limit(site: Site) -> None:
    site.pages["/large"] = stream_forever(
        b"HTTP/1.1 200 x\r\nContent-Length: 99999999\r\n\r\n", b""
    )
    assert send(site.url("/large"), method="HEAD").header("content-length") == "99999999"


# --- compression ----------------------------------------------------------------------------------


def compress_raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


READ = [
    ("gzip", gzip.compress(b"hello"), b"hello"),
    ("X-GZIP", gzip.compress(b"hello"), b"hello"),
    ("gzip, identity", gzip.compress(b"hello"), b"hello"),
    ("gzip", gzip.compress(b"hel") + gzip.compress(b"") + gzip.compress(b"lo"), b"hello"),
    ("gzip", gzip.compress(b"hello") + b"\0\0\0", b"hello"),
    ("gzip", gzip.compress(b"hello") + b"\n", b"hello"),
    ("gzip", gzip.compress(b""), b""),
    ("gzip", b"", b""),
    ("deflate", zlib.compress(b"hello"), b"hello"),
    ("deflate", compress_raw_deflate(b"hello"), b"hello"),
    ("deflate", b"", b""),
    ("br", b"as it is", b"as it is"),
    ("identity", b"plain", b"plain"),
]


@pytest.mark.parametrize(("encoding", "body", "text"), READ, ids=range(len(READ)))
def test_a_compressed_body_is_read(site: Site, encoding: str, body: bytes, text: bytes) -> None:
    site.pages["/packed"] = page(body, ("Content-Encoding", encoding))
    assert send(site.url("/packed")).body == text


DAMAGED = [
    ("gzip", b"this is none"),
    ("gzip", gzip.compress(b"hello")[:-9]),
    ("gzip", gzip.compress(b"hello") + gzip.compress(bytes(range(256)) * 9)[:-9]),
    ("gzip", gzip.compress(b"hello")[:-8] + b"\1" * 8),
    ("deflate", zlib.compress(b"hello")[:-2]),
    ("deflate", b"x"),
    ("deflate", b"\xff\xff\xff\xff"),
    ("gzip, gzip", gzip.compress(gzip.compress(b"hello"))),
    ("gzip, br, deflate, gzip", b"x"),
]


@pytest.mark.parametrize(("encoding", "body"), DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_or_doubly_compressed_body_is_an_error(
    site: Site, encoding: str, body: bytes
) -> None:
    site.pages["/packed"] = page(body, ("Content-Encoding", encoding))
    assert get_failure_reason(site.url("/packed")) == "protocol"


@pytest.mark.slow
@given(
    st.binary(max_size=5000),
    st.lists(st.integers(1, 400), max_size=40),
    st.sampled_from(["gzip", "zlib", "raw"]),
)
def test_a_compressed_body_is_read_the_same_in_any_chunks(
    data: bytes, sizes: list[int], form: str
) -> None:
    from onetool.net.transport import read_body

    packed = (
        gzip.compress(data)
        if form == "gzip"
        else zlib.compress(data)
        if form == "zlib"
        else compress_raw_deflate(data)
    )

    async def chunks() -> Any:
        rest = packed
        for size in sizes:
            yield rest[:size]
            rest = rest[size:]
        yield rest

    encoding = "gzip" if form == "gzip" else "deflate"
    assert anyio.run(read_body, chunks(), encoding, LIMIT) == data


# --- timeouts -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/never", "/drip-head", "/drip-body", "/continue"])
def test_the_timeout_covers_the_whole_request(site: Site, path: str) -> None:
    with pytest.raises(ToolTimeout, match=r"timed out after 0\.5 s") as late:
        send(site.url(path), timeout=0.5)
    assert late.value.timeout_ms == 500
    assert site.hung_up.wait(TIMEOUT_SECONDS)


def test_redirects_share_the_timeout(site: Site) -> None:
    async def slow(_received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.1)
        send_response(writer, b"", ("Location", "/slow"), status=302)

    site.pages["/slow"] = slow
    with pytest.raises(ToolTimeout):
        send(site.url("/slow"), timeout=0.35)


def test_a_slow_host_lookup_times_out() -> None:
    async def resolve(_host: str, _port: int) -> Sequence[str]:
        await anyio.sleep_forever()
        return []

    with pytest.raises(ToolTimeout):
        send("http://a.example/", resolve=resolve, timeout=0.1)


def test_cancelling_closes_the_connection(site: Site) -> None:

    async def run() -> None:
        net = Net(LOOPBACK)
        async with anyio.create_task_group() as group:
            group.start_soon(
                lambda: net.send(
                    Request("GET", site.url("/drip-body")), timeout=60, max_bytes=LIMIT
                )
            )
            assert await anyio.to_thread.run_sync(site.asked.wait, TIMEOUT_SECONDS)
            group.cancel_scope.cancel()
        assert await anyio.to_thread.run_sync(site.hung_up.wait, TIMEOUT_SECONDS)
        await net.close()

    anyio.run(run)


# --- errors ---------------------------------------------------------------------------------------


def find_closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_only_unsent_requests_have_the_reason_connect(site: Site) -> None:
    assert get_failure_reason(f"http://127.0.0.1:{find_closed_port()}/") == "connect"
    assert get_failure_reason("http://a.example/", resolve=resolve_to()) == "connect"
    for path in ("/hang-up", "/cut", "/garbage"):
        assert get_failure_reason(site.url(path)) == "protocol"
    assert (
        get_failure_reason(add_redirect(site, f"http://127.0.0.1:{find_closed_port()}/"))
        == "redirects"
    )


def test_a_response_in_another_protocol_is_an_error(site: Site) -> None:
    site.pages["/upgrade"] = stream_forever(
        b"HTTP/1.1 101 x\r\nUpgrade: foo\r\nConnection: Upgrade\r\n\r\n", b""
    )
    assert get_failure_reason(site.url("/upgrade")) == "protocol"


def test_https_to_a_plain_http_server_is_a_connect_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            with listener.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        assert get_failure_reason(f"https://127.0.0.1:{listener.getsockname()[1]}/") == "connect"
        thread.join(TIMEOUT_SECONDS)


SECRET = "hunter2"


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", ["/never", "/cut", "/hang-up", "/loop", "/bytes/9999999", "/status/200", "/redirect-to"]
)
def test_secret_parameters_are_redacted_in_errors_and_responses(site: Site, path: str) -> None:
    url = site.url(f"{path}?key={SECRET}&%6bey={SECRET}&url=http://b.example/?key={SECRET}")
    rules = HostRules(("127.0.0.1",), allow_private_addresses=True)
    try:
        output = send(
            url,
            rules=rules,
            secret_query=frozenset({"key"}),
            timeout=0.5 if path == "/never" else TIMEOUT_SECONDS,
        ).url
    except ToolError as error:
        output = f"{error.message} {error.fields}"
    assert site.requests[0].query["key"] == [SECRET, SECRET]
    assert SECRET not in output.partition("url=")[0]


@pytest.mark.parametrize("is_upstream", [False, True], ids=["net", "upstream"])
def test_no_log_has_urls_or_headers(
    site: Site, caplog: pytest.LogCaptureFixture, is_upstream: bool
) -> None:
    for name in ("", "httpx2", "httpcore2"):  # as in a program that logs all that happens
        caplog.set_level(logging.DEBUG, name)
    cookie = ("Set-Cookie", f"id={SECRET}")
    site.pages["/echo"] = page(b"", cookie, ("Location", site.url(f"/login?code={SECRET}")))

    async def run() -> None:
        url = site.url(f"/echo?key={SECRET}")
        if not is_upstream:
            net = Net(LOOPBACK)
            await net.send(Request("GET", url), timeout=TIMEOUT_SECONDS, max_bytes=LIMIT)
            await net.close()
            return
        async with http_client() as client:
            await client.get(url)

    anyio.run(run)
    assert site.last.query == {"key": [SECRET]}
    assert SECRET not in caplog.text


# --- connections ----------------------------------------------------------------------------------


def test_connections_are_reused_and_closed_at_the_end() -> None:
    async def go(site: Site) -> None:
        net = Net(LOOPBACK)
        for path in ("/echo", "/status/404", "/gzip/10", "/stream/10"):
            await net.send(Request("GET", site.url(path)), timeout=TIMEOUT_SECONDS, max_bytes=LIMIT)
        assert site.connections == 1
        await net.close()

    with serve_site() as site:
        anyio.run(go, site)
        assert eventually(lambda: site.open_connections == 0)


def test_a_closed_idle_connection_is_replaced_without_an_error() -> None:
    """Send requests while the server closes idle connections: only idempotent ones are sent again."""

    async def hang_up_later(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        asked = [request for request in moody.requests if request.path == received.path]
        if len(asked) % 2 == 1:
            send_response(writer, b"fine")
        else:
            writer.transport.abort()

    async def run() -> None:
        net = Net(LOOPBACK)

        async def send(method: str) -> Response:
            request = Request(method, moody.url("/moody"), content=None)
            return await net.send(request, timeout=TIMEOUT_SECONDS, max_bytes=LIMIT)

        assert [(await send("GET")).body for _ in range(3)] == [b"fine"] * 3
        assert [request.method for request in moody.requests] == ["GET"] * 5
        with pytest.raises(NetworkError) as failed:
            await send("POST")
        assert failed.value.reason == "protocol"
        await net.close()

    with serve_site() as moody:
        moody.pages["/moody"] = hang_up_later
        anyio.run(run)
        assert [request.method for request in moody.requests] == ["GET"] * 5 + ["POST"]


def test_concurrent_requests_do_not_mix() -> None:
    async def go(site: Site) -> list[str]:
        net, seen = Net(LOOPBACK), []

        async def one(number: int) -> None:
            url = site.url(
                f"/echo?n={number}" if number % 3 else f"/redirect-to?url=/echo?n={number}"
            )
            response = await net.send(Request("GET", url), timeout=TIMEOUT_SECONDS, max_bytes=LIMIT)
            assert json.loads(response.body)["query"] == {"n": [str(number)]}
            seen.append(response.url)

        async with anyio.create_task_group() as group:
            for number in range(60):
                group.start_soon(one, number)
        await net.close()
        return seen

    with serve_site() as site:
        assert len(anyio.run(go, site)) == 60
        assert eventually(lambda: site.open_connections == 0)


def test_cookies_are_not_kept(site: Site) -> None:
    async def run() -> None:
        net = Net(LOOPBACK)
        for path in ("/cookies", "/echo"):
            await net.send(Request("GET", site.url(path)), timeout=TIMEOUT_SECONDS, max_bytes=LIMIT)
        await net.close()

    anyio.run(run)
    assert site.last.header("cookie") is None


def test_closing_does_not_wait_and_does_not_stop_active_requests() -> None:
    go_on = threading.Event()

    async def wait(_received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await asyncio.to_thread(go_on.wait, TIMEOUT_SECONDS)
        send_response(writer, b"done")

    async def go(site: Site) -> bytes:
        net, answers = Net(LOOPBACK), []

        async def one() -> None:
            answers.append(
                await net.send(
                    Request("GET", site.url("/wait")), timeout=TIMEOUT_SECONDS, max_bytes=LIMIT
                )
            )

        async with anyio.create_task_group() as group:
            group.start_soon(one)
            assert await anyio.to_thread.run_sync(site.asked.wait, TIMEOUT_SECONDS)
            await net.close()
            go_on.set()
        return bytes(answers[0].body)

    with serve_site() as site:
        site.pages["/wait"] = wait
        assert anyio.run(go, site) == b"done"
        assert eventually(lambda: site.open_connections == 0)


def test_the_http_library_is_imported_with_the_first_request() -> None:
    heavy = "{'httpx2', 'httpcore2', 'ssl'}"
    code = (
        f"import sys; from onetool.net import HostRules, Net; Net(HostRules()); print({heavy} &"
        " set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in {"set()", "{'ssl'}"}  # asyncio imports ssl


# --- text -----------------------------------------------------------------------------------------


def decode_text(body: bytes, content_type: str) -> str:
    return Response(200, (("Content-Type", content_type),), body, "http://a/", 0.0).text()


@pytest.mark.parametrize(
    ("body", "content_type", "text"),
    [
        ("grün".encode(), "text/plain", "grün"),
        ("grün".encode("latin-1"), "text/plain; charset=ISO-8859-1", "grün"),
        ("grün".encode("utf-16"), 'text/plain; charset="utf-16"', "grün"),
        ("日本".encode("shift_jis"), "text/html;charset=Shift_JIS", "日本"),
        (b"\xef\xbb\xbf{}", "application/json", "{}"),
        (b"\xff", "text/plain", "\ufffd"),
        (b"a", "text/plain; charset=nonsense", "a"),
        (b"a", "text/plain; charset=", "a"),
        (b"a", "", "a"),
        (b"YQ==", "text/plain; charset=base64", "YQ=="),
        (b"xn--a", "text/plain; charset=punycode", "xn--a"),
        (b"\\x41", "text/plain; charset=unicode_escape", "\\x41"),
        (b"a", "text/plain; charset=idna", "a"),
        (b"a", "text/plain; charset=a\0b", "a"),
        (b"gr\xfcn", "text/plain; boundary=x ; Charset = 'latin-1'", "grün"),
        (b"a", "text/plain; charset*=utf-8''latin-1", "a"),
    ],
)
def test_text_is_decoded_by_its_charset(body: bytes, content_type: str, text: str) -> None:
    assert decode_text(body, content_type) == text


@pytest.mark.slow
@given(st.binary(max_size=100), st.text(max_size=50))
def test_decoding_text_never_fails(body: bytes, charset: str) -> None:
    assert isinstance(decode_text(body, f"text/plain; charset={charset}"), str)
    assert isinstance(decode_text(body, charset), str)


# --- OneTool's own servers ------------------------------------------------------------------------


OWN_HOSTS = (
    "127.0.0.1",
    "127.8.9.10",
    "0.0.0.0",
    "localhost",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::ffff:0:0]",
)


@pytest.mark.parametrize("host", [*OWN_HOSTS, "own.example", "lan.example"])
def test_onetool_servers_are_rejected_under_every_local_name(site: Site, host: str) -> None:
    async def resolve(name: str, _port: int) -> list[str]:
        known = {"own.example": ["192.0.2.1", "127.0.0.1"], "lan.example": [_get_local_address()]}
        return known.get(name, ["::1", "127.0.0.1"])

    async def run() -> None:
        net = Net(LOOPBACK, resolve=resolve, own_ports=lambda: {site.port})
        with pytest.raises(NetworkError, match="is a OneTool server") as failed:
            await net.send(
                Request("GET", f"http://{host}:{site.port}/"),
                timeout=TIMEOUT_SECONDS,
                max_bytes=LIMIT,
            )
        assert failed.value.reason == "address_not_allowed"
        await net.close()

    anyio.run(run)
    assert not site.requests


def test_a_redirect_to_a_onetool_server_is_rejected(site: Site, other: Site) -> None:
    async def run() -> None:
        net = Net(LOOPBACK, own_ports=lambda: {other.port})
        url = add_redirect(site, other.url())
        with pytest.raises(NetworkError, match="is a OneTool server"):
            await net.send(Request("GET", url), timeout=TIMEOUT_SECONDS, max_bytes=LIMIT)
        await net.close()

    anyio.run(run)
    assert not other.requests


def test_every_request_has_the_outgoing_header(site: Site, other: Site) -> None:
    send(add_redirect(site, other.url()), headers=[("User-Agent", "me")])
    assert site.last.header("onetool-outgoing") == other.last.header("onetool-outgoing") == "1"
    with pytest.raises(ArgumentError):
        send(site.url(), headers=[("OneTool-Outgoing", "0")])


def _get_local_address() -> str:
    """Return the address of this machine on its network, or 127.0.0.1 without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
