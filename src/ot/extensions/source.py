"""An extension file as it can be known without running it: its pack, its functions, what it needs."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from ot.context import Permission, permissions
from ot.docstring import description, example
from ot.extensions.pep723 import Header, header_of, mistake_in
from ot.schema import Schema, signature_of_definition

SUFFIX = "_tools"
DECLARED = {"pack", "permissions", "__all__"}
LARGEST_FILE = 10 << 20
Stamp = tuple[int, int, int]
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
    """`problem` is why the whole file is of no use; `problems` are smaller ones."""

    pack: str
    file: Path
    stamp: Stamp
    digest: str = ""
    header: Header | None = None
    functions: tuple[Function, ...] = ()
    permissions: frozenset[Permission] = frozenset()
    description: str = ""
    problem: str | None = None
    problems: tuple[str, ...] = ()


def stamp_of(file: Path) -> Stamp:
    """What tells cheaply that a file may have changed; whether it has, its content tells."""
    status = file.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def read(file: Path) -> Extension:
    """What the file says. It never raises: a file that cannot be read says so in `problem`."""
    name = file.stem.removesuffix(SUFFIX)
    try:
        stamp = stamp_of(file)
        source = _text(file)
    except (OSError, ValueError) as error:
        return Extension(name, file, (0, 0, 0), problem=f"{file} cannot be read: {error}")
    digest = sha256(source.encode("utf-8", "surrogateescape")).hexdigest()
    try:
        return _parsed(name, file, stamp, digest, source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        message = error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
        return Extension(name, file, stamp, digest, problem=f"{file}{line}: {message}")


def _text(file: Path) -> str:
    if file.stat().st_size > LARGEST_FILE:
        raise ValueError(f"it has more than {LARGEST_FILE} bytes")
    return file.read_text(encoding="utf-8-sig")


def _parsed(name: str, file: Path, stamp: Stamp, digest: str, source: str) -> Extension:
    tree = ast.parse(source)
    literals = _literals(tree)
    pack = literals.get("pack", name)
    if not isinstance(pack, str) or not pack.isidentifier():
        raise ValueError(f"{pack!r} is no name for a pack; take letters, digits and _")
    problems = [mistake_in(source)]
    functions = []
    for definition in _definitions(tree, literals.get("__all__")):
        try:
            signature_of_definition(definition)
            functions.append(_function(definition, source))
        except TypeError as error:
            problems.append(f"{definition.name}: {error}")
    return Extension(
        pack,
        file,
        stamp,
        digest,
        header_of(source),
        tuple(functions),
        _permissions(literals.get("permissions", [])),
        ast.get_docstring(tree) or "",
        problems=tuple(f"{file}: {problem}" for problem in problems if problem),
    )


def _literals(tree: ast.Module) -> dict[str, Any]:
    """What is assigned at the top and written out: `pack`, `permissions`, `__all__`."""
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
    except ValueError:
        rule = "must be written out, because the file is read and not run"
        raise ValueError(f"line {value.lineno}: {name} {rule}") from None


def _definitions(tree: ast.Module, exported: Any) -> Iterator[Definition]:
    found = {node.name: node for node in tree.body if isinstance(node, Definition)}
    if exported is None:
        yield from (node for name, node in found.items() if not name.startswith("_"))
        return
    for name in exported:
        if name not in found:
            raise ValueError(f"__all__ names {name!r}, which is no function of this file")
        yield found[name]


def _function(definition: Definition, source: str) -> Function:
    docstring = ast.get_docstring(definition) or ""
    returns = ast.unparse(definition.returns) if definition.returns else ""
    schema = Schema.from_source(source, definition.name)
    return Function(definition.name, schema, description(docstring), example(docstring), returns)


def _permissions(named: Any) -> frozenset[Permission]:
    try:
        return permissions(named)
    except (TypeError, ValueError):
        raise ValueError(f"permissions must be a list of some of {', '.join(Permission)}, not {named!r}") from None
