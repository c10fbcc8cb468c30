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


def created(home: Path, *arguments: str) -> str:
    done = run_cli(home, "token", "create", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def refused(home: Path, *arguments: str) -> str:
    done = run_cli(home, "token", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    return done.stderr


def config(home: Path) -> Path:
    return home / ".onetool" / "onetool.yaml"


def test_a_token_is_printed_once_and_only_its_hash_is_stored(tmp_path: Path) -> None:
    configure(tmp_path, COMMENTED)
    config(tmp_path).chmod(0o600)
    done = run_cli(tmp_path, "token", "create", "laptop", "--agent", "robot")
    token = done.stdout.strip()
    assert done.stdout == f"{token}\n"
    assert "not shown again" in done.stderr
    assert token not in done.stderr
    text = config(tmp_path).read_text("utf-8")
    assert text.startswith(COMMENTED)
    assert yaml_loader.read(text, "x").data["auth"] == {
        "tokens": [{"name": "laptop", "hash": hash_token(token), "agent": "robot"}]
    }
    assert stat.S_IMODE(config(tmp_path).stat().st_mode) == 0o600
    for file in (tmp_path / ".onetool").rglob("*"):
        assert not file.is_file() or token.encode() not in file.read_bytes()
    shown = run_cli(tmp_path, "token", "list")
    assert shown.stdout == "laptop  agent robot\n"
    assert hash_token(token) not in shown.stdout


def test_a_new_configuration_is_for_its_owner_only(tmp_path: Path) -> None:
    data = json.loads(created(tmp_path, "ci", "--json"))
    assert (data["name"], data["agent"]) == ("ci", "default")
    assert stat.S_IMODE(config(tmp_path).stat().st_mode) == 0o600
    assert json.loads(run_cli(tmp_path, "token", "list", "--json").stdout) == {
        "tokens": [{"name": "ci", "agent": "default"}]
    }


@pytest.mark.slow
def test_tokens_are_deleted_one_by_one(tmp_path: Path) -> None:
    configure(tmp_path, COMMENTED + "auth:\n  tokens:  # of mine\n    - {name: env, token_env: MY_TOKEN}\n")
    created(tmp_path, "a")
    assert (
        run_cli(tmp_path, "token", "list").stdout
        == "env  agent default, from environment variable MY_TOKEN\na    agent default\n"
    )
    deleted = run_cli(tmp_path, "token", "delete", "env")
    assert "Deleted token env from" in deleted.stdout
    assert json.loads(run_cli(tmp_path, "token", "delete", "a", "--json").stdout)["deleted"] == "a"
    assert config(tmp_path).read_text("utf-8") == COMMENTED + "auth:\n  tokens: []  # of mine\n"
    assert "No tokens exist" in run_cli(tmp_path, "token", "list").stdout
    assert "no token named 'a'; no tokens exist" in refused(tmp_path, "delete", "a")


@pytest.mark.parametrize(
    ("arguments", "words"),
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
def test_a_rejected_command_changes_nothing(tmp_path: Path, arguments: list[str], words: str) -> None:
    text = f"{COMMENTED}auth: {{tokens: [{{name: laptop, hash: '{'0' * 64}'}}]}}\n"
    configure(tmp_path, text)
    assert words in refused(tmp_path, *arguments)
    assert config(tmp_path).read_text("utf-8") == text


def test_an_invalid_configuration_is_reported_and_kept(tmp_path: Path) -> None:
    configure(tmp_path, "auth: {tokns: []}\n")
    assert "did you mean tokens?" in refused(tmp_path, "create", "x")
    assert config(tmp_path).read_text("utf-8") == "auth: {tokns: []}\n"


def in_project(home: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, "token", *arguments],
        cwd=folder,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def test_a_trusted_project_stays_trusted_and_has_its_own_list(tmp_path: Path) -> None:
    configure(tmp_path, f"auth: {{tokens: [{{name: home, hash: '{'0' * 64}'}}]}}\n")
    folder, user = tmp_path / "work", tmp_path / ".onetool"
    configure(folder, "agents: {robot: {permissions: []}}\n")
    trust(folder / ".onetool", user)
    done = in_project(tmp_path, folder, "create", "ci", "--agent", "robot")
    assert done.returncode == 0, done.stderr
    assert "no longer accepted in this project: home" in done.stderr
    assert is_trusted(folder / ".onetool", user, {})
    loaded = load(find_directories({}, folder, None, tmp_path), {})
    assert [(token.name, token.agent) for token in loaded.settings.auth.tokens] == [("ci", "robot")]


def test_an_untrusted_project_is_not_changed(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    configure(folder, "agents: {robot: {permissions: []}}\n")
    before = config(folder).read_bytes()
    done = in_project(tmp_path, folder, "create", "ci")
    assert "is not trusted and is ignored" in done.stderr
    assert config(folder).read_bytes() == before
    assert "ci" in config(tmp_path).read_text("utf-8")
    assert not is_trusted(folder / ".onetool", tmp_path / ".onetool", {})


@pytest.mark.slow
def test_a_server_knows_a_token_that_was_made_for_it(tmp_path: Path) -> None:
    token = created(tmp_path, "ci")
    with serve_process(tmp_path) as (_server, said):
        url = f"{said['url']}/tools/bundles"
        known = {"Authorization": f"Bearer {token}"}
        assert httpx2.get(url, headers=known, trust_env=False).status_code == 200
        assert httpx2.get(url, headers={"Authorization": "Bearer ot_x"}, trust_env=False).status_code == 401
