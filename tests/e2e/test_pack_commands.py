"""`onetool test` and `onetool dev`: the examples, the tests and the help of a pack, as its author
sees them.
"""

import json
import os
import platform
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from tests.support import PROGRAM, TIMEOUT_SECONDS, configure, environment, eventually, run_cli
from tests.workers_support import HEADER, write_pack

from onetool_child.confine import landlock_version

HAS_SANDBOX = (
    sys.platform == "linux"
    and landlock_version() >= 1
    and platform.machine() in {"x86_64", "aarch64"}
)
TIMES = '''
    """Times."""

    import six

    def add(a: int, b: int = 2) -> int:
        """Add numbers.

        Examples:
            The variables are shared:

            >>> total = times.add(a=1)
            >>> total
            3
            >>> times.add(a=1, b=1)
            3
            >>> times.add(a=1)  # doctest: +SKIP
            3
            >>> times.split(text="a b")
            ['a', ...]
            >>> times.split(text="a b")
            ['a', ...]
            >>> times.add(a=None)
            Traceback (most recent call last):
                ...
            ArgumentError: ...
        """
        return a + b

    def split(text: str) -> list[str]:
        """Split a text.

        Example:
            words = times.split(
                text="a b"
            )
            words[5]
            ot.call("fs.write", path="x", content="x")
        """
        return text.split()

    def secret() -> str:
        """Show the secret.

        Example:
            raise ValueError(times.secret())
        """
        import os

        return os.environ["KEY"]

    def silent() -> None:
        """Do nothing.

        Example:
            Call it at any time.
        """

    def end() -> None:
        """End the run.

        Example:
            times.add(a=1)
            __import__("os")._exit(3)
            times.add(a=2)
        """

    def broken() -> None:
        """Do nothing.

        Example:
            times.broken(
        """
'''
TESTS = """
    import ot
    import pytest
    import six
    import times_tools

    def test_the_pack_is_loaded_as_in_its_worker():
        assert times_tools.ot is ot
        assert ot.settings == {"unit": "days"}

    def test_other_tools_can_be_called():
        assert ot.call("times.add", a=3) == 5

    def test_wrong():
        assert times_tools.add(1) == 4

    @pytest.mark.skip(reason="later")
    def test_later():
        pass

    def test_sandbox():
        with pytest.raises(PermissionError):
            open("OUTSIDE", "w")
"""
SETTINGS = """
tools:
  times:
    unit: days
    secrets: [KEY]
    sandbox: {enabled: SANDBOX, allowed_paths: [work]}
"""
SEND = '''
    permissions = ["network"]

    def send(to: str) -> str:
        """Send a message.

        Example:
            send.send(to="Ada")
        """
        return f"sent to {to}"
'''
WATCHED = '''
"""Watched."""

import helper

def greet(name: str = "Ada") -> str:
    """Greet a person.

    Example:
        >>> watched.greet()
        'Hello, Ada!'
    """
    return f"{helper.WORD}, {name}!"
'''


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home directory with a pack that has examples and tests, and a pack that uses the network."""
    home = tmp_path_factory.mktemp("home")
    configure(home, SETTINGS.replace("SANDBOX", str(HAS_SANDBOX).lower()))
    (home / "work").mkdir()
    secrets = home / ".onetool" / "secrets.yaml"
    secrets.write_text("KEY: correct-horse-battery\n", encoding="utf-8")
    secrets.chmod(0o600)
    file = write_pack(home / ".onetool", "times", TIMES, HEADER)
    write_tests(file.parent, "test_times.py", TESTS.replace("OUTSIDE", str(home / "outside")))
    write_tests(
        file.parent,
        "test_whole.py",
        "import pytest\n\npytest.skip('not here', allow_module_level=True)\n",
    )
    (home / "pytest.ini").write_text("[pytest]\naddopts = --unknown-option\n", encoding="utf-8")
    file = write_pack(home / ".onetool", "send", SEND, HEADER)
    write_tests(
        file.parent,
        "test_send.py",
        "import send_tools\n\nCALL = ot.call\n\ndef test_send():\n    assert CALL and"
        " send_tools.send('x')\n",
    )
    return home


def write_tests(directory: Path, name: str, text: str) -> None:
    (directory / "tests").mkdir(exist_ok=True)
    (directory / "tests" / name).write_text(dedent(text), encoding="utf-8")


# --- onetool test ---------------------------------------------------------------------------------


def test_examples_and_tests_are_run_and_compared(home: Path) -> None:
    done = run_cli(home, "test", "times", "--json")
    assert done.returncode == 1, done.stderr
    assert "correct-horse-battery" not in done.stdout
    report = json.loads(done.stdout)
    assert (report["pack"], report["problems"]) == ("times", [])
    results: list[dict[str, Any]] = report["results"]
    examples = [(each["name"], each["status"]) for each in results if each["kind"] == "example"]
    assert examples == [
        ("total = times.add(a=1)", "ok"),
        ("total", "ok"),
        ("times.add(a=1, b=1)", "failed"),
        ('times.split(text="a b")', "ok"),
        ('times.split(text="a b")', "ok"),
        ("times.add(a=None)", "ok"),
        ("times.add(a=1)  # doctest: +SKIP", "skipped"),
        ('words = times.split(\n    text="a b"\n)', "ok"),
        ("words[5]", "failed"),
        ('ot.call("fs.write", path="x", content="x")', "skipped"),
        ("raise ValueError(times.secret())", "failed"),
        ("Call it at any time.", "skipped"),
        ("times.add(a=1)", "ok"),
        ('__import__("os")._exit(3)', "failed"),
        ("times.add(a=2)", "skipped"),
        ("times.broken(", "failed"),
    ]
    details = {each["name"]: each["detail"] for each in results}
    assert details["times.add(a=1, b=1)"].split() == ["Expected:", "3", "Got:", "2"]
    assert details["words[5]"] == "IndexError: list index out of range"
    assert "use --effects" in details['ot.call("fs.write", path="x", content="x")']
    assert not (home / "x").exists()
    assert "exit" in details['__import__("os")._exit(3)']
    tests = {each["name"].rpartition("::")[2]: each for each in results if each["kind"] == "test"}
    assert tests.pop("tests/test_whole.py")["detail"] == "not here"
    assert {name: each["status"] for name, each in tests.items()} == {
        "test_the_pack_is_loaded_as_in_its_worker": "ok",
        "test_other_tools_can_be_called": "ok",
        "test_wrong": "failed",
        "test_later": "skipped",
        "test_sandbox": "ok" if HAS_SANDBOX else "failed",
    }
    assert "assert 3 == 4" in tests["test_wrong"]["detail"]
    assert tests["test_later"]["detail"] == "later"
    assert report["failed"] == sum(each["status"] == "failed" for each in results)
    assert not list(home.rglob("__pycache__")) + list(home.rglob(".pytest_cache"))


def test_effects_are_left_out_unless_allowed(home: Path) -> None:
    done = run_cli(home, "test", "send")
    assert done.returncode == 0
    reason = "(needs network permission; use --effects to run it)"
    assert [line.split(maxsplit=1) for line in done.stdout.splitlines()] == [
        ["skipped", f'send.send(to="Ada")  {reason}'],
        ["skipped", f"tests/  {reason}"],
        ["0", "passed, 2 skipped"],
    ]
    done = run_cli(home, "test", "send", "--effects")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["ok", "ok", "2"]
    assert " ms  tests/test_send.py::test_send" in done.stdout


def test_colors_are_for_terminals(home: Path) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb") as terminal:
        process = subprocess.Popen(
            [PROGRAM, "test", "send"],
            cwd=home,
            env={**environment(home), "TERM": "xterm"},
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        assert process.wait(TIMEOUT_SECONDS) == 0
        assert b"\x1b[33mskipped\x1b[0m" in os.read(terminal.fileno(), 10_000)


@pytest.mark.parametrize(
    ("pack", "words"),
    [
        ("tmes", "did you mean times?"),
        ("machine", "its tools do not come from a file of yours"),
        ("bear_tools.py", "did you mean /"),
        ("./work", "work is a directory; a pack is a Python file named <pack>_tools.py"),
        ("plain.py", "rename it to plain_tools.py, or run `onetool init`"),
        ("bare_tools.py", "bare has no examples and no tests"),
    ],
)
def test_what_cannot_be_tested_is_explained(home: Path, pack: str, words: str) -> None:
    (home / "plain.py").write_text("def f(): pass\n", encoding="utf-8")
    (home / "bare_tools.py").write_text("def f(): pass\n", encoding="utf-8")
    done = run_cli(home, "test", pack)
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr


def test_packs_in_one_directory_have_tests_of_their_own(home: Path) -> None:
    directory = home / "flat"
    directory.mkdir()
    for name in ("one", "two"):
        (directory / f"{name}_tools.py").write_text(f"{HEADER}def f(): pass\n", encoding="utf-8")
        test = f"import {name}_tools\n\ndef test_{name}():\n    pass\n"
        write_tests(directory, f"test_{name}.py", test)
    done = run_cli(home, "test", "flat/one_tools.py")
    assert done.stdout.splitlines()[-1] == "1 passed", done.stdout
    assert "test_one" in done.stdout


def test_a_pytest_that_fails_without_a_failed_test_is_a_failure(home: Path) -> None:
    file = write_pack(home / ".onetool", "gone", "def f(): pass\n", HEADER)
    write_tests(
        file.parent,
        "test_gone.py",
        "import pytest\n\ndef test_a(): pass\n\ndef test_b(): pytest.exit('gone')\n",
    )
    done = run_cli(home, "test", "gone")
    assert done.returncode == 1
    assert "pytest exited with status 2" in done.stdout


def test_nothing_of_an_untrusted_project_runs(home: Path) -> None:
    clone = home / "clone"
    ran = clone / "ran"
    for directory in (clone / ".onetool" / "tools", clone / "drafts"):
        directory.mkdir(parents=True)
        code = f"open({str(ran)!r}, 'w')\n"
        (directory / "evil_tools.py").write_text(f"{code}def f(): pass\n", encoding="utf-8")
        write_tests(directory, "test_evil.py", f"{code}def test_f(): pass\n")
    commands = (
        ["test", "clone/.onetool/tools/evil_tools.py", "--effects"],
        ["dev", "clone/drafts/evil_tools.py", "--once"],
    )
    for command in commands:
        done = run_cli(home, *command)
        assert done.returncode == 1
        assert "Extension files\n  tools/evil_tools.py\n" in done.stdout
        assert f"{clone / '.onetool'} is not trusted: not confirmed" in done.stderr
    assert not ran.exists()


@pytest.mark.parametrize("name", ["fresh", ".onetool/tools/fresh_tools.py"])
def test_dev_asks_for_trust_in_a_new_file_once(tmp_path: Path, name: str) -> None:
    work = tmp_path / "work"
    work.mkdir()

    def run(*arguments: str, answer: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAM, *arguments],
            cwd=work,
            env=environment(tmp_path),
            input=answer,
            capture_output=True,
            text=True,
            check=False,
        )

    assert run("init").returncode == 0
    (work / ".onetool" / "tools" / "hello" / "hello_tools.py").write_text(
        "def g() -> int:\n    return 1\n"
    )
    (work / ".onetool" / "tools" / "fresh_tools.py").write_text(
        "def f() -> int:\n    return 1\n", encoding="utf-8"
    )
    assert "not confirmed" in run("dev", "--once", name).stderr
    asked = run("dev", "--once", name, answer="yes\n")
    assert (asked.returncode, asked.stderr) == (0, "")
    assert "extension file tools/fresh_tools.py was added" in asked.stdout
    for command in (["dev", "--once", name], ["init"], ["dev", "--once", "hello"]):
        again = run(*command)
        assert again.returncode == 0
        assert "Trust it?" not in again.stdout


# --- onetool dev ----------------------------------------------------------------------------------


def test_a_file_can_be_developed_before_it_is_configured(tmp_path: Path) -> None:
    file, helper = tmp_path / "tools" / "watched_tools.py", tmp_path / "tools" / "helper.py"
    file.parent.mkdir()
    file.write_text(WATCHED, encoding="utf-8")
    helper.write_text("WORD = 'Hello'\n", encoding="utf-8")
    with watch(tmp_path, "tools/watched_tools.py") as (process, output):
        first = output.wait()
        assert "Signature: watched.greet(name: str = 'Ada') -> str" in first
        assert "1 passed" in first
        helper.write_text("WORD = 'Bye'\n", encoding="utf-8")
        changed = output.wait()
        assert "Signature" not in changed, "only what changed is shown"
        assert "'Bye, Ada!'" in changed
        write_tests(
            file.parent,
            "test_watched.py",
            "import helper\n\ndef test_word():\n    assert helper.WORD == 'Hi'\n",
        )
        assert "failed" in output.wait().partition("test_word")[0].splitlines()[-1]
        file.write_text(WATCHED.replace("def greet(", "def greet(("), encoding="utf-8")
        assert f"{file}, line 6: " in output.wait()
        file.write_text(WATCHED.replace("helper.WORD", "helper.MISSING"), encoding="utf-8")
        assert "AttributeError" in output.wait()
        file.write_text(WATCHED.replace("import helper", "import missing_module"), encoding="utf-8")
        assert f"({file}, line 4)" in output.wait()
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_SECONDS) == 0
        assert (tmp_path / "errors").read_text(encoding="utf-8") == ""


def test_dev_once_exits_with_the_result(tmp_path: Path) -> None:
    write_pack(
        tmp_path / ".onetool",
        "watched",
        WATCHED.replace("import helper", "class helper: WORD = 'Hello'"),
    )
    done = run_cli(tmp_path, "dev", "watched", "--once")
    assert (done.returncode, done.stderr) == (0, "")
    assert "# watched.greet" in done.stdout
    write_pack(tmp_path / ".onetool", "watched", "def f(:\n")
    done = run_cli(tmp_path, "dev", "watched", "--once")
    assert done.returncode == 1
    assert "problem  " in done.stdout


class Output:
    """The output of a process that watches a file, in parts that end when it waits for the next
    change.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._read = file, 0

    def wait(self) -> str:
        eventually(lambda: "press Ctrl+C" in self._text)
        text = self._text
        self._read += len(text)
        return text

    @property
    def _text(self) -> str:
        return self._file.read_text(encoding="utf-8")[self._read :]


@contextmanager
def watch(home: Path, pack: str) -> Iterator[tuple[subprocess.Popen[bytes], Output]]:
    with (home / "output").open("wb") as output, (home / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [PROGRAM, "dev", pack], cwd=home, env=environment(home), stdout=output, stderr=errors
        )
    try:
        yield process, Output(home / "output")
    finally:
        process.kill()
        process.wait()


STRANGER = '''
    import os

    secrets = ["SHOP_KEY"]

    def look(ctx: "Context") -> list:
        """Look for the secrets and settings of the pack whose name this file has.

        Example:
            >>> shop.look()
            [None, {}, 'ConfigError']
        """
        try:
            found = ctx.secret("SHOP_KEY")
        except Exception as error:
            found = type(error).__name__
        return [os.environ.get("SHOP_KEY"), dict(ctx.settings), found]
'''


def test_a_file_outside_the_pack_directories_gets_no_secrets_of_a_pack_with_its_name(
    tmp_path: Path,
) -> None:
    configure(tmp_path, "tools: {shop: {secrets: [SHOP_KEY], note: private}}")
    secrets = tmp_path / ".onetool" / "secrets.yaml"
    secrets.write_text("SHOP_KEY: value-of-the-shop-key", encoding="utf-8")
    secrets.chmod(0o600)
    file = tmp_path / "clone" / "shop_tools.py"
    file.parent.mkdir()
    file.write_text(dedent(STRANGER), encoding="utf-8")
    done = run_cli(tmp_path, "test", "clone/shop_tools.py")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1 passed"), (
        done.stdout + done.stderr
    )
