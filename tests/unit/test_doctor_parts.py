"""The valid parts of an invalid configuration, and the report of problems."""

from pathlib import Path

import pytest

from onetool.settings.load import examine
from onetool.settings.paths import find_directories
from onetool.sources.checks import sort_problems
from onetool.util.problem import OK, WARNING, Location, Problem, storage_problem


def write_settings(home: Path, text: str) -> None:
    directory = home / ".onetool"
    directory.mkdir()
    (directory / "onetool.yaml").write_text(text, encoding="utf-8")


def test_valid_parts_of_an_invalid_configuration_are_used(tmp_path: Path) -> None:
    write_settings(
        tmp_path,
        """\
executon: {}
log_level: 5
aliases: {a: b.c}
servers:
  good: {command: x}
  bad: {command: x, timeout: never}
  needy: {command: x, env: {A: "${NOBODY}"}}
agents: {pilot: {permissions: [fly], clients: [c]}}
auth: {tokens: [{name: t, hash: h, agent: pilot}, {name: u, hash: h, agent: nobody}]}
""",
    )
    examined = examine(find_directories({}, tmp_path, None, tmp_path), {})
    settings = examined.loaded.settings
    assert list(settings.servers) == ["good"]
    assert settings.aliases == {"a": "b.c"}
    assert settings.agents["pilot"].clients == ("c",)
    assert [error.message.partition(": ")[2].split()[0] for error in examined.errors] == [
        "executon",
        "log_level",
        "servers.bad.timeout",
        "servers.needy.env.A",
        "agents.pilot.permissions",
        "auth.tokens[1].agent",
    ]
    assert str(examined.locate(("servers", "good"))).endswith("onetool.yaml:5")


@pytest.mark.parametrize(
    "text", ["servers: 5\n", "agents: [x]\n", "snippets: {a: {}}\n", "tools_dir: [1, {}]\n"]
)
def test_valid_settings_next_to_an_invalid_section_are_used(tmp_path: Path, text: str) -> None:
    write_settings(tmp_path, f"log_level: DEBUG\n{text}")
    examined = examine(find_directories({}, tmp_path, None, tmp_path), {})
    assert examined.errors
    assert examined.loaded.settings.log_level == "DEBUG"


def test_a_file_of_a_newer_version_is_reported_and_other_files_are_used(tmp_path: Path) -> None:
    write_settings(tmp_path, "version: 2\nthings: {}\n")
    directory = tmp_path / ".onetool"
    (directory / "prompts.yaml").write_text("version: 1\ninstructions: brief\n", encoding="utf-8")
    examined = examine(
        find_directories({"ONETOOL_VERSION": "0.9"}, tmp_path, None, tmp_path),
        {"ONETOOL_VERSION": "0.9"},
    )
    (error,) = examined.errors
    assert "onetool.yaml:1: was written by a newer OneTool" in error.message
    assert "upgrade" in error.hint
    assert examined.loaded.settings.prompts.instructions == "brief"


def report(tmp_path: Path, *problems: Problem) -> list[Problem]:
    return sort_problems(
        problems, examine(find_directories({}, tmp_path, None, tmp_path), {}).loaded
    )


def test_a_long_message_is_truncated(tmp_path: Path) -> None:
    short, long = report(tmp_path, Problem("short"), Problem("z" * 200_000))
    assert short.message == "short"
    assert long.message.endswith("… (200,000 characters)")


def test_problems_are_sorted_by_severity_without_duplicates(tmp_path: Path) -> None:
    fine, odd, bad = Problem("fine", level=OK), Problem("odd", level=WARNING), Problem("bad")
    assert report(tmp_path, fine, odd, bad, odd, fine) == [bad, odd, fine]


def test_problems_inside_an_unusable_directory_are_not_reported(tmp_path: Path) -> None:
    directory = storage_problem("is no directory", tmp_path / "data")
    inside = storage_problem("cannot be written", tmp_path / "data" / "stats.db")
    beside = storage_problem("cannot be written", tmp_path / "data-of-others")
    setting = Problem(
        "is an unknown key", "write version", Location(str(tmp_path / "data" / "onetool.yaml"), 1)
    )
    assert report(tmp_path, directory, inside, beside, setting) == [directory, beside, setting]


def test_a_problem_with_a_line_has_a_hint_with_the_line(tmp_path: Path) -> None:
    (found,) = report(tmp_path, Problem("must be a number", location=Location("/a/b.yaml", 3)))
    assert found.hint == "fix line 3"


def test_a_hint_of_several_lines_is_one_problem() -> None:
    problem = Problem(
        "the server fails", "see what it says: x\nor leave it out", Location("/a.yaml", 2), "c"
    )
    assert str(problem) == "the server fails\nHint: see what it says: x\nor leave it out"
    assert problem.to_line() == "the server fails. Hint: see what it says: x; or leave it out"
    assert problem.to_json() == {
        "message": "the server fails",
        "hint": "see what it says: x\nor leave it out",
        "location": {"file": "/a.yaml", "line": 2},
        "code": "c",
        "level": "problem",
    }
