"""What extension tools receive and return: the context, images, files, generators and errors,
through MCP clients.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPDeprecationWarning
from tests.conformance_support import ERAS, Caller, Person, Published, publish
from tests.extensions_support import write_pack
from tests.support import eventually
from tests.workers_support import HEADER, open_workers

from onetool_child.media import MAX_MEDIA

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
LAB = f"""\
from __future__ import annotations
import asyncio, dataclasses, datetime as dt, decimal, enum, pathlib, threading, time, uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Optional

import ot as predefined
import pydantic
from onetool import Context, File, ToolContext, ToolError, tool

secrets = ["LAB_KEY", "UNSET"]
PNG = {PNG!r}
NAME = {{"type": "object", "properties": {{"name": {{"type": "string"}}}}, "required": ["name"]}}


@tool
def hello(who: str, ctx: Context) -> str:
    ctx.info(f"hello {{who}}")
    return f"{{ctx.settings['greeting']}} {{who}}"

async def steps(n: int, context: Optional[Context] = None) -> int:
    context.progress(f"begins with {{context.secret('LAB_KEY')}}")
    for number in range(n):
        await context.progress(number + 1, n, "step")
        context.progress("working")
        await asyncio.sleep(0.06)
    return n

def ask(c: Context) -> object:
    return c.ask("Who are you?", NAME)

class Name(pydantic.BaseModel):
    name: str

async def ask_later(c: "Context | None") -> object:
    return await c.ask("Who are you?", Name)

def ask_badly(c: Context) -> object:
    return c.ask("?", ["name"])

def key(ctx: Context, name: str = "LAB_KEY") -> list[object]:
    value = ctx.secret(name)
    ctx.log(f"using {{value}}", "warning")
    return [len(value), value]

async def nested(ctx: Context) -> list[str]:
    return await asyncio.gather(*(ctx.call("lab.hello", who=name) for name in "ab"))

def nested_sync(ctx: Context) -> str:
    return ctx.call("lab.hello", "c")

def deep(n: int, ctx: Context) -> int:
    return ctx.call("lab.deep_async", n - 1) if n else 0

async def deep_async(n: int, ctx: Context) -> int:
    return await ctx.call("lab.deep", n - 1) if n else 0

def wait(ctx: Context, folder: str) -> None:
    def watch():
        pathlib.Path(folder, "began").touch()
        while not ctx.cancelled:
            time.sleep(0.01)
        pathlib.Path(folder, "cancelled").touch()
    threading.Thread(target=watch).start()
    try:
        while True:
            time.sleep(0.01)
    except ToolError as error:
        pathlib.Path(folder, type(error).__name__).touch()
        raise

def same() -> list[bool]:
    return [predefined is ot, ot.Context is Context, ot.File is File]

def caller(ctx: ToolContext) -> dict:
    own = ctx.agent_config["lab.caller"]
    return {{"agent": ctx.agent_id, "own": own, "known": sorted(ctx.agent_config), "directory": ctx.working_dir.name,
            "permissions": sorted(ctx.permissions), "can_read": "read" in ctx.permissions, "guard": ctx.budget_guard,
            "metadata": ctx.metadata, "sandbox": sorted(ctx.sandbox), "correlation_id": ctx.correlation_id}}

def notify(context: ToolContext, message: str, channel: str = "") -> str:
    return f"{{channel or context.agent_config['lab.notify']['default_channel']}}: {{message}}"

class Color(enum.Enum):
    RED = "red"

@dataclasses.dataclass
class Point:
    when: dt.datetime
    color: Color

class Model(pydantic.BaseModel):
    day: dt.date
    price: decimal.Decimal
    where: pathlib.Path

def values() -> dict:
    now = dt.datetime(2024, 2, 29, 12, 30)
    model = Model(day=now.date(), price="1.50", where="/x")
    return {{"point": Point(now, Color.RED), "model": model, "tags": {{"b", "a"}}, "id": uuid.UUID(int=1),
            "raw": b"plain", "at": (now, decimal.Decimal("0.1"), pathlib.Path("/y"))}}

def picture() -> bytes:
    return PNG

def pictures() -> list:
    return ["two", PNG, b"RIFF\\x00\\x00\\x00\\x00WAVEfmt "]

def report() -> dict:
    return {{"title": "Sales", "chart": PNG}}

def file(path: str) -> File:
    return File(path)

def count(n: int) -> Iterator[int]:
    for number in range(n):
        time.sleep(0.06)
        yield {{"number": number}}

class Fancy:
    path = None
    def __init__(self, data): self.data = data
Image = type("Image", (Fancy,), {{}})

def helper() -> object:
    return Image(PNG)

def typed(wrong: bool = False) -> dict[str, int]:
    return ["wrong"] if wrong else {{"x": 1}}

def mean() -> list[float]:
    return [float("nan"), 1.5]

def broken(days: int = 1) -> int:
    try:
        return parse({{}})
    except KeyError as error:
        failure = ValueError("cannot read the forecast of LAB-SECRET-VALUE")
        failure.add_note("the service answers in the morning")
        raise failure from error

async def group() -> None:
    async def fail():
        raise KeyError("inner")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fail())

def parse(data: dict) -> int:
    return data["days"]

def refuse() -> None:
    raise ToolError("days must be at most 7", days=9)
"""
MAX_OUTPUT_BYTES = 1 << 21
SETTINGS = {
    "execution": {"max_output_bytes": MAX_OUTPUT_BYTES},
    "tools": {"lab": {"greeting": "hi", "timeout": 20}},
    "agents": {
        "default": {
            "permissions": ["read"],
            "tool_config": {
                "lab.caller": {"retries": 2, "deep": {"list": [1]}},
                "lab.notify": {"default_channel": "#alerts"},
                "fs.read": {"max_size": 10},
            },
        }
    },
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    home = tmp_path_factory.mktemp("lab")
    write_pack(home / ".onetool" / "tools", "lab", LAB)
    with publish(home, SETTINGS, "lab", secrets={"LAB_KEY": "LAB-SECRET-VALUE"}) as published:
        yield published


def run(client: Caller, code: str) -> Any:
    return client.call("run", command=code)


def said(client: Caller, code: str) -> Any:
    return json.loads(client.said("run", command=f"[{code}]"))[0]


# --- the context ----------------------------------------------------------------------------------


def test_the_context_is_passed_by_annotation_and_is_not_an_argument(lab: Published) -> None:
    with lab.client() as client:
        schemas = {each.name: each.input_schema for each in client.list_tools().tools}
        assert list(schemas["hello"]["properties"]) == ["who"]
        assert schemas["ask_later"]["properties"] == {}
        assert said(client, "lab.hello('Ada')") == "hi Ada"
        assert client.said("hello", who="Bob") == "hi Bob"
        assert said(client, "lab.same()") == [True, True, True]


def test_the_context_has_the_caller_and_the_settings_of_its_agent(lab: Published) -> None:
    with lab.client() as client:
        shown = json.loads(client.call_tool("caller", {}, meta={"trace": "t1"}).content[0].text)
        assert shown.pop("correlation_id")
        assert shown.pop("metadata")["_meta"]["trace"] == "t1"
        assert shown == {
            "agent": "default",
            "own": {"retries": 2, "deep": {"list": [1]}},
            "known": ["lab.caller", "lab.notify"],
            "directory": lab.onetool.context().working_dir.name,
            "permissions": ["read"],
            "can_read": True,
            "guard": None,
            "sandbox": ["allowed_paths", "denied_patterns", "enabled"],
        }


@pytest.mark.spec("toolbus.tool-config.reaches-extensions")
def test_settings_that_are_not_parameters_are_in_the_context(lab: Published) -> None:
    with lab.client() as client:
        assert said(client, "lab.notify('hi')") == "#alerts: hi"
        assert said(client, "lab.notify('hi', channel='#ops')") == "#ops: hi"


def test_tools_call_tools_in_functions_and_in_coroutines(lab: Published) -> None:
    with lab.client() as client:
        assert said(client, "[lab.nested(), lab.nested_sync(), lab.deep(20)]") == [
            ["hi a", "hi b"],
            "hi c",
            0,
        ]


@pytest.mark.parametrize("mode", ERAS)
def test_progress_and_logs_reach_the_client(lab: Published, mode: str) -> None:
    heard: list[Any] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    person = Person()
    with lab.client(mode, **person.able) as client:
        client.call_tool("steps", {"n": 3}, progress_callback=hear)
        assert eventually(lambda: (3, 3, "lab: step (3 of 3)") in heard)
        assert sorted(heard) == heard
        assert "lab: begins with [REDACTED]" in {message for _, _, message in heard}
        heard.clear()
        client.call_tool("run", {"command": "lab.steps(30)"}, progress_callback=hear)
        assert any("; lab: " in str(message) for _, _, message in heard)
        said(client, "lab.hello('Zoe')")
        assert not any("hello Zoe" in str(getattr(each, "data", "")) for each in person.heard)
        if mode == "legacy":  # a client of 2026 asks for logs with each request
            client.call("hello", who="Eve")
            assert eventually(
                lambda: any("hello Eve" in str(getattr(each, "data", "")) for each in person.heard)
            )


@pytest.mark.parametrize("mode", ERAS)
def test_logs_of_tools_in_a_run_reach_a_client_that_asks_for_them(
    lab: Published, mode: str
) -> None:
    person = Person()
    with lab.client(mode, logging_callback=person.logged) as client:
        meta = {types.LOG_LEVEL_META_KEY: "warning"} if mode == "auto" else None
        if mode == "legacy":
            with pytest.warns(MCPDeprecationWarning):  # in favor of the metadata
                client.set_logging_level("warning")
        client.call_tool("run", {"command": "lab.hello('Ada')\nlab.key()"}, meta=meta)
    assert [(each.level, each.logger, each.data) for each in person.heard] == [
        ("warning", "run", "lab.key: using [REDACTED]")
    ]


@pytest.mark.parametrize("mode", ERAS)
def test_a_tool_asks_the_person_of_the_run(lab: Published, mode: str) -> None:
    person = Person()
    with lab.client(mode, **person.able) as client:
        assert said(client, "[lab.ask(), lab.ask_later()]") == [{"name": "Ada"}, {"name": "Ada"}]
        assert json.loads(client.said("ask")) == {"name": "Ada"}
        assert [each.message for each in person.heard] == ["Who are you?"] * 3
        assert (
            "TypeError: invalid schema ['name']" in run(client, "lab.ask_badly()").content[0].text
        )

    async def decline(_context: Any, _params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="decline")

    with lab.client(mode, elicitation_callback=decline) as client:
        assert said(client, "lab.ask()") is None
    with lab.client(mode) as client:
        assert (
            "CannotAsk: no client can show the question" in run(client, "lab.ask()").content[0].text
        )
        caught = (
            "try:\n    lab.ask_later()\nexcept CannotAsk as error:\n    result = error.type\nresult"
        )
        assert client.said("run", command=caught) == "cannot_ask"


def test_waiting_for_a_person_does_not_count_as_call_time(lab: Published) -> None:
    with lab.client("legacy", **Person(seconds=25).able) as client:
        assert json.loads(client.said("ask")) == {"name": "Ada"}


def test_secrets_are_given_by_name_and_redacted(lab: Published) -> None:
    with lab.client() as client:
        assert said(client, "lab.key()") == [16, "[REDACTED]"]
        undeclared = run(client, "lab.key(name='OTHER')").content[0].text
        assert "ConfigError: the pack lab does not declare the secret 'OTHER'" in undeclared
        assert 'Hint: add `secrets = ["OTHER"]` to the file' in undeclared
        assert (
            "Hint: run `onetool secret set UNSET`"
            in run(client, "lab.key(name='UNSET')").content[0].text
        )


def test_a_sandboxed_file_gets_no_secrets_that_only_it_declares(tmp_path: Path) -> None:
    source = (
        "from onetool import Context\nsecrets = ['MINE']\ndef key(ctx: Context): return"
        " len(ctx.secret('MINE'))\n"
    )
    write_pack(tmp_path / ".onetool" / "tools", "open", source)
    more = f"def picture(): return {PNG!r}\ndef fail(): raise ValueError('x')\n"
    write_pack(tmp_path / ".onetool" / "tools", "closed", f"{HEADER}{source}{more}")
    file = tmp_path / ".onetool" / "secrets.yaml"
    file.write_text("MINE: abc123\n", encoding="utf-8")
    file.chmod(0o600)
    with open_workers(tmp_path, "tools: {closed: {sandbox: {enabled: true}}}") as opened:
        assert opened.value("open.key") == 6
        assert "does not declare the secret 'MINE'" in opened.error("closed.key")
        assert opened.value("closed.picture")["type"] == "image"
        assert "in fail: def fail(): raise ValueError('x')" in opened.app.failure("closed.fail()")


def test_the_names_can_be_imported_in_an_environment_without_onetool(tmp_path: Path) -> None:
    source = """
        from importlib.metadata import distributions
        import onetool, ot as imported
        from onetool import Context, File, ToolContext, ToolError, tool
        from PIL import Image

        @tool
        def draw(ctx: Context | None = None, size: int = 2) -> Image.Image:
            ctx.progress(1, 1)
            return Image.new("CMYK" if size > 2 else "RGB", (size, size))

        def installed(ctx: ToolContext) -> list:
            assert isinstance(ctx, ToolContext)
            return [sorted(each.name for each in distributions()), imported is ot, onetool.File is ot.File]
        """
    with open_workers(tmp_path) as opened:
        opened.write("art", source, '# /// script\n# dependencies = ["pillow==12.0.0"]\n# ///\n')
        assert opened.value("art.installed") == [["pillow"], True, True]
        for size in (2, 3):
            image = opened.value("art.draw", size=size)
            data = opened.app.onetool.media.get(image["media"], "default")
            assert (image["type"], data.mime_type, data.data[:8]) == ("image", "image/png", PNG[:8])


def test_a_cancelled_tool_notices_it(lab: Published, tmp_path: Path) -> None:
    with lab.client() as client:
        task = lab.portal.start_task_soon(
            client.client.call_tool, "wait", {"folder": str(tmp_path)}
        )
        assert eventually((tmp_path / "began").exists)
        task.cancel()
        assert eventually((tmp_path / "cancelled").exists)
        assert eventually((tmp_path / "Cancelled").exists)


# --- results --------------------------------------------------------------------------------------


def test_values_of_python_become_json(lab: Published) -> None:
    with lab.client() as client:
        assert said(client, "lab.values()") == {
            "point": {"when": "2024-02-29T12:30:00", "color": "red"},
            "model": {"day": "2024-02-29", "price": "1.50", "where": "/x"},
            "tags": ["a", "b"],
            "id": "00000000-0000-0000-0000-000000000001",
            "raw": "cGxhaW4=",
            "at": ["2024-02-29T12:30:00", "0.1", "/y"],
        }


def test_images_audio_and_files_are_content(lab: Published, tmp_path: Path) -> None:
    report = tmp_path / "report.pdf"
    report.write_bytes(b"%PDF-1.7")
    with lab.client() as client:
        for result in (run(client, "lab.picture()"), client.call("picture"), client.call("helper")):
            (image,) = [block for block in result.content if block.type == "image"]
            assert (image.mime_type, base64.b64decode(image.data)) == ("image/png", PNG)
        handle = said(client, "lab.picture()")
        assert (handle["type"], handle["mimeType"], handle["size"]) == (
            "image",
            "image/png",
            len(PNG),
        )
        for result in (run(client, "lab.pictures()"), client.call("pictures")):
            assert [block.type for block in result.content] == ["text", "image", "audio"]
            assert result.content[2].mime_type == "audio/wav"
        blob = client.call("file", path=str(report)).content[0].resource
        assert (blob.mime_type, base64.b64decode(blob.blob)) == ("application/pdf", b"%PDF-1.7")
        assert said(client, f"lab.file({str(report)!r})")["name"] == "report.pdf"
        assert "not a regular file" in client.call("file", path="/dev/zero").content[0].text


def test_images_that_code_computes_are_content(lab: Published) -> None:
    code = f"png = bytes.fromhex({PNG.hex()!r})\n"
    with lab.client() as client:
        for value in ("png", "[1, bytearray(png)]", "{'chart': png, 'title': 'Sales'}"):
            text, image = run(client, code + value).content
            assert (image.mime_type, base64.b64decode(image.data)) == ("image/png", PNG), value
            assert f'"size":{len(PNG)},"media":"' in text.text
        assert '"title":"Sales"' in text.text
        many = run(
            client,
            f"{code}[png] * {MAX_MEDIA} + [png + bytes([n]) for n in range({MAX_MEDIA + 5})]",
        ).content
        assert [block.type for block in many] == ["text"] + ["image"] * MAX_MEDIA
        secret = run(client, f"{code}png + b'LAB-SECRET-VALUE'").content
        assert [block.type for block in secret] == ["text"]
        assert "[REDACTED]" in secret[0].text
        large = run(client, f"{code}png + bytes({2 * MAX_OUTPUT_BYTES})").content
        assert f"the value is larger than {MAX_OUTPUT_BYTES} bytes" in large[0].text


def test_an_image_in_a_dict_of_a_tool_is_content_beside_the_rest(lab: Published) -> None:
    with lab.client() as client:
        for result in (run(client, "lab.report()"), client.call("report")):
            assert [block.type for block in result.content] == ["text", "image"]
            assert json.loads(result.content[0].text)["title"] == "Sales"


def test_generators_report_progress_and_return_lists(lab: Published) -> None:
    heard: list[Any] = []

    async def hear(progress: float, _total: float | None, message: str | None) -> None:
        heard.append((progress, message))

    with lab.client() as client:
        result = client.call_tool("count", {"n": 3}, progress_callback=hear)
    assert json.loads(result.content[0].text) == [{"number": 0}, {"number": 1}, {"number": 2}]
    assert (1, "lab: {'number': 0} (1)") in heard


def test_return_annotations_are_output_schemas(lab: Published) -> None:
    with lab.client() as client:
        listed = {each.name: each.output_schema for each in client.list_tools().tools}
        assert listed["typed"] == {"type": "object", "additionalProperties": {"type": "integer"}}
        assert [listed[name] for name in ("picture", "file", "ask", "hello")] == [None] * 4
        assert client.call("typed").structured_content == {"x": 1}
        assert said(client, "str(lab.mean())") == "[nan, 1.5]"
        assert (
            "OutputInvalid: lab.typed returned a value"
            in client.call("typed", wrong=True).content[0].text
        )


# --- errors ---------------------------------------------------------------------------------------


def test_a_failing_tool_shows_its_own_lines_causes_and_notes(lab: Published) -> None:
    with lab.client() as client:
        in_run, direct = (
            run(client, "lab.broken()").content[0].text,
            client.call("broken").content[0].text,
        )
    line = LAB.splitlines().index("        raise failure from error") + 1
    expected = [
        "ValueError: cannot read the forecast of [REDACTED]",
        f"  lab/lab_tools.py, line {line}, in broken: raise failure from error",
        "  note: the service answers in the morning",
        "  caused by KeyError: 'days'",
    ]
    for text in (in_run, direct):
        found = text.splitlines()
        assert [each for each in found if each in expected] == expected, text
        assert 'in parse: return data["days"]' in found[-1] or "Calls already made" in found[-1]
        assert "onetool_child" not in text
    with lab.client() as client:
        refused = run(client, "lab.refuse()").content[0].text
        assert (
            "  contains KeyError: 'inner'"
            in run(client, "lab.group()").content[0].text.splitlines()
        )
    assert refused.splitlines()[0] == "ToolError: days must be at most 7"
    assert "lab_tools.py" not in refused


def test_the_log_has_the_whole_traceback_without_secrets(tmp_path: Path) -> None:
    source = """
        import json
        def load(text: str):
            try:
                return json.loads(text)
            except ValueError as error:
                error.add_note(f"the text is {text}")
                raise
        """
    file = tmp_path / ".onetool" / "secrets.yaml"
    file.parent.mkdir()
    file.write_text("KEY: very-secret-value\n", encoding="utf-8")
    file.chmod(0o600)
    with open_workers(tmp_path) as opened:
        opened.write("logged", source)
        assert opened.error("logged.load", text="very-secret-value").startswith(
            "ToolError: JSONDecodeError: Expecting"
        )
        assert eventually(lambda: "JSONDecodeError: Expecting value" in opened.log)
        assert "json/decoder.py" in opened.log
        assert "the text is [REDACTED]" in opened.log
        assert "onetool_child" not in opened.log
