"""Changes of servers: add them by settings or from a client's file, with their secrets."""

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import onetool.sources.builtin
from onetool.errors import ToolError
from onetool.settings.clients import yaml_edit
from onetool.settings.clients.client_servers import ClientServers, read_servers
from onetool.settings.clients.server_import import ImportTarget, ServerImport, import_servers
from onetool.settings.clients.text_files import TextFile
from onetool.settings.paths import Directories
from onetool.settings.planned_edit import ItemChange, PlannedEdit
from onetool.settings.settings_editor import SettingsEditor
from onetool_child.json_types import JsonMapping, JsonObject

SERVERS = "servers"
MAX_SERVERS = 100
# Settings that clients have too, whose secrets are moved. Clients spell `timeout` in milliseconds.
LAUNCH_KEYS = frozenset({"command", "args", "env", "cwd", "url", "headers", "transport"})


@dataclass(frozen=True, slots=True)
class PlannedServers:
    """An edit that adds servers to a file, and notes for the person."""

    file: Path
    edit: PlannedEdit
    result: ServerImport


@cache
def list_builtin_packs() -> frozenset[str]:
    modules = (module.name for module in pkgutil.iter_modules(onetool.sources.builtin.__path__))
    return frozenset(name.removesuffix("_tools") for name in modules if name.endswith("_tools"))


def read_target(
    directories: Directories,
    directory: Path,
    env: Mapping[str, str],
    editor: SettingsEditor | None = None,
) -> ImportTarget:
    """Return the settings to edit, from a directory or from the store."""
    editor = editor or SettingsEditor(directories, env)
    servers: JsonObject = {}
    known: dict[str, str] = {}
    for config, secrets in editor.list_layers(directory):
        file = editor.read_file(config)
        found = yaml_edit.parse_mapping(file.text, str(file.path)).get(SERVERS) or {}
        if not isinstance(found, dict):
            raise ToolError(f"{file.path}: {SERVERS} must be a mapping (`name: ...`)")
        servers |= found
        values = yaml_edit.parse_mapping(editor.read_file(secrets).text, str(secrets), typed=False)
        known |= {name: value for name, value in values.items() if isinstance(value, str)}
    packs = list_builtin_packs()
    home = directories.home
    return ImportTarget(
        servers, known, packs, env, directories.working_dir, home, editor.is_users(directory)
    )


class ServerChanges:
    """Plans changes of servers in one settings directory, by default the one of new entries."""

    def __init__(
        self,
        editor: SettingsEditor,
        directories: Directories,
        env: Mapping[str, str],
        directory: Path | None = None,
    ) -> None:
        self._editor = editor
        self._directories = directories
        self._env = env
        self._directory = directory or directories.data

    def plan_pasted(self, text: str) -> PlannedServers:
        """Plan to add the servers of a client's configuration, as a person pastes it."""
        file = TextFile(Path("the pasted text"), text.encode("utf-8", "replace"), text)
        return _require_servers(
            self.plan_import([read_servers(file, self._directories.working_dir)])
        )

    def plan_new(self, name: str, settings: JsonMapping) -> PlannedServers:
        """Plan to add one server with these settings."""
        self._check_new(name)
        launch = {key: value for key, value in settings.items() if key in LAUNCH_KEYS}
        servers = ClientServers(self._directories.config_path(self._directory), {name: launch})
        rest = {key: value for key, value in settings.items() if key not in LAUNCH_KEYS}
        return _require_servers(self.plan_import([servers], rest))

    def plan_import(
        self,
        sources: list[ClientServers],
        rest: JsonMapping | None = None,
        *,
        inline_secrets: bool = False,
    ) -> PlannedServers:
        """Plan to add the servers of clients.

        With `rest`, further settings of the only one, it must be new.
        """
        count = sum(len(source.servers) for source in sources)
        if count > MAX_SERVERS:  # each of them is added to the text, which is parsed again
            raise ToolError(f"cannot add {count} servers at once (maximum {MAX_SERVERS})")
        target = read_target(self._directories, self._directory, self._env, self._editor)
        result = import_servers(sources, target, inline_secrets=inline_secrets)
        result.servers = {name: {**entry, **(rest or {})} for name, entry in result.servers.items()}
        for name in result.servers if rest is not None else ():
            self._check_new(name)
        changes = [ItemChange(SERVERS, name, entry) for name, entry in result.servers.items()]
        plan = self._editor.plan(
            "servers.add",
            changes,
            secrets=result.secrets,
            directory=self._directory,
            names=result.servers,
        )
        return PlannedServers(self._editor.get_config(self._directory), plan, result)

    def _check_new(self, name: str) -> None:
        if self._editor.find(SERVERS, name).value is not None:
            raise ToolError(
                f"a server named {name} exists",
                hint=f"remove it first: onetool servers remove {name}",
            )


def _require_servers(planned: PlannedServers) -> PlannedServers:
    if not planned.result.servers:
        raise ToolError("\n".join(["nothing to add", *planned.result.notes]))
    return planned
