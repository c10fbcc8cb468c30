"""Print a shell completion script for commands, options, tools and their arguments.

Add one line to the startup file of your shell:

    bash, in ~/.bashrc:                     eval "$(onetool completion bash)"
    zsh, in ~/.zshrc, after compinit:       eval "$(onetool completion zsh)"
    fish, in ~/.config/fish/config.fish:    onetool completion fish | source
"""

# The scripts pass on the words typed so far and show the candidates that are printed, one per line.
# FILES instead of candidates makes the shell complete file names. Names may contain any character,
# because projects and upstream servers choose them: zsh and fish quote what they insert, bash does
# not.
#
# Names come from the files that the registry reads. Nothing is started, and pydantic is not
# imported, which would triple the time. The tools of a server are those of its last start. An
# untrusted directory is not read.

import argparse
import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from onetool.cli.command import Command
from onetool.core.names import python_name
from onetool.errors import ToolError
from onetool.settings import paths
from onetool.settings.trust import still_trusted
from onetool.sources.extensions.static_analysis import PACK_ASSIGNMENT, SUFFIX, outline
from onetool.state.documents import DocumentFile, Documents
from onetool.util import yaml_loader
from onetool_child.json_types import JsonObject
from onetool_child.names import OWN_PACK

MAX_FILES = 2000
SHIPPED = Path(__file__).parents[2]
FILES = ":files"
BASH = r"""
_onetool() {
    local answer
    COMPREPLY=()
    while IFS= read -r answer; do
        COMPREPLY+=("$(printf '%q' "$answer")")
    done < <("$1" completion --answer "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    if [[ ${COMPREPLY[0]} == :files ]]; then
        COMPREPLY=()
        compopt -o default 2>/dev/null
    elif [[ ${COMPREPLY[0]} == *[.=] ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -F _onetool onetool
"""
ZSH = r"""
_onetool() {
    local -a answers unfinished
    answers=("${(@f)$("${words[1]}" completion --answer "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ ${answers[1]} == :files ]]; then
        compset -P '*='
        _files
        return
    fi
    unfinished=("${(@M)answers:#*[.=]}")
    answers=("${(@)answers:#*[.=]}")
    compadd -S '' -- "${(@)unfinished:#}"
    compadd -- "${(@)answers:#}"
    (( ${#answers} + ${#unfinished} ))
}
compdef _onetool onetool
"""
FISH = r"""
function __onetool_answers
    set -l words (commandline -opc) (commandline -ct)
    set -l answers ($words[1] completion --answer $words[2..-1] 2>/dev/null)
    if test "$answers[1]" = :files
        __fish_complete_path (commandline -ct)
    else
        printf '%s\n' $answers
    end
end
complete -c onetool -f -a '(__onetool_answers)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "shell", choices=SCRIPTS, metavar="SHELL", help=f"shell: {', '.join(SCRIPTS)}"
    )


def main(options: argparse.Namespace) -> int:
    print(SCRIPTS[options.shell].strip())
    return 0


def print_candidates(typed: list[str]) -> int:
    """Print the candidates for the last word.

    Errors are ignored, because they would disturb typing.
    """
    try:
        words, broken = _join_words(typed or [""])
        candidates = list(dict.fromkeys(_candidates(words)))
    except (Exception, SystemExit):  # noqa: BLE001 - see above
        return 0
    for text in candidates if candidates == [FILES] else _matching(candidates, words[-1]):
        print(text.removeprefix(broken))
    return 0


def _join_words(typed: list[str]) -> tuple[list[str], str]:
    """Return the words as typed, and the prefix to remove: bash splits words at = and :."""
    words: list[str] = []
    for word in typed:
        if words and (word in {"=", ":"} or words[-1].endswith(("=", ":"))):
            words[-1] += word
        else:
            words.append(word)
    if words[-1] == typed[-1]:
        return words, ""
    return words, words[-1] if typed[-1] in {"=", ":"} else words[-1].removesuffix(typed[-1])


def _matching(candidates: Iterable[str], start: str) -> list[str]:
    return [text for text in candidates if text.startswith(start) and text.isprintable()]


def _candidates(words: list[str]) -> Iterable[str]:
    from onetool.cli.main import COMMANDS, make_parser

    name, *before, current = words if len(words) > 1 else ("", *words)
    if not name:
        return [*COMMANDS, "--help", "--version"] if current.startswith("-") else COMMANDS
    if name not in COMMANDS:
        return ()
    parser = make_parser(name)
    arguments: list[str] = []
    waiting = config = None  # an option whose value comes next; the value of --config
    for word in before:
        option = parser._option_string_actions.get(word)  # noqa: SLF001 - argparse has no public API for it
        if option is not None:
            waiting = option if option.nargs != 0 else None
        elif waiting is not None:
            config = Path(word) if waiting.dest == "config" else config
            waiting = waiting if waiting.nargs == "+" else None
        elif not arguments and word in (actions := _actions(parser)):
            name = f"{name} {word}"
            parser = actions[word]
        else:
            arguments.append(word)
    if current.startswith("-"):
        return [text for text in parser._option_string_actions if text.startswith("--")]  # noqa: SLF001
    places = [action for action in parser._actions if not action.option_strings]  # noqa: SLF001
    places += [last for last in places[-1:] if last.nargs == "*"] * len(arguments)
    place = waiting or next(iter(places[len(arguments) :]), None)
    if place is None or place.choices is not None:
        return map(str, place.choices or ()) if place else ()
    if place.dest in {"config", "file", "html", "folder"}:
        return [FILES]
    source = _SOURCES.get(f"{name} {place.dest}") or _SOURCES.get(place.dest)
    return source(_Names(config), current, arguments) if source else ()


def _actions(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    parsers = (
        action.choices
        for action in parser._actions  # noqa: SLF001 - there is no public way
        if isinstance(action, argparse._SubParsersAction)  # noqa: SLF001 - there is no public way
    )
    return dict(next(parsers, {}))


class _Names:
    """Names from the settings files, even from invalid ones."""

    def __init__(self, config_file: Path | None) -> None:
        directories = paths.find_directories(os.environ, Path.cwd(), config_file, Path.home())
        assumed = replace(directories, trusted=True)
        self._directories = assumed if still_trusted(assumed, os.environ).trusted else directories
        self._settings = [
            _read(self._directories.config_path(layer)) for layer in self._directories.layers
        ]

    def section(self, name: str) -> JsonObject:
        return {
            key: value
            for layer in self._settings
            for key, value in _mapping(layer.get(name)).items()
        }

    def agents(self, *_: object) -> list[str]:
        files = [file for layer in self._directories.layers for file in paths.agent_files(layer)]
        return [
            "default",
            *self.section("agents"),
            *(str(_read(file).get("name") or file.stem) for file in files),
        ]

    def tokens(self, *_: object) -> list[str]:
        entries = self.section("auth").get("tokens")
        if isinstance(entries, list):
            return [str(_mapping(entry).get("name", "")) for entry in entries]
        return []

    def packs_or_tools(self, current: str, *_: object) -> Iterable[str]:
        """Return the packs first, then the tools of one pack, to keep the list short."""
        pack, dot, _name = current.partition(".")
        if dot:
            return self._tools(pack)
        packs = [
            *filter(None, self._files),
            *self.section("servers"),
            *map(python_name, self._bundles),
        ]
        packs = _matching(dict.fromkeys(packs), current)
        alone = _matching(self._tools(""), current)
        if len(packs) == 1 and not alone:
            return self._tools(packs[0]) or [f"{packs[0]}."]
        return [*(f"{pack}." for pack in packs), *alone]

    def arguments(self, current: str, words: list[str]) -> Iterable[str]:
        if "=" in current:
            return [FILES]
        name, *pairs = words
        pack, dot, _name = name.partition(".")
        used = {pair.partition("=")[0] for pair in pairs}
        return [
            f"{key}=" for key in self._tools(pack if dot else "").get(name, ()) if key not in used
        ]

    def bundles_or_tools(self, current: str, *_: object) -> Iterable[str]:
        """Return bundles, then the tools of one, enabled or not."""
        slug, dot, _name = current.partition(".")
        return (
            [f"{slug}.{tool}" for tool in self._read_bundle_tools(slug)] if dot else self._bundles
        )

    def extension_packs(self, current: str, *_: object) -> list[str]:
        packs = [pack for pack, file in self._files.items() if not file.is_relative_to(SHIPPED)]
        return _matching(packs, current) or [FILES]

    def clients(self, current: str, *_: object) -> list[str]:
        from onetool.settings.clients.catalog import CLIENTS

        return _matching(CLIENTS, current) or [FILES]

    def _tools(self, pack: str) -> dict[str, list[str]]:
        """Return a pack's tools with their arguments; '' has tools such as `grep`."""
        tools: dict[str, list[str]] = {}
        with suppress(
            ToolError,
            OSError,
            SyntaxError,
            ValueError,
            TypeError,
            LookupError,
            RecursionError,
            MemoryError,
        ):
            if pack in self._files:
                tools = outline(self._files[pack])
                if pack == OWN_PACK:
                    tools |= outline(SHIPPED / "onetool/sources/builtin/ot_discovery.py")
            elif pack in self.section("servers"):
                pins = Documents(DocumentFile(self._directories.private), "pins").get(pack) or {}
                tools = {tool: _properties(pin.get("input_schema")) for tool, pin in pins.items()}
            else:
                tools = self._read_bundle_tools(
                    next((slug for slug in self._bundles if pack in {slug, python_name(slug)}), "")
                )
        return {
            f"{pack}.{python_name(name)}".lstrip("."): arguments
            for name, arguments in tools.items()
        }

    @cached_property
    def _files(self) -> dict[str, Path]:
        """Return the file of each pack."""
        texts = (layer.get("tools_dir") for layer in self._settings)
        named = [
            text
            for found in texts
            if isinstance(found, list)
            for text in found
            if isinstance(text, str)
        ]
        shipped = sorted((SHIPPED / "onetool/sources/builtin").glob(f"*{SUFFIX}.py"))
        found: dict[str, Path] = {}
        directories = self._directories.pack_directories(named)
        for file in (
            *shipped,
            *(file for directory in directories for file in paths.extension_files(directory)),
        ):
            with suppress(OSError):
                pack = PACK_ASSIGNMENT.search(file.read_text(encoding="utf-8", errors="replace"))
                found.setdefault(pack[1] if pack else file.stem.removesuffix(SUFFIX), file)
        return found

    @cached_property
    def _bundles(self) -> dict[str, Path]:
        """Return the directory of each bundle by its slug."""
        from onetool.sources.bundles.rules import BUNDLE_FILE

        stored = paths.resolve_path(
            str(self.section("bundles").get("dir") or "bundles"),
            self._directories.data,
            self._directories.home,
        )
        files = (
            file
            for directory in (stored, SHIPPED / "onetool/sources/bundles/builtin")
            for file in directory.glob(f"*/{BUNDLE_FILE}")
        )
        return {str(_read(file).get("slug") or file.parent.name): file.parent for file in files}

    def _read_bundle_tools(self, slug: str) -> dict[str, list[str]]:
        directory = self._bundles.get(slug)
        files = sorted(directory.glob("*@*.json"))[:MAX_FILES] if directory else []
        contents = ((file, _read(file)) for file in files)
        return {
            str(tool.get("slug") or file.name.partition("@")[0]): _properties(tool.get("argSchema"))
            for file, tool in contents
        }


def _read(file: Path) -> JsonObject:
    """Return the content of a YAML or JSON file; an empty mapping if it cannot be read."""
    with suppress(OSError, ToolError, ValueError, RecursionError):
        return _mapping(
            json.loads(file.read_bytes())
            if file.suffix == ".json"
            else yaml_loader.read_file(file).data
        )
    return {}


def _properties(schema: Any) -> list[str]:
    return list(_mapping(_mapping(schema).get("properties")))


def _mapping(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}


# Candidates by command, or any, and argument.
_SOURCES: dict[str, Callable[[_Names, str, list[str]], Iterable[str]]] = {
    **dict.fromkeys(
        ("call name", "tools pattern", "tools enable", "tools disable"), _Names.packs_or_tools
    ),
    **dict.fromkeys(
        ("help query", "search query", "stats tool", "serve expose"), _Names.packs_or_tools
    ),
    "call arguments": _Names.arguments,
    "agent": _Names.agents,
    "test pack": _Names.extension_packs,
    "dev pack": _Names.extension_packs,
    **dict.fromkeys(
        (
            f"servers {action} server"
            for action in ("accept", "remove", "enable", "disable", "start", "stop")
        ),
        lambda names, *_: names.section("servers"),
    ),
    "hosts remove hosts": lambda names, *_: names.section("http").get("allowedHosts") or (),
    "token revoke name": _Names.tokens,
    "bundles export slug": lambda names, *_: names._bundles,  # noqa: SLF001
    **dict.fromkeys(
        (f"bundles {action} what" for action in ("enable", "disable", "delete")),
        _Names.bundles_or_tools,
    ),
    "import source": _Names.clients,
}


COMMANDS = {"completion": Command(__doc__, add_arguments, main=main, without_json={""})}
