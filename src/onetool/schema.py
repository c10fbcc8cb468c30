"""JSON Schemas for the input and output of tools, and validation of values.

A schema comes from a function (signature and docstring), from JSON, or from source code that is not executed. The
schema of a function and the validator are created at first use, so that large catalogs cost nothing at startup.
"""

import ast
import functools
import inspect
from collections.abc import Callable, Mapping
from itertools import chain, repeat
from math import isfinite
from typing import Any, Final, Self

from onetool.context import Context, ToolContext
from onetool.errors import ArgumentError
from onetool.util.docstring import arguments as docstring_arguments

JSON = dict[str, Any]
MAX_PROBLEM_CHARS = 1_000  # characters of a validation message
VAGUE_TYPES: Final = ("Any", "object", "bytes")
CONTEXT_NAMES: Final = frozenset({"Context", "ToolContext", "Context | None", "Optional[Context]"})
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
    """A JSON Schema with its validator."""

    def __init__(self, make: Callable[[], JSON], keyword_only: Callable[[], frozenset[str]] = frozenset) -> None:
        self._make, self._keyword_only = make, keyword_only

    @classmethod
    def from_json(cls, schema: Mapping[str, Any]) -> Self:
        return cls(lambda: dict(schema))

    @classmethod
    def from_callable(cls, function: Callable[..., Any]) -> Self:
        return cls(
            lambda: _schema_from_signature(get_signature(function), inspect.getdoc(function)),
            lambda: _keyword_only(get_signature(function)),
        )

    @classmethod
    def from_source(cls, source: str, function: str) -> Self:
        """Create a schema from the source of a module, which is parsed but not executed."""
        return cls(
            lambda: _schema_from_signature(
                parse_signature(node := _find_definition(source, function)), ast.get_docstring(node)
            ),
            lambda: _keyword_only(parse_signature(_find_definition(source, function))),
        )

    @functools.cached_property
    def json(self) -> JSON:
        return self._make()

    @functools.cached_property
    def properties(self) -> Mapping[str, JSON]:
        """The schema of each argument; boolean schemas become empty ones."""
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
        """Whether additional arguments are accepted."""
        return self.json.get("additionalProperties", True) is not False

    @functools.cached_property
    def defaults(self) -> Mapping[str, Any]:
        return {name: part["default"] for name, part in self.properties.items() if "default" in part}

    def problem(self, value: Any) -> str | None:
        """Return the first problem with the value, or None."""
        found = self._mismatch(value)
        return found[0] if found else None

    def _mismatch(self, value: Any) -> tuple[str, list[str | int], str] | None:
        """Return the first problem as text, its path in the value, and the text without the path."""
        error = next(self._validator.iter_errors(value), None)
        if error is None:
            return None
        path = [part if isinstance(part, int) else part[:MAX_PROBLEM_CHARS] for part in error.instance_path]
        where = "".join(f"[{part!r}]" if isinstance(part, int) else f".{part}" for part in path)
        message = str(error.message)
        if len(message) > MAX_PROBLEM_CHARS:  # it quotes a long value in the middle; the end says what is wrong
            message = f"{message[: MAX_PROBLEM_CHARS // 2]}...{message[-MAX_PROBLEM_CHARS // 2 :]}"
        return f"{where.lstrip('.')}: {message}" if where else message, path, message

    def check(self, args: JSON) -> JSON:
        """Return the valid arguments, with floats such as 3.0 converted to declared integers; raise otherwise."""
        try:
            if not self._validator.is_valid(args):
                mismatch = "the arguments do not match the schema"
                text, path, reason = self._mismatch(args) or (mismatch, [], mismatch)
                raise ArgumentError(text, path=path, reason=reason)
        except ValueError as error:  # an unpaired surrogate, or hundreds of levels
            raise ArgumentError(f"cannot validate the arguments: {error}") from None
        for name, part in self._integer_properties.items():
            if name in args:
                args[name] = _convert_integers(args[name], part)
        return args

    @functools.cached_property
    def _integer_properties(self) -> Mapping[str, JSON]:
        return {name: part for name, part in self.properties.items() if "'integer'" in str(part)}

    @functools.cached_property
    def _validator(self) -> Any:
        import jsonschema_rs

        try:
            return jsonschema_rs.validator_for(self.json, retriever=_reject_reference)
        except (ValueError, jsonschema_rs.ValidationError) as error:
            raise ArgumentError(f"invalid schema of the tool: {error}", reason=str(error)) from None


def _convert_integers(value: Any, schema: Any) -> Any:
    """Return the value with integral floats such as 3.0 as integers where the schema declares only integers."""
    if isinstance(value, float) and value.is_integer():
        kinds = _kinds(schema)
        return int(value) if "integer" in kinds and "number" not in kinds else value
    if not isinstance(schema, Mapping) or not isinstance(value, list | dict):
        return value
    for choice in (choice for key in ("anyOf", "oneOf") for choice in schema.get(key, ())):
        value = _convert_integers(value, choice)
    if isinstance(value, list):
        first = schema.get("prefixItems") or ()
        parts = chain(first, repeat(schema.get("items"), max(0, len(value) - len(first))))
        return [_convert_integers(item, part) for item, part in zip(value, parts, strict=False)]
    properties, others = schema.get("properties") or {}, schema.get("additionalProperties")
    return {key: _convert_integers(item, properties.get(key, others)) for key, item in value.items()}


def _kinds(schema: Any) -> set[str]:
    """Return the types that a piece of schema declares."""
    if not isinstance(schema, Mapping):
        return set()
    declared = schema.get("type", [])
    kinds = {declared} if isinstance(declared, str) else set(declared)
    choices = (choice for key in ("anyOf", "oneOf") for choice in schema.get(key, ()))
    return kinds.union(*map(_kinds, choices))


def _reject_reference(uri: str) -> Any:
    raise ValueError(f"references to other documents are not supported: {uri}")


# --- from a function -----------------------------------------------------------------------------------------------


def get_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a tool without the context parameter, which the bus fills in."""
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError:  # an annotation that only type checkers can resolve
        signature = inspect.signature(function)
    parameters = [parameter for parameter in signature.parameters.values() if not takes_context(parameter)]
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise TypeError(f"a tool cannot take *{parameter.name}: name its arguments, or take a list")
    return signature.replace(parameters=parameters)


def takes_context(parameter: inspect.Parameter) -> bool:
    """Return whether the parameter is annotated `Context` or `ToolContext`, also as optional."""
    return any(map(_is_context, (parameter.annotation, *getattr(parameter.annotation, "__args__", ()))))


def _is_context(annotation: Any) -> bool:
    if isinstance(annotation, type):
        return issubclass(annotation, Context)
    return annotation in CONTEXT_NAMES if isinstance(annotation, str) else False


def _is_hashable(value: object) -> bool:
    return type(value).__hash__ is not None


def _schema_from_signature(signature: inspect.Signature, docstring: str | None) -> JSON:
    descriptions = docstring_arguments(docstring)
    properties: JSON = {}
    required: list[str] = []
    schema: JSON = {"type": "object", "properties": properties, "additionalProperties": False}
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            schema["additionalProperties"] = True
        else:
            part = properties[name] = dict(schema_for_type(parameter.annotation))
            if descriptions.get(name):
                part["description"] = descriptions[name]
            if parameter.default is parameter.empty:
                required.append(name)
            elif is_data(parameter.default):
                part["default"] = parameter.default
    return {**schema, "required": required} if required else schema


def _keyword_only(signature: inspect.Signature) -> frozenset[str]:
    return frozenset(name for name, each in signature.parameters.items() if each.kind is each.KEYWORD_ONLY)


def schema_for_type(annotation: Any) -> JSON:
    """Return the schema of a type. Pydantic is loaded only for types that are not plain."""
    if _is_hashable(annotation) and annotation in PLAIN_TYPES:
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


# --- from source code --------------------------------------------------------------------------------------------


def _find_definition(source: str, function: str) -> ast.FunctionDef | ast.AsyncFunctionDef:
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function:
            return node
    raise LookupError(f"function {function!r} not found in the source")


def parse_signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> inspect.Signature:
    """Return the signature of a function definition without executing it."""
    args = node.args
    positional = [*args.posonlyargs, *args.args]
    padding: list[ast.expr | None] = [None] * (len(positional) - len(args.defaults))
    kinds = inspect.Parameter
    groups = [
        (kinds.POSITIONAL_OR_KEYWORD, zip(positional, [*padding, *args.defaults], strict=True)),
        (kinds.KEYWORD_ONLY, zip(args.kwonlyargs, args.kw_defaults, strict=True)),
        (kinds.VAR_KEYWORD, [(args.kwarg, None)] if args.kwarg else []),
    ]
    if args.vararg:
        raise TypeError(f"a tool cannot take *{args.vararg.arg}: name its arguments, or take a list")
    parameters = [_build_parameter(argument, default, kind) for kind, pairs in groups for argument, default in pairs]
    return inspect.Signature([parameter for parameter in parameters if not takes_context(parameter)])


def _build_parameter(argument: ast.arg, default: ast.expr | None, kind: Any) -> inspect.Parameter:
    annotation = inspect.Parameter.empty if argument.annotation is None else type_from_source(argument.annotation)
    value = inspect.Parameter.empty if default is None else _evaluate_literal(default)
    return inspect.Parameter(argument.arg, kind, annotation=annotation, default=value)


def _evaluate_literal(node: ast.expr) -> Any:
    """Return a literal default; `NotImplemented` for any other expression."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return NotImplemented


def type_from_source(node: ast.expr) -> Any:
    """Return the type of an annotation if it is in the list of known types, else `Any`."""
    try:
        return _evaluate(node)
    except (KeyError, TypeError, ValueError, SyntaxError, RecursionError):
        return Any


def make_output_schema(returns: ast.expr | None) -> Schema | None:
    """Return the schema of a return annotation; None if it does not say what is returned, or if that may be media."""
    kind = Any if returns is None else type_from_source(returns)
    is_vague = kind in {None, list, dict, tuple, set, frozenset} or any(word in str(kind) for word in VAGUE_TYPES)
    return None if is_vague else _ReturnSchema(lambda: schema_for_type(kind))


class _ReturnSchema(Schema):
    """The schema of a return annotation. NaN and infinity are numbers for it, which JSON Schema does not know."""

    def problem(self, value: Any) -> str | None:
        found = super().problem(value)
        return found and super().problem(_replace_non_finite(value))


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_non_finite(item) for item in value]
    return 0.0 if isinstance(value, float) and not isfinite(value) else value


def _evaluate(node: ast.expr) -> Any:  # noqa: PLR0911 - one case per line
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
            Context,
            ToolContext,
        )
    }
    return {**builtin, **abstract, **from_typing, **others}
