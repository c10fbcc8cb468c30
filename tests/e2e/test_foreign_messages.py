"""Test that what others send beside their results cannot freeze the server: logs, progress, output,
questions, notes.

As in `test_foreign_data.py`, a neighbor runs `1 + 1` on the same server meanwhile.
"""

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPDeprecationWarning
from tests.approvals_support import Approver
from tests.support import (
    PROGRAM,
    Connection,
    configure,
    connect,
    get_texts,
    run_attack,
    run_beside_neighbor,
)
from tests.workers_support import write_pack

from onetool_child.interface import MAX_PROGRESS_CHARS

NOISY = Path(__file__).parent / "servers" / "noisy.py"
PACK = '''
import os
from onetool import Context

TEXT = "%2525" * 190_000  # of one message, which has at most 1 MiB
effects = ["write"]


def emit(kind: str, ctx: Context) -> str:
    """Send messages around the limits of `Context`, as a hostile extension does."""
    peer = ctx._peer
    match kind:
        case "progress":
            for number in range(5):
                peer.notify("progress", {"within": ctx.ident, "message": TEXT, "done": number, "total": None})
        case "much progress":
            for number in range(2_000):
                message = "%2525" * 100
                peer.notify("progress", {"within": ctx.ident, "message": message, "done": number, "total": None})
        case "logs":
            for _ in range(5):
                peer.notify("log", {"within": ctx.ident, "message": TEXT, "level": "error"})
        case "many logs":
            for _ in range(2_000):
                peer.notify("log", {"within": ctx.ident, "message": "%2525" * 100, "level": "error"})
        case "output":
            for _ in range(200):
                os.write(2, b"%2525" * 20_000 + b"\\n")
        case "a line":
            for _ in range(200):
                os.write(2, b"%2525" * 20_000)
        case "a question":
            schema = {"type": "object", "properties": {}}
            peer.request("ask", {"within": ctx.ident, "message": TEXT * 8, "schema": schema})
        case "a form":
            fields = {f"f{number}%2525": {"type": "string", "title": "%2525" * 8} for number in range(8_000)}
            schema = {"type": "object", "properties": fields}
            peer.request("ask", {"within": ctx.ident, "message": "?", "schema": schema})
        case "a pattern":
            field = {"type": "string", "pattern": "(a?[ab]?[abc]?){1000}[c-z]"}
            schema = {"type": "object", "properties": {"x": field}}
            peer.request("ask", {"within": ctx.ident, "message": "?", "schema": schema})
        case "notes":
            for _ in range(5):
                ctx.call("ot.notify", topic="any", message="%2525" * 15_000)
    return "done"


def take(text: str = "", rows: list = ()) -> int:
    return len(text) + len(rows)
'''
SENT = ["progress", "much progress", "logs", "many logs", "output", "a line"]
SETTINGS = {
    "servers": {"noisy": {"command": sys.executable, "args": [str(NOISY)], "timeout": 60}},
    "execution": {"timeout": 60},
    "notify": {"per_minute": 1_000_000, "topics": [{"pattern": "**", "file": "notes.yaml"}]},
    "agents": {"default": {"permissions": ["read", "write", "network"]}},
}


async def answer_form(_context: Any, params: Any) -> types.ElicitResult:
    """Fill in each field with a value that takes long to match."""
    fields = params.requested_schema.get("properties", {})
    return types.ElicitResult(
        action="accept", content=dict.fromkeys(list(fields)[:100], "ab" * 20_000)
    )


async def ignore_log(_params: Any) -> None:
    """Read a log message."""


async def check_progress(progress: float, total: float | None, message: str | None) -> None:
    """Check that a progress message is short."""
    assert progress >= 0
    assert total is None
    assert len(message or "") <= len("hostile: ") + MAX_PROGRESS_CHARS


def write_home(home: Path, settings: Any) -> None:
    configure(home, json.dumps(settings))
    write_pack(home / ".onetool", "hostile", PACK)
    (home / ".onetool" / "secrets.yaml").write_text("KEY: " + "k9" * 1_000)
    (home / ".onetool" / "secrets.yaml").chmod(0o600)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    home = tmp_path_factory.mktemp("home")
    write_home(home, SETTINGS)
    command = (PROGRAM, "--expose", "noisy", "--expose", "hostile.emit")
    able: dict[str, Any] = {"elicitation_callback": answer_form, "logging_callback": ignore_log}
    with connect(home, "legacy", command, **able) as client:
        with pytest.warns(MCPDeprecationWarning):  # in favor of the metadata
            client.portal.call(client.client.set_logging_level, "debug")
        assert run_attack(client, "noisy.send(kind='?') + hostile.emit(kind='?')") == "donedone"
        yield client


def check_emitted(answer: str) -> None:
    """Check that messages arrived, and that a question was asked or has an error."""
    errors = ("does not match the schema", "too large", "the limit is 100,000")
    assert answer == "done" or any(error in answer for error in errors), answer[:1_000]


@pytest.mark.parametrize("kind", [*SENT, "a question", "a form", "a pattern", "notes"])
def test_messages_of_an_extension_do_not_delay_others(client: Connection, kind: str) -> None:
    check_emitted(run_attack(client, f"hostile.emit(kind={kind!r})"))


@pytest.mark.parametrize("kind", SENT)
def test_messages_of_an_upstream_server_do_not_delay_others(client: Connection, kind: str) -> None:
    assert run_attack(client, f"noisy.send(kind={kind!r})") == "done"


def call_beside_neighbor(client: Connection, name: str, kind: str) -> str:
    """Call a published tool directly, with progress."""
    call = partial(client.client.call_tool, name, {"kind": kind}, progress_callback=check_progress)
    return "\n".join(get_texts(run_beside_neighbor(client, client.portal.start_task_soon(call))))


@pytest.mark.parametrize("kind", [*SENT, "a question", "a form", "a pattern"])
def test_messages_of_a_published_extension_do_not_delay_others(
    client: Connection, kind: str
) -> None:
    check_emitted(call_beside_neighbor(client, "emit", kind))


@pytest.mark.parametrize("kind", [*SENT, "a form", "a pattern"])
def test_messages_of_a_published_server_do_not_delay_others(client: Connection, kind: str) -> None:
    answer = call_beside_neighbor(client, "send", kind)
    assert answer == "done" or "accept" in answer or "the limit is 100,000" in answer, answer[
        :1_000
    ]


LARGE_CALLS = [
    "text='%2525' * 1_300_000 + str(n)",
    "text=str(n), rows=[['%2525', m] for m in range(35_000)]",
]


@pytest.mark.parametrize("arguments", LARGE_CALLS, ids=["text", "rows"])
def test_a_question_about_large_calls_does_not_delay_others(tmp_path: Path, arguments: str) -> None:
    agents = {"default": {"permissions": ["read", "write", "network"], "policy": "ask-writes"}}
    write_home(tmp_path, {**SETTINGS, "servers": {}, "agents": agents})
    with connect(tmp_path, "legacy", **Approver().able) as client:
        client.run("1 + 1")
        code = f"len(ot.parallel([lambda n=n: hostile.take({arguments}) for n in range(8)]))"
        assert run_attack(client, code) == "8"
