"""Packs that installed packages bring, as entry points of the group `onetool.packs`.

Nothing is imported to find them.

The name of an entry point is the name of the pack, and its value is a module, or a function or a
tool class in one: `sums = "my_package.sums"`. Only packages in the environment of OneTool itself
count: a directory that is on the path for another reason, such as the current one, must not bring
code.
"""

import ast
import os
import re
import site
import sys
import sysconfig
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, EntryPoint, distributions
from pathlib import Path
from typing import TYPE_CHECKING

from onetool.core.functions import description, example
from onetool.core.schema import ANY_OBJECT, Schema
from onetool.sources.extensions import static_analysis
from onetool.sources.extensions.static_analysis import Extension, Function
from onetool.util.context import permissions
from onetool.util.problem import Problem

if TYPE_CHECKING:
    from onetool_child.json_types import JsonObject

GROUP = "onetool.packs"
ALL = "*"
LITERALS = frozenset({"name", "permissions", "param_schema"})  # attributes of a tool class
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def package_directories() -> list[str]:
    """Return the directories with this environment's packages."""
    directories = {
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
        *site.getsitepackages(),
    }
    if site.ENABLE_USER_SITE:
        directories.add(site.getusersitepackages())
    real = set(map(os.path.realpath, directories))
    return [path for path in sys.path if path and os.path.realpath(path) in real]


def find_installed(disabled: Collection[str]) -> list[Extension]:
    """Return packs in installed packages. An unusable one has a `problem`."""
    skipped = set(map(_normalize, disabled))
    extensions: dict[tuple[str, str, str], Extension] = {}
    packages = list(distributions(path=package_directories()))
    if ALL in skipped or not any(map(any, map(_list_entries, packages))):
        return []  # reading the names of all packages takes ten times as long
    for package in packages:
        name = _normalize(str(package.name))
        if name in skipped:  # disabled, or Python imports another one of this name
            continue
        skipped.add(name)
        for entry in _list_entries(package):
            extension = _read_entry(str(package.name), entry)
            key = extension.package, extension.module, extension.pack
            # several entry points may name functions of one pack
            extensions[key] = _merge(extensions[key], extension) if key in extensions else extension
    return list(extensions.values())


def _merge(one: Extension, other: Extension) -> Extension:
    functions = one.functions + other.functions
    return replace(one, functions=functions, permissions=one.permissions | other.permissions)


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _list_entries(package: Distribution) -> Iterator[EntryPoint]:
    try:
        yield from package.entry_points.select(group=GROUP)
    except Exception:  # noqa: BLE001 - broken metadata of one package must not hide the others
        return


def _read_entry(package: str, entry: EntryPoint) -> Extension:
    try:
        return _read_pack(package, entry)
    except (
        AttributeError,
        TypeError,
        ValueError,
    ) as error:  # AttributeError: the entry point is malformed
        message = (
            f"cannot use the pack {entry.name} of the package {package} ({entry.value}): {error}"
        )
        problem = Problem(message, f"add this to onetool.yaml: disabled_packages: [{package}]")
    return Extension(
        entry.name,
        Path(entry.value),
        (0,) * 4,
        package=package,
        module=entry.value,
        problem=problem,
    )


def _read_pack(package: str, entry: EntryPoint) -> Extension:
    module = entry.module
    function = entry.attr
    file = _find_file(module)
    if file is None:
        raise ValueError(f"module {module!r} has no Python source")
    definition = _find_definition(file, function)
    read = replace(
        static_analysis.read(file), pack=entry.name, package=package, module=module, header=None
    )
    if function:  # the entry point says what is a tool
        problems = tuple(
            problem for problem in read.problems if problem.code != static_analysis.IGNORED
        )
        read = replace(read, problems=problems)
    if isinstance(definition, ast.ClassDef):
        return _select_class(read, definition)
    declared = _read_declared_name(definition) if definition is not None else ""
    if declared.rpartition(".")[2] not in {"", function}:
        raise ValueError(f"the function {function!r} must have the name of its tool, {declared!r}")
    chosen = (
        tuple(tool for tool in read.functions if tool.name == function)
        if function
        else read.functions
    )
    if function and not chosen and read.problem is None:
        raise ValueError(f"{module} has no {function!r}; name a module, a function or a tool class")
    return _rename(replace(read, functions=chosen), declared)


def _rename(extension: Extension, name: str) -> Extension:
    """Return the extension under the pack in a declared tool name, if it has one."""
    pack = name.rpartition(".")[0] or extension.pack
    if not pack.isidentifier():
        raise ValueError(f"invalid pack name {pack!r}")
    return replace(extension, pack=pack)


def _find_definition(file: Path, name: str) -> Definition | None:
    """Return the function or class with this name; None if the file cannot be parsed."""
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError):  # `static_analysis.read` reports it
        return None
    return next((node for node in body if isinstance(node, Definition) and node.name == name), None)


def _read_declared_name(definition: Definition) -> str:
    """Return the name in a function's `@tool("pack.name")`; empty without one."""
    for decorator in definition.decorator_list:
        match decorator:
            case ast.Call(args=[ast.Constant(value=str(name)), *_]):
                return name
    return ""


def _select_class(read: Extension, definition: ast.ClassDef) -> Extension:
    """Return a pack for one tool object with `name`, `permissions` and `call`."""
    parts: JsonObject = {"param_schema": ANY_OBJECT}
    for node in definition.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ) if name in LITERALS:
                parts[name] = None
                with suppress(ValueError):
                    parts[name] = ast.literal_eval(value)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                parts[name] = None
    match parts:
        case {
            "name": str(name),
            "permissions": list() | tuple() as required,
            "param_schema": dict(schema),
            "call": None,
        }:
            docstring = ast.get_docstring(definition) or ""
            texts = description(docstring), example(docstring), "", docstring
            function = Function(
                name.rpartition(".")[2],
                Schema.from_json(schema),
                *texts,
                tool_class=definition.name,
            )
            both = read.permissions | permissions(required)
            return _rename(replace(read, functions=(function,), permissions=both), name)
    raise ValueError(
        f"the class {definition.name!r} needs call(params, context), name and permissions; "
        "name, permissions and param_schema must be literals, because the source is not executed"
    )


def _find_file(module: str) -> Path | None:
    """Return a module's source file. Its parent packages are located, not imported."""
    path: list[str] | None = None
    spec: ModuleSpec | None = None
    parts = module.split(".")
    for index in range(len(parts)):
        spec = _find_spec(".".join(parts[: index + 1]), path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or ())
    file = Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None
    return file if file is not None and file.suffix == ".py" else None


def _find_spec(name: str, path: list[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, path)
        except Exception:  # noqa: BLE001, S112 - a finder of another package
            continue
        if spec is not None:
            return spec
    return None
