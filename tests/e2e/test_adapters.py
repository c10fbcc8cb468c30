"""Adapters with the real packages: providers that answer over HTTP, LangChain, pydantic-ai and
FastMCP.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.http_support import Site, page, serve_site

from onetool import (
    Permission,
    ToolBus,
    ToolContext,
    ToolError,
    call_anthropic_tool,
    call_openai_tool,
    to_anthropic_tools,
    to_openai_tools,
    tool,
)
from onetool.core.python_backend import PythonBackend
from onetool.core.schema import Schema
from onetool.core.tool import Tool
from onetool.integrations.providers import decode_name, encode_name

NAME = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")
READ = ToolContext(permissions=frozenset({Permission.READ}))
LONG = f"pack.{'long_' * 20}"


@tool("weather.get-report", permissions=["read"])
def get_report(city: str, days: int = 1) -> dict[str, Any]:
    """Return the weather.

    Args:
        city: The city.
        days: The number of days.
    """
    if city == "Atlantis":
        raise ToolError("no such city", hint="name another one")
    return {"city": city, "days": days}


@pytest.fixture
def bus() -> ToolBus:
    bus = ToolBus()
    bus.register_tool(get_report)
    return bus


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serve_site() as site:
        yield site


# --- names ----------------------------------------------------------------------------------------


def test_names_are_valid_distinct_and_reversible() -> None:
    names = [
        "a.b",
        "a-b",
        "a_b",
        "a.b-c",
        "a-b.c",
        "a--b",
        "a.-b",
        "a-.b",
        "-a",
        "wetter.größe",
        "a.b---c",
        LONG,
        LONG + "x",
    ]
    bus = ToolBus()
    for name in names:
        bus.register_tool(
            Tool(name, PythonBackend(get_report), Schema.from_json({"type": "object"}))
        )
    encoded = [encode_name(name) for name in names]
    assert len(set(encoded)) == len(names)
    assert all(map(NAME.fullmatch, encoded)), encoded
    assert [decode_name(each, bus) for each in encoded] == names
    assert encode_name("github.list-issues") == "github-list--issues"
    assert decode_name("nobody---0123456789abcdef", bus) == "nobody---0123456789abcdef"


def test_a_context_selects_the_tools_that_it_may_call(bus: ToolBus) -> None:
    bus.register_tool(tool("plain")(lambda: 1))
    assert len(to_openai_tools(bus)) == 2
    assert [each["name"] for each in to_anthropic_tools(bus, ToolContext())] == ["plain"]
    allowed = ToolContext(tools=("weather.*",), permissions=READ.permissions)
    assert [each["name"] for each in to_anthropic_tools(bus, allowed)] == ["weather-get--report"]


def test_schemas_have_no_keywords_that_providers_reject() -> None:
    bus = ToolBus()
    schema = {
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        "properties": {"a": {"anyOf": [{"type": "string"}]}},
    }
    bus.register_tool(Tool("either", PythonBackend(get_report), Schema.from_json(schema)))
    (definition,) = to_anthropic_tools(bus)
    assert definition["input_schema"] == {"type": "object", "properties": schema["properties"]}


# --- providers ------------------------------------------------------------------------------------


def answer(site: Site, path: str, body: dict[str, Any]) -> None:
    site.pages[path] = page(json.dumps(body).encode(), ("content-type", "application/json"))


def sent(site: Site) -> Any:
    return json.loads(site.last.body)


@pytest.mark.slow
def test_an_openai_model_calls_a_tool(bus: ToolBus, site: Site) -> None:
    from openai import OpenAI

    call = {"name": "weather-get--report", "arguments": '{"city": "Oslo"}'}
    message = {
        "role": "assistant",
        "tool_calls": [{"id": "call_1", "type": "function", "function": call}],
    }
    body = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
    answer(
        site,
        "/chat/completions",
        {**body, "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}]},
    )
    with OpenAI(base_url=site.url("").rstrip("/"), api_key="key", max_retries=0) as client:
        tools: Any = to_openai_tools(bus)
        completion = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "?"}], tools=tools
        )
        assert sent(site)["tools"] == tools
        calls = completion.choices[0].message.tool_calls
        assert calls is not None
        reply: Any = asyncio.run(call_openai_tool(bus, calls[0], READ))
        client.chat.completions.create(model="m", messages=[reply], tools=tools)
        assert sent(site)["messages"] == [
            {"role": "tool", "tool_call_id": "call_1", "content": '{"city":"Oslo","days":1}'}
        ]

        item = {
            "type": "function_call",
            "id": "i",
            "call_id": "call_2",
            **call,
            "status": "completed",
        }
        answer(
            site, "/responses", {**body, "object": "response", "created_at": 1, "output": [item]}
        )
        response = client.responses.create(
            model="m", input="?", tools=to_openai_tools(bus, api="responses")
        )
        assert sent(site)["tools"][0]["name"] == "weather-get--report"
        (block,) = response.output
        output = asyncio.run(call_openai_tool(bus, block, READ))
        assert output == {
            "type": "function_call_output",
            "call_id": "call_2",
            "output": '{"city":"Oslo","days":1}',
        }


@pytest.mark.slow
def test_an_anthropic_model_calls_a_tool(bus: ToolBus, site: Site) -> None:
    from anthropic import Anthropic

    block = {
        "type": "tool_use",
        "id": "use_1",
        "name": "weather-get--report",
        "input": {"city": "Atlantis"},
    }
    usage = {"input_tokens": 1, "output_tokens": 1}
    body = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [block],
        "usage": usage,
    }
    answer(site, "/v1/messages", {**body, "stop_reason": "tool_use", "stop_sequence": None})
    with Anthropic(base_url=site.url("").rstrip("/"), api_key="key", max_retries=0) as client:
        tools: Any = to_anthropic_tools(bus)
        message = client.messages.create(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "?"}], tools=tools
        )
    assert sent(site)["tools"] == tools
    result = asyncio.run(call_anthropic_tool(bus, message.content[0], READ))
    assert result == {
        "type": "tool_result",
        "tool_use_id": "use_1",
        "content": "ToolError: no such city\nHint: name another one",
        "is_error": True,
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("{", "not valid JSON"),
        ("[1]", "must be a JSON object"),
        ('{"town": "Oslo"}', "town"),
        ("", "city"),
    ],
)
def test_a_wrong_call_is_explained_to_the_model(
    bus: ToolBus, arguments: str, expected: str
) -> None:
    assert_explained(bus, "weather-get--report", arguments, "ArgumentError", expected)
    assert_explained(bus, "weather-nothing", "{}", "unknown tool 'weather.nothing'")


def test_arguments_that_are_not_an_object_are_explained_to_the_model(bus: ToolBus) -> None:
    use = {"id": "1", "name": "weather-get--report", "input": ["Oslo"]}
    result = asyncio.run(call_anthropic_tool(bus, use, READ))
    assert (result["is_error"], result["content"]) == (
        True,
        "ArgumentError: the arguments must be a JSON object",
    )


def test_a_call_without_permission_is_explained_to_the_model(bus: ToolBus) -> None:
    assert_explained(
        bus,
        "weather-get--report",
        '{"city": "a"}',
        "requires read permission",
        context=ToolContext(),
    )


def assert_explained(
    bus: ToolBus, name: str, arguments: str, *expected: str, context: ToolContext = READ
) -> None:
    call = {"id": "1", "function": {"name": name, "arguments": arguments}}
    content = asyncio.run(call_openai_tool(bus, call, context))["content"]
    assert all(text in content for text in expected), content


# --- LangChain and pydantic-ai --------------------------------------------------------------------


@pytest.mark.slow
def test_langchain_uses_the_tools_of_a_bus_and_the_other_way(bus: ToolBus) -> None:
    from langchain_core.tools import ToolException, tool as langchain_tool

    from onetool.integrations.langchain import to_langchain_tools

    (report,) = to_langchain_tools(bus, READ)
    assert (report.name, report.args["city"]["type"]) == ("weather-get--report", "string")
    assert json.loads(report.invoke({"city": "Oslo", "days": 2})) == {"city": "Oslo", "days": 2}
    call = {"name": report.name, "args": {"city": "Oslo"}, "id": "1", "type": "tool_call"}
    assert json.loads(asyncio.run(report.ainvoke(call)).content) == {"city": "Oslo", "days": 1}
    with pytest.raises(ToolException, match="no such city"):
        report.invoke({"city": "Atlantis"})
    bus.register_tool(lambda self, config, run_manager: [self, config, run_manager], name="echo")
    echo = next(each for each in to_langchain_tools(bus) if each.name == "echo")
    names = {
        "self": "a",
        "config": "b",
        "run_manager": "c",
    }  # LangChain has parameters with these names
    assert echo.invoke(names) == asyncio.run(echo.ainvoke(names)) == '["a","b","c"]'

    @langchain_tool
    def multiply(left: int, right: int) -> int:
        """Multiply two numbers."""
        return left * right

    registered = bus.register(multiply, name="math.multiply", permissions=["read"])
    assert (registered.description, registered.source) == (
        "Multiply two numbers.",
        "package:langchain_core",
    )
    assert set(registered.input.required) == {"left", "right"}
    assert bus.call_tool_sync("math.multiply", {"left": 6, "right": 7}, READ).unwrap() == 42
    error = bus.call_tool_sync("math.multiply", {"left": "six", "right": 7}, READ).error
    assert isinstance(error, TypeError)


@pytest.mark.slow
def test_pydantic_ai_uses_the_tools_of_a_bus_and_the_other_way(bus: ToolBus) -> None:
    from pydantic_ai import Agent, RunContext, Tool as PydanticTool
    from pydantic_ai.messages import (
        ModelMessage,
        ModelResponse,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
    )
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    from onetool.integrations.pydantic_ai import OneToolToolset

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        returned = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
        if returned and "Oslo" in str(returned[0].content):
            return ModelResponse([TextPart(str(returned[0].content))])
        city = (
            "Oslo" if len(messages) > 1 else "Atlantis"
        )  # the error is answered with another call
        return ModelResponse([ToolCallPart(info.function_tools[0].name, {"city": city})])

    agent = Agent(FunctionModel(respond), toolsets=[OneToolToolset(bus, READ)])
    result = asyncio.run(agent.run("?"))
    assert json.loads(result.output) == {"city": "Oslo", "days": 1}
    assert "no such city" in str(result.all_messages())

    def shout(text: str, times: int = 1) -> str:
        """Shout a text."""
        return text.upper() * times

    registered = bus.register(PydanticTool(shout))
    assert (registered.name, registered.description) == ("shout", "Shout a text.")
    assert bus.call_tool_sync("shout", {"text": "a", "times": 2}).unwrap() == "AA"

    def with_context(ctx: RunContext[int], text: str) -> str:
        return f"{ctx.deps}{text}"

    with pytest.raises(ToolError, match="RunContext"):
        bus.register(PydanticTool(with_context))


# --- FastMCP --------------------------------------------------------------------------------------


def add(left: int, right: int = 1) -> int:
    """Add two numbers."""
    return left + right


def describe() -> dict[str, int]:
    return {"a": 1}


def greet() -> Any:
    return "hello"


def fail() -> str:
    raise ValueError("it failed")


def fastmcp_tool(function: Callable[..., Any]) -> Any:
    from fastmcp.tools import Tool as FastMcpTool

    return FastMcpTool.from_function(function)


def sdk_tool(function: Callable[..., Any]) -> Any:
    from mcp.server.mcpserver.tools import Tool as SdkTool

    return SdkTool.from_function(function)


@pytest.mark.slow
@pytest.mark.parametrize("convert", [fastmcp_tool, sdk_tool])
def test_fastmcp_tools_are_registered(
    bus: ToolBus, convert: Callable[[Callable[..., Any]], Any]
) -> None:
    for function in (add, describe, greet, fail):
        bus.register(convert(function))
    assert bus.get_tool("add").description == "Add two numbers."
    assert bus.get_tool("add").input.required == {"left"}
    assert bus.call_tool_sync("add", {"left": 2}).unwrap() == 3
    assert bus.call_tool_sync("describe").unwrap() == {"a": 1}
    assert bus.call_tool_sync("greet").unwrap() == "hello"
    assert "fail" in str(bus.call_tool_sync("fail").error)


def test_something_else_is_still_rejected(bus: ToolBus) -> None:
    with pytest.raises(ToolError, match="or a tool of LangChain, pydantic-ai or FastMCP"):
        bus.register(object())
