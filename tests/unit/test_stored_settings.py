"""Settings in PostgreSQL over settings files: editing them, what they may set, and replicas that
cannot use them.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.postgres_support import PostgresServer, get_database, get_settings

from onetool.admin import settings_edits
from onetool.admin.action import Person
from onetool.admin.rights import check_rights
from onetool.admin.server_changes import ServerChanges
from onetool.app import OneTool
from onetool.cli.main import main
from onetool.errors import ConfigError, PermissionDenied, ToolError
from onetool.settings.contents import StoredSettings
from onetool.settings.load import Loaded, load
from onetool.settings.paths import find_directories
from onetool.settings.planned_edit import EditConflict, ItemChange, PlannedEdit
from onetool.settings.settings_editor import SettingsEditor
from onetool.settings.settings_reader import SettingsReader, apply_stored, examine_settings
from onetool.state.opening import open_postgres
from onetool.state.storage import State

KEY, OTHER_KEY = "11" * 32, "22" * 32
TEXT = """\
servers:
  gh: {url: "https://gh.example.com/mcp", headers: {Authorization: "Bearer ${GH_TOKEN}"}, timeout: 5}
agents:
  default: {permissions: [read], tools: [fs, machine]}
  reviewer: {permissions: [read, network]}
http: {allowedHosts: [api.example.com], retries: 5}
"""
WHO = {"actor": "token ada", "transport": "http"}


@pytest.fixture(scope="module")
def database(postgres_server: PostgresServer) -> str:
    return postgres_server.url(postgres_server.create_database())


@pytest.fixture
def state(database: str, tmp_path: Path) -> Iterator[State]:
    state = open_postgres(database, KEY, tmp_path / "cache")
    get_database(state).execute("DELETE FROM documents")
    get_database(state).execute("DELETE FROM keys")
    yield state
    state.close()


@pytest.fixture
def home(tmp_path: Path, database: str) -> Path:
    directory = tmp_path / ".onetool"
    directory.mkdir(mode=0o700)
    (directory / "onetool.yaml").write_text(f"{TEXT}store: {database}\n", encoding="utf-8")
    secrets = directory / "secrets.yaml"
    secrets.write_text("GH_TOKEN: gh-secret-value\n", encoding="utf-8")
    secrets.chmod(0o600)
    return tmp_path


def read_files(home: Path) -> Loaded:
    return load(find_directories({}, home, None, home), {})


def open_editor(home: Path, state: State) -> SettingsEditor:
    return state.settings.open_editor(read_files(home).directories, {})


def read(home: Path, state: State) -> Loaded:
    return apply_stored(read_files(home), state.settings.refresh()).require()


def edit(home: Path, state: State, section: str, name: str, value: Any) -> str:
    editor = open_editor(home, state)
    return editor.apply(
        editor.plan(f"{section}.change", [ItemChange(section, name, value)]), **WHO
    ).id


def write(state: State, text: str) -> None:
    """Write the settings without any check, as a newer version may do."""
    get_settings(state).update(lambda _current, history: (StoredSettings(text), history))


def test_an_entry_in_the_store_replaces_the_one_of_a_file_and_null_removes_it(
    home: Path, state: State
) -> None:
    files = (home / ".onetool" / "onetool.yaml").read_bytes()
    edit(home, state, "agents", "default", {"permissions": ["write"]})
    edit(home, state, "http", "allowedHosts", ["other.example.com"])
    removed = edit(home, state, "agents", "reviewer", None)
    settings = read(home, state).settings
    assert settings.agents["default"].permissions == {"write"}
    assert settings.agents["default"].tools is None
    assert "reviewer" not in settings.agents
    assert (settings.http.allowed_hosts, settings.http.retries) == (("other.example.com",), 5)
    assert open_editor(home, state).find("agents", "reviewer").value is None
    editor = open_editor(home, state)
    editor.apply(editor.plan_undo(removed), **WHO)
    assert read(home, state).settings.agents["reviewer"].permissions == {"read", "network"}
    edit(home, state, "agents", "ops", {"permissions": ["exec"]})
    edit(home, state, "agents", "ops", None)
    assert "ops" not in state.settings.get().text
    assert (home / ".onetool" / "onetool.yaml").read_bytes() == files
    assert not (home / ".onetool" / "settings-history.json").exists()


def test_an_old_change_is_undone_without_later_ones(home: Path, state: State) -> None:
    changed = edit(home, state, "agents", "default", {"permissions": []})
    edit(home, state, "agents", "ops", {"permissions": ["exec"]})
    editor = open_editor(home, state)
    editor.apply(editor.plan_undo(changed), **WHO)
    agents = read(home, state).settings.agents
    assert agents["default"].permissions == {"read"}
    assert agents["ops"].permissions == {"exec"}
    entries = open_editor(home, state).history.list_entries()
    assert [entry.undoes for entry in entries] == [changed, "", ""]


@pytest.mark.parametrize(
    "key", ["store", "auth", "execution", "tools_dir", "llm", "approvals", "stats"]
)
def test_what_belongs_to_a_machine_cannot_be_in_the_store(
    home: Path, state: State, key: str
) -> None:
    editor = open_editor(home, state)
    with pytest.raises(
        ConfigError, match=rf'"{key}" cannot be set in the store(.|\n)*of each machine'
    ):
        editor.plan("settings.change", [ItemChange(key, "enabled", True)])
    assert state.settings.refresh() == StoredSettings()


def test_secrets_are_sealed_and_win_over_those_of_files(home: Path, state: State) -> None:
    editor = open_editor(home, state)
    planned = editor.plan(
        "secrets.set", [], secrets={"GH_TOKEN": "new-secret-value", "MORE": "more-secret-value"}
    )
    entry = editor.apply(planned, **WHO)
    loaded = read(home, state)
    assert loaded.settings.servers["gh"].headers == {"Authorization": "Bearer new-secret-value"}
    assert loaded.user_secrets["MORE"] == "more-secret-value"
    assert "more-secret-value" not in entry.difference + get_settings(state).read_history()
    assert open_editor(home, state).list_secrets()["MORE"] == ["store/secrets.yaml"]
    rows = get_database(state).select(
        "SELECT kind || name || encode(content, 'escape') FROM documents"
    )
    assert rows
    assert not [row for (row,) in rows if "MORE" in row or "secret-value" in row]
    editor.apply(editor.plan("secrets.delete", [], secrets={"GH_TOKEN": None}), **WHO)
    assert read(home, state).user_secrets["GH_TOKEN"] == "gh-secret-value"
    with pytest.raises(ToolError, match=r"no secret 'GH_TOKEN' in store/secrets\.yaml"):
        editor.plan("secrets.delete", [], secrets={"GH_TOKEN": None})


def test_an_admin_changes_a_server_of_a_file_without_naming_a_secret(
    home: Path, state: State
) -> None:
    editor = open_editor(home, state)
    value = editor.find("servers", "gh").value

    def change(**settings: Any) -> PlannedEdit:
        return editor.plan("servers.change", [ItemChange("servers", "gh", {**value, **settings})])

    check_rights(
        change(timeout=7), "admin", None
    )  # the entry is copied to the store, with its reference
    with pytest.raises(PermissionDenied, match="it refers to GH_TOKEN"):
        check_rights(change(headers={**value["headers"], "Other": "${GH_TOKEN}"}), "admin", None)
    with pytest.raises(PermissionDenied, match="names a program"):
        check_rights(change(url=None, command="sh", headers={}), "admin", None)


def test_servers_are_added_with_their_secrets_in_the_store(home: Path, state: State) -> None:
    editor = open_editor(home, state)
    changes = ServerChanges(editor, read_files(home).directories, {})
    settings = {
        "url": "https://t.example.com/mcp",
        "headers": {"Authorization": "Bearer tr-5678abcd"},
    }
    editor.apply(changes.plan_new("tracker", settings).edit, **WHO)
    assert read(home, state).settings.servers["tracker"].headers == {
        "Authorization": "Bearer tr-5678abcd"
    }
    assert "tr-5678abcd" not in state.settings.get().text
    with pytest.raises(ToolError, match="nothing to add"):  # a server of a file is not replaced
        changes.plan_pasted('{"mcpServers": {"gh": {"url": "https://evil.example.com"}}}')


def test_the_command_imports_servers_into_the_store_and_writes_no_file(
    home: Path, state: State, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(home, state, "agents", "writer", {"permissions": ["write"]})  # creates the keys
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("ONETOOL_KEY", KEY)
    monkeypatch.chdir(home)
    before = {path: path.read_bytes() for path in home.rglob("*.yaml*")}
    file = home / ".cursor" / "mcp.json"
    file.parent.mkdir()
    file.write_text(
        '{"mcpServers": {"tracker": {"url": "https://t.example.com/mcp"}}}', encoding="utf-8"
    )
    assert main(["import", "cursor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["servers"] == ["tracker"]
    assert read(home, state).settings.servers["tracker"].url == "https://t.example.com/mcp"
    assert {path: path.read_bytes() for path in home.rglob("*.yaml*")} == before


def test_values_are_bounded(home: Path, state: State) -> None:
    with pytest.raises(
        ToolError, match=r"agents.big is too large: 100,\d+ bytes \(at most 65,536\)"
    ):
        edit(home, state, "agents", "big", {"tools": ["x" * 100_000]})


def test_concurrent_edits_of_one_entry_lose_nothing(home: Path, state: State) -> None:
    async def add_tool(number: int) -> None:
        def plan(editor: SettingsEditor) -> PlannedEdit:
            tools = (editor.find("agents", "ops").value or {"tools": []})["tools"]
            return editor.plan(
                "agents.set", [ItemChange("agents", "ops", {"tools": [*tools, f"t{number}"]})]
            )

        environment = {"ONETOOL_KEY": KEY}
        examine = partial(examine_settings, environment, home, None, home)
        async with OneTool(examine=examine, environment=environment) as app:
            await settings_edits.edit(
                app, Person("ada", "owner", transport="cli"), plan, settings_edits.EditQuery()
            )

    async def add_all() -> None:
        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(add_tool, number)

    anyio.run(add_all)
    assert sorted(read(home, state).settings.agents["ops"].tools or ()) == [
        f"t{number}" for number in range(8)
    ]
    assert len(open_editor(home, state).history.list_entries()) == 8


def test_an_edit_of_settings_that_changed_meanwhile_is_rejected(home: Path, state: State) -> None:
    editor = open_editor(home, state)
    planned = editor.plan("agents.change", [ItemChange("agents", "ops", {"permissions": []})])
    edit(home, state, "agents", "default", {"permissions": []})
    with pytest.raises(EditConflict):
        editor.apply(planned, **WHO)
    assert "ops" not in read(home, state).settings.agents


# --- replicas that cannot use the settings --------------------------------------------------------


class Replica:
    """The settings of a replica, as its application reads them."""

    def __init__(self, home: Path, state: State | None, url: str) -> None:
        self.reader = SettingsReader(
            partial(read_files, home),
            partial(examine_settings, {}, home, None, home),
            environment={},
        )
        self.loaded = self.reader.read_first()
        self.denied_at_first = [agent.tools for agent in self.loaded.settings.agents.values()]
        if state is not None:
            self.reader.join(state.settings, url)
        self.reload()

    def reload(self) -> None:
        self.loaded = self.reader.reread(self.loaded, unasked=True)

    def permissions(self, agent: str) -> set[str]:
        return set(self.loaded.settings.agents[agent].permissions)

    def problems(self) -> str:
        return "\n".join(map(str, self.reader.examine(self.loaded).errors))


def test_invalid_settings_in_the_store_deny_what_they_change(
    home: Path, state: State, database: str
) -> None:
    replica = Replica(home, state, database)
    assert replica.denied_at_first == [(), ()]  # until the settings in the store are known
    assert (replica.permissions("default"), replica.problems()) == ({"read"}, "")
    uses = {"K": ["https://x.example.com"]}
    for bundle in ("pets", "shop"):
        edit(home, state, "bundle_secrets", bundle, uses)
    edit(home, state, "agents", "ops", {"permissions": ["exec"]})
    states = [replica.reader.is_outdated]
    replica.reload()
    assert [*states, replica.reader.is_outdated] == [True, False]
    assert replica.permissions("ops") == {"exec"}
    invalid = (
        "agents: {ops: {permissions: [exec]}, default: {permissions: [fly]}}\nservers: {gh: {url:"
        " https://x}}\n"
    )
    invalid += "bundle_secrets: {shop: {K: [https://x.example.com]}}\n"
    write(state, invalid)
    replica.reload()
    assert (replica.permissions("ops"), replica.permissions("reviewer")) == (
        {"exec"},
        {"read", "network"},
    )
    assert (replica.permissions("default"), replica.loaded.settings.servers["gh"].enabled) == (
        set(),
        False,
    )
    assert replica.loaded.settings.bundle_secrets.keys() == {"shop"}
    assert (
        "store/onetool.yaml:1: agents.default.permissions must be a list of permissions"
        in replica.problems()
    )
    restarted = Replica(home, state, database)  # it has no valid ones: all entries are denied
    assert "ops" not in restarted.loaded.settings.agents
    assert (restarted.permissions("default"), restarted.permissions("reviewer")) == (
        set(),
        {"read", "network"},
    )
    edit(home, state, "agents", "default", {"permissions": ["network"]})
    for each in (replica, restarted):
        each.reload()
        assert (each.permissions("default"), each.permissions("ops"), each.problems()) == (
            {"network"},
            {"exec"},
            "",
        )


def test_settings_that_cannot_be_opened_change_nothing_and_deny_all_at_start(
    home: Path, state: State, database: str, tmp_path: Path
) -> None:
    edit(home, state, "agents", "default", {"permissions": ["network"]})
    replica = Replica(home, state, database)
    get_database(state).execute(
        "UPDATE documents SET content = content || 'x'::bytea, version = version + 1 WHERE name ="
        " 'current'"
    )
    replica.reload()
    assert replica.permissions("default") == {"network"}
    assert "was changed" in replica.problems() or "cannot be opened" in replica.problems()
    restarted = Replica(home, state, database)
    assert [restarted.permissions(agent) for agent in ("default", "reviewer")] == [set(), set()]
    with pytest.raises(ToolError, match="cannot edit the settings in the store"):
        edit(home, state, "agents", "ops", {"permissions": []})
    other = open_postgres(database, OTHER_KEY, tmp_path / "other")
    assert other.settings.refresh().problem
    other.close()


def test_settings_of_a_newer_version_are_a_problem(home: Path, state: State, database: str) -> None:
    write(state, "version: 99\nagents: {default: {permissions: []}}\n")
    replica = Replica(home, state, database)
    assert "store/onetool.yaml:1: was written by a newer OneTool" in replica.problems()
    assert replica.permissions("default") == set()
