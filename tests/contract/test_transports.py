"""The same calls over every transport have the same value or the same error."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.contract.calls import SETTINGS, TRANSPORTS, Call
from tests.rest_support import ServedApp, draft, serve_app
from tests.support import App, Connection, configure, connect, get_texts, open_app, run_cli

from onetool.errors import describe
from onetool.util.context import Result
from onetool_child.errors import TREE

Outcome = dict[str, Any]
Transport = Callable[[Call], Outcome]

# Code that returns the outcome of each call, value or error.
CODE = """
def outcome(name, args):
    try:
        return {{"value": ot.call(name, **args)}}
    except Exception as error:
        kind = error.type if isinstance(error, ToolError) else "execution_error"
        fields = error.fields if isinstance(error, ToolError) else {{}}
        return {{"error": {{**fields, "type": kind, "class": type(error).__name__, "message": str(error)}}}}

[outcome(name, args) for name, args in {calls!r}]
"""
BROKEN = "agents: {default: {permissions: [], sandbx: {}}}"
ABBREVIATED = {"p", "i"}
FAILING = [call for call in TRANSPORTS if call.error]
STORED = [
    call for call in TRANSPORTS if call.error != "not_found"
]  # a stored tool refers to an existing tool
CLASS_OF = {cls.type: name for name, cls in TREE.items()}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    configure(home, json.dumps(SETTINGS))
    return home


@pytest.fixture(scope="module")
def broken_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("broken")
    configure(home, BROKEN)
    return home


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with open_app(SETTINGS) as app:
        yield app


@pytest.fixture(scope="module")
def clients(home: Path) -> Iterator[Callable[[str], Connection]]:
    """Return a function that connects a client once per mode."""
    known: dict[str, Connection] = {}
    with ExitStack() as stack:

        def client(mode: str) -> Connection:
            if mode not in known:
                known[mode] = stack.enter_context(connect(home, mode))
            return known[mode]

        yield client


def get_code(*calls: Call) -> str:
    return CODE.format(calls=[(call.name, call.args) for call in calls])


def get_outcome(result: Result) -> Outcome:
    return {"value": result.value} if result.error is None else {"error": describe(result.error)}


@pytest.fixture
def bus(app: App) -> Transport:
    return lambda call: get_outcome(app.call(call.name, call.args))


@pytest.fixture
def run(app: App) -> Transport:
    return lambda call: parse_outcome(app.value(get_code(call)))


@pytest.fixture
def call_command(home: Path) -> Transport:
    def transport(call: Call) -> Outcome:
        arguments = [f"{key}={json.dumps(value)}" for key, value in call.args.items()]
        process = run_cli(home, "call", "--json", call.name, *arguments)
        printed = json.loads(process.stdout)
        assert (process.returncode, process.stderr) == (int(call.error is not None), "")
        if not process.returncode:
            return {"value": printed}
        assert printed.pop("ok") is False
        outcome: Outcome = printed
        return outcome

    return transport


@pytest.fixture(scope="module")
def run_command(home: Path) -> Transport:
    """Make all calls in one process: starting a process for each call is slow."""
    process = run_cli(home, "run", get_code(*TRANSPORTS))
    assert (process.returncode, process.stderr) == (0, "")
    outcomes = dict(zip(map(str, TRANSPORTS), json.loads(process.stdout), strict=True))
    return lambda call: outcomes[str(call)]


@pytest.fixture
def mcp(clients: Callable[[str], Connection]) -> Transport:
    return lambda call: call_over_mcp(clients("auto"), call)


@pytest.fixture
def mcp_legacy(clients: Callable[[str], Connection]) -> Transport:
    return lambda call: call_over_mcp(clients("legacy"), call)


def call_over_mcp(client: Connection, call: Call) -> Outcome:
    result = client.run(get_code(call))
    assert not result.is_error
    return parse_outcome(get_texts(result)[-1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApp]:
    with serve_app(tmp_path_factory.mktemp("served"), SETTINGS) as server:
        yield server


@pytest.fixture
def api(server: ServedApp) -> Transport:
    return lambda call: call_over_http(server, f"/api/tools/{call.name}/call", call)


@pytest.fixture(scope="module")
def stored(server: ServedApp) -> Transport:
    """Call stored tools that refer to the called tools."""
    bundle = server.rest.bundle("kept")
    names = sorted({call.name for call in STORED})
    paths = {
        name: server.rest.tool(bundle, name.replace(".", "-"), **draft(name)) for name in names
    }
    return lambda call: call_over_http(server, f"{paths[call.name]}/invoke", call)


def call_over_http(server: ServedApp, path: str, call: Call) -> Outcome:
    """Call over HTTP and convert the status and the body to an outcome.

    HTTP errors do not name an error class.
    """
    response = server.rest.send("POST", path, {"args": call.args})
    body = response.json()
    if body.get("ok"):
        return {"value": body["value"]}
    message = body["error"]
    if response.status_code >= 400:
        message = {**message["details"], "message": message["message"]}
    return {"error": {**message, "class": CLASS_OF[message["type"]]}}


def parse_outcome(text: str) -> Outcome:
    outcome: Outcome
    (outcome,) = json.loads(text)
    return outcome


@pytest.fixture(params=["bus", "run", "call_command", "run_command", "mcp", "mcp_legacy"])
def transport(request: pytest.FixtureRequest) -> Transport:
    chosen: Transport = request.getfixturevalue(request.param)
    return chosen


@pytest.mark.slow
@pytest.mark.parametrize("call", TRANSPORTS, ids=str)
def test_a_call_has_the_same_outcome_on_every_transport(
    transport: Transport, bus: Transport, call: Call
) -> None:
    outcome = transport(call)
    if call.error is None:
        assert outcome == {"value": call.value}
    else:
        assert outcome["error"]["type"] == call.error
    assert outcome == bus(call)


@pytest.mark.parametrize("call", STORED, ids=str)
def test_a_call_over_http_has_the_same_outcome(
    api: Transport, stored: Transport, bus: Transport, call: Call
) -> None:
    if ABBREVIATED & call.args.keys():  # REST takes arguments as they are sent
        assert api(call)["error"]["type"] == "validation_error"
        assert stored(call) == bus(
            call
        )  # a stored tool of type python calls the function as code does
        return
    assert api(call) == stored(call) == bus(call)


@pytest.mark.parametrize("call", [call for call in TRANSPORTS if call not in STORED], ids=str)
def test_an_unknown_tool_is_reported_the_same_over_http(
    server: ServedApp, bus: Transport, call: Call
) -> None:
    answer = server.rest.send("POST", f"/api/tools/{call.name}/call", {"args": call.args})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    message, expected = answer.json()["error"]["message"], bus(call)["error"]["message"]
    assert (
        message.partition(" Packs: ")[0] == expected.partition(" Packs: ")[0]
    )  # the server has one more pack


@pytest.mark.parametrize("call", FAILING, ids=str)
def test_an_uncaught_error_is_shown_the_same_on_every_transport(
    app: App, clients: Callable[[str], Connection], bus: Transport, call: Call
) -> None:
    code = f"ot.call({call.name!r}, **{call.args!r})"
    error = bus(call)["error"]
    answer, result = app.run(code), clients("auto").run(code)
    assert answer.is_error
    assert result.is_error
    assert answer.error == call.error
    assert answer.text.startswith(f"{error['class']}: {error['message']}\n  line 1: ")
    assert get_texts(result) == list(answer.blocks)


@pytest.mark.slow
def test_the_command_line_prints_the_output_that_a_client_receives(
    home: Path, app: App, clients: Callable[[str], Connection]
) -> None:
    code = "print('first')\nprint('é')\nx = {'n': [1, None]}\nx"
    process = run_cli(home, "run", code)
    assert process.stdout == app.run(code).text + "\n"
    assert app.run(code).blocks == tuple(get_texts(clients("auto").run(code)))
    assert json.loads(run_cli(home, "run", "--json", code).stdout) == {
        "blocks": ["first\né\n", '{"n":[1,null]}'],
        "is_error": False,
    }


@pytest.mark.slow
def test_a_failed_run_has_exit_status_one(home: Path) -> None:
    process = run_cli(home, "run", "x = 1\nx / 0")
    assert process.returncode == 1
    assert process.stdout == "ZeroDivisionError: division by zero\n  line 2: x / 0\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("for n in range(2): print(n)", "0\n1\n\n"),
        ("```python\n[True]\n```", "- true\n"),
        ("    x = 1\n    [x]", "- 1\n"),
        ("x = 0\n1 / x", "ZeroDivisionError: division by zero\n  line 2: 1 / x\n"),
        ("__format__ = 'json'\n[None]", "[null]\n"),
    ],
)
def test_the_command_line_applies_the_output_format(home: Path, code: str, output: str) -> None:
    assert run_cli(home, "run", "--format", "yml_h", code).stdout == output


@pytest.mark.slow
def test_code_is_read_from_a_file(home: Path) -> None:
    (home / "code.py").write_text("'é' * 2", encoding="utf-8")
    assert run_cli(home, "run", "-f", "code.py").stdout == "éé\n"
    missing = run_cli(home, "run", "-f", "nowhere.py")
    assert missing.returncode == 1
    assert "nowhere.py" in missing.stderr


# --- invalid settings -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["run", "machine.now()"],
        ["call", "machine.now"],
        ["call", "machine.cpu"],  # a tool that the broken file intends to forbid
    ],
    ids=" ".join,
)
def test_the_command_line_rejects_invalid_settings(broken_home: Path, command: list[str]) -> None:
    process = run_cli(broken_home, *command)
    assert process.returncode == 1
    assert "sandbx" in process.stdout + process.stderr
    assert "did you mean sandbox?" in process.stdout + process.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [["run", "ot.health()"], ["call", "ot.health"], ["doctor"]], ids=" ".join
)
def test_the_command_line_reports_invalid_settings(broken_home: Path, command: list[str]) -> None:
    process = run_cli(broken_home, *command)
    assert "sandbx" in process.stdout + process.stderr
