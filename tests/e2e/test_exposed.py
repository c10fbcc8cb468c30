"""`--expose`: tools, resources and prompts of upstream servers, for each pair of protocol versions."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import MCPError
from tests.conformance_support import ERAS, Caller, Person, Published, fixtures, publish, raw_call
from tests.proxy_support import node_server
from tests.support import PROGRAM, TIMEOUT_SECONDS, configure, connect, eventually, run_cli

from onetool.core.tool import tool
from onetool.sources.upstream.upstream import Upstream
from onetool.state.documents import DocumentFile, Documents
from onetool.util.token_ids import hash_token

UPSTREAM_ERAS = ["modern", "legacy"]
ONLY_MODERN, ONLY_LEGACY = (
    pytest.mark.parametrize("published", [era], indirect=True) for era in UPSTREAM_ERAS
)
TIMEOUT = 20
AGENTS = {
    "default": {"permissions": ["read", "network"]},
    "narrow": {"permissions": ["read", "network"], "tools": ["fixtures.test_simple_text"]},
    "deaf": {"permissions": ["read"]},
    "stranger": {"permissions": ["network"], "tools": ["ot.*"]},
    "other": {},
    "picky": {"permissions": ["network"], "tools": ["ot.*", "fixtures.test://watched-*"]},
}


@pytest.fixture(scope="module", params=UPSTREAM_ERAS)
def published(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Published]:
    """Yield a client of OneTool that exposes a server of either protocol version."""
    with publish_fixtures(tmp_path_factory.mktemp("shared"), request.param) as server:
        yield server


@pytest.fixture(params=UPSTREAM_ERAS)
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Published]:
    """Yield the same for one test, which may change it."""
    with publish_fixtures(tmp_path, request.param) as server:
        yield server


def publish_fixtures(directory: Path, era: str) -> AbstractContextManager[Published]:
    tokens = [{"name": name, "hash": hash_token(f"ot_{name}"), "agent": name} for name in AGENTS]
    servers = {"fixtures": fixtures(era, timeout=TIMEOUT)}
    settings = {"servers": servers, "agents": AGENTS, "auth": {"tokens": tokens}}
    return publish(directory, settings, "fixtures")


def texts(result: types.CallToolResult) -> list[str]:
    return [block.text for block in result.content if isinstance(block, types.TextContent)]


def is_calling(upstream: Upstream) -> bool:
    """Return whether a request to the server is in flight."""
    connection = upstream.main._supervised.live
    return connection is not None and connection.users.is_calling(upstream.main)


def list_names(client: Caller) -> list[str]:
    return [each.name for each in client.list_tools(cache_mode="bypass").tools]


# --- exposed tools, resources and prompts ---------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", ERAS)
def test_exposed_tools_keep_names_schemas_and_hints(published: Published, mode: str) -> None:
    with published.client(mode) as client:
        listed = {each.name: each for each in client.list_tools().tools}
        assert next(iter(listed)) == "run"
        rich = listed["test_rich"]
        assert (rich.title, rich.annotations.title, rich.annotations.read_only_hint) == (
            "A rich one",
            "Rich",
            True,
        )
        assert rich.output_schema["required"] == ["answer"]
        assert rich.meta["vendor/ui"] == "card"
        schema = listed["json_schema_2020_12_tool"].input_schema
        assert schema["if"]["required"] == ["contactMethod"]
        assert schema["$defs"]["address"]["$anchor"] == "addressDef"


@pytest.mark.parametrize("mode", ERAS)
def test_results_are_passed_through_unchanged(published: Published, mode: str) -> None:
    with published.client(mode) as client:
        rich = client.call_tool("test_rich", {}, meta={"traceparent": "00-aa-bb-01"})
        noted, link = rich.content
        assert (noted.text, noted.annotations.audience, noted.annotations.priority) == (
            "noted",
            ["user"],
            0.5,
        )
        assert (link.type, str(link.uri)) == ("resource_link", "test://static-text")
        assert rich.structured_content["answer"] == 42
        assert (rich.meta["vendor/mark"], rich.meta["traceparent"]) == ("kept", "00-aa-bb-01")
        kinds = [block.type for block in client.call("test_multiple_content_types").content]
        assert kinds == ["text", "image", "resource"]
        failed = client.call("test_error_handling")
        assert failed.is_error
        assert texts(failed) == ["This tool intentionally returns an error for testing"]


def test_run_can_call_the_exposed_tools(published: Published) -> None:
    with published.client() as client:
        assert client.said("run", command="fixtures.test_simple_text()") == client.said(
            "test_simple_text"
        )
        assert "no tool 'nothing'" in client.call("nothing").content[0].text


@pytest.mark.parametrize("mode", ERAS)
def test_resources_templates_prompts_and_completion_are_passed_through(
    published: Published, mode: str
) -> None:
    with published.client(mode) as client:
        listed = [str(each.uri) for each in client.list_resources().resources]
        assert listed[0] == "ot://tools"
        assert listed[-3:] == [
            "test://static-text",
            "test://watched-resource",
            "test://static-binary",
        ]
        assert (
            client.read_resource("test://static-text")
            .contents[0]
            .text.startswith("This is the content")
        )
        assert client.read_resource("test://static-binary").contents[0].mime_type == "image/png"
        assert '"id": "7"' in client.read_resource("test://template/7/data").contents[0].text
        templates = [
            each.uri_template for each in client.list_resource_templates().resource_templates
        ]
        assert templates == ["ot://tool/{name}", "test://template/{id}/data"]
        assert "test_prompt_with_image" in [each.name for each in client.list_prompts().prompts]
        filled = client.get_prompt("test_prompt_with_arguments", {"arg1": "a", "arg2": "b"})
        assert filled.messages[0].content.text == "Prompt with arguments: arg1='a', arg2='b'"
        prompt = types.PromptReference(type="ref/prompt", name="test_prompt_with_arguments")
        assert client.complete(prompt, {"name": "arg1", "value": "par"}).completion.values == [
            "paris",
            "park",
            "party",
        ]
        own = types.ResourceTemplateReference(type="ref/resource", uri="ot://tool/{name}")
        assert client.complete(own, {"name": "name", "value": "ot.he"}).completion.values == [
            "ot.health",
            "ot.help",
        ]


@pytest.mark.parametrize("mode", ERAS)
def test_resources_and_prompts_are_hidden_from_agents_without_the_server(
    published: Published, mode: str
) -> None:
    prompt = types.PromptReference(type="ref/prompt", name="test_prompt_with_arguments")
    template = types.ResourceTemplateReference(type="ref/resource", uri="test://template/{id}/data")

    def uris(client: Caller) -> list[str]:
        return [
            str(each.uri)
            for each in client.list_resources().resources
            if not str(each.uri).startswith("ot://")
        ]

    for name, seen in (("stranger", []), ("picky", ["test://watched-resource"])):
        with published.client(mode, token=f"ot_{name}") as client:
            assert uris(client) == seen
            assert client.list_prompts().prompts == []
            for ask in (
                partial(client.read_resource, "test://static-text"),
                partial(client.get_prompt, "test_simple_prompt"),
                partial(client.complete, prompt, {"name": "arg1", "value": "par"}),
            ):
                with pytest.raises(MCPError, match="may not call fixtures"):
                    ask()
            with suppress(MCPError):
                assert (
                    client.complete(template, {"name": "id", "value": "1"}).completion.values == []
                )


@pytest.mark.parametrize("mode", ERAS)
def test_errors_of_the_server_are_passed_through(published: Published, mode: str) -> None:
    with published.client(mode) as client:
        with pytest.raises(MCPError, match="Resource not found") as missing:
            client.read_resource("test://nowhere")
        assert missing.value.code == types.INVALID_PARAMS
        assert missing.value.data == {"uri": "test://nowhere"}
        with pytest.raises(MCPError, match="there is no prompt nothing"):
            client.get_prompt("nothing")
        wrong = client.call("test_sampling")
        assert wrong.is_error
        assert "prompt" in texts(wrong)[0]


# --- requests in both directions ------------------------------------------------------------------


@pytest.mark.parametrize("mode", ERAS)
def test_elicitation_works_by_form_and_by_url(published: Published, mode: str) -> None:
    person = Person()
    with published.client(mode, **person.able) as client:
        output = client.said("test_elicitation", message="Who are you?")
        assert output == 'User response: action=accept, content={"username": "Ada", "email": "Ada"}'
        assert person.heard[0].message == "Who are you?"
        assert (
            person.heard[0].requested_schema["properties"]["email"]["description"]
            == "User's email address"
        )
        assert (
            client.said("test_url_elicitation", url="https://example.com/in")
            == "Elicitation completed: action=accept, content=null"
        )
        assert person.heard[1].url == "https://example.com/in"


@pytest.mark.parametrize("mode", ERAS)
def test_sampling_is_relayed_to_the_client(published: Published, mode: str) -> None:
    person = Person()
    with published.client(mode, **person.able) as client:
        assert client.said("test_sampling", prompt="The capital?") == "LLM response: Ada says Paris"
        assert person.heard[0].messages[0].content.text == "The capital?"
        assert person.heard[0].max_tokens == 100


@ONLY_MODERN
@pytest.mark.parametrize("mode", ERAS)
def test_several_questions_are_relayed_in_one_call(published: Published, mode: str) -> None:
    person = Person()
    with published.client(mode, **person.able) as client:
        assert client.said("test_input_required_result_multi_round") == "Both steps are done"
        assert [each.message[:6] for each in person.heard] == ["Step 1", "Step 2"]
        assert client.said("test_input_required_result_multiple_inputs") == "three answers"
        assert client.said("test_roots") == "['file:///home/Ada']"
        prompt = client.get_prompt("test_input_required_result_prompt")
        assert prompt.messages[0].content.text == "In the context of Ada"


@ONLY_LEGACY
def test_a_shared_legacy_server_never_sees_roots_of_a_client(published: Published) -> None:
    person = Person()
    with published.client("legacy", **person.able) as client:
        connection = published.portal.call(
            published.onetool.servers.upstream("fixtures").main.connect
        )
        assert connection.client.protocol_version == "2025-11-25"
        assert client.said("test_input_required_result_capabilities") == "answered"
        assert len(person.heard) == 2
        assert "roots" not in person.heard


@pytest.mark.parametrize("mode", ERAS)
def test_clients_without_the_capability_are_not_asked(published: Published, mode: str) -> None:
    with published.client(mode) as client, pytest.raises(MCPError, match=r"sampling"):
        client.call("test_missing_capability")
    deaf = Person()
    with (
        published.client(mode, elicitation_callback=deaf.elicited) as client,
        pytest.raises(MCPError),
    ):
        client.call("test_sampling", prompt="?")
    assert deaf.heard == []


def test_code_in_a_run_cannot_ask_the_client(published: Published) -> None:
    person = Person()
    with published.client("legacy", **person.able) as client:
        failed = client.call("run", command="fixtures.test_elicitation(message='Password?')")
        assert failed.is_error
        assert person.heard == []


@pytest.mark.parametrize("mode", ERAS)
def test_waiting_for_an_answer_does_not_count_as_call_time(published: Published, mode: str) -> None:
    with published.client(mode, **Person(seconds=TIMEOUT + 5).able) as client:
        assert "Ada" in client.said("test_elicitation", message="Well?")


@pytest.mark.parametrize("mode", ERAS)
def test_progress_is_relayed(published: Published, mode: str) -> None:
    received: list[tuple[float, float | None, str | None]] = []

    async def on_message(progress: float, total: float | None, message: str | None) -> None:
        received.append((progress, total, message))

    with published.client(mode) as client:
        client.call_tool("test_tool_with_progress", {}, progress_callback=on_message)
        assert received == [(done, 100, f"Completed step {done} of 100") for done in (0, 50, 100)]


def test_log_messages_are_relayed_by_level(published: Published) -> None:
    person = Person()
    with published.client("legacy", **person.able) as client:
        client.call("test_tool_with_logging")
        expected = ["Tool execution started", "Tool processing data", "Tool execution completed"]
        assert eventually(lambda: [each.data for each in person.heard] == expected)
        level = types.SetLevelRequest(params=types.SetLevelRequestParams(level="error"))
        client.portal.call(client.client.session.send_request, level, types.EmptyResult)
        client.call("test_tool_with_logging")
        client.call("test_simple_text")
        assert len(person.heard) == 3
    quiet, loud = Person(), Person()
    with published.client("auto", **quiet.able) as client:
        client.call("test_tool_with_logging")
    with published.client("auto", log_level="info", **loud.able) as client:
        client.call("test_tool_with_logging")
        assert eventually(lambda: len(loud.heard) == 3)
    assert quiet.heard == []


@pytest.mark.parametrize("mode", ERAS)
def test_cancelling_a_call_cancels_it_upstream(published: Published, mode: str) -> None:
    started = threading.Event()

    async def on_message(*_: object) -> None:
        started.set()

    with published.client(mode) as client:
        calling = client.portal.start_task_soon(
            partial(client.client.call_tool, "test_waiting", {}, progress_callback=on_message)
        )
        assert started.wait(TIMEOUT_SECONDS)
        upstream = published.onetool.servers.upstream("fixtures")
        assert is_calling(upstream)
        calling.cancel()
        assert eventually(lambda: not is_calling(upstream))
        assert client.said("test_simple_text")


@pytest.mark.sampled(2)
def test_questions_go_to_the_client_of_the_call(fresh: Published) -> None:
    """A server that does not relate its question to a call is rejected when the call is ambiguous."""
    people = [Person(name) for name in ("Ada", "Bob", "Cyd", "Dan")]
    answers: dict[str, list[str]] = {person.name: [] for person in people}

    def ask(person: Person, mode: str) -> None:
        with fresh.client(mode, **person.able) as client:
            for _ in range(6):
                with suppress(MCPError):
                    answers[person.name].append(
                        client.said("test_elicitation", message=f"for {person.name}")
                    )

    asking = [
        threading.Thread(target=ask, args=(person, mode))
        for person, mode in zip(people, ERAS * 2, strict=True)
    ]
    for each in asking:
        each.start()
    for each in asking:
        each.join(TIMEOUT_SECONDS * 3)
    for person in people:
        assert {each.message for each in person.heard} == {f"for {person.name}"}
        assert len(answers[person.name]) >= 5
        assert all(f'"username": "{person.name}"' in answer for answer in answers[person.name])


@ONLY_LEGACY
def test_a_question_cannot_be_answered_by_another_client(published: Published) -> None:
    question = raw_call(published, "test_elicitation", {"message": "?"})
    (key,) = question["inputRequests"]
    answer = {key: {"action": "accept", "content": {"username": "x", "email": "y"}}}
    again = {"inputResponses": answer, "requestState": question["requestState"]}
    stolen = raw_call(published, "test_elicitation", {"message": "?"}, token="ot_other", **again)
    assert stolen["code"] == types.INVALID_PARAMS
    moved = raw_call(published, "test_sampling", {"prompt": "?"}, **again)
    assert moved["code"] == types.INVALID_PARAMS
    state = question["requestState"]
    forged = {**again, "requestState": state[:10] + ("A" if state[10] != "A" else "B") + state[11:]}
    assert (
        raw_call(published, "test_elicitation", {"message": "?"}, **forged)["code"]
        == types.INVALID_PARAMS
    )
    assert "username" in str(
        raw_call(published, "test_elicitation", {"message": "?"}, **again)["content"]
    )
    twice = raw_call(published, "test_elicitation", {"message": "?"}, **again)
    assert twice["code"] == types.INVALID_PARAMS


@ONLY_LEGACY
def test_missing_answers_are_requested_again(published: Published) -> None:
    question = raw_call(published, "test_elicitation", {"message": "?"})
    again = raw_call(
        published, "test_elicitation", {"message": "?"}, requestState=question["requestState"]
    )
    assert again["inputRequests"] == question["inputRequests"]
    (key,) = again["inputRequests"]
    answers = {key: {"action": "decline"}, "other": {"action": "accept"}}
    output = raw_call(
        published,
        "test_elicitation",
        {"message": "?"},
        requestState=again["requestState"],
        inputResponses=answers,
    )
    assert "decline" in output["content"][0]["text"]


@pytest.mark.nightly
def test_a_server_that_ends_during_a_question_is_reported(tmp_path: Path) -> None:
    with publish(tmp_path, {"servers": {"fixtures": fixtures("legacy")}}, "fixtures") as server:
        question = raw_call(server, "test_elicitation", {"message": "?"})
        (key,) = question["inputRequests"]
        upstream = server.onetool.servers.upstream("fixtures")
        connection = server.portal.call(upstream.main.connect)
        server.portal.call(connection.close)
        again = {
            "inputResponses": {key: {"action": "decline"}},
            "requestState": question["requestState"],
        }
        output = raw_call(server, "test_elicitation", {"message": "?"}, **again)
        assert output["isError"] is True
        assert "lost" in output["content"][0]["text"]
        assert raw_call(server, "test_simple_text", {})["content"][0]["text"].startswith("This is")


def test_a_client_that_disconnects_during_a_question_leaves_nothing_behind(
    published: Published,
) -> None:
    question, disconnected = threading.Event(), threading.Event()

    async def elicited(_context: Any, _params: Any) -> types.ElicitResult:
        question.set()
        await anyio.sleep(60)
        return types.ElicitResult(action="cancel")

    def call() -> None:
        with published.client("legacy", elicitation_callback=elicited) as client:
            calling = client.portal.start_task_soon(
                client.client.call_tool, "test_elicitation", {"message": "?"}
            )
            assert question.wait(TIMEOUT_SECONDS)
            calling.cancel()
        disconnected.set()

    threading.Thread(target=call).start()
    assert disconnected.wait(TIMEOUT_SECONDS)
    upstream = published.onetool.servers.upstream("fixtures")
    assert eventually(lambda: not is_calling(upstream))
    with published.client("legacy", **Person().able) as client:
        assert "Ada" in client.said("test_elicitation", message="?")


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("mode", ERAS)
def test_public_servers_are_passed_through_completely(tmp_path: Path, mode: str) -> None:
    servers = {"everything": node_server("everything"), "memory": node_server("memory")}
    person = Person()
    settings = {
        "servers": servers,
        "agents": {"default": {"permissions": ["read", "write", "network"]}},
    }
    with (
        publish(tmp_path, settings, *servers) as server,
        server.client(mode, **person.able) as client,
    ):
        assert {"run", "echo", "get-sum", "read_graph"} <= set(list_names(client))
        assert client.said("echo", message="hi") == "Echo: hi"
        assert "Name: Ada" in client.said("trigger-elicitation-request")
        assert "Ada says Paris" in client.said("trigger-sampling-request", prompt="?", maxTokens=10)
        assert [block.type for block in client.call("get-tiny-image").content] == [
            "text",
            "image",
            "text",
        ]
        assert (
            client.call("get-structured-content", location="New York").structured_content[
                "temperature"
            ]
            == 33
        )
        read = client.read_resource("memory://knowledge-graph").contents[0]
        assert read.mime_type == "application/json"
        assert "simple-prompt" in [each.name for each in client.list_prompts().prompts]
        assert len(person.heard) == 2


# --- changes --------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
def test_changes_are_sent_to_listening_clients(fresh: Published) -> None:
    with fresh.client() as client:
        client.list_tools()
        received = _listen(client, {"tools_list_changed": True}, "test_trigger_tool_change")
        assert [type(each).__name__ for each in received] == ["ToolsListChanged"]
        assert "test_came_later" in list_names(client)
        received = _listen(client, {"prompts_list_changed": True}, "test_trigger_prompt_change")
        assert [type(each).__name__ for each in received] == ["PromptsListChanged"]
        uri = "test://watched-resource"
        received = _listen(
            client, {"resource_subscriptions": [uri, "test://static-text"]}, "test_touch", uri=uri
        )
        assert [each.uri for each in received] == [uri]


def _listen(client: Caller, to: dict[str, Any], trigger: str, **arguments: Any) -> list[Any]:
    """Return the first notification after a change."""

    async def listen() -> list[Any]:
        async with client.client.listen(**to) as changes:
            await client.client.call_tool(trigger, arguments)
            return [await asyncio.wait_for(anext(aiter(changes)), TIMEOUT_SECONDS)]

    received: list[Any] = client.portal.call(listen)
    return received


@pytest.mark.sampled(2)
def test_changes_are_sent_in_legacy_sessions(fresh: Published) -> None:
    received: list[Any] = []

    async def on_message(message: Any) -> None:
        received.append(message)

    def methods() -> list[str]:
        return [each.method for each in received]

    uri = "test://watched-resource"
    with fresh.client("legacy", message_handler=on_message) as client:
        able = client.client.server_capabilities
        assert (able.tools.list_changed, able.prompts.list_changed, able.resources.subscribe) == (
            True,
            True,
            True,
        )
        subscribe = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri))
        client.portal.call(client.client.session.send_request, subscribe, types.EmptyResult)
        client.call("test_trigger_tool_change")
        assert eventually(lambda: "notifications/tools/list_changed" in methods())
        client.call("test_touch", uri=uri)
        assert eventually(lambda: "notifications/resources/updated" in methods())
        assert received[-1].params.uri == uri
        upstream = fresh.onetool.servers.upstream("fixtures")
        assert dict(upstream.main.watched) == {uri: 1}
    assert eventually(lambda: not upstream.main.watched)


# --- permissions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ERAS)
def test_an_agent_sees_and_calls_only_permitted_tools(published: Published, mode: str) -> None:
    with published.client(mode, token="ot_narrow") as client:
        assert list_names(client) == ["run", "test_simple_text"]
        assert client.said("test_simple_text")
        assert "no tool 'test_rich'" in texts(client.call("test_rich"))[0]
        assert not [
            each for each in client.list_resources().resources if str(each.uri).startswith("test:")
        ]
        assert client.list_prompts().prompts == []
        with pytest.raises(MCPError, match=r"may not call ot\.resources"):
            client.read_resource("test://static-text")
        with pytest.raises(MCPError):
            client.get_prompt("test_simple_prompt")
    with published.client(mode, token="ot_deaf") as client:
        rejected = client.call("test_simple_text")
        assert rejected.is_error
        assert "network permission" in texts(rejected)[0]


def test_exposed_calls_are_recorded(published: Published) -> None:
    with published.client() as client:
        client.call("test_simple_text")
        client.call("test_error_handling")
        rows = client.portal.call(
            published.onetool.bus.call_tool, "ot.stats", {}, published.onetool.context()
        ).unwrap()
        assert {"fixtures.test_simple_text", "fixtures.test_error_handling"} <= {
            row["name"] for row in rows["tools"]
        }


def test_secrets_are_redacted_in_relayed_results(tmp_path: Path) -> None:
    settings = {"servers": {"fixtures": fixtures()}}
    secrets = {"TOKEN": "This is a simple text", "OTHER": "static text resource"}
    with (
        publish(tmp_path, settings, "fixtures", secrets=secrets) as server,
        server.client() as client,
    ):
        assert client.said("test_simple_text") == "[REDACTED] response for testing."
        assert (
            client.read_resource("test://static-text").contents[0].text
            == "This is the content of the [REDACTED]."
        )


def test_results_of_untrusted_servers_are_marked(tmp_path: Path) -> None:
    settings = {"servers": {"fixtures": fixtures(sanitize=True)}}
    with publish(tmp_path, settings, "fixtures") as server, server.client() as client:
        assert client.said("test_simple_text").startswith("<external-content-")
        assert (
            client.read_resource("test://static-text")
            .contents[0]
            .text.startswith("<external-content-")
        )
        assert (
            client.get_prompt("test_simple_prompt")
            .messages[0]
            .content.text.startswith("<external-content-")
        )
        embedded = client.call("test_embedded_resource").content[0].resource.text
        assert "This is an embedded resource content." in embedded
        assert embedded.startswith("<external-content-")


def test_a_changed_tool_is_neither_listed_nor_callable(tmp_path: Path) -> None:
    settings = {"servers": {"fixtures": fixtures(pin="strict")}}
    with publish(tmp_path, settings, "fixtures") as server, server.client() as client:
        assert "test_simple_text" in list_names(client)
        pins = Documents(DocumentFile(tmp_path / ".onetool"), "pins")
        pins.update(
            "fixtures",
            lambda pinned: json.loads(json.dumps(pinned).replace('"A text"', '"Another text"')),
        )
        server.portal.call(server.onetool.live_settings.reload)
        assert "test_simple_text" not in list_names(client)
        rejected = client.call("test_simple_text")
        assert rejected.is_error
        assert "onetool servers accept fixtures" in texts(rejected)[0]


# --- names ----------------------------------------------------------------------------------------


@tool("one.same")
def same() -> dict[str, int]:
    """The same name twice."""
    return {"number": 1}


@tool("two.same")
def same_again() -> dict[str, int]:
    return {"number": 2}


@tool("one.run")
def run() -> str:
    return "not that one"


@tool("one.größe")
def odd() -> str:
    return "odd"


@tool("two.one_same")
def squatter() -> str:
    return "not that one either"


def test_a_tool_cannot_take_the_name_of_another_tool(tmp_path: Path) -> None:
    tools = [same, same_again, squatter]
    with publish(tmp_path, {}, "one", "two", tools=tools) as server, server.client() as client:
        assert list_names(client) == ["run", "one_same", "two_one_same", "two_same"]
        assert client.said("one_same") == '{"number":1}'


def test_unique_names_are_kept(tmp_path: Path) -> None:
    tools = [same, same_again, run, odd]
    with (
        publish(tmp_path, {}, "one", "two.same", "machine.now", tools=tools) as server,
        server.client() as client,
    ):
        assert list_names(client) == ["run", "gr__e", "now", "one_run", "one_same", "two_same"]
        assert client.said("one_same") == '{"number":1}'
        assert client.said("one_run") == "not that one"
        assert client.call("two_same").structured_content == {"number": 2}
        assert client.call("now", nonsense=1).is_error


def test_an_unknown_name_is_rejected_at_start(tmp_path: Path) -> None:
    configure(tmp_path, "servers: {}")
    rejected = run_cli(tmp_path, "serve", "--http", "--port", "0", "--expose", "machin")
    assert rejected.returncode == 1
    assert "invalid value for --expose: no tool, pack or server named 'machin'" in rejected.stderr
    assert "Did you mean machine" in rejected.stderr


@pytest.mark.parametrize("mode", ERAS)
def test_tools_are_exposed_over_stdio(tmp_path: Path, mode: str) -> None:
    configure(tmp_path, "servers: {}")
    with connect(tmp_path, mode, command=[PROGRAM, "serve", "--expose", "machine.now"]) as client:
        assert [each.name for each in client.tools()] == ["run", "now"]
        assert not client.call("now", {}).is_error
