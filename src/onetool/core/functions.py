"""Functions and classes as objects and in source code: docstrings, scopes, fields and signatures.

Docstrings are in Google, NumPy or Sphinx style. Descriptions and examples are found by their
headings; the other parts are parsed only when needed.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from textwrap import dedent
from typing import Any, NamedTuple

from onetool_child.interface import Context

NAMES = (
    "Args|Arguments|Parameters|Returns|Yields|Raises|Example|Examples|Note|Notes|See"
    " Also|Warnings|References"
)
HEADING = re.compile(
    rf"^(?:(?P<google>{NAMES}):[ \t]*|(?P<numpy>{NAMES}|Other Parameters|Attributes)["
    r" \t]*\n-{3,}[ \t]*"
    r"|(?=:(?:param|parameter|arg|argument|type|key|keyword|returns?|rtype|raises?|yields?)\b).*)$",
    re.MULTILINE,
)
EXAMPLES = ("Example", "Examples")


Values = dict[str, Any]  # such as the options of a field, by name
FIELD_OPTIONS = frozenset(
    (
        "title",
        "description",
        "examples",
        "gt",
        "ge",
        "lt",
        "le",
        "multiple_of",
        "min_length",
        "max_length",
        "pattern",
    )
)
MISSING: Any = object()  # a field or parameter without a default
UNKNOWN: Any = object()  # a default that is not a literal
Lineage = list[tuple[ast.ClassDef, "Scope"]]  # a class and its bases in the source, itself last


FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
CONTEXT_NAMES = frozenset({"Context", "ToolContext", "Context | None", "Optional[Context]"})


# --- docstrings -----------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """The result of a function and the exceptions it raises, as its docstring describes them."""

    returns: str
    raises: dict[str, str]


def description(docstring: str) -> str:
    """Return the text before the first section, with the first paragraph, the summary, in one line."""
    heading = HEADING.search(docstring)
    text = (docstring[: heading.start()] if heading else docstring).strip()
    summary, blank, rest = text.partition("\n\n")
    is_prose = all(line[:1].isalnum() or line[:1] in "`(\"'" for line in summary.splitlines())
    return f"{' '.join(summary.split()) if is_prose else summary}{blank}{rest}"


def example(docstring: str) -> str:
    headings = [*HEADING.finditer(docstring)]
    ends = [*(heading.start() for heading in headings[1:]), len(docstring)]
    for heading, end in zip(headings, ends, strict=False):
        if (heading["google"] or heading["numpy"]) in EXAMPLES:
            return dedent(docstring[heading.end() : end]).strip()
    return ""


def arguments(docstring: str | None) -> dict[str, str]:
    if not docstring or not HEADING.search(docstring):
        return {}
    from docstring_parser import parse

    return {part.arg_name.lstrip("*"): _join(part.description) for part in parse(docstring).params}


def outcome(docstring: str) -> Outcome:
    if not HEADING.search(docstring):
        return Outcome("", {})
    from docstring_parser import parse

    parsed = parse(docstring)
    raises = {
        error.type_name: _join(error.description) for error in parsed.raises if error.type_name
    }
    return Outcome(_join(parsed.returns.description) if parsed.returns else "", raises)


def _join(text: str | None) -> str:
    return " ".join((text or "").split())


# --- classes in source code -----------------------------------------------------------------------


class Import(NamedTuple):
    """`from module import name`, or `import module` with an empty name."""

    module: str
    level: int
    name: str


class Scope:
    """The classes, aliases and imports of a module.

    `find_module` returns the scope of a module beside it, if any.
    """

    def __init__(
        self,
        statements: Iterable[ast.stmt] = (),
        find_module: Callable[[str, int], "Scope | None"] | None = None,
    ) -> None:
        self.definitions: dict[str, ast.ClassDef | ast.expr] = {}
        self.imports: dict[str, Import] = {}
        self.types: Values = {}  # classes that are complete or being built
        self._find_module = find_module
        for node in statements:
            self._add(node)

    def _add(self, node: ast.stmt) -> None:
        match node:
            case ast.ClassDef(name=name):
                self.definitions[name] = node
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.definitions[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self.definitions[name] = value
            case ast.ImportFrom(module=module, names=names, level=level):
                self.imports |= {
                    alias.asname or alias.name: Import(module or "", level, alias.name)
                    for alias in names
                }
            case ast.Import(names=names):
                self.imports |= {
                    alias.asname or alias.name: Import(alias.name, 0, "") for alias in names
                }
            case _ if (
                type(node).__name__ == "TypeAlias"
            ):  # the statement `type X = ...` of Python 3.12
                self.definitions[node.name.id] = node.value  # type: ignore[attr-defined]

    def is_used_by(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        """Return whether the function's parameters use more than known types."""
        for node in ast.walk(function.args):
            match node:
                case ast.Name(id=name) if name in self.definitions:
                    return True
                case ast.Name(id=name) if name in self.imports and (
                    self.imports[name].name not in {"", name}
                    or self._find_outer(name)
                    or self.find(node)
                ):
                    return True
                case ast.arg(annotation=ast.Constant(value=str())):
                    return True
        return False

    def name(self, node: ast.expr) -> str:
        """Return the original name of an expression such as `dt.date` or `Field(...)`."""
        match node:
            case ast.Name(id=name):
                return (self.imports[name].name if name in self.imports else "") or name
            case ast.Attribute(attr=name):
                return name
            case ast.Subscript(value=inner) | ast.Call(func=inner):
                return self.name(inner)
        return ""

    def find(self, node: ast.expr) -> tuple[str, "Scope"] | None:
        """Return the name of a class or alias and its scope; None if it is defined elsewhere."""
        match node:
            case ast.Name(id=name) if name in self.definitions:
                return name, self
            case ast.Name(id=name) if name in self.imports and self.imports[name].name:
                source = self.imports[name]
                module = (
                    self._find_module(source.module, source.level) if self._find_module else None
                )
                return module.find(ast.Name(source.name)) if module else None
            case ast.Attribute(value=ast.Name() | ast.Attribute() as outer, attr=name):
                module = self._find_outer(ast.unparse(outer))
                return module.find(ast.Name(name)) if module else None
        return None

    def _find_outer(self, name: str) -> "Scope | None":
        """Return the scope of a module that is imported under this name."""
        source = self.imports.get(name)
        if source is None or self._find_module is None:
            return None
        return self._find_module(".".join(filter(None, (source.module, source.name))), source.level)


class Field(NamedTuple):
    annotation: ast.expr
    default: ast.expr | None
    scope: Scope
    is_total: bool  # whether a typed dictionary requires it


def strip_underscores(name: str) -> str:
    """Return the argument of a constructor of attrs for a field."""
    return name.lstrip("_")


def read_assignments(lineage: Lineage) -> Iterator[tuple[str, ast.expr, Scope]]:
    for node, scope in lineage:
        for statement in node.body:
            match statement:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ) if not name.startswith("_"):
                    yield name, value, scope


def read_options(call: ast.Call) -> Values:
    """Return the arguments of `Field(...)` by name; `UNKNOWN` for those that are not literals."""
    options: Values = {}
    first = [ast.keyword("default", call.args[0])] if call.args else []
    for keyword in (*first, *call.keywords):
        if keyword.arg:
            options[keyword.arg] = UNKNOWN
            with suppress(ValueError, TypeError, RecursionError, MemoryError):
                options[keyword.arg] = ast.literal_eval(keyword.value)
    return options


def select_field_options(options: Values) -> Values:
    return {
        name: value
        for name, value in options.items()
        if name in FIELD_OPTIONS and value is not UNKNOWN
    }


def get_default(options: Values) -> Any:
    """Return the default in `Field` options, `MISSING` if required, or `UNKNOWN` if no literal."""
    default = (
        UNKNOWN
        if {"default_factory", "factory"} & options.keys()
        else options.get("default", MISSING)
    )
    return MISSING if default is Ellipsis else default


def read_config(lineage: Lineage) -> Values:
    """Return how a pydantic model treats additional values and how it names its fields."""
    from pydantic import alias_generators

    config: Values = {"is_pydantic": True}
    for node, _ in lineage:
        keywords = list(node.keywords)
        for name, value, _ in read_assignments([(node, Scope())]):
            if name == "model_config" and isinstance(value, ast.Call):
                keywords += value.keywords
            elif name == "model_config" and isinstance(value, ast.Dict):
                pairs = zip(value.keys, value.values, strict=True)
                keywords += [
                    ast.keyword(ast.literal_eval(key), key_value) for key, key_value in pairs if key
                ]
        for keyword in keywords:
            if keyword.arg == "extra":
                config["extra"] = ast.literal_eval(keyword.value)
            elif keyword.arg == "alias_generator":
                config["rename"] = getattr(alias_generators, Scope().name(keyword.value))
    return config


def is_total(keywords: Iterable[ast.keyword]) -> bool:
    return not any(
        keyword.arg == "total" and getattr(keyword.value, "value", True) is False
        for keyword in keywords
    )


# --- signatures -----------------------------------------------------------------------------------


def get_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a tool without the context parameter, which the bus fills in."""
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError:  # an annotation that only type checkers can resolve
        signature = inspect.signature(function)
    return signature.replace(
        parameters=[
            parameter for parameter in signature.parameters.values() if not takes_context(parameter)
        ]
    )


def takes_context(parameter: inspect.Parameter) -> bool:
    """Return whether the parameter is annotated `Context` or `ToolContext`, also as optional."""
    return any(
        map(_is_context, (parameter.annotation, *getattr(parameter.annotation, "__args__", ())))
    )


def _is_context(annotation: Any) -> bool:
    if isinstance(annotation, type):
        return issubclass(annotation, Context)
    return annotation in CONTEXT_NAMES if isinstance(annotation, str) else False
