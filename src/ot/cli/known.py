"""Names that can be told from files alone, for a person who presses Tab: packs, tools, arguments, servers, agents.

Nothing is started and nothing heavy is loaded, so it is quick and may be a little behind: of a server it knows what
was seen of it last. A folder that is not trusted is not read. Who calls a tool gets its names from the registry.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ot import paths
from ot.config.trust import still_trusted
from ot.errors import ToolError
from ot.extensions.source import NAMED, SUFFIX, outline
from ot.proxy.pins import Pins
from ot.registry import python_name
from ot.util import yaml12

MOST_FILES = 2000
Arguments = list[str]
Tools = dict[str, Arguments]  # what each tool of a pack takes


@dataclass(frozen=True)
class Known:
    folders: paths.Folders
    shipped: Path

    @classmethod
    def here(cls, env: Mapping[str, str], config_file: Path | None) -> "Known":
        import ot_tools

        found = paths.find_folders(env, Path.cwd(), config_file, Path.home())
        assumed = replace(found, trusted=True)
        return cls(assumed if still_trusted(assumed, env).trusted else found, Path(ot_tools.__path__[0]))

    # --- what the configuration names ---------------------------------------------------------------------------------

    @cached_property
    def _settings(self) -> list[dict[str, Any]]:
        """What each layer says, unchecked: a file with a mistake in it still has names."""
        return [_yaml(self.folders.config_of(layer)) for layer in self.folders.layers]

    def section(self, name: str) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for layer in self._settings:
            merged |= _mapping(layer.get(name))
        return merged

    @property
    def servers(self) -> list[str]:
        return list(self.section("servers"))

    @property
    def agents(self) -> list[str]:
        files = [file for layer in self.folders.layers for file in paths.agent_files(layer)]
        return list(dict.fromkeys(["default", *self.section("agents"), *(_agent_name(file) for file in files)]))

    @property
    def tokens(self) -> list[str]:
        listed = self.section("auth").get("tokens")
        entries = listed if isinstance(listed, list) else []
        return [str(entry["name"]) for entry in entries if isinstance(entry, dict) and "name" in entry]

    # --- tools --------------------------------------------------------------------------------------------------------

    @property
    def packs(self) -> list[str]:
        names = [*filter(None, self._files), *self.servers, *(python_name(slug) for slug in self.bundles)]
        return list(dict.fromkeys(names))

    def tools(self, pack: str) -> Tools:
        """By their full names."""
        if pack in self._files:
            return self._outline(pack)
        if pack in self.servers:
            with suppress(ToolError):
                pinned = Pins(self.folders.data / "pins.json").get(pack) or {}
                return {
                    f"{pack}.{python_name(tool)}": _properties(pin.get("input_schema")) for tool, pin in pinned.items()
                }
        folder = next((where for slug, where in self.bundles.items() if pack in {slug, python_name(slug)}), None)
        return {f"{pack}.{python_name(slug)}": names for slug, names in _stored(folder).items()} if folder else {}

    @property
    def alone(self) -> Tools:
        """Tools of no pack, such as `grep`."""
        return self._outline("") if "" in self._files else {}

    def _outline(self, pack: str) -> Tools:
        with suppress(OSError, SyntaxError, ValueError, TypeError, LookupError, RecursionError, MemoryError):
            return {f"{pack}.{name}".lstrip("."): tool for name, tool in outline(self._files[pack]).items()}
        return {}

    @cached_property
    def _files(self) -> dict[str, Path]:
        own = sorted(self.shipped.glob(f"*{SUFFIX}.py"))
        folders = [layer / "tools" for layer in reversed(self.folders.layers)]
        named = [text for layer in self._settings for text in _texts(layer.get("tools_dir"))]
        folders += [paths.placed(text, self.folders.working_dir, self.folders.home) for text in named]
        found = [*own, *(file for folder in folders for file in paths.extension_files(folder))]
        return {_pack_of(file): file for file in reversed(found)}  # of two with one name, the first

    @cached_property
    def bundles(self) -> dict[str, Path]:
        """By their slugs, whether they are switched on or off."""
        from ot.bundles.filenames import BUNDLE_FILE

        place = str(self.section("bundles").get("dir") or "bundles")
        stored = paths.placed(place, self.folders.data, self.folders.home).glob(f"*/{BUNDLE_FILE}")
        shipped = (self.shipped.parent / "ot" / "bundles" / "builtin").glob(f"*/{BUNDLE_FILE}")
        return {str(_json(file).get("slug") or file.parent.name): file.parent for file in (*stored, *shipped)}

    def stored_tools(self, slug: str) -> list[str]:
        folder = self.bundles.get(slug)
        return [f"{slug}.{tool}" for tool in _stored(folder)] if folder else []


def _pack_of(file: Path) -> str:
    try:
        named = NAMED.search(file.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        named = None
    return named[1] if named else file.stem.removesuffix(SUFFIX)


def _stored(folder: Path) -> Tools:
    found: Tools = {}
    for file in sorted(folder.glob("*@*.json"))[:MOST_FILES]:
        data = _json(file)
        found[str(data.get("slug") or file.name.partition("@")[0])] = _properties(data.get("argSchema"))
    return found


def _properties(schema: Any) -> Arguments:
    return list(_mapping(_mapping(schema).get("properties")))


def _agent_name(file: Path) -> str:
    name = _yaml(file).get("name")
    return name if isinstance(name, str) else file.stem


def _yaml(file: Path) -> dict[str, Any]:
    try:
        return _mapping(yaml12.read_file(file).data)
    except (OSError, ToolError):
        return {}


def _json(file: Path) -> dict[str, Any]:
    try:
        return _mapping(json.loads(file.read_bytes()))
    except (OSError, ValueError, RecursionError):
        return {}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
