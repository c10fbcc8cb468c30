"""Test `/api` of a real server: tools of every kind, calls, runs, event streams and separation of
agents.
"""

import base64
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import httpx2
import pytest
from anyio.from_thread import start_blocking_portal
from tests.extensions_support import write_pack
from tests.proxy_support import MODERN
from tests.rest_support import (
    UNKNOWN,
    Rest,
    ServedApp,
    get_error_code,
    http_draft,
    make_client,
    new_slug,
    serve_app,
)
from tests.support import THREE_LINES, TIMEOUT_SECONDS, ProcessWatch, eventually, give, search

from onetool import ToolContext, tool
from onetool.app import OneTool
from onetool.core.schema import Schema
from onetool.core.tool import Tool
from onetool.errors import ConfigError
from onetool.server.http.http_server import HttpServer
from onetool.util.logging import Log
from onetool.util.token_ids import hash_token
from onetool_child.json_types import JsonObject

SECRET = "correct-horse-battery"
READER, WRITER = "ot_reader", "ot_writer"
EVENTS = {"accept": "text/event-stream"}
SETTINGS = {
    "agents": {
        "default": {"permissions": ["read", "network"]},
        "reader": {"permissions": ["read"], "tools": ["sample.*", "machine"]},
        "writer": {"permissions": ["read", "write"]},
    },
    "auth": {
        "tokens": [
            {"name": "r", "hash": hash_token(READER), "agent": "reader"},
            {"name": "w", "hash": hash_token(WRITER), "agent": "writer"},
            {"name": "lost", "hash": hash_token("ot_lost"), "agent": "gone"},
        ]
    },
    "output": {"max_inline_size": 2000},
    "execution": {"max_command_bytes": 100_000},
}


MINE = '''"""My own."""

def double(number: int) -> int:
    """Twice."""
    return 2 * number
'''


class Waiting:
    """A tool that never returns, and its outcome."""

    def __init__(self) -> None:
        self.began, self.was_cancelled = threading.Event(), threading.Event()

    async def wait(self, context: ToolContext) -> None:
        context.progress(f"waiting with {SECRET}")
        self.began.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.was_cancelled.set()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApp]:
    directory = tmp_path_factory.mktemp("api")
    with serve_app(directory, SETTINGS, [give, search], {"KEY": SECRET}) as server:
        yield server


@pytest.fixture
def rest(server: ServedApp) -> Rest:
    return server.rest


@pytest.fixture
def waiting(server: ServedApp) -> Iterator[Waiting]:
    waiting = Waiting()

    @tool("sample.wait")
    async def wait(context: ToolContext) -> None:
        """Wait until somebody gives up."""
        await waiting.wait(context)

    server.onetool.bus.register_tool(wait)
    yield waiting
    server.onetool.bus.unregister_tool("sample.wait")


def build_auth_header(token: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}", **more}


def run(rest: Rest, command: str, **options: Any) -> JsonObject:
    answer = rest.send("POST", "/api/run", {"command": command}, **options)
    assert answer.status_code == 200, answer.text
    body: JsonObject = answer.json()
    return body


def call(rest: Rest, name: str, args: object = None, **options: Any) -> httpx2.Response:
    return rest.send("POST", f"/api/tools/{quote(name)}/call", {"args": args or {}}, **options)


def parse_events(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    """Parse server-sent events, without comments."""
    name, data = "message", list[str]()
    for line in lines:
        field, _, value = line.partition(":")
        if not line:
            if data:
                yield name, json.loads("\n".join(data))
            name, data = "message", list[str]()
        elif field == "event":
            name = value.removeprefix(" ")
        elif field == "data":
            data.append(value.removeprefix(" "))


@contextmanager
def open_stream(
    rest: Rest, method: str, path: str, body: object = None, token: str = ""
) -> Iterator[Iterator[tuple[str, Any]]]:
    headers = {**EVENTS, **(build_auth_header(token) if token else {})}
    with rest.client.stream(method, path, headers=headers, json=body) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"] == "text/event-stream"
        yield parse_events(answer.iter_lines())


# --- tools ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_tools_of_every_kind_are_listed_called_and_disabled(tmp_path: Path) -> None:
    write_pack(tmp_path / "tools", "mine", MINE)
    servers = {
        "far": {"command": sys.executable, "args": [str(MODERN)]},
        "off": {"command": "none", "enabled": False},
    }
    with serve_app(tmp_path, {"servers": servers}, [give]) as server:
        rest = server.rest
        bundle = rest.bundle("stored")
        rest.tool(bundle, "now", "1.0")
        assert eventually(lambda: rest.get("/api/tools", pack="far")["total"], 30)
        kinds = {tool["pack"]: tool["kind"] for tool in rest.all("/api/tools", "tools", pageSize=7)}
        assert kinds["machine"] == "built-in"
        assert kinds["mine"] == "extension"
        assert kinds["far"] == "proxy"
        assert kinds["stored"] == "bundle"
        far = rest.get("/api/tools", kind="proxy")["tools"][0]["name"]
        for name in ("sample.give", "mine.double", far, "stored.now"):
            pack = name.partition(".")[0]
            assert rest.switch(f"/api/tools/{name}", on=False)["isEnabled"] is False
            assert get_error_code(call(rest, name)) == (409, "tool_disabled")
            assert name in {
                tool["name"] for tool in rest.all("/api/tools", "tools", isEnabled="false")
            }
            assert rest.switch(f"/api/tools/{name}", on=True)["isEnabled"] is True
            assert rest.switch(f"/api/packs/{pack}", on=False)["isEnabled"] is False
            assert call(rest, name).status_code == 409
            assert rest.switch(f"/api/packs/{pack}", on=True)["isEnabled"] is True
        assert call(rest, "mine.double", {"number": 4}).json() == {"ok": True, "value": 8}
        packs = {pack["name"]: pack for pack in rest.get("/api/packs")["packs"]}
        assert packs["mine"]["state"] == "running"
        assert packs["mine"]["description"] == "My own."
        assert packs["off"]["state"] == "disabled"
        assert get_error_code(rest.send("PATCH", "/api/packs/off", {"isEnabled": True})) == (
            409,
            "bundle_disabled",
        )
        assert packs["stored"]["bundleID"] == bundle.rpartition("/")[2]


def test_pages_continue_after_the_previous_one(server: ServedApp, rest: Rest) -> None:
    names = [tool["name"] for tool in rest.all("/api/tools", "tools", pageSize=5)]
    assert names == sorted(names)
    assert len(names) == len(set(names)) == rest.get("/api/tools")["total"]
    assert set(server.onetool.registry.names()) <= set(names)
    first = rest.get("/api/tools", pageSize=3, pack="fs")
    assert get_error_code(
        rest.client.get("/api/tools", params={"pageToken": first["nextPageToken"]})
    ) == (
        400,
        "invalid",
    )
    assert get_error_code(rest.client.get("/api/tools", params={"pageToken": "nonsense"})) == (
        400,
        "invalid",
    )


def test_removed_tools_and_long_names_do_not_break_pagination(
    server: ServedApp, rest: Rest
) -> None:
    endless = [f"long.{'名' * 150}{number}" for number in range(4)]
    for name in endless:
        server.onetool.bus.register_tool(tool(name)(search_like))
    first = rest.get("/api/tools", pack="long", pageSize=2)
    assert [entry["name"] for entry in first["tools"]] == endless[:2]
    second = rest.get("/api/tools", pack="long", pageSize=2, pageToken=first["nextPageToken"])
    assert [entry["name"] for entry in second["tools"]] == endless[2:]
    server.onetool.bus.unregister_tool(endless[0])
    again = rest.get("/api/tools", pack="long", pageSize=2, pageToken=first["nextPageToken"])
    assert [entry["name"] for entry in again["tools"]] == endless[2:]
    for name in endless[1:]:
        server.onetool.bus.unregister_tool(name)


def search_like(query: str = "") -> str:
    """Something with a name that nobody can remember."""
    return query


def test_a_search_is_ranked_and_paginated(rest: Rest) -> None:
    best = rest.get("/api/tools", q="how much room is on the disk", pageSize=1)
    assert best["tools"][0]["name"] == "machine.disk"
    every = [
        entry["name"]
        for page in rest.pages("/api/tools", "tools", q="file", pageSize=2)
        for entry in page
    ]
    assert len(every) == len(set(every)) == rest.get("/api/tools", q="file")["total"]
    assert "fs.read" in every
    assert rest.get("/api/tools", q="  ")["total"] == rest.get("/api/tools")["total"]


@pytest.mark.parametrize("query", ['"', "*", "'; drop", "\x00", "🦆" * 200, "a" * 5000, "%", "\\"])
def test_any_text_is_a_valid_search(rest: Rest, query: str) -> None:
    assert rest.client.get("/api/tools", params={"q": query}).status_code == 200


@pytest.mark.parametrize(
    "query",
    [
        "kind=other",
        "isEnabled=yes",
        "pageSize=0",
        "q=a&q=b",
        "kind=proxy&kind=bundle",
        "pageSize=1e3",
    ],
)
def test_an_invalid_filter_is_rejected(rest: Rest, query: str) -> None:
    assert get_error_code(rest.client.get(f"/api/tools?{query}")) == (400, "invalid")


def test_a_tool_has_all_details(rest: Rest) -> None:
    values: list[JsonObject] = [{"a": [1]}, {"a": []}]
    for value in values:
        assert call(rest, "sample.give", {"value": value}).json() == {"ok": True, "value": value}
    before = rest.get("/api/tools/sample.search")["usage"]["errors"]
    assert call(rest, "sample.search", {"query": 5}).status_code == 400
    whole = rest.get("/api/tools/sample.search")
    assert whole["inputSchema"]["required"] == ["query"]
    assert whole["signature"] == "sample.search(query: str, count: int = 5) -> dict[str, Any]"
    assert whole["usage"]["errors"] == before + 1
    assert whole["usage"]["lastError"]["type"] == "validation_error"
    given = rest.get("/api/tools/sample.give")
    assert given["observedShape"] == "{a: list[int]}"
    assert given["usage"]["calls"] >= 2
    assert given["usage"]["lastCalledAt"].endswith("Z")


def test_versions_of_a_stored_tool_are_listed_and_can_be_disabled(rest: Rest) -> None:
    slug = new_slug()
    bundle = rest.bundle(slug)
    for version in ("1.0", "2.0"):
        rest.tool(bundle, "now", version)
    name = f"{slug}.now"
    assert [entry["version"] for entry in rest.get(f"/api/tools/{name}")["versions"]] == [
        "1.0",
        "2.0",
    ]
    assert rest.get(f"/api/tools/{name.replace('-', '_')}")["name"] == name
    assert rest.switch(f"/api/tools/{name}@2.0", on=False)["isEnabled"] is False
    assert rest.get(f"/api/tools/{name}")["isEnabled"] is True
    assert call(rest, name, {"value": 1}).json() == {"ok": True, "value": 1}
    assert get_error_code(call(rest, f"{name}@2.0")) == (409, "tool_disabled")
    assert rest.switch(f"/api/tools/{name}", on=False)["isEnabled"] is False
    rest.switch(bundle, on=False)
    assert get_error_code(call(rest, name)) == (409, "bundle_disabled")
    assert get_error_code(rest.send("PATCH", f"/api/tools/{name}", {"isEnabled": True})) == (
        409,
        "bundle_disabled",
    )


def test_disabling_a_tool_persists_and_reaches_other_servers(tmp_path: Path) -> None:
    with serve_app(tmp_path, tools=[give]) as one, serve_app(tmp_path, tools=[give]) as other:
        one.rest.switch("/api/packs/sample", on=False)
        assert get_error_code(call(other.rest, "sample.give")) == (409, "tool_disabled")
        answer = run(other.rest, "sample.give(value=1)")
        assert answer["isError"]
        assert answer["blocks"][-1].startswith("ToolError: sample.give is disabled\n")
    with serve_app(tmp_path, tools=[give]) as again:
        assert get_error_code(call(again.rest, "sample.give")) == (409, "tool_disabled")
        again.rest.switch("/api/packs/sample", on=True)
        assert call(again.rest, "sample.give").status_code == 200


@pytest.mark.parametrize(
    "name", ["none.such", "a b", "sample.give@9", "x" * 3000, "ünïcode.ツ", "<script>", "%25"]
)
def test_unknown_tools_and_packs_are_not_found(rest: Rest, name: str) -> None:
    tool, pack = f"/api/tools/{quote(name)}", f"/api/packs/{quote(name)}"
    assert get_error_code(rest.client.get(tool)) == (404, "not_found")
    assert get_error_code(rest.send("PATCH", tool, {"isEnabled": True})) == (404, "not_found")
    assert get_error_code(rest.send("POST", f"{tool}/call", {"args": {}})) == (404, "not_found")
    assert get_error_code(rest.send("PATCH", pack, {"isEnabled": True})) == (404, "not_found")


@pytest.mark.parametrize(
    "body", [{}, {"isEnabled": "yes"}, {"isEnabled": 1}, {"isEnabled": True, "more": 1}, []]
)
def test_a_patch_accepts_only_is_enabled(rest: Rest, body: object) -> None:
    assert get_error_code(rest.send("PATCH", "/api/tools/sample.search", body)) == (400, "invalid")
    assert get_error_code(rest.send("PATCH", "/api/packs/sample", body)) == (400, "invalid")


@pytest.mark.nightly
@pytest.mark.slow
def test_ten_thousand_tools_are_paginated_efficiently(tmp_path: Path) -> None:
    looked_at = []

    class Looking(Schema):
        @property
        def required(self) -> frozenset[str]:
            looked_at.append(self)
            return super().required

    with serve_app(tmp_path) as server:
        made = Looking.from_json({"type": "object", "properties": {"a": {"type": "string"}}})
        backend = server.onetool.registry.find("ot.version").backend
        for number in range(10_000):
            name = f"many{number % 50}.tool{number:05}"
            server.onetool.bus.register_tool(
                Tool(name, backend, made, description=f"The {number}th.")
            )
        page = server.rest.get("/api/tools", pageSize=256, pack="many7")
        assert (len(page["tools"]), page["total"]) == (200, 200)
        assert len(looked_at) <= 3 * 200
        everything = server.rest.all("/api/tools", "tools", pageSize=256)
        names = [entry["name"] for entry in everything]
        assert len(set(names)) == len(names)
        assert set(server.onetool.registry.names()) <= set(names)
        packs = {pack["name"]: pack["toolCount"] for pack in server.rest.get("/api/packs")["packs"]}
        assert packs["many49"] == 200
        assert (
            server.rest.get("/api/tools", q="tool04321", pageSize=1)["tools"][0]["name"]
            == "many21.tool04321"
        )


# --- calls ----------------------------------------------------------------------------------------


def test_a_tool_is_called_by_name(rest: Rest) -> None:
    assert call(rest, "sample.search", {"query": "x"}).json() == {
        "ok": True,
        "value": {"query": "x", "count": 5},
    }
    assert (
        call(rest, "sample.give", {"value": f"it is {SECRET}"}).json()["value"]
        == "it is [REDACTED]"
    )
    assert get_error_code(call(rest, "sample.search", {"nope": 1})) == (400, "invalid")
    assert get_error_code(call(rest, "fs.write", {"path": "a", "content": "b"})) == (
        403,
        "permission_denied",
    )
    failed = call(rest, "fs.read", {"path": "no such file"})
    assert failed.status_code == 200
    assert failed.json()["ok"] is False


@pytest.mark.parametrize(
    "body", [{"args": []}, {"arguments": {}}, {"args": {}, "x": 1}, "text", None]
)
def test_a_call_accepts_only_args(rest: Rest, body: object) -> None:
    answer = rest.client.post(
        "/api/tools/sample.give/call",
        content=json.dumps(body),
        headers={"content-type": "application/json"},
    )
    assert get_error_code(answer) == (400, "invalid")


def test_an_event_stream_starts_with_progress(rest: Rest, waiting: Waiting) -> None:
    with open_stream(rest, "POST", "/api/tools/sample.wait/call", {"args": {}}) as events:
        assert next(events) == ("progress", {"message": "waiting with [REDACTED]"})
    assert waiting.was_cancelled.wait(TIMEOUT_SECONDS)


def test_an_event_stream_ends_with_the_outcome(rest: Rest) -> None:
    with open_stream(
        rest, "POST", "/api/tools/sample.give/call", {"args": {"value": "a\nb\u2028c"}}
    ) as events:
        assert list(events) == [("result", {"ok": True, "value": "a\nb\u2028c"})]
    rejected = call(rest, "sample.search", {"wrong": 1}, headers=EVENTS)
    assert get_error_code(rejected) == (400, "invalid")
    stored = rest.tool(rest.bundle())
    with open_stream(rest, "POST", f"{stored}/invoke", {"args": {"value": 1}}) as events:
        assert list(events) == [("result", {"ok": True, "value": 1})]


def test_a_disabled_tool_is_reported_before_invalid_arguments(rest: Rest) -> None:
    stored = rest.tool(rest.bundle(), argSchema={"type": "object", "required": ["value"]})
    for headers in ({}, EVENTS):
        assert get_error_code(
            rest.send("POST", f"{stored}/invoke", {"args": {}}, headers=headers)
        ) == (400, "invalid")
    rest.switch(stored, on=False)
    rest.send("PATCH", "/api/tools/sample.search", {"isEnabled": False})
    for headers in ({}, EVENTS):
        answer = rest.send("POST", f"{stored}/invoke", {"args": {}}, headers=headers)
        assert get_error_code(answer) == (409, "tool_disabled")
        assert get_error_code(call(rest, "sample.search", {"wrong": 1}, headers=headers)) == (
            409,
            "tool_disabled",
        )
        assert get_error_code(call(rest, "sample.nothing", {"wrong": 1}, headers=headers)) == (
            404,
            "not_found",
        )
    rest.send("PATCH", "/api/tools/sample.search", {"isEnabled": True})


def test_a_disconnect_cancels_the_call(rest: Rest, waiting: Waiting) -> None:
    with send_and_disconnect(rest, "/api/tools/sample.wait/call", {"args": {}}):
        assert waiting.began.wait(TIMEOUT_SECONDS)
    assert waiting.was_cancelled.wait(TIMEOUT_SECONDS)


@contextmanager
def send_and_disconnect(rest: Rest, path: str, body: object) -> Iterator[None]:
    """Send a request and disconnect."""
    content = json.dumps(body).encode()
    kind = f"Content-Type: application/json\r\nContent-Length: {len(content)}"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{kind}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", rest.port), TIMEOUT_SECONDS) as connection:
        connection.sendall(head.encode() + content)
        yield


# --- runs -----------------------------------------------------------------------------------------


def test_a_run_returns_the_same_as_over_mcp(rest: Rest) -> None:
    answer = run(rest, "print('hello')\nsample.give(value=[1, 2])")
    assert answer["blocks"] == ["hello\n", "[1,2]"]
    assert answer["isError"] is False
    assert rest.send("POST", "/api/run", {"command": "{'a': 1}", "format": "yml"}).json()[
        "blocks"
    ] == ["{a: 1}"]
    failed = run(rest, "1 / 0")
    assert (failed["isError"], failed["error"]) == (True, "execution_error")
    assert "ZeroDivisionError" in failed["blocks"][-1]
    too_long = run(rest, "#" * 100_001)
    assert "the limit is 100000" in too_long["blocks"][-1]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"command": 1},
        {"command": None},
        {"command": "1", "format": "xml"},
        {"command": "1", "x": 1},
        [],
    ],
)
def test_a_run_requires_a_command(rest: Rest, body: object) -> None:
    assert get_error_code(rest.send("POST", "/api/run", body)) == (400, "invalid")


def test_output_is_streamed_during_the_run(rest: Rest, waiting: Waiting) -> None:
    code = "import os\nprint('pid', os.getpid(), flush=True)\nsample.wait()"
    with open_stream(rest, "POST", "/api/run", {"command": code}) as received:
        events = (
            (name, data) for name, data in received if name != "progress"
        )  # progress arrives at any time
        (first, started), (second, printed) = next(events), next(events)
        assert (first, second) == ("start", "output")
        assert next(events) == ("call", {"state": "began", "number": 0, "name": "sample.wait"})
        assert waiting.began.wait(TIMEOUT_SECONDS)
        assert rest.get(f"/api/runs/{started['runID']}")["state"] == "running"
        watch = ProcessWatch([int(printed["text"].split()[1])])
    with watch:
        assert waiting.was_cancelled.wait(TIMEOUT_SECONDS)
        assert watch.all_ended()
    assert eventually(lambda: rest.get(f"/api/runs/{started['runID']}")["error"] == "cancelled")


def test_output_is_streamed_as_printed(rest: Rest) -> None:
    received: list[tuple[float, str]] = []
    with open_stream(rest, "POST", "/api/run", {"command": THREE_LINES}) as events:
        for name, data in events:
            if name == "output":
                received.append((time.time(), data["text"]))
    times = [float(text) for _, text in received]
    assert [at < following for (at, _), following in zip(received, times[1:], strict=False)] == [
        True,
        True,
    ]


def test_a_disconnect_ends_a_run_without_a_stream(rest: Rest, waiting: Waiting) -> None:
    with send_and_disconnect(rest, "/api/run", {"command": "sample.wait()"}):
        assert waiting.began.wait(TIMEOUT_SECONDS)
    assert waiting.was_cancelled.wait(TIMEOUT_SECONDS)
    assert eventually(
        lambda: all(one["state"] != "running" for one in rest.get("/api/runs")["runs"])
    )


def test_a_secret_is_redacted_across_chunks(rest: Rest) -> None:
    code = f"""
for letter in {SECRET!r}:
    print(letter, end='', flush=True)
print('-and-', {SECRET[:10]!r}, flush=True)
"""
    with open_stream(rest, "POST", "/api/run", {"command": code}) as events:
        found = list(events)
    printed = "".join(data["text"] for name, data in found if name == "output")
    assert printed == f"[REDACTED]-and- {SECRET[:10]}\n"
    assert found[-1][1]["blocks"][0] == printed
    assert SECRET not in json.dumps(rest.get("/api/runs"))


def test_a_stream_ends_with_the_result_of_a_plain_run(rest: Rest) -> None:
    with open_stream(
        rest, "POST", "/api/run", {"command": "print('a')\nsample.give(value='\\ud800')"}
    ) as events:
        found = dict(events)
    assert found["result"]["runID"] == found["start"]["runID"]
    assert found["result"]["blocks"][0] == "a\n"
    assert found["call"]["state"] == "ended"
    with open_stream(rest, "POST", "/api/run", {"command": "print('partly')\n1/0"}) as events:
        found = dict(events)
    assert found["output"] == {"text": "partly\n"}
    assert found["result"]["isError"]


def test_large_output_is_complete(rest: Rest) -> None:
    with open_stream(
        rest, "POST", "/api/run", {"command": "for n in range(20000): print(n)"}
    ) as events:
        printed = "".join(data["text"] for name, data in events if name == "output")
    assert printed.split() == [str(number) for number in range(20000)]


def test_a_timeline_shows_concurrent_calls(rest: Rest) -> None:
    code = (
        "sample.give(value=1)\not.parallel([lambda: sample.search(query='a'), lambda:"
        " sample.search(query='b')])"
    )
    run_id = run(rest, code)["runID"]
    timeline = rest.get(f"/api/runs/{run_id}")
    assert [entry["name"] for entry in timeline["calls"]] == [
        "sample.give",
        "sample.search",
        "sample.search",
    ]
    assert timeline["state"] == "done"
    assert timeline["command"] == code
    assert all(entry["durationMs"] is not None for entry in timeline["calls"])
    assert run_id in {entry["id"] for entry in rest.get("/api/runs")["runs"]}
    assert get_error_code(rest.client.get("/api/runs/none")) == (404, "not_found")


def test_recent_runs_persist_and_are_visible_to_other_servers(tmp_path: Path) -> None:
    with serve_app(tmp_path, {}) as one, serve_app(tmp_path, {}) as other:
        run_id = run(one.rest, "machine.now()")["runID"]
        assert eventually(lambda: other.rest.get("/api/runs")["runs"])
        (seen,) = other.rest.get("/api/runs")["runs"]
        assert (seen["id"], seen["client"], seen["callCount"]) == (run_id, "http", 1)
    with serve_app(tmp_path, {}) as after:
        assert [entry["name"] for entry in after.rest.get(f"/api/runs/{run_id}")["calls"]] == [
            "machine.now"
        ]


@pytest.mark.parametrize("path", ["/api/tools/machine.now", "/api/packs/machine"])
def test_a_patch_respects_if_match(rest: Rest, path: str) -> None:
    before = rest.client.get(path).headers["etag"]
    assert rest.client.get(path, headers={"if-none-match": before}).status_code == 304
    call(rest, "machine.now")  # changes usage counts, but not the settings of the tool
    off = rest.send("PATCH", path, {"isEnabled": False}, headers={"if-match": before})
    assert (off.status_code, off.json()["isEnabled"]) == (200, False), off.text
    late = rest.send("PATCH", path, {"isEnabled": False}, headers={"if-match": before})
    assert get_error_code(late) == (412, "precondition_failed")
    assert (
        late.json()["error"]["details"]["etag"].partition("-")[0]
        == off.headers["etag"].partition("-")[0]
    )
    unwanted = rest.send("PATCH", path, {"isEnabled": True}, headers={"if-none-match": "*"})
    assert get_error_code(unwanted) == (412, "precondition_failed")
    on = rest.send("PATCH", path, {"isEnabled": True}, headers={"if-match": off.headers["etag"]})
    assert (on.status_code, on.headers["etag"].partition("-")[0]) == (200, before.partition("-")[0])


def test_activity_is_streamed_live(rest: Rest) -> None:
    before = run(rest, "1")["runID"]
    with open_stream(rest, "GET", "/api/activity") as events:
        name, start = next(events)
        assert name == "start"
        assert before in {entry["id"] for entry in start["runs"]}
        run_id = run(rest, "sample.give(value=2)")["runID"]
        received = [next(events) for _ in range(4)]
    assert [(name, data["kind"], data["name"]) for name, data in received] == [
        ("called", "run", "run"),
        ("called", "call", "sample.give"),
        ("completed", "call", "sample.give"),
        ("completed", "run", "run"),
    ]
    assert {data["runID"] for _, data in received} == {run_id}
    assert [data["callCount"] for _, data in received] == [0, 1, 1, 1]
    assert rest.client.head("/api/activity").headers["content-type"] == "text/event-stream"


# --- results --------------------------------------------------------------------------------------


def store_result(rest: Rest, **options: Any) -> str:
    block = run(rest, "'\\n'.join(f'line {n}' for n in range(1000))", **options)["blocks"][-1]
    return str(json.loads(block)["handle"])


def test_a_large_result_is_read_by_its_handle(rest: Rest) -> None:
    path = f"/api/results/{store_result(rest)}"
    assert rest.get(path, offset=11, limit=2)["lines"] == ["line 10", "line 11"]
    found = rest.get(path, search="LINE 99$", ignoreCase="true")
    assert (found["lines"], found["matchedLines"], found["totalLines"]) == (["line 99"], 1, 1000)
    assert rest.get(path, search="line 500", fuzzy="true", limit=1)["lines"] == ["line 500"]
    assert rest.get(path, unit="chars", limit=4)["lines"] == ["line"]
    assert rest.get(path, limit="9" * 30)["returned"] == 1000
    for wrong in (
        "offset=0",
        "limit=-1",
        "limit=x",
        "unit=words",
        "fuzzy=maybe",
        "search=(",
        "offset=1.0",
    ):
        assert get_error_code(rest.client.get(f"{path}?{wrong}")) == (400, "invalid"), wrong


def test_unknown_foreign_and_expired_handles_give_the_same_error(
    server: ServedApp, rest: Rest
) -> None:
    foreign = store_result(rest, headers=build_auth_header(READER))
    assert (
        rest.client.get(f"/api/results/{foreign}", headers=build_auth_header(READER)).status_code
        == 200
    )
    expired = store_result(rest)
    for file in (server.onetool.directories.data / "tmp").glob(f"result-{expired}*"):
        text = file.read_bytes()
        if file.name.endswith(".meta.json"):
            file.write_text(
                json.dumps({**json.loads(text), "created_at": "2020-01-01T00:00:00+00:00"})
            )
    handles = [foreign, expired, "0" * 32, "..", "x" * 2000, "%00"]
    answers = [rest.client.get(f"/api/results/{handle}") for handle in handles[:3]]
    assert {(answer.status_code, answer.text) for answer in answers} == {(404, answers[0].text)}
    assert all(
        rest.client.get(f"/api/results/{quote(handle)}").status_code in {400, 404}
        for handle in handles[3:]
    )
    assert (
        rest.client.get(f"/api/results/{foreign}", headers=build_auth_header(WRITER)).text
        == answers[0].text
    )


def test_media_that_could_contain_scripts_are_downloaded(server: ServedApp, rest: Rest) -> None:
    keep = partial(server.onetool.media.put, agent="default")
    picture = rest.client.get(f"/api/media/{keep(b'PNG', 'image/png')}")
    assert (picture.content, picture.headers["content-type"]) == (b"PNG", "image/png")
    for kind in ("image/svg+xml", "text/html", "image/png\r\nx: y", "", "IMAGE/PNG; x"):
        answer = rest.client.get(f"/api/media/{keep(b'<script>', kind)}")
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"] == "attachment"
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert get_error_code(rest.client.get(f"/api/media/{'0' * 32}")) == (404, "not_found")
    theirs = server.onetool.media.put(b"theirs", "image/png", "reader")
    assert get_error_code(rest.client.get(f"/api/media/{theirs}")) == (404, "not_found")
    shown = run(rest, f"{{'media': {keep(b'PNG', 'image/png')!r}}}")["media"]
    assert base64.b64decode(shown[0]["data"]) == b"PNG"
    assert shown[0]["mimeType"] == "image/png"


# --- agents ---------------------------------------------------------------------------------------


def test_agents_do_not_see_each_others_runs(rest: Rest) -> None:
    theirs = {
        token: run(rest, f"sample.give(value={token!r})", headers=build_auth_header(token))["runID"]
        for token in (READER, WRITER)
    }
    for token, other in ((READER, WRITER), (WRITER, READER)):
        seen = rest.client.get("/api/runs", headers=build_auth_header(token)).json()["runs"]
        assert {entry["id"] for entry in seen} >= {theirs[token]}
        assert theirs[other] not in {entry["id"] for entry in seen}
        foreign = rest.client.get(f"/api/runs/{theirs[other]}", headers=build_auth_header(token))
        assert get_error_code(foreign) == (404, "not_found")
        stats = rest.client.get("/api/stats", headers=build_auth_header(token)).json()
        assert stats["agent"] == {READER: "reader", WRITER: "writer"}[token]
        metrics = rest.client.get("/metrics", headers=build_auth_header(token)).text
        assert f'agent="{stats["agent"]}"' in metrics
        assert f'agent="{ {READER: "writer", WRITER: "reader"}[token] }"' not in metrics
    owner = {entry["id"] for entry in rest.get("/api/runs")["runs"]}
    assert set(theirs.values()) <= owner


def test_an_agent_streams_only_its_own_activity(rest: Rest) -> None:
    with open_stream(rest, "GET", "/api/activity", token=READER) as events:
        next(events)
        run(rest, "1")
        run(rest, "2", headers=build_auth_header(WRITER))
        own = run(rest, "3", headers=build_auth_header(READER))["runID"]
        assert next(events)[1]["runID"] == own


def test_an_agent_sees_only_tools_that_it_may_call(rest: Rest) -> None:
    as_reader = build_auth_header(READER)
    listed = rest.client.get("/api/tools", params={"pageSize": 256}, headers=as_reader).json()
    assert {entry["pack"] for entry in listed["tools"]} == {"sample", "machine", "ot"}
    packs = rest.client.get("/api/packs", headers=as_reader).json()["packs"]
    assert {entry["name"] for entry in packs} == {"sample", "machine", "ot"}
    found = rest.client.get(
        "/api/tools", params={"q": "read a file", "pageSize": 256}, headers=as_reader
    ).json()
    assert not [entry for entry in found["tools"] if entry["pack"] == "fs"]
    for answer in (
        rest.client.get("/api/tools/fs.read", headers=as_reader),
        rest.client.get("/api/tools/fs.red", headers=as_reader),
        call(rest, "fs.read", {"path": "x"}, headers=as_reader),
    ):
        assert get_error_code(answer) == (404, "not_found")
        assert "fs.write" not in answer.text
    assert call(rest, "sample.give", {"value": 1}, headers=as_reader).json()["ok"]


def test_changes_need_the_write_permission(rest: Rest) -> None:
    changes = [
        ("PATCH", "/api/tools/sample.search", {"isEnabled": True}),
        ("PATCH", "/api/packs/sample", {"isEnabled": True}),
        ("POST", f"/api/import?name={new_slug()}", PETS),
        ("POST", "/api/request-preview", {"httpImpl": http_draft("http://a.example/")["httpImpl"]}),
    ]
    for method, path, body in changes:
        assert get_error_code(rest.send(method, path, body, headers=build_auth_header(READER))) == (
            403,
            "permission_denied",
        )
        assert rest.send(method, path, body, headers=build_auth_header(WRITER)).status_code in {
            200,
            201,
        }
        assert get_error_code(
            rest.send(method, path, body, headers=build_auth_header("ot_lost"))
        ) == (
            403,
            "permission_denied",
        )
        assert get_error_code(
            rest.send(method, path, body, headers=build_auth_header("ot_wrong"))
        ) == (
            401,
            "unauthorized",
        )
    assert get_error_code(rest.client.get("/api/tools", headers=build_auth_header("ot_lost"))) == (
        403,
        "permission_denied",
    )
    lost = rest.send("POST", "/api/run", {"command": "1"}, headers=build_auth_header("ot_lost"))
    assert get_error_code(lost) == (403, "permission_denied")


# --- statistics -----------------------------------------------------------------------------------


def test_statistics_can_be_filtered(rest: Rest) -> None:
    call(rest, "sample.search", {"query": "x"})
    stats = rest.get("/api/stats", period="day", tool="sample.search")
    assert [entry["name"] for entry in stats["tools"]] == ["sample.search"]
    assert sum(stats["series"]["calls"]) == stats["totalCalls"] >= 1
    assert stats["isEnabled"] is True
    assert get_error_code(rest.client.get("/api/stats?period=year")) == (400, "invalid")
    assert rest.get("/api/stats", tool="never-called" * 300)["totalCalls"] == 0


def test_health_and_readiness(rest: Rest) -> None:
    health = rest.get("/api/health")
    assert health["isolation"]["sandbox"]
    assert health["registry"]["toolCount"] > 10
    assert rest.client.get("/readyz").text == "ready\n"


def test_readyz_reports_an_invalid_configuration(tmp_path: Path) -> None:
    def read() -> Any:
        raise ConfigError(f"line 3 of {tmp_path} is wrong")

    with start_blocking_portal("asyncio") as portal:
        onetool = OneTool(read=read, log=Log())
        with portal.wrap_async_context_manager(onetool) as app:
            server = HttpServer(app, "127.0.0.1", 0)
            running = portal.start_task_soon(server.run, lambda _bind: None)
            with make_client(f"http://127.0.0.1:{server.bind.port}") as client:
                answer = client.get("/readyz")
                assert get_error_code(answer) == (503, "busy")
                assert str(tmp_path) not in answer.text
                assert get_error_code(
                    client.patch("/api/tools/ot.help", json={"isEnabled": True})
                ) == (503, "busy")
                received = client.post("/api/run", json={"command": "1"}).json()
                assert (received["runID"], received["error"]) == (None, "config_error")
            portal.call(server.stop)
            running.result(TIMEOUT_SECONDS)


# --- import and export ----------------------------------------------------------------------------

PETS: JsonObject = {
    "openapi": "3.1.0",
    "info": {"title": "Pet API", "version": "1.2"},
    "servers": [{"url": "https://pets.example.com/v1"}],
    "components": {"securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}}},
    "security": [{"key": []}],
    "paths": {
        "/pets": {"get": {"operationId": "listPets", "responses": {"200": {"description": "ok"}}}},
        "/pets/{id}": {
            "get": {
                "operationId": "getPet",
                "parameters": [
                    {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
                ],
                "responses": {"200": {"description": "ok"}},
            }
        },
    },
}


def test_an_openapi_document_is_imported_as_a_bundle(rest: Rest) -> None:
    slug = new_slug()
    answer = rest.send("POST", f"/api/import?name={slug}", PETS)
    assert answer.status_code == 201, answer.text
    taken = answer.json()
    assert (taken["bundle"]["slug"], taken["toolCount"]) == (slug, 2)
    assert taken["hosts"] == ["pets.example.com"]
    assert len(taken["secrets"]) == 1
    assert rest.get("/api/tools", pack=slug)["total"] == 2
    again = rest.send("POST", f"/api/import?name={slug}", PETS)
    assert get_error_code(again) == (409, "slug_taken")
    free = again.json()["error"]["details"]["suggestion"]
    assert rest.send("POST", f"/api/import?name={free}", PETS).json()["bundle"]["slug"] == free


def test_authentication_and_headers_are_added_to_a_document(rest: Rest) -> None:
    slug = new_slug()
    document = {**PETS, "components": {}, "security": None}
    query = f"name={slug}&auth=bearer&header=X-Version:+2&header=X-Kind:+pets"
    answer = rest.send("POST", f"/api/import?{query}", document)
    assert answer.status_code == 201, answer.text
    assert answer.json()["secrets"] == [f"{slug.upper().replace('-', '_')}_AUTH"]
    stored = rest.get(
        f"/tools/bundles/{answer.json()['bundle']['id']}/tools/list-pets/version/1.2"
    )["httpImpl"]
    assert (stored["headers"], stored["auth"]["type"]) == (
        {"X-Version": "2", "X-Kind": "pets"},
        "bearer",
    )
    for parameter in (
        "auth=digest",
        "header=X-Token:+abc",
        "header=X-City:+${city}",
        "auth=basic&auth=bearer",
    ):
        assert get_error_code(rest.send("POST", f"/api/import?{parameter}", document)) == (
            400,
            "invalid",
        )


def test_a_bundle_can_be_exported_and_imported(rest: Rest) -> None:
    bundle = rest.bundle()
    rest.tool(bundle, "now", "1.0")
    rest.tool(bundle, "page", "1.0", **http_draft("https://example.com/"))
    rest.switch(bundle, on=False)
    exported = rest.client.get(f"/api/bundles/{bundle.rpartition('/')[2]}/export")
    assert exported.headers["content-type"] == "application/zip"
    slug = new_slug()
    answer = rest.client.post(f"/api/import?name={slug}", content=exported.content)
    assert answer.status_code == 201, answer.text
    taken = answer.json()
    assert taken["toolCount"] == 2
    assert taken["bundle"]["isEnabled"] is False
    assert get_error_code(rest.client.get(f"/api/bundles/{UNKNOWN}/export")) == (404, "not_found")
    assert get_error_code(rest.client.get("/api/bundles/nonsense/export")) == (400, "invalid")


def test_a_failed_import_changes_nothing(tmp_path: Path) -> None:
    with serve_app(tmp_path, {"bundles": {"maxTools": 1}}) as server:
        rejected = server.rest.send("POST", "/api/import?name=pets", PETS)
        assert get_error_code(rejected) == (413, "too_large")
        assert "pets" not in {
            entry["slug"] for entry in server.rest.all("/tools/bundles", "bundles")
        }
        assert "pets" not in {pack["name"] for pack in server.rest.get("/api/packs")["packs"]}


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04nonsense", b"\xff\xfe", b"{", b"[" * 100_000, b"openapi: 9", b"- a"],
)
def test_other_documents_are_rejected(rest: Rest, content: bytes) -> None:
    assert get_error_code(rest.client.post("/api/import", content=content)) == (400, "invalid")


def test_archive_names_are_encoded_in_the_header(rest: Rest) -> None:
    bundle = rest.bundle(f"бандл-{os.urandom(4).hex()}")
    disposition = rest.client.get(f"/api/bundles/{bundle.rpartition('/')[2]}/export").headers[
        "content-disposition"
    ]
    assert disposition.isascii()
    assert "filename*=UTF-8''%D0%B1" in disposition


def test_every_referenced_schema_is_in_the_document(rest: Rest) -> None:
    document = rest.get("/openapi.json")
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert names
    assert names <= document["components"]["schemas"].keys()
