"""Static analysis of extension files: pack name, functions, permissions and dependencies, without running them."""

import ast
import os
import re
import stat
import tokenize
from dataclasses import dataclass, replace
from hashlib import sha256
from keyword import iskeyword
from pathlib import Path
from typing import Any, NamedTuple

from onetool.context import Permission, permissions
from onetool.extensions.pep723 import ScriptHeader, find_problem, parse_header
from onetool.problem import Location, Problem
from onetool.schema import Schema, make_output_schema, parse_signature
from onetool.util.docstring import description, example

SUFFIX = "_tools"
DECLARED_NAMES = {"pack", "permissions", "__all__"}
PACK_ASSIGNMENT = re.compile(r"""(?m)^pack\s*(?::[^=\n]*)?=\s*["'](\w*)["']""")  # for files that cannot be parsed
MAX_FILE_BYTES = 10 << 20
MAX_SIBLINGS = 200
MAX_IMPORT_DEPTH = 5  # between modules in the same directory
Stamp = tuple[int, int, int, int]
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    input: Schema
    description: str
    example: str
    returns: str
    output: Schema | None = None


@dataclass(frozen=True, slots=True)
class Extension:
    """An extension file. `problem` makes it unusable; `problems` affect single functions or the header."""

    pack: str
    file: Path
    stamp: Stamp
    siblings: frozenset[tuple[str, Stamp]] = frozenset()  # modules in the same directory, which it may import
    digest: str = ""
    header: ScriptHeader | None = None
    functions: tuple[Function, ...] = ()
    permissions: frozenset[Permission] = frozenset()
    secrets: tuple[str, ...] = ()
    description: str = ""
    problem: Problem | None = None
    problems: tuple[Problem, ...] = ()


def stamp_file(file: Path) -> Stamp:
    """Return a cheap stamp: if it differs, the file may have changed."""
    status = file.stat()
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def stamp_siblings(file: Path) -> frozenset[tuple[str, Stamp]]:
    """Return the stamps of the modules and packages in the directory of the file."""
    found: list[tuple[str, Stamp]] = []
    pending = [str(file.parent)]
    while pending and len(found) < MAX_SIBLINGS:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".py") and entry.path != str(file):
                    status = entry.stat()
                    stamp = status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
                    found.append((entry.path, stamp))
                elif entry.is_dir(follow_symlinks=False) and _is_package(entry.path):
                    pending.append(entry.path)
    return frozenset(found)


def _is_package(directory: str) -> bool:
    return os.path.isfile(os.path.join(directory, "__init__.py"))  # noqa: PTH113, PTH118 - before each call


def read(file: Path) -> Extension:
    """Read an extension file. It never raises: `problem` says why a file cannot be read."""
    unparsed = Extension(file.stem.removesuffix(SUFFIX), file, (0, 0, 0, 0))
    try:
        stamp, siblings = stamp_file(file), stamp_siblings(file)
        source = _read_text(file)
    # LookupError: the encoding may be unknown or not a text encoding.
    except (LookupError, OSError, SyntaxError, ValueError) as error:
        return replace(unparsed, problem=Problem(f"cannot read {file}: {error}", location=Location(str(file))))
    digest = sha256(source.encode("utf-8", "surrogatepass")).hexdigest()
    unparsed = replace(unparsed, stamp=stamp, siblings=siblings, digest=digest)
    try:
        return _parse(unparsed, source)
    except SyntaxError as error:
        return _make_unusable(unparsed, source, error.msg, error.lineno or 0)
    except Exception as error:  # noqa: BLE001 - one invalid file must not hide the others
        return _make_unusable(unparsed, source, str(error) or type(error).__name__)


def outline(file: Path) -> dict[str, list[str]]:
    """Return the parameters of each tool of a file. Works for built-in packs too."""
    source = _read_text(file)
    module = _Module(file, source, ast.parse(source))
    found, _ = _find_tools(module, _read_literals(module.tree).get("__all__"))
    return {name: list(parse_signature(definition).parameters) for name, (definition, _) in found.items()}


def _read_text(file: Path) -> str:
    """Return the source in its declared encoding, as Python reads it."""
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("not a regular file")
    if status.st_size > MAX_FILE_BYTES:
        raise ValueError(f"file too large: more than {MAX_FILE_BYTES:,} bytes")
    with tokenize.open(file) as stream:
        return stream.read()


def _make_unusable(unparsed: Extension, source: str, reason: str, line: int = 0) -> Extension:
    """Return an unusable extension, under the pack name that callers will use."""
    assignment, location = PACK_ASSIGNMENT.search(source), Location(str(unparsed.file), line)
    problem = Problem(f"{unparsed.file}{f', line {line}' if line else ''}: {reason}", location=location)
    return replace(unparsed, pack=(assignment and assignment[1]) or unparsed.pack, problem=problem)


def _parse(unparsed: Extension, source: str) -> Extension:
    tree = ast.parse(source)
    literals = _read_literals(tree)
    found, problems = _find_tools(_Module(unparsed.file, source, tree), literals.get("__all__"))
    functions = []
    for name, (definition, module) in found.items():
        try:
            parse_signature(definition)
            _reject_decorator_permissions(definition)
            functions.append(_make_function(name, definition, module.lines))
        except (SyntaxError, TypeError, ValueError) as error:
            problems.append(f"{name}: {error}")
    return replace(
        unparsed,
        pack=_check_pack_name(literals.get("pack", unparsed.pack)),
        header=parse_header(source),
        functions=tuple(functions),
        permissions=_parse_permissions(literals.get("permissions", [])),
        secrets=_read_secrets(tree),
        description=ast.get_docstring(tree) or "",
        problems=tuple(
            Problem(f"{unparsed.file}: {reason}", location=Location(str(unparsed.file)))
            for reason in (find_problem(source), *problems)
            if reason
        ),
    )


def _check_pack_name(name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier() or iskeyword(name):
        raise ValueError(f"invalid pack name {name!r}: expected letters, digits and _, and not a Python keyword")
    return name


def _read_literals(tree: ast.Module) -> dict[str, Any]:
    """Return the module-level literals `pack`, `permissions` and `__all__`."""
    found: dict[str, Any] = {}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in DECLARED_NAMES:
                found[name] = _evaluate_literal(name, value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if name in DECLARED_NAMES:
                found[name] = _evaluate_literal(name, value)
    return found


def _evaluate_literal(name: str, value: ast.expr) -> Any:
    try:
        return ast.literal_eval(value)
    except (TypeError, ValueError):
        rule = "must be a literal, because the file is analyzed without running it"
        raise ValueError(f"line {value.lineno}: {name} {rule}") from None


class _Module(NamedTuple):
    """A parsed Python file."""

    file: Path
    source: str
    tree: ast.Module

    @property
    def lines(self) -> list[str]:
        return self.source.split("\n")  # Python ends lines at \n only

    @property
    def definitions(self) -> dict[str, FunctionNode]:
        return {node.name: node for node in self.tree.body if isinstance(node, FunctionNode)}


def _find_tools(module: _Module, exported: Any) -> tuple[dict[str, tuple[FunctionNode, _Module]], list[str]]:
    """Return the functions that are tools with their modules, and the problems of exported names."""
    if exported is None:
        return {name: (each, module) for name, each in module.definitions.items() if not name.startswith("_")}, []
    if not isinstance(exported, list | tuple) or not all(isinstance(name, str) for name in exported):
        raise ValueError("invalid __all__: expected a list of names")
    found = {name: _find_definition(name, module, module.file.parent, MAX_IMPORT_DEPTH) for name in exported}
    missing = [
        f"__all__ contains {name!r}, which is not a function of this file or of a module in its directory"
        for name, definition in found.items()
        if definition is None
    ]
    return {name: definition for name, definition in found.items() if definition is not None}, missing


def _find_definition(name: str, module: _Module, directory: Path, imports: int) -> tuple[FunctionNode, _Module] | None:
    """Return the function with this name, even if it is imported from a module in the same directory."""
    if name in module.definitions:
        return module.definitions[name], module
    for node in module.tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level and imports:
            original = next((alias.name for alias in node.names if (alias.asname or alias.name) == name), None)
            sibling = _find_module(directory, node.module) if original else None
            if original and sibling is not None:
                return _find_definition(original, sibling, directory, imports - 1)
    return None


def _find_module(directory: Path, name: str) -> _Module | None:
    path = directory.joinpath(*name.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            source = _read_text(candidate)
            return _Module(candidate, source, ast.parse(source))
    return None


def _reject_decorator_permissions(definition: FunctionNode) -> None:
    """Reject permissions in decorators, which would have no effect: they apply to the whole pack."""
    options = (option for call in definition.decorator_list if isinstance(call, ast.Call) for option in call.keywords)
    if any(option.arg in {"permissions", "argument_permissions"} for option in options):
        raise ValueError(
            "permissions in a decorator are not supported; write `permissions = [...]` at the top of the file"
        )


def _make_function(name: str, definition: FunctionNode, lines: list[str]) -> Function:
    docstring = ast.get_docstring(definition) or ""
    returns = ast.unparse(definition.returns) if definition.returns else ""
    text = "\n".join(lines[definition.lineno - 1 : definition.end_lineno])  # the last definition of a name counts
    schema = Schema.from_source(text, definition.name)
    output = make_output_schema(definition.returns)
    return Function(name, schema, description(docstring), example(docstring), returns, output)


def _read_secrets(tree: ast.Module) -> tuple[str, ...]:
    """Return the names in `secrets = [...]`. Another value is a variable of the file and declares nothing."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="secrets")], value=ast.List(elts=names) | ast.Tuple(elts=names)):
                return tuple(str(name.value) for name in names if isinstance(name, ast.Constant))
    return ()


def _parse_permissions(names: Any) -> frozenset[Permission]:
    try:
        return permissions(names)
    except (TypeError, ValueError):
        raise ValueError(f"invalid permissions {names!r}: expected a list of {', '.join(Permission)}") from None
