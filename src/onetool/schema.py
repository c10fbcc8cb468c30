"""What a tool takes and gives: a JSON Schema, wherever it came from, and the check of a value against it.

Three sources: a function (its signature and docstring), JSON, and the source text of a function that is never run.
All become the same thing, so that every tool is described, bound and checked alike. The schema of a function and
the validator are made at first use: a catalogue of thousands costs nothing until it is asked.
"""

import ast
import functools
import inspect
from collections.abc import Callable, Mapping
from itertools import chain, repeat
from typing import Any, Final, Self

from onetool.context import ToolContext
from onetool.errors import ArgumentError
from onetool.util.docstring import arguments as docstring_arguments

JSON = dict[str, Any]
MAX_PROBLEM = 1_000  # characters of what is wrong with a value
ANY_OBJECT: Final[JSON] = {"type": "object"}
PLAIN_TYPES: Final[dict[Any, JSON]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    None: {"type": "null"},
    type(None): {"type": "null"},
    list: {"type": "array"},
    dict: {"type": "object"},
    Any: {},
    inspect.Parameter.empty: {},
}


class Schema:
    """A JSON Schema with its validator. `json` is the schema; `check` raises what is wrong with a value."""

    def __init__(self, make: Callable[[], JSON], keyword_only: Callable[[], frozenset[str]] = frozenset) -> None:
        self._make, self._keyword_only = make, keyword_only

    @classmethod
    def from_json(cls, schema: Mapping[str, Any]) -> Self:
        return cls(lambda: dict(schema))

    @classmethod
    def from_callable(cls, function: Callable[..., Any]) -> Self:
        return cls(
            lambda: _of_signature(signature_of(function), inspect.getdoc(function)),
            lambda: _keyword_only(signature_of(function)),
        )

    @classmethod
    def from_source(cls, source: str, function: str) -> Self:
        """From the text of a module, which is read and never run."""
        return cls(
            lambda: _of_signature(
                signature_of_definition(node := _definition(source, function)), ast.get_docstring(node)
            ),
            lambda: _keyword_only(signature_of_definition(_definition(source, function))),
        )

    @functools.cached_property
    def json(self) -> JSON:
        return self._make()

    @functools.cached_property
    def properties(self) -> Mapping[str, JSON]:
        """The schema of each argument; one that says only true or false says nothing about it."""
        parts = self.json.get("properties", {}).items()
        return {name: part if isinstance(part, dict) else {} for name, part in parts}

    @functools.cached_property
    def required(self) -> frozenset[str]:
        return frozenset(self.json.get("required", ()))

    @functools.cached_property
    def keyword_only(self) -> frozenset[str]:
        """The arguments that cannot be passed by position."""
        return self._keyword_only()

    @property
    def open(self) -> bool:
        """Whether arguments that are not named are taken too."""
        return self.json.get("additionalProperties", True) is not False

    @functools.cached_property
    def defaults(self) -> Mapping[str, Any]:
        return {name: part["default"] for name, part in self.properties.items() if "default" in part}

    def problem(self, value: Any) -> str | None:
        """What is wrong with the value, in words; None where nothing is."""
        found = self._mismatch(value)
        return found[0] if found else None

    def _mismatch(self, value: Any) -> tuple[str, list[str | int], str] | None:
        """Return the first thing that is wrong in words, where in the value it is, and the words without the place."""
        error = next(self._validator.iter_errors(value), None)
        if error is None:
            return None
        path = [part if isinstance(part, int) else part[:MAX_PROBLEM] for part in error.instance_path]
        where = "".join(f"[{part!r}]" if isinstance(part, int) else f".{part}" for part in path)
        message = str(error.message)
        if len(message) > MAX_PROBLEM:  # the middle of a value that it quotes at length; the end says what is wrong
            message = f"{message[: MAX_PROBLEM // 2]}...{message[-MAX_PROBLEM // 2 :]}"
        return f"{where.lstrip('.')}: {message}" if where else message, path, message

    def check(self, args: JSON) -> JSON:
        """Return the arguments if they are right, with an integer for a float like 3.0 where one is declared."""
        try:
            if not self._validator.is_valid(args):
                what = "they do not fit the schema"
                text, path, reason = self._mismatch(args) or (what, [], what)
                raise ArgumentError(text, path=path, reason=reason)
        except ValueError as error:  # half a character, or hundreds of levels
            raise ArgumentError(f"the arguments cannot be checked: {error}") from None
        for name, part in self._with_integers.items():
            if name in args:
                args[name] = _integral(args[name], part)
        return args

    @functools.cached_property
    def _with_integers(self) -> Mapping[str, JSON]:
        return {name: part for name, part in self.properties.items() if "'integer'" in str(part)}

    @functools.cached_property
    def _validator(self) -> Any:
        import jsonschema_rs

        try:
            return jsonschema_rs.validator_for(self.json, retriever=_refuse_to_fetch)
        except (ValueError, jsonschema_rs.ValidationError) as error:
            raise ArgumentError(f"the tool's own schema is not valid: {error}", reason=str(error)) from None


def _integral(value: Any, schema: Any) -> Any:
    """Return the value with integers for floats like 3.0, wherever the schema declares an integer and no number."""
    if isinstance(value, float) and value.is_integer():
        kinds = _kinds(schema)
        return int(value) if "integer" in kinds and "number" not in kinds else value
    if not isinstance(schema, Mapping) or not isinstance(value, list | dict):
        return value
    for choice in (choice for key in ("anyOf", "oneOf") for choice in schema.get(key, ())):
        value = _integral(value, choice)
    if isinstance(value, list):
        first = schema.get("prefixItems") or ()
        parts = chain(first, repeat(schema.get("items"), max(0, len(value) - len(first))))
        return [_integral(item, part) for item, part in zip(value, parts, strict=False)]
    properties, others = schema.get("properties") or {}, schema.get("additionalProperties")
    return {key: _integral(item, properties.get(key, others)) for key, item in value.items()}


def _kinds(schema: Any) -> set[str]:
    """Return the types that a piece of schema declares."""
    if not isinstance(schema, Mapping):
        return set()
    own = schema.get("type", [])
    kinds = {own} if isinstance(own, str) else set(own)
    choices = (choice for key in ("anyOf", "oneOf") for choice in schema.get(key, ()))
    return kinds.union(*map(_kinds, choices))


def _refuse_to_fetch(uri: str) -> Any:
    raise ValueError(f"a schema may not refer to another document: {uri}")


# --- from a function -----------------------------------------------------------------------------------------------


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The parameters with their types; the context is filled in by the bus and is no parameter of the tool."""
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError:  # an annotation that only type checkers can resolve
        signature = inspect.signature(function)
    kept = [parameter for parameter in signature.parameters.values() if not takes_context(parameter)]
    for parameter in kept:
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise TypeError(f"a tool cannot take *{parameter.name}: name its arguments, or take a list")
    return signature.replace(parameters=kept)


def takes_context(parameter: inspect.Parameter) -> bool:
    return parameter.annotation in {ToolContext, "ToolContext"} if _hashable(parameter.annotation) else False


def _hashable(value: object) -> bool:
    return type(value).__hash__ is not None


def _of_signature(signature: inspect.Signature, docstring: str | None) -> JSON:
    described = docstring_arguments(docstring)
    properties: JSON = {}
    required: list[str] = []
    schema: JSON = {"type": "object", "properties": properties, "additionalProperties": False}
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            schema["additionalProperties"] = True
        else:
            part = properties[name] = dict(of_type(parameter.annotation))
            if described.get(name):
                part["description"] = described[name]
            if parameter.default is parameter.empty:
                required.append(name)
            elif is_data(parameter.default):
                part["default"] = parameter.default
    return {**schema, "required": required} if required else schema


def _keyword_only(signature: inspect.Signature) -> frozenset[str]:
    return frozenset(name for name, each in signature.parameters.items() if each.kind is each.KEYWORD_ONLY)


def of_type(annotation: Any) -> JSON:
    """The schema of a type; pydantic knows all but the simplest, and is asked only for those."""
    if _hashable(annotation) and annotation in PLAIN_TYPES:
        return PLAIN_TYPES[annotation]
    if isinstance(annotation, str):
        return {}
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

    try:
        return TypeAdapter(annotation).json_schema()
    except (PydanticSchemaGenerationError, PydanticUserError):
        return {}


def is_data(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_data(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(is_data, value))
    return value is None or isinstance(value, str | int | float | bool)


# --- from source that is not run ---------------------------------------------------------------------------------


def _definition(source: str, function: str) -> ast.FunctionDef | ast.AsyncFunctionDef:
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function:
            return node
    raise LookupError(f"there is no function {function!r} in the source")


def signature_of_definition(node: ast.FunctionDef | ast.AsyncFunctionDef) -> inspect.Signature:
    """What `inspect.signature` would say of the function, had it been defined."""
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    padding: list[ast.expr | None] = [None] * (len(positional) - len(given.defaults))
    kinds = inspect.Parameter
    groups = [
        (kinds.POSITIONAL_OR_KEYWORD, zip(positional, [*padding, *given.defaults], strict=True)),
        (kinds.KEYWORD_ONLY, zip(given.kwonlyargs, given.kw_defaults, strict=True)),
        (kinds.VAR_KEYWORD, [(given.kwarg, None)] if given.kwarg else []),
    ]
    if given.vararg:
        raise TypeError(f"a tool cannot take *{given.vararg.arg}: name its arguments, or take a list")
    parameters = [_parameter(argument, default, kind) for kind, pairs in groups for argument, default in pairs]
    return inspect.Signature([parameter for parameter in parameters if not takes_context(parameter)])


def _parameter(argument: ast.arg, default: ast.expr | None, kind: Any) -> inspect.Parameter:
    annotation = inspect.Parameter.empty if argument.annotation is None else type_from_source(argument.annotation)
    value = inspect.Parameter.empty if default is None else _literal(default)
    return inspect.Parameter(argument.arg, kind, annotation=annotation, default=value)


def _literal(node: ast.expr) -> Any:
    """A default that is written out; any other is known to exist, and that is all."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return NotImplemented


def type_from_source(node: ast.expr) -> Any:
    """The type that an annotation names, from a list of types that are known to be harmless; Any for the rest."""
    try:
        return _evaluate(node)
    except (KeyError, TypeError, ValueError, SyntaxError, RecursionError):
        return Any


def _evaluate(node: ast.expr) -> Any:  # noqa: PLR0911 - one case a line
    match node:
        case ast.Constant(value=None):
            return None
        case ast.Constant(value=str(text)):
            return _evaluate(ast.parse(text, mode="eval").body)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return _known_types()[name]
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _evaluate(left) | _evaluate(right)
        case ast.Subscript(value=ast.Name(id="Literal") | ast.Attribute(attr="Literal"), slice=inner):
            return _known_types()["Literal"][ast.literal_eval(inner)]
        case ast.Subscript(value=ast.Name(id="Annotated") | ast.Attribute(attr="Annotated"), slice=ast.Tuple() as both):
            return _evaluate(both.elts[0])
        case ast.Subscript(value=generic, slice=ast.Tuple(elts=parts)):
            return _evaluate(generic)[tuple(_evaluate(part) for part in parts)]
        case ast.Subscript(value=generic, slice=part):
            return _evaluate(generic)[_evaluate(part)]
        case ast.Constant(value=value) if value is Ellipsis:
            return Ellipsis
    raise TypeError(ast.unparse(node))


@functools.cache
def _known_types() -> dict[str, Any]:
    import collections.abc
    import datetime as dt
    import decimal
    import pathlib
    import typing
    import uuid

    builtin = {
        kind.__name__: kind for kind in (str, int, float, bool, bytes, list, dict, tuple, set, frozenset, object)
    }
    from_typing = {
        name: getattr(typing, name) for name in ("Any", "Optional", "Union", "Literal", "List", "Dict", "Tuple", "Set")
    }
    abstract = {
        name: getattr(collections.abc, name) for name in ("Sequence", "Mapping", "Iterable", "Set", "MutableMapping")
    }
    others = {
        kind.__name__: kind
        for kind in (
            dt.date,
            dt.datetime,
            dt.time,
            decimal.Decimal,
            pathlib.Path,
            uuid.UUID,
            ToolContext,
        )
    }
    return {**builtin, **abstract, **from_typing, **others}
