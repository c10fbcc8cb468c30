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
from onetool.extensions.pep723 import Header, find_mistake, parse_header
from onetool.problem import Location, Problem
from onetool.schema import Schema, signature_of_definition
from onetool.util.docstring import description, example

SUFFIX = "_tools"
DECLARED = {"pack", "permissions", "__all__"}
NAMED = re.compile(r"""(?m)^pack\s*(?::[^=\n]*)?=\s*["'](\w*)["']""")  # for files that cannot be parsed
MAX_FILE_BYTES = 10 << 20
MAX_SIBLINGS = 200
MAX_IMPORTS = 5  # depth of imports between modules
Stamp = tuple[int, int, int, int]
Definition = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    input: Schema
    description: str
    example: str
    returns: str


@dataclass(frozen=True, slots=True)
class Extension:
    """An extension file. `problem` makes it unusable; `problems` affect single functions or the header."""

    pack: str
    file: Path
    stamp: Stamp
    siblings: frozenset[tuple[str, Stamp]] = frozenset()  # modules in the same directory, which it may import
    digest: str = ""
    header: Header | None = None
    functions: tuple[Function, ...] = ()
    permissions: frozenset[Permission] = frozenset()
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
    left = [str(file.parent)]
    while left and len(found) < MAX_SIBLINGS:
        with os.scandir(left.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".py") and entry.path != str(file):
                    status = entry.stat()
                    stamp = status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
                    found.append((entry.path, stamp))
                elif entry.is_dir(follow_symlinks=False) and _is_package(entry.path):
                    left.append(entry.path)
    return frozenset(found)


def _is_package(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, "__init__.py"))  # noqa: PTH113, PTH118 - before each call


def read(file: Path) -> Extension:
    """Read an extension file. It never raises: `problem` says why a file cannot be read."""
    unread = Extension(file.stem.removesuffix(SUFFIX), file, (0, 0, 0, 0))
    try:
        stamp, siblings = stamp_file(file), stamp_siblings(file)
        source = _read_text(file)
    except (
        LookupError,
        OSError,
        SyntaxError,
        ValueError,
    ) as error:  # the encoding may be unknown or not a text encoding
        return replace(unread, problem=Problem(f"cannot read {file}: {error}", location=Location(str(file))))
    digest = sha256(source.encode("utf-8", "surrogatepass")).hexdigest()
    unread = replace(unread, stamp=stamp, siblings=siblings, digest=digest)
    try:
        return _parse(unread, source)
    except SyntaxError as error:
        return _broken(unread, source, error.msg, error.lineno or 0)
    except Exception as error:  # noqa: BLE001 - one invalid file must not hide the others
        return _broken(unread, source, str(error) or type(error).__name__)


def outline(file: Path) -> dict[str, list[str]]:
    """Return the parameters of each tool of a file. Works for built-in packs too."""
    source = _read_text(file)
    module = _Module(file, source, ast.parse(source))
    found, _ = _definitions(module, _literals(module.tree).get("__all__"))
    return {name: list(signature_of_definition(definition).parameters) for name, (definition, _) in found.items()}


def _read_text(file: Path) -> str:
    """Return the source in its declared encoding, as Python reads it."""
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("not a regular file")
    if status.st_size > MAX_FILE_BYTES:
        raise ValueError(f"file too large: more than {MAX_FILE_BYTES:,} bytes")
    with tokenize.open(file) as opened:
        return opened.read()


def _broken(unread: Extension, source: str, reason: str, line: int = 0) -> Extension:
    """Return an unusable extension, under the pack name that callers will use."""
    named, place = NAMED.search(source), Location(str(unread.file), line)
    problem = Problem(f"{unread.file}{f', line {line}' if line else ''}: {reason}", location=place)
    return replace(unread, pack=(named and named[1]) or unread.pack, problem=problem)


def _parse(unread: Extension, source: str) -> Extension:
    tree = ast.parse(source)
    literals = _literals(tree)
    found, problems = _definitions(_Module(unread.file, source, tree), literals.get("__all__"))
    functions = []
    for name, (definition, module) in found.items():
        try:
            signature_of_definition(definition)
            _reject_decorator_permissions(definition)
            functions.append(_function(name, definition, module.lines))
        except (SyntaxError, TypeError, ValueError) as error:
            problems.append(f"{name}: {error}")
    return replace(
        unread,
        pack=_pack(literals.get("pack", unread.pack)),
        header=parse_header(source),
        functions=tuple(functions),
        permissions=_permissions(literals.get("permissions", [])),
        description=ast.get_docstring(tree) or "",
        problems=tuple(
            Problem(f"{unread.file}: {reason}", location=Location(str(unread.file)))
            for reason in (find_mistake(source), *problems)
            if reason
        ),
    )


def _pack(name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier() or iskeyword(name):
        raise ValueError(f"invalid pack name {name!r}: expected letters, digits and _, and not a Python keyword")
    return name


def _literals(tree: ast.Module) -> dict[str, Any]:
    """Return the module-level literals `pack`, `permissions` and `__all__`."""
    found: dict[str, Any] = {}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in DECLARED:
                found[name] = _literal(name, value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if name in DECLARED:
                found[name] = _literal(name, value)
    return found


def _literal(name: str, value: ast.expr) -> Any:
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
    def definitions(self) -> dict[str, Definition]:
        return {node.name: node for node in self.tree.body if isinstance(node, Definition)}


def _definitions(module: _Module, exported: Any) -> tuple[dict[str, tuple[Definition, _Module]], list[str]]:
    """Return the functions that are tools with their modules, and the problems of exported names."""
    if exported is None:
        return {name: (each, module) for name, each in module.definitions.items() if not name.startswith("_")}, []
    if not isinstance(exported, list | tuple) or not all(isinstance(name, str) for name in exported):
        raise ValueError("invalid __all__: expected a list of names")
    found = {name: _definition(name, module, module.file.parent, MAX_IMPORTS) for name in exported}
    missing = [
        f"__all__ contains {name!r}, which is not a function of this file or of a module in its directory"
        for name, where in found.items()
        if where is None
    ]
    return {name: where for name, where in found.items() if where is not None}, missing


def _definition(name: str, module: _Module, folder: Path, imports: int) -> tuple[Definition, _Module] | None:
    """Return the function with this name, even if it is imported from a module in the same directory."""
    if name in module.definitions:
        return module.definitions[name], module
    for node in module.tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level and imports:
            original = next((alias.name for alias in node.names if (alias.asname or alias.name) == name), None)
            beside = _find_module(folder, node.module) if original else None
            if original and beside is not None:
                return _definition(original, beside, folder, imports - 1)
    return None


def _find_module(folder: Path, name: str) -> _Module | None:
    path = folder.joinpath(*name.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            source = _read_text(candidate)
            return _Module(candidate, source, ast.parse(source))
    return None


def _reject_decorator_permissions(definition: Definition) -> None:
    """Reject permissions in decorators, which would have no effect: they apply to the whole pack."""
    options = (option for call in definition.decorator_list if isinstance(call, ast.Call) for option in call.keywords)
    if any(option.arg in {"permissions", "argument_permissions"} for option in options):
        raise ValueError(
            "permissions in a decorator are not supported; write `permissions = [...]` at the top of the file"
        )


def _function(name: str, definition: Definition, lines: list[str]) -> Function:
    docstring = ast.get_docstring(definition) or ""
    returns = ast.unparse(definition.returns) if definition.returns else ""
    text = "\n".join(lines[definition.lineno - 1 : definition.end_lineno])  # the last definition of a name counts
    schema = Schema.from_source(text, definition.name)
    return Function(name, schema, description(docstring), example(docstring), returns)


def _permissions(named: Any) -> frozenset[Permission]:
    try:
        return permissions(named)
    except (TypeError, ValueError):
        raise ValueError(f"invalid permissions {named!r}: expected a list of {', '.join(Permission)}") from None
