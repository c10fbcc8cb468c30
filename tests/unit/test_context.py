"""The context of tools in a program: the same interface as in extensions."""

import asyncio
import datetime as dt
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

import attrs
import pytest
from tests.support import App, open_app

import onetool
from onetool import CallClient, Context, File, ToolBus, ToolContext
from onetool.errors import CannotAsk, ConfigError, OutputInvalid

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


def test_the_context_is_filled_in_whatever_its_spelling(
    bus: ToolBus, caplog: pytest.LogCaptureFixture
) -> None:
    for tool in ("outer", "outer_async"):
        assert list(bus.get_tool(tool).input.properties) == ["text"]
    with caplog.at_level(logging.WARNING, "onetool.sources.builtin"):
        assert call(bus, "outer", text="a") == ["A", False]
        assert call(bus, "outer_async", text="b") == "B"
    assert caplog.messages == ["got a", "got b"]


def test_progress_reaches_the_program(bus: ToolBus) -> None:
    reported: list[Any] = []
    context = ToolContext(client=CallClient(progress=lambda *progress: reported.append(progress)))
    call(bus, "outer_async", context, text="a")
    assert call(bus, "count", context) == ["a", "b", "c"]
    assert reported[:2] == [("begins",), ("a (1)", 1, None)]


def test_a_program_answers_questions_and_passes_secrets(bus: ToolBus) -> None:
    async def answer(message: str, schema: Mapping[str, Any]) -> Any:
        return {"message": message, "properties": schema["properties"]}

    context = ToolContext(client=CallClient(ask=answer), secrets={"KEY": "abc123"})
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


@dataclass
class Point:
    x: float
    day: dt.date


@attrs.frozen
class Label:
    text: str
    size: float


def shift(point: Point, by: float, more: float | None = None) -> Point:
    return Point(point.x + by, point.day) if (type(by), type(more)) == (float, float) else point


def enlarge(label: Label) -> dict[str, str]:
    return {"repr": repr(label)}


def measure(wrong: bool = False) -> list[float]:
    return ["wrong"] if wrong else [1, float("nan")]  # type: ignore[list-item]


async def rate() -> int:
    return 1 // int("0")


def test_annotations_of_a_program_convert_arguments_and_check_results() -> None:
    bus = ToolBus()
    for function in (shift, enlarge, measure, rate):
        bus.register(function)
    assert call(bus, "shift", point={"x": 1, "day": "2024-02-29"}, by=1, more=1) == Point(
        2.0, dt.date(2024, 2, 29)
    )
    assert call(bus, "enlarge", label={"text": "a", "size": 1}) == {
        "repr": "Label(text='a', size=1.0)"
    }
    assert bus.tool_info("measure")["output_schema"] == {
        "type": "array",
        "items": {"type": "number"},
    }
    assert call(bus, "measure")[0] == 1
    with pytest.raises(OutputInvalid, match=r'measure returned .* "wrong" is not of type "number"'):
        call(bus, "measure", wrong=True)


def test_an_error_of_a_program_shows_the_line_of_its_author() -> None:
    with open_app() as app:
        app.onetool.bus.register(rate, name="own.rate")
        text = app.failure("own.rate()")
    line = rate.__code__.co_firstlineno + 1
    assert (
        f'  unit/test_context.py, line {line}, in rate: return 1 // int("0")' in text.splitlines()
    )


def _load(app: App, handle: str) -> bytes:
    return app.onetool.media.get(handle, "default").data
