"""The player: it does what the words that it reads say to do next, and knows no name of any tool or pack.

All that it ever sends was shown to it, with the blanks filled: words of the task where a text of several words stands,
a name where a name stands, facts where a parameter is called like them, values of answers where three dots stand.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.e2e.naive_filling import fact_for, fitting, is_possible
from tests.e2e.naive_reading import NAME, Parameter, Reading, Shown, Signature, likeness, read, words_of
from tests.e2e.naive_tasks import Task

MOST_MOVES = 8
SHOWN = 600  # characters of an answer in a transcript


@dataclass(frozen=True)
class Door:
    """All that a model sees of a server with one tool."""

    words: str
    tool: str
    send: Callable[[str], tuple[str, bool]]


@dataclass(frozen=True)
class Move:
    """Code, why it is sent, and the signature it was built from."""

    code: str
    why: str
    made_of: Signature | None = None
    used: frozenset[str] = frozenset()
    example: str = ""  # the call with what stands behind it in an example, for who wants to work with the value


@dataclass
class Player:
    """One play. Moves wait in a list; what the last answer led to comes first."""

    task: Task
    words: str
    door: Door
    moves: list[Move] = field(default_factory=list)
    transcript: list[str] = field(default_factory=list)
    _waiting: list[Move] = field(default_factory=list)
    _blanks: list[Shown] = field(default_factory=list)  # calls to be filled in, in the order in which they were shown

    def play(self) -> bool:
        """Whether the answer was found in so many moves."""
        self._transcribe("task", f"{self.words}  {dict(self.task.facts) or ''}")
        told = self._unwrapped(read(self.door.words))
        self._remember(told)
        self._waiting = [Move(self.task.first, "somebody has typed this")] if self.task.first else []
        self._waiting += [*self._asking_with_words(told.calls), *self._as_it_is(told)]
        while self._waiting and len(self.moves) < MOST_MOVES:
            if self._make(self._waiting.pop(0)):
                return True
        return False

    def _make(self, move: Move) -> bool:
        if move.code in {made.code for made in self.moves}:
            return False
        self.moves.append(move)
        answer, is_error = self.door.send(move.code)
        self._transcribe(f"move {len(self.moves)}, {move.why}", move.code)
        self._transcribe("error" if is_error else "answer", answer)
        if self.task.is_done(answer):
            return True
        told = self._unwrapped(read(answer))
        following = self._after_error(move, told) if is_error else self._after_answer(move, told)
        self._waiting = [*following, *self._waiting]
        return False

    # --- what an answer leads to -------------------------------------------------------------------------------------

    def _after_error(self, move: Move, told: Reading) -> Iterator[Move]:
        """A suggestion is followed to the letter; else a signature, else what it says to type, else help."""
        yield from (Move(_with_name(move.code, name), "it was suggested") for name in told.instead)
        yield from self._built(told)
        yield from self._asking_with_words(told.calls)
        yield from self._as_it_is(told)
        if move.made_of is not None:
            yield from self._asking_about([move.made_of.name])

    def _after_answer(self, move: Move, told: Reading) -> Iterator[Move]:
        self._remember(told)
        yield from self._with_values(told)
        yield from self._computed(move)
        yield from self._with_more(move, told)
        yield from self._built(told)
        yield from self._snippets(told)
        if not self.task.facts:
            yield from self._examples(told)
        if move.made_of is None:  # what a tool gave are no names of tools
            yield from self._listed(told)

    def _listed(self, told: Reading) -> Iterator[Move]:
        """From the top: what can be called with what is known is called, of the rest it is asked how it is called."""
        called = []
        for name in self._nearest_first(told):
            move = self._call_of(told.short[name], told) if name in told.short else None
            if move is not None and (move.used or not self.task.facts):
                called.append(name)
                yield move
            else:
                yield from self._asking_about([name])
        yield from self._asking_about(called)

    def _nearest_first(self, told: Reading) -> list[str]:
        """As they are listed where the list says how good they are; else those with most words of the task first."""
        if any("score" in entry for entry in told.entries):
            return told.names
        lines = {str(entry.get("name")): str(entry) for entry in told.entries}
        return sorted(told.names, key=lambda name: -self._nearness(lines.get(name) or name))

    def _with_values(self, told: Reading) -> Iterator[Move]:
        """Calls that were shown with a blank for something that this answer has, under the same name."""
        known = {key: value for entry in told.entries for key, value in entry.items() if isinstance(value, str)}
        for shown in self._blanks:
            named = [name for name, value in shown.given.items() if _is_open(value)]
            filled = {name: known.get(name) or self._fact(name) for name in named}
            if known.keys() & filled.keys() and all(filled.values()):
                code = _filled(shown, filled)
                yield from self._value_used(code)
                yield Move(code, "the answer has what the blank is for")

    def _computed(self, move: Move) -> Iterator[Move]:
        if move.made_of is not None:
            yield from self._value_used(move.example or move.code)

    def _value_used(self, code: str) -> Iterator[Move]:
        if self.task.compute:
            yield Move(self.task.compute.replace("VALUE", code), "with the value, in Python")

    def _with_more(self, move: Move, told: Reading) -> Iterator[Move]:
        """The same call once more, with what the answer lists for one of its parameters."""
        if move.made_of is None:
            return
        given = read(move.code).calls[0].given
        left = [one for one in move.made_of.parameters if one.name not in given]
        entries = sorted(told.entries, key=lambda entry: -self._nearness(str(entry)))
        for entry in entries:
            found = {one.name: self._given_by(entry, one) for one in left}
            if more := {name: value for name, value in found.items() if value is not None}:
                yield replace(move, code=_with_arguments(move.code, more), why="with something that was listed")

    def _given_by(self, entry: Mapping[str, Any], parameter: Parameter) -> Any:
        """What stands under the name of the parameter; of a list of things to give, those that are needed."""
        value = entry.get(parameter.name)
        if isinstance(value, list):
            names = [part["name"] for part in value if isinstance(part, dict) and part.get("required")]
            return {name: self._fact(name) for name in names} if names and all(map(self._fact, names)) else None
        return value if isinstance(value, str) and is_possible(value, parameter.kind) else None

    def _built(self, told: Reading) -> list[Move]:
        """Calls of what is described; first those that use more of what is known, then the nearest."""
        moves = [move for one in told.signatures if (move := self._call_of(one, told)) is not None]
        return sorted(moves, key=lambda move: -len(move.used))

    def _call_of(self, signature: Signature, told: Reading) -> Move | None:
        given = fitting(signature, self.task.facts)
        if given is None:
            return None
        call = f"{signature.name}({', '.join(f'{name}={value!r}' for name, (_, value) in given.items())})"
        used = frozenset(fact for fact, _ in given.values())
        return Move(call, "by its signature", signature, used, call + _behind_example(signature.name, told))

    def _snippets(self, told: Reading) -> Iterator[Move]:
        for shown in told.snippets:
            name, *pairs = shown.rstrip('"').split(" ")
            values = {key: self._fact(key) for key, _, _ in (pair.partition("=") for pair in pairs)}
            if all(values.values()):
                yield Move(" ".join([name, *(f"{key}={value!r}" for key, value in values.items())]), "like the example")

    def _examples(self, told: Reading) -> Iterator[Move]:
        """As they are, where there is nothing to put into them."""
        _heading, _, rest = told.text.partition("\n\n")
        if self._nearness(rest.partition("\n\n")[0]):  # what it is for
            described = {signature.name for signature in told.signatures} - self._asked_with
            yield from (Move(shown.code, "the example, as it is") for shown in told.calls if shown.name in described)

    # --- asking ------------------------------------------------------------------------------------------------------

    def _asking_with_words(self, calls: Iterable[Shown]) -> Iterator[Move]:
        for shown in calls:
            asked = {name: self.words for name, value in shown.given.items() if _is_words(value)}
            if asked and len(asked) == len(shown.given):
                yield Move(_filled(shown, asked), "a blank for words")

    def _asking_about(self, names: Iterable[str]) -> Iterator[Move]:
        for name in names:
            if name in self._asked_with:  # it knows how that is called
                continue
            for shown in self._blanks:
                asked = {key: name for key, value in shown.given.items() if _is_name(value)}
                if asked and len(asked) == len(shown.given):
                    yield Move(_filled(shown, asked), f"a blank for a name: {name}")
                    break

    def _as_it_is(self, told: Reading) -> Iterator[Move]:
        yield from (
            Move(shown.code, "it was shown") for shown in told.calls if not shown.call.args + shown.call.keywords
        )

    @property
    def _asked_with(self) -> set[str]:
        return {shown.name for move in self.moves if move.made_of is None for shown in read(move.code).calls}

    # --- parts -------------------------------------------------------------------------------------------------------

    def _remember(self, told: Reading) -> None:
        known = {shown.code for shown in self._blanks}
        blanks = (shown for shown in told.calls if any(map(_is_blank, shown.given.values())))
        self._blanks += [shown for shown in blanks if shown.code not in known]

    def _unwrapped(self, told: Reading) -> Reading:
        """Where a text shows the tool itself being called, what it is called with is what matters."""
        inner = [shown for call in told.calls if call.name == self.door.tool for shown in read(_texts(call)).calls]
        others = [call for call in told.calls if call.name != self.door.tool]
        return replace(told, calls=[*others, *inner])

    def _fact(self, name: str) -> Any:
        return fact_for(Parameter(name, "Any", True), self.task.facts)

    def _nearness(self, text: str) -> int:
        return len(set(words_of(self.words)) & set(words_of(text)))

    def _transcribe(self, what: str, text: str) -> None:
        shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(text)} characters)"
        self.transcript.append(f"[{what}]\n{shown}")


def _is_blank(value: Any) -> bool:
    return _is_open(value) or _is_words(value) or _is_name(value)


def _is_open(value: Any) -> bool:
    return value in {"...", ...} if isinstance(value, str | type(...)) else False


def _is_words(value: Any) -> bool:
    return isinstance(value, str) and " " in value.strip()


def _is_name(value: Any) -> bool:
    """It looks like one, or says that it stands for one."""
    if not isinstance(value, str):
        return False
    return "name" in words_of(value) or ("." in value.strip(".") and NAME.fullmatch(value) is not None)


def _behind_example(name: str, told: Reading) -> str:
    shown = next((one for one in told.calls if one.name == name and one.code.startswith(name)), None)
    return "" if shown is None else shown.code.removeprefix(ast.get_source_segment(shown.code, shown.call) or "")


def _texts(shown: Shown) -> str:
    parts = [*shown.call.args, *(part.value for part in shown.call.keywords)]
    return "\n".join(part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))


def _filled(shown: Shown, values: Mapping[str, Any]) -> str:
    given = {**{name: value for name, value in shown.given.items() if not isinstance(value, ast.AST)}, **values}
    return f"{shown.name}({', '.join(f'{name}={value!r}' for name, value in given.items())})"


def _with_arguments(code: str, more: Mapping[str, Any]) -> str:
    written = ", ".join(f"{name}={value!r}" for name, value in more.items())
    return f"{code[:-1]}{'' if code.endswith('()') else ', '}{written})"


def _with_name(code: str, name: str) -> str:
    """The suggested name in the place of that in the code, or of the part of one, which is most like it."""
    there = re.findall(r"[A-Za-z_][\w.]*(?=\()", code)
    parts = [".".join(one.split(".")[:count]) for one in there for count in range(1, one.count(".") + 2)]
    return code.replace(max(parts, key=lambda part: likeness(part, name)), name, 1) if parts else code
