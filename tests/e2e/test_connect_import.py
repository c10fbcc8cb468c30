"""Test `onetool connect` and `onetool import` with the files of a home directory."""

import json
import stat
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support import PROGRAM, connect, environment, run_cli

from onetool.settings.clients.catalog import CLIENTS, Machine
from onetool.settings.load import load
from onetool.settings.paths import find_directories
from onetool.settings.trust import is_trusted
from onetool.util import yaml_loader

SETTINGS = """{
    // my servers
    "mcpServers": {
        "github": {
            "command": "npx", // from npm
            "args": ["-y", "server-github"],
            "env": {"GITHUB_TOKEN": "ghp_0123456789abcdefghij0123456789abcdef"},
        },
        "dash-board": {"url": "https://x.example/sse", "headers": {"Authorization": "Bearer a-long-token"}},
        "onetool": {"command": "onetool"},
    },
    "theme": "dark", /* kept */
}
"""


def user_file(home: Path, client: str) -> Path:
    return CLIENTS[client].locate_file(Machine("linux", {}, home, home), project=False)


def read_entry(file: Path, client: str) -> Any:
    data = (
        tomllib.loads(file.read_text()) if file.suffix == ".toml" else json.loads(file.read_text())
    )
    return data[CLIENTS[client].key]["onetool"]


def write_file(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8", newline="")
    return file


def load_settings(home: Path) -> dict[str, Any]:
    data: dict[str, Any] = yaml_loader.read_file(home / ".onetool" / "onetool.yaml").data
    return data


@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_is_connected_once(tmp_path: Path, client: str) -> None:
    preview = run_cli(tmp_path, "connect", client)
    assert preview.returncode == 0, preview.stderr
    assert str(user_file(tmp_path, client)) in preview.stdout
    assert not user_file(tmp_path, client).exists()
    first = run_cli(tmp_path, "connect", client, "--write")
    assert first.stdout.endswith('then ask it: "What tools do you have in OneTool?"\n')
    assert read_entry(user_file(tmp_path, client), client)["command"] == PROGRAM
    before = user_file(tmp_path, client).read_bytes()
    again = run_cli(tmp_path, "connect", client, "--write")
    assert "nothing was changed" in again.stdout
    assert user_file(tmp_path, client).read_bytes() == before
    assert len(list(user_file(tmp_path, client).parent.glob("*.bak*"))) == 0


def test_the_written_entry_starts_a_server(tmp_path: Path) -> None:
    run_cli(tmp_path, "connect", "claude-code", "--write")
    entry = read_entry(tmp_path / ".claude.json", "claude-code")
    with connect(tmp_path, command=[entry["command"], *entry["args"]]) as client:
        assert [tool.name for tool in client.tools()] == ["run"]


def test_an_existing_file_is_extended_with_backup_and_redacted_diff(tmp_path: Path) -> None:
    text = SETTINGS.replace('        "onetool": {"command": "onetool"},\n', "")
    file = write_file(tmp_path / ".cursor" / "mcp.json", text.replace("\n", "\r\n"))
    done = run_cli(tmp_path, "connect", "cursor", "--write")
    assert done.returncode == 0, done.stderr
    new = file.read_bytes().decode()
    assert (tmp_path / ".cursor" / "mcp.json.bak").read_bytes().decode() == text.replace(
        "\n", "\r\n"
    )
    assert all(line in new for line in text.splitlines())
    assert "\n" not in new.replace("\r\n", "")
    assert '+        "onetool": {' in done.stdout
    assert "a-long-token" not in done.stdout


def test_the_undo_command_restores_the_file(tmp_path: Path) -> None:
    file = write_file(tmp_path / ".cursor" / "mcp.json", "{}")
    for before in ("{}", None):
        if before is None:
            file.unlink()
        done = run_cli(tmp_path, "connect", "cursor", "--write")
        undo = next(line for line in done.stdout.splitlines() if line.startswith("To undo: "))
        subprocess.run(undo.removeprefix("To undo: "), shell=True, check=True)
        assert (file.read_text() if file.exists() else None) == before
        assert not list(file.parent.glob("*.bak*"))


def test_project_scope_uses_a_separate_file(tmp_path: Path) -> None:
    done = run_cli(
        tmp_path, "connect", "vscode", "--project", "--write", "--command", "uvx onetool"
    )
    assert done.returncode == 0, done.stderr
    entry = read_entry(tmp_path / ".vscode" / "mcp.json", "vscode")
    assert entry == {"type": "stdio", "command": "uvx", "args": ["onetool"]}
    rejected = run_cli(tmp_path, "connect", "claude-desktop", "--project")
    assert rejected.returncode == 1
    assert "omit --project" in rejected.stderr


PROJECT_FILES = {
    client.name: client.project_file for client in CLIENTS.values() if client.project_file
}


@pytest.mark.parametrize("client", PROJECT_FILES)
def test_a_file_of_a_project_has_no_path_of_this_machine(tmp_path: Path, client: str) -> None:
    directory = make_project(tmp_path)
    done = run_in(tmp_path, directory, "connect", client, "--project", "--write")
    assert done.returncode == 0, done.stderr
    file = directory / PROJECT_FILES[client]
    assert read_entry(file, client)["command"] == "onetool"
    assert str(tmp_path) not in file.read_text(encoding="utf-8")
    assert "needs onetool on the PATH" in done.stdout


@pytest.mark.parametrize("client", PROJECT_FILES)
@pytest.mark.parametrize("write", [(), ("--write",)])
def test_connect_follows_no_link_out_of_a_project(
    tmp_path: Path, client: str, write: tuple[str, ...]
) -> None:
    directory = make_project(tmp_path)
    file = directory / PROJECT_FILES[client]
    outside = write_file(tmp_path / "outside" / file.name, "" if file.suffix == ".toml" else "{}")
    link, target = (file, outside) if file.parent == directory else (file.parent, outside.parent)
    link.symlink_to(target)
    done = run_in(tmp_path, directory, "connect", client, "--project", *write)
    assert done.returncode == 1
    assert f"{file} leads out of {directory}" in done.stderr
    assert outside.read_text(encoding="utf-8") in {"", "{}"}
    assert list(outside.parent.iterdir()) == [outside]


def test_an_outdated_command_is_updated_and_other_fields_are_kept(tmp_path: Path) -> None:
    old = (
        '{"context_servers": {"onetool": {"command": "/old/onetool", "env": {"A": "b"}, "enabled":'
        " true}}}"
    )
    file = write_file(user_file(tmp_path, "zed"), old)
    run_cli(tmp_path, "connect", "zed", "--write")
    assert read_entry(file, "zed") == {
        "command": PROGRAM,
        "env": {"A": "b"},
        "enabled": True,
        "args": [],
    }


def test_the_entry_has_a_working_directory_if_the_client_has_none(tmp_path: Path) -> None:
    run_cli(tmp_path, "connect", "claude-desktop", "--write")
    file = user_file(tmp_path, "claude-desktop")
    assert read_entry(file, "claude-desktop")["env"] == {"OT_CWD": str(tmp_path)}
    (tmp_path / "other").mkdir()
    run_cli(tmp_path, "connect", "claude-desktop", "--write", "--folder", "other")
    assert read_entry(file, "claude-desktop")["env"] == {"OT_CWD": str(tmp_path / "other")}
    assert run_cli(tmp_path, "connect", "zed", "--folder", "missing").returncode == 1


def test_connect_prints_json(tmp_path: Path) -> None:
    data = json.loads(run_cli(tmp_path, "connect", "codex", "--json").stdout)
    assert data["entry"] == {"command": PROGRAM, "args": []}
    assert (data["scope"], data["changes"], data["written"], data["exists"]) == (
        "user",
        True,
        False,
        False,
    )
    assert data["snippet"].startswith("[mcp_servers.onetool]")


@pytest.mark.parametrize(
    ("client", "text", "expected"),
    [
        ("cursor", '{\n"mcpServers": {,}\n}', "mcp.json:2: is not valid JSON"),
        ("codex", "a = 1\nb = \n", "config.toml:2: is not valid TOML"),
        (
            "cursor",
            '{"mcpServers": {"onetool": {"url": "http://localhost/mcp"}}}',
            "delete it first",
        ),
        ("gemini", "[]", "must be an object"),
    ],
)
def test_a_file_that_cannot_be_extended_is_not_changed(
    tmp_path: Path, client: str, text: str, expected: str
) -> None:
    file = write_file(user_file(tmp_path, client), text)
    done = run_cli(tmp_path, "connect", client, "--write")
    assert done.returncode == 1
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert file.read_text() == text
    assert list(file.parent.iterdir()) == [file]


def test_links_are_followed_and_read_only_files_are_not_changed(tmp_path: Path) -> None:
    real = write_file(tmp_path / "dotfiles" / "claude.json", "{}")
    (tmp_path / ".claude.json").symlink_to(real)
    assert run_cli(tmp_path, "connect", "claude-code", "--write").returncode == 0
    assert (tmp_path / ".claude.json").is_symlink()
    assert read_entry(real, "claude-code")["command"] == PROGRAM
    locked = write_file(user_file(tmp_path, "cursor"), "{}")
    locked.chmod(0o400)
    done = run_cli(tmp_path, "connect", "cursor", "--write")
    assert (done.returncode, locked.read_text()) == (1, "{}")
    assert "read-only" in done.stderr


# --- import ---------------------------------------------------------------------------------------


def make_project(home: Path) -> Path:
    directory = home / "work"
    directory.mkdir()
    return directory


def run_import(
    home: Path, directory: Path, *arguments: str, answer: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    return run_in(home, directory, "import", *arguments, answer=answer, **env)


def run_in(
    home: Path, directory: Path, *arguments: str, answer: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a working directory that is not the home directory."""
    return subprocess.run(
        [PROGRAM, *arguments],
        cwd=directory,
        env={**environment(home), **env},
        input=answer,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def test_servers_are_imported_and_their_secrets_are_moved(tmp_path: Path) -> None:
    directory = make_project(tmp_path)
    file = write_file(tmp_path / ".cursor" / "mcp.json", SETTINGS)
    done = run_import(tmp_path, directory, "cursor")
    assert done.returncode == 0, done.stderr
    assert load_settings(directory)["servers"] == {
        "github": {
            "command": "npx",
            "args": ["-y", "server-github"],
            "env": {"GITHUB_TOKEN": "${GITHUB_TOKEN}"},
        },
        "dash_board": {
            "url": "https://x.example/sse",
            "headers": {"Authorization": "Bearer ${DASH_BOARD_AUTHORIZATION}"},
            "transport": "sse",
        },
    }
    secrets = directory / ".onetool" / "secrets.yaml"
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o600
    assert (
        "ghp_0123456789" not in done.stdout + (directory / ".onetool" / "onetool.yaml").read_text()
    )
    assert "onetool: skipped" in done.stdout
    assert "dash-board: renamed to dash_board" in done.stdout
    assert "secrets.yaml" in (directory / ".onetool" / ".gitignore").read_text().split()
    assert file.read_text() == SETTINGS
    assert is_trusted(directory / ".onetool", tmp_path / ".onetool", {})
    settings = load(find_directories({}, directory, None, tmp_path), {}).settings
    assert settings.servers["github"].env == {
        "GITHUB_TOKEN": "ghp_0123456789abcdefghij0123456789abcdef"
    }
    assert settings.servers["dash_board"].headers == {"Authorization": "Bearer a-long-token"}


def test_an_import_prints_the_question_to_ask_the_assistant(tmp_path: Path) -> None:
    directory = make_project(tmp_path)
    write_file(
        tmp_path / ".cursor" / "mcp.json",
        SETTINGS.replace('"onetool": {"command": "onetool"},', ""),
    )
    question = 'then ask it: "Which tools does github have in OneTool?"\n'
    done = run_import(tmp_path, directory, "cursor", "--user")
    assert done.stdout.endswith(
        f"Connect your assistant: onetool connect cursor --write. Restart it, {question}"
    )
    run_cli(tmp_path, "connect", "zed", "--write")
    assert run_import(tmp_path, directory, "cursor").stdout.endswith(
        f"Restart your assistant, {question}"
    )
    assert "then ask it" not in run_import(tmp_path, directory, "cursor").stdout, (
        "nothing was imported"
    )


@pytest.mark.parametrize("obstacle", ["a file", "a link to itself"])
def test_a_settings_directory_that_cannot_be_created_is_an_error(
    tmp_path: Path, obstacle: str
) -> None:
    directory = make_project(tmp_path)
    write_file(tmp_path / ".cursor" / "mcp.json", SETTINGS)
    path = directory / ".onetool"
    path.touch() if obstacle == "a file" else path.symlink_to(path)
    done = run_import(tmp_path, directory, "cursor")
    assert done.returncode == 1
    assert done.stderr.startswith("onetool: cannot ")
    assert str(directory / ".onetool") in done.stderr
    assert "should not" not in done.stderr


def test_a_second_import_changes_nothing(tmp_path: Path) -> None:
    directory = make_project(tmp_path)
    write_file(tmp_path / ".cursor" / "mcp.json", SETTINGS)
    run_import(tmp_path, directory, "cursor")
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    again = run_import(tmp_path, directory, "cursor")
    assert "github: already imported" in again.stdout
    assert "no file was changed" in again.stdout
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


def test_an_import_is_in_the_history_and_can_be_undone(tmp_path: Path) -> None:
    directory, old = make_project(tmp_path), "# mine\nlog_level: DEBUG   # for now\n"
    file = write_file(tmp_path / ".onetool" / "onetool.yaml", old)
    write_file(tmp_path / ".cursor" / "mcp.json", SETTINGS)
    run_import(tmp_path, directory, "cursor", "--user")
    [change] = json.loads(run_cli(tmp_path, "settings", "history", "--json").stdout)["changes"]
    assert (change["action"], change["names"]) == ("servers.add", ["github", "dash_board"])
    assert change["actor"].startswith("user")
    records = [
        json.loads(line)
        for line in (tmp_path / ".onetool/logs/audit.jsonl").read_text().splitlines()
    ]
    assert [record["name"] for record in records] == ["change.started", "change"]
    assert [(record["action"], record["names"]) for record in records] == [
        ("servers.add", ["github", "dash_board"]), ("servers.add", ["github", "dash_board"]),
    ]  # fmt: skip
    assert records[1]["outcome"] == "ok"
    assert (
        "ghp_0123456789"
        not in json.dumps(change) + (tmp_path / ".onetool" / "settings-history.json").read_text()
    )
    undone = run_cli(tmp_path, "settings", "undo", "--yes")
    assert undone.returncode == 0, undone.stderr
    assert file.read_text() == old


@pytest.mark.parametrize("history", ["{", '{"version": 99, "entries": []}'])
def test_an_import_that_cannot_be_recorded_is_not_made(tmp_path: Path, history: str) -> None:
    write_file(tmp_path / ".cursor" / "mcp.json", SETTINGS)
    write_file(tmp_path / ".onetool" / "settings-history.json", history)
    done = run_import(tmp_path, make_project(tmp_path), "cursor", "--user")
    assert done.returncode == 1
    assert "settings-history.json" in done.stderr
    assert not (tmp_path / ".onetool" / "onetool.yaml").exists()
    assert not (tmp_path / ".onetool" / "secrets.yaml").exists()


def test_an_import_keeps_the_existing_content_of_onetool_yaml(tmp_path: Path) -> None:
    directory = make_project(tmp_path)
    old = "# mine\nservers:\n  own: {command: x} # why\n\nlog_level: DEBUG   # for now\n"
    write_file(directory / ".onetool" / "onetool.yaml", old)
    write_file(directory / ".onetool" / "secrets.yaml", "# keys\nGITHUB_TOKEN: another\n").chmod(
        0o644
    )
    write_file(directory / "mcp.json", SETTINGS)
    done = run_import(tmp_path, directory, "mcp.json", answer="yes\nyes\n")
    assert done.returncode == 0, done.stderr
    new = (directory / ".onetool" / "onetool.yaml").read_text()
    assert all(line in new.splitlines() for line in old.splitlines())
    assert list(load_settings(directory)["servers"]) == ["own", "github", "dash_board"]
    assert load_settings(directory)["servers"]["github"]["env"] == {
        "GITHUB_TOKEN": "${GITHUB_GITHUB_TOKEN}"
    }
    assert (directory / ".onetool" / "onetool.yaml.bak").read_text() == old
    secrets = directory / ".onetool" / "secrets.yaml"
    assert secrets.read_text().startswith("# keys\nGITHUB_TOKEN: another\n")
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o600
    assert "  own  x\n" in done.stdout
    assert is_trusted(directory / ".onetool", tmp_path / ".onetool", {})


def test_a_dry_run_shows_the_diff_and_writes_nothing(tmp_path: Path) -> None:
    directory = make_project(tmp_path)
    file = write_file(directory / "mcp.json", SETTINGS)
    done = run_import(tmp_path, directory, "mcp.json", "--dry-run")
    assert "+  github:" in done.stdout
    assert list(directory.iterdir()) == [file]
    assert not (tmp_path / ".onetool").exists()


def test_options_keep_secrets_inline_and_select_the_user_directory(tmp_path: Path) -> None:
    directory = make_project(tmp_path)
    write_file(directory / "mcp.json", SETTINGS)
    done = run_import(
        tmp_path, directory, "mcp.json", "--user", "--inline-secrets", "--json", answer="yes\n"
    )
    data = json.loads(done.stdout)
    assert (data["servers"], data["secrets"]) == (["github", "dash_board"], [])
    assert "ghp_0123456789" not in done.stdout
    assert load_settings(tmp_path)["servers"]["github"]["env"]["GITHUB_TOKEN"].startswith("ghp_")
    assert not (directory / ".onetool").exists()
    assert not (tmp_path / ".onetool" / "secrets.yaml").exists()


@pytest.mark.parametrize("client", PROJECT_FILES)
@pytest.mark.parametrize("option", ["--user", "--project"])
def test_a_client_never_stands_for_the_files_of_a_project(
    tmp_path: Path, client: str, option: str
) -> None:
    directory = make_project(tmp_path)
    name = PROJECT_FILES[client]
    text = 'mcp_servers = {evil = {command = "theirs"}}' if name.endswith("toml") else json.dumps(
        {CLIENTS[client].key: {"evil": {"command": "theirs"}}}
    )  # fmt: skip
    write_file(directory / name, text)
    done = run_import(tmp_path, directory, client, option, answer="yes\n")
    assert done.returncode == 1
    assert f"Hint: onetool import {directory / name}\n" in done.stderr
    write_file(user_file(tmp_path, client), text.replace("evil", "own").replace("theirs", "mine"))
    assert run_import(tmp_path, directory, client, option).returncode == 0
    place = tmp_path if option == "--user" else directory
    assert load_settings(place)["servers"] == {"own": {"command": "mine"}}


def test_the_private_servers_of_a_directory_are_imported(tmp_path: Path) -> None:
    directory = make_project(tmp_path)
    private = {"mcpServers": {"c": {"command": "private"}}}
    everywhere = {"mcpServers": {"b": {"command": "user"}}, "projects": {str(directory): private}}
    write_file(tmp_path / ".claude.json", json.dumps(everywhere))
    assert run_import(tmp_path, directory, "claude-code").returncode == 0
    commands = {
        name: server["command"] for name, server in load_settings(directory)["servers"].items()
    }
    assert commands == {"b": "user", "c": "private"}


@pytest.mark.parametrize("answer", ["", "no\n"])
def test_a_file_of_a_project_is_imported_after_a_question(tmp_path: Path, answer: str) -> None:
    directory = make_project(tmp_path)
    config = {
        "mcpServers": {
            "a": {
                "command": "${workspaceFolder}/run",
                "args": ["-x"],
                "env": {"LD_PRELOAD": "e.so"},
            }
        }
    }
    file = write_file(directory / ".mcp.json", json.dumps(config))
    refused = run_import(tmp_path, directory, ".mcp.json", answer=answer)
    assert refused.returncode == 1
    assert f"{file} was not imported: not confirmed" in refused.stderr
    for line in (
        f"Servers of {file}",
        'command: "${workspaceFolder}/run"',
        'args: ["-x"]',
        'env.LD_PRELOAD: "e.so"',
    ):
        assert line in refused.stdout
    assert list(directory.iterdir()) == [file]
    assert run_import(tmp_path, directory, ".mcp.json", answer="yes\n").returncode == 0
    assert load_settings(directory)["servers"]["a"]["command"] == f"{directory}/run"


def test_a_trusted_file_is_imported_without_a_question_until_it_changes(tmp_path: Path) -> None:
    directory = make_project(tmp_path)
    file = write_file(directory / ".mcp.json", '{"mcpServers": {"a": {"command": "one"}}}')
    command = [PROGRAM, "trust", ".mcp.json"]
    done = subprocess.run(
        command,
        cwd=directory,
        env=environment(tmp_path),
        input="y\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert 'a  command: "one"' in done.stdout
    assert run_import(tmp_path, directory, ".mcp.json").returncode == 0
    file.write_text('{"mcpServers": {"b": {"command": "two"}}}')
    assert run_import(tmp_path, directory, ".mcp.json").returncode == 1
    assert run_import(tmp_path, directory, ".mcp.json", ONETOOL_TRUST="1").returncode == 0
    assert list(load_settings(directory)["servers"]) == ["a", "b"]


@pytest.mark.parametrize(("answer", "env"), [("", {}), ("no\n", {}), ("", {"ONETOOL_TRUST": "1"})])
def test_an_import_does_not_trust_an_existing_directory_unasked(
    tmp_path: Path, answer: str, env: Mapping[str, str]
) -> None:
    directory = make_project(tmp_path)
    write_file(tmp_path / ".cursor" / "mcp.json", SETTINGS)
    evil = write_file(
        directory / ".onetool" / "onetool.yaml", "servers: {evil: {command: theirs}}\n"
    )
    done = run_import(tmp_path, directory, "cursor", answer=answer, **env)
    assert done.returncode == 1
    assert "  evil  theirs\n" in done.stdout
    assert f"{directory / '.onetool'} is not trusted: not confirmed" in done.stderr
    assert list(evil.parent.iterdir()) == [evil]
    assert not is_trusted(evil.parent, tmp_path / ".onetool", {})


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("missing.json", None, "file not found: missing.json"),
        ("api.yaml", b"openapi: 3.1.0\n", "has no operations"),
        ("bundle.zip", b"PK\x03\x04\xff\xff", "the archive is damaged"),
        ("bad.json", b'{"mcpServers": {\n\n', "bad.json:3: is not valid JSON"),
        ("latin.json", b'{"mcpServers": {"\xe9": {}}}', "not valid UTF-8"),
        ("other.json", b'{"a": 1}', "no servers in"),
        ("zed", None, "no configuration of Zed found"),
    ],
)
def test_a_failed_import_writes_no_files(
    tmp_path: Path, name: str, content: bytes | None, expected: str
) -> None:
    directory = make_project(tmp_path)
    if content is not None:
        (directory / name).write_bytes(content)
    done = run_import(tmp_path, directory, name)
    assert done.returncode == 1
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert not (directory / ".onetool").exists()


def test_an_invalid_onetool_yaml_is_not_changed(tmp_path: Path) -> None:
    directory = make_project(tmp_path)
    file = write_file(directory / ".onetool" / "onetool.yaml", "servers: [\n")
    write_file(directory / "mcp.json", SETTINGS)
    done = run_import(tmp_path, directory, "mcp.json", answer="yes\nyes\n")
    assert done.returncode == 1
    assert "onetool.yaml:" in done.stderr
    assert list(file.parent.iterdir()) == [file]


def test_a_missing_input_is_requested_and_left_empty(tmp_path: Path) -> None:
    directory = make_project(tmp_path)
    server = {"command": "x", "env": {"K": "${input:key}"}}
    config = {"inputs": [{"id": "key", "description": "of Perplexity"}], "servers": {"p": server}}
    write_file(directory / ".vscode" / "mcp.json", json.dumps(config))
    done = run_import(tmp_path, directory, ".vscode/mcp.json", answer="yes\n")
    assert "Missing secret: onetool secret set KEY (of Perplexity)" in done.stdout
    assert load(find_directories({}, directory, None, tmp_path), {}).settings.servers["p"].env == {
        "K": ""
    }
