"""Test edits of settings files: what they keep, what they reject, who may make them, and undoing
them.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from onetool.admin.action import Person
from onetool.admin.rights import check_rights
from onetool.admin.server_changes import ServerChanges
from onetool.admin.tokens import TokenDraft, create_token, revoke_token
from onetool.app import OneTool
from onetool.errors import ConfigError, PermissionDenied, ToolError
from onetool.settings.load import examine, load
from onetool.settings.paths import Directories, find_directories
from onetool.settings.planned_edit import EditConflict, ItemChange, PlannedEdit
from onetool.settings.settings_editor import SettingsEditor
from onetool.settings.trust import is_trusted, trust

TEXT = """\
# Settings of the team
servers:
  # for issues
  gh:  # main
    url: https://gh.example.com/mcp   # production
    headers: {X-Team: blue}

  files:
    command: npx  # from npm
    args:
      - -y
      - server-files  # pinned
    enabled: false
agents:
  default:
    permissions: [read]   # nothing else
  reviewer:
    permissions: [read, network]
    policy:
      # deletions need a person
      - {tools: "*.delete*", decision: ask}
      # writes never
      - effect: write
        decision: deny   # sorry
  builder:
    permissions: [read, write, exec]
    tools: [fs]
http:
  allowedHosts: [api.example.com]
# the end
"""
WHO = {"actor": "token ada", "transport": "http"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    directory = tmp_path / ".onetool"
    directory.mkdir(mode=0o700)
    (directory / "onetool.yaml").write_text(TEXT, encoding="utf-8")
    secrets = directory / "secrets.yaml"
    secrets.write_text("# keep\nOLD: old-secret-value\n", encoding="utf-8")
    secrets.chmod(0o600)
    return tmp_path


def find(home: Path, cwd: Path | None = None) -> Directories:
    return load(find_directories({}, cwd or home, None, home), {}).directories


def open_editor(home: Path, cwd: Path | None = None) -> SettingsEditor:
    return SettingsEditor(find(home, cwd), {"SHADOWED": "value"})


def read(home: Path, name: str = "onetool.yaml") -> str:
    return (home / ".onetool" / name).read_text("utf-8")


def change_agent(editor: SettingsEditor, name: str, **values: Any) -> PlannedEdit:
    item = editor.find("agents", name)
    return editor.plan(
        "agents.change", [ItemChange("agents", name, {**(item.value or {}), **values})]
    )


def list_comments(text: str) -> list[str]:
    return [line.partition("#")[2] for line in text.splitlines() if "#" in line]


def test_an_edit_changes_its_lines_and_nothing_else(home: Path) -> None:
    editor = open_editor(home)
    rules = editor.find("agents", "reviewer").value["policy"]
    planned = change_agent(
        editor, "reviewer", permissions=["read"], policy=[*rules, {"decision": "allow"}]
    )
    assert read(home) == TEXT
    entry = editor.apply(planned, **WHO)
    assert list_comments(read(home)) == list_comments(TEXT)
    changed = [
        line
        for line in entry.difference.splitlines()
        if line[:1] in "+-" and line[:3] not in {"+++", "---"}
    ]
    assert changed == [
        "-    permissions: [read, network]",
        "+    permissions: [read]",
        "+      - {decision: allow}",
    ]
    assert load(find(home), {}).settings.agents["reviewer"].permissions == {"read"}


@pytest.mark.parametrize("history", ["{", '{"version": 99, "entries": []}'])
def test_an_edit_that_cannot_be_recorded_is_not_made(home: Path, history: str) -> None:
    editor = open_editor(home)
    (home / ".onetool" / "settings-history.json").write_text(history, encoding="utf-8")
    before = {file: file.read_bytes() for file in (home / ".onetool").iterdir()}
    for change in (
        change_agent(editor, "reviewer", permissions=["read"]),
        editor.plan("secrets.set", [], secrets={"NEW": "another-value"}),
    ):
        with pytest.raises(ToolError, match="settings-history"):
            editor.apply(change, **WHO)
    assert {file: file.read_bytes() for file in before} == before
    assert not list((home / ".onetool").glob("*.tmp"))


def test_invalid_settings_are_not_written(home: Path) -> None:
    editor = open_editor(home)
    with pytest.raises(ConfigError, match=r"permissions must be a list of permissions"):
        change_agent(editor, "reviewer", permissions=["fly"])
    with pytest.raises(ConfigError, match="requires exactly one of command and url"):
        editor.plan("servers.change", [ItemChange("servers", "gh", {"enabled": True})])
    with pytest.raises(ConfigError, match="NOPE, which is not set"):
        editor.plan(
            "servers.add",
            [ItemChange("servers", "new", {"url": "https://x", "headers": {"A": "${NOPE}"}})],
        )
    assert read(home) == TEXT
    assert editor.history.list_entries() == []


def test_an_edit_of_a_file_that_changed_meanwhile_is_rejected(home: Path) -> None:
    editor = open_editor(home)
    planned, other = (
        change_agent(editor, "default", permissions=[]),
        change_agent(editor, "reviewer", tools=["fs"]),
    )
    editor.apply(other, **WHO)
    with pytest.raises(EditConflict):
        editor.apply(planned, **WHO)
    assert "tools: [fs]" in read(home)
    assert load(find(home), {}).settings.agents["default"].permissions == {"read"}


def test_undo_restores_the_text_and_is_itself_undone(home: Path) -> None:
    editor = open_editor(home)
    removed = editor.apply(
        editor.plan("servers.remove", [ItemChange("servers", "files", None)]), **WHO
    )
    without = read(home)
    undone = editor.apply(editor.plan_undo(removed.id), **WHO)
    assert read(home) == TEXT
    assert undone.undoes == removed.id
    editor.apply(editor.plan_undo(undone.id), **WHO)
    assert read(home) == without
    assert [entry.action for entry in editor.history.list_entries()] == [
        "settings.undo",
        "settings.undo",
        "servers.remove",
    ]


def test_undo_keeps_later_changes_of_other_entries(home: Path) -> None:
    editor = open_editor(home)
    first = editor.apply(change_agent(editor, "default", permissions=["read", "exec"]), **WHO)
    editor.apply(change_agent(editor, "reviewer", tools=["fs"]), **WHO)
    editor.apply(editor.plan_undo(first.id), **WHO)
    assert "permissions: [read]   # nothing else" in read(home)
    assert "tools: [fs]" in read(home)
    again = editor.apply(change_agent(editor, "default", permissions=["exec"]), **WHO)
    editor.apply(change_agent(editor, "default", permissions=["network"]), **WHO)
    with pytest.raises(EditConflict, match=r"agents.default has changed since then") as caught:
        editor.plan_undo(again.id)
    assert caught.value.item is not None
    assert caught.value.item.value == {"permissions": ["network"]}


HOSTILE_VALUES = [
    "yes",
    "null",
    "1e5",
    "0x1F",
    "~",
    "*",
    "&a",
    "!!python/object:os.system",
    "a: b # c",
    "- x",
    "{{",
    "'",
    '"',
    "\\",
    "%",
    "@",
    "\n\r\t",
    "é\u2028\x00\ud800"[:3],
    "\u202egnp",
    "$${X}",
    "<script>",
]


@pytest.mark.parametrize("value", HOSTILE_VALUES)
def test_hostile_values_stay_data(home: Path, value: str) -> None:
    editor = open_editor(home)
    editor.apply(
        change_agent(editor, "reviewer", tools=[f"x{value}", value], clients=[value]), **WHO
    )
    agent = load(find(home), {}).settings.agents["reviewer"]
    expected = value.replace("$${", "${")
    assert agent.tools == (f"x{expected}", expected)
    assert agent.clients == (expected,)
    assert list_comments(TEXT)[-1] in read(home)


@pytest.mark.parametrize("name", ["", " a", "a/b", "\u202ea", "a\nb", "x" * 101, "\x00"])
def test_hostile_names_are_rejected(home: Path, name: str) -> None:
    editor = open_editor(home)
    with pytest.raises(ToolError, match="invalid agent name"):
        change_agent(editor, name, permissions=[])


def test_secrets_are_moved_and_never_shown(home: Path) -> None:
    editor, directories = open_editor(home), find(home)
    pasted = {
        "mcpServers": {
            "tracker": {
                "url": "https://t.example.com",
                "headers": {"Authorization": "Bearer tr-5678abcd"},
            }
        }
    }
    planned = ServerChanges(editor, directories, {}).plan_pasted(json.dumps(pasted))
    entry = editor.apply(planned.edit, **WHO)
    assert read(home, "secrets.yaml").startswith("# keep\nOLD: old-secret-value\n")
    assert "tr-5678abcd" in read(home, "secrets.yaml")
    assert "tr-5678abcd" not in read(home) + entry.difference + read(home, "settings-history.json")
    assert load(find(home), {}).settings.servers["tracker"].headers == {
        "Authorization": "Bearer tr-5678abcd"
    }
    deleted = editor.plan("secrets.delete", [], secrets={"OLD": None})
    assert "- OLD" in editor.apply(deleted, **WHO).difference
    with pytest.raises(ToolError, match="old values of secrets and tokens are not kept"):
        editor.plan_undo(editor.history.list_entries()[0].id)
    for name in ("secrets.yaml", "settings-history.json"):
        assert (home / ".onetool" / name).stat().st_mode & 0o077 == 0


def test_an_edit_keeps_the_trust_in_a_project(home: Path) -> None:
    project = home / "work" / ".onetool"
    (project / "agents").mkdir(parents=True)
    (project / "onetool.yaml").write_text("servers: {local: {url: 'https://local.example.com'}}\n")
    (project / "agents" / "helper.yml").write_text("# mine\npermissions: [read]\n")
    user = home / ".onetool"
    trust(project, user)
    editor = open_editor(home, project.parent)
    editor.apply(change_agent(editor, "helper", permissions=["read", "network"]), **WHO)
    assert (
        project / "agents" / "helper.yml"
    ).read_text() == "# mine\npermissions: [read, network]\n"
    editor.apply(
        editor.plan(
            "servers.change", [ItemChange("servers", "gh", {"url": "https://new.example.com"})]
        ),
        **WHO,
    )
    assert 'url: "https://new.example.com"   # production' in read(home)
    editor.apply(
        editor.plan(
            "servers.add", [ItemChange("servers", "more", {"url": "https://m.example.com"})]
        ),
        **WHO,
    )
    assert "more:" in (project / "onetool.yaml").read_text()
    assert is_trusted(project, user, {})
    editor.apply(
        editor.plan("x", [ItemChange("bundle_secrets", "pets", {"K": ["https://m.example.com"]})]),
        **WHO,
    )
    assert "bundle_secrets:" in read(home)
    with pytest.raises(ToolError, match="delete the file"):
        editor.plan("agents.remove", [ItemChange("agents", "helper", None)])


def test_a_project_that_only_the_environment_trusts_is_not_edited(home: Path) -> None:
    project = home / "work" / ".onetool"
    project.mkdir(parents=True)
    (project / "onetool.yaml").write_text("agents: {helper: {permissions: [read]}}\n")
    env = {"ONETOOL_TRUST": "1"}
    editor = SettingsEditor(
        load(find_directories(env, project.parent, None, home), env).directories, env
    )
    with pytest.raises(ToolError, match="onetool trust"):
        editor.apply(change_agent(editor, "helper", permissions=[]), **WHO)
    assert "permissions: [read]" in (project / "onetool.yaml").read_text()


def test_a_read_only_directory_is_reported(home: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write to read-only files")
    editor = open_editor(home)
    planned = change_agent(editor, "default", permissions=[])
    (home / ".onetool" / "onetool.yaml").chmod(0o400)
    with pytest.raises(ToolError, match="read-only"):
        editor.apply(planned, **WHO)


# --- rights ---------------------------------------------------------------------------------------


def change(section: str, name: str, value: Any) -> Callable[[SettingsEditor], PlannedEdit]:
    return lambda editor: editor.plan("test", [ItemChange(section, name, value)])


def patch(section: str, name: str, **values: Any) -> Callable[[SettingsEditor], PlannedEdit]:
    def plan(editor: SettingsEditor) -> PlannedEdit:
        return editor.plan(
            "test", [ItemChange(section, name, {**editor.find(section, name).value, **values})]
        )

    return plan


def set_secret(name: str, value: str | None) -> Callable[[SettingsEditor], PlannedEdit]:
    return lambda editor: editor.plan("test", [], secrets={name: value})


def add_with_secret(name: str) -> Callable[[SettingsEditor], PlannedEdit]:
    server = {"url": "https://x.example.com", "headers": {"A": f"${{{name}}}"}}
    secrets = {} if name == "OLD" else {name: "fresh-secret"}
    return lambda editor: editor.plan(
        "test", [ItemChange("servers", "new", server)], secrets=secrets
    )


URL = "https://x.example.com"
FOR_ADMIN = {
    "add a URL server": change("servers", "new", {"url": URL}),
    "add a URL server with a sign-in": change("servers", "new", {"url": URL, "auth": "oauth"}),
    "add a URL server with a new secret": add_with_secret("FRESH"),
    "remove a URL server": change("servers", "gh", None),
    "change a URL server": patch(
        "servers", "gh", timeout=5, headers={"X-Team": "red"}, pin="strict"
    ),
    "limit the tools of a program": patch("servers", "files", tools={"include": ["read"]}),
    "narrow another agent": patch(
        "agents", "default", sandbox={"allowed_paths": ["docs"]}, policy="guarded"
    ),
    "remove another agent": change("agents", "builder", None),
    "allow a host": change("http", "allowedHosts", ["api.example.com", "b.example.com"]),
    "set a new secret": set_secret("FRESH", "fresh-secret"),
}
FOR_OWNER = {
    "add a program": change("servers", "new", {"command": "sh"}),
    "replace a URL by a program": change("servers", "gh", {"command": "sh"}),
    "replace a program by a URL": change("servers", "files", {"url": URL}),
    "remove a program": change("servers", "files", None),
    "change a program": patch("servers", "files", args=["-y", "other"]),
    "change the environment of a program": patch(
        "servers", "files", env={"NODE_OPTIONS": "--require x"}
    ),
    "change the directory of a program": patch("servers", "files", cwd="/tmp"),
    "start a program": patch("servers", "files", enabled=True),
    "change a URL": patch("servers", "gh", url=URL),
    "name a client of OAuth": change(
        "servers", "new", {"url": URL, "auth": {"type": "oauth", "issuer": URL}}
    ),
    "send an old secret to a URL": add_with_secret("OLD"),
    "send an environment variable to a URL": patch("servers", "gh", headers={"A": "${HOME:-x}"}),
    "change its own agent": patch("agents", "reviewer", permissions=["read", "exec"]),
    "narrow its own agent": patch("agents", "reviewer", permissions=["read"]),
    "remove its own agent": change("agents", "reviewer", None),
    "send a header Host": patch("servers", "gh", headers={"host": "other.example.com"}),
    "open a directory outside": patch(
        "agents", "default", sandbox={"allowed_paths": ["docs", "/srv"]}
    ),
    "open the directory above": change(
        "agents", "new", {"sandbox": {"allowed_paths": ["docs/../.."]}}
    ),
    "send a shadowed environment variable to a URL": add_with_secret("SHADOWED"),
    "turn off the file sandbox": patch("agents", "default", sandbox={"enabled": False}),
    "allow private addresses": change("http", "allowPrivateAddresses", True),
    "change a secret": set_secret("OLD", "other-secret"),
    "delete a secret": set_secret("OLD", None),
    "load bundles from a path": change("bundles", "dir", "elsewhere"),
    "turn off isolation": change("execution", "isolation", "off"),
    "add a token": change("auth", "tokens", [{"name": "x", "hash": "0f", "scope": "admin"}]),
    "listen to a proxy": change("auth", "allowed_hosts", ["tools.example.com"]),
    "change effects of tools": change("tools", "fs", {"effects": {"*": "read"}}),
    "change the model": change("llm", "sampling", True),
    "change the audit log": change("audit", "file", "/dev/null"),
    "change approvals": change("approvals", "by", "token"),
    "change the daemon": change("daemon", "http", True),
    **{
        f"add a server at {host}": change("servers", "new", {"url": f"http://{host}:9/mcp"})
        for host in ("127.0.0.1", "localhost", "10.1.2.3", "[::1]", "[::ffff:169.254.169.254]")
    },
    **{
        f"allow the host {host}": change("http", "allowedHosts", ["api.example.com", host])
        for host in ("localhost:8080", "192.168.1.1", "[fd00::1]:80")
    },
    "allow a bundle to send a secret": change(
        "bundle_secrets", "pets", {"OLD": ["https://x.example.com"]}
    ),
}


def is_allowed(planned: PlannedEdit, scope: str, agent: str | None) -> bool:
    try:
        check_rights(planned, scope, agent)
    except PermissionDenied:
        return False
    return True


@pytest.mark.parametrize(
    "plan", [*FOR_ADMIN.values(), *FOR_OWNER.values()], ids=[*FOR_ADMIN, *FOR_OWNER]
)
def test_each_change_needs_its_scope(
    home: Path, plan: Callable[[SettingsEditor], PlannedEdit]
) -> None:
    planned = plan(open_editor(home))
    assert planned.changes_anything
    allowed = {
        scope: is_allowed(planned, scope, agent)
        for scope, agent in [
            ("", None),
            ("use", "reviewer"),
            ("approve", "reviewer"),
            ("owner", None),
        ]
    }
    assert allowed == {"": False, "use": False, "approve": False, "owner": True}
    assert is_allowed(planned, "admin", "reviewer") == (plan in FOR_ADMIN.values())


OWN: dict[str, Any] = {
    "permissions": ["read", "write"],
    "tools": ["fs", "gh.*", "http.get"],
    "hosts": ["*.example.com", "api.example.org:8443"],
    "sandbox": {"allowed_paths": ["docs"], "denied_patterns": [".env"]},
    "budgets": {"calls": 10},
    "tool_config": {"fs.read": {"max_bytes": 1000}},
    "policy": "ask-writes",
    "approvals": {"via": ["ui", "cli"]},
}
WIDER: dict[str, list[Any]] = {
    "permissions": [["read", "network"], ["read", "exec"]],
    "tools": [["*"], ["g*"], ["http"], None],
    "hosts": [["*"], ["example.com"], ["*.com"], ["api.example.org"], None],
    "sandbox": [
        {"allowed_paths": ["docs"]},
        {"allowed_paths": ["."], "denied_patterns": [".env"]},
        {"allowed_paths": ["docs"], "denied_patterns": [".env"], "enabled": False},
    ],
    "budgets": [{"calls": 11}, {}],
    "tool_config": [{}, {"fs.read": {"max_bytes": 1001}}],
    "policy": ["open", "guarded", [{"decision": "allow"}]],
    "approvals": [{"via": ["client"]}, {}],
}
NARROWER: dict[str, list[Any]] = {
    "permissions": [["read"], []],
    "tools": [["fs.read"], ["gh.issues", "gh.pr_*", "gh.?"], ["fs.*", "fs"], []],
    "hosts": [["a.example.com"], ["*.b.example.com:443"], []],
    "sandbox": [{"allowed_paths": ["docs/a"], "denied_patterns": ["*.key", ".env"]}],
    "budgets": [{"calls": 9, "tokens": 5}],
    "policy": ["read-only"],
    "approvals": [{"via": ["cli"]}, {"via": []}],
}


def set_agents(home: Path, **agents: Any) -> SettingsEditor:
    lines = (f"  {name}: {json.dumps(agent)}" for name, agent in {"own": OWN, **agents}.items())
    (home / ".onetool" / "onetool.yaml").write_text(
        "\n".join(["agents:", *lines, ""]), encoding="utf-8"
    )
    return open_editor(home)


@pytest.mark.parametrize("key", WIDER)
def test_an_admin_gives_agents_nothing_that_its_own_agent_lacks(home: Path, key: str) -> None:
    """Each setting alone, for a new agent, and to widen and narrow an agent that exists."""
    editor = set_agents(home, other=OWN)
    assert is_allowed(change("agents", "new", OWN)(editor), "admin", "own")
    for value in WIDER[key]:
        agent = {name: each for name, each in {**OWN, key: value}.items() if each is not None}
        assert not is_allowed(change("agents", "new", agent)(editor), "admin", "own"), value
        assert not is_allowed(change("agents", "other", agent)(editor), "admin", "own"), value
    for value in NARROWER.get(key, []):
        assert is_allowed(change("agents", "new", {**OWN, key: value})(editor), "admin", "own"), (
            value
        )
        assert is_allowed(change("agents", "other", {**OWN, key: value})(editor), "admin", "own"), (
            value
        )


def test_exec_needs_the_owner_and_rights_of_two_agents_are_not_combined(home: Path) -> None:
    builder = {"permissions": ["exec"], "tools": ["fs"]}
    editor = set_agents(home, own={"permissions": ["read", "exec"]}, builder=builder)
    with pytest.raises(PermissionDenied, match=r"because agents\.new\.permissions grants exec\n"):
        check_rights(change("agents", "new", {"permissions": ["exec"]})(editor), "admin", "own")
    assert not is_allowed(
        change("agents", "builder", {**builder, "tools": ["fs", "test.run"]})(editor),
        "admin",
        "own",
    )
    assert is_allowed(
        change("agents", "builder", {**builder, "tools": ["fs.read"]})(editor), "admin", "own"
    )


def test_clients_are_not_moved_to_an_agent_with_more_rights(home: Path) -> None:
    narrow = {**OWN, "permissions": [], "clients": ["reader"]}
    other = {"permissions": ["read", "network"], "clients": ["editor"]}
    editor = set_agents(home, narrow=narrow, other=other)
    removed = change("agents", "narrow", None)(editor)  # reader would use the agent default
    left = ItemChange("agents", "narrow", {**narrow, "clients": []})
    moved = editor.plan(
        "test", [left, ItemChange("agents", "other", {**other, "clients": ["editor", "reader"]})]
    )
    for planned in (removed, moved):
        assert not is_allowed(planned, "admin", "own")
    arrived = ItemChange("agents", "narrow", {**narrow, "clients": ["reader", "editor"]})
    narrowed = editor.plan(
        "test", [ItemChange("agents", "other", {**other, "clients": []}), arrived]
    )
    assert is_allowed(narrowed, "admin", "own")


def test_an_undo_needs_the_scope_of_its_change(home: Path) -> None:
    editor = open_editor(home)
    removed = editor.apply(change("servers", "files", None)(editor), **WHO)
    assert not is_allowed(editor.plan_undo(removed.id), "admin", "reviewer")
    assert is_allowed(editor.plan_undo(removed.id), "owner", None)


def test_tokens_are_in_the_history_and_an_undo_brings_no_revoked_one_back(home: Path) -> None:
    async def change_tokens() -> None:
        ada = Person("ada", "owner", transport="cli")
        async with OneTool(
            read=lambda: load(find(home), {}), examine=lambda: examine(find(home), {})
        ) as app:
            await create_token(app, ada, TokenDraft(name="phone"))
            await revoke_token(app, ada, "laptop")

    token_hash, file = "ab" * 32, home / ".onetool" / "onetool.yaml"
    tokens = f"auth: {{tokens: [{{name: laptop, hash: {token_hash}}}]}}\n"
    file.write_text(TEXT.replace("# the end\n", tokens), encoding="utf-8")
    editor = open_editor(home)
    change = editor.plan(
        "hosts.change", [ItemChange("http", "allowedHosts", ["other.example.com"])]
    )
    entry = editor.apply(change, **WHO)  # on the line before the token
    assert "laptop" in entry.difference
    assert token_hash not in entry.difference
    anyio.run(change_tokens)
    editor.apply(editor.plan_undo(entry.id), **WHO)
    loaded = load(find(home), {})
    assert [token.name for token in loaded.settings.auth.tokens] == ["phone"]
    assert loaded.settings.http.allowed_hosts == ("api.example.com",)
    entries = editor.history.list_entries()
    listed = [(entry.action, entry.names, entry.actor, entry.can_undo) for entry in entries[1:3]]
    assert listed == [
        ("token.revoke", ("laptop",), "ada", False),
        ("token.create", ("phone",), "ada", False),
    ]
    with pytest.raises(ToolError, match="cannot be undone"):
        editor.plan_undo(entries[1].id)


def test_a_value_that_is_too_large_is_rejected(home: Path) -> None:
    with pytest.raises(
        ToolError, match=r"agents.reviewer is too large: 100,\d+ bytes \(at most 65,536\)"
    ):
        change_agent(open_editor(home), "reviewer", tools=["x" * 100_000])
    with pytest.raises(ToolError, match="secret BIG is too large"):
        open_editor(home).plan("secrets.set", [], secrets={"BIG": "x" * 100_000})
