"""The MCP server over pipes: both protocol versions, valid and invalid messages."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from tests.support import (
    PROGRAM,
    THREE_LINES,
    TIMEOUT_SECONDS,
    Connection,
    ProcessWatch,
    RawClient,
    configure,
    connect,
    environment,
    eventually,
    get_texts,
    list_descendants,
    scratch_directory,
)
from tests.workers_support import is_alive

from onetool.server.mcp.relay import MAX_MESSAGE_CHARS
from onetool.util.version import __version__

MANY_MESSAGES = 30  # a second

# Writes its process id to the scratch directory, then runs forever.
ENDLESS = (
    "import os, time\nopen('pid', 'w').write(f'{os.getpid()}.')\nwhile True:\n    time.sleep(1)"
)


@pytest.fixture(scope="module", params=["auto", "legacy"])
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Connection]:
    with connect(tmp_path_factory.mktemp("home"), request.param) as client:
        yield client


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawClient]:
    with RawClient(tmp_path_factory.mktemp("home")) as wire:
        yield wire


def find_endless_run(home: Path) -> int:
    """Return the process of the cell that runs `ENDLESS`."""
    notes: list[str] = []

    def has_note() -> bool:
        notes[:] = [
            note.read_text("ascii") for note in scratch_directory(home).glob("onetool-*/*/pid")
        ]
        return bool(notes) and notes[0].endswith(".")

    assert eventually(has_note)
    return int(notes[0].rstrip("."))


# --- server information ---------------------------------------------------------------------------


def test_the_server_speaks_the_protocol_of_its_client(client: Connection) -> None:
    eras = {"auto": MODERN_PROTOCOL_VERSIONS, "legacy": HANDSHAKE_PROTOCOL_VERSIONS}
    assert client.client.protocol_version in eras[client.client.mode]
    assert client.client.server_info is not None
    assert (client.client.server_info.name, client.client.server_info.version) == (
        "onetool",
        __version__,
    )


def test_there_is_exactly_one_tool(client: Connection) -> None:
    (tool,) = client.tools()
    assert tool.name == "run"
    assert tool.input_schema["properties"].keys() == {"command"}
    assert tool.input_schema["properties"]["command"]["type"] == "string"
    assert tool.input_schema["required"] == ["command"]


def test_description_and_instructions_are_short_and_sufficient(client: Connection) -> None:
    (tool,) = client.tools()
    text = f"{tool.description}\n{client.client.instructions}"
    assert len(text.encode()) / 4 < 500
    for command in ("ot.tools(", "ot.help(", "pack.tool(argument=value)", "return"):
        assert command in text


# --- results of runs ------------------------------------------------------------------------------


def test_a_result_is_the_value_as_text(client: Connection) -> None:
    result = client.run("{'é': [1, None]}")
    assert not result.is_error
    assert get_texts(result) == ['{"é":[1,null]}']
    assert result.structured_content is None


def test_printed_text_is_the_first_block(client: Connection) -> None:
    assert get_texts(client.run("print('one')\nprint('two')\n{'n': 3}")) == [
        "one\ntwo\n",
        '{"n":3}',
    ]
    assert get_texts(client.run("print('alone')")) == ["alone\n"]


def test_a_failed_run_is_an_error_result(client: Connection) -> None:
    result = client.run("print('before')\nx = 0\n1 / x")
    assert result.is_error
    assert get_texts(result) == ["before\n", "ZeroDivisionError: division by zero\n  line 3: 1 / x"]


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("run", None, "missing argument 'command'"),
        ("run", {}, "missing argument 'command'"),
        ("run", {"command": 5}, "must be a string of Python code, not int"),
        ("run", {"command": None}, "must be a string of Python code, not NoneType"),
        ("run", {"command": ["1"]}, "must be a string of Python code, not list"),
        ("run", {"command": ""}, "the command is empty"),
        ("run", {"command": "1", "timeout": 5}, "unknown argument 'timeout'"),
        ("run", {"code": "1"}, "unknown argument 'code'"),
        ("ot.tools", {}, "no tool 'ot.tools'"),
        ("run", {"command": "1\0"}, "null bytes"),
        ("run", {"command": "(" * 100_000}, "too many nested parentheses"),
        ("run", {"command": "#" * 1_000_001}, "the limit is 1000000"),
    ],
)
def test_an_invalid_call_is_a_clear_error(
    client: Connection, name: str, arguments: dict[str, Any] | None, expected: str
) -> None:
    result = client.call(name, arguments)
    assert result.is_error
    assert expected in get_texts(result)[0]


# --- long runs ------------------------------------------------------------------------------------


def test_a_long_run_reports_its_progress(client: Connection) -> None:
    reports: list[tuple[float, str | None]] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:  # noqa: ARG001 - the SDK's
        reports.append((progress, message))

    async def run() -> list[str]:
        code = "import time\not.version()\ntime.sleep(2.4)\n'done'"
        return get_texts(
            await client.client.call_tool("run", {"command": code}, progress_callback=report)
        )

    assert client.portal.call(run) == ["done"]
    assert [round(progress) for progress, _ in reports[:2]] == [1, 2]
    assert reports[1][1] == "running for 2 s, 1 tool call, last ot.version"


def test_output_of_a_run_is_sent_as_progress(client: Connection) -> None:
    """Each line arrives before the next one is printed."""
    reports: list[tuple[float, str]] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:  # noqa: ARG001 - the SDK's
        if not (message or "").startswith("running for"):  # sent on a busy machine
            reports.append((time.time(), message or ""))

    async def run() -> list[str]:
        return get_texts(
            await client.client.call_tool("run", {"command": THREE_LINES}, progress_callback=report)
        )

    printed, value = client.portal.call(run)
    times = list(map(float, printed.split()))
    assert value == "done"
    assert "".join(message for _, message in reports) == printed
    assert [at < following for (at, _), following in zip(reports, times[1:], strict=False)] == [
        True,
        True,
    ]
    assert client.portal.call(_count_flood_messages, client) < MANY_MESSAGES


async def _count_flood_messages(client: Connection) -> int:
    """Count the messages of a run that prints for a second, and check that their length is limited."""
    lengths: list[int] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:  # noqa: ARG001 - the SDK's
        lengths.append(len(message or ""))

    code = (
        "import time\nend = time.time() + 1\nwhile time.time() < end:\n    print('x' * 10_000)\n   "
        " time.sleep(0.001)"
    )
    result = await client.client.call_tool("run", {"command": code}, progress_callback=report)
    assert not result.is_error
    assert max(lengths) <= MAX_MESSAGE_CHARS
    return len(lengths)


def test_progress_is_sent_only_on_request(wire: RawClient) -> None:
    assert (
        wire.run("import time\ntime.sleep(1.3)\n'done'")["result"]["content"][0]["text"] == "done"
    )


def test_a_cancelled_run_ends(client: Connection) -> None:
    run = client.start(ENDLESS)
    with ProcessWatch([find_endless_run(client.home)]) as watch:
        assert get_texts(client.run("'meanwhile'")) == ["meanwhile"]
        run.cancel()
        assert watch.all_ended()
    assert get_texts(client.run("'afterwards'")) == ["afterwards"]
    assert eventually(lambda: not list(scratch_directory(client.home).glob("onetool-*/*/pid")))


# --- misbehaving clients --------------------------------------------------------------------------


def send_line(wire: RawClient, line: bytes) -> list[dict[str, Any]]:
    """Return the response to a line."""
    wire.send(line)
    ping = wire.ask("ping")
    answers = []
    while (answer := wire.receive()).get("id") != ping:
        answers.append(answer)
    return answers


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("no/such", {}, -32601),
        ("completion/complete", {}, -32602),
        ("tools/call", {"name": "run", "arguments": ["1"]}, -32602),
        ("tools/call", {"arguments": {"command": "1"}}, -32602),
    ],
)
def test_an_invalid_request_is_an_error(
    wire: RawClient, method: str, params: Any, code: int
) -> None:
    assert wire.request(method, params)["error"]["code"] == code
    assert wire.run("1 + 1")["result"]["content"][0]["text"] == "2"


@pytest.mark.parametrize(
    "line",
    [
        b"garbage",
        b"{",
        b"[]",
        b"{}",
        b"5",
        b'"text"',
        b"\xff\xfe\x00",
    ],
)
def test_a_line_that_is_not_a_message_is_an_error(wire: RawClient, line: bytes) -> None:
    (answer,) = send_line(wire, line)
    assert answer["error"]["code"] in {-32700, -32600}
    assert answer["error"]["message"]
    assert answer["id"] is None


@pytest.mark.parametrize("line", [b"", b"   "])
def test_an_empty_line_is_ignored(wire: RawClient, line: bytes) -> None:
    assert send_line(wire, line) == []


@pytest.mark.parametrize(
    "text",
    [b"'\xff'", b"'\xc3('", b"'\\ud800'"],
    ids=["not UTF-8", "truncated UTF-8", "lone surrogate"],
)
def test_invalid_utf_8_is_an_error(wire: RawClient, text: bytes) -> None:
    """Only messages of the client run, and every request is answered."""
    head = b'{"jsonrpc": "2.0", "id": "bad", "method": "tools/call", "params": '
    line = head + b'{"name": "run", "arguments": {"command": "' + text + b'"}}}'
    wire.send(line)
    answer = wire.receive(seconds=3)
    assert answer["id"] in {"bad", None}
    assert "error" in answer or answer["result"]["isError"]


def test_the_server_survives_invalid_input(wire: RawClient) -> None:
    for line in (b"garbage", b"\xff", b"{}", b"[1, 2]", b"\0", b"9" * 100_000):
        wire.send(line)
    ping = wire.ask("ping")
    while wire.receive().get("id") != ping:
        pass
    assert wire.run("6 * 7")["result"]["content"][0]["text"] == "42"
    assert wire.process.poll() is None


def hang_up(wire: RawClient) -> None:
    wire.hang_up()


def terminate(wire: RawClient) -> None:
    wire.process.terminate()


def kill(wire: RawClient) -> None:
    wire.process.kill()


@pytest.mark.parametrize("disconnect", [hang_up, terminate, kill])
def test_an_abandoned_run_leaves_nothing_behind(
    tmp_path: Path, disconnect: Callable[[RawClient], None]
) -> None:
    with RawClient(tmp_path) as wire:
        wire.ask("tools/call", {"name": "run", "arguments": {"command": ENDLESS}})
        cell = find_endless_run(tmp_path)
        processes = list_descendants(wire.process.pid)
        assert cell in processes
        assert len(processes) >= 3  # the server, its zygote and a cell
        with ProcessWatch(processes) as watch:
            disconnect(wire)
            assert watch.all_ended()
    assert eventually(lambda: not list(scratch_directory(tmp_path).iterdir()))


# --- misbehaving tools ----------------------------------------------------------------------------

NOISY = """
import asyncio, os, subprocess, sys
from onetool import OneTool, tool
from onetool.server.mcp.mcp_server import serve_stdio

@tool("noisy.tool")
def noisy() -> str:
    print("printed by a tool", flush=True)
    sys.stdout.write("half a line")
    sys.stdout.flush()
    os.write(1, b'{"jsonrpc": "2.0", "id": 1, "result": {}}\\n')
    subprocess.run([sys.executable, "-c", "print('printed by a child')"], check=True)
    return f"read: {sys.stdin.readline()!r}"

async def main() -> None:
    async with OneTool() as app:
        app.bus.register_tool(noisy)
        await serve_stdio(app)

asyncio.run(main())
"""


def test_stray_output_never_reaches_the_protocol(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(NOISY, encoding="utf-8")
    with RawClient(tmp_path, [sys.executable, str(tmp_path / "noisy.py")]) as wire:
        for _ in range(2):
            assert wire.run("noisy.tool()")["result"]["content"] == [
                {"type": "text", "text": "read: ''"}
            ]
        assert send_line(wire, b"") == []
    errors = (tmp_path / "stderr").read_text("utf-8")
    assert errors.count("printed by a tool") == 2
    assert errors.count("printed by a child") == 2


# --- invalid configuration ------------------------------------------------------------------------


def test_the_server_starts_with_an_invalid_configuration(tmp_path: Path) -> None:
    configure(tmp_path, "execution:\n  timout: 5\n")
    with connect(tmp_path) as client:
        rejected = client.run("1 + 1")
        assert rejected.is_error
        assert re.search(
            r"onetool\.yaml:2: .*timout.*\nHint: did you mean timeout", get_texts(rejected)[0]
        )
        health = client.run("ot.health()")
        assert not health.is_error
        assert "timout" in get_texts(health)[0]
        assert not client.run("ot.help()").is_error
        assert not client.run("```python\not.help(query='machine.disk')\n```").is_error
        reload = client.run("ot.reload()")
        assert reload.is_error
        assert "timout" in get_texts(reload)[0]
        configure(tmp_path, "execution:\n  timeout: 5\n")
        assert get_texts(client.run("ot.reload()")) == ["OK: Configuration reloaded"]
        assert get_texts(client.run("1 + 1")) == ["2"]


def test_a_failed_reload_changes_nothing(tmp_path: Path) -> None:
    configure(tmp_path, "aliases: {say: ot.version}")
    with connect(tmp_path) as client:
        configure(tmp_path, "aliases: [say")
        assert client.run("ot.reload()").is_error
        assert get_texts(client.run("say()")) == [__version__]


# --- after a normal shutdown ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the home of a server that ended normally."""
    home = tmp_path_factory.mktemp("past")
    with connect(home) as client:
        assert get_texts(client.run("open('kept', 'w').write('x')\n'done'")) == ["done"]
        assert get_texts(client.run("import os\nos.write(2, b'stray')\nprint(1)\n2")) == [
            "1\n",
            "2",
        ]
        assert client.run("ot.version()\nmachine.now()\n1 / 0").is_error
    return home


def test_a_client_that_disconnects_leaves_nothing_behind(finished_home: Path) -> None:
    assert list(scratch_directory(finished_home).iterdir()) == []


def test_standard_error_stays_silent(finished_home: Path) -> None:
    assert (finished_home / "stderr").read_text("utf-8") == ""


def test_the_log_has_every_run(finished_home: Path) -> None:
    lines = (finished_home / ".onetool" / "logs" / "onetool.log").read_text("utf-8").splitlines()
    spans = {entry["name"]: entry for entry in map(json.loads, lines)}
    assert spans["run"]["status"] == "error"
    assert spans["ot.version"]["status"] == spans["tool.call"]["status"] == "ok"
    assert len({spans[name]["correlation_id"] for name in ("run", "ot.version", "tool.call")}) == 1


# --- messages that are too large, and the end of input --------------------------------------------


@pytest.mark.parametrize("ident", [7, "seven"])
def test_an_oversized_message_is_rejected_and_the_server_continues(
    wire: RawClient, ident: object
) -> None:
    wire.send(
        {"jsonrpc": "2.0", "id": ident, "method": "tools/list", "params": {"x": "y" * (17 << 20)}}
    )
    answer = wire.receive()
    assert (answer["id"], answer["error"]["code"]) == (ident, -32600)
    assert answer["error"]["message"].startswith("message too large: the message has 178")
    assert wire.request("tools/list")["result"]["tools"][0]["name"] == "run"


def test_a_message_of_many_values_is_rejected_and_the_server_continues(wire: RawClient) -> None:
    wire.send(
        {"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": {"x": [[]] * 4_000_000}}
    )
    answer = wire.receive()
    assert (answer["id"], answer["error"]["code"]) == (7, -32600)
    assert (
        answer["error"]["message"] == "message too large: the message has more than 120,000 values"
    )
    assert wire.request("tools/list")["result"]["tools"][0]["name"] == "run"


def test_after_end_of_input_runs_end_and_nothing_is_written(tmp_path: Path) -> None:
    with RawClient(tmp_path) as wire:
        wire.request("tools/list")
        wire.ask("tools/call", {"name": "run", "arguments": {"command": ENDLESS}})
        process = find_endless_run(tmp_path)
        wire.ask(
            "tools/call",
            {"name": "run", "arguments": {"command": "import time\ntime.sleep(0.5)\n1 + 1"}},
        )
        assert wire.process.stdin is not None
        wire.process.stdin.close()
        assert wire.process.wait(TIMEOUT_SECONDS) == 0
        assert wire.process.stdout is not None
        assert wire.process.stdout.read() == b""
    assert eventually(lambda: not is_alive(process))


def test_requests_before_end_of_input_are_answered(tmp_path: Path) -> None:
    """People try a server with `printf '…' | onetool`.

    A run is ended, because its effects would not be seen.
    """
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "a", "version": "1"},
    }
    requests: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {
            "id": 2,
            "method": "tools/call",
            "params": {"name": "run", "arguments": {"command": "1 + 1"}},
        },
        {"id": 3, "method": "resources/list"},
        {"id": 4, "method": "tools/list"},
    ]
    lines = "".join(json.dumps({"jsonrpc": "2.0", **each}) + "\n" for each in requests)
    done = subprocess.run(
        [PROGRAM], input=lines, capture_output=True, text=True, cwd=tmp_path, env=environment(tmp_path), timeout=60,
        check=True,
    )  # fmt: skip
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(answer["id"] for answer in answers if answer.get("id") != 2) == [1, 3, 4]
