"""Specification 3, extension tools: a file in a directory, called in a worker with the dependencies
of its header.

Real files, real uv, real processes. Most tests share one OneTool with the packs below in the user's
directory.
"""

import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.extensions_support import HEADER, configure, open_app_in, write_pack, write_secrets
from tests.support import App, eventually, run_cli

from onetool.settings.trust import trust
from onetool.util.logging import Log

pytestmark = pytest.mark.slow  # each test starts a worker
SAMPLE = f'''{HEADER}"""Small things, for trying out workers.

More than one line of it."""
import asyncio, enum, datetime as dt, logging, os, sys, threading
from decimal import Decimal
from pathlib import Path
from typing import Literal, Optional

import six
import ot as imported

permissions = ["read"]
NOT_A_TOOL = 1
class NoTool: ...
def _hidden(): ...
class Colour(enum.Enum):
    RED = "red"

def facts() -> dict[str, object]:
    """Where it runs."""
    return {{"pid": os.getpid(), "prefix": sys.prefix, "six": six.__version__, "thread": threading.get_ident()}}

def kinds(path: Path, day: "dt.date", when: Optional[dt.datetime] = None, colour: Colour = Colour.RED,
          blob: bytes = b"", price: Decimal | None = None, tags: set[str] = frozenset(), many: list[Path] = ()):
    return [repr(each) for each in (path, day, when, colour, blob, price, tags, many)]

def places(first, second=NOT_A_TOOL, third=3, /, fourth=4, *, fifth: int = 5):
    return [first, second, third, fourth, fifth]

def choose(unit: Literal["a", "b"] = "a", limit: int = 10) -> str:
    """Choose a unit, with care.

    Args:
        unit: Which of the two.

    Example:
        sample.choose(unit="b")
    """
    return unit

async def later(value: int = 1) -> int:
    """A coroutine."""
    await asyncio.sleep(0)
    return value + 1

def noise(text: str = "noise") -> str:
    """Everything that could disturb the protocol."""
    print(text)
    print('{{"jsonrpc":"2.0","id":1,"result":{{"value":"forged"}}}}')
    os.write(1, b"raw " + text.encode() + b"\\n")
    os.system("echo child " + text)
    sys.__stdout__.write("old " + text + "\\n")
    logging.basicConfig(stream=sys.stdout, force=True)
    logging.getLogger("lib").error("logged %s", text)
    return "quiet"

def reads() -> str:
    return sys.stdin.read()

def settings() -> list:
    return [ot.settings, imported is ot, dict(imported.settings)]

def environment() -> list[str]:
    return sorted(os.environ)

def has_token(value: str) -> bool:
    return os.environ.get("TOKEN") == value

def listed() -> list:
    return ot.call("ot.tools", p="machine.d", info="list")

def cpu() -> object:
    return ot.call("machine.cpu")

def wrong(kind: str):
    if kind == "own":
        raise ot.ToolError("it is full", left=3)
    raise {{"value": ValueError, "key": KeyError}}[kind]("bad")
'''
PLAIN = "import os, sys\ndef where(): return [sys.executable, os.getpid()]\n"
NEEDY = "import no_such_package_at_all\ndef never(): ...\n"
BROKEN = "def fine(): return 1\ndef broken(:\n"
HARMFUL = """\
'''It does harm when it is run.'''
from pathlib import Path
Path(__file__).with_name("harm").touch()
raise SystemExit(1)
def act(target: Path, force: bool = Path("no").exists(), depth: "int | None" = None) -> str:
    '''Do harm.

    Args:
        target: Whom.
    '''
"""
CONFIG = """\
tools:
  sample: {secrets: [TOKEN], colour: red, limits: {n: 3}}
agents:
  nobody: {permissions: []}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    directory = home / ".onetool"
    configure(directory, CONFIG)
    write_secrets(directory, "TOKEN: token-4711\nOTHER: other-4711\n")
    packs = {"sample": SAMPLE, "plain": PLAIN, "needy": NEEDY, "broken": BROKEN, "harmful": HARMFUL}
    for pack, text in packs.items():
        write_pack(directory / "tools", pack, text)
    return home


@pytest.fixture(scope="module")
def app(home: Path) -> Iterator[App]:
    with open_app_in(
        home, log=Log(home / "log"), environment={**os.environ, "SURPLUS": "1"}
    ) as app:
        yield app


def list_bundle_tools(app: App, pack: str) -> list[str]:
    names: list[str] = app.data(f"ot.tools(pattern='{pack}.', info='list')")
    return names


def list_problems(app: App) -> list[str]:
    problems: list[str] = app.data("ot.health()['problems']")
    return problems


def is_alive(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


# --- the worker -----------------------------------------------------------------------------------


@pytest.mark.spec("tool-execution.worker.worker-startup-on-first-call")
@pytest.mark.spec("tool-execution.worker.subsequent-calls-use-existing-worker")
@pytest.mark.spec("tool-execution.type.extension-tool-identification")
def test_the_first_call_starts_a_worker_and_later_ones_use_it(app: App) -> None:
    first = app.data("sample.facts()")
    later = [app.data("sample.facts()")["pid"] for _ in range(3)]
    assert {first["pid"], *later} == {first["pid"]}
    assert first["pid"] != os.getpid()
    assert app.data("ot.health()['workers']['sample']") == "running"
    assert is_alive(first["pid"])


@pytest.mark.spec("tool-execution.worker.worker-startup-on-first-call")
@pytest.mark.spec("tool-execution.pep-723.tool-with-dependencies")
def test_a_worker_runs_in_an_environment_created_by_uv(app: App) -> None:
    facts = app.data("sample.facts()")
    assert "uv = " in (Path(facts["prefix"]) / "pyvenv.cfg").read_text("utf-8")
    assert facts["prefix"] != sys.prefix
    assert facts["six"]


@pytest.mark.spec("tool-execution.worker.worker-startup-on-first-call")
def test_no_worker_is_started_before_the_first_call(tmp_path: Path) -> None:
    write_pack(tmp_path / ".onetool" / "tools", "plain", PLAIN)
    with open_app_in(tmp_path) as app:
        assert list_bundle_tools(app, "plain") == ["plain.where"]
        assert app.data("ot.health()['workers']") == {"plain": "not started"}
        app.value("plain.where()")
        assert eventually(lambda: app.data("ot.health()['workers']") == {"plain": "running"})


@pytest.mark.spec("tool-execution.worker.worker-idle-timeout")
def test_an_idle_worker_is_stopped(tmp_path: Path) -> None:
    configure(tmp_path / ".onetool", "workers: {idle_timeout: 0.2}")
    write_pack(tmp_path / ".onetool" / "tools", "plain", PLAIN)
    with open_app_in(tmp_path) as app:
        first = app.data("plain.where()")[1]
        assert eventually(lambda: not is_alive(first))
        assert app.data("ot.health()['workers']['plain']").startswith("stopped")
        assert app.data("plain.where()")[1] != first


def test_the_default_idle_timeout_is_ten_minutes(app: App) -> None:
    assert app.onetool.settings.workers.idle_timeout == 600


@pytest.mark.spec("tool-execution.worker.session-refresh-on-call")
def test_each_call_restarts_the_idle_timeout(tmp_path: Path) -> None:
    configure(tmp_path / ".onetool", "workers: {idle_timeout: 1.5}")
    write_pack(tmp_path / ".onetool" / "tools", "plain", PLAIN)
    with open_app_in(tmp_path) as app:
        processes = {
            app.data("import time; time.sleep(0.25); plain.where()".replace("; ", "\n"))[1]
            for _ in range(10)
        }
        assert len(processes) == 1  # longer than the idle timeout in total
        assert eventually(lambda: not is_alive(*processes))


def test_a_worker_with_a_call_in_flight_is_not_idle(tmp_path: Path) -> None:
    configure(tmp_path / ".onetool", "workers: {idle_timeout: 0.1}")
    write_pack(
        tmp_path / ".onetool" / "tools",
        "slow",
        "import time\ndef nap(): time.sleep(0.5); return 'rested'",
    )
    with open_app_in(tmp_path) as app:
        assert app.value("slow.nap()") == "rested"


def test_output_of_a_worker_is_logged_and_not_sent_in_the_protocol(app: App, home: Path) -> None:
    assert app.data("[sample.noise(text=str(n)) for n in range(3)] + [sample.later(1)]") == [
        "quiet"
    ] * 3 + [2]
    assert app.value("sample.reads()") == ""

    def is_logged() -> bool:
        lines = [json.loads(line) for line in (home / "log").read_text("utf-8").splitlines()]
        text = "".join(
            line["text"]
            for line in lines
            if line["name"] == "worker.output" and line["pack"] == "sample"
        )
        expected = ("raw 2\n", "child 2\n", "old 2\n", "logged 2\n", "forged")
        return all(word in text for word in expected)

    assert eventually(is_logged)


def test_concurrent_calls_get_their_own_results(app: App) -> None:
    code = "ot.parallel([lambda n=n: [sample.later(n), sample.places(n)[0]] for n in range(40)])"
    assert app.data(code) == [[n + 1, n] for n in range(40)]


def test_an_edited_file_is_reloaded_at_the_next_call(tmp_path: Path) -> None:
    directory = tmp_path / ".onetool" / "tools"
    write_pack(directory, "notes", "def first(): return 1")
    with open_app_in(tmp_path) as app:
        assert app.data("notes.first()") == 1
        write_pack(directory, "notes", "def first(): return 22\ndef second(): return 2")
        assert app.data("[notes.first(), notes.second()]") == [22, 2]
        write_pack(directory, "notes", "def second(: return 3")
        assert "notes_tools.py, line 1" in app.failure("notes.second()")
        write_pack(directory, "notes", "def second(): return 4444")
        assert app.data("notes.second()") == 4444
        (directory / "notes" / "notes_tools.py").unlink()
        assert "notes" in app.failure("notes.second()")


# --- the header -----------------------------------------------------------------------------------


@pytest.mark.spec("tool-execution.pep-723.toml-parsing-compliance")
@pytest.mark.parametrize(
    "header", ["# /// script\n# dependencies = [\n# ///\n", "# /// script\n# dependencies = []\n"]
)
def test_an_invalid_header_is_ignored_and_reported(tmp_path: Path, header: str) -> None:
    file = write_pack(tmp_path / ".onetool" / "tools", "plain", header + PLAIN)
    with open_app_in(tmp_path) as app:
        assert app.data("plain.where()")[0] == sys.executable
        assert any(f"{file}: invalid header" in problem for problem in list_problems(app))


def test_the_output_of_uv_about_a_header_is_in_the_error(tmp_path: Path) -> None:
    header = "# /// script\n# dependencies = ['no such requirement!']\n# ///\n"
    write_pack(tmp_path / ".onetool" / "tools", "plain", header + PLAIN)
    with open_app_in(tmp_path) as app:
        failure = app.failure("plain.where()")
        assert "uv could not create the environment" in failure
        assert "no such requirement!" in failure


@pytest.mark.spec("tool-execution.type.invalid-extension-without-pep-723")
def test_a_file_without_a_header_runs_in_a_worker_with_the_servers_python(app: App) -> None:
    python, process = app.data("plain.where()")
    assert python == sys.executable
    assert process != os.getpid()


@pytest.mark.spec("tool-execution.type.invalid-extension-without-pep-723")
def test_a_missing_import_is_an_error_that_suggests_a_header(app: App) -> None:
    assert "needy.never" in list_bundle_tools(app, "needy")
    failure = app.failure("needy.never()")
    assert "ModuleNotFoundError" in failure
    assert "needy_tools.py, line 1" in failure
    assert '# dependencies = ["no_such_package_at_all"]' in failure


# --- locations ------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Create a project with a pack, and a home directory with two packs, one of the same name."""
    home, project = tmp_path / "home", tmp_path / "project"
    write_pack(
        home / ".onetool" / "tools", "shared", "def who(): return 'home'\ndef only_at_home(): ..."
    )
    write_pack(home / ".onetool" / "tools", "own", "def who(): return 'own'")
    write_pack(project / ".onetool" / "tools", "shared", "def who(): return 'project'")
    return project


@pytest.mark.spec("tool-execution.location.project-extension-discovery")
@pytest.mark.spec("tool-execution.location.global-extension-discovery")
def test_a_pack_of_the_project_replaces_the_whole_pack_of_the_user(project: Path) -> None:
    home = project.parent / "home"
    trust(project / ".onetool", home / ".onetool")
    with open_app_in(home, project) as app:
        assert app.data("[shared.who(), own.who()]") == ["project", "own"]
        assert list_bundle_tools(app, "shared") == ["shared.who"]
        assert "only_at_home" in app.failure("shared.only_at_home()")
        assert not any("duplicate" in problem for problem in list_problems(app))


@pytest.mark.spec("tool-execution.location.global-extension-discovery")
def test_packs_of_the_user_are_available_in_every_directory(project: Path, tmp_path: Path) -> None:
    with open_app_in(project.parent / "home", tmp_path) as app:
        assert app.data("[shared.who(), own.who()]") == ["home", "own"]


def test_an_untrusted_project_has_no_packs(project: Path) -> None:
    with open_app_in(project.parent / "home", project) as app:
        answer = app.run("shared.who()")
        assert "onetool trust" in answer.blocks[0]
        assert answer.blocks[-1] == "home"


def test_a_new_file_in_a_trusted_project_needs_trust_again(project: Path) -> None:
    home = project.parent / "home"
    trust(project / ".onetool", home / ".onetool")
    with open_app_in(home, project) as app:
        assert app.value("shared.who()") == "project"
        write_pack(project / ".onetool" / "tools", "fresh", "def run_me(): return 'ran'")
        assert "fresh" in app.failure("fresh.run_me()")
        assert any("onetool trust" in problem for problem in list_problems(app))
        assert app.value("shared.who()") == "project"  # files that were already trusted still work
        trust(project / ".onetool", home / ".onetool")
        assert app.value("fresh.run_me()") == "ran"


def test_more_directories_can_be_configured(tmp_path: Path) -> None:
    write_pack(tmp_path / "more", "extra", "def who(): return 'extra'")
    write_pack(tmp_path / "more", "own", "def who(): return 'more'")
    write_pack(tmp_path / ".onetool" / "tools", "own", "def who(): return 'own'")
    configure(tmp_path / ".onetool", "tools_dir: [../more, ~/nowhere]")
    with open_app_in(tmp_path) as app:
        assert app.data("[extra.who(), own.who()]") == ["extra", "own"]


def test_a_built_in_pack_cannot_be_replaced(tmp_path: Path) -> None:
    file = write_pack(tmp_path / ".onetool" / "tools", "machine", "def disk(): return 'forged'")
    with open_app_in(tmp_path) as app:
        assert app.data("machine.disk()") != "forged"
        app.value("ot.health()")
        message = app.onetool.registry.problems()["machine"].message
        assert f"{file}: pack name 'machine' conflicts with a built-in pack" in message


@pytest.mark.parametrize("text", ['pack = "other"', 'pack: str = "other"'])
def test_a_file_may_set_the_name_of_its_pack(tmp_path: Path, text: str) -> None:
    write_pack(tmp_path / ".onetool" / "tools", "notes", f"{text}\ndef who(): return 'other'")
    with open_app_in(tmp_path) as app:
        assert app.value("other.who()") == "other"
        assert "notes" in app.failure("notes.who()")


# --- static analysis ------------------------------------------------------------------------------


def test_a_file_is_analyzed_without_running_it(app: App, home: Path) -> None:
    (full,) = app.data("ot.tools(pattern='harmful', info='full')")
    assert full["signature"].startswith("harmful.act(target: str, force: bool = ")
    assert full["signature"].endswith("depth: int | None = None) -> str")
    assert full["description"] == "Do harm."
    assert full["args"] == ["target: Whom."]
    assert "It does harm" in app.value("ot.help(query='harmful')")
    assert not (home / ".onetool" / "tools" / "harmful" / "harm").exists()


def test_public_functions_are_tools(app: App) -> None:
    names = list_bundle_tools(app, "sample")
    assert "sample.facts" in names
    assert "sample.later" in names
    assert not {"sample._hidden", "sample.NoTool", "sample.NOT_A_TOOL"} & set(names)


def test_dunder_all_selects_the_tools(tmp_path: Path) -> None:
    text = "__all__ = ['one', '_two']\ndef one(): return 1\ndef _two(): return 2\ndef three(): ..."
    write_pack(tmp_path / ".onetool" / "tools", "notes", text)
    with open_app_in(tmp_path) as app:
        assert list_bundle_tools(app, "notes") == ["notes._two", "notes.one"]
        assert app.data("[notes.one(), notes._two()]") == [1, 2]


def test_a_file_that_cannot_be_parsed_is_reported(app: App, home: Path) -> None:
    file = home / ".onetool" / "tools" / "broken" / "broken_tools.py"
    assert any(f"{file}, line 2" in problem for problem in list_problems(app))
    for call in ("broken.fine()", "ot.call('broken.fine')"):
        assert f"{file}, line 2" in app.failure(call)
    assert app.data("plain.where()")


def test_extension_tools_are_described_like_other_tools(app: App, home: Path) -> None:
    (full,) = app.data("ot.tools(pattern='sample.choose', info='full')")
    assert (
        full["signature"] == "sample.choose(unit: Literal['a', 'b'] = 'a', limit: int = 10) -> str"
    )
    assert full["description"] == "Choose a unit, with care."
    assert full["args"] == ["unit: Which of the two."]
    assert full["example"] == 'sample.choose(unit="b")'
    text = app.value("ot.help(query='sample.choose')")
    assert str(home / ".onetool" / "tools" / "sample" / "sample_tools.py") in text
    assert "Needs permission: read" in text


def test_the_description_of_a_pack_is_the_docstring_of_its_file(app: App) -> None:
    text = app.value("ot.help(query='sample')")
    assert "Small things, for trying out workers." in text
    assert "sample_tools.py" in text
    assert "Small things" in app.value("ot.packs(pattern='sample', info='full')")
    (facts,) = app.data("ot.packs(pattern='sample')")
    assert facts["tool_count"] == len(list_bundle_tools(app, "sample"))


def test_extension_tools_are_found_by_their_description(app: App) -> None:
    assert "sample.choose" in app.value("ot.search(query='choose a unit with care')")


# --- calls ----------------------------------------------------------------------------------------


def test_arguments_are_converted_to_the_annotated_types(app: App) -> None:
    given: dict[str, Any] = {
        "path": "/a/b",
        "day": "2024-02-29",
        "when": "2024-02-29T12:00:00+01:00",
        "colour": "red",
        "blob": "AAE=",
        "price": "0.10",
        "tags": ["x"],
        "many": ["a", "b"],
    }
    assert app.data(f"sample.kinds(**{given!r})") == [
        "PosixPath('/a/b')",
        "datetime.date(2024, 2, 29)",
        (
            "datetime.datetime(2024, 2, 29, 12, 0,"
            " tzinfo=datetime.timezone(datetime.timedelta(seconds=3600)))"
        ),
        "<Colour.RED: 'red'>",
        r"b'\x00\x01'",
        "Decimal('0.10')",
        "{'x'}",
        "[PosixPath('a'), PosixPath('b')]",
    ]


def test_code_may_pass_objects_of_the_annotated_types(app: App) -> None:
    code = "import datetime as dt, pathlib\n"
    call = "sample.kinds(pathlib.Path('/x'), dt.date(2024, 1, 2), blob=b'z', tags={'t'})"
    output = app.data(code + call)
    assert output[:3] == ["PosixPath('/x')", "datetime.date(2024, 1, 2)", "None"]
    assert output[4:7] == ["b'z'", "None", "{'t'}"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("sample.kinds(path='/x', day='tomorrow')", "day='tomorrow'"),
        (
            "sample.kinds(path='/x', day='2024-01-01', colour='blue')",
            'colour: "blue" is not one of "red"',
        ),
        ("sample.kinds(path='/x', day='2024-01-01', blob='!')", "expected base64 for bytes"),
        ("sample.choose(unit='c')", "unit"),
        ("sample.choose(limit='many')", "limit"),
    ],
)
def test_invalid_arguments_are_named(app: App, call: str, message: str) -> None:
    failure = app.failure(call)
    assert failure.startswith("ArgumentError")
    assert message in failure


def test_positional_only_and_keyword_only_parameters_are_supported(app: App) -> None:
    assert app.data("sample.places(1)") == [1, 1, 3, 4, 5]
    assert app.data("sample.places(first=1, third=9)") == [1, 1, 9, 4, 5]
    assert app.data("sample.places(1, 2, 3, 4, fifth=6)") == [1, 2, 3, 4, 6]


def test_coroutines_are_awaited(app: App) -> None:
    assert app.data("sample.later(value=41)") == 42


def test_a_worker_sees_only_its_own_settings(app: App) -> None:
    own = {"colour": "red", "limits": {"n": 3}}
    assert app.data("sample.settings()") == [own, True, own]


def test_a_worker_gets_only_the_secrets_listed_for_its_pack(app: App) -> None:
    assert app.value("sample.has_token('token-' + '4711')") == "True"
    names = app.data("sample.environment()")
    assert "TOKEN" in names
    assert "OTHER" not in names


def test_a_worker_gets_few_environment_variables(app: App) -> None:
    names = set(app.data("sample.environment()"))
    assert "HOME" in names
    assert "SURPLUS" not in names
    assert not {name for name in names if name.startswith(("ONETOOL", "PYTEST", "PYTHON"))}


def test_a_function_may_call_other_tools(app: App) -> None:
    assert app.data("sample.listed()") == ["machine.disk"]


def test_other_tools_are_called_with_the_permissions_of_the_caller(app: App) -> None:
    assert app.call("sample.cpu").ok
    write_only = app.call("sample.facts", agent="nobody")
    assert "read permission" in str(write_only.error)


def test_errors_keep_their_type_and_fields(app: App) -> None:
    assert app.failure("sample.wrong(kind='value')").startswith("ValueError: bad")
    caught = (
        "try:\n    sample.wrong(kind='own')\nexcept ToolError as error:\n    left = [str(error),"
        " error.left]\nleft"
    )
    assert app.data(caught) == ["it is full", 3]


def test_the_permissions_of_a_pack_can_be_configured(tmp_path: Path) -> None:
    configure(tmp_path / ".onetool", "tools: {plain: {permissions: [exec]}}")
    write_pack(tmp_path / ".onetool" / "tools", "plain", PLAIN)
    with open_app_in(tmp_path) as app:
        assert "exec permission" in app.failure("plain.where()")


# --- uv and the working directory -----------------------------------------------------------------


def test_a_uv_toml_in_the_working_directory_does_not_change_the_index(tmp_path: Path) -> None:
    """Ignore uv.toml, because the directory may be a repository that was just cloned."""
    evil = '[[index]]\nurl = "http://127.0.0.1:9/simple"\ndefault = true\n'
    home, cloned = tmp_path / "home", tmp_path / "cloned"
    cloned.mkdir()
    (cloned / "uv.toml").write_text(evil, encoding="utf-8")
    write_pack(home / ".onetool" / "tools", "sample", SAMPLE)
    fresh = {**os.environ, "UV_CACHE_DIR": str(tmp_path / "cache")}
    with open_app_in(home, cloned, environment=fresh) as app:
        assert app.data("sample.facts()")["six"]


# --- onetool init ---------------------------------------------------------------------------------


def test_tools_created_by_init_can_be_called(tmp_path: Path) -> None:
    run = partial(run_cli, tmp_path)
    project = tmp_path / "project"
    project.mkdir()
    assert run("init").returncode == 0
    answer = run(
        "run", "[hello.greet(name='Ada', loud=True), hello.since(day='2020-01-01')['day']]"
    )
    assert json.loads(answer.stdout) == ["HELLO, ADA!", "2020-01-01"], answer.stderr
    assert run("test", "hello").stdout.endswith("2 passed\n"), "the examples are right"
