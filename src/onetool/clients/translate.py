"""Converts a client's server to OneTool's settings: its keys, and the variables in its values.

Unsupported keys are reported, never dropped silently.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import Any

from onetool.clients.catalogue import ENTRY

_VARIABLE = re.compile(r"\$\{([^{}]*)\}")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?::-.*)?", re.DOTALL)
_ANY_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
_SHELL = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_ADDRESSES = ("url", "serverUrl", "httpUrl")
_TRANSPORTS = {
    "http": "http", "streamable-http": "http", "streamablehttp": "http", "streamable_http": "http", "sse": "sse",
}  # fmt: skip
_UNDERSTOOD = frozenset({
    "command", "args", "env", "cwd", "headers", "http_headers", "env_http_headers", "bearer_token_env_var", "env_vars",
    "type", "transport", "transportType", "disabled", "enabled", "timeout", "tool_timeout_sec", "includeTools",
    "excludeTools", "enabled_tools", "disabled_tools", "disabledTools", "source", *_ADDRESSES,
})  # fmt: skip


@dataclass(slots=True)
class Translator:
    """A translator for the servers of one file. `known` checks whether a variable is set; `missing` collects others."""

    folder: Path
    home: Path
    known: Callable[[str], bool]
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    is_gemini: bool = False
    notes: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def server(self, name: str, given: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the entry for onetool.yaml; None if the server cannot be imported, with the reason in `notes`."""
        raw = _flatten(given)
        made = self._remote(name, raw) if not isinstance(raw.get("command"), str) else self._local(name, raw)
        if made is None:
            return None
        if raw.get("disabled") is True or raw.get("enabled") is False:
            made["enabled"] = False
        made.update(_limits(raw))
        left = [key for key in raw if key not in _UNDERSTOOD]
        if left:
            self.notes.append(f"{name}: ignored unsupported keys: {', '.join(left)}")
        return made

    def _local(self, name: str, raw: Mapping[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = {"command": self._text(name, raw["command"])}
        if args := raw.get("args"):
            made["args"] = [self._text(name, arg) for arg in _to_list(args)]
        # Codex passes these on from its own environment.
        passed = [each.get("name") if isinstance(each, Mapping) else each for each in _to_list(raw.get("env_vars"))]
        forwarded = {each: self._reference(each) for each in passed if isinstance(each, str)}
        if env := {**self._texts(name, raw.get("env")), **forwarded}:
            made["env"] = env
        if isinstance(raw.get("cwd"), str):
            made["cwd"] = self._text(name, raw["cwd"])
        return made

    def _remote(self, name: str, raw: Mapping[str, Any]) -> dict[str, Any] | None:
        key = next((key for key in _ADDRESSES if isinstance(raw.get(key), str) and raw[key]), None)
        if key is None:
            self.notes.append(f"{name}: skipped, because it has neither a command nor a URL")
            return None
        transport = self._transport(raw, key)
        if transport is None:
            kind = raw.get("type") or raw.get("transport")
            self.notes.append(f"{name}: skipped, because transport {kind} is not supported (expected http or sse)")
            return None
        made: dict[str, Any] = {"url": self._text(name, raw[key])}
        if headers := self._headers(name, raw):
            made["headers"] = headers
        if transport == "sse":
            made["transport"] = "sse"
        return made

    def _transport(self, raw: Mapping[str, Any], key: str) -> str | None:
        kind = next((raw[word] for word in ("type", "transport", "transportType") if raw.get(word)), None)
        if kind is not None and str(kind).lower() != "stdio":
            return _TRANSPORTS.get(str(kind).lower())
        by_address = str(raw[key]).rstrip("/").endswith("/sse")
        return "sse" if by_address or (self.is_gemini and key == "url") else "http"

    def _headers(self, name: str, raw: Mapping[str, Any]) -> dict[str, str]:
        headers = self._texts(name, raw.get("headers")) | self._texts(name, raw.get("http_headers"))
        from_env = raw.get("env_http_headers")
        for header, variable in from_env.items() if isinstance(from_env, Mapping) else ():
            headers[header] = self._reference(str(variable))
        if isinstance(token := raw.get("bearer_token_env_var"), str):
            headers["Authorization"] = f"Bearer {self._reference(token)}"
        return headers

    def _texts(self, name: str, mapping: Any) -> dict[str, str]:
        if not isinstance(mapping, Mapping):
            return {}
        return {str(key): self._text(name, value) for key, value in mapping.items() if value is not None}

    def _text(self, name: str, value: Any) -> str:
        text = ("true" if value else "false") if isinstance(value, bool) else str(value)
        if self.is_gemini:
            text = _SHELL.sub(r"${\1}", text)
        text = _VARIABLE.sub(lambda found: self._variable(name, found), text)
        return _ANY_REFERENCE.sub(_escape_invalid, text)

    def _variable(self, name: str, found: re.Match[str]) -> str:
        inside = found[1]
        kind, colon, rest = inside.partition(":")
        if kind == "env" and _PLAIN.fullmatch(rest):
            return self._reference(rest)
        if kind == "input" and colon:
            return self._input(rest)
        if inside in self._places:
            return self._places[inside]
        if _PLAIN.fullmatch(inside):
            return self._reference(inside)
        self.notes.append(f"{name}: unknown variable {found[0]} was kept; replace it with its value")
        return f"${found[0]}"

    @property
    def _places(self) -> dict[str, str]:
        folder = str(self.folder)
        return {
            "workspaceFolder": folder,
            "workspaceRoot": folder,
            "workspaceFolderBasename": self.folder.name,
            "userHome": str(self.home),
            "pathSeparator": os.sep,
            "/": os.sep,
        }

    def _reference(self, inside: str) -> str:
        """Return a reference with an empty default if the variable is not set, which would be an error otherwise."""
        name, default, _ = inside.partition(":-")
        if default or self.known(name):
            return f"${{{inside}}}"
        self.missing.setdefault(name, "")
        return f"${{{name}:-}}"

    def _input(self, ident: str) -> str:
        variable = re.sub(r"\W+", "_", ident, flags=re.ASCII).upper().strip("_")
        variable = variable if variable and not variable[0].isdigit() else f"INPUT_{variable}"
        asked = self.inputs.get(ident, {})
        if isinstance(asked.get("default"), str) and not set(asked["default"]) & set("{}"):
            return f"${{{variable}:-{asked['default']}}}"
        if not self.known(variable):
            self.missing[variable] = str(asked.get("description", ""))
        return f"${{{variable}}}" if self.known(variable) else f"${{{variable}:-}}"


def is_ours(name: str, server: Any) -> bool:
    """Return whether the entry starts OneTool, which must not import itself."""
    if name.casefold() == ENTRY:
        return True
    raw = _flatten(server) if isinstance(server, Mapping) else {}
    program = PureWindowsPath(str(raw.get("command", ""))).stem.casefold()  # accepts both kinds of slashes
    words = [str(arg) for arg in _to_list(raw.get("args"))]
    if program not in {"uv", "uvx", "pipx"}:
        return program == ENTRY
    return any(re.fullmatch(rf"{ENTRY}(?:[@=\[].*)?", word) for word in words)


def _escape_invalid(found: re.Match[str]) -> str:
    """Escape `${` without a valid reference, which would make the settings invalid."""
    valid = found[0] == "$${" or (found[2] and _PLAIN.fullmatch(found[1]))
    return found[0] if valid else f"${found[0]}"


def _flatten(given: Mapping[str, Any]) -> dict[str, Any]:
    """Move nested keys to the top: older Zed nests them below `command`, other clients below `transport`."""
    raw = dict(given)
    for key in ("command", "transport"):
        if isinstance(inner := raw.get(key), Mapping):
            del raw[key]
            raw |= {"command" if word == "path" else str(word): value for word, value in inner.items()}
    return raw


def _limits(raw: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    milliseconds = not raw.get("tool_timeout_sec")
    given = raw.get("timeout") if milliseconds else raw["tool_timeout_sec"]
    if isinstance(given, int | float) and not isinstance(given, bool) and given > 0:
        made["timeout"] = given / 1000 if milliseconds else given
    include = _names(raw, "includeTools", "enabled_tools")
    exclude = _names(raw, "excludeTools", "disabled_tools", "disabledTools")
    tools = {key: names for key, names in (("include", include), ("exclude", exclude)) if names}
    return {**made, "tools": tools} if tools else made


def _names(raw: Mapping[str, Any], *keys: str) -> list[str]:
    return [str(name) for key in keys for name in _to_list(raw.get(key)) if name]


def _to_list(value: Any) -> Iterable[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
