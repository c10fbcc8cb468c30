"""Read extension files without running them: pack name, functions, permissions, dependencies."""

import ast
import os
import re
import stat
import sys
import tokenize
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from keyword import iskeyword
from pathlib import Path
from typing import Any, NamedTuple

from onetool.core.functions import FunctionNode, Scope, description, example
from onetool.core.schema import Schema, make_output_schema
from onetool.core.source_types import list_parameter_names
from onetool.sources.extensions.script_header import ScriptHeader, find_problem, parse_header
from onetool.util.context import Effect, Permission, effects, permissions
from onetool.util.problem import OK, WARNING, Location, Problem
from onetool_child.json_types import JsonObject

SUFFIX = "_tools"
DECLARED_NAMES = {"pack", "permissions", "__all__"}
TOOL_OPTIONS = ("permissions", "effects", "idempotent")
# for files that cannot be parsed
PACK_ASSIGNMENT = re.compile(r"""(?m)^pack\s*(?::[^=\n]*)?=\s*["'](\w*)["']""")
DECLARATION = re.compile(r"(?m)^(pack|permissions)\s*(:[^=\n]*)?=|^# /// script$")
PLATFORM_TEST = re.compile(
    r"(?P<name>sys\.platform|os\.name)(\.startswith\('(?P<prefix>\w*)'\)| (?P<operator>[!=]=)"
    r" '(?P<value>\w*)')"
)
MAX_FILE_BYTES = 10 << 20
MAX_SIBLINGS = 200
MAX_DIRECTORIES = 50
NO_PACKAGES = frozenset({"__pycache__", "node_modules", "venv"})
MAX_IMPORT_DEPTH = 5  # between modules in the same directory
MAX_LISTED_NAMES = 20
IGNORED = "ignored"  # the code of problems that only say what is not a tool
Stamp = tuple[int, int, int, int]


class Function(NamedTuple):
    name: str
    input: Schema
    description: str
    example: str
    returns: str
    docstring: str = ""
    output: Schema | None = None
    permissions: frozenset[Permission] = frozenset()  # in addition to those of the file
    effects: frozenset[Effect] | None = None
    is_idempotent: bool = False
    tool_class: str = ""  # the class of a package's tool that is an object


@dataclass(frozen=True, slots=True)
class Extension:
    """An extension file.

    `problem` makes it unusable. `problems` affect single functions or the header, or say which
    functions are not tools (with the code `ignored`).
    """

    pack: str
    file: Path
    stamp: Stamp
    siblings: frozenset[tuple[str, Stamp]] = frozenset()  # importable modules beside it
    digest: str = ""
    header: ScriptHeader | None = None
    functions: tuple[Function, ...] = ()
    permissions: frozenset[Permission] = frozenset()
    secrets: tuple[str, ...] = ()
    description: str = ""
    problem: Problem | None = None
    problems: tuple[Problem, ...] = ()
    package: str = ""  # the installed package that brings it; empty for a file of the user
    module: str = ""  # the name under which a package's pack is imported

    def identify(self) -> list[str]:
        """Return current digests of the file and its siblings, an empty one for a missing file."""
        files = [str(self.file), *sorted(name for name, _ in self.siblings)]
        return [self.module, *map(_digest_file, files)]


def stamp_file(file: Path) -> Stamp:
    """Return a cheap stamp: if it differs, the file may have changed."""
    return _make_stamp(file.stat())


def _make_stamp(status: os.stat_result) -> Stamp:
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def _digest_file(name: str) -> str:
    try:
        return sha256(Path(name).read_bytes()).hexdigest()
    except OSError:
        return ""


def stamp_siblings(file: Path) -> frozenset[tuple[str, Stamp]]:
    """Return stamps for modules and packages in the file's directory."""
    stamps: list[tuple[str, Stamp]] = []
    root = str(file.parent)
    pending = [root]
    scanned = 0
    while pending and len(stamps) < MAX_SIBLINGS and scanned < MAX_DIRECTORIES:
        directory = pending.pop()
        scanned = scanned + 1
        modules = _scan_modules(directory, is_required=directory == root)
        if directory != root and _is_pack(modules):
            continue
        for entry in modules.values():
            if entry.name.endswith(".py") and entry.path != str(file):
                stamps.append((entry.path, _make_stamp(entry.stat())))
            elif entry.name not in NO_PACKAGES and entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
    return frozenset(stamps)


def _scan_modules(directory: str, *, is_required: bool) -> dict[str, os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            named = {entry.name: entry for entry in entries}
    except OSError:  # a subdirectory without access permission
        if is_required:
            raise
        return {}
    return {
        name: entry for name, entry in named.items() if name.isidentifier() or name.endswith(".py")
    }


def _is_pack(names: Iterable[str]) -> bool:
    """Return whether these names are another pack: tool files that are not in a package."""
    return "__init__.py" not in names and any(name.endswith(f"{SUFFIX}.py") for name in names)


def read(file: Path) -> Extension:
    """Read an extension file. It never raises: `problem` says why a file cannot be read."""
    unparsed = Extension(file.stem.removesuffix(SUFFIX), file, (0, 0, 0, 0))
    try:
        stamp = stamp_file(file)
        siblings = stamp_siblings(file)
        source = _read_text(file)
    # LookupError: the encoding may be unknown or not a text encoding.
    except (LookupError, OSError, SyntaxError, ValueError) as error:
        problem = Problem(f"cannot read {file}: {error}", location=Location(str(file)))
        return replace(unparsed, problem=problem)
    digest = sha256(source.encode("utf-8", "surrogatepass")).hexdigest()
    unparsed = replace(unparsed, stamp=stamp, siblings=siblings, digest=digest)
    try:
        return _parse(unparsed, source)
    except SyntaxError as error:
        return _make_unusable(unparsed, source, error.msg, error.lineno or 0)
    except Exception as error:  # noqa: BLE001 - one invalid file must not hide the others
        return _make_unusable(unparsed, source, str(error) or type(error).__name__)


def outline(file: Path) -> dict[str, list[str]]:
    """Return each tool's parameters. Works for built-in packs too."""
    source = _read_text(file)
    module = _Module(file, source)
    tools, _ = _find_tools(module, _read_literals(module.tree).get("__all__"))
    return {name: list_parameter_names(definition) for name, (definition, _) in tools.items()}


def declares_pack(file: Path) -> bool:
    """Return whether a file assigns `pack` or `permissions`, or has a script header."""
    try:
        source = _read_text(file)
    except (LookupError, OSError, SyntaxError, ValueError):
        return False
    return DECLARATION.search(source) is not None


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
    assignment = PACK_ASSIGNMENT.search(source)
    location = Location(str(unparsed.file), line)
    place = f"{unparsed.file}, line {line}" if line else str(unparsed.file)
    pack = (assignment and assignment[1]) or unparsed.pack
    return replace(unparsed, pack=pack, problem=Problem(f"{place}: {reason}", location=location))


def _parse(unparsed: Extension, source: str) -> Extension:
    module = _Module(unparsed.file, source)
    literals = _read_literals(module.tree)
    tools, reasons = _find_tools(module, literals.get("__all__"))
    functions = []
    for name, (definition, owner) in tools.items():
        try:
            functions.append(_make_function(name, definition, owner))
        except (SyntaxError, TypeError, ValueError) as error:
            reasons.append(f"{name}: {error}")
    if header_problem := find_problem(source):
        reasons.insert(0, header_problem)
    location = Location(str(unparsed.file))
    problems = [Problem(f"{unparsed.file}: {reason}", location=location) for reason in reasons]
    return replace(
        unparsed,
        pack=_check_pack_name(literals.get("pack", unparsed.pack)),
        header=parse_header(source),
        functions=tuple(functions),
        permissions=_parse_permissions(literals.get("permissions", [])),
        secrets=_read_secrets(module.tree),
        description=ast.get_docstring(module.tree) or "",
        problems=(*problems, *_find_ignored(module, tools)),
    )


def _check_pack_name(name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier() or iskeyword(name):
        raise ValueError(
            f"invalid pack name {name!r}: expected letters, digits and _, and not a Python keyword"
        )
    return name


def _find_ignored(module: "_Module", tools: Iterable[str]) -> Iterator[Problem]:
    """Yield what is not a tool, although a reader might expect it: one problem for each reason."""
    names = {*tools}
    unlisted = [name for name in module.definitions if name not in names]
    nested: list[str] = []
    for name in sorted(names & module.definitions.keys()):
        nested += _list_functions(module.definitions[name])
    statements = module.statements
    classes = [
        node.name for node in statements if isinstance(node, ast.ClassDef) and _has_methods(node)
    ]
    is_private = all(name.startswith("_") for name in unlisted)
    reasons = {
        "names that start with _ are private" if is_private else "not listed in __all__": unlisted,
        "functions inside functions are not tools": nested,
        "methods are not tools; write functions": classes,
    }
    file = module.file
    for reason, ignored in reasons.items():
        if ignored:
            message = f"{file}: ignored {_join(ignored)}: {reason}"
            yield Problem(message, "", Location(str(file)), IGNORED, OK)
    for node in statements:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda()):
                if not name.startswith("_"):
                    message = f"{file}, line {node.lineno}: ignored {name}: a lambda is not a tool"
                    hint = f"write `def {name}(...)` in {file}, or rename it to _{name}"
                    yield Problem(message, hint, Location(str(file), node.lineno), IGNORED, WARNING)


def _list_functions(node: FunctionNode | ast.ClassDef) -> list[str]:
    return [inner.name for inner in node.body if isinstance(inner, FunctionNode)]


def _has_methods(node: ast.ClassDef) -> bool:
    return not all(name.startswith("_") for name in _list_functions(node))


def _join(names: list[str]) -> str:
    more = len(names) - MAX_LISTED_NAMES
    return ", ".join([*names[:MAX_LISTED_NAMES], *([f"{more} more"] if more > 0 else [])])


def _read_literals(tree: ast.Module) -> JsonObject:
    """Return the module-level literals `pack`, `permissions` and `__all__`."""
    literals: JsonObject = {}
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ) if name in DECLARED_NAMES:
                literals[name] = _evaluate_literal(name, value)
    return literals


def _evaluate_literal(name: str, value: ast.expr) -> Any:
    try:
        return ast.literal_eval(value)
    except (TypeError, ValueError):
        rule = "must be a literal, because the file is analyzed without running it"
        raise ValueError(f"line {value.lineno}: {name} {rule}") from None


@dataclass(eq=False)
class _Module:
    """A Python file, and the modules that it may import from the pack's directory."""

    file: Path
    source: str
    root: Path = field(default=Path())
    siblings: dict[Path, "_Module | None"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.siblings:
            self.root = self.file.parent
            self.siblings[self.file] = self

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @cached_property
    def lines(self) -> list[str]:
        return self.source.split("\n")  # Python ends lines at \n only

    @cached_property
    def statements(self) -> list[ast.stmt]:
        """The statements that run at import, also under `if` and `try`.

        The first alternative comes last: it counts.
        """
        return list(_flatten(self.tree.body))

    @cached_property
    def definitions(self) -> dict[str, FunctionNode]:
        return {node.name: node for node in self.statements if isinstance(node, FunctionNode)}

    @cached_property
    def scope(self) -> Scope:
        return Scope(self.statements, self._find_scope)

    def _find_scope(self, name: str, level: int) -> Scope | None:
        with suppress(LookupError, OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            if (module := self.find_module(name, level)) is not None:
                return module.scope
        return None  # the types in it are unknown

    def find_module(self, name: str, level: int) -> "_Module | None":
        """Return a module in the pack's directory, by the name and level in an import."""
        start = self.file.parents[level - 1] if 0 < level <= len(self.file.parents) else self.root
        if not start.is_relative_to(self.root):
            return None
        path = start.joinpath(*name.split("."))
        candidates = [path / "__init__.py"]
        if name:
            candidates.insert(0, path.with_suffix(".py"))
        return next(filter(None, map(self._read_sibling, candidates)), None)

    def _read_sibling(self, file: Path) -> "_Module | None":
        if file not in self.siblings:
            module = None
            if len(self.siblings) <= MAX_SIBLINGS and file.is_file():
                module = _Module(file, _read_text(file), self.root, self.siblings)
            self.siblings[file] = module
        return self.siblings[file]


def _flatten(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        match node:
            case ast.If(test=test):
                taken = _evaluate_test(test)
                yield from _flatten(node.orelse if taken is not True else ())
                yield from _flatten(node.body if taken is not False else ())
            case ast.Try() | ast.TryStar():
                for handler in node.handlers:
                    yield from _flatten(handler.body)
                yield from _flatten((*node.body, *node.orelse, *node.finalbody))
            case ast.With():
                yield from _flatten(node.body)
            case _:
                yield node


def _evaluate_test(test: ast.expr) -> bool | None:
    """Return a platform or `__name__` test's value; None for any other condition."""
    text = ast.unparse(test)
    if text == "__name__ == '__main__'":
        return False
    match = PLATFORM_TEST.fullmatch(text)
    if match is None:
        return None
    value = sys.platform if match["name"] == "sys.platform" else os.name
    if match["prefix"] is not None:
        return value.startswith(match["prefix"])
    return (value == match["value"]) is (match["operator"] == "==")


def _find_tools(
    module: _Module, exported: Any
) -> tuple[dict[str, tuple[FunctionNode, _Module]], list[str]]:
    """Return the functions that are tools with their modules, and what is wrong with exports."""
    if exported is None:
        exported = [name for name in module.definitions if not name.startswith("_")]
    elif not isinstance(exported, list | tuple) or not all(
        isinstance(entry, str) for entry in exported
    ):
        raise ValueError("invalid __all__: expected a list of names")
    definitions = {name: _find_definition(name, module, MAX_IMPORT_DEPTH) for name in exported}
    missing = [
        f"__all__ contains {name!r}, which is not a function of this file or of a module in its"
        " directory"
        for name, definition in definitions.items()
        if definition is None
    ]
    existing = {name: definition for name, definition in definitions.items() if definition}
    return existing, missing


def _find_definition(
    name: str, module: _Module, imports: int
) -> tuple[FunctionNode, _Module] | None:
    """Return the function with this name, also from a sibling module."""
    if name in module.definitions:
        return module.definitions[name], module
    source = module.scope.imports.get(name)
    if source is None or not source.name or not imports:
        return None
    sibling = module.find_module(source.module, source.level)
    return _find_definition(source.name, sibling, imports - 1) if sibling else None


def _make_function(name: str, definition: FunctionNode, module: _Module) -> Function:
    docstring = ast.get_docstring(definition) or ""
    returns = ast.unparse(definition.returns) if definition.returns else ""
    if module.scope.is_used_by(definition):
        schema = Schema.from_definition(definition, module.scope)
    else:  # its source takes less memory than the tree
        text = "\n".join(module.lines[definition.lineno - 1 : definition.end_lineno])
        schema = Schema.from_source(
            f"if True:\n{text}" if definition.col_offset else text, definition.name
        )
    output = make_output_schema(definition.returns, module.scope)
    declared = _read_tool_options(definition)
    declared_effects = effects(declared["effects"]) if "effects" in declared else None
    return Function(
        *(name, schema, description(docstring), example(docstring), returns, docstring, output),
        permissions=_parse_permissions(declared.get("permissions", [])),
        effects=declared_effects,
        is_idempotent=declared.get("idempotent", False) is True,
    )


def _read_tool_options(definition: FunctionNode) -> JsonObject:
    """Return the permissions, the effects and the idempotence in `@tool(...)`."""
    values: JsonObject = {}
    for decorator in definition.decorator_list:
        match decorator:
            case ast.Call(func=ast.Name(id="tool") | ast.Attribute(attr="tool"), keywords=options):
                names = {option.arg: option.value for option in options}
                if "argument_permissions" in names:
                    raise ValueError("argument_permissions is not supported; use permissions")
                for name in TOOL_OPTIONS:
                    if name in names:
                        values[name] = _evaluate_literal(name, names[name])
    return values


def _read_secrets(tree: ast.Module) -> tuple[str, ...]:
    """Return the names in `secrets = [...]`.

    Another value is a variable of the file and declares nothing.
    """
    for node in tree.body:
        match node:
            case ast.Assign(
                targets=[ast.Name(id="secrets")], value=ast.List(elts=names) | ast.Tuple(elts=names)
            ):
                return tuple(str(name.value) for name in names if isinstance(name, ast.Constant))
    return ()


def _parse_permissions(names: Any) -> frozenset[Permission]:
    try:
        return permissions(names)
    except (TypeError, ValueError):
        raise ValueError(
            f"invalid permissions {names!r}: expected a list of {', '.join(Permission)}"
        ) from None
