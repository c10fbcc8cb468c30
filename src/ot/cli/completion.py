"""Print what makes a shell complete commands, options, tools and their arguments when you press Tab.

Put one line into the file that your shell reads at its start:

    bash, in ~/.bashrc:                     eval "$(onetool completion bash)"
    zsh, in ~/.zshrc, after compinit:       eval "$(onetool completion zsh)"
    fish, in ~/.config/fish/config.fish:    onetool completion fish | source
"""

# The scripts are small: they hand over the words that were typed so far and show what comes back, one answer a line.
# FILES instead of an answer means that the shell is to complete a file's name, as it does anyway.

import argparse
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ot.cli.known import Known

FILES = ":files"
OPEN = (".", "=")  # after these a word goes on
BASH = r"""
_onetool() {
    local IFS=$'\n'
    COMPREPLY=($("$1" completion --answer "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
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
    parser.add_argument("shell", choices=SCRIPTS, metavar="SHELL", help=f"one of {', '.join(SCRIPTS)}")


def main(options: argparse.Namespace) -> int:
    print(SCRIPTS[options.shell].strip())
    return 0


def answer(typed: list[str]) -> int:
    """What may stand where the last word is. Whatever is wrong, nobody wants to hear of it while typing."""
    try:
        words, broken = _joined(typed or [""])
        found = list(dict.fromkeys(_answers(words)))
    except (Exception, SystemExit):  # noqa: BLE001 - see above
        return 0
    for text in found if found == [FILES] else _fitting(found, words[-1]):
        print(text.removeprefix(broken))
    return 0


def _joined(typed: list[str]) -> tuple[list[str], str]:
    """The words as they were typed. bash breaks at = and :, and takes an answer for what stands behind them alone."""
    words: list[str] = []
    for word in typed:
        if words and (word in {"=", ":"} or words[-1].endswith(("=", ":"))):
            words[-1] += word
        else:
            words.append(word)
    if words[-1] == typed[-1]:
        return words, ""
    return words, words[-1] if typed[-1] in {"=", ":"} else words[-1].removesuffix(typed[-1])


def _fitting(found: Iterable[str], start: str) -> list[str]:
    return [text for text in found if text.startswith(start) and text.isprintable()]


def _answers(words: list[str]) -> Iterator[str]:
    from ot.cli.main import COMMANDS, command

    if len(words) == 1:
        yield from [*COMMANDS, "--help", "--version"] if words[0].startswith("-") else COMMANDS
        return
    if words[0] in COMMANDS:
        yield from _of_command(words[0], command(words[0])[0], words[1:])


class _Typed:
    """What the words before the last one say: which action is meant, what is given, what is still waited for."""

    def __init__(self, name: str, parser: argparse.ArgumentParser) -> None:
        self.name, self.parser = name, parser
        self.given: list[str] = []
        self.waiting: argparse.Action | None = None  # an option whose value comes next
        self.config: Path | None = None

    def add(self, word: str) -> None:
        option = self.parser._option_string_actions.get(word)  # noqa: SLF001 - argparse tells it nowhere else
        if option is not None:
            self.waiting = option if option.nargs != 0 else None
        elif self.waiting is not None:
            self.config = Path(word) if self.waiting.dest == "config" else self.config
            self.waiting = self.waiting if self.waiting.nargs == "+" else None
        elif not self.given and word in _actions(self.parser):
            self.name, self.parser = f"{self.name} {word}", _actions(self.parser)[word]
        else:
            self.given.append(word)

    @property
    def place(self) -> argparse.Action | None:
        """What the next word is, where it is no option."""
        places = [action for action in self.parser._actions if not action.option_strings]  # noqa: SLF001
        if self.waiting is not None or not places:
            return self.waiting
        if len(self.given) < len(places):
            return places[len(self.given)]
        return places[-1] if places[-1].nargs == "*" else None


def _of_command(name: str, parser: argparse.ArgumentParser, words: list[str]) -> Iterable[str]:
    typed, current = _Typed(name, parser), words[-1]
    for word in words[:-1]:
        typed.add(word)
    if current.startswith("-"):
        return [text for text in typed.parser._option_string_actions if text.startswith("--")]  # noqa: SLF001
    place = typed.place
    return _values(typed, place, current) if place is not None else ()


def _actions(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:  # noqa: SLF001 - argparse tells it nowhere else
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            return dict(action.choices)
    return {}


def _values(typed: _Typed, action: argparse.Action, current: str) -> Iterable[str]:
    if action.choices is not None:
        return map(str, action.choices)
    if action.dest in {"config", "file", "html", "folder"}:
        return [FILES]
    source = _SOURCES.get((typed.name, action.dest)) or _SOURCES.get(("", action.dest))
    return source(Known.here(os.environ, typed.config), current, typed.given) if source else ()


def _tools(known: Known, current: str, _given: list[str]) -> Iterator[str]:
    """First the packs, then the tools of one: a list of hundreds helps nobody."""
    pack, dot, _ = current.partition(".")
    if dot:
        yield from known.tools(pack)
        return
    packs = _fitting(known.packs, current)
    alone = _fitting(known.alone, current)
    if len(packs) == 1 and not alone:
        yield from known.tools(packs[0]) or [f"{packs[0]}."]
    else:
        yield from (f"{pack}." for pack in packs)
        yield from alone


def _arguments(known: Known, current: str, given: list[str]) -> Iterator[str]:
    if "=" in current:
        yield FILES
        return
    name, *pairs = given
    pack, dot, _ = name.partition(".")
    tools = known.tools(pack) if dot else known.alone
    used = {pair.partition("=")[0] for pair in pairs}
    yield from (f"{key}=" for key in tools.get(name, ()) if key not in used)


def _stored(known: Known, current: str, _given: list[str]) -> Iterable[str]:
    slug, dot, _ = current.partition(".")
    return known.stored_tools(slug) if dot else known.bundles


def _clients_or_files(_known: Known, current: str, _given: list[str]) -> Iterable[str]:
    from ot.clients.catalogue import CLIENTS

    return _fitting(CLIENTS, current) or [FILES]


# What stands in a place of a command, or of any command.
_SOURCES: dict[tuple[str, str], Callable[[Known, str, list[str]], Iterable[str]]] = {
    ("call", "name"): _tools,
    ("tools", "pattern"): _tools,
    ("help", "query"): _tools,
    ("stats", "tool"): _tools,
    ("serve", "expose"): _tools,
    ("call", "arguments"): _arguments,
    ("", "agent"): lambda known, *_: known.agents,
    ("accept", "server"): lambda known, *_: known.servers,
    ("token delete", "name"): lambda known, *_: known.tokens,
    ("bundles export", "slug"): lambda known, *_: known.bundles,
    ("bundles enable", "what"): _stored,
    ("bundles disable", "what"): _stored,
    ("bundles delete", "what"): _stored,
    ("import", "source"): _clients_or_files,
}
