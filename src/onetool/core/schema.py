"""JSON Schemas for the input and output of tools, and validation of values.

A schema comes from a function (signature and docstring), from JSON, or from source code that is not
executed. The schema of a function and the validator are created at first use, so that large
catalogs cost nothing at startup.
"""

import ast
import copy
import inspect
import json
from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import islice
from typing import Any, NoReturn, Self

from onetool.core.functions import (
    FunctionNode,
    Scope,
    arguments as docstring_arguments,
    get_signature,
)
from onetool.core.schema_work import (
    MAX_CHOICES,
    MAX_PROBLEM_CHARS,
    REFERENCES,
    choose_alternative,
    convert_integers,
    expands_too_far,
    find_conversions,
    get_alternatives,
    is_expensive,
    reject_reference,
    resolve_reference,
    shorten,
)
from onetool.core.source_types import Resolver, parse_signature
from onetool.errors import ArgumentError
from onetool.util.context import is_data
from onetool_child.data import as_data, replace_non_finite
from onetool_child.json_types import JsonMapping, JsonObject

VAGUE_TYPES = ("Any", "object", "bytes")
MAX_CONVERSIONS = 10_000  # strings converted to numbers in one call
# of a value by one schema, and of all values to find errors
MAX_CHECKS = 10_000
MAX_ERROR_CHECKS = 2_000
MAX_BACKTRACKS = 100_000  # of one pattern
UNCHECKED_FORMATS = {"regex": lambda _text: True}  # compiling the patterns in a value takes long
UNEXPLAINED = "the value does not match the schema"
DESCRIBED_KEYWORDS = {
    "format": "in the format",
    "minimum": ">=",
    "exclusiveMinimum": ">",
    "maximum": "<=",
    "exclusiveMaximum": "<",
    "minLength": "of length >=",
    "maxLength": "of length <=",
}
ANY_OBJECT: JsonObject = {"type": "object"}
PLAIN_TYPES: dict[Any, JsonObject] = {
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

    def __init__(
        self,
        make: Callable[[], JsonObject],
        get_signature: Callable[[], inspect.Signature] | None = None,
    ) -> None:
        self._make = make
        self._get_signature = get_signature or inspect.Signature

    @classmethod
    def from_json(cls, schema: JsonMapping) -> Self:
        return cls(lambda: dict(schema))

    @classmethod
    def from_callable(cls, function: Callable[..., Any]) -> Self:
        return cls(
            lambda: _schema_from_signature(get_signature(function), inspect.getdoc(function)),
            lambda: get_signature(function),
        )

    @classmethod
    def from_source(cls, source: str, function: str) -> Self:
        """Create a schema from the source of a module, which is parsed but not executed."""

        def make() -> JsonObject:
            definition = _find_definition(source, function)
            return _schema_from_signature(
                parse_signature(definition), ast.get_docstring(definition)
            )

        return cls(make, lambda: parse_signature(_find_definition(source, function)))

    @classmethod
    def from_definition(cls, definition: FunctionNode, scope: Scope) -> Self:
        """Create a schema from a function definition and its module scope, which are not kept."""
        signature = parse_signature(definition, scope)
        schema = _schema_from_signature(signature, ast.get_docstring(definition))
        plain = [
            parameter.replace(annotation=inspect.Parameter.empty)
            for parameter in signature.parameters.values()
        ]
        return cls(lambda: schema, lambda: inspect.Signature(plain))

    @cached_property
    def json(self) -> JsonObject:
        return self._make()

    @cached_property
    def properties(self) -> Mapping[str, JsonObject]:
        """The schema of each argument; boolean schemas become empty ones."""
        parts = self.json.get("properties", {}).items()
        return {name: part if isinstance(part, dict) else {} for name, part in parts}

    @cached_property
    def required(self) -> frozenset[str]:
        return frozenset(self.json.get("required", ()))

    @cached_property
    def _kinds(self) -> JsonMapping:
        return {
            name: parameter.kind for name, parameter in self._get_signature().parameters.items()
        }

    @cached_property
    def keyword_only(self) -> frozenset[str]:
        """The arguments that cannot be passed by position."""
        return frozenset(
            name for name, kind in self._kinds.items() if kind is inspect.Parameter.KEYWORD_ONLY
        )

    @cached_property
    def variadic(self) -> str | None:
        """The argument that collects further positional arguments, such as `*args`."""
        return next(
            (
                name
                for name, kind in self._kinds.items()
                if kind is inspect.Parameter.VAR_POSITIONAL
            ),
            None,
        )

    @cached_property
    def variadic_keywords(self) -> str | None:
        """The parameter for other named arguments, such as `**options`."""
        return next(
            (name for name, kind in self._kinds.items() if kind is inspect.Parameter.VAR_KEYWORD),
            None,
        )

    @property
    def open(self) -> bool:
        """Whether additional arguments are accepted."""
        return self.json.get("additionalProperties", True) is not False

    @cached_property
    def defaults(self) -> JsonMapping:
        return {
            name: part["default"] for name, part in self.properties.items() if "default" in part
        }

    def problem(self, value: Any) -> str | None:
        """Return the first problem with the value, or None."""
        mismatch = self._mismatch(value)
        return mismatch[0] if mismatch else None

    def _mismatch(self, value: Any) -> tuple[str, list[str | int], str] | None:
        """Return the first problem as text, its path in the value, and the text without the path."""
        if self._validator.is_valid(value):
            return None
        if self._has_alternatives and self._is_expensive(value):
            return UNEXPLAINED, [], UNEXPLAINED
        error = self._find_error(value)
        while (chosen := choose_alternative(error)) is not None:
            error = chosen
        path = [
            part if isinstance(part, int) else part[:MAX_PROBLEM_CHARS]
            for part in error.instance_path
        ]
        where = "".join(f"[{part!r}]" if isinstance(part, int) else f".{part}" for part in path)
        message = shorten(str(error.message))
        if get_alternatives(error):
            message = (
                f"{shorten(json.dumps(error.instance))} does not match: expected"
                f" {self._describe_choices(error)}"
            )
        return f"{where.lstrip('.')}: {message}" if where else message, path, message

    def _find_error(self, value: Any) -> Any:
        """Return the first error.

        Only alternatives are tried completely, because the error contains theirs.
        """
        import jsonschema_rs

        try:
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            return error
        raise AssertionError("the value is valid")

    def _describe_choices(self, error: Any) -> str:
        """Return the alternatives of a union, such as `integer, or string matching "^a"`."""
        choices: Any = self.json
        try:
            for step in error.schema_path:
                choices = choices[step]
            texts = dict.fromkeys(self._describe_choice(choice) for choice in choices[:MAX_CHOICES])
        except (LookupError, TypeError):  # the location is in another document of the validator
            return "another value"
        more = ["..."] if len(choices) > MAX_CHOICES else []
        return shorten(", or ".join([*texts, *more]))

    def _describe_choice(self, schema: Any) -> str:
        schema = resolve_reference(schema, self.json)
        if "enum" in schema or "const" in schema:
            values = list(schema.get("enum", [schema.get("const")]))
            return f"one of {shorten(', '.join(map(json.dumps, values[:MAX_CHOICES])))}"
        declared = schema.get("type", "another value")
        kind = declared if isinstance(declared, str) else " or ".join(map(str, declared))
        if schema.get("title") and kind == "object":
            kind = f"object {schema['title']}"
        rules = [
            f"{words} {schema[key]}" for key, words in DESCRIBED_KEYWORDS.items() if key in schema
        ]
        if "pattern" in schema:
            rules.append(f"matching {json.dumps(schema['pattern'])}")
        if kind == "array" and isinstance(schema.get("items"), Mapping):
            rules.append(
                f"of {resolve_reference(schema['items'], self.json).get('type', 'values')}"
            )
        return shorten(" ".join([kind, *rules]))

    def check(self, args: JsonObject, *, is_exact: bool = False) -> JsonObject:
        """Return the valid arguments; raise otherwise.

        Unless `is_exact` is set, numbers and booleans in strings are converted where the schema
        declares nothing else. Floats such as 3.0 become integers where it declares integers.
        """
        try:
            if self._validator.is_valid(args):
                return self.convert_integers(args)
            if is_exact:
                self._raise_mismatch(args)
            args = self._omit_none(args)
            if not self._validator.is_valid(args) and not self._validator.is_valid(
                self._convert_strings(args)
            ):
                self._raise_mismatch(args)
        except ValueError as error:  # an unpaired surrogate, or hundreds of levels
            raise ArgumentError(f"cannot validate the arguments: {error}") from None
        return self.convert_integers(args)

    def _raise_mismatch(self, args: JsonObject) -> NoReturn:
        text, path, reason = self._mismatch(args) or (UNEXPLAINED, [], UNEXPLAINED)
        raise ArgumentError(text, path=path, reason=reason)

    def _omit_none(self, args: JsonObject) -> JsonObject:
        """Return the arguments without None, which signatures show as the default."""
        optional = self.properties.keys() - self.required - self.defaults.keys()
        return {
            name: value for name, value in args.items() if value is not None or name not in optional
        }

    def convert_integers(self, args: JsonObject) -> JsonObject:
        for name, part in self._integer_properties.items():
            if name in args:
                args[name] = convert_integers(args[name], part, self.json)
        if isinstance(rest := self.json.get("additionalProperties"), dict):
            args |= {
                name: convert_integers(args[name], rest, self.json)
                for name in args.keys() - self.properties
            }
        return args

    def _convert_strings(self, args: JsonObject) -> JsonObject:
        """Convert strings such as "3" and "true" in place where another type is required."""
        copied: set[int] = set()
        if self._is_expensive(args):
            return args
        for error in islice(self._validator.iter_errors(args), MAX_CONVERSIONS):
            for path, value in find_conversions(error):
                parent: Any = args
                for step in path[:-1]:  # the containers belong to the caller
                    if id(parent[step]) not in copied:
                        parent[step] = copy.copy(parent[step])
                        copied.add(id(parent[step]))
                    parent = parent[step]
                parent[path[-1]] = value
        return args

    @cached_property
    def _integer_properties(self) -> Mapping[str, JsonObject]:
        if "'integer'" not in str(self.json):
            return {}
        parts = self.properties.items()
        return {
            name: part for name, part in parts if "'integer'" in str(part) or "'$ref'" in str(part)
        }

    @cached_property
    def _validator(self) -> Any:
        import jsonschema_rs

        text = str(self.json)
        has_references = any(f"'{name}'" in text for name in REFERENCES)
        if has_references and self._expands_too_far():
            reason = "its references cannot be resolved, or expand to too many schemas"
            raise ArgumentError(f"invalid schema of the tool: {reason}", reason=reason)
        try:
            return jsonschema_rs.validator_for(
                self._checked_json,
                retriever=reject_reference,
                pattern_options=self._make_pattern_options(),
                formats=UNCHECKED_FORMATS,
            )
        except (ValueError, jsonschema_rs.ValidationError) as error:
            raise ArgumentError(f"invalid schema of the tool: {error}", reason=str(error)) from None

    @property
    def _checked_json(self) -> JsonObject:
        """The part of the schema that the validator checks."""
        return self.json

    def _make_pattern_options(self) -> Any:
        import jsonschema_rs

        return jsonschema_rs.FancyRegexOptions(backtrack_limit=MAX_BACKTRACKS)

    @cached_property
    def _has_alternatives(self) -> bool:
        text = str(self.json)
        return any(f"'{name}'" in text for name in ("anyOf", "oneOf", *REFERENCES))

    def _expands_too_far(self) -> bool:
        return expands_too_far(self.json, MAX_CHECKS)

    def _is_expensive(self, value: Any) -> bool:
        """Return whether finding all errors of a value takes too long: each takes about 30 µs."""
        return is_expensive(self.json, value, MAX_ERROR_CHECKS)


# --- from a function ------------------------------------------------------------------------------


def _is_hashable(value: object) -> bool:
    return type(value).__hash__ is not None


def _schema_from_signature(signature: inspect.Signature, docstring: str | None) -> JsonObject:
    descriptions = docstring_arguments(docstring)
    parts, definitions = _describe_types(
        {name: declared.annotation for name, declared in signature.parameters.items()}
    )
    properties: JsonObject = {}
    schema: JsonObject = {"type": "object", "properties": properties, "additionalProperties": False}
    required: list[str] = []
    for name, parameter in signature.parameters.items():
        part = dict(parts[name])
        if parameter.kind is parameter.VAR_KEYWORD:
            schema["additionalProperties"] = part or True
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            part = {"type": "array", "items": part} if part else {"type": "array"}
        elif parameter.default is parameter.empty:
            required.append(name)
        elif is_data(parameter.default):
            part["default"] = parameter.default
        if descriptions.get(name) and "description" not in part:
            part["description"] = descriptions[name]
        properties[name] = part
    if required:
        schema["required"] = required
    return {**schema, "$defs": definitions} if definitions else schema


def schema_for_type(annotation: Any) -> JsonObject:
    """Return the schema of a type, with the classes it uses in `$defs`."""
    parts, definitions = _describe_types({"": annotation})
    return {**parts[""], "$defs": definitions} if definitions else parts[""]


def _describe_types(annotations: Mapping[str, Any]) -> tuple[dict[str, JsonObject], JsonObject]:
    """Return the schemas of types, and the definitions that they share.

    Pydantic is loaded only if types need it.
    """
    parts = {
        name: PLAIN_TYPES.get(annotation, {}) if _is_hashable(annotation) else {}
        for name, annotation in annotations.items()
    }
    rich = {
        name: annotation
        for name, annotation in annotations.items()
        if not _is_hashable(annotation) or annotation not in PLAIN_TYPES
    }
    if not any(not isinstance(annotation, str) for annotation in rich.values()):
        return parts, {}
    from onetool.util.pydantic_schema import describe_types

    described, definitions = describe_types(
        {name: annotation for name, annotation in rich.items() if not isinstance(annotation, str)}
    )
    return {**parts, **described}, definitions


# --- from source code -----------------------------------------------------------------------------


def _find_definition(source: str, function: str) -> FunctionNode:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, FunctionNode) and node.name == function:
            return node
    raise LookupError(f"function {function!r} not found in the source")


def make_output_schema(returns: ast.expr | None, scope: Scope | None = None) -> Schema | None:
    """Return the schema of a return annotation in source code; see `schema_of_returns`."""
    return (
        None
        if returns is None
        else schema_of_returns(Resolver().resolve(returns, scope or Scope()))
    )


def schema_of_returns(kind: Any) -> Schema | None:
    """Return the schema of a returned type; None if it is vague or may be media."""
    vague = (None, list, dict, tuple, set, frozenset, inspect.Signature.empty)
    is_vague = (
        isinstance(kind, str)
        or any(kind is vague_type for vague_type in vague)
        or any(word in str(kind) for word in VAGUE_TYPES)
    )
    return None if is_vague else _ReturnSchema(lambda: schema_for_type(kind))


class _ReturnSchema(Schema):
    """The schema of a return annotation, which checks objects as the data that callers receive.

    NaN and infinity are numbers for it, which JSON Schema does not know.
    """

    def problem(self, value: Any) -> str | None:
        if not self.json:
            return None
        try:
            mismatch = super().problem(value)
        except (TypeError, ValueError):  # it contains objects
            value = as_data(value)
            mismatch = super().problem(value)
        return mismatch and super().problem(replace_non_finite(value, 0.0))
