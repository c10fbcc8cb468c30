"""One daemon for all clients of a user: which clients share an application, and that nothing
crosses between clients.

All clients are real processes of the command `onetool`. Messages are raw where ids must collide.
"""

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
import yaml
from tests.conformance_support import ERAS, fixtures
from tests.daemon_support import DaemonHome, open_daemon_home, text_of
from tests.support import RawClient, configure, eventually, get_texts
from tests.workers_support import write_pack

LAB = """
import os, time
from pathlib import Path
from onetool import Context

def variable(name: str) -> str | None:
    return os.environ.get(name)

def greeting(ctx: Context) -> str:
    return ctx.settings["greeting"]

def process() -> list[object]:
    return [os.getpid(), os.getcwd()]

def ask(question: str, ctx: Context) -> object:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    return ctx.ask(question, schema)

def log(text: str, level: str, ctx: Context) -> None:
    ctx.log(text, level)

def steps(text: str, ctx: Context) -> str:
    for number in range(3):
        ctx.progress(number, 3, text)
        time.sleep(0.12)
    return text

def wait(file: str) -> None:
    Path(file).write_text(str(os.getpid()))
    while True:
        time.sleep(0.01)

def receive() -> str:
    return "from outside"

def send(text: str) -> str:
    return text
"""
SETTINGS = {
    "agents": {
        "default": {"permissions": ["read", "write", "network"]},
        "reader": {"clients": ["reader"], "permissions": ["read"]},
        "guarded": {
            "clients": ["guarded"],
            "policy": "guarded",
            "permissions": ["read", "write", "network"],
        },
    },
    "approvals": {"wait": 0},
    "tools": {
        "lab": {
            "greeting": "hello ${LAB_NAME:-nobody}",
            "effects": {"receive": "read", "send": ["write", "external"], "*": "write"},
            "labels": {"receive": ["private", "untrusted"]},
        }
    },
}
INFO_CODE = "h = ot.health()\nh['cwd']"


def name_client(name: str, **capabilities: Any) -> dict[str, Any]:
    return {"clientInfo": {"name": name, "version": "1"}, "capabilities": capabilities}


@pytest.fixture(scope="module")
def shared() -> Iterator[DaemonHome]:
    with open_daemon_home(yaml.safe_dump(SETTINGS)) as found:
        write_pack(found.home / ".onetool", "lab", LAB)
        with found.client():  # so that no test waits for its start
            yield found


@pytest.fixture
def directory(shared: DaemonHome, request: pytest.FixtureRequest) -> Path:
    found = shared.home / re.sub(r"\W", "-", request.node.name)
    found.mkdir()
    return found


def find_applications(shared: DaemonHome, directory: Path) -> list[dict[str, Any]]:
    return [each for each in shared.applications() if each["directory"] == str(directory)]


# --- who shares an application --------------------------------------------------------------------


@pytest.mark.parametrize("mode", ERAS)
def test_clients_of_one_directory_share_a_process_and_an_application(
    shared: DaemonHome, directory: Path, mode: str
) -> None:
    with (
        shared.connect(directory, mode) as first,
        shared.connect(directory, mode, env={"OTHER": "1"}) as second,
    ):
        processes = [
            json.loads(get_texts(each.run("lab.process()"))[0])[0] for each in (first, second)
        ]
        assert processes[0] == processes[1]
        (application,) = find_applications(shared, directory)
        assert (application["clients"], application["workers"]) == (2, ["lab"])
        status = shared.status()
        assert status["pid"] == shared.daemon
        assert {first.server, second.server} <= {client["pid"] for client in status["clients"]}
    assert eventually(lambda: not find_applications(shared, directory), 5)


@pytest.mark.parametrize(
    "other",
    [
        {"arguments": ["--config", "other.yaml"]},
        {"arguments": ["--expose", "machine.now"]},
        {"arguments": ["serve", "--expose", "machine.now"]},
        {"env": {"LAB_NAME": "Ada"}},
        {"env": {"ONETOOL_LOG_LEVEL": "DEBUG"}},
        {"env": {"PATH": "/usr/bin:/bin"}},
    ],
    ids=["config", "expose", "serve", "named variable", "variable of OneTool", "PATH"],
)
def test_clients_that_differ_have_two_applications_in_one_process(
    shared: DaemonHome, directory: Path, other: dict[str, Any]
) -> None:
    (directory / "other.yaml").write_text("aliases: {moment: machine.now}\n", encoding="utf-8")
    with shared.connect(directory) as first, shared.connect(directory, **other) as second:
        for client in (first, second):
            assert get_texts(client.run("1 + 1")) == ["2"]
        assert [each["clients"] for each in find_applications(shared, directory)] == [1, 1]
        assert len({each["digest"] for each in find_applications(shared, directory)}) == (
            2 if "env" in other else 1
        )
        greetings = [get_texts(client.run("lab.greeting()"))[0] for client in (first, second)]
        assert greetings == [
            "hello nobody",
            f"hello {other.get('env', {}).get('LAB_NAME', 'nobody')}",
        ]
        names = [{tool.name for tool in client.tools()} for client in (first, second)]
        is_exposed = "--expose" in other.get("arguments", [])
        assert (names[0], len(names[1])) == ({"run"}, 1 + is_exposed)
        assert second.run("moment()").is_error is ("--config" not in other.get("arguments", []))
        assert first.run("moment()").is_error


def test_the_same_directory_by_another_path_is_the_same_application(
    shared: DaemonHome, directory: Path
) -> None:
    (directory / "link").symlink_to(".")
    with shared.client(directory), shared.client(directory / "link"):
        assert [each["clients"] for each in find_applications(shared, directory)] == [2]


@pytest.mark.nightly
def test_an_application_that_does_not_share_is_served_by_its_client(
    shared: DaemonHome, directory: Path
) -> None:
    (directory / "own.yaml").write_text("daemon: {shared: false}\n", encoding="utf-8")
    with shared.client(directory, "--config", "own.yaml") as client:
        assert text_of(client.run("1 + 1")) == "2"
        assert not any(each["pid"] == client.process.pid for each in shared.status()["clients"])
    with (
        shared.client(directory, ONETOOL_STANDALONE="1") as client,
        shared.client(directory, "--standalone") as other,
    ):
        assert text_of(client.run("1 + 1")) == text_of(other.run("1 + 1")) == "2"
        served = {each["pid"] for each in shared.status()["clients"]}
        assert served.isdisjoint({client.process.pid, other.process.pid})


# --- environment variables ------------------------------------------------------------------------


def test_the_daemon_has_no_variables_of_its_clients(shared: DaemonHome, directory: Path) -> None:
    secrets: dict[str, Any] = {
        "AWS_SECRET_ACCESS_KEY": "canary-" + os.urandom(8).hex(),
        "LAB_NAME": "named-" + os.urandom(8).hex(),
    }
    with shared.client(directory, **secrets) as client:
        assert text_of(client.run("lab.greeting()")) == f"hello {secrets['LAB_NAME']}"
        assert (
            text_of(client.run("[lab.variable('AWS_SECRET_ACCESS_KEY'), lab.variable('LAB_NAME')]"))
            == "[null,null]"
        )
        environ = Path(f"/proc/{shared.daemon}/environ").read_bytes()
        assert {line.partition(b"=")[0] for line in environ.split(b"\0") if line} <= {
            *(
                b"HOME",
                b"LANG",
                b"LC_ALL",
                b"TMPDIR",
                b"XDG_RUNTIME_DIR",
                b"USER",
                b"LOGNAME",
                b"PATH",
                b"LC_CTYPE",
            )
        }
        assert Path(f"/proc/{shared.daemon}/cwd").readlink() == Path("/")
        assert secrets["LAB_NAME"].encode() in read_memory(shared.daemon)
        # no string has it; the buffer that received it may still be free memory
        assert f"{secrets['AWS_SECRET_ACCESS_KEY']}\0".encode() not in read_memory(shared.daemon)
    files = {
        file: file.read_bytes() for file in (shared.home / ".onetool").rglob("*") if file.is_file()
    }
    assert not any(
        secrets["AWS_SECRET_ACCESS_KEY"].encode() in content for content in files.values()
    )
    named = [
        file.name for file, content in files.items() if secrets["LAB_NAME"].encode() in content
    ]
    assert all(name.startswith("stats.db") for name in named), (
        "a tool returned it, so it is in the history of runs"
    )


def read_memory(process: int) -> bytes:
    """Return all private writable memory of a process."""
    found = bytearray()
    with Path(f"/proc/{process}/maps").open(encoding="ascii", errors="replace") as maps:
        ranges = [line.split()[0] for line in maps if line.split()[1].startswith("rw-p")]
    with Path(f"/proc/{process}/mem").open("rb", 0) as memory:
        for each in ranges:
            start, end = (int(part, 16) for part in each.split("-"))
            try:
                memory.seek(start)
                found += memory.read(end - start)
            except OSError:
                continue
    return bytes(found)


# --- nothing crosses ------------------------------------------------------------------------------


def test_each_client_works_in_its_own_directory(shared: DaemonHome, directory: Path) -> None:
    clients = []
    with ExitStack() as stack:
        for name in ("one", "two"):
            place = directory / name
            place.mkdir()
            (place / "note.txt").write_text(name, encoding="utf-8")
            (place / "settings.yaml").write_text(
                f"projects: {{here: ./{name}-project}}\n", encoding="utf-8"
            )
            clients.append(stack.enter_context(shared.client(place, "--config", "settings.yaml")))
        for name, client in zip(("one", "two"), clients, strict=True):
            assert text_of(client.run(INFO_CODE)) == str(directory / name)
            assert name in text_of(client.run("fs.read('note.txt')"))
            assert text_of(client.run("str(proj.here)")).endswith(f"/{name}/{name}-project")
            assert json.loads(text_of(client.run("lab.process()")))[1] == str(directory / name)
            other = "two" if name == "one" else "one"
            assert client.run(f"fs.read({str(directory / other / 'note.txt')!r})")["result"][
                "isError"
            ]
            assert not client.run(f"fs.write('{name}.txt', 'x')")["result"]["isError"]
    assert sorted(path.name for path in directory.glob("*/*.txt")) == [
        "note.txt",
        "note.txt",
        "one.txt",
        "two.txt",
    ]


def test_trust_belongs_to_a_directory_and_the_variable_to_a_client(
    shared: DaemonHome, directory: Path
) -> None:
    with ExitStack() as stack:
        for name in ("a", "b"):
            (directory / name).mkdir()
            configure(directory / name, "aliases: {moment: machine.now}\n")
        plain = stack.enter_context(shared.client(directory / "a"))
        trusting = stack.enter_context(shared.client(directory / "a", ONETOOL_TRUST="1"))
        other = stack.enter_context(shared.client(directory / "b"))
        again = stack.enter_context(shared.client(directory / "a"))
        results = [
            each.run("moment()")["result"]["isError"] for each in (plain, trusting, other, again)
        ]
    assert results == [True, False, True, True]


def test_each_client_has_the_agent_of_its_name(shared: DaemonHome, directory: Path) -> None:
    write = "fs.write('written.txt', 'x')"
    with (
        shared.client(directory, hello=name_client("reader")) as reader,
        shared.client(directory, hello=name_client("writer")) as writer,
    ):
        assert [each["clients"] for each in find_applications(shared, directory)] == [2]
        for _ in range(2):
            assert "PermissionDenied" in text_of(reader.run(write))
            assert not writer.run(write)["result"]["isError"]


def test_labels_belong_to_a_client(shared: DaemonHome, directory: Path) -> None:
    hello = name_client("guarded")
    with (
        shared.client(directory, hello=hello) as first,
        shared.client(directory, hello=hello) as second,
    ):
        assert text_of(first.run("lab.receive()")) == "from outside"
        assert text_of(first.run("lab.send(text='x')")).startswith("paused")
        assert text_of(second.run("lab.send(text='x')")) == "x"


def start_call(client: RawClient, ident: object, code: str, **meta: object) -> None:
    params = {"name": "run", "arguments": {"command": code}, "_meta": meta}
    client.send({"jsonrpc": "2.0", "id": ident, "method": "tools/call", "params": params})


def receive_until(client: RawClient, ident: object) -> list[dict[str, Any]]:
    """Return the messages until the response, which is the last."""
    messages = [client.receive()]
    while "method" in messages[-1] or messages[-1].get("id") != ident:
        messages.append(client.receive())
    return messages


def test_progress_output_and_results_reach_the_client_that_asked(
    shared: DaemonHome, directory: Path
) -> None:
    """Both clients use the same request id and progress token at the same time."""
    with shared.client(directory) as first, shared.client(directory) as second:
        for name, client in (("first", first), ("second", second)):
            start_call(client, 7, f"print('{name}')\nlab.steps(text='{name}')", progressToken=1)
        for name, other, client in (("first", "second", first), ("second", "first", second)):
            messages = receive_until(client, 7)
            assert text_of(messages[-1]) == f"{name}\n\n{name}"
            assert any(name in json.dumps(each) for each in messages[:-1])
            assert other not in json.dumps(messages)


def test_a_cancellation_ends_only_the_request_of_its_client(
    shared: DaemonHome, directory: Path
) -> None:
    with shared.client(directory) as first, shared.client(directory) as second:
        files = [directory / name for name in ("first", "second")]
        for client, file in zip((first, second), files, strict=True):
            code = f"import time\nfs.write({file.name!r}, 'x')\ntime.sleep(0.5)\n'finished'"
            start_call(client, "same", code)
        assert eventually(lambda: all(file.exists() for file in files))
        first.send(
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "same"}}
        )
        assert text_of(receive_until(second, "same")[-1]) == "finished"
        assert text_of(first.run("1 + 1")) == "2"


def test_log_messages_follow_the_level_of_their_client(shared: DaemonHome, directory: Path) -> None:
    with (
        shared.client(directory) as quiet,
        shared.client(directory) as verbose,
        shared.client(directory) as silent,
    ):
        assert "result" in quiet.request("logging/setLevel", {"level": "error"})
        assert "result" in verbose.request("logging/setLevel", {"level": "debug"})
        heard = []
        for name, client in (("quiet", quiet), ("verbose", verbose), ("silent", silent)):
            start_call(
                client,
                5,
                f"lab.log(text='{name} detail', level='info')\nlab.log(text='{name} problem',"
                " level='error')",
            )
            messages = receive_until(client, 5)[:-1]
            heard.append(
                [
                    each["params"]["data"]
                    for each in messages
                    if each["method"] == "notifications/message"
                ]
            )
        assert [len(each) for each in heard[:2]] == [1, 2]
        assert all("quiet problem" in str(each) for each in heard[0])
        assert all("verbose" in str(each) for each in heard[1])
        assert all("silent" in str(each) for each in heard[2])


@pytest.mark.parametrize("mode", ERAS)
def test_questions_reach_the_person_of_their_client(
    shared: DaemonHome, directory: Path, mode: str
) -> None:
    def answering(name: str, asked: list[str]) -> Any:
        async def answer(_context: Any, params: Any) -> types.ElicitResult:
            asked.append(params.message)
            return types.ElicitResult(action="accept", content={"name": name})

        return answer

    heard: dict[str, list[str]] = {"Ada": [], "Bob": []}
    with ExitStack() as stack:
        clients = {
            name: stack.enter_context(
                shared.connect(directory, mode, elicitation_callback=answering(name, asked))
            )
            for name, asked in heard.items()
        }
        runs = {
            name: client.start(f"lab.ask(question='who is {name}')")
            for name, client in clients.items()
        }
        for name, run in runs.items():
            assert json.loads(get_texts(run.result(30))[0]) == {"name": name}
        nobody = stack.enter_context(shared.connect(directory, mode))
        assert "CannotAsk" in get_texts(nobody.run("lab.ask(question='who')"))[0]
    assert all(len(asked) == 1 and f"who is {name}" in asked[0] for name, asked in heard.items())


@pytest.mark.parametrize("mode", ERAS)
def test_roots_are_those_of_the_client(shared: DaemonHome, directory: Path, mode: str) -> None:
    settings = {"servers": {"fixtures": fixtures("legacy" if mode == "legacy" else "modern")}}
    (directory / "settings.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")

    def rooted(name: str) -> Any:
        async def answer(_context: Any) -> types.ListRootsResult:
            return types.ListRootsResult(
                roots=[types.Root.model_validate({"uri": f"file:///home/{name}"})]
            )

        return answer

    arguments = ["--config", "settings.yaml", "--expose", "fixtures"]
    with (
        shared.connect(directory, mode, arguments, list_roots_callback=rooted("ada")) as first,
        shared.connect(directory, mode, arguments, list_roots_callback=rooted("bob")) as second,
    ):
        for _ in range(2):
            for name, client in (("ada", first), ("bob", second)):
                assert get_texts(client.call("test_roots", {})) == [f"['file:///home/{name}']"]


def test_statistics_count_each_client_as_a_session(shared: DaemonHome, directory: Path) -> None:
    def count() -> int:
        with shared.client(directory) as client:
            found: int = json.loads(text_of(client.run("ot.stats()['savings']['sessions']")))
            return found

    before = count()
    with shared.client(directory) as first, shared.client(directory) as second:
        for client in (first, second, first):
            client.request("tools/list")
        time.sleep(0.7)
    assert eventually(lambda: count() == before + 2, 10)
