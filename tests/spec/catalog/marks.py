"""Read from the source of tests which requirements they refer to.

The source is read instead of collected items, so that the result is the same for one file, for all
and on an xdist worker. Marks are allowed only on collected tests. Ids are plain strings, so that a
search for an id finds its tests.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARKS = {"pytest.mark.spec", "mark.spec"}
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Claim:
    id: str
    location: str


def find_claims(directory: Path) -> list[Claim]:
    files = sorted(directory.rglob("test_*.py"))
    return [
        claim
        for file in files
        for claim in parse_claims(file.read_text("utf-8"), str(file.relative_to(directory)))
    ]


def parse_claims(source: str, name: str) -> Iterator[Claim]:
    for node in ast.walk(ast.parse(source, name)):
        if isinstance(node, ast.Call) and _is_mark(node):
            yield from (
                Claim(identity, f"{name}:{node.lineno}") for identity in _get_ids(node, name)
            )
        elif isinstance(node, Definition) and not node.name.lower().startswith("test"):
            _reject_marks(node, name)


def _is_mark(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in MARKS


def _get_ids(mark: ast.Call, name: str) -> list[str]:
    ids = [
        arg.value
        for arg in mark.args
        if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
    ]
    if not ids or len(ids) != len(mark.args) + len(mark.keywords):
        raise ValueError(
            f'{name}:{mark.lineno}: write the ids as plain strings: pytest.mark.spec("a.b.c",'
            ' "a.b.d")'
        )
    return ids


def _reject_marks(node: Definition, name: str) -> None:
    if any(_is_mark(decorator) for decorator in node.decorator_list):
        raise ValueError(
            f"{name}:{node.lineno}: {node.name} carries a spec mark, but pytest does not collect it"
        )
