"""Reads the servers of any client's configuration, and converts them to OneTool's settings.

The format is detected from the content. `Translator` converts a server's keys and the variables in
its values; unsupported keys are reported, never dropped silently.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path, PureWindowsPath
from typing import Any

from onetool.errors import ConfigError, ToolError
from onetool.settings.clients import json_edit, toml_edit
from onetool.settings.clients.catalog import ENTRY
from onetool.settings.clients.text_files import TextFile, line_number
from onetool_child.json_types import JsonMapping, JsonObject

_KEYS = ("mcpServers", "servers", "context_servers", "mcp_servers")
_VARIABLE = re.compile(r"\$\{([^{}]*)\}")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?::-.*)?", re.DOTALL)
_ANY_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
_SHELL = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_URL_KEYS = ("url", "serverUrl", "httpUrl")
_TRANSPORTS = {
    "http": "http", "streamable-http": "http", "streamablehttp": "http", "streamable_http": "http", "sse": "sse",
}  # fmt: skip
_SUPPORTED_KEYS = frozenset({
    "command", "args", "env", "cwd", "headers", "http_headers", "env_http_headers", "bearer_token_env_var", "env_vars",
    "type", "transport", "transportType", "disabled", "enabled", "timeout", "tool_timeout_sec", "includeTools",
    "excludeTools", "enabled_tools", "disabled_tools", "disabledTools", "source", *_URL_KEYS,
})  # fmt: skip


class NoServersError(ToolError):
    """Raised for a valid file without servers."""


@dataclass(frozen=True, slots=True)
class ClientServers:
    """The servers of one file and its digest.

    `inputs` are VS Code's input variables, `notes` messages for the user.
    """

    file: Path
    servers: JsonMapping
    inputs: Mapping[str, JsonMapping] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    digest: str = ""


def read_servers(file: TextFile, directory: Path) -> ClientServers:
    """Return the servers of a file that apply to this directory."""
    text = file.text.removeprefix("\ufeff")
    if not text.strip():
        raise NoServersError(f"nothing to import: {file.path} is empty")
    data, notes = _parse(text, str(file.path))
    servers, more = _collect_servers(data, str(file.path), directory)
    digest = sha256(file.raw or b"").hexdigest()
    return ClientServers(file.path, servers, _read_inputs(data), (*notes, *more), digest)


def parse_settings(file: TextFile) -> Any:
    """Return the data of a client's file. Its format follows from its name."""
    parse = toml_edit.parse if file.path.suffix == ".toml" else json_edit.parse
    return parse(file.text, str(file.path))


def _parse(text: str, source: str) -> tuple[Any, tuple[str, ...]]:
    without_comments = re.sub(r"\A(?:\s+|//[^\n]*|/\*.*?\*/)*", "", text, flags=re.DOTALL)
    if without_comments.startswith("{"):
        document = json_edit.JsonDocument(text, source)
        assert document.root is not None
        return document.root.value, tuple(_find_duplicates(document, document.root))
    try:
        return toml_edit.parse(text, source), ()
    except ConfigError:
        if source.endswith(".toml"):
            raise
        raise ToolError(
            f"unknown format of {source}: expected a client's configuration (JSON or TOML) or an"
            " OpenAPI document (with `openapi:` or `swagger:` at the top)"
        ) from None


def _find_duplicates(document: json_edit.JsonDocument, root: json_edit.Node) -> Iterable[str]:
    for member in document.members(root):
        servers = (
            document.members(member)
            if member.key in _KEYS and isinstance(member.value, dict)
            else []
        )
        counts = Counter(server.key for server in servers)
        for server in {server.key: server for server in servers}.values():
            if counts[server.key] > 1:
                line = line_number(document.text, server.key_start)
                yield (
                    f"{document.source}:{line}: duplicate server {server.key}; the last one is used"
                )


def _collect_servers(data: Any, source: str, directory: Path) -> tuple[JsonObject, list[str]]:
    if not isinstance(data, dict):
        raise ToolError(f"invalid configuration {source}: expected an object")
    holders = [data, *([data["mcp"]] if isinstance(data.get("mcp"), dict) else [])]
    sections = []
    for holder in holders:
        sections += [holder[key] for key in _KEYS if isinstance(holder.get(key), dict)]
    project, notes = _find_project_servers(data.get("projects"), directory)
    if project:
        sections.append(project)
    if data and not sections and all(map(_is_server, data.values())):
        sections = [data]  # a bare `{name: {command: ...}}`, as READMEs show it
    has_keys = any(not holder.keys().isdisjoint(_KEYS) for holder in holders)
    if not sections and not notes and not has_keys:
        raise NoServersError(f"no servers in {source}: looked for {', '.join(_KEYS)}")
    servers: JsonObject = {}
    for section in sections:
        servers |= section
    return servers, notes


def _is_server(data: Any) -> bool:
    return isinstance(data, dict) and not data.keys().isdisjoint(("command", *_URL_KEYS))


def _find_project_servers(projects: Any, directory: Path) -> tuple[JsonObject, list[str]]:
    """Return a directory's private servers, which Claude Code keeps in ~/.claude.json."""
    own: JsonObject = {}
    others = []
    for path, project in projects.items() if isinstance(projects, dict) else ():
        servers = project.get("mcpServers") if isinstance(project, dict) else None
        if isinstance(servers, dict) and servers:
            if Path(path) == directory:
                own = servers
            else:
                others.append(f"skipped servers of {path}: {', '.join(servers)}")
    return own, others


def _read_inputs(data: Any) -> dict[str, JsonMapping]:
    holders = [data, data.get("mcp")] if isinstance(data, dict) else []
    lists = [
        holder["inputs"] for holder in holders if isinstance(holder, dict) and "inputs" in holder
    ]
    inputs: dict[str, JsonMapping] = {}
    for items in lists:
        for item in items if isinstance(items, list) else ():
            if isinstance(item, dict) and "id" in item:
                inputs[str(item["id"])] = item
    return inputs


@dataclass(slots=True)
class Translator:
    """A translator for the servers of one file.

    `missing` collects the variables for which `is_known` is False.
    """

    directory: Path
    home: Path
    is_known: Callable[[str], bool]
    inputs: Mapping[str, JsonMapping] = field(default_factory=dict)
    is_gemini: bool = False
    notes: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def translate(self, name: str, server: JsonMapping) -> JsonObject | None:
        """Return the entry for onetool.yaml; None if the server cannot be imported, with the reason
        in `notes`.
        """
        raw = _flatten(server)
        entry: JsonObject | None
        if isinstance(raw.get("command"), str):
            entry = self._translate_local(name, raw)
        else:
            entry = self._translate_remote(name, raw)
        if entry is None:
            return None
        if raw.get("disabled") is True or raw.get("enabled") is False:
            entry["enabled"] = False
        entry.update(_translate_limits(raw))
        unsupported = [key for key in raw if key not in _SUPPORTED_KEYS]
        if unsupported:
            self.notes.append(f"{name}: ignored unsupported keys: {', '.join(unsupported)}")
        return entry

    def _translate_local(self, name: str, raw: JsonMapping) -> JsonObject:
        entry: JsonObject = {"command": self._translate_string(name, raw["command"])}
        if args := raw.get("args"):
            entry["args"] = [self._translate_string(name, arg) for arg in _to_list(args)]
        # Codex passes these on from its own environment.
        env = self._translate_strings(name, raw.get("env"))
        for item in _to_list(raw.get("env_vars")):
            variable = item.get("name") if isinstance(item, Mapping) else item
            if isinstance(variable, str):
                env[variable] = self._make_reference(variable)
        if env:
            entry["env"] = env
        if isinstance(raw.get("cwd"), str):
            entry["cwd"] = self._translate_string(name, raw["cwd"])
        return entry

    def _translate_remote(self, name: str, raw: JsonMapping) -> JsonObject | None:
        key = next((key for key in _URL_KEYS if isinstance(raw.get(key), str) and raw[key]), None)
        if key is None:
            self.notes.append(f"{name}: skipped, because it has neither a command nor a URL")
            return None
        transport = self._detect_transport(raw, key)
        if transport is None:
            kind = raw.get("type") or raw.get("transport")
            self.notes.append(
                f"{name}: skipped, because transport {kind} is not supported (expected http or sse)"
            )
            return None
        entry: JsonObject = {"url": self._translate_string(name, raw[key])}
        if headers := self._translate_headers(name, raw):
            entry["headers"] = headers
        if transport == "sse":
            entry["transport"] = "sse"
        return entry

    def _detect_transport(self, raw: JsonMapping, key: str) -> str | None:
        kind = next(
            (raw[word] for word in ("type", "transport", "transportType") if raw.get(word)), None
        )
        if kind is not None and str(kind).lower() != "stdio":
            return _TRANSPORTS.get(str(kind).lower())
        has_sse_path = str(raw[key]).rstrip("/").endswith("/sse")
        return "sse" if has_sse_path or (self.is_gemini and key == "url") else "http"

    def _translate_headers(self, name: str, raw: JsonMapping) -> dict[str, str]:
        headers = self._translate_strings(name, raw.get("headers"))
        headers |= self._translate_strings(name, raw.get("http_headers"))
        from_env = raw.get("env_http_headers")
        for header, variable in from_env.items() if isinstance(from_env, Mapping) else ():
            headers[header] = self._make_reference(str(variable))
        if isinstance(token := raw.get("bearer_token_env_var"), str):
            headers["Authorization"] = f"Bearer {self._make_reference(token)}"
        return headers

    def _translate_strings(self, name: str, mapping: Any) -> dict[str, str]:
        if not isinstance(mapping, Mapping):
            return {}
        return {
            str(key): self._translate_string(name, value)
            for key, value in mapping.items()
            if value is not None
        }

    def _translate_string(self, name: str, value: Any) -> str:
        text = ("true" if value else "false") if isinstance(value, bool) else str(value)
        if self.is_gemini:
            text = _SHELL.sub(r"${\1}", text)
        text = _VARIABLE.sub(lambda match: self._translate_variable(name, match), text)
        return _ANY_REFERENCE.sub(_escape_invalid, text)

    def _translate_variable(self, name: str, variable: re.Match[str]) -> str:
        inside = variable[1]
        kind, colon, reference = inside.partition(":")
        if kind == "env" and _PLAIN.fullmatch(reference):
            return self._make_reference(reference)
        if kind == "input" and colon:
            return self._translate_input(reference)
        if inside in self._editor_variables:
            return self._editor_variables[inside]
        if _PLAIN.fullmatch(inside):
            return self._make_reference(inside)
        note = f"unknown variable {variable[0]} was kept; replace it with its value"
        self.notes.append(f"{name}: {note}")
        return f"${variable[0]}"

    @property
    def _editor_variables(self) -> dict[str, str]:
        directory = str(self.directory)
        return {
            "workspaceFolder": directory,
            "workspaceRoot": directory,
            "workspaceFolderBasename": self.directory.name,
            "userHome": str(self.home),
            "pathSeparator": os.sep,
            "/": os.sep,
        }

    def _make_reference(self, inside: str) -> str:
        """Return a reference, with an empty default if the variable is not set (an error)."""
        name, default, _ = inside.partition(":-")
        if default or self.is_known(name):
            return f"${{{inside}}}"
        self.missing.setdefault(name, "")
        return f"${{{name}:-}}"

    def _translate_input(self, ident: str) -> str:
        variable = re.sub(r"\W+", "_", ident, flags=re.ASCII).upper().strip("_")
        variable = variable if variable and not variable[0].isdigit() else f"INPUT_{variable}"
        definition = self.inputs.get(ident, {})
        default = definition.get("default")
        if isinstance(default, str) and not set(default) & set("{}"):
            return f"${{{variable}:-{default}}}"
        if not self.is_known(variable):
            self.missing[variable] = str(definition.get("description", ""))
        return f"${{{variable}}}" if self.is_known(variable) else f"${{{variable}:-}}"


def is_ours(name: str, server: Any) -> bool:
    """Return whether the entry starts OneTool, which must not import itself."""
    if name.casefold() == ENTRY:
        return True
    raw = _flatten(server) if isinstance(server, Mapping) else {}
    command = PureWindowsPath(str(raw.get("command", "")))  # accepts both kinds of slashes
    program = command.stem.casefold()
    words = [str(arg) for arg in _to_list(raw.get("args"))]
    if program not in {"uv", "uvx", "pipx"}:
        return program == ENTRY
    return any(re.fullmatch(rf"{ENTRY}(?:[@=\[].*)?", word) for word in words)


def _escape_invalid(reference: re.Match[str]) -> str:
    """Escape `${` without a valid reference, which would make the settings invalid."""
    is_valid = reference[0] == "$${" or (reference[2] and _PLAIN.fullmatch(reference[1]))
    return reference[0] if is_valid else f"${reference[0]}"


def _flatten(server: JsonMapping) -> JsonObject:
    """Move nested keys to the top: older Zed has them in `command`, others in `transport`."""
    raw = dict(server)
    for key in ("command", "transport"):
        if isinstance(inner := raw.get(key), Mapping):
            del raw[key]
            for word, value in inner.items():
                raw["command" if word == "path" else str(word)] = value
    return raw


def _translate_limits(raw: JsonMapping) -> JsonObject:
    entry: JsonObject = {}
    milliseconds = not raw.get("tool_timeout_sec")
    timeout = raw.get("timeout") if milliseconds else raw["tool_timeout_sec"]
    if isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout > 0:
        entry["timeout"] = timeout / 1000 if milliseconds else timeout
    include = _collect_names(raw, "includeTools", "enabled_tools")
    exclude = _collect_names(raw, "excludeTools", "disabled_tools", "disabledTools")
    tools = {key: names for key, names in (("include", include), ("exclude", exclude)) if names}
    return {**entry, "tools": tools} if tools else entry


def _collect_names(raw: JsonMapping, *keys: str) -> list[str]:
    return [str(name) for key in keys for name in _to_list(raw.get(key)) if name]


def _to_list(value: Any) -> Iterable[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
