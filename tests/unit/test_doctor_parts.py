"""How messages of the product become findings, and what is left of a configuration that is wrong."""

from pathlib import Path

import pytest

from ot.checks.finding import PROBLEM, shortened, told
from ot.config.load import examine
from ot.paths import find_folders


@pytest.mark.parametrize(
    ("message", "what", "advice"),
    [
        ("/a/b.yaml:3: x is unknown; did you mean y?", "/a/b.yaml:3: x is unknown", "in /a/b.yaml, line 3: write y"),
        ("/a/b.yaml: is open; type `chmod 600 /a/b.yaml`", "/a/b.yaml: is open", "type `chmod 600 /a/b.yaml`"),
        ("/a b/c.py, line 7: invalid syntax", "/a b/c.py, line 7: invalid syntax", "correct line 7 of /a b/c.py"),
        ("it is newer: upgrade it", "it is newer", "upgrade it"),
        ("no place at all", "no place at all", "correct what is named here"),
        ("", "", "correct what is named here"),
    ],
)
def test_what_is_wrong_and_what_to_do_stand_apart(message: str, what: str, advice: str) -> None:
    found = told(PROBLEM, message)
    assert (found.what, found.advice) == (what, advice)


def test_a_long_message_is_split_in_no_time() -> None:
    assert told(PROBLEM, "; type ; type: put. take " * 20_000 + "\n").what


def write(home: Path, text: str) -> None:
    folder = home / ".onetool"
    folder.mkdir()
    (folder / "onetool.yaml").write_text(text, encoding="utf-8")


def test_what_is_right_is_left_of_a_wrong_configuration(tmp_path: Path) -> None:
    write(
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
    examined = examine(find_folders({}, tmp_path, None, tmp_path), {})
    settings = examined.loaded.settings
    assert list(settings.servers) == ["good"]
    assert settings.aliases == {"a": "b.c"}
    assert settings.agents["pilot"].clients == ("c",)
    assert [error.partition(": ")[2].split()[0] for error in examined.errors] == [
        "executon",
        "log_level",
        "servers.bad.timeout",
        "servers.needy.env.A",
        "agents.pilot.permissions",
        "auth.tokens[1].agent",
    ]
    assert examined.place_of(("servers", "good")).endswith("onetool.yaml:5")


@pytest.mark.parametrize("text", ["servers: 5\n", "agents: [x]\n", "snippets: {a: {}}\n", "tools_dir: [1, {}]\n"])
def test_whatever_is_wrong_something_is_left(tmp_path: Path, text: str) -> None:
    write(tmp_path, f"log_level: DEBUG\n{text}")
    examined = examine(find_folders({}, tmp_path, None, tmp_path), {})
    assert examined.errors
    assert examined.loaded.settings.log_level == "DEBUG"


def test_a_file_of_a_newer_version_is_told_of_alone_and_the_others_count(tmp_path: Path) -> None:
    write(tmp_path, "version: 2\nthings: {}\n")
    folder = tmp_path / ".onetool"
    (folder / "prompts.yaml").write_text("version: 1\ninstructions: brief\n", encoding="utf-8")
    examined = examine(find_folders({"ONETOOL_VERSION": "0.9"}, tmp_path, None, tmp_path), {"ONETOOL_VERSION": "0.9"})
    (error,) = examined.errors
    assert "onetool.yaml:1: was written by a newer OneTool" in error
    assert examined.loaded.settings.prompts.instructions == "brief"


def test_what_is_endless_is_shortened() -> None:
    assert shortened("short") == "short"
    assert shortened("z" * 200_000).endswith("… (200,000 characters)")
