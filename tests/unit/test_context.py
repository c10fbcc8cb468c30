"""The context of tools in a program: the same interface as in extensions."""

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import pytest
from tests.support import App, open_app

import onetool
from onetool import Context, File, ToolBus, ToolContext
from onetool.errors import CannotAsk, ConfigError

PNG = b"\x89PNG\r\n\x1a\n"


def name(ctx: Context, path: str) -> File:
    """Return a file."""
    ctx.progress(1, 2, "half")
    return File(path)


def outer(text: str, ctx: Optional[Context] = None) -> list[Any]:  # noqa: UP045 - as people write it
    assert ctx is not None
    return [ctx.call("inner", text), ctx.cancelled]


async def outer_async(ctx: "onetool.Context", text: str) -> Any:
    await ctx.progress("begins")
    return await ctx.call("inner", text=text)


def inner(text: str, context: ToolContext) -> str:
    context.warning(f"got {text}")
    return text.upper()


def ask(ctx: Context) -> Any:
    return ctx.ask("Sure?")


async def ask_async(ctx: Context) -> Any:
    return await ctx.ask("Sure?")


def secret(ctx: Context) -> str:
    return ctx.secret("KEY")


def count() -> Any:
    yield from "abc"


def settings(ctx: Context) -> Mapping[str, Any]:
    return dict(ctx.settings)


@pytest.fixture
def bus() -> ToolBus:
    bus = ToolBus()
    for function in (outer, outer_async, inner, ask, ask_async, secret, count):
        bus.register_tool(function)
    return bus


def call(bus: ToolBus, name: str, context: ToolContext | None = None, **args: Any) -> Any:
    return asyncio.run(bus.call_tool(name, args, context)).unwrap()


def test_the_context_is_filled_in_whatever_its_spelling(bus: ToolBus, caplog: pytest.LogCaptureFixture) -> None:
    for tool in ("outer", "outer_async"):
        assert list(bus.get_tool(tool).input.properties) == ["text"]
    with caplog.at_level(logging.WARNING, "onetool.tools"):
        assert call(bus, "outer", text="a") == ["A", False]
        assert call(bus, "outer_async", text="b") == "B"
    assert caplog.messages == ["got a", "got b"]


def test_progress_reaches_the_program(bus: ToolBus) -> None:
    reported: list[Any] = []
    context = ToolContext(on_progress=lambda *progress: reported.append(progress))
    call(bus, "outer_async", context, text="a")
    assert call(bus, "count", context) == ["a", "b", "c"]
    assert reported[:2] == [("begins",), ("a (1)", 1, None)]


def test_a_program_answers_questions_and_passes_secrets(bus: ToolBus) -> None:
    async def answer(message: str, schema: Mapping[str, Any]) -> Any:
        return {"message": message, "properties": schema["properties"]}

    context = ToolContext(on_ask=answer, secrets={"KEY": "abc123"})
    for tool in ("ask", "ask_async"):
        assert call(bus, tool, context) == {"message": "Sure?", "properties": {}}
        with pytest.raises(CannotAsk, match="elicitation"):
            call(bus, tool)
    assert call(bus, "secret", context) == "abc123"
    assert "abc123" not in repr(context)
    with pytest.raises(ConfigError, match="no secret 'KEY'"):
        call(bus, "secret")


def test_an_application_stores_files_and_passes_the_settings_of_the_pack(tmp_path: Path) -> None:
    file = tmp_path / "picture"
    file.write_bytes(PNG)
    with open_app({"tools": {"own": {"unit": "celsius"}}}) as app:
        bus = app.onetool.bus
        for function in (name, settings):
            bus.register_tool(replace(bus.register_tool(function), name=f"own.{function.__name__}"))
        assert app.data("own.settings()") == {"unit": "celsius"}
        described = json.loads(app.value(f"own.name({str(file)!r})"))
        assert (described["type"], described["size"], described["name"]) == ("image", 8, "picture")
        assert _load(app, described["media"]) == PNG


def _load(app: App, handle: str) -> bytes:
    return app.onetool.media.get(handle, "default").data
