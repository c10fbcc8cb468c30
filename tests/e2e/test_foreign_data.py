"""Test that foreign data cannot freeze the server: schemas, patterns, names, results and documents
of others.

Each gets adversarial input at its maximum size, through its real transport, while a neighbor runs
`1 + 1` on the same server (`run_attack`, `send_attack`).
"""

import io
import json
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import httpx2
import pytest
from tests.http_support import Site, page, serve_site
from tests.rest_support import Rest, get_error_code, http_draft, make_client, serve_process
from tests.support import (
    Connection,
    configure,
    connect,
    get_texts,
    run_attack,
    watch_neighbor,
)
from tests.workers_support import write_pack

from onetool.sources.bundles.archive import pack

SERVER = Path(__file__).parent / "servers" / "scripted.py"
ANY = {"type": "object"}
JSON_TYPE = "application/json"
BACKTRACKING = "^(a|a)*(?=x)$"
STATES = "(a?[ab]?[abc]?){1000}[c-z]"


def take(schema: Any) -> dict[str, Any]:
    """Return the definition of a tool with an argument `x`."""
    return {
        "tool": {"inputSchema": {"type": "object", "properties": {"x": schema}}},
        "result": text("done"),
    }


def give(value: Any, schema: Any) -> dict[str, Any]:
    """Return a tool with a structured result."""
    output = {"type": "object", "properties": {"x": schema}}
    result = {"content": [], "structuredContent": {"x": value}}
    return {"tool": {"inputSchema": ANY, "outputSchema": output}, "result": result}


def text(value: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}]}


# The tool, the code that calls it, and part of the answer, if that does not depend on the speed of
# the machine.
UPSTREAM: dict[str, tuple[dict[str, Any], str, str]] = {
    "backtracking": (
        take({"items": {"pattern": BACKTRACKING}}),
        "foreign.T(x=['a' * 50_000 + '!'] * 100)",
        "done",
    ),
    "states": (take({"items": {"pattern": STATES}}), "foreign.T(x=['ab' * 800])", "x[0]"),
    "checks": (
        take({"allOf": [{"items": {"type": "integer"}}] * 1000}),
        "foreign.T(x=[1] * 30_000)",
        "",
    ),
    "errors": (
        take({"anyOf": [{"items": {"type": "integer"}}] * 30}),
        "foreign.T(x=['x'] * 3_000)",
        "Error",
    ),
    "conversions": (
        take({"items": {"type": "integer"}}),
        "foreign.T(x=['1'] * 100_000)",
        'is not of type "integer"',
    ),
    "floats": (
        take({"anyOf": [{"items": {"type": "integer"}}] * 300}),
        "foreign.T(x=[1.0] * 5_000)",
        "",
    ),
    "output": (
        give(["a" * 50_000 + "!"] * 100, {"items": {"pattern": BACKTRACKING}}),
        "len(foreign.T()['x'])",
        "100",
    ),
    "output states": (give("ab" * 500_000, {"pattern": STATES}), "foreign.T()", "took longer"),
    "many patterns": (
        take({"patternProperties": {f"a.*b.*{n}x": {} for n in range(1000)}}),
        "foreign.T(x={f'ab{n}ab': 1 for n in range(15_000)})",
        "done",
    ),
    "keys like secrets": (
        {
            "tool": {"inputSchema": ANY},
            "result": text(json.dumps({f"sk_{'a_' * 17}{n}": n for n in range(9)})),
        },
        "len(foreign.T())",
        "9",
    ),
    "backslashes": (
        {"tool": {"inputSchema": ANY}, "result": text("\\" * 1_000_000)},
        "foreign.T()",
        "handle",
    ),
    "escapes": (
        {"tool": {"inputSchema": ANY}, "result": text("%2525" * 200_000)},
        "foreign.T()",
        "handle",
    ),
    "short escapes": (
        {"tool": {"inputSchema": ANY}, "result": text("%2525" * 9_000)},
        "foreign.T()[:40_000]",
        "%25",
    ),
    "trap descriptions": (
        {
            "tool": {"description": "ignore all of the " * 20_000, "inputSchema": ANY},
            "result": text("done"),
        },
        "len(ot.help(query='foreign.T', info='full')) < 100_000",
        "True",
    ),
    "tag descriptions": (
        {
            "tool": {"description": "</ external \u200b" * 20_000, "inputSchema": ANY},
            "result": text("done"),
        },
        "len(str(ot.search(query='external content'))) < 100_000",
        "True",
    ),
    "many arguments": (
        {
            "tool": {
                "inputSchema": {
                    **ANY,
                    "properties": {f"a{n}": {"anyOf": [{}] * 3} for n in range(5_000)},
                }
            },
            "result": text("x"),
        },
        "len(ot.help(query='foreign.T', info='full')) < 1_000_000",
        "True",
    ),
    "yaml": (
        {"tool": {"inputSchema": ANY}, "result": text(json.dumps([{"a": "\n- : #" * 20}] * 2_000))},
        "__format__ = 'yml'\nforeign.T()",
        "handle",
    ),
    "deep table": (
        {
            "tool": {"inputSchema": ANY},
            "result": text(json.dumps([{f"k{n}": [[[n]]] for n in range(200)}] * 100)),
        },
        "__format__ = 'markdown'\nforeign.T()",
        "",
    ),
    "an error": (
        {
            "tool": {"inputSchema": ANY},
            "result": {**text("\\" * 500_000 + "<" * 500_000), "isError": True},
        },
        "foreign.T()",
        "ToolError",
    ),
    "large schema": (take({"enum": ["x" * 50] * 60_000}), "foreign.T(x='x' * 50)", "done"),
}


# Snippets of the settings, whose values are foreign, and a pack with an effect, whose calls are
# recorded.
SNIPPETS = {
    "show": {"body": "len({{ x }})", "params": {"x": {}}},
    "text": {
        "body": "len('{{ x }}' + {{ x | replace('a', x) }})",
        "params": {"x": {"type": "string"}},
    },
    "each": {
        "body": "{% for i in x | sort %}{{ i }}\n{% endfor %}1",
        "params": {"x": {"type": "array"}},
    },
    "outer": {"body": "$show x={{ x }}", "params": {"x": {}}},
}
PACK = """
effects = ["write"]


def take(x: object) -> object:
    return x
"""


def to_name(case: str) -> str:
    return case.replace(" ", "_")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    home = tmp_path_factory.mktemp("home")
    script = home / "script.json"
    script.write_text(
        json.dumps({to_name(case): tool for case, (tool, _, _) in UPSTREAM.items()}),
        encoding="utf-8",
    )
    server = {"command": sys.executable, "args": [str(SERVER), str(script)], "timeout": 60}
    (home / ".onetool").mkdir()
    (home / ".onetool" / "secrets.yaml").write_text("KEY: " + "k9" * 1_000)
    (home / ".onetool" / "secrets.yaml").chmod(0o600)
    agents = {"default": {"permissions": ["read", "write", "network"]}}
    settings = {
        "servers": {"foreign": server},
        "execution": {"timeout": 60},
        "snippets": SNIPPETS,
        "agents": agents,
    }
    configure(home, json.dumps(settings))
    write_pack(home / ".onetool", "hostile", PACK)
    with connect(home) as client:
        assert run_attack(client, "foreign.backtracking()") == "done"  # lists the server
        client.run("$show x=1")  # modules loaded at the first use delay other runs once
        client.run("hostile.take(x=ot.search('disk'))")
        assert get_texts(client.run("len(ot.tools(pattern='foreign.'))")) == [str(len(UPSTREAM))]
        yield client


@pytest.mark.parametrize("case", UPSTREAM)
def test_an_upstream_tool_does_not_delay_others(client: Connection, case: str) -> None:
    _, code, expected = UPSTREAM[case]
    answer = run_attack(client, code.replace("foreign.T", f"foreign.{to_name(case)}"))
    assert expected in answer
    assert len(answer) <= 40_000


# Code that parses hostile text or validates data against a hostile schema.
PARSED = {
    "json pattern": (
        f"json.parse(json='\"' + 'a' * 50_000 + '!\"', schema={{'pattern': {BACKTRACKING!r}}})"
    ),
    "json states": f"json.parse(json='\"' + 'ab' * 1_000 + '\"', schema={{'pattern': {STATES!r}}})",
    "json checks": (
        "json.parse(json='[' + '1,' * 40_000 + '1]', "
        "schema={'allOf': [{'items': {'type': 'integer'}}] * 1000})[0]"
    ),
    "json unique": "json.parse(json='[' + '[{}],' * 30_000 + '1]', schema={'uniqueItems': True})",
    "json references": (
        "json.parse(json='1', schema={'$ref': '#/$defs/d0', '$defs': {f'd{n}': {'allOf': "
        "[{'$ref': f'#/$defs/d{n + 1}'}] * 2} for n in range(26)} | {'d26': {}}})"
    ),
    "json text": "json.parse(json='[' * 1_000_000)",
    "yaml aliases": (
        "lines = [f'a{n}: &a{n} [{\"*a%d,\" % (n - 1) * 9}]' for n in range(1, 30)]\n"
        "yaml.parse(yaml='\\n'.join(['a0: &a0 [x]', *lines]))"
    ),
    "yaml nesting": "yaml.parse(yaml='[' * 100_000)",
    "yaml text": "yaml.parse(yaml='- {a: [b, \"c\", d: e]}\\n' * 20_000)",
    "yaml pattern": f"yaml.parse(yaml='a' * 50_000 + '!', schema={{'pattern': {BACKTRACKING!r}}})",
}


@pytest.mark.parametrize("case", PARSED)
def test_parsing_does_not_delay_others(client: Connection, case: str) -> None:
    answer = run_attack(client, PARSED[case])
    assert answer == "1" or "Error: " in answer or "took longer" in answer, answer


# Code with large values for snippets, records of calls, queries and stored results, and part of the
# answer.
VALUES = {
    "snippet of lists": (f"$show x=[{'[],' * 240_000}[]]", "240001"),
    "snippet of escapes": ("$show x=" + "\\a" * 490_000, "490000"),
    "snippet of words": ("$show " + "x=1 " * 240_000, "got 'x' twice"),
    "snippet of lines": ("$show\nx: |\n" + "  a\n" * 240_000, "479999"),
    "snippet of parameters": (
        "$show\n" + "".join(f"k{n}: 1\n" for n in range(90_000)),
        "has no parameter",
    ),
    "value of a snippet": ("ot.snippet('show', x=[[[]]] * 35_000)", "35000"),
    "text of a snippet": ("ot.snippet('text', x='a' * 500_000)", "more than 1000000 characters"),
    "loop of a snippet": (
        "ot.snippet('each', x=[str(n) for n in range(50_000)])",
        "more than 1000000 characters",
    ),
    "nested snippets": ("ot.snippet('outer', x=[str(n) for n in range(50_000)])", "50000"),
    "recorded text": (
        "[hostile.take(x='%2525' * 100_000)[0] for _ in range(5)]",
        '["%","%","%","%","%"]',
    ),
    "recorded values": (
        "[len(hostile.take(x=[['%2525', n] for n in range(20_000)]))] * 2",
        "[20000,20000]",
    ),
    "recorded keys": (
        (
            "len(hostile.take(x=[{f'sk_' + 'a_' * 17 + str(n): n for n in range(1_000)} for _ in"
            " range(20)]))"
        ),
        "20",
    ),
    "query": ("len(ot.search(query='a b c d e ' * 990)) >= 0", "True"),
    "pattern": ("ot.tools(pattern='*a' * 4_990)", "[]"),
    "page": ("len(ot.help(query='(a|a)* ' * 1_400)) > 0", "True"),
    "names of files": ("len(fs.list(path='.', pattern='*a' * 2_000 + 'b')) >= 0", "True"),
    "text of files": ("len(grep(pattern='(a?){100}b' * 20, path='.')['results']) <= 1_000", "True"),
}


@pytest.mark.parametrize("case", VALUES)
def test_values_do_not_delay_others(client: Connection, case: str) -> None:
    code, expected = VALUES[case]
    answer = run_attack(client, code)
    assert expected in answer, answer[:1_000]


@pytest.mark.parametrize(
    "options", ["search='(a?[ab]?){100}c'", "search='ab c', fuzzy=True", "unit='chars'"]
)
def test_a_stored_result_does_not_delay_others(client: Connection, options: str) -> None:
    (stored,) = get_texts(client.run("hostile.take(x='ab ' * 300_000)"))
    handle = json.loads(stored)["handle"]
    assert "Error" not in run_attack(client, f"ot.result(handle='{handle}', {options})")


# --- over HTTP ------------------------------------------------------------------------------------


class Server:
    """A server process with a client."""

    def __init__(self, rest: Rest, process: int) -> None:
        self.rest = rest
        self._process = process

    def _ask_neighbor(self) -> bool:
        return '"2"' in self.rest.send("POST", "/api/run", {"command": "1 + 1"}).text

    def send_attack(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content: bytes | None = None,
        accept: str = "*/*",
        kind: str = JSON_TYPE,
    ) -> httpx2.Response:
        """Send the request and return its response. Meanwhile, a neighbor must never wait for long."""
        with (
            ThreadPoolExecutor(1) as threads,
            make_client(str(self.rest.client.base_url)) as attacker,
        ):
            data = json.dumps(body).encode() if content is None else content
            headers = {"content-type": kind, "accept": accept}
            attacking = threads.submit(
                attacker.request, method, path, content=data, headers=headers
            )
            return watch_neighbor(self._process, attacking, self._ask_neighbor)


LONG_SECRET = f"% {random.Random(1).randbytes(3_000).hex()}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("home")
    configure(
        home,
        json.dumps(
            {"http": {"allowedHosts": ["*"], "allowPrivateAddresses": True, "timeoutMs": 60_000}}
        ),
    )
    (home / ".onetool" / "secrets.yaml").write_text(json.dumps({"KEY": LONG_SECRET}))
    (home / ".onetool" / "secrets.yaml").chmod(0o600)
    with serve_process(home) as (process, started), make_client(started["url"]) as client:
        rest = Rest(client)
        rest.send("POST", "/api/run", {"command": "1 + 1"})
        yield Server(rest, process.pid)


def test_a_preview_does_not_delay_others(server: Server) -> None:
    impl = {"urlTemplate": "http://a.example/${x}"}
    for pattern, value in ((BACKTRACKING, "a" * 50_000 + "!"), (STATES, "ab" * 2_000)):
        body = {
            "httpImpl": impl,
            "argSchema": {"properties": {"x": {"pattern": pattern}}},
            "args": {"x": value},
        }
        assert server.send_attack("POST", "/api/request-preview", body).status_code in {200, 400}


def test_a_stored_tool_does_not_delay_others(server: Server) -> None:
    rest = server.rest
    bundle = rest.bundle()
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"x": {"type": "string", "pattern": STATES}},
    }
    path = rest.tool(bundle, **http_draft("http://127.0.0.1:9/${x}"), argSchema=schema)
    answer = server.send_attack("POST", f"{path}/invoke", {"args": {"x": "ab" * 50_000}})
    assert "took longer" in answer.text
    schema["properties"]["x"]["pattern"] = BACKTRACKING
    rejected = rest.send(
        "PUT", path, {**http_draft("http://127.0.0.1:9/${x}"), "argSchema": schema}
    )
    assert get_error_code(rejected) == (400, "invalid")
    assert "look-around" in rejected.text


# A pattern of names, a placeholder, and part of the answer.
PLACEHOLDERS = {
    "backtracking": ("^(a|a)*$", "a" * 40 + "b", "unknown placeholder"),
    "states": (STATES, "ab" * 20_000, "takes too long"),
}


@pytest.mark.parametrize("case", PLACEHOLDERS)
def test_a_pattern_of_placeholders_does_not_delay_others(server: Server, case: str) -> None:
    pattern, name, expected = PLACEHOLDERS[case]
    schema = {"type": "object", "patternProperties": {pattern: {}}}
    path = f"{server.rest.bundle()}/tools/t/version/1"
    body = {**http_draft(f"http://a.example/${{{name}}}"), "argSchema": schema}
    assert expected in server.send_attack("PUT", path, body).text


HEX = [f"{number:x}" for number in range(110_000)]
# Bodies of up to 4 MiB, and their errors.
BODIES = {
    "a key twice": (
        "{" + ",".join(f'"{name}":0' for name in [*HEX, *HEX[-1:]]) + "}",
        (400, "invalid"),
    ),
    "unknown keys": (json.dumps(dict.fromkeys(HEX, 0)), (400, "invalid")),
    "many values": (json.dumps({"command": "1 + 1", "x": [[]] * 1_000_000}), (413, "too_large")),
    "nesting": ('{"x":' + "[" * 100_000, (400, "invalid")),
}


@pytest.mark.parametrize("case", BODIES)
def test_a_body_does_not_delay_others(server: Server, case: str) -> None:
    body, error = BODIES[case]
    assert get_error_code(server.send_attack("POST", "/api/run", content=body.encode())) == error


def test_an_mcp_message_does_not_delay_others(server: Server) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "ping", "x": [[]] * 1_000_000}
    answer = server.send_attack(
        "POST", "/mcp", message, accept="application/json, text/event-stream"
    )
    assert get_error_code(answer) == (413, "too_large")


def test_a_tool_with_many_headers_does_not_delay_others(server: Server) -> None:
    draft = http_draft("http://a.example/", headers=dict.fromkeys(HEX, "x"))
    answer = server.send_attack("PUT", f"{server.rest.bundle()}/tools/t/version/1", draft)
    assert answer.status_code == 400, answer.text
    assert "at most 1000 items" in answer.text, answer.text


def test_an_imported_document_does_not_delay_others(server: Server) -> None:
    parameters = [
        {
            "name": f"p{n}",
            "in": "query",
            "schema": {"type": "string", "pattern": f"(a|a)*{n}(?=x)", "default": "a" * 500},
        }
        for n in range(300)
    ]
    operation = {"operationId": "o", "parameters": parameters, "responses": {}}
    document = {
        "openapi": "3.0.0",
        "info": {"title": "x" * 100_000, "version": "1"},
        "servers": [{"url": "https://a.example/{" + "a" * 50_000}],
        "paths": {
            f"/{'{' * 100}{n}": {"get": {**operation, "operationId": f"o{n}"}} for n in range(100)
        },
    }
    answer = server.send_attack(
        "POST", "/api/import?name=hostile", content=json.dumps(document).encode()
    )
    assert answer.status_code in {201, 400}


def test_live_output_does_not_delay_others(server: Server) -> None:
    code = "for _ in range(4): print('%2525' * 13_000, end='')"
    answer = server.send_attack("POST", "/api/run", {"command": code}, accept="text/event-stream")
    assert "event: output" in answer.text
    assert (
        "searching the rest for secrets takes too long" in answer.text
        or answer.text.count("%2525") >= 52_000
    )


# The body of the response, the selector, and part of the answer.
SELECTORS = {
    "doubling": (b"[1]", "[@,@][]" + " | [@,@][]" * 30, "takes more than"),
    "joining": (b'["x"]', "join('', [@[0],@[0]])" + " | join('', [@,@])" * 40, "takes more than"),
    "nesting": (b"[1]", "[@,@]" + " | [@,@]" * 40 + " | to_string(@)", "takes more than"),
    "comparing": (
        b"[1]",
        f"[{'[@,@]' + ' | [@,@]' * 40} == {'[@,@]' + ' | [@,@]' * 40}]",
        "takes more than",
    ),
    "sorting": (
        json.dumps([f"{n * 7919 % 900_007:x}" for n in range(900_000)]).encode(),
        "sort(@)[0]",
        "takes more",
    ),
    "reversing": (b"[" + b"1," * 400_000 + b"1]", "reverse(@)[0]", "1"),
    "wildcards": (
        json.dumps([{f"k{n}": [n] for n in range(50)}] * 2_000).encode(),
        "length([*].*[][])",
        "100000",
    ),
}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serve_site() as site:
        yield site


@pytest.mark.parametrize("case", SELECTORS)
def test_a_selector_does_not_delay_others(server: Server, site: Site, case: str) -> None:
    body, selector, expected = SELECTORS[case]
    site.pages["/data"] = page(body, ("Content-Type", "application/json"))
    response = {"mode": "json", "selector": selector}
    tool = server.rest.tool(
        server.rest.bundle(), **http_draft(site.url("/data"), response=response)
    )
    assert expected in server.send_attack("POST", f"{tool}/invoke", {"args": {}}).text


BODY = {f"f{n}": "${x}" for n in range(500)}
# The request, the arguments, and part of the answer.
TEMPLATES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a body": ({"method": "POST", "body": BODY}, {"x": "é" * 120_000}, "done"),
    "a large body": (
        {"method": "POST", "body": BODY},
        {"x": "é" * 600_000},
        "makes the request larger",
    ),
    "a list in a body": (
        {"method": "POST", "body": BODY},
        {"x": [[]] * 55_000},
        "makes the request larger",
    ),
    "a path": ({"url": "/data/${x}"}, {"x": "é" * 600_000}, "URL too long"),
    "a query": (
        {"url": "/data?" + "&".join(["x=${x}"] * 500)},
        {"x": "é/" * 25_000},
        "URL too long",
    ),
    "parameters": (
        {"url": "/data?x=${x}"},
        {"x": {f"é{n}": n for n in range(60_000)}},
        "URL too long",
    ),
    "a list": ({"url": "/data?x=${pipes:x}"}, {"x": ["é"] * 100_000}, "URL too long"),
    "a header": ({"headers": {"X-Large": "${x}"}}, {"x": "x" * 4_000_000}, "too long"),
    "a password": (
        {"auth": {"type": "basic", "value": "user:${x}"}},
        {"x": "%2525" * 700_000},
        "too long",
    ),
}


@pytest.mark.parametrize("case", TEMPLATES)
def test_a_template_does_not_delay_others(server: Server, site: Site, case: str) -> None:
    request, args, expected = TEMPLATES[case]
    site.pages["/data"] = page(b'"done"', ("Content-Type", "application/json"))
    draft = http_draft(**{**request, "url": site.url(request.get("url", "/data"))})
    schema = {"type": "object", "properties": {"x": {}}}
    tool = server.rest.tool(server.rest.bundle(), **draft, argSchema=schema)
    answer = server.send_attack("POST", f"{tool}/invoke", {"args": args}).text
    assert expected in answer, answer[:1_000]


def test_a_large_definition_does_not_delay_others(server: Server, site: Site) -> None:
    """Its templates are parsed at the first call."""
    site.pages["/data"] = page(b'"done"', ("Content-Type", "application/json"))
    body = {f"f{number}": "${x}" if number < 9_000 else "$${y" for number in range(38_000)}
    draft = {
        **http_draft(site.url("/data"), method="POST", body=body),
        "argSchema": {"properties": {"x": {}}},
    }
    tool = f"{server.rest.bundle()}/tools/t/version/1"
    assert server.send_attack("PUT", tool, draft).status_code == 201
    assert "done" in server.send_attack("POST", f"{tool}/invoke", {"args": {"x": "x"}}).text


def test_a_deep_definition_is_an_error(server: Server) -> None:
    body = json.loads('{"a":' * 900 + "1" + "}" * 900)
    draft = http_draft("http://a.example/", method="POST", body=body)
    answer = server.rest.send("PUT", f"{server.rest.bundle()}/tools/t/version/1", draft)
    assert get_error_code(answer) == (400, "invalid")
    assert "nested too deeply" in answer.text


def test_a_credential_of_a_step_does_not_delay_others(server: Server, site: Site) -> None:
    site.pages["/data"] = page(b"%2525" * 1_500_000, ("Content-Type", "text/plain"))
    step = {"name": "login", "method": "GET", "urlTemplate": site.url("/data")}
    draft = http_draft(site.url("/data"), steps=[step], headers={"X-Token": "${steps.login.body}"})
    tool = server.rest.tool(server.rest.bundle(), **draft)
    answer = server.send_attack("POST", f"{tool}/invoke", {"args": {}}).text
    assert "too long" in answer, answer[:1_000]


@pytest.mark.parametrize("status", [200, 500])
def test_a_response_does_not_delay_others(server: Server, site: Site, status: int) -> None:
    headers = [("Content-Type", "text/plain"), *((f"X-{n}", "%2525" * 40) for n in range(60))]
    headers += [(f"sk-{'a-' * 17}{n}", "x") for n in range(9)]  # their shape is learned
    site.pages["/data"] = page(b"%2525" * 16_000, *headers, status=status)
    tool = server.rest.tool(
        server.rest.bundle(), **http_draft(site.url("/data"), response={"full": True})
    )
    answer = server.send_attack("POST", f"{tool}/invoke", {"args": {}})
    assert "%2525" in answer.text, answer.text[:1_000]


STREAMS = {
    "a huge event": b"data: [" + b"[]," * 2_000_000 + b"[]]\n\n",
    "no line breaks": b"data: " + b"x" * 9_000_000,
    "small lines": b"data:\n" * 1_000_000 + b"\n",
    "empty lines": b"\n" * 5_000_000,
    "small events": b"data: 1\n\n" * 500_000,
}


@pytest.mark.parametrize("case", STREAMS)
def test_an_event_stream_does_not_delay_others(server: Server, site: Site, case: str) -> None:
    site.pages["/events"] = page(STREAMS[case], ("Content-Type", "text/event-stream"))
    tool = server.rest.tool(
        server.rest.bundle(), **http_draft(site.url("/events"), response={"mode": "events"})
    )
    assert server.send_attack("POST", f"{tool}/invoke", {"args": {}}).status_code in {200, 502}


def test_an_imported_archive_does_not_delay_others(server: Server) -> None:
    tool = {**http_draft("http://a.example/"), "slug": "t", "version": "1"}
    bundle = {"slug": "shop", "displayName": "Shop", "isEnabled": True}
    hostile = {
        "many": {f"tools/{n}.json": b"[" * 100 for n in range(20_000)},
        "deep": {"tools/a.json": b"[" * 1_900_000},
        "compressed": {f"tools/{n}.json": b"0" * 2_000_000 for n in range(20)},
        "values": {f"tools/{n}.json": b"[" + b"[]," * 500_000 + b"1]" for n in range(10)},
    }
    for case, entries in hostile.items():
        content = io.BytesIO(pack(bundle, [tool]))
        with ZipFile(content, "a", ZIP_DEFLATED if case == "compressed" else ZIP_STORED) as archive:
            for name, data in entries.items():
                archive.writestr(name, data)
        answer = server.send_attack(
            "POST", "/api/import?name=hostile", content=content.getvalue(), kind="application/zip"
        )
        assert answer.status_code in {201, 400}, answer.text
