"""Types of annotations in source code that is parsed but never executed.

Classes of the source (enums, dataclasses, attrs classes, typed dictionaries, named tuples, pydantic
models) are rebuilt from their syntax trees, so that pydantic can make their schemas. An annotation
that cannot be resolved is `Any`.
"""

import ast
import enum
import inspect
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, ForwardRef, Literal, Union

from onetool.core.functions import (
    CONTEXT_NAMES,
    MISSING,
    UNKNOWN,
    Field,
    FunctionNode,
    Lineage,
    Scope,
    Values,
    get_default,
    is_total,
    read_assignments,
    read_config,
    read_options,
    select_field_options,
    strip_underscores,
    takes_context,
)
from onetool.util.context import ToolContext, is_data

MAX_STEPS = 1_000  # names and classes that one annotation may lead to
MAX_MEMBERS = 1_000  # fields of a class, members of an enum, values of a literal
ENUMS = {"Enum", "IntEnum", "StrEnum"}
DATACLASSES = {"dataclass", "pydantic_dataclass"}
ATTRS = {"define", "frozen", "mutable"}  # decorators of attrs
MIXINS = {"str", "int", "float", "object", "ABC", "Generic", "ReprEnum"}
WRAPPERS = {"Required", "NotRequired", "ReadOnly", "Final", "InitVar"}
NOT_FIELDS = {"ClassVar", "KW_ONLY"}
CONSTRAINED = {"conint": int, "confloat": float, "constr": str}
CONSTRAINTS = {
    **{name: name.lower() for name in ("Gt", "Ge", "Lt", "Le")},
    "MultipleOf": "multiple_of",
    "MinLen": "min_length",
    "MaxLen": "max_length",
    "Doc": "description",
}
PYDANTIC_TYPES = (
    "PositiveInt", "NegativeInt", "NonNegativeInt", "NonPositiveInt", "PositiveFloat", "NegativeFloat",
    "NonNegativeFloat", "NonPositiveFloat", "StrictStr", "StrictInt", "StrictFloat", "StrictBool", "AnyUrl",
    "HttpUrl", "AnyHttpUrl", "SecretStr", "FilePath", "DirectoryPath", "AwareDatetime", "FutureDate", "PastDate",
)  # fmt: skip


class Resolver:
    """Resolves the annotation and default of one parameter in a limited number of steps."""

    def __init__(self) -> None:
        self._steps = MAX_STEPS
        self._models: list[Any] = []
        # classes that refer to themselves, by the name of the reference
        self._references: Values = {}
        self._is_in_model = False

    def resolve(self, annotation: ast.expr, scope: Scope) -> Any:
        """Return the type of an annotation, or `Any`."""
        try:
            kind = self._evaluate(annotation, scope)
            if self._references:
                for model in self._models:
                    model.model_rebuild(raise_errors=False, _types_namespace=self._references)
        except Exception:  # noqa: BLE001 - pydantic and typing reject hostile annotations with many kinds of errors
            return Any
        return kind

    def annotate(self, kind: Any, metadata: Iterable[ast.expr], scope: Scope) -> Any:
        """Return the type with constraints and description from metadata such as `Field`."""
        from pydantic import Field

        options: Values = {}
        for constraint in metadata:
            match constraint:
                case ast.Constant(value=str(text)):
                    options["description"] = text
                case ast.Call(args=[first, *_]) if scope.name(constraint) in CONSTRAINTS:
                    options[CONSTRAINTS[scope.name(constraint)]] = ast.literal_eval(first)
                case ast.Call(args=bounds) if scope.name(constraint) == "Len":
                    options |= dict(
                        zip(
                            ("min_length", "max_length"),
                            map(ast.literal_eval, bounds),
                            strict=False,
                        )
                    )
                case ast.Call() if scope.name(constraint) in {
                    "Field",
                    "StringConstraints",
                    "Interval",
                }:
                    options |= select_field_options(read_options(constraint))
        return Annotated[kind, Field(**options)] if options else kind

    def evaluate_default(self, node: ast.expr, scope: Scope) -> Any:
        """Return the value of a default that is a literal or enum member, else `UNKNOWN`."""
        with suppress(ValueError, TypeError, RecursionError, MemoryError):
            return ast.literal_eval(node)
        if isinstance(node, ast.Attribute) and scope.find(node.value):
            member = getattr(self.resolve(node.value, scope), node.attr, None)
            return getattr(member, "value", UNKNOWN)
        return UNKNOWN

    def _take_step(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise ValueError("the annotation is too complex")

    def _evaluate(self, node: ast.expr, scope: Scope) -> Any:  # noqa: PLR0911 - one case per line
        self._take_step()
        match node:  # `Union` accepts forward references, `|` does not
            case ast.Constant(value=None):
                return None
            case ast.Constant(value=value) if value is Ellipsis:
                return Ellipsis
            case ast.Constant(value=str(text)):
                return self._evaluate(ast.parse(text, mode="eval").body, scope)
            case ast.Name() | ast.Attribute():
                definition = scope.find(node)
                return (
                    self._evaluate_definition(*definition)
                    if definition
                    else self._find_known(scope.name(node))
                )
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return Union[self._evaluate(left, scope), self._evaluate(right, scope)]  # noqa: UP007
            case ast.Subscript(value=generic, slice=inner):
                return self._evaluate_generic(generic, inner, scope)
            case ast.Call(args=[_, inner]) if scope.name(node) == "NewType":
                return self._evaluate(inner, scope)
            case ast.Call(args=[_, ast.Dict() as fields]) if scope.name(node) == "TypedDict":
                return self._build_typed_dict(node, fields, scope)
            case ast.Call() if scope.name(node) in CONSTRAINED:
                field = ast.Call(ast.Name("Field"), [], node.keywords)
                return self.annotate(CONSTRAINED[scope.name(node)], [field], scope)
        raise TypeError(ast.unparse(node))

    def _evaluate_generic(self, generic: ast.expr, inner: ast.expr, scope: Scope) -> Any:
        parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        name = "" if scope.find(generic) else scope.name(generic)
        match name:
            case "Literal":
                if len(parts) > MAX_MEMBERS:
                    raise ValueError("too many values")
                return Literal[tuple(self._evaluate_literal(part, scope) for part in parts)]
            case "Annotated":
                return self.annotate(self._evaluate(parts[0], scope), parts[1:], scope)
            case "Optional":
                return Union[self._evaluate(inner, scope), None]  # noqa: UP007
            case "Union":
                return Union[tuple(self._evaluate(part, scope) for part in parts)]  # noqa: UP007
            case _ if name in WRAPPERS:
                return self._evaluate(inner, scope)
        kind = self._evaluate(generic, scope)
        arguments = tuple(self._evaluate(part, scope) for part in parts)
        return kind[arguments if isinstance(inner, ast.Tuple) else arguments[0]]

    def _evaluate_literal(self, node: ast.expr, scope: Scope) -> Any:
        value = self.evaluate_default(node, scope)
        if value is UNKNOWN:
            raise TypeError(ast.unparse(node))
        return value

    def _find_known(self, name: str) -> Any:
        if name == "bytes" and self._is_in_model:
            return bytes  # pydantic encodes strings, the others are base64
        return _known_types()[name] if name in _known_types() else _pydantic_types()[name]

    def _evaluate_definition(self, name: str, scope: Scope) -> Any:
        if name in scope.types:
            return scope.types[name]
        definition = scope.definitions[name]
        # An alias that refers to itself is `Any` inside. It is evaluated at each use, so that its
        # size counts.
        reference = ForwardRef(f"{name}_{self._steps}")
        scope.types[name] = reference if isinstance(definition, ast.ClassDef) else Any
        try:
            if not isinstance(definition, ast.ClassDef):
                return self._evaluate(definition, scope)
            kind = self._references[reference.__forward_arg__] = self._build_class(
                name, definition, scope
            )
        finally:
            del scope.types[name]
        scope.types[name] = kind
        return kind

    # --- classes ----------------------------------------------------------------------------------

    def _build_class(self, name: str, node: ast.ClassDef, scope: Scope) -> Any:
        lineage, bases = self._trace(node, scope)
        docstring = ast.get_docstring(node)
        if (
            unknown := bases
            - MIXINS
            - ENUMS
            - {"BaseModel", "RootModel", "TypedDict", "NamedTuple"}
        ):
            raise TypeError(f"unknown base classes: {unknown}")
        if bases & ENUMS:
            kind: Any = enum.Enum(name, self._read_members(lineage, is_text="StrEnum" in bases))  # type: ignore[misc]
            kind.__doc__ = docstring
            return kind
        if "RootModel" in bases:
            root = [
                base
                for ancestor, _ in lineage
                for base in ancestor.bases
                if isinstance(base, ast.Subscript)
            ]
            return self._evaluate(root[0].slice, scope)
        fields = self._read_fields(lineage)
        if "NamedTuple" in bases:
            return self._build_named_tuple(name, fields)
        if "BaseModel" in bases:
            return self._build_model(name, docstring, fields, **read_config(lineage))
        if "TypedDict" in bases:
            return self._build_model(name, docstring, fields)
        decorators = {scope.name(decorator) for decorator in node.decorator_list}
        if not decorators & (DATACLASSES | ATTRS):
            raise TypeError(f"unknown kind of class: {name}")
        rename = strip_underscores if decorators & ATTRS else str
        return self._build_model(name, docstring, fields, extra="forbid", rename=rename)

    def _trace(self, node: ast.ClassDef, scope: Scope) -> tuple[Lineage, set[str]]:
        """Return the base classes in the source, the class itself last, and the other bases."""
        self._take_step()
        lineage: Lineage = []
        others: set[str] = set()
        for base in reversed(node.bases):
            name, owner = scope.find(base) or ("", scope)
            definition = owner.definitions.get(name)
            if isinstance(definition, ast.ClassDef):
                inherited, names = self._trace(definition, owner)
                lineage = [*lineage, *inherited]
                others = others | names
            else:
                others.add(scope.name(base))
        return [*lineage, (node, scope)], others

    def _read_members(self, lineage: Lineage, *, is_text: bool) -> list[tuple[str, Any]]:
        """Return enum members with their values, or names if a value is not plain data."""
        members: Values = {}
        for name, value, scope in read_assignments(lineage):
            if isinstance(value, ast.Call) and scope.name(value) == "auto":
                last = max(
                    (number for number in members.values() if isinstance(number, int)), default=0
                )
                members[name] = name.lower() if is_text else last + 1
            else:
                members[name] = self.evaluate_default(value, scope)
        if not 0 < len(members) <= MAX_MEMBERS:
            raise ValueError("too many or no members")
        is_plain = all(isinstance(value, str | int | float) for value in members.values())
        return list(members.items()) if is_plain else [(name, name) for name in members]

    def _read_fields(self, lineage: Lineage) -> dict[str, Field]:
        fields: dict[str, Field] = {}
        for node, scope in lineage:
            all_required = is_total(node.keywords)
            for statement in node.body:
                match statement:
                    case ast.AnnAssign(
                        target=ast.Name(id=name), annotation=annotation, value=default
                    ):
                        if scope.name(annotation) not in NOT_FIELDS:
                            fields[name] = Field(annotation, default, scope, all_required)
        if len(fields) > MAX_MEMBERS:
            raise ValueError("too many fields")
        return fields

    def _build_typed_dict(self, node: ast.Call, entries: ast.Dict, scope: Scope) -> Any:
        pairs = zip(entries.keys, entries.values, strict=True)
        all_required = is_total(node.keywords)
        fields = {
            ast.literal_eval(key): Field(value, None, scope, all_required)
            for key, value in pairs
            if key
        }
        return self._build_model(str(ast.literal_eval(node.args[0])), None, fields)

    def _build_named_tuple(self, name: str, fields: Mapping[str, Field]) -> Any:
        defaults = [self._read_default(field)[0] for field in fields.values()]
        optional = [
            default if is_data(default) else None for default in defaults if default is not MISSING
        ]
        kind: Any = namedtuple(name, fields, defaults=optional)  # type: ignore[misc]  # noqa: PYI024 - names are computed
        kind.__annotations__ = {key: self._resolve_field(field) for key, field in fields.items()}
        return kind

    def _build_model(
        self,
        name: str,
        docstring: str | None,
        fields: Mapping[str, Field],
        *,
        extra: Any = None,
        rename: Callable[[str], str] = str,
        is_pydantic: bool = False,
    ) -> Any:
        """Return a model with the schema of the class.

        Fields have numbers, because a model reserves some names.
        """
        from pydantic import ConfigDict, Field, create_model

        outer = self._is_in_model
        self._is_in_model = self._is_in_model or is_pydantic
        made: Values = {}
        for number, (key, field) in enumerate(fields.items()):
            default, options = self._read_default(field)
            if options.get("init") is False or (is_pydantic and key.startswith("_")):
                continue
            alias = options.get("validation_alias", options.get("alias", rename(key)))
            info = select_field_options(options)
            if is_data(default):
                info["default"] = default
            elif default is not MISSING:
                info["default_factory"] = list  # the field is optional
            made[f"f{number}"] = self._resolve_field(field), Field(alias=str(alias), **info)
        self._is_in_model = outer
        model: Any = create_model(
            name, __config__=ConfigDict(extra=extra), __doc__=docstring, **made
        )
        self._models.append(model)
        return model

    def _resolve_field(self, field: Field) -> Any:
        """Return the type of a field; `Any` if it cannot be resolved."""
        try:
            return self._evaluate(field.annotation, field.scope)
        except Exception:  # noqa: BLE001 - see `resolve`
            return Any

    def _read_default(self, field: Field) -> tuple[Any, Values]:
        """Return the default of a field and the options of its `Field(...)`."""
        if isinstance(field.default, ast.Call) and field.scope.name(field.default) in {
            "Field",
            "field",
        }:
            options = read_options(field.default)
            return get_default(options), options
        if field.default is not None:
            return self.evaluate_default(field.default, field.scope), {}
        annotation = field.annotation
        name = field.scope.name(field.annotation)
        while name in {"Annotated", "ReadOnly"} and isinstance(annotation, ast.Subscript):
            inner = annotation.slice
            annotation = inner.elts[0] if isinstance(inner, ast.Tuple) else inner
            name = field.scope.name(annotation)
        return (
            MISSING if name == "Required" or (field.is_total and name != "NotRequired") else UNKNOWN
        ), {}


@cache
def _known_types() -> Values:
    import collections.abc
    import datetime as dt
    import decimal
    import pathlib
    import typing
    import uuid

    builtin = (str, int, float, bool, list, dict, tuple, set, frozenset, object)
    others = (dt.date, dt.datetime, dt.time, decimal.Decimal, pathlib.Path, uuid.UUID, ToolContext)
    abstract = (
        "Sequence",
        "MutableSequence",
        "Collection",
        "Iterable",
        "Mapping",
        "MutableMapping",
        "Set",
    )
    from_typing = ("Any", "List", "Dict", "Tuple", "Set", "FrozenSet")
    return {
        **{kind.__name__: kind for kind in (*builtin, *others)},
        **{name: getattr(collections.abc, name) for name in abstract},
        **{name: getattr(typing, name) for name in from_typing},
        "Context": ToolContext,
        "LiteralString": str,
        "PurePath": pathlib.Path,
        "AbstractSet": collections.abc.Set,
    }


@cache
def _pydantic_types() -> Values:
    """Return types of pydantic, and types with other schemas than pydantic has for them."""
    import datetime as dt

    import pydantic

    encoded = pydantic.WithJsonSchema({"type": "string", "contentEncoding": "base64"})
    duration = pydantic.WithJsonSchema({"type": ["string", "number"], "format": "duration"})
    return {
        **{name: getattr(pydantic, name) for name in PYDANTIC_TYPES},
        "EmailStr": Annotated[str, pydantic.WithJsonSchema({"type": "string", "format": "email"})],
        "bytes": Annotated[bytes, encoded],
        "bytearray": Annotated[bytes, encoded],
        "timedelta": Annotated[dt.timedelta, duration],
    }


# --- signatures -----------------------------------------------------------------------------------


def parse_signature(node: FunctionNode, scope: Scope | None = None) -> inspect.Signature:
    """Return the signature of a function definition without executing it."""
    parameters = [
        _build_parameter(*parameter, scope or Scope()) for parameter in list_parameters(node)
    ]
    return inspect.Signature(
        [parameter for parameter in parameters if not takes_context(parameter)]
    )


def list_parameters(node: FunctionNode) -> list[tuple[ast.arg, ast.expr | None, Any]]:
    args = node.args
    kinds = inspect.Parameter
    padding: list[ast.expr | None] = [None] * (
        len(args.posonlyargs) + len(args.args) - len(args.defaults)
    )
    defaults = [*padding, *args.defaults]
    positional: list[tuple[ast.arg, Any]] = [
        (argument, kinds.POSITIONAL_ONLY) for argument in args.posonlyargs
    ]
    positional += [(argument, kinds.POSITIONAL_OR_KEYWORD) for argument in args.args]
    return [
        *(
            (argument, default, kind)
            for (argument, kind), default in zip(positional, defaults, strict=True)
        ),
        *([(args.vararg, None, kinds.VAR_POSITIONAL)] if args.vararg else []),
        *(
            (argument, default, kinds.KEYWORD_ONLY)
            for argument, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
        ),
        *([(args.kwarg, None, kinds.VAR_KEYWORD)] if args.kwarg else []),
    ]


def _build_parameter(
    argument: ast.arg, default: ast.expr | None, kind: Any, scope: Scope
) -> inspect.Parameter:
    empty = inspect.Parameter.empty
    resolver = Resolver()
    annotation = (
        empty if argument.annotation is None else resolver.resolve(argument.annotation, scope)
    )
    value: Any = empty
    if isinstance(default, ast.Call) and scope.name(default) == "Field":  # as in FastMCP
        annotation = resolver.annotate(annotation, [default], scope)
        value = get_default(read_options(default))
    elif default is not None:
        value = resolver.evaluate_default(default, scope)
    return inspect.Parameter(
        argument.arg, kind, annotation=annotation, default=empty if value is MISSING else value
    )


def list_parameter_names(node: FunctionNode) -> list[str]:
    """Return the names of the arguments of a tool, without resolving types."""
    names = []
    for argument, _, _ in list_parameters(node):
        annotation = ast.unparse(argument.annotation) if argument.annotation else ""
        if annotation.rpartition(".")[2] not in CONTEXT_NAMES:
            names.append(argument.arg)
    return names
