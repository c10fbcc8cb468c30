"""The audit log: audited calls, contents of a line, and redaction."""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.extensions_support import configure, open_app_in, write_secrets
from tests.support import App, eventually, measure_loop, open_app, without_collections

from onetool import ToolError, tool
from onetool.core.audit import MAX_ARGUMENT_CHARS, AuditLog
from onetool.core.bus.events import CallFinished
from onetool.core.python_backend import as_tool
from onetool.errors import AuditUnavailable, SandboxDenied
from onetool.state.audit_records import MIN_SHARE_BYTES, PERIOD_SECONDS, AuditShares
from onetool.state.file_kinds import AuditFile
from onetool.util.context import ToolContext
from onetool.util.logging import Log
from onetool.util.redact import REDACTED, Redactor

CANARY = "c4n4ry\\with'quotes\"and-ünïcode"
WRITER = r"""
import sys
from pathlib import Path
from onetool.util.logging import Log

log = Log(Path(sys.argv[1]), max_bytes=1 << 40, gathers=False)
for number in range(2000):
    log.event("call", process=sys.argv[2], number=number, text=sys.argv[2] * 3_000)
log.close()
"""
AGENTS = {
    "default": {"permissions": ["read", "write", "network"]},
    "reader": {"permissions": ["read"]},
    "narrow": {"permissions": ["read", "write"], "tools": ["other.tool"]},
    "poor": {"permissions": ["read", "write"], "budgets": {"calls": 1}},
    "curt": {"permissions": ["read", "write"], "budgets": {"tokens": 1}},
}


@tool("demo.look", permissions=["read"])
def look(path: str = "") -> str:
    return path


@tool("demo.put", permissions=["read", "write"])
def put(content: Any = "", more: Any = None) -> str:
    """Write it down."""
    return f"wrote {len(str((content, more)))} characters"


@tool("demo.many", permissions=["write"])
def take_many(to: str = "", **options: Any) -> int:  # noqa: ARG001 - recorded
    return len(options)


@tool("demo.fail", permissions=["network"])
async def fail(message: str) -> None:
    raise ToolError(message)


@tool("demo.stray", permissions=["write"])
def stray() -> None:
    raise SandboxDenied("File access denied by sandbox: /etc/passwd")


def read_all_lines(file: Path) -> list[dict[str, Any]]:
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [
        json.loads(line) for line in lines if line
    ]  # an empty line ends what may be an incomplete one


def read_outcomes(file: Path) -> list[dict[str, Any]]:
    """Return the lines with the outcome of a call."""
    return [line for line in read_all_lines(file) if line["name"] == "call"]


def wait_for_outcomes(app: App, count: int) -> list[dict[str, Any]]:
    """Return the outcomes in the log as soon as it has at least `count`."""
    file = app.onetool.directories.data / "logs" / "audit.jsonl"
    assert eventually(lambda: len(read_outcomes(file)) >= count), read_outcomes(file)
    return read_outcomes(file)


@pytest.fixture
def app() -> Iterator[App]:
    with open_app({"agents": AGENTS}, [look, put, take_many, fail, stray]) as app:
        yield app


# --- audited calls --------------------------------------------------------------------------------


def test_a_call_that_writes_is_one_line(app: App) -> None:
    app.call("demo.put", {"content": "hello"})
    (line,) = wait_for_outcomes(app, 1)
    assert line["time"].startswith("20")
    assert line["duration_ms"] >= 0
    assert len(line["correlation_id"]) == 34
    assert {
        key: line[key]
        for key in ("agent", "tool", "permissions", "arguments", "decision", "outcome")
    } == {
        "agent": "default",
        "tool": "demo.put",
        "permissions": ["read", "write"],
        "arguments": {"content": "hello", "more": None},
        "decision": "allowed",
        "outcome": "ok",
    }


def test_a_record_is_short_and_has_the_declared_arguments(app: App) -> None:
    options = {f"{n}-{'n' * 480}": "\x07" * 2_000 for n in range(990)}
    app.call("demo.many", {**options, "to": "everybody"})
    (line,) = wait_for_outcomes(app, 1)
    assert line["arguments"]["to"] == "everybody"
    assert line["arguments"]["..."].endswith(" more arguments")
    file = app.onetool.directories.data / "logs" / "audit.jsonl"
    assert max(map(len, file.read_bytes().splitlines())) <= 16 << 10


def test_many_calls_of_one_agent_are_counted_and_displace_no_records_of_others() -> None:
    settings = {"agents": AGENTS, "audit": {"max_bytes": 1 << 20, "keep": 1}}
    with open_app(settings, [put, take_many, stray]) as app:
        file = app.onetool.directories.data / "logs" / "audit.jsonl"
        app.call("demo.put", agent="poor")
        for number in range(60):
            assert app.call(
                "demo.many", {f"{n}": "x" * 900 for n in range(13)} | {"to": str(number)}
            ).ok
        app.call("demo.stray")
        app.call("demo.put", agent="narrow")
        app.onetool.audit.change("x", ["y"], actor="a", transport="cli")
        assert eventually(lambda: "calls.counted" in file.read_text())
        app.onetool.audit.close()
        lines = read_all_lines(file)
    recorded = Counter(line["agent"] for line in lines if line["name"] == "call")
    counted = [line for line in lines if line["name"] == "calls.counted"]
    assert recorded["poor"] == recorded["narrow"] == 1
    assert 30 < recorded["default"] < 60
    assert {line["agent"] for line in counted} == {"default"}
    assert recorded["default"] + sum(line["calls"] for line in counted) == 61
    assert counted[-1]["tools"] == {"demo.many": counted[-1]["calls"] - 1, "demo.stray": 1}
    assert counted[-1]["refused"] == 1
    assert [line["names"] for line in lines if line["name"] == "change"] == [["y"]]


def test_an_agent_has_a_new_share_after_a_day() -> None:
    shares = AuditShares()
    shares.configure(0)
    now = 0.0
    shares.now = lambda: now
    facts = {"agent": "a", "arguments": "x" * (MIN_SHARE_BYTES // 3)}
    assert [shares.take(facts), shares.take(facts), shares.take({**facts, "agent": "b"})] == [
        True,
        False,
        True,
    ]
    shares.count("a", "p.t", is_refused=False)
    now = PERIOD_SECONDS
    assert shares.take(facts)
    assert [(each["agent"], each["calls"]) for each in shares.take_summaries()] == [("a", 1)]
    assert not [*shares.take_summaries(is_last=True)]


@pytest.mark.anyio
async def test_a_record_of_many_changes_is_short(tmp_path: Path) -> None:
    audit = AuditLog(AuditFile(file := tmp_path / "audit.jsonl", str), Redactor())
    async with audit.changing(
        "bundle.import", [f"pack.tool_{n}" for n in range(5_000)], actor="a", transport="cli"
    ):
        pass
    async with audit.changing(
        "tool.patch", ["\x07" * 15_000, "é" * 15_000] * 50, actor="a", transport="http"
    ):
        pass
    audit.close()
    lines = read_all_lines(file)
    assert {line["names"][-1] for line in lines} == {"... and 4,900 more", "... and 89 more"}
    assert max(map(len, file.read_bytes().splitlines())) <= 16 << 10


def test_a_call_that_only_reads_is_not_audited(app: App) -> None:
    app.call("demo.look", {"path": "x"})
    app.call("ot.version")
    app.call("demo.put")
    assert [line["tool"] for line in wait_for_outcomes(app, 1)] == ["demo.put"]


def test_calls_of_a_run_are_audited_with_its_id(app: App) -> None:
    app.run("demo.put('a')\ndemo.look('b')\ndemo.put('c')")
    one, two = wait_for_outcomes(app, 2)
    assert (one["arguments"]["content"], two["arguments"]["content"]) == ("a", "c")
    assert one["correlation_id"] == two["correlation_id"]


@pytest.mark.parametrize(
    ("name", "agent", "decision", "outcome"),
    [
        ("demo.put", "reader", "refused", "permission_denied"),
        ("demo.put", "narrow", "refused", "permission_denied"),
        ("demo.stray", "default", "refused", "sandbox_denied"),
        (
            "demo.put",
            "curt",
            "allowed",
            "budget_exceeded",
        ),  # the call was made, and its result was withheld
    ],
)
def test_a_line_records_whether_the_call_was_allowed(
    app: App, name: str, agent: str, decision: str, outcome: str
) -> None:
    assert not app.call(name, {}, agent=agent).ok
    (line,) = wait_for_outcomes(app, 1)
    assert (line["agent"], line["decision"], line["outcome"]) == (agent, decision, outcome)


def test_a_call_over_budget_is_rejected(app: App) -> None:
    app.call("demo.put", agent="poor")
    app.call("demo.put", agent="poor")
    made, rejected = wait_for_outcomes(app, 2)
    assert (made["decision"], made["outcome"]) == ("allowed", "ok")
    assert (rejected["decision"], rejected["outcome"]) == ("refused", "budget_exceeded")


def test_a_failed_call_is_recorded_as_allowed(app: App) -> None:
    app.call("demo.fail", {"message": "no such host"})
    (line,) = wait_for_outcomes(app, 1)
    assert (line["decision"], line["outcome"]) == ("allowed", "execution_error")
    assert "no such host" not in json.dumps({**line, "arguments": {}})


def test_a_call_is_audited_if_an_argument_requires_a_permission(app: App) -> None:
    app.call("ot.stats")
    app.call("ot.stats", {"output": "report.html"}, agent="reader")
    (line,) = wait_for_outcomes(app, 1)
    assert (line["tool"], line["permissions"], line["decision"]) == (
        "ot.stats",
        ["write"],
        "refused",
    )


def test_an_invalid_call_is_not_audited(app: App) -> None:
    app.call("demo.fail", {"massage": "x"})
    app.call("demo.nothing")
    app.call("demo.put")
    assert [line["tool"] for line in wait_for_outcomes(app, 1)] == ["demo.put"]


# --- redaction ------------------------------------------------------------------------------------


@contextmanager
def open_audit_log(file: Path, *secrets: str) -> Iterator[AuditLog]:
    audit = AuditLog(AuditFile(file, Redactor(secrets)), Redactor(secrets))
    yield audit
    audit.close()


def finish_call(audit: AuditLog, args: Mapping[str, Any]) -> None:
    audit.finish(
        CallFinished(1, "demo.put", ToolContext(), 0.0, None, as_tool(put), args, is_allowed=True)
    )


@pytest.mark.parametrize(
    "value",
    [
        CANARY,
        f"before {CANARY} after",
        [CANARY],
        {"headers": {"Authorization": f"Bearer {CANARY}"}},
        {CANARY: 1},
        [f'"{CANARY}"', f"'{CANARY}'"],
        ("x" * (MAX_ARGUMENT_CHARS - 5)) + CANARY,
        ["x" * (MAX_ARGUMENT_CHARS - 8) + CANARY],
        {"deep": [[[{"deeper": json.dumps(CANARY)}]]]},
    ],
)
def test_secrets_are_redacted(tmp_path: Path, value: Any) -> None:
    file = tmp_path / "audit.jsonl"
    with open_audit_log(file, CANARY) as audit:
        finish_call(audit, {"content": value})
    text = file.read_text(encoding="utf-8")
    assert REDACTED[:2] in text
    for part in ("c4n4ry", "quotes", "ünïcode", "u00fcn"):
        assert part not in text, text


def test_multiline_secrets_are_redacted(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    key = "-----BEGIN KEY-----\nMIIabcdefgh\nZZZZabcdefgh\n-----END KEY-----\n"
    with open_audit_log(file, key) as audit:
        finish_call(audit, {"content": key, "more": {"key": [key]}})
    assert "abcdefgh" not in file.read_text(encoding="utf-8")


def test_configured_secrets_are_redacted(tmp_path: Path) -> None:
    directory = tmp_path / ".onetool"
    configure(directory, "agents: {default: {permissions: [read, write]}}")
    write_secrets(directory, f"TOKEN: {json.dumps(CANARY)}")
    with open_app_in(tmp_path) as app:
        app.onetool.bus.register_tool(put)
        app.run(f"demo.put([{CANARY!r}], {{'a': {CANARY!r}}})")
        assert REDACTED in json.dumps(wait_for_outcomes(app, 1))
    for file in directory.rglob("*"):
        if file.is_file() and file.name != "secrets.yaml":
            assert b"c4n4ry" not in file.read_bytes(), file


def test_long_arguments_are_truncated(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    with open_audit_log(file) as audit:
        finish_call(audit, {"content": "x" * 1_000_000, "more": ["y"] * 1_000_000})
    (line,) = read_outcomes(file)
    assert line["arguments"]["content"] == "x" * MAX_ARGUMENT_CHARS + "… (1000000 characters)"
    assert line["arguments"]["more"].startswith('["y", "y"')
    assert len(file.read_bytes()) < 4 * MAX_ARGUMENT_CHARS


@pytest.mark.anyio
async def test_arguments_that_take_long_to_redact_delay_nobody(tmp_path: Path) -> None:
    """Those of a rejected call are left out; those of a call that is made are redacted in a thread."""
    key = random.Random(1).randbytes(3_000).hex()
    args = {f"{n}": "é%2525" * 10_000 for n in range(30)}
    context = ToolContext()
    seconds = []
    with without_collections():
        for attempt in range(3):
            started = time.thread_time()
            with open_audit_log(file := tmp_path / f"{attempt}.jsonl", key) as audit:
                audit.finish(
                    CallFinished(
                        1,
                        "demo.many",
                        context,
                        0.0,
                        None,
                        as_tool(take_many),
                        args,
                        is_allowed=False,
                    )
                )
                admitted = await audit.admit(as_tool(take_many), args, context)
            seconds.append(time.thread_time() - started)
            assert admitted is not None
            assert len(admitted["arguments"]) > 5
            (refused,) = read_outcomes(file)
            assert "29 more arguments" in refused["arguments"].values()
    assert min(seconds) < measure_loop()


def make_deep_list() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


def make_circular_list() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


class Unprintable:
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


@pytest.mark.parametrize(
    "value",
    [
        make_deep_list(),
        make_circular_list(),
        Unprintable(),
        {(1, 2): 3},
        "\ud800",
        2**100,
        float("nan"),
        b"\xff\x00",
        {1, 2},
    ],
)
def test_unusual_arguments_do_not_break_the_call_or_the_log(tmp_path: Path, value: Any) -> None:
    file = tmp_path / "audit.jsonl"
    with open_audit_log(file) as audit:
        finish_call(audit, {"content": value})
        finish_call(audit, {"content": "next"})
    assert [line["tool"] for line in read_outcomes(file)] == ["demo.put", "demo.put"]


# --- the file -------------------------------------------------------------------------------------


def test_the_log_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "audit.jsonl"
    with open_audit_log(file) as audit:
        finish_call(audit, {})
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_a_large_log_is_rotated_and_old_logs_are_deleted(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    for number in range(5):
        file.write_bytes(b"%d" % number * 2000)
        with open_audit_log(file) as audit:
            audit.configure(Redactor(), max_bytes=1000, keep=2)
            finish_call(audit, {})
        assert len(read_outcomes(file)) == 1
    kept = {
        path.name: path.read_bytes()[:1]
        for path in tmp_path.iterdir()
        if path.suffix in {".1", ".2", ".3"}
    }
    assert kept == {"audit.jsonl.1": b"4", "audit.jsonl.2": b"3"}


@pytest.mark.slow
def test_concurrent_rotation_loses_no_lines(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom onetool.util.logging import Log, rotate\n"
        "log = Log(Path(sys.argv[1]))\nfor number in range(60):\n"
        "    log.write('call')\n    rotate(Path(sys.argv[1]), 300, 1000)\n"
    )
    file = tmp_path / "audit.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", code, str(file)]) for _ in range(2)]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    files = [path for path in tmp_path.iterdir() if path.suffix != ".lock"]
    assert len(files) > 3
    assert sum(len(read_outcomes(path)) for path in files) == 120


def test_a_line_that_another_process_is_writing_is_not_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "audit.jsonl"
    file.write_text('{"process": "other"', encoding="utf-8")

    def finish_line(_seconds: float) -> None:  # what the other process does meanwhile
        with file.open("a", encoding="utf-8") as other:
            other.write("}\n")

    monkeypatch.setattr(
        "onetool.util.logging.time", SimpleNamespace(sleep=finish_line, time=time.time)
    )
    log = Log(file)
    log.write("call", number=1)
    log.close()
    other, own = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    assert (other, own["number"]) == ({"process": "other"}, 1)


@pytest.mark.slow
def test_lines_of_concurrent_servers_are_complete(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(file), mark]) for mark in "abc"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    found = read_outcomes(file)
    assert len(found) == 6000
    for mark in "abc":
        own = [line for line in found if line["process"] == mark]
        assert [line["number"] for line in own] == list(range(2000))
        assert {line["text"] for line in own} == {mark * 3_000}


def test_the_path_is_a_setting(tmp_path: Path) -> None:
    configure(
        tmp_path / ".onetool",
        "audit: {file: there/audit.log}\nagents: {default: {permissions: [read, write]}}",
    )
    with open_app_in(tmp_path) as app:
        app.onetool.bus.register_tool(put)
        app.call("demo.put")
        assert eventually(
            lambda: len(read_outcomes(tmp_path / ".onetool" / "there" / "audit.log")) == 1
        )


def test_a_reload_changes_the_path_and_loses_nothing(tmp_path: Path) -> None:
    directory = tmp_path / ".onetool"
    configure(directory, "agents: {default: {permissions: [read, write]}}")
    with open_app_in(tmp_path) as app:
        app.onetool.bus.register_tool(put)
        app.call("demo.put", {"content": "one"})
        configure(
            directory, "audit: {file: other.jsonl}\nagents: {default: {permissions: [read, write]}}"
        )
        app.call("ot.reload")
        app.call("demo.put", {"content": "two"})
    contents = [
        read_outcomes(directory / name)[0]["arguments"]["content"]
        for name in ("logs/audit.jsonl", "other.jsonl")
    ]
    assert contents == ["one", "two"]


# --- calls that cannot be audited -----------------------------------------------------------------


def test_a_call_is_recorded_before_it_runs(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"

    @tool("demo.peek", permissions=["write"])
    def peek() -> list[dict[str, Any]]:
        return read_all_lines(file)

    with open_app({"audit": {"file": str(file)}, "agents": AGENTS}, [peek]) as app:
        (line,) = app.call("demo.peek").unwrap()
        assert (line["name"], line["tool"], line["agent"]) == (
            "call.started",
            "demo.peek",
            "default",
        )


def make_unwritable_file(tmp_path: Path, how: str) -> Path:
    file = tmp_path / "audit.jsonl"
    if how == "directory":
        file.mkdir()
    elif how == "parent":
        (tmp_path / "taken").write_text("a file", encoding="utf-8")
        return tmp_path / "taken" / "audit.jsonl"
    elif how == "pipe":
        os.mkfifo(file)
    return Path("/dev/full") if how == "full" else file


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("how", ["directory", "parent", "pipe", "full"])
def test_a_call_that_cannot_be_audited_is_not_made(tmp_path: Path, how: str) -> None:
    file, done = make_unwritable_file(tmp_path, how), []

    @tool("demo.act", permissions=["write"])
    def act() -> None:
        done.append(1)

    @tool("demo.send", permissions=["network"])
    async def send() -> None:
        done.append(1)

    with open_app({"audit": {"file": str(file)}, "agents": AGENTS}, [look, act, send]) as app:
        for name in ("demo.act", "demo.send"):
            result = app.call(name)
            assert isinstance(result.error, AuditUnavailable)
            assert not result.ran
            assert str(file) in str(result.error)
            assert "audit.file" in str(result.error)
        assert not done
        caught = "try:\n    demo.act()\nexcept AuditUnavailable as error:\n    r = error.file\nr"
        assert app.value(caught) == str(file)
        assert app.call("demo.look", {"path": "x"}).unwrap() == "x"
        assert "demo.look" in app.call("ot.tools", {"info": "list"}).unwrap()
        assert app.call("ot.help", {"query": "demo.act"}).ok
        cause = f"{file.parent} is not a directory" if how == "parent" else f"the audit log {file}"
        assert any(cause in problem for problem in list_problems(app))


def test_calls_work_again_when_the_log_is_writable_again(tmp_path: Path) -> None:
    file = make_unwritable_file(tmp_path, "directory")
    with open_app({"audit": {"file": str(file)}, "agents": AGENTS}, [put]) as app:
        assert not app.call("demo.put").ok
        file.rmdir()
        assert app.call("demo.put").ok
        assert eventually(lambda: any(line["outcome"] == "ok" for line in read_outcomes(file)))
        assert not list_problems(app)


def test_an_incomplete_line_does_not_damage_the_next(tmp_path: Path) -> None:
    file = tmp_path / "log"
    code = (
        "import resource, signal, sys\nfrom pathlib import Path\nfrom onetool.util.logging import"
        " Log\nlog = Log(Path(sys.argv[1]))\nsignal.signal(signal.SIGXFSZ,"
        " signal.SIG_IGN)\nresource.setrlimit(resource.RLIMIT_FSIZE, (50, 1 << 20))\ntry:\n   "
        " log.write('torn', text='x' * 500)\nexcept OSError:\n   "
        " print('refused')\nresource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 <<"
        " 20))\nlog.write('whole')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "refused\n"
    torn, whole = file.read_text(encoding="utf-8").splitlines()
    assert len(torn) == 50
    assert json.loads(whole)["name"] == "whole"


def list_problems(app: App) -> list[str]:
    found: list[str] = app.call("ot.health").unwrap()["problems"]
    return found
