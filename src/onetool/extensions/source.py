"""An extension file as it can be known without running it: its pack, its functions, what it needs."""

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
from onetool.extensions.pep723 import Header, header_of, mistake_in
from onetool.problem import Location, Problem
from onetool.schema import Schema, signature_of_definition
from onetool.util.docstring import description, example

SUFFIX = "_tools"
DECLARED = {"pack", "permissions", "__all__"}
NAMED = re.compile(r"""(?m)^pack\s*(?::[^=\n]*)?=\s*["'](\w*)["']""")  # where parsing takes too long, or fails
LARGEST_FILE = 10 << 20
MAX_SIBLINGS = 200
MAX_IMPORTS = 5  # from one module to the next
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
    """`problem` is why the whole file is of no use; `problems` are smaller ones."""

    pack: str
    file: Path
    stamp: Stamp
    siblings: frozenset[tuple[str, Stamp]] = frozenset()  # the modules beside the file, which it may import
    digest: str = ""
    header: Header | None = None
    functions: tuple[Function, ...] = ()
    permissions: frozenset[Permission] = frozenset()
    description: str = ""
    problem: Problem | None = None
    problems: tuple[Problem, ...] = ()


def stamp_of(file: Path) -> Stamp:
    """What tells cheaply that a file may have changed; whether it has, its content tells."""
    status = file.stat()
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def siblings_of(file: Path) -> frozenset[tuple[str, Stamp]]:
    """Return what tells that a module beside the file may have changed, packages included."""
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
    """What the file says. It never raises: a file that cannot be read says so in `problem`."""
    unread = Extension(file.stem.removesuffix(SUFFIX), file, (0, 0, 0, 0))
    try:
        stamp, siblings = stamp_of(file), siblings_of(file)
        source = _text(file)
    except (LookupError, OSError, SyntaxError, ValueError) as error:  # an encoding may be unknown, or none for text
        return replace(unread, problem=Problem(f"{file} cannot be read: {error}", location=Location(str(file))))
    digest = sha256(source.encode("utf-8", "surrogatepass")).hexdigest()
    unread = replace(unread, stamp=stamp, siblings=siblings, digest=digest)
    try:
        return _parsed(unread, source)
    except SyntaxError as error:
        return _broken(unread, source, error.msg, error.lineno or 0)
    except Exception as error:  # noqa: BLE001 - one odd file must not keep the others from being found
        return _broken(unread, source, str(error) or type(error).__name__)


def outline(file: Path) -> dict[str, list[str]]:
    """Return the parameters of each tool of a file, also of one that ships, or raise what reading it raises."""
    source = _text(file)
    module = _Module(file, source, ast.parse(source))
    found, _ = _definitions(module, _literals(module.tree).get("__all__"))
    return {name: list(signature_of_definition(definition).parameters) for name, (definition, _) in found.items()}


def _text(file: Path) -> str:
    """The file in its own encoding, as Python reads it."""
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no regular file")
    if status.st_size > LARGEST_FILE:
        raise ValueError(f"it has more than {LARGEST_FILE} bytes")
    with tokenize.open(file) as opened:
        return opened.read()


def _broken(unread: Extension, source: str, reason: str, line: int = 0) -> Extension:
    """Known by the name under which somebody will call it."""
    named, place = NAMED.search(source), Location(str(unread.file), line)
    problem = Problem(f"{unread.file}{f', line {line}' if line else ''}: {reason}", location=place)
    return replace(unread, pack=(named and named[1]) or unread.pack, problem=problem)


def _parsed(unread: Extension, source: str) -> Extension:
    tree = ast.parse(source)
    literals = _literals(tree)
    found, problems = _definitions(_Module(unread.file, source, tree), literals.get("__all__"))
    functions = []
    for name, (definition, module) in found.items():
        try:
            signature_of_definition(definition)
            _refuse_own_permissions(definition)
            functions.append(_function(name, definition, module.lines))
        except (SyntaxError, TypeError, ValueError) as error:
            problems.append(f"{name}: {error}")
    return replace(
        unread,
        pack=_pack(literals.get("pack", unread.pack)),
        header=header_of(source),
        functions=tuple(functions),
        permissions=_permissions(literals.get("permissions", [])),
        description=ast.get_docstring(tree) or "",
        problems=tuple(
            Problem(f"{unread.file}: {reason}", location=Location(str(unread.file)))
            for reason in (mistake_in(source), *problems)
            if reason
        ),
    )


def _pack(name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier() or iskeyword(name):
        raise ValueError(f"{name!r} is no name for a pack; take letters, digits and _, and no word of Python")
    return name


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
    except (TypeError, ValueError):
        rule = "must be written out, because the file is read and not run"
        raise ValueError(f"line {value.lineno}: {name} {rule}") from None


class _Module(NamedTuple):
    """A file of Python that was read."""

    file: Path
    source: str
    tree: ast.Module

    @property
    def lines(self) -> list[str]:
        return self.source.split("\n")  # nothing else ends a line of Python

    @property
    def definitions(self) -> dict[str, Definition]:
        return {node.name: node for node in self.tree.body if isinstance(node, Definition)}


def _definitions(module: _Module, exported: Any) -> tuple[dict[str, tuple[Definition, _Module]], list[str]]:
    """The functions that are tools, with the files they are in, and what was exported that cannot be one."""
    if exported is None:
        return {name: (each, module) for name, each in module.definitions.items() if not name.startswith("_")}, []
    if not isinstance(exported, list | tuple) or not all(isinstance(name, str) for name in exported):
        raise ValueError("__all__ must be a list of names")
    found = {name: _definition(name, module, module.file.parent, MAX_IMPORTS) for name in exported}
    missing = [
        f"__all__ names {name!r}, which is not a function of this file or of a module beside it"
        for name, where in found.items()
        if where is None
    ]
    return {name: where for name, where in found.items() if where is not None}, missing


def _definition(name: str, module: _Module, folder: Path, imports: int) -> tuple[Definition, _Module] | None:
    """Return the function that a name means, also one that is imported from a module beside the file."""
    if name in module.definitions:
        return module.definitions[name], module
    for node in module.tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level and imports:
            original = next((alias.name for alias in node.names if (alias.asname or alias.name) == name), None)
            beside = _module_in(folder, node.module) if original else None
            if original and beside is not None:
                return _definition(original, beside, folder, imports - 1)
    return None


def _module_in(folder: Path, name: str) -> _Module | None:
    path = folder.joinpath(*name.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            source = _text(candidate)
            return _Module(candidate, source, ast.parse(source))
    return None


def _refuse_own_permissions(definition: Definition) -> None:
    """Whoever writes them counts on them; in an extension they are the whole pack's."""
    options = (option for call in definition.decorator_list if isinstance(call, ast.Call) for option in call.keywords)
    if any(option.arg in {"permissions", "argument_permissions"} for option in options):
        raise ValueError("its decorator has permissions; write `permissions = [...]` at the top of the file instead")


def _function(name: str, definition: Definition, lines: list[str]) -> Function:
    docstring = ast.get_docstring(definition) or ""
    returns = ast.unparse(definition.returns) if definition.returns else ""
    text = "\n".join(lines[definition.lineno - 1 : definition.end_lineno])  # of several with this name, the last
    schema = Schema.from_source(text, definition.name)
    return Function(name, schema, description(docstring), example(docstring), returns)


def _permissions(named: Any) -> frozenset[Permission]:
    try:
        return permissions(named)
    except (TypeError, ValueError):
        raise ValueError(f"permissions must be a list of some of {', '.join(Permission)}, not {named!r}") from None
