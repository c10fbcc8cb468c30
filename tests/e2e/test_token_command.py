"""`onetool token` with the settings of a home directory and of a project."""

import json
import re
import stat
import subprocess
import time
from pathlib import Path

import httpx2
import pytest
from tests.rest_support import serve_process
from tests.support import PROGRAM, configure, environment, eventually, run_cli

from onetool.settings.load import load
from onetool.settings.paths import find_directories
from onetool.settings.trust import is_trusted, trust
from onetool.util import yaml_loader
from onetool.util.time_format import parse_time
from onetool.util.token_ids import hash_token

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
    (entry,) = yaml_loader.read(text, "x").data["auth"]["tokens"]
    assert abs(parse_time(entry.pop("created")) - time.time()) < 60
    assert entry == {"name": "laptop", "hash": hash_token(token), "agent": "robot"}
    assert stat.S_IMODE(config_file(tmp_path).stat().st_mode) == 0o600
    for file in (tmp_path / ".onetool").rglob("*"):
        assert not file.is_file() or token.encode() not in file.read_bytes()
    shown = run_cli(tmp_path, "token", "list")
    heading, line = shown.stdout.splitlines()
    assert heading.split() == ["NAME", "AGENT", "SCOPE", "CREATED", "EXPIRES", "LAST", "USED"]
    assert re.fullmatch(r"laptop +robot +use +\d{4}-\S+Z +never +never", line)
    assert hash_token(token)[:32] not in shown.stdout


def test_a_new_configuration_is_readable_only_by_its_owner(tmp_path: Path) -> None:
    data = json.loads(create_token(tmp_path, "ci", "--json"))
    assert (data["name"], data["agent"]) == ("ci", "default")
    assert stat.S_IMODE(config_file(tmp_path).stat().st_mode) == 0o600
    assert run_cli(tmp_path, "token", "create", "x", "--expires", "tomorrow").returncode == 1
    assert "invalid duration 'tomorrow'" in expect_error(
        tmp_path, "create", "x", "--expires", "tomorrow"
    )
    create_token(tmp_path, "guest", "--expires", "30d", "--scope", "approve")
    ci, guest = json.loads(run_cli(tmp_path, "token", "list", "--json").stdout)["tokens"]
    assert ci.keys() == {"name", "agent", "scope", "created", "expires", "is_expired", "last_used"}
    assert (ci["expires"], ci["last_used"], ci["scope"], guest["scope"]) == (
        None,
        None,
        "use",
        "approve",
    )
    assert parse_time(guest["expires"]) - parse_time(guest["created"]) == 30 * 86_400


@pytest.mark.slow
def test_tokens_are_revoked_individually(tmp_path: Path) -> None:
    configure(
        tmp_path,
        COMMENTED + "auth:\n  tokens:  # of mine\n    - {name: env, token_env: MY_TOKEN}\n",
    )
    create_token(tmp_path, "a")
    first, second = run_cli(tmp_path, "token", "list").stdout.splitlines()[1:]
    assert first.startswith("env ($MY_TOKEN)  default")
    assert second.startswith("a                default")
    revoked = run_cli(tmp_path, "token", "revoke", "env")
    assert "Revoked token env in " in revoked.stdout
    assert json.loads(run_cli(tmp_path, "token", "revoke", "a", "--json").stdout)["revoked"] == "a"
    assert (
        config_file(tmp_path).read_text("utf-8") == COMMENTED + "auth:\n  tokens: []  # of mine\n"
    )
    assert "No tokens exist" in run_cli(tmp_path, "token", "list").stdout
    assert "no token named 'a'; no tokens exist" in expect_error(tmp_path, "revoke", "a")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["create", "x", "--agent", "boss"], "unknown agent 'boss': expected default, robot"),
        (["create", "laptop"], "onetool token revoke laptop"),
        (["create", "two words"], "invalid token name"),
        (["create", "x\n"], "invalid token name"),
        (["create", ""], "invalid token name"),
        (["create", "x" * 65], "invalid token name"),
        (["revoke", "lapto"], "no token named 'lapto'; existing tokens: laptop"),
    ],
    ids=str,
)
def test_a_rejected_command_changes_nothing(
    tmp_path: Path, arguments: list[str], expected: str
) -> None:
    text = f"{COMMENTED}auth: {{tokens: [{{name: laptop, hash: '{'0' * 64}'}}]}}\n"
    configure(tmp_path, text)
    assert expected in expect_error(tmp_path, *arguments)
    assert config_file(tmp_path).read_text("utf-8") == text


def test_an_invalid_configuration_is_reported_and_kept(tmp_path: Path) -> None:
    configure(tmp_path, "auth: {tokns: []}\n")
    assert "did you mean tokens?" in expect_error(tmp_path, "create", "x")
    assert config_file(tmp_path).read_text("utf-8") == "auth: {tokns: []}\n"


def run_in_project(
    home: Path, directory: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
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


def test_tokens_created_in_a_project_are_those_of_the_user(tmp_path: Path) -> None:
    configure(tmp_path, f"auth: {{tokens: [{{name: home, hash: '{'0' * 64}'}}]}}\n")
    directory, user = tmp_path / "work", tmp_path / ".onetool"
    configure(directory, "agents: {robot: {permissions: []}}\n")
    trust(directory / ".onetool", user)
    before = config_file(directory).read_bytes()
    done = run_in_project(tmp_path, directory, "create", "ci")
    assert done.returncode == 0, done.stderr
    assert config_file(directory).read_bytes() == before
    loaded = load(find_directories({}, directory, None, tmp_path), {})
    assert [(token.name, token.agent) for token in loaded.settings.auth.tokens] == [
        ("home", "default"),
        ("ci", "default"),
    ]
    rejected = run_in_project(tmp_path, directory, "create", "robot", "--agent", "robot")
    assert (
        "agent 'robot' is an agent of this project, but tokens are for all directories"
        in rejected.stderr
    )
    assert f"Hint: define it in {config_file(tmp_path)}" in rejected.stderr


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
def test_a_server_accepts_a_token_until_it_expires_or_is_revoked(tmp_path: Path) -> None:
    token, started = create_token(tmp_path, "ci"), time.time()
    short = create_token(tmp_path, "short", "--expires", "15s")
    end = time.time() + 15
    with serve_process(tmp_path) as (_server, info):

        def send(token: str) -> httpx2.Response:
            headers = {"Authorization": f"Bearer {token}"}
            return httpx2.get(f"{info['url']}/api/runs", headers=headers, trust_env=False)

        assert send(token).status_code == 200
        assert send("ot_x").status_code == 401
        url, headers = f"{info['url']}/api/activity", {"Authorization": f"Bearer {short}"}
        with httpx2.stream("GET", url, headers=headers, trust_env=False, timeout=20) as stream:
            assert stream.status_code == 200
            assert b"event: start" in b"".join(stream.iter_bytes()), "the stream ends"
        assert started + 14 < time.time() < end + 3
        expired = send(short)
        assert (expired.status_code, expired.json()["error"]["details"]) == (
            401,
            {"reason": "expired"},
        )
        assert 'error="invalid_token"' in expired.headers["www-authenticate"]
        listed = json.loads(run_cli(tmp_path, "token", "list", "--json").stdout)["tokens"]
        assert [(each["name"], each["is_expired"]) for each in listed] == [
            ("ci", False),
            ("short", True),
        ]
        assert abs(parse_time(listed[0]["last_used"]) - time.time()) < 60
        run_cli(tmp_path, "token", "revoke", "ci")
        assert eventually(lambda: send(token).status_code == 401, 2)
        log = (tmp_path / ".onetool" / "logs" / "onetool.log").read_text("utf-8")
        assert '"actor":"token ci"' in log.replace(": ", ":")
        assert token not in log
