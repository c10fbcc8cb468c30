"""The upstream server for the official conformance suite: its tools, resources and prompts.

The suite calls all of them by fixed names and compares what they say. It speaks both eras; started
with `legacy`, only the handshake of the years before 2026, as most servers in the world do.
"""

import base64
import hashlib
import hmac
import json
import struct
import sys
import zlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ToolsListChanged,
)
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

MISSING_CAPABILITY = -32021
NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}
Questions = dict[str, Any]
Result = types.CallToolResult | types.InputRequiredResult
Tool = Callable[[Any, types.CallToolRequestParams], Awaitable[Result]]
KEY = b"of this process"


def _png() -> str:
    """Return a red pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    parts = (
        chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0\xff\0\0")) + chunk(b"IEND", b"")
    )
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + parts).decode()


def _wav() -> str:
    """Return eight samples of silence."""
    sound = bytes(8)
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, 8000, 8000, 1, 8)
    body = b"WAVE" + form + struct.pack("<4sI", b"data", len(sound)) + sound
    return base64.b64encode(struct.pack("<4sI", b"RIFF", len(body)) + body).decode()


PNG, WAV = _png(), _wav()


def text(value: str) -> types.TextContent:
    return types.TextContent(type="text", text=value)


def make_result(*content: Any) -> types.CallToolResult:
    return types.CallToolResult(content=list(content))


def embedded(uri: str, value: str, mime_type: str = "text/plain") -> types.EmbeddedResource:
    resource = types.TextResourceContents(uri=uri, mime_type=mime_type, text=value)
    return types.EmbeddedResource(type="resource", resource=resource)


def image() -> types.ImageContent:
    return types.ImageContent(type="image", data=PNG, mime_type="image/png")


# --- asking the client ----------------------------------------------------------------------------


def form(
    message: str, properties: dict[str, Any], *, optional: bool = False
) -> types.ElicitRequest:
    schema = {
        "type": "object",
        "properties": properties,
        "required": [] if optional else list(properties),
    }
    return types.ElicitRequest(
        params=types.ElicitRequestFormParams(message=message, requested_schema=schema)
    )


def make_sampling_request(prompt: str, max_tokens: int) -> types.CreateMessageRequest:
    message = types.SamplingMessage(role="user", content=text(prompt))
    return types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(messages=[message], max_tokens=max_tokens)
    )


ANSWERS: dict[Any, Any] = {
    types.ElicitRequest: types.ElicitResult,
    types.CreateMessageRequest: types.CreateMessageResult,
    types.ListRootsRequest: types.ListRootsResult,
}


async def request_input(
    ctx: Any, params: Any, questions: Questions, state: str | None = None
) -> Any:
    """Return the answers by key, or the result that requests them."""
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        beside = ServerMessageMetadata(related_request_id=ctx.request_id)
        return {
            key: await ctx.session.send_request(each, ANSWERS[type(each)], metadata=beside)
            for key, each in questions.items()
        }
    answers = params.input_responses or {}
    if all(isinstance(answers.get(key), ANSWERS[type(each)]) for key, each in questions.items()):
        return answers
    return types.InputRequiredResult(input_requests=questions, request_state=state)


def seal_state(state: str) -> str:
    return f"{state}.{hmac.new(KEY, state.encode(), hashlib.sha256).hexdigest()}"


def open_state(params: Any) -> str:
    """Return the state of a request after checking its signature."""
    state = (params.request_state or "").rpartition(".")[0]
    if not hmac.compare_digest(seal_state(state), params.request_state or ""):
        raise MCPError(types.INVALID_PARAMS, "the state is not what it was")
    return state


# --- tools ----------------------------------------------------------------------------------------

TOOLS: dict[str, tuple[types.Tool, Tool]] = {}


def tool(
    description: str, schema: dict[str, Any] | None = None, prefix: str = "test_"
) -> Callable[[Tool], Tool]:
    def add(function: Tool) -> Tool:
        name = f"{prefix}{function.__name__}"
        offered = types.Tool(
            name=name, description=description, input_schema=schema or NO_ARGUMENTS
        )
        TOOLS[name] = (offered, function)
        return function

    return add


def needs(**arguments: str) -> dict[str, Any]:
    properties = {
        name: {"type": "string", "description": about} for name, about in arguments.items()
    }
    return {"type": "object", "properties": properties, "required": list(arguments)}


@tool("A text")
async def simple_text(_ctx: Any, _params: Any) -> Result:
    return make_result(text("This is a simple text response for testing."))


@tool("A picture")
async def image_content(_ctx: Any, _params: Any) -> Result:
    return make_result(image())


@tool("A sound")
async def audio_content(_ctx: Any, _params: Any) -> Result:
    return make_result(types.AudioContent(type="audio", data=WAV, mime_type="audio/wav"))


@tool("A resource inside of a result")
async def embedded_resource(_ctx: Any, _params: Any) -> Result:
    return make_result(
        embedded("test://embedded-resource", "This is an embedded resource content.")
    )


@tool("Several kinds of content")
async def multiple_content_types(_ctx: Any, _params: Any) -> Result:
    data = json.dumps({"test": "data", "value": 123})
    mixed = embedded("test://mixed-content-resource", data, "application/json")
    return make_result(text("Multiple content types test:"), image(), mixed)


@tool("It fails")
async def error_handling(_ctx: Any, _params: Any) -> Result:
    value = text("This tool intentionally returns an error for testing")
    return types.CallToolResult(content=[value], is_error=True)


@tool("It tells how far it is")
async def tool_with_progress(ctx: Any, _params: Any) -> Result:
    for done in (0, 50, 100):
        await ctx.session.report_progress(done, 100, f"Completed step {done} of 100")
        await anyio.sleep(0.05)
    return make_result(text("done"))


async def _send_log(ctx: Any, value: str) -> None:
    level = (ctx.meta or {}).get(types.LOG_LEVEL_META_KEY)
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS and level is None:
        return
    context = types.LoggingMessageNotificationParams(level="info", data=value)
    await ctx.session.send_notification(
        types.LoggingMessageNotification(params=context), related_request_id=ctx.request_id
    )


@tool("It writes a log")
async def tool_with_logging(ctx: Any, _params: Any) -> Result:
    for value in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await _send_log(ctx, value)
        await anyio.sleep(0.05)
    return make_result(text("logged"))


@tool("It writes a log to those who want one")
async def logging_tool(ctx: Any, _params: Any) -> Result:
    await _send_log(ctx, "only where it is wanted")
    return make_result(text("logged"))


@tool("It ends before its stream would have to be taken up again")
async def reconnection(_ctx: Any, _params: Any) -> Result:
    return make_result(text("Reconnection test completed"))


@tool("It asks the model of the client", needs(prompt="what to ask"))
async def sampling(ctx: Any, params: types.CallToolRequestParams) -> Result:
    answers = await request_input(
        ctx, params, {"answer": make_sampling_request((params.arguments or {})["prompt"], 100)}
    )
    return (
        answers
        if isinstance(answers, Result)
        else make_result(text(f"LLM response: {_get_text(answers['answer'])}"))
    )


def _get_text(message: Any) -> str:
    return str(getattr(message.content, "text", ""))


@tool("It asks a person", needs(message="what to ask"))
async def elicitation(ctx: Any, params: types.CallToolRequestParams) -> Result:
    about = {"username": "User's response", "email": "User's email address"}
    fields = {name: {"type": "string", "description": value} for name, value in about.items()}
    answers = await request_input(
        ctx, params, {"answer": form((params.arguments or {})["message"], fields)}
    )
    if isinstance(answers, Result):
        return answers
    answer = answers["answer"]
    return make_result(
        text(f"User response: action={answer.action}, content={json.dumps(answer.content)}")
    )


async def _elicit(ctx: Any, params: Any, question: types.ElicitRequest) -> Result:
    answers = await request_input(ctx, params, {"answer": question})
    if isinstance(answers, Result):
        return answers
    answer = answers["answer"]
    return make_result(
        text(f"Elicitation completed: action={answer.action}, content={json.dumps(answer.content)}")
    )


@tool("It asks with defaults")
async def elicitation_sep1034_defaults(ctx: Any, params: Any) -> Result:
    question = form(
        "Please review",
        {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {
                "type": "string",
                "enum": ["active", "inactive", "pending"],
                "default": "active",
            },
            "verified": {"type": "boolean", "default": True},
        },
        optional=True,
    )
    return await _elicit(ctx, params, question)


@tool("It asks for choices")
async def elicitation_sep1330_enums(ctx: Any, params: Any) -> Result:
    plain = ["option1", "option2", "option3"]
    titled = [
        {"const": f"value{n}", "title": f"{word} Option"}
        for n, word in enumerate(("First", "Second", "Third"), 1)
    ]
    names = ["Option One", "Option Two", "Option Three"]
    question = form(
        "Please choose",
        {
            "untitledSingle": {"type": "string", "enum": plain},
            "titledSingle": {"type": "string", "oneOf": titled},
            "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": names},
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": plain}},
            "titledMulti": {"type": "array", "items": {"anyOf": titled}},
        },
        optional=True,
    )
    return await _elicit(ctx, params, question)


@tool("It sends a person to a page", needs(url="where"))
async def url_elicitation(ctx: Any, params: types.CallToolRequestParams) -> Result:
    url = types.ElicitRequestURLParams(
        message="Please sign in", url=(params.arguments or {})["url"], elicitation_id="1"
    )
    return await _elicit(ctx, params, types.ElicitRequest(params=url))


@tool("It asks for the directories of the client")
async def roots(ctx: Any, params: Any) -> Result:
    answers = await request_input(ctx, params, {"roots": types.ListRootsRequest()})
    return (
        answers
        if isinstance(answers, Result)
        else make_result(text(str([str(root.uri) for root in answers["roots"].roots])))
    )


@tool("It waits until it is cancelled")
async def waiting(ctx: Any, _params: Any) -> Result:
    await ctx.session.report_progress(0, 1, "waiting")
    await anyio.sleep(60)
    return make_result(text("nobody cancelled it"))


# --- tools of 2026 --------------------------------------------------------------------------------

NAME = {"name": {"type": "string"}}


@tool("It asks for a name")
async def input_required_result_elicitation(ctx: Any, params: Any) -> Result:
    answers = await request_input(ctx, params, {"user_name": form("What is your name?", NAME)})
    if isinstance(answers, Result):
        return answers
    return make_result(text(f"Hello, {(answers['user_name'].content or {}).get('name')}!"))


@tool("It asks a model for a capital")
async def input_required_result_sampling(ctx: Any, params: Any) -> Result:
    answers = await request_input(
        ctx,
        params,
        {"capital_question": make_sampling_request("What is the capital of France?", 100)},
    )
    return (
        answers
        if isinstance(answers, Result)
        else make_result(text(_get_text(answers["capital_question"])))
    )


@tool("It asks for folders")
async def input_required_result_list_roots(ctx: Any, params: Any) -> Result:
    answers = await request_input(ctx, params, {"client_roots": types.ListRootsRequest()})
    if isinstance(answers, Result):
        return answers
    return make_result(text(str([str(root.uri) for root in answers["client_roots"].roots])))


@tool("It asks for a confirmation, and remembers")
async def input_required_result_request_state(ctx: Any, params: Any) -> Result:
    question = form("Please confirm", {"ok": {"type": "boolean"}})
    answers = await request_input(ctx, params, {"confirm": question}, seal_state("asked"))
    if isinstance(answers, Result):
        return answers
    return make_result(text("state-ok" if open_state(params) == "asked" else "state lost"))


@tool("It asks for three things at once")
async def input_required_result_multiple_inputs(ctx: Any, params: Any) -> Result:
    questions = {
        "user_name": form("What is your name?", NAME),
        "greeting": make_sampling_request("Generate a greeting", 50),
        "client_roots": types.ListRootsRequest(),
    }
    answers = await request_input(ctx, params, questions, seal_state("three"))
    return (
        answers
        if isinstance(answers, Result)
        else make_result(text(f"{open_state(params)} answers"))
    )


@tool("It asks twice")
async def input_required_result_multi_round(_ctx: Any, params: Any) -> Result:
    if params.request_state is None:
        return types.InputRequiredResult(
            input_requests={"step1": form("Step 1: What is your name?", NAME)},
            request_state=seal_state("first"),
        )
    step, state = ("step1", "second") if open_state(params) == "first" else ("step2", "")
    if step not in (params.input_responses or {}):
        raise MCPError(types.INVALID_PARAMS, f"the answer to {step} is missing")
    if not state:
        return make_result(text("Both steps are done"))
    question = form("Step 2: What is your favorite color?", {"color": {"type": "string"}})
    return types.InputRequiredResult(
        input_requests={"step2": question}, request_state=seal_state(state)
    )


@tool("It knows its own state again")
async def input_required_result_tampered_state(ctx: Any, params: Any) -> Result:
    if params.request_state is not None:
        open_state(params)
    answers = await request_input(
        ctx,
        params,
        {"confirm": form("Please confirm", {"ok": {"type": "boolean"}})},
        seal_state("untouched"),
    )
    return answers if isinstance(answers, Result) else make_result(text("untouched"))


@tool("It asks what the client can answer")
async def input_required_result_capabilities(ctx: Any, params: Any) -> Result:
    have = ctx.session.client_capabilities or types.ClientCapabilities()
    able = {
        "greeting": (
            make_sampling_request("Generate a greeting", 50) if have.sampling is not None else None
        ),
        "user_name": form("What is your name?", NAME) if have.elicitation is not None else None,
        "client_roots": types.ListRootsRequest() if have.roots is not None else None,
    }
    answers = await request_input(
        ctx, params, {key: each for key, each in able.items() if each is not None}
    )
    return answers if isinstance(answers, Result) else make_result(text("answered"))


@tool("It needs a model")
async def missing_capability(ctx: Any, params: Any) -> Result:
    have = ctx.session.client_capabilities
    if have is None or have.sampling is None:
        raise MCPError(
            MISSING_CAPABILITY, "this needs sampling", {"requiredCapabilities": {"sampling": {}}}
        )
    return await input_required_result_sampling(ctx, params)


@tool("It tells how far it is, and asks")
async def streaming_elicitation(ctx: Any, params: Any) -> Result:
    await ctx.session.report_progress(1, 2, "before the question")
    return await input_required_result_elicitation(ctx, params)


@tool("It gets one more tool, or one less")
async def trigger_tool_change(ctx: Any, _params: Any) -> Result:
    if TOOLS.pop("test_came_later", None) is None:
        came = types.Tool(
            name="test_came_later", description="It came later", input_schema=NO_ARGUMENTS
        )
        TOOLS["test_came_later"] = (came, simple_text)
    await _changed(ctx, ToolsListChanged(), types.ToolListChangedNotification())
    return make_result(text("changed"))


@tool("It gets one more prompt, or one less")
async def trigger_prompt_change(ctx: Any, _params: Any) -> Result:
    if PROMPTS.pop("test_came_later", None) is None:
        PROMPTS["test_came_later"] = types.Prompt(
            name="test_came_later", description="It came later"
        )
    await _changed(ctx, PromptsListChanged(), types.PromptListChangedNotification())
    return make_result(text("changed"))


async def _changed(ctx: Any, event: Any, notification: Any) -> None:
    await BUS.publish(event)
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        await ctx.session.send_notification(notification)


@tool("It changes a resource", needs(uri="which one"))
async def touch(ctx: Any, params: types.CallToolRequestParams) -> Result:
    from mcp.server.subscriptions import ResourceUpdated

    uri = (params.arguments or {})["uri"]
    await BUS.publish(ResourceUpdated(uri))
    if uri in SUBSCRIBED:
        await ctx.session.send_resource_updated(uri)
    return make_result(text("touched"))


SCHEMA_2020 = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


@tool("Tool with JSON Schema 2020-12 features", SCHEMA_2020, prefix="")
async def json_schema_2020_12_tool(_ctx: Any, params: types.CallToolRequestParams) -> Result:
    return make_result(text(json.dumps(params.arguments)))


WITH_HEADERS = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "query": {"type": "string"},
    },
    "required": ["region"],
}


@tool("Some of its arguments are headers too", WITH_HEADERS)
async def headers(_ctx: Any, params: types.CallToolRequestParams) -> Result:
    return make_result(text(json.dumps(params.arguments)))


@tool("Everything that a result can carry")
async def rich(ctx: Any, _params: Any) -> Result:
    link = types.ResourceLink(
        type="resource_link", uri="test://static-text", name="linked", mime_type="text/plain"
    )
    noted = text("noted").model_copy(
        update={"annotations": types.Annotations(audience=["user"], priority=0.5)}
    )
    trace = {key: value for key, value in (ctx.meta or {}).items() if key == "traceparent"}
    return types.CallToolResult(
        content=[noted, link],
        structured_content={"answer": 42, "none": None},
        _meta={"vendor/mark": "kept", **trace},
    )


OUTPUT = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}, "none": {"type": "null"}},
    "required": ["answer"],
}
TOOLS["test_rich"] = (
    types.Tool(
        name="test_rich",
        title="A rich one",
        description="Everything that a result can carry",
        input_schema=NO_ARGUMENTS,
        output_schema=OUTPUT,
        annotations=types.ToolAnnotations(title="Rich", read_only_hint=True, idempotent_hint=True),
        _meta={"vendor/ui": "card"},
    ),
    rich,
)


async def list_tools(_ctx: Any, _params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[offered for offered, _ in TOOLS.values()])


async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> Result:
    if params.name not in TOOLS:
        raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name}")
    return await TOOLS[params.name][1](ctx, params)


# --- resources ------------------------------------------------------------------------------------

RESOURCES = {
    "test://static-text": ("text/plain", "This is the content of the static text resource."),
    "test://watched-resource": ("text/plain", "Somebody may watch this."),
}
TEMPLATE = "test://template/{id}/data"
SUBSCRIBED: set[str] = set()


async def list_resources(_ctx: Any, _params: Any) -> types.ListResourcesResult:
    listed = [
        types.Resource(
            uri=uri, name=uri.removeprefix("test://"), description="For tests", mime_type=mime_type
        )
        for uri, mime_type in [
            *((uri, kind) for uri, (kind, _) in RESOURCES.items()),
            ("test://static-binary", "image/png"),
        ]
    ]
    return types.ListResourcesResult(resources=listed)


async def list_templates(_ctx: Any, _params: Any) -> types.ListResourceTemplatesResult:
    template = types.ResourceTemplate(
        uri_template=TEMPLATE, name="template", description="For tests"
    )
    return types.ListResourceTemplatesResult(resource_templates=[template])


async def read_resource(
    _ctx: Any, params: types.ReadResourceRequestParams
) -> types.ReadResourceResult:
    uri = params.uri
    number = uri.removeprefix("test://template/").removesuffix("/data")
    if uri == "test://static-binary":
        blob = types.BlobResourceContents(uri=uri, mime_type="image/png", blob=PNG)
        return types.ReadResourceResult(contents=[blob])
    if uri == f"test://template/{number}/data":
        data = json.dumps({"id": number, "templateTest": True, "data": f"Data for ID: {number}"})
        mime_type, value = "application/json", data
    elif uri in RESOURCES:
        mime_type, value = RESOURCES[uri]
    else:
        raise MCPError(types.INVALID_PARAMS, "Resource not found", {"uri": uri})
    return types.ReadResourceResult(
        contents=[types.TextResourceContents(uri=uri, mime_type=mime_type, text=value)]
    )


async def subscribe(_ctx: Any, params: types.SubscribeRequestParams) -> types.EmptyResult:
    SUBSCRIBED.add(params.uri)
    return types.EmptyResult()


async def unsubscribe(_ctx: Any, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
    SUBSCRIBED.discard(params.uri)
    return types.EmptyResult()


# --- prompts --------------------------------------------------------------------------------------


def _prompt(name: str, **arguments: str) -> types.Prompt:
    requested = [
        types.PromptArgument(name=each, description=about, required=True)
        for each, about in arguments.items()
    ]
    return types.Prompt(name=name, description="For tests", arguments=requested)


PROMPTS = {
    prompt.name: prompt
    for prompt in (
        _prompt("test_simple_prompt"),
        _prompt(
            "test_prompt_with_arguments", arg1="First test argument", arg2="Second test argument"
        ),
        _prompt("test_prompt_with_embedded_resource", resourceUri="URI of the resource to embed"),
        _prompt("test_prompt_with_image"),
        _prompt("test_input_required_result_prompt"),
    )
}


async def list_prompts(_ctx: Any, _params: Any) -> types.ListPromptsResult:
    return types.ListPromptsResult(prompts=list(PROMPTS.values()))


async def get_prompt(
    ctx: Any, params: types.GetPromptRequestParams
) -> types.GetPromptResult | types.InputRequiredResult:
    answers = params.arguments or {}
    match params.name:
        case "test_simple_prompt":
            content: list[Any] = [text("This is a simple prompt for testing.")]
        case "test_prompt_with_arguments":
            content = [
                text(f"Prompt with arguments: arg1='{answers['arg1']}', arg2='{answers['arg2']}'")
            ]
        case "test_prompt_with_embedded_resource":
            value = "Embedded resource content for testing."
            content = [
                embedded(answers["resourceUri"], value),
                text("Please process the embedded resource above."),
            ]
        case "test_prompt_with_image":
            content = [image(), text("Please analyze the image above.")]
        case "test_input_required_result_prompt":
            question = form("What context should the prompt use?", {"context": {"type": "string"}})
            answers = await request_input(ctx, params, {"user_context": question})
            if isinstance(answers, types.InputRequiredResult):
                return answers
            content = [
                text(f"In the context of {(answers['user_context'].content or {}).get('context')}")
            ]
        case name:
            raise MCPError(types.INVALID_PARAMS, f"there is no prompt {name}")
    return types.GetPromptResult(
        messages=[types.PromptMessage(role="user", content=each) for each in content]
    )


async def complete(_ctx: Any, params: types.CompleteRequestParams) -> types.CompleteResult:
    values = [
        word
        for word in ("paris", "park", "party", "rome")
        if word.startswith(params.argument.value)
    ]
    return types.CompleteResult(
        completion=types.Completion(values=values, total=len(values), has_more=False)
    )


async def set_level(_ctx: Any, _params: Any) -> types.EmptyResult:
    return types.EmptyResult()


# --- the server -----------------------------------------------------------------------------------

BUS = InMemorySubscriptionBus()


def build() -> Server[Any]:
    server = Server(
        "conformance-fixtures",
        version="1",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_subscribe_resource=subscribe,
        on_unsubscribe_resource=unsubscribe,
        on_subscriptions_listen=ListenHandler(BUS),
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_completion=complete,
    )
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, set_level)
    return server


async def main() -> None:
    server = build()
    options = server.create_initialization_options(NotificationOptions(True, True, True))
    async with stdio_server() as (reader, writer):
        if "legacy" in sys.argv:
            await serve_loop(server, reader, writer, lifespan_state={}, init_options=options)
        else:
            await server.run(reader, writer, options)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        anyio.run(main)
