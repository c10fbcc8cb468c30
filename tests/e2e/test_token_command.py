"""`onetool token` with the settings of a home directory and of a project."""

import json
import stat
import subprocess
from pathlib import Path

import httpx2
import pytest
from tests.rest_support import serve_process
from tests.support import PROGRAM, configure, environment, run_cli

from onetool.config.load import load
from onetool.config.trust import is_trusted, trust
from onetool.paths import find_directories
from onetool.transports.http.tokens import hash_token
from onetool.util import yaml_loader

COMMENTED = "# mine\nagents:\n  robot: {permissions: [read]}  # it may look\nlog_level: INFO\n"


def create_token(home: Path, *arguments: str) -> str:
    done = run_cli(home, "token", "create", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def expect_error(home: Path, *arguments: str) -> str:
    done = run_cli(home, "token", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    return done.stderr


def config_file(home: Path) -> Path:
    return home / ".onetool" / "onetool.yaml"


def test_a_token_is_printed_once_and_only_its_hash_is_stored(tmp_path: Path) -> None:
    configure(tmp_path, COMMENTED)
    config_file(tmp_path).chmod(0o600)
    done = run_cli(tmp_path, "token", "create", "laptop", "--agent", "robot")
    token = done.stdout.strip()
    assert done.stdout == f"{token}\n"
    assert "not shown again" in done.stderr
    assert token not in done.stderr
    text = config_file(tmp_path).read_text("utf-8")
    assert text.startswith(COMMENTED)
    assert yaml_loader.read(text, "x").data["auth"] == {
        "tokens": [{"name": "laptop", "hash": hash_token(token), "agent": "robot"}]
    }
    assert stat.S_IMODE(config_file(tmp_path).stat().st_mode) == 0o600
    for file in (tmp_path / ".onetool").rglob("*"):
        assert not file.is_file() or token.encode() not in file.read_bytes()
    shown = run_cli(tmp_path, "token", "list")
    assert shown.stdout == "laptop  agent robot\n"
    assert hash_token(token) not in shown.stdout


def test_a_new_configuration_is_readable_only_by_its_owner(tmp_path: Path) -> None:
    data = json.loads(create_token(tmp_path, "ci", "--json"))
    assert (data["name"], data["agent"]) == ("ci", "default")
    assert stat.S_IMODE(config_file(tmp_path).stat().st_mode) == 0o600
    assert json.loads(run_cli(tmp_path, "token", "list", "--json").stdout) == {
        "tokens": [{"name": "ci", "agent": "default"}]
    }


@pytest.mark.slow
def test_tokens_are_deleted_individually(tmp_path: Path) -> None:
    configure(tmp_path, COMMENTED + "auth:\n  tokens:  # of mine\n    - {name: env, token_env: MY_TOKEN}\n")
    create_token(tmp_path, "a")
    assert (
        run_cli(tmp_path, "token", "list").stdout
        == "env  agent default, from environment variable MY_TOKEN\na    agent default\n"
    )
    deleted = run_cli(tmp_path, "token", "delete", "env")
    assert "Deleted token env from" in deleted.stdout
    assert json.loads(run_cli(tmp_path, "token", "delete", "a", "--json").stdout)["deleted"] == "a"
    assert config_file(tmp_path).read_text("utf-8") == COMMENTED + "auth:\n  tokens: []  # of mine\n"
    assert "No tokens exist" in run_cli(tmp_path, "token", "list").stdout
    assert "no token named 'a'; no tokens exist" in expect_error(tmp_path, "delete", "a")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["create", "x", "--agent", "boss"], "unknown agent 'boss': expected default, robot"),
        (["create", "laptop"], "onetool token delete laptop"),
        (["create", "two words"], "invalid token name"),
        (["create", "x\n"], "invalid token name"),
        (["create", ""], "invalid token name"),
        (["create", "x" * 65], "invalid token name"),
        (["delete", "lapto"], "no token named 'lapto'; existing tokens: laptop"),
    ],
    ids=str,
)
def test_a_rejected_command_changes_nothing(tmp_path: Path, arguments: list[str], expected: str) -> None:
    text = f"{COMMENTED}auth: {{tokens: [{{name: laptop, hash: '{'0' * 64}'}}]}}\n"
    configure(tmp_path, text)
    assert expected in expect_error(tmp_path, *arguments)
    assert config_file(tmp_path).read_text("utf-8") == text


def test_an_invalid_configuration_is_reported_and_kept(tmp_path: Path) -> None:
    configure(tmp_path, "auth: {tokns: []}\n")
    assert "did you mean tokens?" in expect_error(tmp_path, "create", "x")
    assert config_file(tmp_path).read_text("utf-8") == "auth: {tokns: []}\n"


def run_in_project(home: Path, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, "token", *arguments],
        cwd=directory,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def test_a_trusted_project_stays_trusted_and_has_its_own_list(tmp_path: Path) -> None:
    configure(tmp_path, f"auth: {{tokens: [{{name: home, hash: '{'0' * 64}'}}]}}\n")
    directory, user = tmp_path / "work", tmp_path / ".onetool"
    configure(directory, "agents: {robot: {permissions: []}}\n")
    trust(directory / ".onetool", user)
    done = run_in_project(tmp_path, directory, "create", "ci", "--agent", "robot")
    assert done.returncode == 0, done.stderr
    assert "no longer accepted in this project: home" in done.stderr
    assert is_trusted(directory / ".onetool", user, {})
    loaded = load(find_directories({}, directory, None, tmp_path), {})
    assert [(token.name, token.agent) for token in loaded.settings.auth.tokens] == [("ci", "robot")]


def test_an_untrusted_project_is_not_changed(tmp_path: Path) -> None:
    directory = tmp_path / "work"
    configure(directory, "agents: {robot: {permissions: []}}\n")
    before = config_file(directory).read_bytes()
    done = run_in_project(tmp_path, directory, "create", "ci")
    assert "is not trusted and is ignored" in done.stderr
    assert config_file(directory).read_bytes() == before
    assert "ci" in config_file(tmp_path).read_text("utf-8")
    assert not is_trusted(directory / ".onetool", tmp_path / ".onetool", {})


@pytest.mark.slow
def test_a_server_accepts_a_created_token(tmp_path: Path) -> None:
    token = create_token(tmp_path, "ci")
    with serve_process(tmp_path) as (_server, info):
        url = f"{info['url']}/tools/bundles"
        known = {"Authorization": f"Bearer {token}"}
        assert httpx2.get(url, headers=known, trust_env=False).status_code == 200
        assert httpx2.get(url, headers={"Authorization": "Bearer ot_x"}, trust_env=False).status_code == 401
