"""A player that follows only the text that it reads, and knows no name of any tool or pack.

It sends only calls that it has read, with filled blanks: the wording of the task for a string of
several words, a name for a name, facts for parameters with similar names, and values of earlier
results for three dots.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.e2e.naive_filling import find_fact, fit_arguments, is_possible
from tests.e2e.naive_reading import (
    NAME,
    Parameter,
    Reading,
    ShownCall,
    Signature,
    measure_similarity,
    read,
    split_words,
)
from tests.e2e.naive_tasks import Task

MAX_MOVES = 8
MAX_SHOWN_CHARS = 600  # characters of an answer in a transcript


@dataclass(frozen=True)
class Session:
    """The view of a model on a server with one tool."""

    description: str
    tool: str
    send: Callable[[str], tuple[str, bool]]


@dataclass(frozen=True)
class Move:
    """Code, the reason to send it, and the signature it was built from."""

    code: str
    why: str
    signature: Signature | None = None
    used: frozenset[str] = frozenset()
    example: str = ""  # the call with the expression that follows it in an example


@dataclass
class Player:
    """One attempt at a task.

    Pending moves are in a list; moves suggested by the last result come first.
    """

    task: Task
    wording: str
    session: Session
    moves: list[Move] = field(default_factory=list)
    transcript: list[str] = field(default_factory=list)
    _waiting: list[Move] = field(default_factory=list)
    _blanks: list[ShownCall] = field(
        default_factory=list
    )  # calls with blanks, in the order in which they were read

    def play(self) -> bool:
        """Return whether the expected result was found within the allowed moves."""
        self._transcribe("task", f"{self.wording}  {dict(self.task.facts) or ''}")
        reading = self._unwrap(read(self.session.description))
        self._remember_blanks(reading)
        self._waiting = (
            [Move(self.task.first, "the first call of the task")] if self.task.first else []
        )
        self._waiting += [
            *self._search_with_wording(reading.calls),
            *self._call_without_arguments(reading),
        ]
        while self._waiting and len(self.moves) < MAX_MOVES:
            if self._make(self._waiting.pop(0)):
                return True
        return False

    def _make(self, move: Move) -> bool:
        if move.code in {made.code for made in self.moves}:
            return False
        self.moves.append(move)
        answer, is_error = self.session.send(move.code)
        self._transcribe(f"move {len(self.moves)}, {move.why}", move.code)
        self._transcribe("error" if is_error else "answer", answer)
        if self.task.is_done(answer):
            return True
        reading = self._unwrap(read(answer))
        following = (
            self._after_error(move, reading) if is_error else self._after_answer(move, reading)
        )
        self._waiting = [*following, *self._waiting]
        return False

    # --- moves after a result ---------------------------------------------------------------------

    def _after_error(self, move: Move, reading: Reading) -> Iterator[Move]:
        """Follow suggestions, then signatures, then shown calls, then ask for help."""
        yield from (
            Move(_replace_name(move.code, name), "it was suggested") for name in reading.suggestions
        )
        yield from (call for call in self._build_calls(reading) if call.used or not self.task.facts)
        yield from (
            Move(shown.code, "it was shown")
            for shown in reading.calls
            if _is_filled(shown, move.code)
        )
        yield from self._search_with_wording(reading.calls)
        yield from self._call_without_arguments(reading)
        if move.signature is not None:
            yield from self._ask_about([move.signature.name])

    def _after_answer(self, move: Move, reading: Reading) -> Iterator[Move]:
        self._remember_blanks(reading)
        yield from self._fill_blanks(reading)
        yield from self._compute(move, reading)
        yield from self._add_arguments(move, reading)
        yield from self._build_calls(reading)
        yield from self._snippets(reading)
        if not self.task.facts:
            yield from self._examples(reading)
        if move.signature is None:  # results of tools do not contain names of tools
            yield from self._follow_list(move, reading)

    def _follow_list(self, move: Move, reading: Reading) -> Iterator[Move]:
        """Call the listed tools whose arguments are known, look at more of the list, and ask for
        help on the others.

        Tools that use more of the facts come first, then those that fit the wording better.
        """
        names = self._sort_names(reading)
        calls = {
            name: call for name in names if (call := self._build_listed(name, reading)) is not None
        }
        order = {
            name: (-len(call.used), -self._rate(name, reading)) for name, call in calls.items()
        }
        yield from (calls[name] for name in sorted(calls, key=order.__getitem__))
        if reading.more:
            yield Move(_append_arguments(move.code, reading.more), "there is more")
        yield from self._ask_about(name for name in names if name not in calls)
        yield from self._ask_about(calls)

    def _build_listed(self, name: str, reading: Reading) -> Move | None:
        """Build the call of a listed tool. It uses a fact, or the tool needs none of them."""
        signature = reading.short_signatures.get(name)
        if signature is None:
            shown = next(
                (str(entry.get("call")) for entry in reading.entries if entry.get("name") == name),
                "",
            )
            return (
                None
                if self.task.facts or not read(shown).calls
                else Move(shown, "the example, as it is")
            )
        call = self._build_call(signature, reading)
        needs_nothing = signature.is_complete and not signature.parameters
        return (
            call
            if call is not None and (call.used or needs_nothing or not self.task.facts)
            else None
        )

    def _rate(self, name: str, reading: Reading) -> float:
        """Return how well a listed tool fits: its score, how much of the wording it covers, and how
        little else.
        """
        entry = next((entry for entry in reading.entries if entry.get("name") == name), {})
        description, score = str(entry.get("description", "")), entry.get("score")
        wording, own = set(split_words(self.wording)), set(split_words(name.rpartition(".")[2]))
        first = set(split_words(description.partition(". ")[0]))
        covered = _share(wording, own | set(split_words(description)))
        return (
            (score if isinstance(score, float) else 0.0)
            + covered
            + max(_share(own, wording), _share(first, wording))
        )

    def _sort_names(self, reading: Reading) -> list[str]:
        """Keep the order of ranked lists; sort others by the number of words shared with the task."""
        if any("score" in entry for entry in reading.entries):
            return reading.names
        lines = {str(entry.get("name")): str(entry) for entry in reading.entries}
        return sorted(
            reading.names, key=lambda name: -self._count_shared_words(lines.get(name) or name)
        )

    def _fill_blanks(self, reading: Reading) -> Iterator[Move]:
        """Fill blanks of earlier calls with values of the same name in this result."""
        known = {
            key: value
            for entry in reading.entries
            for key, value in entry.items()
            if isinstance(value, str)
        }
        for shown in self._blanks:
            named = [name for name, value in shown.arguments.items() if _is_open(value)]
            filled = {name: known.get(name) or self._find_fact(name) for name in named}
            if known.keys() & filled.keys() and all(filled.values()):
                code = _fill(shown, filled)
                yield from self._use_value(code)
                yield Move(code, "the answer has what the blank is for")

    def _compute(self, move: Move, reading: Reading) -> Iterator[Move]:
        """Compute with the value; of a mapping, with its longest text."""
        if move.signature is not None:
            texts = {
                key: value for key, value in _get_items(reading.value) if isinstance(value, str)
            }
            longest = max(texts, key=lambda key: len(texts[key]), default=None)
            code = move.example or move.code
            yield from self._use_value(code if longest is None else f"{code}[{longest!r}]")

    def _use_value(self, code: str) -> Iterator[Move]:
        if self.task.compute:
            yield Move(self.task.compute.replace("VALUE", code), "with the value, in Python")

    def _add_arguments(self, move: Move, reading: Reading) -> Iterator[Move]:
        """Repeat the call with listed values for its parameters; entries that give more of them
        come first.
        """
        if move.signature is None or not isinstance(reading.value, list):
            return
        arguments = read(move.code).calls[0].arguments
        left = [one for one in move.signature.parameters if one.name not in arguments]
        found = []
        for entry in reading.entries:
            values = {
                one.name: value
                for one in left
                if (value := self._get_value(entry, one)) is not None
            }
            found += (
                [(-len(values), -self._count_shared_words(str(entry)), values)] if values else []
            )
        for _, _, values in sorted(found, key=lambda each: each[:2]):
            yield replace(
                move,
                code=_append_arguments(move.code, values),
                why="with something that was listed",
            )

    def _get_value(self, entry: Mapping[str, Any], parameter: Parameter) -> Any:
        """Return the value with the name of the parameter; for a list of arguments, the required
        ones.
        """
        value = entry.get(parameter.name)
        if isinstance(value, list):
            names = [
                part["name"] for part in value if isinstance(part, dict) and part.get("required")
            ]
            return (
                {name: self._find_fact(name) for name in names}
                if names and all(map(self._find_fact, names))
                else None
            )
        return value if isinstance(value, str) and is_possible(value, parameter.kind) else None

    def _build_calls(self, reading: Reading) -> list[Move]:
        """Build calls of the described tools; those that use more facts come first."""
        moves = [
            move
            for one in reading.signatures
            if (move := self._build_call(one, reading)) is not None
        ]
        return sorted(moves, key=lambda move: -len(move.used))

    def _build_call(self, signature: Signature, reading: Reading) -> Move | None:
        arguments = fit_arguments(signature, self.task.facts)
        if arguments is None:
            return None
        call = f"{signature.name}({', '.join(f'{name}={value!r}' for name, (_, value) in arguments.items())})"
        used = frozenset(fact for fact, _ in arguments.values())
        return Move(
            call,
            "by its signature",
            signature,
            used,
            call + _get_example_suffix(signature.name, reading),
        )

    def _snippets(self, reading: Reading) -> Iterator[Move]:
        for shown in reading.snippets:
            name, *pairs = shown.rstrip('"').split(" ")
            values = {
                key: self._find_fact(key) for key, _, _ in (pair.partition("=") for pair in pairs)
            }
            if all(values.values()):
                yield Move(
                    " ".join([name, *(f"{key}={value!r}" for key, value in values.items())]),
                    "like the example",
                )

    def _examples(self, reading: Reading) -> Iterator[Move]:
        """Send the examples unchanged."""
        _heading, _, rest = reading.text.partition("\n\n")
        if self._count_shared_words(rest.partition("\n\n")[0]):  # the purpose of the tool
            described = {signature.name for signature in reading.signatures} - self._query_names
            yield from (
                Move(shown.code, "the example, as it is")
                for shown in reading.calls
                if shown.name in described
            )

    # --- asking -----------------------------------------------------------------------------------

    def _search_with_wording(self, calls: Iterable[ShownCall]) -> Iterator[Move]:
        for shown in calls:
            asked = {
                name: self.wording for name, value in shown.arguments.items() if _is_phrase(value)
            }
            if asked and len(asked) == len(shown.arguments):
                yield Move(_fill(shown, asked), "a blank for words")

    def _ask_about(self, names: Iterable[str]) -> Iterator[Move]:
        for name in names:
            if name in self._query_names:  # already known
                continue
            for shown in self._blanks:
                asked = {key: name for key, value in shown.arguments.items() if _is_name(value)}
                if asked and len(asked) == len(shown.arguments):
                    yield Move(_fill(shown, asked), f"a blank for a name: {name}")
                    break

    def _call_without_arguments(self, reading: Reading) -> Iterator[Move]:
        """Send the calls without arguments; those that share more words with the task come first."""
        needy = {
            one.name for one in reading.signatures if any(each.required for each in one.parameters)
        }
        shown = [
            each
            for each in reading.calls
            if not each.call.args + each.call.keywords and each.name not in needy
        ]
        shown.sort(key=lambda each: -self._count_shared_words(each.name))
        yield from (Move(each.code, "it was shown") for each in shown)

    @property
    def _query_names(self) -> set[str]:
        return {
            shown.name
            for move in self.moves
            if move.signature is None
            for shown in read(move.code).calls
        }

    # --- parts ------------------------------------------------------------------------------------

    def _remember_blanks(self, reading: Reading) -> None:
        known = {shown.code for shown in self._blanks}
        blanks = (shown for shown in reading.calls if any(map(_is_blank, shown.arguments.values())))
        self._blanks += [shown for shown in blanks if shown.code not in known]

    def _unwrap(self, reading: Reading) -> Reading:
        """Replace calls of the MCP tool itself by the code in their arguments."""
        inner = [
            shown
            for call in reading.calls
            if call.name == self.session.tool
            for shown in read(_join_strings(call)).calls
        ]
        others = [call for call in reading.calls if call.name != self.session.tool]
        return replace(reading, calls=[*others, *inner])

    def _find_fact(self, name: str) -> Any:
        return find_fact(Parameter(name, "Any", True), self.task.facts)

    def _count_shared_words(self, text: str) -> int:
        return len(set(split_words(self.wording)) & set(split_words(text)))

    def _transcribe(self, kind: str, text: str) -> None:
        shown = (
            text
            if len(text) <= MAX_SHOWN_CHARS
            else f"{text[:MAX_SHOWN_CHARS]}… ({len(text)} characters)"
        )
        self.transcript.append(f"[{kind}]\n{shown}")


def _share(words: set[str], others: set[str]) -> float:
    """Return the share of the words that are among the others."""
    return len(words & others) / max(1, len(words))


def _get_items(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def _is_filled(shown: ShownCall, code: str) -> bool:
    """Return whether the call has arguments, and only values that the code contains."""
    values = shown.arguments.values()
    return bool(values) and all(
        isinstance(value, str | int | float) and str(value) in code for value in values
    )


def _is_blank(value: Any) -> bool:
    return _is_open(value) or _is_phrase(value) or _is_name(value)


def _is_open(value: Any) -> bool:
    return value in {"...", ...} if isinstance(value, str | type(...)) else False


def _is_phrase(value: Any) -> bool:
    return isinstance(value, str) and " " in value.strip()


def _is_name(value: Any) -> bool:
    """Return whether the value looks like a name or a placeholder for one."""
    if not isinstance(value, str):
        return False
    return "name" in split_words(value) or (
        "." in value.strip(".") and NAME.fullmatch(value) is not None
    )


def _get_example_suffix(name: str, reading: Reading) -> str:
    shown = next(
        (one for one in reading.calls if one.name == name and one.code.startswith(name)), None
    )
    return (
        ""
        if shown is None
        else shown.code.removeprefix(ast.get_source_segment(shown.code, shown.call) or "")
    )


def _join_strings(shown: ShownCall) -> str:
    parts = [*shown.call.args, *(part.value for part in shown.call.keywords)]
    return "\n".join(
        part.value
        for part in parts
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    )


def _fill(shown: ShownCall, values: Mapping[str, Any]) -> str:
    arguments = {
        **{
            name: value for name, value in shown.arguments.items() if not isinstance(value, ast.AST)
        },
        **values,
    }
    return f"{shown.name}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def _append_arguments(code: str, more: Mapping[str, Any]) -> str:
    """Return the call with more arguments, or with other values for some."""
    shown = read(code).calls[0]
    return _fill(shown, {**shown.arguments, **more})


def _replace_name(code: str, name: str) -> str:
    """Replace the most similar name in the code, or part of a name, by the suggested one."""
    existing = re.findall(r"[A-Za-z_][\w.]*(?=\()", code)
    parts = [
        ".".join(one.split(".")[:count])
        for one in existing
        for count in range(1, one.count(".") + 2)
    ]
    return (
        code.replace(max(parts, key=lambda part: measure_similarity(part, name)), name, 1)
        if parts
        else code
    )
