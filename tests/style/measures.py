"""Print the measures of the source under `src`, and fail if one exceeds its ceiling in
`ceilings.toml`.

Run it with `make lint` or `python tests/style/measures.py`. A change that lowers a measure lowers
its ceiling too.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "onetool"
CEILINGS = Path(__file__).with_name("ceilings.toml")
MAX_MODULE_LINES = 500
MAX_CELL_CHARS = 200
VAGUE_NAMES = {"found", "each", "known", "wanted", "given"}
ANY_TYPES = {"Any", "object"}
STATE_ROOMS = {"state", "postgres"}  # the directories that may know which store there is
# Code that asks whether state is in files or in PostgreSQL: `remote` and what depends on it, and
# the setting `store`.
STORE_QUESTION = re.compile(
    r"\bstores\.remote\b"
    r"|\b_?remote is (not )?None\b|\bremote := "
    r"|\b_?storage is (not )?None\b"
    r"|\bself\._shared\(\)"
    r"|\b_is_remote\b|\brecords is (not )?None\b|\b_load_key is (not )?None\b"
    r"|\bisinstance\(source, Path\)"
    r"|\bopened_state\("
    r"|\b(if|not)\b.*\bsettings\.store\b|\bbool\(.*\bsettings\.store\b"
)
NOT_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


class Module:
    """A parsed Python file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text(encoding="utf-8")
        self.nodes = list(ast.walk(ast.parse(self.text)))

    @property
    def lines(self) -> int:
        return self.text.count("\n")


def main() -> int:
    modules = [Module(path) for path in sorted(SOURCE.rglob("*.py"))]
    measures = {**measure_code(modules), **measure_package(modules), **measure_documents()}
    ceilings = tomllib.loads(CEILINGS.read_text(encoding="utf-8"))
    if measures.keys() != ceilings.keys():
        print(f"{CEILINGS}: expected exactly these keys: {', '.join(measures)}")
        return 1
    is_failed = False
    print(f"{'measure':64} {'now':>9} {'ceiling':>9}")
    for name, value in measures.items():
        verdict = ""
        if value > ceilings[name]:
            verdict = "  too high"
            is_failed = True
        print(f"{name:64} {value:>9,} {ceilings[name]:>9,}{verdict}")
    return int(is_failed)


def measure_code(modules: list[Module]) -> dict[str, float]:
    nodes = [node for module in modules for node in module.nodes]
    statements = sum(isinstance(node, ast.stmt) for node in nodes)
    code_lines = sum(count_code_lines(module) for module in modules)
    docstrings = [docstring for node in nodes if (docstring := read_docstring(node))]
    words = re.findall(r"[A-Za-z]+", " ".join(docstrings).lower())
    return {
        "syntax tree nodes": len(nodes),
        "nodes per code line": round(len(nodes) / code_lines, 2),
        "nodes per statement": round(len(nodes) / statements, 2),
        "assignments of a tuple to a tuple, except swaps": sum(map(is_packed, nodes)),
        "bindings named found, each, known, wanted or given": sum(map(is_vague, nodes)),
        "'of' per 1,000 words in docstrings": round(1000 * words.count("of") / len(words), 1),
        f"modules over {MAX_MODULE_LINES} lines": sum(
            module.lines > MAX_MODULE_LINES for module in modules
        ),
        "modules (Python files under src)": len(modules),
    }


def measure_package(modules: list[Module]) -> dict[str, float]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    app = next(module for module in modules if module.path == PACKAGE / "app.py")
    fields = list(find_fields(modules, "ToolContext"))
    asking = [line for module in modules for line in find_store_questions(module)]
    return {
        "entries in src/onetool, without __init__.py and py.typed": len(list_entries()),
        "import layers": len(layers),
        "lines outside of state that ask which store there is": len(asking),
        "app.py: lines": app.lines,
        "app.py: import statements": sum(
            isinstance(node, ast.Import | ast.ImportFrom) for node in app.nodes
        ),
        "app.py: functions": sum(
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in app.nodes
        ),
        "ToolContext: fields": len(fields),
        "ToolContext: fields typed Any or object": sum(
            ast.unparse(field.annotation) in ANY_TYPES for field in fields
        ),
    }


def measure_documents() -> dict[str, float]:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    cells = [cell for row in rows for cell in row.split("|")]
    return {
        "ARCHITECTURE.md: lines": text.count("\n"),
        "ARCHITECTURE.md: kB": round(len(text.encode()) / 1000),
        f"ARCHITECTURE.md: table cells over {MAX_CELL_CHARS} characters": sum(
            len(cell.strip()) > MAX_CELL_CHARS for cell in cells
        ),
    }


def count_code_lines(module: Module) -> int:
    """Return the number of lines with code: no blank lines, comments or docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type not in NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in module.nodes:
        if read_docstring(node):
            docstring = node.body[0]  # type: ignore[attr-defined]
            lines.difference_update(range(docstring.lineno, docstring.end_lineno + 1))
    return len(lines)


def read_docstring(node: ast.AST) -> str | None:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return ast.get_docstring(node)
    return None


def is_packed(node: ast.AST) -> bool:
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    values = sorted(map(ast.unparse, node.value.elts))
    for target in node.targets:
        if isinstance(target, ast.Tuple) and len(target.elts) > 1:
            return sorted(map(ast.unparse, target.elts)) != values
    return False


def is_vague(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return isinstance(node.ctx, ast.Store) and node.id in VAGUE_NAMES
    return isinstance(node, ast.arg) and node.arg in VAGUE_NAMES


def list_entries() -> list[Path]:
    return [
        path
        for path in PACKAGE.iterdir()
        if path.name not in {"__init__.py", "__pycache__", "py.typed"}
    ]


def find_fields(modules: list[Module], name: str) -> Iterator[ast.AnnAssign]:
    for module in modules:
        for node in module.nodes:
            if isinstance(node, ast.ClassDef) and node.name == name:
                yield from (field for field in node.body if isinstance(field, ast.AnnAssign))


def find_store_questions(module: Module) -> list[str]:
    if STATE_ROOMS & set(module.path.relative_to(SOURCE).parts):
        return []
    return [line for line in module.text.splitlines() if STORE_QUESTION.search(line)]


if __name__ == "__main__":
    sys.exit(main())
