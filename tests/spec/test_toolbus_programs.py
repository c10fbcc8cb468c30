"""Specification 5: `grep`, `test.run`, `json.parse` and `yaml.parse`, called through a bus as everybody calls them."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import given, settings, strategies as st
from tests.support import ProcessWatch, advance_time, eventually, list_descendants
from uv import find_uv_bin

from onetool import Result, ToolBus, ToolContext
from onetool.context import permissions
from onetool.errors import ArgumentError, PermissionDenied, SandboxDenied, ToolError, ToolTimeout
from onetool.tools import grep_tools, json_tools, test_tools, yaml_tools
from onetool_child import confine

MODULES = (grep_tools, test_tools, json_tools, yaml_tools)
VENV = str(Path(sys.executable).parent)
SANDBOX = {"enabled": True, "denied_patterns": ["*.secret", "private/**"]}


def bus() -> ToolBus:
    made = ToolBus()
    for module in MODULES:
        made.register_tool(module)
    return made


def call(name: str, params: dict[str, Any], folder: Path, *granted: str, sandbox: Any = SANDBOX) -> Result:
    words = granted or ("read", "exec")
    context = ToolContext(permissions=permissions(words), working_dir=folder, sandbox=sandbox)
    return anyio.run(bus().call_tool, name, params, context)


def parsed(pack: str, text: str, folder: Path, schema: Any = None) -> Any:
    return call(f"{pack}.parse", {pack: text, "schema": schema}, folder).unwrap()


# --- grep -----------------------------------------------------------------------------------------------------------


def found(folder: Path, pattern: str, **more: Any) -> dict[str, Any]:
    value: dict[str, Any] = call("grep", {"pattern": pattern, **more}, folder).unwrap()
    return value


def places(answer: dict[str, Any]) -> list[str]:
    return [f"{match['file']}:{match['line']}" for match in answer["results"]]


def tree(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


@pytest.mark.spec("toolbus.grep.result")
def test_grep_gives_files_lines_and_contents(tmp_path: Path) -> None:
    tree(tmp_path, {"lib/agent.ex": "# one\ndefmodule Otto.Agent do\nend\n", "lib/other.ex": "nothing"})
    answer = found(tmp_path, "defmodule.*Agent", path="lib/", max_results=50)
    assert answer["results"] == [
        {"file": "lib/agent.ex", "line": 2, "line_number": 2, "content": "defmodule Otto.Agent do"}
    ]
    assert (answer["total_matches"], answer["truncated"]) == (1, False)
    assert isinstance(answer["search_time_ms"], int)


@pytest.mark.spec("toolbus.grep.result")
def test_grep_needs_read(tmp_path: Path) -> None:
    assert isinstance(call("grep", {"pattern": "x"}, tmp_path, "exec").error, PermissionDenied)


@pytest.mark.spec("toolbus.grep.result")
def test_what_grep_finds_comes_in_order(tmp_path: Path) -> None:
    tree(tmp_path, {f"{name}.txt": "x\nx\n" for name in "dbca"})
    assert places(found(tmp_path, "x")) == [f"{name}.txt:{line}" for name in "abcd" for line in (1, 2)]


@pytest.mark.spec("toolbus.grep.default-path")
def test_grep_searches_the_working_folder(tmp_path: Path) -> None:
    tree(tmp_path, {"here/a.txt": "x", "b.txt": "x"})
    assert places(found(tmp_path / "here", "x")) == ["a.txt:1"]


def test_grep_searches_a_single_file(tmp_path: Path) -> None:
    tree(tmp_path, {"a.txt": "x", "b.txt": "x"})
    assert places(found(tmp_path, "x", path="b.txt")) == ["b.txt:1"]


@pytest.mark.spec("toolbus.grep.limit")
@pytest.mark.parametrize(("limit", "count", "truncated"), [({}, 1000, True), ({"max_results": 1200}, 1200, False)])
def test_grep_gives_so_many_and_says_whether_there_are_more(
    tmp_path: Path, limit: dict[str, int], count: int, truncated: bool
) -> None:
    tree(tmp_path, {f"{number}.txt": "x\n" * 300 for number in range(4)})
    answer = found(tmp_path, "x", **limit)
    assert len(answer["results"]) == answer["total_matches"] == count
    assert answer["truncated"] is truncated


@pytest.mark.spec("toolbus.grep.case")
def test_case_counts_unless_switched_off(tmp_path: Path) -> None:
    tree(tmp_path, {"a.txt": "Needle\nneedle\n"})
    assert places(found(tmp_path, "needle")) == ["a.txt:2"]
    assert places(found(tmp_path, "needle", case_sensitive=False)) == ["a.txt:1", "a.txt:2"]


def slow_tree(folder: Path) -> Path:
    """More to read than a machine does in a minute, in the space of one file."""
    file = folder / "0.txt"
    file.write_text(f"{'ab ' * 30}\n" * 200_000)
    for number in range(1, 4000):
        (folder / f"{number}.txt").hardlink_to(file)
    return folder


SLOW = r"(\w+ ){5}[a-z]+\d"


def ripgreps() -> set[int]:
    return {process for process in list_descendants(os.getpid()) if _program(process) == "rg"}


def _program(process: int) -> str:
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return ""


@pytest.mark.spec("toolbus.grep.timeout")
def test_at_its_timeout_grep_gives_what_it_found_and_is_gone(tmp_path: Path) -> None:
    answer = found(slow_tree(tmp_path), SLOW, timeout_ms=300)
    assert answer["truncated"]
    assert answer["timed_out"]
    assert not ripgreps()


@pytest.mark.spec("toolbus.grep.timeout")
def test_a_cancelled_grep_is_gone(tmp_path: Path) -> None:
    slow_tree(tmp_path)
    context = ToolContext(permissions=permissions(["read"]), working_dir=tmp_path)
    with start_blocking_portal("asyncio") as portal:
        under_way = portal.start_task_soon(bus().call_tool, "grep", {"pattern": SLOW, "timeout_ms": 60_000}, context)
        assert eventually(ripgreps)
        with ProcessWatch(ripgreps()) as watch:
            under_way.cancel()
            assert watch.all_ended()


@pytest.mark.spec("toolbus.grep.pattern-is-no-option")
@pytest.mark.parametrize(
    "pattern", ["--pre=./x.sh", "-f/etc/passwd", "--files", "--", "-", "--no-ignore\n--pre=./x.sh"]
)
@pytest.mark.parametrize("where", ["pattern", "glob", "path"])
def test_nothing_that_is_passed_is_an_option(tmp_path: Path, pattern: str, where: str) -> None:
    tree(tmp_path, {"a.txt": "--pre=./x.sh and --files\n", "x.sh": "#!/bin/sh\ntouch ran\n"})
    (tmp_path / "x.sh").chmod(0o755)
    answer = call("grep", {"pattern": "nothing", where: pattern}, tmp_path)
    assert not (tmp_path / "ran").exists()
    assert not answer.ok or all(match["file"] == "a.txt" or where == "pattern" for match in answer.value["results"])


@pytest.mark.spec("toolbus.grep.pattern-is-no-option")
def test_a_pattern_that_looks_like_an_option_is_searched_for(tmp_path: Path) -> None:
    tree(tmp_path, {"a.txt": "x\n--pre=./x.sh\n"})
    assert places(found(tmp_path, "--pre=./x.sh")) == ["a.txt:2"]


@pytest.mark.spec("toolbus.grep.pattern-is-no-option")
def test_no_file_of_settings_changes_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, {"a.txt": "x", "settings": "--invert-match\n"})
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", str(tmp_path / "settings"))
    assert places(found(tmp_path, "x")) == ["a.txt:1"]


@pytest.mark.spec("toolbus.grep.sandbox")
@pytest.mark.parametrize(
    "options", [{}, {"hidden": True}, {"glob": "*"}, {"glob": "*.secret"}, {"glob": "**/private/**"}]
)
def test_what_is_denied_is_not_searched(tmp_path: Path, options: dict[str, Any]) -> None:
    tree(tmp_path, {"a.txt": "x", "deep/b.secret": "x", "private/c.txt": "x", ".d.secret": "x"})
    assert set(places(found(tmp_path, "x", **options))) <= {"a.txt:1"}


@pytest.mark.spec("toolbus.grep.sandbox")
@pytest.mark.parametrize("path", ["..", "/etc", "link", "../outside", "private/c.txt", "deep/b.secret"])
def test_a_place_outside_is_refused(tmp_path: Path, path: str) -> None:
    here = tree(tmp_path / "here", {"a.txt": "x", "private/c.txt": "x", "deep/b.secret": "x"})
    tree(tmp_path / "outside", {"o.txt": "x"})
    (here / "link").symlink_to(tmp_path / "outside")
    assert isinstance(call("grep", {"pattern": "x", "path": path}, here).error, SandboxDenied)


@pytest.mark.spec("toolbus.grep.sandbox")
def test_links_are_not_followed(tmp_path: Path) -> None:
    here = tree(tmp_path / "here", {"a.txt": "x"})
    outside = tree(tmp_path / "outside", {"o.txt": "x"})
    (here / "folder").symlink_to(outside)
    (here / "file").symlink_to(outside / "o.txt")
    assert places(found(here, "x")) == ["a.txt:1"]


@pytest.mark.slow
@pytest.mark.spec("toolbus.grep.sandbox")
def test_a_swapped_link_wins_nothing(tmp_path: Path) -> None:
    here = tree(tmp_path / "here", {f"folder/{number}.txt": "x mine" for number in range(50)})
    outside = tree(tmp_path / "outside", {f"{number}.txt": "x secret" for number in range(50)})
    (here / "link").symlink_to(outside)
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            for old, new in (("folder", "kept"), ("link", "folder"), ("folder", "link"), ("kept", "folder")):
                (here / old).rename(here / new)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        contents = {match["content"] for _ in range(40) for match in found(here, "x")["results"]}
    finally:
        done.set()
        swapping.join()
    assert contents == {"x mine"}


@pytest.mark.spec("toolbus.grep.sandbox")
@pytest.mark.skipif(not confine.landlock_version(), reason="this kernel has no Landlock")
def test_the_kernel_keeps_the_program_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a folder had been swapped for a link while it is searched: the program is made to follow links."""
    here = tree(tmp_path / "here", {"a.txt": "x"})
    outside = tree(tmp_path / "outside", {"o.txt": "x"})
    (here / "folder").symlink_to(outside)
    monkeypatch.setattr(grep_tools, "OPTIONS", (*grep_tools.OPTIONS, "--follow"))
    answer = found(here, "x")
    assert places(answer) == ["a.txt:1"]
    assert answer["incomplete"]


@pytest.mark.spec("toolbus.grep.sandbox")
def test_what_the_program_names_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if neither the patterns nor the kernel had kept the program away."""
    here = tree(tmp_path / "here", {"a.txt": "x", "b.secret": "x"})
    outside = tree(tmp_path / "outside", {"o.txt": "x"})
    (here / "folder").symlink_to(outside)
    monkeypatch.setattr(grep_tools, "OPTIONS", (*grep_tools.OPTIONS, "--follow"))
    monkeypatch.setattr("onetool_child.confine.landlock", lambda *_, **__: None)
    monkeypatch.setattr("onetool.files.Files.list_denied_globs", lambda *_: [])
    assert places(found(here, "x")) == ["a.txt:1"]


def test_what_gitignore_names_is_left_out_from_any_folder(tmp_path: Path) -> None:
    tree(tmp_path, {".git/HEAD": "", ".gitignore": "build/\n*.log\n", "src/a.txt": "x", "src/b.log": "x"})
    tree(tmp_path, {"build/c.txt": "x"})
    assert places(found(tmp_path, "x")) == ["src/a.txt:1"]
    assert places(found(tmp_path, "x", path="src")) == ["src/a.txt:1"]
    assert "incomplete" not in found(tmp_path, "x", path="src")


def test_a_working_tree_of_another_repository_is_searched_whole(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {".git": "gitdir: /nowhere/.git/worktrees/a\n", ".gitignore": "*.log\n", "src/a.txt": "x", "src/b.log": "x"},
    )
    answer = found(tmp_path, "x", path="src")
    assert places(answer) == ["src/a.txt:1"]
    assert "incomplete" not in answer


def test_hidden_files_are_searched_when_asked_for(tmp_path: Path) -> None:
    tree(tmp_path, {".hidden": "x", "a.txt": "x"})
    assert places(found(tmp_path, "x")) == ["a.txt:1"]
    assert places(found(tmp_path, "x", hidden=True)) == [".hidden:1", "a.txt:1"]


def test_a_glob_picks_files(tmp_path: Path) -> None:
    tree(tmp_path, {"src/a.py": "x", "b.py": "x", "c.txt": "x"})
    assert places(found(tmp_path, "x", glob="*.py")) == ["b.py:1", "src/a.py:1"]
    assert places(found(tmp_path, "x", glob="!*.py")) == ["c.txt:1"]


@pytest.mark.parametrize(
    ("pattern", "words"),
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
def test_a_pattern_that_cannot_be_searched_for_is_an_error_that_says_why(
    tmp_path: Path, pattern: str, words: str
) -> None:
    with pytest.raises(ToolError, match=words):
        found(tree(tmp_path, {"a.txt": "x"}), pattern)


@pytest.mark.parametrize("options", [{"max_results": 0}, {"timeout_ms": -1}, {"glob": "a\0"}, {"glob": "{a"}])
def test_arguments_that_make_no_sense_are_errors(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ToolError):
        found(tree(tmp_path, {"a.txt": "x"}), "x", **options)


def test_limits_may_be_as_high_as_one_likes(tmp_path: Path) -> None:
    tree(tmp_path, {"a.txt": "x"})
    assert places(found(tmp_path, "x", max_results=10**30, timeout_ms=10**400)) == ["a.txt:1"]
    assert places(found(tmp_path, "x", max_results=1.0)) == ["a.txt:1"]


def test_an_empty_pattern_fits_every_line(tmp_path: Path) -> None:
    assert places(found(tree(tmp_path, {"a.txt": "x\n\ny\n"}), "")) == ["a.txt:1", "a.txt:2", "a.txt:3"]


def test_a_long_line_is_cut_and_said_to_be(tmp_path: Path) -> None:
    tree(tmp_path, {"a.txt": "é" * 5_000_000 + "needle" + "é" * 1000, "b.txt": "n" + "\u0301" * 3_000_000 + "needle"})
    for match in found(tmp_path, "needle")["results"]:
        assert match["cut"]
        assert match["column"] > 2000
        assert len(match["content"]) <= 2000


def test_lines_in_other_encodings_are_shown_as_well_as_they_can_be(tmp_path: Path) -> None:
    tree(tmp_path, {"latin.txt": b"caf\xe9 x\r\n", "sixteen.txt": "\U0001f600 x".encode("utf-16")})
    matches = found(tmp_path, "x")["results"]
    assert [match["content"] for match in matches] == ["caf\ufffd x", "\U0001f600 x"]
    json.dumps(matches, ensure_ascii=False).encode()


def test_odd_file_names_are_no_trouble(tmp_path: Path) -> None:
    """One that is no text cannot be opened by any tool, so it is not searched either."""
    tree(tmp_path, {os.fsdecode(b"caf\xe9.txt"): "x", "two\nlines\n.txt": "x", "a:1:2:b": "x"})
    assert places(found(tmp_path, "x")) == ["a:1:2:b:1", "two\nlines\n.txt:1"]


def test_binary_files_are_left_out(tmp_path: Path) -> None:
    tree(tmp_path, {"a.bin": b"x\0x\n", "late.bin": b"x\n" + b"y\n" * 100_000 + b"\0\nx\n", "t.txt": "x"})
    assert places(found(tmp_path, "x")) == ["late.bin:1", "t.txt:1"]


def test_a_file_name_cannot_pass_for_another(tmp_path: Path) -> None:
    tree(tmp_path, {f"a\n{str(tmp_path).lstrip('/')}/b.txt": "x", "c.txt:1:1:fake": "x"})
    assert all((tmp_path / match["file"]).exists() for match in found(tmp_path, "x")["results"])


def test_what_is_neither_file_nor_folder_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ToolError):
        found(tmp_path, "x", path="pipe")


def test_an_empty_folder_has_nothing(tmp_path: Path) -> None:
    assert found(tmp_path, "x")["results"] == []


# --- test.run -------------------------------------------------------------------------------------------------------

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
    """A folder whose pytest is that of these tests, and nothing of ours reaches it."""
    monkeypatch.setenv("PATH", f"{VENV}:{os.environ['PATH']}")
    monkeypatch.setenv("SECRET_OF_THE_SERVER", "xyzzy")
    return tmp_path


def outcome(folder: Path, env: dict[str, str] | None = None, **params: Any) -> dict[str, Any]:
    variables = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **(env or {})}  # they take longer than the tests
    value: dict[str, Any] = call("test.run", {**params, "env": variables}, folder, "exec").unwrap()
    return value


def counts(answer: dict[str, Any]) -> tuple[int, int, int]:
    return answer["passed"], answer["failed"], answer["skipped"]


@pytest.mark.slow
@pytest.mark.spec("toolbus.test-run.result", "toolbus.test-run.pytest")
def test_a_run_of_tests_gives_counts_and_failures(project: Path) -> None:
    tree(project, {"tests/test_it.py": MIXED})
    answer = outcome(project)
    assert counts(answer) == (1, 2, 1)
    assert answer["duration_ms"] > 0
    assert "1 passed" in answer["output"]
    fails, errs = answer["failures"]
    assert fails["name"] == "tests/test_it.py::TestGroup::test_fails"
    assert "they differ" in fails["message"]
    assert (fails["file"], fails["line"]) == ("tests/test_it.py", 12)
    assert (errs["name"], errs["file"]) == ("tests/test_it.py::test_errs", "tests/test_it.py")
    assert "no fixture" in errs["message"]


@pytest.mark.spec("toolbus.test-run.result")
def test_running_tests_needs_exec(tmp_path: Path) -> None:
    assert isinstance(call("test.run", {}, tmp_path, "read", "write", "network").error, PermissionDenied)


@pytest.mark.slow
@pytest.mark.spec("toolbus.test-run.path")
def test_a_path_picks_tests(project: Path) -> None:
    tree(project, {"test_a.py": PASSING, "more/test_b.py": PASSING})
    assert counts(outcome(project)) == (4, 0, 0)
    assert counts(outcome(project, path="more")) == (2, 0, 0)
    assert counts(outcome(project, path="test_a.py::test_two")) == (1, 0, 0)


@pytest.mark.spec("toolbus.test-run.path")
@pytest.mark.parametrize("path", ["--version", "-h", "--junitxml=/tmp/x", "-p nothing", "a\0b"])
def test_a_path_is_no_option(project: Path, path: str) -> None:
    tree(project, {"test_a.py": PASSING})
    with pytest.raises((ToolError, FileNotFoundError)):
        outcome(project, path=path)


@pytest.mark.slow
@pytest.mark.spec("toolbus.test-run.path")
@pytest.mark.parametrize("path", ["-x.py", "@options.py"])
def test_a_file_may_be_called_like_an_option(project: Path, path: str) -> None:
    tree(project, {path: PASSING})
    assert counts(outcome(project, path=path)) == (2, 0, 0)


@pytest.mark.spec("toolbus.test-run.path")
def test_a_path_outside_of_the_sandbox_is_refused(project: Path) -> None:
    here = tree(project / "here", {"test_a.py": PASSING})
    tree(project, {"test_b.py": PASSING})
    assert isinstance(call("test.run", {"path": "../test_b.py::test_one"}, here).error, SandboxDenied)


@pytest.mark.slow
@pytest.mark.spec("toolbus.test-run.env")
def test_given_variables_reach_the_tests_and_others_do_not(project: Path) -> None:
    script = """
import os
def test_given(): assert os.environ["GIVEN"] == "a b=c"
def test_secret(): assert "SECRET_OF_THE_SERVER" not in os.environ
"""
    tree(project, {"test_env.py": script})
    assert counts(outcome(project, env={"GIVEN": "a b=c"})) == (2, 0, 0)


@pytest.mark.spec("toolbus.test-run.env")
@pytest.mark.parametrize("env", [{"A": 1}, {"A=B": "x"}, {"": "x"}, {"A": "\0"}, {"A": "\ud800"}])
def test_a_variable_that_cannot_be_is_refused(project: Path, env: dict[str, Any]) -> None:
    tree(project, {"test_a.py": PASSING})
    assert not call("test.run", {"env": env}, project).ok


LEAVES_CHILDREN = """
import subprocess, time
def test_leaves():
    script = "setsid sleep 300 & echo $! > started"
    subprocess.run(["setsid", "sh", "-c", script], check=True)
    {then}
"""


def started(folder: Path) -> list[int]:
    file = folder / "started"
    return list(map(int, file.read_text().split())) if file.exists() else []


@pytest.mark.slow
@pytest.mark.spec("toolbus.test-run.timeout", "toolbus.test-run.never-half-a-success")
def test_at_its_timeout_the_whole_tree_is_killed(project: Path) -> None:
    tree(project, {"test_a.py": LEAVES_CHILDREN.format(then="time.sleep(300)"), "test_0.py": PASSING})
    before = list_descendants(os.getpid())
    with start_blocking_portal("asyncio") as portal:
        context = ToolContext(permissions=permissions(["exec"]), working_dir=project)
        under_way = portal.start_task_soon(bus().call_tool, "test.run", {"timeout_ms": 500_000}, context)
        assert eventually(lambda: started(project))
        with ProcessWatch([*started(project), *(list_descendants(os.getpid()) - before)]) as watch:
            portal.call(advance_time, 500)
            error = under_way.result().error
            assert watch.all_ended()
    assert isinstance(error, ToolTimeout)
    assert error.timeout_ms == 500_000
    assert "test_0.py" in error.output


@pytest.mark.slow
@pytest.mark.spec("toolbus.test-run.timeout")
def test_what_tests_leave_behind_is_killed_at_their_end_too(project: Path) -> None:
    tree(project, {"test_a.py": LEAVES_CHILDREN.format(then="")})
    assert counts(outcome(project)) == (1, 0, 0)
    with ProcessWatch(started(project)) as watch:
        assert watch.all_ended()


FORGED = '<testsuites><testsuite tests="2"><testcase name="a"/><testcase name="b"/></testsuite></testsuites>'
BOMB = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>'


def forging(report: str, status: int) -> str:
    """A test that writes the report itself and is gone."""
    return f"""
import os, sys
from pathlib import Path

def test_one():
    file = next(word.split("=")[1] for word in sys.orig_argv if word.startswith("--junitxml"))
    Path(file).write_text({report!r})
    os._exit({status})
"""


def ending_with(status: int) -> str:
    return f"def pytest_sessionfinish(session): session.exitstatus = {status}"


@pytest.mark.slow
@pytest.mark.spec("toolbus.test-run.never-half-a-success")
@pytest.mark.parametrize(
    ("test", "conftest", "words"),
    [
        ("import os\ndef test_one(): pass\ndef test_two(): os._exit(0)", "", "no report"),
        ("import os\ndef test_one(): pass\ndef test_two(): os.kill(os.getpid(), 9)", "", "SIGKILL"),
        ("def test_one(): pass\ndef test_two(): raise KeyboardInterrupt", "", "interrupted"),
        ("x = 1", "", "no tests found"),
        (PASSING, ending_with(1), "contradicts the exit status"),
        ("def test_one(): assert 0", ending_with(0), "contradicts the exit status"),
        (PASSING, "raise SystemExit(0)", "no report"),
        (PASSING, "def pytest_collection(): 1 / 0", "internal error"),
        (
            PASSING,
            "def pytest_configure(config): raise config.args and __import__('pytest').UsageError('no')",
            "pytest rejected its arguments",
        ),
        (forging(FORGED, 1), "", "contradicts the exit status"),
        (forging(FORGED[:60], 0), "", "damaged"),
        (forging(BOMB + FORGED, 0), "", "document type"),
        (forging(FORGED.replace('"2"', '"3"'), 0), "", "fewer tests"),
        (forging("", 0).replace("Path(file).write_text('')", "os.mkfifo(file)"), "", "not a regular file"),
    ],
)
def test_an_incomplete_run_is_not_a_success(project: Path, test: str, conftest: str, words: str) -> None:
    tree(project, {"test_a.py": test, "conftest.py": conftest})
    with pytest.raises(ToolError, match=words):
        outcome(project)


@pytest.mark.slow
def test_tests_that_cannot_be_collected_are_failures(project: Path) -> None:
    tree(project, {"test_a.py": PASSING, "test_b.py": "import no_such_module\n"})
    answer = outcome(project)
    assert answer["failed"] == 1
    assert answer["incomplete"]
    assert answer["failures"][0]["name"] == "test_b.py"
    assert "no_such_module" in answer["failures"][0]["message"]


@pytest.mark.slow
def test_the_python_of_the_folder_comes_first(project: Path) -> None:
    tree(project, {"test_a.py": PASSING, ".venv/bin/python": f'#!/bin/sh\ntouch used\nexec {sys.executable} "$@"\n'})
    (project / ".venv/bin/python").chmod(0o755)
    assert counts(outcome(project)) == (2, 0, 0)
    assert (project / "used").exists()


@pytest.mark.slow
def test_a_project_of_uv_is_tested_in_its_own_environment(project: Path) -> None:
    """Which has no pytest here: it would have to be fetched."""
    offline = {"UV_OFFLINE": "1", "UV_NO_CONFIG": "1"}
    tree(project, {"test_a.py": PASSING, "pyproject.toml": '[project]\nname = "a"\nversion = "1"\n'})
    subprocess.run([find_uv_bin(), "lock", "--quiet"], cwd=project, env={**os.environ, **offline}, check=True)
    with pytest.raises(ToolError, match="No module named pytest"):
        outcome(project, env=offline)
    assert (project / ".venv").is_dir()


def test_without_any_pytest_it_says_what_to_do(tmp_path: Path) -> None:
    tree(tmp_path, {"test_a.py": PASSING})
    with pytest.raises(ToolError, match="Hint: run `uv venv"):
        outcome(tmp_path, env={"PATH": "/nowhere"})


@pytest.mark.slow
def test_nothing_is_left_in_the_folder_for_temporary_files(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = project / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    tree(project, {"test_a.py": PASSING})
    outcome(project, path="test_a.py")
    assert eventually(lambda: not list(scratch.glob("onetool-test-*")))


# Elixir is not installed on the machines that run these tests: a program in its place prints what the real one prints.

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


def mix_project(folder: Path, output: str, status: int) -> Path:
    program = f"#!/bin/sh\necho \"$@\" > called\ncat <<'END'\n{output}END\nexit {status}\n"
    tree(folder, {"mix.exs": "", "bin/mix": program, "test/hello_test.exs": ""})
    (folder / "bin/mix").chmod(0o755)
    return folder


def mixed(folder: Path, **params: Any) -> dict[str, Any]:
    return outcome(folder, env={"PATH": f"{folder}/bin:/usr/bin:/bin"}, **params)


@pytest.mark.spec("toolbus.test-run.mix")
def test_a_folder_with_a_mix_file_is_tested_by_mix(tmp_path: Path) -> None:
    answer = mixed(mix_project(tmp_path, MIX_PASSES, 0))
    assert counts(answer) == (11, 0, 1)
    assert answer["failures"] == []
    assert (tmp_path / "called").read_text() == "test\n"


@pytest.mark.spec("toolbus.test-run.mix", "toolbus.test-run.path")
def test_failures_of_mix_are_read(tmp_path: Path) -> None:
    answer = mixed(mix_project(tmp_path, MIX_FAILS, 2), path="test/hello_test.exs:5")
    assert counts(answer) == (2, 1, 0)
    (failure,) = answer["failures"]
    assert failure["name"] == "test greets the world (HelloTest)"
    assert (failure["file"], failure["line"]) == ("test/hello_test.exs", 5)
    assert "right: :word" in failure["message"]
    assert (tmp_path / "called").read_text() == f"test {tmp_path}/test/hello_test.exs:5\n"


@pytest.mark.spec("toolbus.test-run.mix", "toolbus.test-run.never-half-a-success")
@pytest.mark.parametrize(
    ("output", "status", "words"),
    [
        (MIX_PASSES, 1, "contradicts the exit status"),
        (MIX_FAILS, 0, "contradicts the exit status"),
        ("** (CompileError) lib/hello.ex:3: syntax error\n", 1, "no summary"),
        ("There are no tests to run\n", 0, "no summary"),
        ("0 tests, 0 failures\n", 0, "no tests found"),
        (MIX_PASSES, 137, "SIGKILL"),
    ],
)
def test_mix_without_a_result_is_an_error(tmp_path: Path, output: str, status: int, words: str) -> None:
    with pytest.raises(ToolError, match=words):
        mixed(mix_project(tmp_path, output, status))


@pytest.mark.spec("toolbus.test-run.mix")
def test_a_mix_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    tree(tmp_path, {"mix.exs": ""})
    with pytest.raises(ToolError, match="mix is not installed"):
        outcome(tmp_path, env={"PATH": "/nowhere"})


# --- json and yaml --------------------------------------------------------------------------------------------------

OTTO = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@pytest.mark.spec("toolbus.json.parse")
def test_json_becomes_data(tmp_path: Path) -> None:
    text = '{"name": "Otto", "version": "0.1.0"}'
    assert parsed("json", text, tmp_path) == {"name": "Otto", "version": "0.1.0"}
    assert isinstance(call("json.parse", {"json": text}, tmp_path, "exec").error, PermissionDenied)


@pytest.mark.spec("toolbus.yaml.parse")
def test_yaml_becomes_data(tmp_path: Path) -> None:
    text = "name: Otto\non: [yes, 012, 1.0, ~]\n"
    assert parsed("yaml", text, tmp_path) == {"name": "Otto", "on": ["yes", 12, 1.0, None]}
    assert isinstance(call("yaml.parse", {"yaml": text}, tmp_path, "exec").error, PermissionDenied)


@pytest.mark.spec("toolbus.json.schema", "toolbus.yaml.schema")
@pytest.mark.parametrize("pack", ["json", "yaml"])
def test_data_that_does_not_fit_its_schema_is_an_error(tmp_path: Path, pack: str) -> None:
    assert parsed(pack, '{"name": "Otto"}', tmp_path, OTTO) == {"name": "Otto"}
    for text in ('{"name": 1}', "{}", "[]"):
        with pytest.raises(ArgumentError, match="does not match the schema") as caught:
            parsed(pack, text, tmp_path, OTTO)
        assert (caught.value.type, caught.value.field) == ("validation_error", pack)


@pytest.mark.spec("toolbus.json.schema", "toolbus.yaml.schema")
@pytest.mark.parametrize("pack", ["json", "yaml"])
@pytest.mark.parametrize(
    "schema", [{"type": "nonsense"}, {"$ref": "http://127.0.0.1:9/x"}, {"$ref": "file:///etc/passwd"}]
)
def test_a_schema_that_is_none_is_an_error_that_names_it(tmp_path: Path, pack: str, schema: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="invalid schema") as caught:
        parsed(pack, "1", tmp_path, schema)
    assert caught.value.field == "schema"


@pytest.mark.slow
@pytest.mark.spec("toolbus.json.inverse")
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
@settings(deadline=None)
def test_json_gives_back_whatever_was_encoded(value: Any) -> None:
    assert parsed("json", json.dumps(value), Path()) == value


@pytest.mark.spec("toolbus.json.hostile")
@pytest.mark.parametrize(
    ("text", "words"),
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
def test_hostile_json_ends_in_a_clear_error(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        parsed("json", text, tmp_path)


ALIASES = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))


@pytest.mark.spec("toolbus.yaml.hostile")
@pytest.mark.parametrize(
    ("text", "words"),
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
def test_hostile_yaml_ends_in_a_clear_error(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ToolError, match=words):
        parsed("yaml", text, tmp_path)
