"""Applications of one process share cells, upstream servers and workers, and do not affect each
other's calls.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from tests.authorization_server import authorization_server
from tests.oauth_support import call_as, sign_in
from tests.proxy_support import HOSTILE
from tests.support import App, ProcessWatch, advance_time, configure, eventually
from tests.workers_support import is_alive, write_pack

from onetool import tool
from onetool.app import OneTool
from onetool.errors import NetworkError, ToolError, ToolTimeout
from onetool.runs.parts import UNUSED_SECONDS, SharedProcesses
from onetool.runs.run_output import ClientChannel, RunOutput
from onetool.settings.model import Settings, needs_own_application
from onetool.settings.settings_reader import read_settings
from onetool.sources.upstream import session
from onetool.sources.upstream.relay import RELAY_KEY, Relay
from onetool.util.context import Caller, Result
from onetool.util.logging import Log

NEIGHBOR = {
    "command": sys.executable,
    "args": [str(HOSTILE.with_name("neighbor.py"))],
    "timeout": 20,
}


@dataclass
class Shared:
    """Applications with one SharedProcesses, of one user."""

    portal: BlockingPortal
    home: Path
    processes: SharedProcesses
    open_applications: dict[str, ExitStack] = field(default_factory=dict)

    def open(
        self,
        name: str,
        environment: Mapping[str, str] | None = None,
        beside: str = "",
        **project: Any,
    ) -> "Application":
        """Open an application in its own directory or that of another.

        `project` are the settings there.
        """
        directory = self.home / (beside or name)
        directory.mkdir(exist_ok=True)
        if project:
            configure(directory, json.dumps(project))
        env = {
            "HOME": str(self.home),
            "PATH": "/usr/bin:/bin",
            "ONETOOL_TRUST": "1",
            **(environment or {}),
        }
        onetool = OneTool(
            read=lambda: read_settings(env, directory, None, self.home),
            log=Log(self.home / f"{name}.log"),
            environment=env,
            shared=self.processes,
        )
        stack = self.open_applications[name] = ExitStack()
        opened = stack.enter_context(self.portal.wrap_async_context_manager(onetool))

        @tool("here.name")
        def get_name() -> str:
            """Return the name of the application."""
            return name

        opened.bus.register_tool(get_name)
        return Application(self.portal, opened, self.home / f"{name}.log")

    def close(self, name: str) -> None:
        self.open_applications.pop(name).close()

    def count(self) -> dict[str, int]:
        return self.portal.call(_describe, self.processes)


@dataclass(frozen=True)
class Application(App):
    log_file: Path

    def value_of(self, name: str, **args: Any) -> Any:
        return self.call(name, args).unwrap()

    def begin(
        self, name: str, relay: Relay | None = None, output: RunOutput | None = None, **args: Any
    ) -> "Call":
        context = self.onetool.runs.open_context(Caller(), output)
        if relay is not None:
            context = replace(context, metadata={RELAY_KEY: relay})
        return self.portal.start_task_soon(self.onetool.bus.call_tool, name, args, context)

    def wait(self, text: str, server: str = "s") -> "Call":
        """Start a call that the server has received when this returns, and does not answer."""
        progress: list[Any] = []
        output = RunOutput(
            ClientChannel(listener=lambda event, detail: progress.append((event, detail)))
        )
        calling = self.begin(f"{server}.wait", output=output, text=text)
        assert eventually(lambda: ("progress", f"{server}: {text}") in progress)
        return calling

    @property
    def log(self) -> str:
        """The log, which is complete when the application is closed."""
        return self.log_file.read_text("utf-8") if self.log_file.exists() else ""


Call = Future[Result]


async def _describe(processes: SharedProcesses) -> dict[str, int]:
    return processes.describe()


async def _create() -> SharedProcesses:
    return SharedProcesses()


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    configure(tmp_path, json.dumps({"servers": {"s": NEIGHBOR}}))
    with open_shared(tmp_path) as opened:
        yield opened


@contextmanager
def open_shared(home: Path) -> Iterator[Shared]:
    with start_blocking_portal("asyncio") as portal:
        opened = Shared(portal, home, portal.call(_create))
        try:
            yield opened
        finally:
            for name in list(opened.open_applications):
                opened.close(name)
            portal.call(opened.processes.close)
            assert opened.count() == {"zygotes": 0, "cells": 0, "servers": 0, "workers": 0}


# --- upstream servers -----------------------------------------------------------------------------


def test_applications_share_a_server_until_the_last_one_closes(shared: Shared) -> None:
    one, two = shared.open("one"), shared.open("two")
    facts = one.value_of("s.facts")
    assert two.value_of("s.facts") == facts
    waiting = two.wait("later")
    shared.close("one")
    assert shared.open("three").value_of("s.facts") == facts
    shared.close("three")
    assert two.value_of("s.finish", text="later") == "done"
    assert waiting.result().unwrap() == "later"
    with ProcessWatch([facts["pid"]]) as watch:
        shared.close("two")
        assert watch.all_ended()
    assert shared.count()["servers"] == 0


@pytest.mark.nightly
def test_ten_applications_with_eight_servers_use_eight_processes(tmp_path: Path) -> None:
    names = [f"s{number}" for number in range(8)]
    configure(
        tmp_path,
        json.dumps({"servers": {name: {**NEIGHBOR, "env": {"VARIABLE": name}} for name in names}}),
    )
    with open_shared(tmp_path) as shared:
        applications = [shared.open(f"a{number}") for number in range(10)]
        calls = [(name, each.begin(f"{name}.facts")) for each in applications for name in names]
        found = {(name, calling.result().unwrap()["pid"]) for name, calling in calls}
        assert len(found) == len({pid for _, pid in found}) == shared.count()["servers"] == 8


@pytest.mark.nightly
def test_different_definitions_are_different_processes(shared: Shared) -> None:
    others: list[dict[str, Any]] = [
        {"env": {"VARIABLE": "other"}},
        {"cwd": "project"},
        {"timeout": 19},
        {"shared": False},
        {"shared": False},
        {"stateful": True},
        {"stateful": True},
    ]
    servers = [{"s": {**NEIGHBOR, "cwd": str(shared.home), **other}} for other in others]
    applications = [shared.open(f"a{number}", servers=each) for number, each in enumerate(servers)]
    applications += [shared.open("user"), shared.open("variable", {"LANG": "other"})]
    calls = [each.begin("s.facts") for each in applications]
    assert len({calling.result().unwrap()["pid"] for calling in calls}) == len(calls)


def test_applications_share_a_connection_only_for_the_same_agent_and_account(
    tmp_path: Path,
) -> None:
    agents, accounts = ("default", "bob"), ("work", "home")
    with authorization_server() as server:
        settings = {
            "servers": {"gh": {"url": server.url, "auth": "oauth", "accounts": accounts}},
            "agents": {agent: {"permissions": ["network"]} for agent in agents},
        }
        configure(tmp_path, json.dumps(settings))
        with open_shared(tmp_path) as shared:
            one, two = shared.open("one"), shared.open("two")
            identities = [(agent, account) for agent in agents for account in accounts]
            for agent, account in identities:
                sign_in(one, user=f"{agent}-{account}", agent=agent, account=account)
            calls = [(each, *identity) for identity in identities for each in (one, two)] * 5
            with ThreadPoolExecutor(8) as threads:
                users = list(
                    threads.map(lambda call: call_as(call[0], "gh.whoami", call[1], call[2]), calls)
                )
            assert users == [f"{agent}-{account}" for _, agent, account in calls]
            assert shared.count()["servers"] == len(identities)
            other = shared.open(
                "other", servers={"gh": {"url": server.url, "auth": "oauth", "accounts": ["home"]}}
            )
            assert call_as(other, "gh.whoami") == "default-home"  # its default account
            assert call_as(one, "gh.whoami") == call_as(two, "gh.whoami") == "default-work"


def test_projects_with_equal_servers_share_them_under_their_own_names(shared: Shared) -> None:
    directory = str(shared.home)
    one = shared.open("one", servers={"left": {**NEIGHBOR, "cwd": directory}})
    two = shared.open("two", servers={"right": {**NEIGHBOR, "cwd": directory}})
    facts = one.value_of("left.facts")
    assert facts["directory"] == directory
    assert two.value_of("right.facts") == facts


def test_a_failed_start_is_reported_with_the_name_of_each_application(shared: Shared) -> None:
    broken = {
        "command": sys.executable,
        "args": ["-c", "raise SystemExit('no luck')"],
        "cwd": str(shared.home),
    }
    one, two = (
        shared.open("one", servers={"left": broken}),
        shared.open("two", servers={"right": broken}),
    )
    left, right = one.start("left.facts()"), two.start("right.facts()")
    for answer, name in ((left.result(), "left"), (right.result(), "right")):
        assert f"cannot connect to {name}" in answer.text
        assert "no luck" in answer.text


def test_a_lost_server_is_a_network_error_for_all_and_restarts_once(shared: Shared) -> None:
    one, two = shared.open("one"), shared.open("two")
    waiting, before = two.wait("never"), one.value_of("s.facts")["pid"]
    crashed = one.call("s.crash", {"text": "about one"})
    for result in (crashed, waiting.result()):
        assert isinstance(result.error, NetworkError)
        assert "about one" not in str(
            result.error
        )  # two had a call in flight, so it could be about either
    calls = [one.begin("s.facts"), two.begin("s.facts")]
    (after,) = {calling.result().unwrap()["pid"] for calling in calls}
    assert after != before


def test_output_about_a_call_is_shown_to_its_application_only(shared: Shared) -> None:
    one, two = shared.open("one"), shared.open("two")
    two.value_of("s.facts")
    assert "private" in str(one.call("s.crash", {"text": "private"}).error)
    assert eventually(lambda: "connection to s lost" in str(two.data("ot.health()")))
    assert "private" not in str(two.data("ot.health()"))
    for name in ("one", "two"):
        shared.close(name)
    assert "private" in one.log
    assert "private" not in two.log


def test_cancellation_and_progress_belong_to_one_application(shared: Shared) -> None:
    one, two = shared.open("one"), shared.open("two")
    cancelled, kept = one.wait("first"), two.wait("second")  # each got its own progress
    cancelled.cancel()
    assert eventually(lambda: two.value_of("s.facts")["cancelled"] == ["first"])
    two.value_of("s.finish", text="second")
    assert kept.result().unwrap() == "second"


def test_a_closed_application_ends_only_its_own_calls(shared: Shared) -> None:
    one, two = shared.open("one"), shared.open("two")
    ended, kept = one.wait("first"), two.wait("second")
    shared.close("one")
    assert isinstance(ended.result(timeout=5).error, NetworkError)
    assert two.value_of("s.facts")["cancelled"] == ["first"]
    two.value_of("s.finish", text="second")
    assert kept.result().unwrap() == "second"


def test_a_reload_of_one_application_leaves_the_calls_of_the_other(shared: Shared) -> None:
    one, two = shared.open("one"), shared.open("two")
    pid, kept = one.value_of("s.facts")["pid"], two.wait("second")
    configure(shared.home, json.dumps({"servers": {"s": {**NEIGHBOR, "timeout": 10}}}))
    one.portal.call(one.onetool.live_settings.reload)
    assert one.value_of("s.facts")["pid"] != pid
    two.value_of("s.finish", text="second")
    assert kept.result().unwrap() == "second"


def test_a_timeout_of_one_application_leaves_the_calls_of_the_other(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An application whose call timed out drops a server that does not respond at all; others keep
    their calls.
    """
    monkeypatch.setattr(session, "ALIVE_SECONDS", 0.3)
    configure(shared.home, json.dumps({"servers": {"s": {**NEIGHBOR, "timeout": 4}}}))
    one, two = shared.open("one"), shared.open("two")
    pid = one.value_of("s.facts")["pid"]
    assert two.value_of("s.facts")["pid"] == pid
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    try:
        lost = one.begin("s.facts")
        assert eventually(
            lambda: time.monotonic() > began + 2
        )  # it times out later than the other call
        kept = two.begin("s.facts")
        assert isinstance(lost.result().error, ToolTimeout)
        assert eventually(lambda: one.onetool.servers.upstream("s").main.state == "disconnected")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert kept.result().unwrap()["pid"] == pid
    assert one.value_of("s.facts")["pid"] != pid


def test_changed_tools_reach_all_applications(shared: Shared) -> None:
    one, two = shared.open("one"), shared.open("two")
    assert two.value_of("s.facts")
    one.value_of("s.add", text="later")
    assert eventually(lambda: two.onetool.registry.peek("s.later") is not None)


def test_a_question_never_reaches_another_application(shared: Shared) -> None:
    """Connections that relay questions and log levels are not shared, and the others relay nothing."""
    one, two, three, four = (shared.open(name) for name in ("one", "two", "three", "four"))
    questions: list[tuple[str, str]] = []

    def make_relay(name: str, **options: Any) -> Relay:
        async def ask(request: Any) -> Any:
            from mcp_types import ElicitResult

            questions.append((name, request.params.message))
            return ElicitResult(action="decline")

        async def log(_params: Any) -> None:
            pass

        return Relay(client=name, ask=ask, log=log, capabilities={"elicitation": {}}, **options)

    shared_pid = three.value_of("s.facts")["pid"]
    for each in (one, two):
        each.onetool.servers.upstream("s").publish(lambda _kind, _uri: None)
    waiting = two.begin("s.wait", make_relay("two"), text="second")
    asking = one.begin("s.ask", make_relay("one", log_level="debug"), text="Who?")
    assert asking.result().unwrap() == {"action": "decline"}
    assert questions == [("one", "Who?")]
    facts = [each.begin("s.facts", make_relay("again")).result().unwrap() for each in (one, two)]
    assert [each["level"] for each in facts] == ["debug", ""]
    assert not waiting.done()

    assert "not supported" in three.value_of("s.ask", text="Who?").lower()
    assert questions == [("one", "Who?")]
    assert len({shared_pid, four.value_of("s.facts")["pid"], *(each["pid"] for each in facts)}) == 4


def test_a_server_over_http_has_one_session(shared: Shared) -> None:
    with serve_http() as (url, sessions):
        one, two = (shared.open(name, servers={"web": {"url": url}}) for name in ("one", "two"))
        assert one.value_of("web.facts") == two.value_of("web.facts") == "here"
        assert sessions == ["initialize"]
        three = shared.open("three", servers={"web": {"url": url, "headers": {"X-Key": "another"}}})
        assert three.value_of("web.facts") == "here"
        assert sessions == ["initialize"] * 2


@contextmanager
def serve_http() -> Iterator[tuple[str, list[str]]]:
    sessions: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps(
                {"jsonrpc": "2.0", "id": message.get("id"), **respond(message)}
            ).encode()
            self.send_response(200 if "id" in message else 202)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body) if "id" in message else 0))
            self.end_headers()
            self.wfile.write(body if "id" in message else b"")

        def do_GET(self) -> None:
            self.send_error(405)

        def log_message(self, *_: object) -> None:
            pass

    def respond(message: dict[str, Any]) -> dict[str, Any]:
        match message["method"]:
            case "initialize":
                sessions.append("initialize")
                info = {
                    "serverInfo": {"name": "web", "version": "1"},
                    "capabilities": {"tools": {}},
                }
                return {"result": {"protocolVersion": message["params"]["protocolVersion"], **info}}
            case "tools/list":
                return {"result": {"tools": [{"name": "facts", "inputSchema": {"type": "object"}}]}}
            case "tools/call":
                return {"result": {"content": [{"type": "text", "text": "here"}]}}
        return {"error": {"code": -32601, "message": "no such method"}}

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", sessions
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ({}, False),
        ({"shared": False}, False),
        ({"stateful": True}, True),
        ({"stateful": True, "shared": True}, False),
        ({"stateful": True, "enabled": False}, False),
    ],
)
def test_a_stateful_server_needs_an_application_per_client(
    server: dict[str, bool], expected: bool
) -> None:
    settings = Settings.model_validate({"servers": {"s": {**NEIGHBOR, **server}}})
    assert needs_own_application(settings) is expected


# --- workers --------------------------------------------------------------------------------------

PACK = """
import os
import time
from onetool import Context

def facts() -> dict:
    return {"pid": os.getpid(), "directory": os.getcwd()}

def use(ctx: Context, text: str) -> list:
    print(f"printed {text}", flush=True)
    ctx.progress(f"progress {text}")
    ctx.log(f"logged {text}")
    answer = ctx.ask(f"question {text}", {"type": "object", "properties": {"word": {"type": "string"}}})
    return [ctx.call("here.name"), ot.call("here.name"), answer["word"]]

def wait(ctx: Context) -> str:
    ctx.progress("waiting")
    while not os.path.exists("finish"):
        time.sleep(0.01)
    return "finished"

def crash(text: str) -> None:
    os.write(2, f"{text}\\n".encode())
    os._exit(3)
"""


@pytest.fixture
def packs(shared: Shared) -> Shared:
    write_pack(shared.home / ".onetool", "pack", PACK)
    return shared


def test_calls_of_a_shared_worker_reach_their_own_application(packs: Shared) -> None:
    one, two = packs.open("one"), packs.open("two", beside="one")
    assert one.value_of("pack.facts") == two.value_of("pack.facts")
    assert packs.count()["workers"] == 1
    for each, name in ((one, "one"), (two, "two")):
        progress: list[Any] = []
        questions: list[str] = []

        async def ask(
            message: str, _schema: Any, name: str = name, to: list[str] = questions
        ) -> Any:
            to.append(message)
            return {"word": name}

        def listen(_event: str, detail: Any, to: list[Any] = progress) -> None:
            to.append(detail)

        output = RunOutput(ClientChannel(listener=listen, ask=ask))
        assert each.begin("pack.use", output=output, text=name).result().unwrap() == [
            name,
            name,
            name,
        ]
        assert (questions, progress) == ([f"question {name}"], [f"pack: progress {name}"])
    for name in ("one", "two"):
        packs.close(name)
    for each, name, other in ((one, "one", "two"), (two, "two", "one")):
        assert f"logged {name}" in each.log
        assert f"printed {name}" in each.log
        assert f"logged {other}" not in each.log
        assert f"printed {other}" not in each.log


def test_different_workers_are_different_processes(packs: Shared) -> None:
    applications = [
        packs.open("one"),
        packs.open("two"),
        packs.open("variable", {"LANG": "other"}, "one"),
        packs.open("setting", tools={"pack": {"key": "value"}}),
        packs.open("own", tools={"pack": {"shared": False}}),
        packs.open("own too", beside="own"),
    ]
    calls = [each.begin("pack.facts") for each in applications]
    assert len({calling.result().unwrap()["pid"] for calling in calls}) == len(calls)


def test_a_changed_file_starts_another_worker_and_calls_in_flight_complete(packs: Shared) -> None:
    one, two = packs.open("one"), packs.open("two", beside="one")
    before = one.value_of("pack.facts")["pid"]
    waiting = two.begin("pack.wait")
    write_pack(packs.home / ".onetool", "pack", f"{PACK}\ndef more() -> str:\n    return 'more'\n")
    assert one.value_of("pack.facts")["pid"] != before
    (packs.home / "one" / "finish").touch()
    assert waiting.result().unwrap() == "finished"
    assert two.value_of("pack.facts") == one.value_of("pack.facts")


def test_a_closed_application_leaves_the_worker_to_others(packs: Shared) -> None:
    one, two = packs.open("one"), packs.open("two", beside="one")
    pid = two.value_of("pack.facts")["pid"]
    ended, kept = one.begin("pack.wait"), two.begin("pack.wait")
    assert eventually(lambda: packs.portal.call(_count_calls, packs.processes) == 2)
    packs.close("one")
    assert isinstance(ended.result(timeout=5).error, ToolError)
    (packs.home / "one" / "finish").touch()
    assert kept.result().unwrap() == "finished"
    assert two.value_of("pack.facts")["pid"] == pid
    packs.close("two")
    assert not is_alive(pid)


async def _count_calls(processes: SharedProcesses) -> int:
    return sum(
        worker.users.is_calling(user)
        for _, worker in processes.workers._children
        for user in worker.users
    )


def test_a_crashed_worker_restarts_for_all_and_its_output_does_not_cross(packs: Shared) -> None:
    one, two = packs.open("one"), packs.open("two", beside="one")
    before = one.value_of("pack.facts")["pid"]
    waiting = two.begin("pack.wait")
    assert eventually(lambda: packs.portal.call(_count_calls, packs.processes) == 1)
    crashed = one.call("pack.crash", {"text": "private"})
    for result in (crashed, waiting.result()):
        assert "ended with status 3" in str(result.error)
        assert "private" not in str(result.error)
    assert one.value_of("pack.facts") == two.value_of("pack.facts")
    assert one.value_of("pack.facts")["pid"] != before
    assert "private" in str(one.call("pack.crash", {"text": "private"}).error)


# --- cells ----------------------------------------------------------------------------------------


def test_applications_share_a_zygote_and_end_only_their_own_runs(shared: Shared) -> None:
    one, two = shared.open("one"), shared.open("two")
    zygote = one.value("import os; os.getppid()")
    assert two.value("import os; os.getppid()") == zygote
    other = shared.open("other", execution={"memory_mb": 256})
    assert other.value("import os; os.getppid()") != zygote
    ended = one.start("import os, time; os.write(1, b'printed by one'); time.sleep(60)")
    kept = two.start("import os, time; os.write(1, b'printed by two'); time.sleep(1); 'kept'")
    assert eventually(lambda: "printed by one" in one.log and "printed by two" in two.log)
    shared.close("one")
    assert "OneTool is shutting down" in ended.result(timeout=5).text
    assert kept.result().text == "kept"
    shared.close("two")
    assert "printed by one" not in two.log
    assert "printed by two" not in one.log


def test_a_pool_without_applications_is_closed_after_a_while(shared: Shared) -> None:
    zygote = int(shared.open("one").value("import os; os.getppid()"))
    shared.close("one")
    assert shared.open("two").value("import os; os.getppid()") == str(zygote)
    shared.portal.call(advance_time, UNUSED_SECONDS)
    assert shared.count()["zygotes"] == 1
    shared.close("two")
    shared.portal.call(advance_time, UNUSED_SECONDS)
    assert eventually(lambda: not is_alive(zygote))
    assert shared.count()["zygotes"] == 0


def test_a_reload_with_other_limits_lets_current_runs_finish(shared: Shared) -> None:
    one = shared.open("one")
    running = one.start("import time; time.sleep(0.5); 'finished'")
    assert eventually(lambda: shared.count()["cells"] >= 2)
    configure(shared.home, json.dumps({"execution": {"memory_mb": 300}}))
    shared.portal.call(one.onetool.live_settings.reload)
    assert one.value("1 + 1") == "2"
    assert running.result().text == "finished"
    assert shared.count()["zygotes"] == 2
