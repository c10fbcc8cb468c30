"""Test agents over every transport: the MCP client name, the command line, resources and upstream
servers.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import ImageContent, Implementation, TextResourceContents
from tests.conformance_support import fixtures, publish
from tests.http_support import Site
from tests.proxy_support import hostile_server
from tests.rest_support import http_draft, serve_app
from tests.state_support import open_media
from tests.support import (
    PROGRAM,
    App,
    Connection,
    configure,
    environment,
    eventually,
    get_texts,
    open_app,
    run_cli,
)

from onetool.admin.agents import UNLIMITED
from onetool.core.tool import tool
from onetool.util.context import ToolContext
from onetool.util.token_ids import hash_token

ERAS = ["auto", "legacy"]
PNG = b"\x89PNG\r\n\x1a\n not much of a picture"
SETTINGS = """
aliases: {now: machine.now}
output: {max_inline_size: 200}
agents:
  default: {permissions: [read]}
  bot: {permissions: [read], tools: [machine.disk], clients: [robot, another robot]}
  writer: {permissions: [read, write], clients: [desk]}
  poor: {permissions: [read], budgets: {calls: 5}, clients: [beggar]}
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    configure(tmp_path, SETTINGS)
    return tmp_path


@contextmanager
def connect_as(name: str, home: Path, mode: str = "auto") -> Iterator[Connection]:
    """Connect the official client under this name."""
    server = StdioServerParameters(command=PROGRAM, args=[], env=environment(home), cwd=home)
    with (
        (home / "stderr").open("a", encoding="utf-8") as errors,
        start_blocking_portal("asyncio") as portal,
    ):
        info = Implementation(name=name, version="1")
        client = Client(stdio_client(server, errors), mode=mode, client_info=info)
        manager = portal.wrap_async_context_manager(client)
        manager.__enter__()
        try:
            yield Connection(portal, client, home)
        finally:
            manager.__exit__(None, None, None)


def run_text(client: Connection, command: str) -> str:
    return "\n".join(get_texts(client.run(command)))


def lines(file: Path) -> list[dict[str, Any]]:
    return (
        [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        if file.exists()
        else []
    )


def outcomes(file: Path) -> list[dict[str, Any]]:
    return [line for line in lines(file) if line["name"] == "call"]


# --- the name of a client -------------------------------------------------------------------------


@pytest.mark.spec("toolbus.agent.by-client-name")
@pytest.mark.parametrize("mode", ERAS)
def test_a_client_gets_the_agent_that_names_it(home: Path, mode: str) -> None:
    with connect_as("another robot", home, mode) as client:
        assert "free" in run_text(client, "machine.disk()")
        rejected = client.run("now()")
        assert rejected.is_error
        assert "agent bot may not call machine.now: its tools are [machine.disk]" in "\n".join(
            get_texts(rejected)
        )
    with connect_as("desk", home, mode) as client:
        assert "wrote" in run_text(client, "ot.scaffold(pack='mine')")


@pytest.mark.spec("toolbus.agent.by-client-name")
@pytest.mark.parametrize("mode", ERAS)
def test_an_unlisted_client_gets_the_default_agent(home: Path, mode: str) -> None:
    with connect_as("Robot", home, mode) as client:
        assert run_text(client, "now()")[:2] == "20"
        assert "agents: {default: {permissions: [read, write]}}" in run_text(
            client, "ot.scaffold(pack='mine')"
        )


@pytest.mark.parametrize("mode", ERAS)
def test_a_claimed_name_selects_no_agent_over_http(tmp_path: Path, mode: str) -> None:
    """Any program of the machine can send any name to the HTTP server, also to that of the daemon."""
    agents = {
        "default": {"permissions": ["read"]},
        "writer": {"permissions": ["write"], "clients": ["desk"]},
    }
    desk = Implementation(name="desk", version="1")
    with (
        publish(tmp_path, {"agents": agents}) as server,
        server.client(mode, client_info=desk) as client,
    ):
        answer = client.call("run", command="ot.scaffold(pack='mine')")
        assert answer.is_error
        assert "agents: {default: {permissions: [read, write]}}" in "\n".join(get_texts(answer))


@pytest.mark.spec("toolbus.agent.by-client-name")
@pytest.mark.parametrize("mode", ERAS)
def test_a_stored_result_is_not_readable_by_another_agent(home: Path, mode: str) -> None:
    with connect_as("robot", home, mode) as robot, connect_as("desk", home, mode) as desk:
        answer = run_text(robot, "[f'line {n}' for n in range(1000)]")
        found = re.search(r"[0-9a-f]{32}|handle[\"':= ]+([\w-]+)", answer)
        assert found is not None, answer
        handle = found.group(1) or found.group(0)
        assert run_text(robot, f"len(ot.load({handle!r}))") == "1000"
        assert "line 7" in run_text(
            robot, f"ot.result(handle={handle!r}, search='line 7', limit=2)"
        )
        for code in (f"ot.load({handle!r})", f"ot.result(handle={handle!r})"):
            rejected = desk.run(code)
            assert rejected.is_error
            assert "line 7" not in "\n".join(get_texts(rejected))


@pytest.mark.spec("toolbus.agent.by-client-name")
@pytest.mark.parametrize("mode", ERAS)
def test_an_image_is_not_visible_to_another_agent(home: Path, mode: str) -> None:
    handle = open_media(home / ".onetool" / "tmp", 3600).put(PNG, "image/png", "bot")
    code = f"{{'type': 'image', 'media': {handle!r}}}"
    with connect_as("robot", home, mode) as client:
        assert isinstance(client.run(code).content[-1], ImageContent)
    with connect_as("desk", home, mode) as client:
        assert len(get_texts(client.run(code))) == 1


@pytest.mark.spec("toolbus.agent.tools-narrow")
@pytest.mark.parametrize("mode", ERAS)
def test_resources_list_only_tools_that_the_agent_may_call(home: Path, mode: str) -> None:
    def resource(client: Connection, uri: str) -> str:
        (content,) = client.portal.call(partial(client.client.read_resource, uri)).contents
        assert isinstance(content, TextResourceContents)
        return content.text

    with connect_as("robot", home, mode) as client:
        listed = client.portal.call(client.client.list_resources)
        names = [each.name for each in listed.resources if not each.name.startswith("ot.")]
        assert names == ["tools", "machine.disk"]
        assert "machine.disk" in resource(client, "ot://tools")
        assert "machine.now" not in resource(client, "ot://tools")
        assert "# machine.disk" in resource(client, "ot://tool/machine.disk")
        with pytest.raises(MCPError, match="no resource") as caught:
            resource(client, "ot://tool/machine.now")
        assert "Did you mean ot://tool/machine.now" not in str(caught.value)
    with connect_as("desk", home, mode) as client:
        assert "# machine.now" in resource(client, "ot://tool/machine.now")


@pytest.mark.spec("toolbus.budget.warns-once", "toolbus.budget.refuses")
def test_a_budget_warning_is_sent_once_and_logged(home: Path) -> None:
    with connect_as("beggar", home) as client:
        assert "Note:" not in run_text(client, "[machine.now() for _ in range(3)]")
        first, *_ = get_texts(client.run("machine.now()"))
        assert first == "Note: agent poor has used 4 of 5 calls"
        assert "Note:" not in run_text(client, "machine.now()")
        assert "5 of 5 calls, and the call was not made" in run_text(client, "machine.now()")
    log = home / ".onetool" / "logs" / "onetool.log"
    warnings = [
        line for line in lines(log) if line["level"] == "WARNING" and line["name"] == "warning"
    ]
    assert [line["text"] for line in warnings] == ["agent poor has used 4 of 5 calls"]


def test_two_servers_in_one_directory_share_an_audit_log(home: Path) -> None:
    with connect_as("robot", home) as robot, connect_as("desk", home) as desk:
        for number in range(5):
            run_text(robot, f"ot.scaffold(pack='r{number}')")
            run_text(desk, f"ot.scaffold(pack='d{number}')")
        file = home / ".onetool" / "logs" / "audit.jsonl"
        assert eventually(lambda: len(outcomes(file)) == 10)
    found = [
        (line["agent"], line["decision"], line["arguments"]["pack"]) for line in outcomes(file)
    ]
    assert sorted(found) == [
        *(("bot", "refused", f"r{number}") for number in range(5)),
        *(("writer", "allowed", f"d{number}") for number in range(5)),
    ]


# --- the command line -----------------------------------------------------------------------------


@pytest.mark.spec("toolbus.agent.from-configuration")
def test_the_agent_option_selects_the_agent(home: Path) -> None:
    assert run_cli(home, "run", "--agent", "bot", "now()").returncode == 1
    assert (
        "may not call machine.now" in run_cli(home, "call", "--agent", "bot", "machine.now").stderr
    )
    assert run_cli(home, "run", "--agent", "bot", "machine.disk()").returncode == 0
    assert run_cli(home, "call", "--agent", "bot", "machine.disk").returncode == 0
    assert run_cli(home, "call", "--agent", "writer", "ot.scaffold", "pack=mine").returncode == 0


@pytest.mark.spec("toolbus.agent.from-configuration")
@pytest.mark.parametrize(
    "command", [("run", "--agent", "boss", "1"), ("call", "--agent", "boss", "machine.now")]
)
def test_an_unknown_agent_is_an_error_that_lists_the_agents(
    home: Path, command: tuple[str, ...]
) -> None:
    done = run_cli(home, *command)
    assert done.returncode == 1
    assert "unknown agent 'boss': expected bot, default, poor, writer" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.spec("toolbus.agent.from-files")
def test_an_agent_from_a_file_is_available_to_every_transport(home: Path) -> None:
    directory = home / ".onetool" / "agents"
    directory.mkdir()
    (directory / "filed.yml").write_text(
        "permissions: [read]\ntools: [machine.disk]\nclients: [clerk]", encoding="utf-8"
    )
    assert run_cli(home, "run", "--agent", "filed", "machine.disk()").returncode == 0
    assert run_cli(home, "call", "--agent", "filed", "machine.now").returncode == 1
    with connect_as("clerk", home) as client:
        assert "agent filed may not call machine.now" in run_text(client, "now()")


# --- upstream servers -----------------------------------------------------------------------------


@pytest.mark.spec("toolbus.agent.tools-narrow")
def test_the_tool_list_of_an_agent_applies_to_upstream_servers() -> None:
    agents = {
        "sampler": {"permissions": ["network"], "tools": ["other.sample"]},
        "stranger": {"permissions": ["network"], "tools": ["machine"]},
        "friend": {"permissions": ["network"], "tools": ["other"]},
        "weak": {"permissions": [], "tools": ["other"]},
    }
    may = {
        "sampler": {"other.sample"},
        "stranger": set(),
        "friend": {"other.sample", "other.elicit"},
        "weak": set(),
    }
    with open_app({"servers": {"other": hostile_server("asks")}, "agents": agents}) as app:
        names = {
            name
            for name in app.call("ot.tools", {"info": "list"}).unwrap()
            if name.startswith("other.")
        }
        assert names == {"other.sample", "other.elicit"}
        for agent, allowed in may.items():
            rejected = {
                name
                for name in names
                if app.run(f"{name}()", agent=agent).error == "permission_denied"
            }
            assert names - rejected == allowed
            if (
                agent != "weak"
            ):  # tools that lack only a permission are listed: the error says how to grant it
                assert (
                    names & set(app.call("ot.tools", {"info": "list"}, agent=agent).unwrap())
                    == allowed
                )
        assert app.run("ot.resources(server='other')", agent="friend").error == "permission_denied"


FEATURES = {
    "servers": {"other": fixtures("modern", timeout=30), "cut": fixtures("modern", timeout=30)}
}
FEATURES["servers"]["cut"]["tools"] = {"exclude": ["test://static-*", "test_prompt_with_*"]}
READS = {"permissions": ["network"]}


@pytest.fixture(scope="module")
def features() -> Iterator[App]:
    """Two servers with resources and prompts, and agents that may use some of them."""
    agents = {
        "stranger": {**READS, "tools": ["ot.resources", "ot.prompt", "machine"]},
        "friend": {**READS, "tools": ["ot.resources", "ot.prompt", "other"]},
        "picky": {**READS, "tools": ["ot.*", "other.test_simple_*", "other.test://static-text"]},
        "exact": {
            **READS,
            "tools": [
                "ot.resources",
                "other.test://template/v1.2/data",
                "other.test://template/pub*",
            ],
        },
        "weak": {"permissions": [], "tools": ["ot.resources", "ot.prompt", "other.*"]},
    }
    with open_app({**FEATURES, "agents": agents}) as app:
        yield app


@pytest.mark.spec("toolbus.agent.tools-narrow")
def test_the_tool_list_of_an_agent_applies_to_resources_and_prompts(features: App) -> None:
    calls = [
        "ot.resources(server='other')",
        "ot.resources(server='other', uri='test://static-text')",
        "ot.prompt(server='other')",
        "ot.prompt(server='other', name='test_simple_prompt')",
    ]
    for agent in ("stranger", "weak"):
        for call in calls:
            assert features.run(call, agent=agent).error == "permission_denied", (agent, call)
    for agent in ("friend", "picky"):
        for call in calls:
            assert not features.run(call, agent=agent).is_error, (agent, call)


def test_an_agent_lists_and_reads_only_permitted_resources_and_prompts(features: App) -> None:
    def listed(call: str, key: str) -> list[str]:
        return [
            each[key]
            for each in json.loads(features.run(f"[{call}]", agent="picky").text)[0]
            if key in each
        ]

    assert listed("ot.resources(server='other')", "uri") == ["test://static-text"]
    assert listed("ot.prompt(server='other')", "name") == ["test_simple_prompt"]
    for call in ("ot.resources(server='other', uri='test://static-binary')",
                 "ot.prompt(server='other', name='test_prompt_with_image')"):  # fmt: skip
        assert features.run(call, agent="picky").error == "permission_denied", call


def test_the_exclude_list_of_a_server_applies_to_resources_and_prompts(features: App) -> None:
    uris = [each["uri"] for each in features.data("ot.resources(server='cut')") if "uri" in each]
    assert uris == ["test://watched-resource"]
    assert not [
        each
        for each in features.data("ot.prompt(server='cut')")
        if each["name"].startswith("test_prompt_with_")
    ]
    for uri in (
        "test://static-text",
        "TEST://static-text",
        "test://st%61tic-text",
        "test://Static-text",
    ):
        assert (
            features.run(f"ot.resources(server='cut', uri={uri!r})").error == "permission_denied"
        ), uri
    assert (
        features.run("ot.prompt(server='cut', name='test_prompt_with_image')").error
        == "permission_denied"
    )


@pytest.mark.parametrize(
    "uri",
    [
        "test://template/pub/../secret/data",
        "test://template/pub/./secret/data",
        "test://template/pub%2f..%2fsecret/data",
        "test://template/pub/%2e%2e/secret/data",
        "test://template/pub/%252e%252E/secret/data",
        "test://template/pub/.%25252e/secret/data",
        "test://template/pub%25252525252f../data",
        "test://template/pub\\..\\secret/data",
        "test://template/pub%5c..%5csecret/data",
        "test://template/pub/..;x/secret/data",
        "test://template/pub/..",
        "test://template/pub/..?x",
        "test://template/pub/data ",
        "test://template/pub%00/data",
        "test://template/pub\n/data",
    ],
)
def test_an_ambiguous_uri_is_rejected_if_a_list_restricts_the_server(
    features: App, uri: str
) -> None:
    for call, agent in ((f"ot.resources(server='other', uri={uri!r})", "exact"),
                        (f"ot.resources(server='cut', uri={uri!r})", "default")):  # fmt: skip
        answer = features.run(call, agent=agent)
        assert answer.error == "permission_denied", answer.text
        assert "ambiguous name" in answer.text


def test_an_agent_can_be_permitted_a_uri_that_contains_dots(features: App) -> None:
    for name, is_ok in (
        ("v1.2", True),
        ("v1_2", False),
        ("v1.3", False),
        ("pub", True),
        ("pub/a..b", True),
    ):
        answer = features.run(
            f"ot.resources(server='other', uri='test://template/{name}/data')", agent="exact"
        )
        assert ("Data for ID" in answer.text) == is_ok, answer.text
        assert (answer.error == "permission_denied") != is_ok
    twice = "ot.resources(server='cut', uri='test://st%2561tic-text')"
    assert features.run(twice).error == "permission_denied"


def test_the_tool_list_of_an_agent_applies_over_rest(tmp_path: Path) -> None:
    agents = {
        "stranger": {**READS, "tools": ["ot.*"]},
        "friend": {**READS, "tools": ["ot.*", "other.*"]},
    }
    tokens = [{"name": name, "hash": hash_token(f"ot_{name}"), "agent": name} for name in agents]
    settings = {**FEATURES, "agents": agents, "auth": {"tokens": tokens}}
    body = {"args": {"server": "other", "uri": "test://static-text"}}
    with serve_app(tmp_path, settings) as server:
        for name, is_ok in (("stranger", False), ("friend", True)):
            headers = {"authorization": f"Bearer ot_{name}"}
            answer = server.rest.send("POST", "/api/tools/ot.resources/call", body, headers=headers)
            assert ("This is the content" in answer.text) == is_ok, answer.text
            assert ("permission_denied" in answer.text) != is_ok, answer.text


def test_resources_and_prompts_of_a_disabled_server_are_rejected(features: App) -> None:
    features.portal.call(partial(features.onetool.registry.switch, "other", on=False))
    try:
        for call in (
            "ot.resources(server='other')",
            "ot.prompt(server='other', name='test_simple_prompt')",
        ):
            assert "is disabled\n" in features.failure(call)
    finally:
        features.portal.call(partial(features.onetool.registry.switch, "other", on=True))


def test_a_call_without_permission_does_not_start_the_server(tmp_path: Path) -> None:
    agents = {"stranger": {**READS, "tools": ["ot.*"]}}
    with open_app({"servers": {"s": hostile_server("counts", tmp_path)}, "agents": agents}) as app:
        assert app.run("ot.resources(server='s')", agent="stranger").error == "permission_denied"
        assert not list(tmp_path.glob("listed-*"))


def test_proc_is_not_readable_even_if_all_paths_are_allowed() -> None:
    """/proc contains the environment of the server, secrets included."""
    everything = {"permissions": ["read"], "sandbox": {"allowed_paths": ["/"]}}
    with open_app({"agents": {"default": everything}}) as app:
        assert app.value("fs.read(path='/etc/hostname')['content'] != ''") == "True"
        for path in ("/proc/self/environ", "/proc/1/cmdline", "/proc/self/root/etc/hostname"):
            answer = app.run(f"fs.read(path={path!r})")
            assert answer.error == "sandbox_denied", answer.text


# --- hosts ----------------------------------------------------------------------------------------


def relay(url: str, context: ToolContext) -> Any:
    """Call another tool."""
    return context.call_sync("http.get", url=url)


REACHES = """
def reaches(call):
    try:
        return "echo" in str(call())
    except NetworkError as error:
        return error.message
"""


def test_the_hosts_of_an_agent_narrow_the_allowed_hosts(tmp_path: Path, site: Site) -> None:
    every = {"permissions": ["network", "write"]}
    agents = {
        "free": every,
        "narrow": {**every, "hosts": ["127.0.0.1"]},
        "wide": {**every, "hosts": ["*"]},
    }
    http = {"allowedHosts": ["127.0.0.1", "localhost"], "allowPrivateAddresses": True}
    tokens = [{"name": name, "hash": hash_token(f"ot_{name}"), "agent": name} for name in agents]
    near, far, other = (site.url("/echo", host) for host in ("127.0.0.1", "localhost", "127.0.0.2"))
    away = site.url(f"/redirect-to?url={far}")
    calls = {
        f"http.get({near!r})": {*agents},
        "pages.near()": {*agents},
        f"http.post({far!r}, body='x')": {"free", "wide"},
        "pages.far()": {"free", "wide"},
        f"http.get({other!r})": set[str](),
        f"http.get({away!r})": {"free", "wide"},
        "pages.away()": {"free", "wide"},
        f"relay({far!r})": {"free", "wide"},
    }
    code = f"{REACHES}[{', '.join(f'reaches(lambda: {call})' for call in calls)}]"
    settings = {"agents": agents, "http": http, "auth": {"tokens": tokens}}
    with serve_app(tmp_path, settings, [tool(permissions=["network"])(relay)]) as server:
        bundle = server.rest.bundle("pages")
        for name, url in (("near", near), ("far", far), ("away", away)):
            server.rest.tool(bundle, name, **http_draft(url))

        def send(agent: str, path: str, body: object = None) -> Any:
            return server.rest.send(
                "POST", path, body, headers={"authorization": f"Bearer ot_{agent}"}
            ).json()

        for agent in agents:
            before = len(site.requests)
            (block,) = send(agent, "/api/run", {"command": code, "format": "json"})["blocks"]
            answers = dict(zip(calls, json.loads(block), strict=True))
            assert {call for call in calls if answers[call] is True} == {
                call for call in calls if agent in calls[call]
            }
            assert sum(request.path == "/echo" for request in site.requests[before:]) == len(
                [call for call in calls if agent in calls[call]]
            )
            for call in list(calls)[:5]:  # the check knows neither redirects nor what a tool calls
                verdict = send(agent, f"/api/agents/{agent}/check", {"call": call})
                assert (verdict["decision"] == "allow") == (agent in calls[call]), verdict
            verdict = send(agent, f"/api/agents/{agent}/check", {"call": f"relay({far!r})"})
            assert verdict["note"] == ("" if agent == "free" else UNLIMITED)
            if agent == "narrow":
                assert (
                    f'agents: {{narrow: {{hosts: [127.0.0.1, "localhost:{site.port}"]}}}}'
                    in answers["pages.far()"]
                )
        fetched = send("narrow", f"/api/import?url={far}")
        assert "host localhost is not allowed" in fetched["error"]["message"]
