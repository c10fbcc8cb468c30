"""Reject wording and names that the project's style retires: `make lint`, or `python
tests/style/check.py [PATH ...]`.

The check covers src, docs, benchmarks, deploy and the documents at the top of the repository. It
reports retired words, British spelling in identifiers, docstrings that begin with a question word,
function names that are not verbs, and public classes that share a name. With paths, only problems
in these files and directories are reported. `allowed.txt` lists exceptions, one per line: a path, a
tab and the reported text. An exception that matches nothing is a problem too.
"""

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
ALLOWED = Path(__file__).with_name("allowed.txt")
DOCUMENTS = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "llms.txt",
)
DIRECTORIES = ("src", "docs", "benchmarks", "deploy")
SUFFIXES = {".py", ".md", ".js", ".html", ".j2"}
WORDS = {
    re.compile(pattern): advice
    for pattern, advice in {
        r"(?<![Tt]here )\bis no (?!longer\b|more\b)": 'write "is not a"',
        r"\banew\b": 'write "again"',
        r"\bmend(s|ed|ing)?\b": 'write "fix"',
        r"\btold\b": "name the actor and use the present tense",
        r"\b[Ww]hole numbers?\b": 'write "integer"',
        r"\b(yes or no|must be given)\b": 'write "boolean", "required"',
        r"\b(MOST|LONGEST)_[A-Z]": "name the constant MAX_*",
        r"\byardsticks?\b": 'write "baseline"',
        r"\b(Sanitis|Authoris|Serialis|Colour|Behaviour|Neighbour|Licence)": (
            "use American spelling"
        ),
        r"(sanitis|authoris|serialis|catalogue|colour|behaviour|neighbour|licence)": (
            "use American spelling"
        ),
    }.items()
}
QUESTION = re.compile(r"(What|Who|Whose|Which|How|Where|Whatever|Whoever|Why)\b")
# Past participles and names such as `size_of`, but not `merge_all_of`, which names a keyword of
# JSON Schema.
NOT_A_VERB = re.compile(
    r"_*(.+(?<!_all)(?<!_any)(?<!_one)_of|of_.+"
    r"|own|told|taken|given|shown|opened|answered|asked|written|made|found|heard|kept|said)"
)


Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Problem(NamedTuple):
    """A line or name to change. `kind` groups problems in the summary."""

    kind: str
    path: str
    line: int
    text: str
    advice: str

    @property
    def key(self) -> str:
        return f"{self.path}\t{self.text}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Report wording and names that the style retires")
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="report only problems in these files and directories",
    )
    parser.add_argument(
        "--summary", action="store_true", help="print only the number of problems of each kind"
    )
    options = parser.parse_args()
    allowed = read_allowed()
    found = [*find_words(), *find_docstrings(), *find_functions(), *find_classes()]
    unused = allowed - {problem.key for problem in found}
    problems = [
        problem
        for problem in found
        if problem.key not in allowed and is_selected(problem, options.paths)
    ]
    if not options.summary:
        for problem in problems:
            print(f"{problem.path}:{problem.line}: {problem.text}\n    {problem.advice}")
    for key in sorted(unused):
        print(f"{ALLOWED.relative_to(ROOT)}: unused exception: {key}")
    for kind, count in Counter(problem.kind for problem in problems).items():
        print(f"{count} {kind}")
    return 1 if problems or unused else 0


def read_allowed() -> set[str]:
    lines = ALLOWED.read_text(encoding="utf-8").splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def is_selected(problem: Problem, paths: list[str]) -> bool:
    return not paths or any(
        (ROOT / problem.path).is_relative_to(Path(path).resolve()) for path in paths
    )


# --- checks ---------------------------------------------------------------------------------------


def find_words() -> Iterator[Problem]:
    """Yield lines with retired words."""
    for path in find_sources():
        text = path.read_text(encoding="utf-8")
        for pattern, advice in WORDS.items():
            for match in pattern.finditer(text):
                number = text.count("\n", 0, match.start()) + 1
                line = text.splitlines()[number - 1].strip()
                yield Problem("retired words", to_relative(path), number, line, advice)


def find_docstrings() -> Iterator[Problem]:
    """Yield docstrings that begin with a question word."""
    advice = "start with a verb (functions) or a noun (classes, modules)"
    for path, definition in find_definitions():
        first = (ast.get_docstring(definition) or "").partition("\n")[0]
        if QUESTION.match(first):
            yield Problem("docstrings", path, getattr(definition, "lineno", 1), first, advice)


def find_functions() -> Iterator[Problem]:
    """Yield functions whose names are not verbs. Properties may be nouns."""
    for path, definition in find_definitions():
        if isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef) and NOT_A_VERB.fullmatch(
            definition.name
        ):
            is_property = any(
                "property" in ast.unparse(decorator) for decorator in definition.decorator_list
            )
            if not is_property:
                text, advice = f"def {definition.name}", "name the function with a verb"
                yield Problem("function names", path, definition.lineno, text, advice)


def find_classes() -> Iterator[Problem]:
    """Yield public classes that share their name with another."""
    places = defaultdict(list)
    for path, definition in find_definitions():
        if isinstance(definition, ast.Module):
            for node in definition.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append((path, node.lineno))
    for name, found in places.items():
        if len(found) > 1:
            advice = f"rename one of: {', '.join(place for place, _ in found)}"
            for place, line in found:
                yield Problem("shared class names", place, line, f"class {name}", advice)


# --- sources --------------------------------------------------------------------------------------


def find_sources() -> Iterator[Path]:
    yield from (ROOT / name for name in DOCUMENTS)
    for directory in DIRECTORIES:
        yield from (
            path for path in sorted((ROOT / directory).rglob("*")) if path.suffix in SUFFIXES
        )


@cache
def find_definitions() -> list[tuple[str, Definition]]:
    """Return the modules, classes and functions of the sources, each with its path."""
    modules = (
        (path, ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted((ROOT / "src").rglob("*.py"))
    )
    return [(to_relative(path), node) for path, module in modules for node in walk(module)]


def walk(node: ast.AST) -> Iterator[Definition]:
    """Yield the definitions below a node.

    Expressions, which contain none, are skipped to save time.
    """
    if isinstance(node, Definition):
        yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from walk(child)


def to_relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


if __name__ == "__main__":
    sys.exit(main())
