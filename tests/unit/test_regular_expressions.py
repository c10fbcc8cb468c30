"""Test that no regular expression of the package takes long for any text that its callers pass.

The expressions are collected from the syntax trees. Each is executed over repetitions of what its
own parts match, followed by something that does not match, up to the longest text of its caller.
"""

import ast
import importlib
import re
import re._constants as ops  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.support import measure_loop, measure_seconds

import onetool

SOURCE = Path(onetool.__file__).parent.parent
PACKAGES = ("onetool", "onetool_child")
FUNCTIONS = {
    "compile",
    "match",
    "search",
    "sub",
    "subn",
    "fullmatch",
    "finditer",
    "findall",
    "split",
}
ANCHORED = {"match", "fullmatch"}
LENGTHS = (8, 12, 16, 20, 24, 28, 32, 40, 64, 128, 256, 512, 1_024, 4_096, 16_384)
MAX_PUMPS = 60
# The longest texts of callers, if they are shorter than the last of LENGTHS. The key is the name,
# or the module.
CALLER_LIMITS: dict[str, int] = {
    "onetool.sources.files.rules:_TOKEN": 1_000,
    "onetool.util.redact:_CUT_ESCAPE": 64,
    "onetool.state.stats.shapes:SECRET": 40,
}
# Expressions made from settings, or of names that were checked. Their parts are quoted or limited
# where they are made.
DYNAMIC = {
    "onetool.admin.request_preview:f'S{nonce}(.*?)E{nonce}'",
    "onetool.sources.files.rules:fnmatch.translate(part)",
    "onetool.core.policy.rules:translate(pattern)",
    "onetool.runs.explain:pattern",
    "onetool.util.secret_finder:re.escape(written)",
}


@dataclass(frozen=True)
class Expression:
    """A regular expression; `name` is the constant or the place."""

    name: str
    pattern: Any
    flags: int
    methods: frozenset[str]


@cache
def read_texts() -> dict[str, str]:
    files = [file for package in PACKAGES for file in sorted((SOURCE / package).rglob("*.py"))]
    return {
        ".".join(file.relative_to(SOURCE).with_suffix("").parts): file.read_text("utf-8")
        for file in files
    }


@cache
def list_nodes(module_name: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(read_texts()[module_name])))


@cache
def list_uses(module_name: str) -> tuple[set[str], list[tuple[str, str]]]:
    """Return the modules that a module imports names from, and the names with the methods that it
    calls on them.
    """
    imports: set[str] = set()
    uses: list[tuple[str, str]] = []
    for node in list_nodes(module_name):
        if isinstance(node, ast.ImportFrom):
            imports.add(node.module or "")
        elif isinstance(node, ast.Attribute) and node.attr in FUNCTIONS:
            for part in ast.walk(node.value):
                name = getattr(part, "id", "") or getattr(part, "attr", "") or ast.unparse(part)
                uses.append((name, node.attr))
    return imports, uses


def list_methods(module_name: str, name: str) -> frozenset[str]:
    """Return the methods that are called on a name of a module, there and where it is imported."""
    users = [
        other
        for other, text in read_texts().items()
        if other == module_name or (module_name in text and module_name in list_uses(other)[0])
    ]
    methods = {method for user in users for used, method in list_uses(user)[1] if used == name}
    return frozenset(methods or {"search"})


@cache
def collect() -> tuple[list[Expression], set[str]]:
    """Return the expressions, and the places whose expressions are made at run time."""
    expressions: list[Expression] = []
    dynamic: set[str] = set()
    for module_name, text in read_texts().items():
        if "re." not in text:
            continue
        targets = {
            id(node.value): node.targets[0] if isinstance(node, ast.Assign) else node.target
            for node in list_nodes(module_name)
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        }
        for node in list_nodes(module_name):
            function = node.func if isinstance(node, ast.Call) else None
            if not (isinstance(function, ast.Attribute) and function.attr in FUNCTIONS):
                continue
            if ast.unparse(function.value) != "re":
                continue
            assert isinstance(node, ast.Call)
            target = targets.get(id(node))
            name = ast.unparse(target) if target else ""
            place = f"{module_name}:{name or ast.unparse(node.args[0])}"
            module = importlib.import_module(module_name)
            try:
                pattern = eval(ast.unparse(node.args[0]), {"re": re, **vars(module)})
            except NameError:
                dynamic.add(place)
                continue
            arguments = [
                *node.args[1:],
                *(each.value for each in node.keywords if each.arg == "flags"),
            ]
            flags = [
                eval(ast.unparse(each), {"re": re, **vars(module)})
                for each in arguments
                if "re." in ast.unparse(each)
            ]
            methods = frozenset({function.attr})
            if function.attr == "compile":
                methods = list_methods(module_name, name or ast.unparse(node))
            expressions.append(Expression(place, pattern, int(flags[0]) if flags else 0, methods))
    return expressions, dynamic


# --- texts ----------------------------------------------------------------------------------------


def sample(parts: Any, choice: int) -> str:
    """Return a text that the parsed expression may match; `choice` selects among alternatives."""
    return "".join(sample_part(kind, value, choice) for kind, value in parts)


def sample_part(kind: Any, value: Any, choice: int) -> str:  # noqa: PLR0911 - one per kind
    match kind:
        case ops.LITERAL:
            return chr(value)
        case ops.NOT_LITERAL | ops.ANY:
            return ("a", "b", "0", " ", "-")[choice % 5]
        case ops.IN:
            options = list(list_members(value))
            return options[choice % len(options)] if options else "a"
        case ops.BRANCH:
            return sample(value[1][choice % len(value[1])], choice)
        case ops.SUBPATTERN:
            return sample(value[-1], choice)
        case ops.MAX_REPEAT | ops.MIN_REPEAT | ops.POSSESSIVE_REPEAT:
            repeats: int = max(value[0], min(1, value[1]))
            return sample(value[2], choice) * repeats
        case ops.ATOMIC_GROUP:
            return sample(value, choice)
    return ""


def list_members(members: Any) -> Iterator[str]:
    """Yield characters of a class."""
    categories = {ops.CATEGORY_DIGIT: "0", ops.CATEGORY_SPACE: " \n", ops.CATEGORY_WORD: "a0_"}
    is_negated = members[0][0] is ops.NEGATE
    for kind, value in members:
        if is_negated:
            yield from "a0 -"
            return
        if kind is ops.LITERAL:
            yield chr(value)
        elif kind is ops.RANGE:
            yield from {chr(value[0]): 0, chr(value[1]): 0}
        elif kind is ops.CATEGORY:
            yield from categories.get(value, "a")


def list_repeated(parts: Any, before: str) -> Iterator[tuple[str, Any]]:
    """Yield the repeated parts of an expression, at any depth, and what comes before each."""
    for kind, value in parts:
        inner: list[Any] = []
        if kind in {ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT}:
            if value[1] > 1:
                yield before, value[2]
            inner = [value[2]]
        elif kind is ops.BRANCH:
            inner = value[1]
        elif kind in {ops.SUBPATTERN, ops.ASSERT, ops.ASSERT_NOT}:
            inner = [value[-1]]
        elif kind is ops.ATOMIC_GROUP:
            inner = [value]
        for part in inner:
            yield from list_repeated(part, before)
        before += sample_part(kind, value, 0)


def list_literals(parts: Any) -> Iterator[str]:
    """Yield the characters that an expression names."""
    for kind, value in parts:
        if kind in {ops.LITERAL, ops.NOT_LITERAL}:
            yield chr(value)
        elif kind is ops.IN:
            yield from (chr(member) for name, member in value if name is ops.LITERAL)
        elif kind is ops.BRANCH:
            for part in value[1]:
                yield from list_literals(part)
        elif isinstance(value, tuple) and isinstance(value[-1], parser.SubPattern):
            yield from list_literals(value[-1])
        elif isinstance(value, parser.SubPattern):
            yield from list_literals(value)


def list_attacks(expression: Expression) -> Iterator[tuple[str, str]]:
    """Yield starts of texts, and what is repeated after them."""
    pattern = expression.pattern
    text = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
    tree = parser.parse(text, expression.flags)
    attacks: dict[tuple[str, str], None] = {}
    literals = sorted(set(list_literals(tree)))
    for before, body in list_repeated(tree, ""):
        for choice in range(8):
            for pump in (sample(body, choice), sample(body, choice) + sample(body, choice + 1)):
                attacks[before, pump] = None
                attacks["", before + pump] = None
            attacks |= {(before, character): None for character in literals}
    whole = sample(tree, 0)
    first = {
        ("", pump): None
        for pump in (*literals, whole, whole[:-1], whole[:1], "a", " ", "\n", "0", "-", "_")
    }
    yield from [(before, pump) for before, pump in {**first, **attacks} if pump][:MAX_PUMPS]


def is_slow(expression: Expression, text: str, limit: float) -> bool:
    compiled = re.compile(expression.pattern, expression.flags)
    data = text.encode("latin-1", "replace") if isinstance(expression.pattern, bytes) else text

    def apply() -> None:
        if expression.methods <= ANCHORED:
            compiled.match(data) if "match" in expression.methods else compiled.fullmatch(data)
        else:
            for _ in compiled.finditer(data):
                pass

    return measure_seconds(apply, enough=limit) > limit


def find_slow(expression: Expression, limit: float) -> str | None:
    """Return the shortest slow text of an expression."""
    longest = CALLER_LIMITS.get(expression.name, LENGTHS[-1])
    for before, pump in list_attacks(expression):
        for length in (*(each for each in LENGTHS if each < longest), longest):
            text = (before + pump * (length // len(pump) + 1))[:length]
            for tail in ("", "\x00", "!"):
                if is_slow(expression, text + tail, limit):
                    return f"{len(text)} characters of {before!r} and {pump!r}*"
    return None


def test_every_regular_expression_was_found() -> None:
    expressions, dynamic = collect()
    assert len(expressions) > 200
    assert dynamic == DYNAMIC
    assert CALLER_LIMITS.keys() <= {expression.name for expression in expressions}


@pytest.mark.slow
def test_every_regular_expression_takes_little_time() -> None:
    limit = measure_loop() / 4
    slow = {
        each.name: text for each in collect()[0] if (text := find_slow(each, limit)) is not None
    }
    assert not slow, "\n".join(f"{name}: {text}" for name, text in slow.items())


@pytest.mark.parametrize("pattern", [r"(?:\w+[_-])*x", r"(a|a)*b", r"(a*)*b", r"\s+$", r"\d+\d+x"])
def test_a_slow_expression_is_found(pattern: str) -> None:
    expression = Expression("", pattern, 0, frozenset({"search"}))
    assert find_slow(expression, measure_loop() / 4) is not None
