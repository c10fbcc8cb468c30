"""Specification 5: `grep`, `test.run`, `json.parse` and `yaml.parse`, called through a bus."""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import given, settings, strategies as st
from tests.support import ProcessWatch, advance_time, eventually, list_descendants

from onetool import Result, ToolBus, ToolContext
from onetool.errors import ArgumentError, PermissionDenied, SandboxDenied, ToolError, ToolTimeout
from onetool.sources.builtin import grep_tools, json_tools, test_tools, yaml_tools
from onetool.util.context import permissions
from onetool_child import confine

MODULES = (grep_tools, test_tools, json_tools, yaml_tools)
VENV = str(Path(sys.executable).parent)
SANDBOX = {"enabled": True, "denied_patterns": ["*.secret", "private/**"]}


def new_bus() -> ToolBus:
    made = ToolBus()
    for module in MODULES:
        made.register_tool(module)
    return made


def call(
    name: str, params: dict[str, Any], directory: Path, *granted: str, sandbox: Any = SANDBOX
) -> Result:
    names = granted or ("read", "exec")
    context = ToolContext(permissions=permissions(names), working_dir=directory, sandbox=sandbox)
    return anyio.run(new_bus().call_tool, name, params, context)


def parse(pack: str, text: str, directory: Path, schema: Any = None) -> Any:
    return call(f"{pack}.parse", {pack: text, "schema": schema}, directory).unwrap()


# --- grep -----------------------------------------------------------------------------------------


def grep(directory: Path, pattern: str, **more: Any) -> dict[str, Any]:
    value: dict[str, Any] = call("grep", {"pattern": pattern, **more}, directory).unwrap()
    return value


def list_locations(answer: dict[str, Any]) -> list[str]:
    return [f"{match['file']}:{match['line']}" for match in answer["results"]]


def write(directory: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return directory


@pytest.mark.spec("toolbus.grep.result")
def test_grep_returns_files_lines_and_contents(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"lib/agent.ex": "# one\ndefmodule Otto.Agent do\nend\n", "lib/other.ex": "nothing"},
    )
    answer = grep(tmp_path, "defmodule.*Agent", path="lib/", max_results=50)
    assert answer["results"] == [
        {"file": "lib/agent.ex", "line": 2, "line_number": 2, "content": "defmodule Otto.Agent do"}
    ]
    assert (answer["total_matches"], answer["truncated"]) == (1, False)
    assert isinstance(answer["search_time_ms"], int)


@pytest.mark.spec("toolbus.grep.result")
def test_grep_requires_read(tmp_path: Path) -> None:
    assert isinstance(call("grep", {"pattern": "x"}, tmp_path, "exec").error, PermissionDenied)


@pytest.mark.spec("toolbus.grep.result")
def test_results_of_grep_are_ordered(tmp_path: Path) -> None:
    write(tmp_path, {f"{name}.txt": "x\nx\n" for name in "dbca"})
    assert list_locations(grep(tmp_path, "x")) == [
        f"{name}.txt:{line}" for name in "abcd" for line in (1, 2)
    ]


@pytest.mark.spec("toolbus.grep.default-path")
def test_grep_searches_the_working_directory_by_default(tmp_path: Path) -> None:
    write(tmp_path, {"here/a.txt": "x", "b.txt": "x"})
    assert list_locations(grep(tmp_path / "here", "x")) == ["a.txt:1"]


def test_grep_searches_a_single_file(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "x", "b.txt": "x"})
    assert list_locations(grep(tmp_path, "x", path="b.txt")) == ["b.txt:1"]


@pytest.mark.spec("toolbus.grep.limit")
@pytest.mark.parametrize(
    ("limit", "count", "truncated"), [({}, 1000, True), ({"max_results": 1200}, 1200, False)]
)
def test_grep_limits_results_and_reports_truncation(
    tmp_path: Path, limit: dict[str, int], count: int, truncated: bool
) -> None:
    write(tmp_path, {f"{number}.txt": "x\n" * 300 for number in range(4)})
    answer = grep(tmp_path, "x", **limit)
    assert (len(answer["results"]), answer["total_matches"]) == (count, 1200)
    assert answer["truncated"] is truncated


@pytest.mark.spec("toolbus.grep.case")
def test_grep_is_case_sensitive_by_default(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "Needle\nneedle\n"})
    assert list_locations(grep(tmp_path, "needle")) == ["a.txt:2"]
    assert list_locations(grep(tmp_path, "needle", case_sensitive=False)) == ["a.txt:1", "a.txt:2"]


def slow_tree(directory: Path) -> Path:
    """Create more data than can be searched in a minute, in the space of one file."""
    file = directory / "0.txt"
    file.write_text(f"{'ab ' * 30}\n" * 200_000)
    for number in range(1, 4000):
        (directory / f"{number}.txt").hardlink_to(file)
    return directory


SLOW = r"(\w+ ){5}[a-z]+\d"


def list_ripgrep_processes() -> set[int]:
    return {process for process in list_descendants(os.getpid()) if _get_program(process) == "rg"}


def _get_program(process: int) -> str:
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return ""


@pytest.mark.spec("toolbus.grep.timeout")
def test_a_grep_timeout_returns_partial_results_and_kills_ripgrep(tmp_path: Path) -> None:
    answer = grep(slow_tree(tmp_path), SLOW, timeout_ms=300)
    assert answer["truncated"]
    assert answer["timed_out"]
    assert not list_ripgrep_processes()


@pytest.mark.spec("toolbus.grep.timeout")
def test_cancelling_a_grep_kills_ripgrep(tmp_path: Path) -> None:
    slow_tree(tmp_path)
    context = ToolContext(permissions=permissions(["read"]), working_dir=tmp_path)
    with start_blocking_portal("asyncio") as portal:
        future = portal.start_task_soon(
            new_bus().call_tool, "grep", {"pattern": SLOW, "timeout_ms": 60_000}, context
        )
        assert eventually(list_ripgrep_processes)
        with ProcessWatch(list_ripgrep_processes()) as watch:
            future.cancel()
            assert watch.all_ended()


@pytest.mark.spec("toolbus.grep.pattern-is-no-option")
@pytest.mark.parametrize(
    "pattern", ["--pre=./x.sh", "-f/etc/passwd", "--files", "--", "-", "--no-ignore\n--pre=./x.sh"]
)
@pytest.mark.parametrize("where", ["pattern", "glob", "path"])
def test_arguments_are_never_read_as_options(tmp_path: Path, pattern: str, where: str) -> None:
    write(tmp_path, {"a.txt": "--pre=./x.sh and --files\n", "x.sh": "#!/bin/sh\ntouch ran\n"})
    (tmp_path / "x.sh").chmod(0o755)
    answer = call("grep", {"pattern": "nothing", where: pattern}, tmp_path)
    assert not (tmp_path / "ran").exists()
    assert not answer.ok or all(
        match["file"] == "a.txt" or where == "pattern" for match in answer.value["results"]
    )


@pytest.mark.spec("toolbus.grep.pattern-is-no-option")
def test_a_pattern_that_looks_like_an_option_is_a_pattern(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "x\n--pre=./x.sh\n"})
    assert list_locations(grep(tmp_path, "--pre=./x.sh")) == ["a.txt:2"]


@pytest.mark.spec("toolbus.grep.pattern-is-no-option")
def test_a_ripgrep_configuration_file_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"a.txt": "x", "settings": "--invert-match\n"})
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", str(tmp_path / "settings"))
    assert list_locations(grep(tmp_path, "x")) == ["a.txt:1"]


@pytest.mark.spec("toolbus.grep.sandbox")
@pytest.mark.parametrize(
    "options",
    [{}, {"hidden": True}, {"glob": "*"}, {"glob": "*.secret"}, {"glob": "**/private/**"}],
)
def test_denied_paths_are_not_searched(tmp_path: Path, options: dict[str, Any]) -> None:
    write(tmp_path, {"a.txt": "x", "deep/b.secret": "x", "private/c.txt": "x", ".d.secret": "x"})
    assert set(list_locations(grep(tmp_path, "x", **options))) <= {"a.txt:1"}


@pytest.mark.spec("toolbus.grep.sandbox")
@pytest.mark.parametrize(
    "path", ["..", "/etc", "link", "../outside", "private/c.txt", "deep/b.secret"]
)
def test_a_path_outside_is_rejected(tmp_path: Path, path: str) -> None:
    here = write(tmp_path / "here", {"a.txt": "x", "private/c.txt": "x", "deep/b.secret": "x"})
    write(tmp_path / "outside", {"o.txt": "x"})
    (here / "link").symlink_to(tmp_path / "outside")
    assert isinstance(call("grep", {"pattern": "x", "path": path}, here).error, SandboxDenied)


@pytest.mark.spec("toolbus.grep.sandbox")
def test_links_are_not_followed(tmp_path: Path) -> None:
    here = write(tmp_path / "here", {"a.txt": "x"})
    outside = write(tmp_path / "outside", {"o.txt": "x"})
    (here / "folder").symlink_to(outside)
    (here / "file").symlink_to(outside / "o.txt")
    assert list_locations(grep(here, "x")) == ["a.txt:1"]


@pytest.mark.slow
@pytest.mark.spec("toolbus.grep.sandbox")
def test_replacing_a_directory_by_a_link_gains_no_access(tmp_path: Path) -> None:
    here = write(tmp_path / "here", {f"folder/{number}.txt": "x mine" for number in range(50)})
    outside = write(tmp_path / "outside", {f"{number}.txt": "x secret" for number in range(50)})
    (here / "link").symlink_to(outside)
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            for old, new in (
                ("folder", "kept"),
                ("link", "folder"),
                ("folder", "link"),
                ("kept", "folder"),
            ):
                (here / old).rename(here / new)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        contents = {match["content"] for _ in range(40) for match in grep(here, "x")["results"]}
    finally:
        done.set()
        swapping.join()
    assert contents == {"x mine"}


@pytest.mark.spec("toolbus.grep.sandbox")
@pytest.mark.skipif(not confine.landlock_version(), reason="this kernel has no Landlock")
def test_the_kernel_confines_ripgrep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ripgrep follow links, as if a directory had been replaced by a link during the search."""
    here = write(tmp_path / "here", {"a.txt": "x"})
    outside = write(tmp_path / "outside", {"o.txt": "x"})
    (here / "folder").symlink_to(outside)
    monkeypatch.setattr(grep_tools, "OPTIONS", (*grep_tools.OPTIONS, "--follow"))
    answer = grep(here, "x")
    assert list_locations(answer) == ["a.txt:1"]
    assert answer["incomplete"]


@pytest.mark.spec("toolbus.grep.sandbox")
def test_results_of_ripgrep_are_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Disable both the patterns and the kernel restriction of ripgrep."""
    here = write(tmp_path / "here", {"a.txt": "x", "b.secret": "x"})
    outside = write(tmp_path / "outside", {"o.txt": "x"})
    (here / "folder").symlink_to(outside)
    monkeypatch.setattr(grep_tools, "OPTIONS", (*grep_tools.OPTIONS, "--follow"))
    monkeypatch.setattr("onetool_child.confine.landlock", lambda *_, **__: None)
    monkeypatch.setattr("onetool.sources.files.Files.list_denied_globs", lambda *_: [])
    assert list_locations(grep(here, "x")) == ["a.txt:1"]


def test_paths_in_gitignore_are_skipped_in_every_directory(tmp_path: Path) -> None:
    write(
        tmp_path,
        {".git/HEAD": "", ".gitignore": "build/\n*.log\n", "src/a.txt": "x", "src/b.log": "x"},
    )
    write(tmp_path, {"build/c.txt": "x"})
    assert list_locations(grep(tmp_path, "x")) == ["src/a.txt:1"]
    assert list_locations(grep(tmp_path, "x", path="src")) == ["src/a.txt:1"]
    assert "incomplete" not in grep(tmp_path, "x", path="src")


def test_a_working_tree_of_another_repository_is_searched_completely(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            ".git": "gitdir: /nowhere/.git/worktrees/a\n",
            ".gitignore": "*.log\n",
            "src/a.txt": "x",
            "src/b.log": "x",
        },
    )
    answer = grep(tmp_path, "x", path="src")
    assert list_locations(answer) == ["src/a.txt:1"]
    assert "incomplete" not in answer


def test_hidden_files_are_searched_on_request(tmp_path: Path) -> None:
    write(tmp_path, {".hidden": "x", "a.txt": "x"})
    assert list_locations(grep(tmp_path, "x")) == ["a.txt:1"]
    assert list_locations(grep(tmp_path, "x", hidden=True)) == [".hidden:1", "a.txt:1"]


def test_a_glob_selects_files(tmp_path: Path) -> None:
    write(tmp_path, {"src/a.py": "x", "b.py": "x", "c.txt": "x"})
    assert list_locations(grep(tmp_path, "x", glob="*.py")) == ["b.py:1", "src/a.py:1"]
    assert list_locations(grep(tmp_path, "x", glob="!*.py")) == ["c.txt:1"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "unclosed group"),
        ("a\nb", "A match lies within one line"),
        (r"(a)\1", "backreferences are not supported"),
        (r"(?:\pL{1,300}x){3}", "exceeds size limit"),
        ("a\0b", "NUL"),
        ("\ud800", "surrogate"),
        ("a" * 70_000, "longer than"),
    ],
)
def test_an_invalid_pattern_is_an_error_with_the_reason(
    tmp_path: Path, pattern: str, message: str
) -> None:
    with pytest.raises(ToolError, match=message):
        grep(write(tmp_path, {"a.txt": "x"}), pattern)


@pytest.mark.parametrize(
    "options", [{"max_results": 0}, {"timeout_ms": -1}, {"glob": "a\0"}, {"glob": "{a"}]
)
def test_invalid_arguments_are_errors(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ToolError):
        grep(write(tmp_path, {"a.txt": "x"}), "x", **options)


def test_limits_may_be_arbitrarily_high(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "x"})
    assert list_locations(grep(tmp_path, "x", max_results=10**30, timeout_ms=10**400)) == [
        "a.txt:1"
    ]
    assert list_locations(grep(tmp_path, "x", max_results=1.0)) == ["a.txt:1"]


def test_an_empty_pattern_matches_every_line(tmp_path: Path) -> None:
    assert list_locations(grep(write(tmp_path, {"a.txt": "x\n\ny\n"}), "")) == [
        "a.txt:1",
        "a.txt:2",
        "a.txt:3",
    ]


def test_a_long_line_is_truncated_and_marked(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "a.txt": "é" * 5_000_000 + "needle" + "é" * 1000,
            "b.txt": "n" + "\u0301" * 3_000_000 + "needle",
        },
    )
    for match in grep(tmp_path, "needle")["results"]:
        assert match["cut"]
        assert match["column"] > 2000
        assert len(match["content"]) <= 2000


def test_lines_in_other_encodings_are_decoded_with_replacement(tmp_path: Path) -> None:
    write(tmp_path, {"latin.txt": b"caf\xe9 x\r\n", "sixteen.txt": "\U0001f600 x".encode("utf-16")})
    matches = grep(tmp_path, "x")["results"]
    assert [match["content"] for match in matches] == ["caf\ufffd x", "\U0001f600 x"]
    json.dumps(matches, ensure_ascii=False).encode()


def test_unusual_file_names_are_supported(tmp_path: Path) -> None:
    """No tool can open a file whose name is not valid text, so it is not searched either."""
    write(tmp_path, {os.fsdecode(b"caf\xe9.txt"): "x", "two\nlines\n.txt": "x", "a:1:2:b": "x"})
    assert list_locations(grep(tmp_path, "x")) == ["a:1:2:b:1", "two\nlines\n.txt:1"]


def test_binary_files_are_skipped(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"a.bin": b"x\0x\n", "late.bin": b"x\n" + b"y\n" * 100_000 + b"\0\nx\n", "t.txt": "x"},
    )
    assert list_locations(grep(tmp_path, "x")) == ["late.bin:1", "t.txt:1"]


def test_a_file_name_cannot_imitate_another(tmp_path: Path) -> None:
    write(tmp_path, {f"a\n{str(tmp_path).lstrip('/')}/b.txt": "x", "c.txt:1:1:fake": "x"})
    assert all((tmp_path / match["file"]).exists() for match in grep(tmp_path, "x")["results"])


def test_a_path_that_is_neither_file_nor_directory_is_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ToolError):
        grep(tmp_path, "x", path="pipe")


def test_an_empty_directory_has_no_results(tmp_path: Path) -> None:
    assert grep(tmp_path, "x")["results"] == []


# --- test.run -------------------------------------------------------------------------------------

PASSING = "def test_one(): pass\ndef test_two(): pass\n"
MIXED = """
import pytest

def test_passes(): pass

@pytest.mark.skip(reason="not today")
def test_waits(): pass

class TestGroup:
    def test_fails(self):
        left = 1
        assert left == 2, "they differ"

@pytest.fixture
def broken():
    raise ValueError("no fixture")

def test_errs(broken): pass
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory that uses the pytest of this environment, with a secret in the server's
    environment.
    """
    monkeypatch.setenv("PATH", f"{VENV}:{os.environ['PATH']}")
    monkeypatch.setenv("SECRET_OF_THE_SERVER", "xyzzy")
    return tmp_path


def run_tests(directory: Path, env: dict[str, str] | None = None, **params: Any) -> dict[str, Any]:
    variables = {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        **(env or {}),
    }  # loading plugins takes longer than the tests
    value: dict[str, Any] = call(
        "test.run", {**params, "env": variables}, directory, "exec"
    ).unwrap()
    return value


def get_counts(answer: dict[str, Any]) -> tuple[int, int, int]:
    return answer["passed"], answer["failed"], answer["skipped"]


@pytest.mark.slow
@pytest.mark.spec("toolbus.test-run.result", "toolbus.test-run.pytest")
def test_a_test_run_returns_counts_and_failures(project: Path) -> None:
    write(project, {"tests/test_it.py": MIXED})
    answer = run_tests(project)
    assert get_counts(answer) == (1, 2, 1)
    assert answer["duration_ms"] > 0
    assert "1 passed" in answer["output"]
    fails, errs = answer["failures"]
    assert fails["name"] == "tests/test_it.py::TestGroup::test_fails"
    assert "they differ" in fails["message"]
    assert (fails["file"], fails["line"]) == ("tests/test_it.py", 12)
    assert (errs["name"], errs["file"]) == ("tests/test_it.py::test_errs", "tests/test_it.py")
    assert "no fixture" in errs["message"]


@pytest.mark.spec("toolbus.test-run.result")
def test_running_tests_requires_exec(tmp_path: Path) -> None:
    assert isinstance(
        call("test.run", {}, tmp_path, "read", "write", "network").error, PermissionDenied
    )


@pytest.mark.slow
@pytest.mark.spec("toolbus.test-run.path")
def test_a_path_selects_tests(project: Path) -> None:
    write(project, {"test_a.py": PASSING, "more/test_b.py": PASSING})
    assert get_counts(run_tests(project)) == (4, 0, 0)
    assert get_counts(run_tests(project, path="more")) == (2, 0, 0)
    assert get_counts(run_tests(project, path="test_a.py::test_two")) == (1, 0, 0)


@pytest.mark.spec("toolbus.test-run.path")
@pytest.mark.parametrize("path", ["--version", "-h", "--junitxml=/tmp/x", "-p nothing", "a\0b"])
def test_a_path_is_never_read_as_an_option(project: Path, path: str) -> None:
    write(project, {"test_a.py": PASSING})
    with pytest.raises((ToolError, FileNotFoundError)):
        run_tests(project, path=path)


@pytest.mark.slow
@pytest.mark.spec("toolbus.test-run.path")
@pytest.mark.parametrize("path", ["-x.py", "@options.py"])
def test_a_file_may_have_a_name_like_an_option(project: Path, path: str) -> None:
    write(project, {path: PASSING})
    assert get_counts(run_tests(project, path=path)) == (2, 0, 0)


@pytest.mark.spec("toolbus.test-run.path")
def test_a_path_outside_the_sandbox_is_rejected(project: Path) -> None:
    here = write(project / "here", {"test_a.py": PASSING})
    write(project, {"test_b.py": PASSING})
    assert isinstance(
        call("test.run", {"path": "../test_b.py::test_one"}, here).error, SandboxDenied
    )


@pytest.mark.slow
@pytest.mark.spec("toolbus.test-run.env")
def test_given_variables_are_passed_to_tests_and_others_are_not(project: Path) -> None:
    script = """
import os
def test_given(): assert os.environ["GIVEN"] == "a b=c"
def test_secret(): assert "SECRET_OF_THE_SERVER" not in os.environ
"""
    write(project, {"test_env.py": script})
    assert get_counts(run_tests(project, env={"GIVEN": "a b=c"})) == (2, 0, 0)


@pytest.mark.spec("toolbus.test-run.env")
@pytest.mark.parametrize("env", [{"A": 1}, {"A=B": "x"}, {"": "x"}, {"A": "\0"}, {"A": "\ud800"}])
def test_an_invalid_variable_is_rejected(project: Path, env: dict[str, Any]) -> None:
    write(project, {"test_a.py": PASSING})
    assert not call("test.run", {"env": env}, project).ok


LEAVES_CHILDREN = """
import subprocess, time
def test_leaves():
    script = "setsid sleep 300 & echo $! > started"
    subprocess.run(["setsid", "sh", "-c", script], check=True)
    {then}
"""


def list_started(directory: Path) -> list[int]:
    file = directory / "started"
    return list(map(int, file.read_text().split())) if file.exists() else []


@pytest.mark.slow
@pytest.mark.spec("toolbus.test-run.timeout", "toolbus.test-run.never-half-a-success")
def test_a_timeout_kills_the_whole_process_tree(project: Path) -> None:
    write(
        project, {"test_a.py": LEAVES_CHILDREN.format(then="time.sleep(300)"), "test_0.py": PASSING}
    )
    before = list_descendants(os.getpid())
    with start_blocking_portal("asyncio") as portal:
        context = ToolContext(permissions=permissions(["exec"]), working_dir=project)
        future = portal.start_task_soon(
            new_bus().call_tool, "test.run", {"timeout_ms": 500_000}, context
        )
        assert eventually(lambda: list_started(project))
        with ProcessWatch(
            [*list_started(project), *(list_descendants(os.getpid()) - before)]
        ) as watch:
            portal.call(advance_time, 500)
            error = future.result().error
            assert watch.all_ended()
    assert isinstance(error, ToolTimeout)
    assert error.timeout_ms == 500_000
    assert "test_0.py" in error.output


@pytest.mark.slow
@pytest.mark.spec("toolbus.test-run.timeout")
def test_processes_left_by_tests_are_killed(project: Path) -> None:
    write(project, {"test_a.py": LEAVES_CHILDREN.format(then="")})
    assert get_counts(run_tests(project)) == (1, 0, 0)
    with ProcessWatch(list_started(project)) as watch:
        assert watch.all_ended()


FORGED = (
    '<testsuites><testsuite tests="2"><testcase name="a"/><testcase'
    ' name="b"/></testsuite></testsuites>'
)
BOMB = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>'


def write_forging_test(report: str, status: int) -> str:
    """Return a test that writes the report itself and exits."""
    return f"""
import os, sys
from pathlib import Path

def test_one():
    file = next(word.split("=")[1] for word in sys.orig_argv if word.startswith("--junitxml"))
    Path(file).write_text({report!r})
    os._exit({status})
"""


def write_conftest_with_status(status: int) -> str:
    return f"def pytest_sessionfinish(session): session.exitstatus = {status}"


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.spec("toolbus.test-run.never-half-a-success")
@pytest.mark.parametrize(
    ("test", "conftest", "message"),
    [
        ("import os\ndef test_one(): pass\ndef test_two(): os._exit(0)", "", "no report"),
        ("import os\ndef test_one(): pass\ndef test_two(): os.kill(os.getpid(), 9)", "", "SIGKILL"),
        ("def test_one(): pass\ndef test_two(): raise KeyboardInterrupt", "", "interrupted"),
        ("x = 1", "", "no tests found"),
        (PASSING, write_conftest_with_status(1), "contradicts the exit status"),
        ("def test_one(): assert 0", write_conftest_with_status(0), "contradicts the exit status"),
        (PASSING, "raise SystemExit(0)", "no report"),
        (PASSING, "def pytest_collection(): 1 / 0", "internal error"),
        (
            PASSING,
            (
                "def pytest_configure(config): raise config.args and"
                " __import__('pytest').UsageError('no')"
            ),
            "pytest rejected its arguments",
        ),
        (write_forging_test(FORGED, 1), "", "contradicts the exit status"),
        (write_forging_test(FORGED[:60], 0), "", "damaged"),
        (write_forging_test(BOMB + FORGED, 0), "", "document type"),
        (write_forging_test(FORGED.replace('"2"', '"3"'), 0), "", "fewer tests"),
        (
            write_forging_test("", 0).replace("Path(file).write_text('')", "os.mkfifo(file)"),
            "",
            "not a regular file",
        ),
    ],
)
def test_an_incomplete_run_is_not_a_success(
    project: Path, test: str, conftest: str, message: str
) -> None:
    write(project, {"test_a.py": test, "conftest.py": conftest})
    with pytest.raises(ToolError, match=message):
        run_tests(project)


@pytest.mark.slow
def test_tests_that_cannot_be_collected_are_failures(project: Path) -> None:
    write(project, {"test_a.py": PASSING, "test_b.py": "import no_such_module\n"})
    answer = run_tests(project)
    assert answer["failed"] == 1
    assert answer["incomplete"]
    assert answer["failures"][0]["name"] == "test_b.py"
    assert "no_such_module" in answer["failures"][0]["message"]


@pytest.mark.slow
def test_the_virtual_environment_of_the_directory_is_preferred(project: Path) -> None:
    write(project, {"test_a.py": PASSING, "bin/pytest": "#!/bin/sh\nexit 1\n"})
    (project / "bin/pytest").chmod(0o755)
    (project / ".venv").symlink_to(Path(VENV).parent)
    assert get_counts(run_tests(project, env={"PATH": f"{project}/bin"})) == (2, 0, 0)


def test_dependencies_are_never_installed(project: Path) -> None:
    build = "import pathlib\npathlib.Path('built').touch()\n"
    header = (
        '[project]\nname = "a"\nversion = "1"\n[build-system]\nrequires = []\nbuild-backend ='
        ' "setup"\n'
    )
    files: dict[str, str | bytes] = {
        "pyproject.toml": header,
        "setup.py": build,
        "uv.lock": "version = 1\n",
        "test_a.py": PASSING,
    }
    with pytest.raises(
        ToolError, match=r"has a uv\.lock, but no \.venv\nHint: run `uv sync` there"
    ):
        run_tests(write(project, files))
    assert {file.name for file in project.iterdir()} == set(files)


ATTEMPTS = """
import json, os, pathlib, socket

def attempt(work):
    try:
        work()
    except OSError:
        return False
    return True

def test_attempts():
    home = pathlib.Path({home!r})
    done = {{
        "read the home": attempt(lambda: (home / "private.txt").read_text()),
        "read settings": attempt(lambda: pathlib.Path(".onetool/secrets.yaml").read_text()),
        "read a denied file": attempt(lambda: pathlib.Path("src/a.secret").read_text()),
        "read nested settings": attempt(lambda: pathlib.Path("src/.onetool/secrets.yaml").read_text()),
        "write settings": attempt(lambda: pathlib.Path(".onetool/onetool.yaml").write_text("x")),
        "write a protected file": attempt(lambda: pathlib.Path("package.json").write_text("x")),
        "create a protected file": attempt(lambda: pathlib.Path("uv.toml").write_text("x")),
        "write outside": attempt(lambda: (home / "new.txt").write_text("x")),
        "open a socket": attempt(lambda: socket.socket().close()),
        "read the environment": any("xyzzy" in value or "pa55" in value for value in os.environ.values()),
        "read the project": attempt(lambda: pathlib.Path("src/a.txt").read_text()),
        "write the project": attempt(lambda: pathlib.Path("out/new.txt").write_text("x")),
        "write a temporary file": attempt(lambda: __import__("tempfile").TemporaryFile().close()),
        "make a link": attempt(lambda: pathlib.Path("out/link").symlink_to("a.txt")),
    }}
    pathlib.Path("out/done.json").write_text(json.dumps(done))
"""


@pytest.mark.slow
@pytest.mark.skipif(not confine.can_confine_programs(), reason="this kernel has no Landlock")
@pytest.mark.parametrize("granted", [("exec",), ("exec", "network")])
def test_tests_are_confined_to_the_files_of_the_agent(
    project: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    granted: tuple[str, ...],
) -> None:
    home = write(tmp_path_factory.mktemp("home"), {"private.txt": "x"})
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HTTPS_PROXY", "http://ada:pa55@proxy.example.com")
    files: dict[str, str | bytes] = {
        "src/a.txt": "x",
        "out/a.txt": "x",
        "src/a.secret": "x",
        "src/.onetool/secrets.yaml": "x",
        "package.json": "{}",
    }
    files |= {".onetool/secrets.yaml": "x", "tests/test_a.py": ATTEMPTS.format(home=str(home))}
    write(project, files)
    protected = [str(project / name) for name in ("uv.toml", "package.json")]
    sandbox = {**SANDBOX, "hidden_names": [".onetool"], "protected_paths": protected}
    variables = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    answer = call("test.run", {"env": variables}, project, *granted, sandbox=sandbox).unwrap()
    assert get_counts(answer) == (1, 0, 0), answer
    allowed = {"read the project", "write the project", "write a temporary file", "make a link"}
    allowed |= {"open a socket"} if "network" in granted else set()
    done = json.loads((project / "out/done.json").read_text())
    assert {name for name, is_done in done.items() if is_done} == allowed


@pytest.mark.slow
@pytest.mark.skipif(not confine.can_confine_programs(), reason="this kernel has no Landlock")
def test_variables_of_a_call_have_no_effect_before_the_tests_are_confined(project: Path) -> None:
    outside = project / "outside"
    startup = f"import pathlib\npathlib.Path({str(outside)!r}, 'ran').touch()\n"
    write(
        project,
        {"outside/keep.txt": "x", "here/test_a.py": PASSING, "here/sitecustomize.py": startup},
    )
    env = {"PYTHONPATH": str(project / "here"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    assert get_counts(call("test.run", {"env": env}, project / "here", "exec").unwrap()) == (
        2,
        0,
        0,
    )
    assert not (outside / "ran").exists()


def test_a_missing_pytest_is_an_error_with_a_hint(tmp_path: Path) -> None:
    write(tmp_path, {"test_a.py": PASSING})
    with pytest.raises(ToolError, match="Hint: run `uv venv"):
        run_tests(tmp_path, env={"PATH": "/nowhere"})


@pytest.mark.slow
def test_no_temporary_files_are_left(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = project / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    write(project, {"test_a.py": PASSING})
    run_tests(project, path="test_a.py")
    assert eventually(lambda: not list(scratch.glob("onetool-test-*")))


# Elixir is not installed on test machines: a script prints the output of the real program.

MIX_PASSES = """\
Compiling 1 file (.ex)
Generated hello app
Running ExUnit with seed: 812345, max_cases: 4

..*.........
Finished in 2.3 seconds (0.1s async, 2.2s sync)
2 doctests, 10 tests, 0 failures, 1 skipped
"""
MIX_FAILS = """\
Running ExUnit with seed: 0, max_cases: 16

.

  1) test greets the world (HelloTest)
     test/hello_test.exs:5
     Assertion with == failed
     code:  assert Hello.hello() == :word
     left:  :world
     right: :word

     stacktrace:
       test/hello_test.exs:6: (test)

.
Finished in 0.02 seconds (0.00s async, 0.02s sync)
1 doctest, 2 tests, 1 failure
"""


def mix_project(directory: Path, output: str, status: int) -> Path:
    program = f"#!/bin/sh\necho \"$@\" > called\ncat <<'END'\n{output}END\nexit {status}\n"
    write(directory, {"mix.exs": "", "bin/mix": program, "test/hello_test.exs": ""})
    (directory / "bin/mix").chmod(0o755)
    return directory


def run_mix(directory: Path, **params: Any) -> dict[str, Any]:
    return run_tests(directory, env={"PATH": f"{directory}/bin:/usr/bin:/bin"}, **params)


@pytest.mark.spec("toolbus.test-run.mix")
def test_a_directory_with_a_mix_file_is_tested_by_mix(tmp_path: Path) -> None:
    answer = run_mix(mix_project(tmp_path, MIX_PASSES, 0))
    assert get_counts(answer) == (11, 0, 1)
    assert answer["failures"] == []
    assert (tmp_path / "called").read_text() == "test\n"


@pytest.mark.spec("toolbus.test-run.mix", "toolbus.test-run.path")
def test_failures_of_mix_are_parsed(tmp_path: Path) -> None:
    answer = run_mix(mix_project(tmp_path, MIX_FAILS, 2), path="test/hello_test.exs:5")
    assert get_counts(answer) == (2, 1, 0)
    (failure,) = answer["failures"]
    assert failure["name"] == "test greets the world (HelloTest)"
    assert (failure["file"], failure["line"]) == ("test/hello_test.exs", 5)
    assert "right: :word" in failure["message"]
    assert (tmp_path / "called").read_text() == f"test {tmp_path}/test/hello_test.exs:5\n"


@pytest.mark.spec("toolbus.test-run.mix", "toolbus.test-run.never-half-a-success")
@pytest.mark.parametrize(
    ("output", "status", "message"),
    [
        (MIX_PASSES, 1, "contradicts the exit status"),
        (MIX_FAILS, 0, "contradicts the exit status"),
        ("** (CompileError) lib/hello.ex:3: syntax error\n", 1, "no summary"),
        ("There are no tests to run\n", 0, "no summary"),
        ("0 tests, 0 failures\n", 0, "no tests found"),
        (MIX_PASSES, 137, "SIGKILL"),
    ],
)
def test_mix_without_a_result_is_an_error(
    tmp_path: Path, output: str, status: int, message: str
) -> None:
    with pytest.raises(ToolError, match=message):
        run_mix(mix_project(tmp_path, output, status))


@pytest.mark.spec("toolbus.test-run.mix")
def test_a_missing_mix_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, {"mix.exs": ""})
    with pytest.raises(ToolError, match="mix is not installed"):
        run_tests(tmp_path, env={"PATH": "/nowhere"})


# --- json and yaml --------------------------------------------------------------------------------

OTTO = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@pytest.mark.spec("toolbus.json.parse")
def test_json_is_parsed(tmp_path: Path) -> None:
    text = '{"name": "Otto", "version": "0.1.0"}'
    assert parse("json", text, tmp_path) == {"name": "Otto", "version": "0.1.0"}
    assert isinstance(call("json.parse", {"json": text}, tmp_path, "exec").error, PermissionDenied)


@pytest.mark.spec("toolbus.yaml.parse")
def test_yaml_is_parsed(tmp_path: Path) -> None:
    text = "name: Otto\non: [yes, 012, 1.0, ~]\n"
    assert parse("yaml", text, tmp_path) == {"name": "Otto", "on": ["yes", 12, 1.0, None]}
    assert isinstance(call("yaml.parse", {"yaml": text}, tmp_path, "exec").error, PermissionDenied)


@pytest.mark.spec("toolbus.json.schema", "toolbus.yaml.schema")
@pytest.mark.parametrize("pack", ["json", "yaml"])
def test_data_that_violates_its_schema_is_an_error(tmp_path: Path, pack: str) -> None:
    assert parse(pack, '{"name": "Otto"}', tmp_path, OTTO) == {"name": "Otto"}
    for text in ('{"name": 1}', "{}", "[]"):
        with pytest.raises(ArgumentError, match="does not match the schema") as caught:
            parse(pack, text, tmp_path, OTTO)
        assert (caught.value.type, caught.value.field) == ("validation_error", pack)


@pytest.mark.spec("toolbus.json.schema", "toolbus.yaml.schema")
@pytest.mark.parametrize("pack", ["json", "yaml"])
@pytest.mark.parametrize(
    "schema",
    [{"type": "nonsense"}, {"$ref": "http://127.0.0.1:9/x"}, {"$ref": "file:///etc/passwd"}],
)
def test_an_invalid_schema_is_an_error_that_names_it(
    tmp_path: Path, pack: str, schema: dict[str, Any]
) -> None:
    with pytest.raises(ArgumentError, match="invalid schema") as caught:
        parse(pack, "1", tmp_path, schema)
    assert caught.value.field == "schema"


@pytest.mark.slow
@pytest.mark.spec("toolbus.json.inverse")
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
@settings(deadline=None)
def test_json_parse_is_the_inverse_of_encoding(value: Any) -> None:
    assert parse("json", json.dumps(value), Path()) == value


@pytest.mark.spec("toolbus.json.hostile")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested more than 200 levels deep"),
        ("[" * 201 + "]" * 201, "nested more than 200 levels deep"),
        ('{"a":' * 500 + "1" + "}" * 500, "nested more than 200 levels deep"),
        ('"' + "x" * (9 << 20) + '"', "bytes"),
        ("1" * 5000, "too many digits"),
        ("1e999", "1e999 is out of range"),
        ("[NaN]", "NaN is not allowed"),
        ("{'a': 1}", "in line 1, column 2"),
        ("", "not valid JSON"),
    ],
)
def test_hostile_json_is_a_clear_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        parse("json", text, tmp_path)


ALIASES = "a0: &a0 [x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
)


@pytest.mark.spec("toolbus.yaml.hostile")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "deep"),
        ("- " * 100_000, "deep"),
        ("a: " + "x" * (5 << 20), "bytes"),
        (ALIASES, "aliases"),
        ("&a [*a]", "refers to a value that contains it"),
        ("!!python/object/apply:os.system [id]", "tag is not allowed"),
        ("a: 1\n---\nb: 2\n", "second document"),
        ("a: [", "not valid YAML"),
        ("a: 1\na: 2", "duplicate key 'a'"),
        ("a: \ud800", "surrogate"),
    ],
)
def test_hostile_yaml_is_a_clear_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        parse("yaml", text, tmp_path)
