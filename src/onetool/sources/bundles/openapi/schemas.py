"""Translation of schemas to JSON Schema 2020-12, without external references and with limited size.

Swagger 2 and OpenAPI 3.0 schemas are converted. Keywords that validators do not know are omitted,
so that a schema is too permissive rather than wrong. Definitions are translated once and shared by
all tools; if a tool would need too many of them, the most distant ones accept any value. Keywords
with values of the wrong type are omitted too.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import Any

from onetool.core.foreign_schema import is_linear
from onetool.errors import BundleError
from onetool.sources.bundles.openapi.document import (
    MAX_DETAIL_LENGTH,
    References,
    UniqueNames,
    as_list,
    as_mapping,
    get_reference,
    shorten,
)
from onetool.util.context import is_data
from onetool.util.sanitize import clean
from onetool_child.json_types import JsonMapping, JsonObject

MAX_VALUE_CHARS = 300  # characters of an example or a default
MAX_CHOICES = 500
_TYPE_ALIASES = {
    "file": "string",
    "int": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
}
# Values have exactly these types, so that `bool` is not an integer.
_PYTHON_TYPES: Mapping[str, set[type]] = {
    "string": {str},
    "number": {int, float},
    "integer": {int},
    "boolean": {bool},
    "array": {list},
    "object": {dict},
    "null": {type(None)},
}
_NUMBER_KEYWORDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_COUNT_KEYWORDS = {"minLength", "maxLength", "minItems", "maxItems", "minContains", "maxContains"}
_COUNT_KEYWORDS |= {"minProperties", "maxProperties"}
_TEXT_KEYWORDS = {"format", "contentEncoding", "contentMediaType"}
_TEXT_PATTERN = re.compile(r"[\w./+-]{1,60}")
SCHEMA_KEYWORDS = {"not", "contains", "propertyNames", "if", "then", "else", "additionalProperties"}
LIST_KEYWORDS = {"allOf", "anyOf", "oneOf", "prefixItems"}
MAP_KEYWORDS = {"properties", "patternProperties", "dependentSchemas"}
SUBSCHEMA_KEYWORDS = SCHEMA_KEYWORDS | LIST_KEYWORDS | MAP_KEYWORDS | {"items"}
_ANNOTATION_KEYWORDS = {"title", "description", "default", "examples", "deprecated"}
MAX_NODES = 1_500  # of one schema, and of all definitions of one tool
MAX_WORK = 4_000_000  # nodes, for a whole document; the largest known one needs half of it
MAX_BRANCHES = 200


def translate_simple_keywords(schema: JsonObject) -> Iterator[tuple[str, Any]]:
    yield "type", _convert_type(schema.get("type"))
    yield "format", "binary" if schema.get("type") == "file" else None
    for key in ("title", "description"):
        yield key, shorten(schema.get(key), MAX_DETAIL_LENGTH) or None
    yield "enum", _collect_choices(schema.get("enum"))
    yield "examples", _collect_examples(schema)
    if "const" in schema:
        yield "enum", [schema["const"]]
    if "default" in schema and is_short(schema["default"]):
        yield "default", schema["default"]
    for key, value in schema.items():
        if _is_simple(key, value):
            yield key, value


def _is_simple(key: str, value: Any) -> bool:
    if isinstance(value, str):
        if key == "pattern":
            return is_linear(value)
        return key in _TEXT_KEYWORDS and _TEXT_PATTERN.fullmatch(value) is not None
    if isinstance(value, bool):
        return key == "uniqueItems" or (key == "deprecated" and value)
    if not isinstance(value, int | float) or not isfinite(value):
        return False
    if key in _COUNT_KEYWORDS:
        return value >= 0 and value == int(value)
    return key in _NUMBER_KEYWORDS or (key == "multipleOf" and value > 0)


def _convert_type(value: Any) -> Any:
    if isinstance(value, list):
        return [kind for kind in dict.fromkeys(map(str, value)) if kind in _PYTHON_TYPES] or None
    kind = _TYPE_ALIASES.get(value, value) if isinstance(value, str) else None
    return kind if kind in _PYTHON_TYPES else None


def _collect_choices(value: Any) -> list[Any] | None:
    choices: list[Any] = []
    for choice in as_list(value)[:MAX_CHOICES]:
        if not any(choice == other and type(choice) is type(other) for other in choices):
            choices.append(choice)
    return choices if choices and len(as_list(value)) <= MAX_CHOICES else None


def _collect_examples(schema: JsonObject) -> list[Any] | None:
    examples = schema.get("examples")
    if not isinstance(examples, list):
        examples = [schema.get("example")]
    shown = [example for example in examples if example is not None and is_short(example)]
    return shown[:2] or None


def is_short(value: Any) -> bool:
    """Return whether models can see a value: it is short, and needs no sanitizing."""
    return is_data(value) and len(text := str(value)) <= MAX_VALUE_CHARS and clean(text) == text


def list_strings(value: Any) -> list[str]:
    return list(dict.fromkeys(name for name in as_list(value) if isinstance(name, str)))


def normalize(parts: JsonObject, schema: JsonObject) -> JsonObject:
    """Normalize all keywords of a schema together."""
    parts = _convert_exclusive_bounds(parts, schema)
    parts = _drop_conflicting_type(parts)
    parts = _unwrap_single_all_of(parts)
    return apply_nullable(parts, schema)


# --- older versions -------------------------------------------------------------------------------


def _convert_exclusive_bounds(parts: JsonObject, schema: JsonObject) -> JsonObject:
    """Convert the old form `exclusiveMinimum: true` with a `minimum`."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if schema.get(exclusive) is True and bound in parts:
            parts[exclusive] = parts.pop(bound)
    return parts


def apply_nullable(parts: JsonObject, schema: JsonObject) -> JsonObject:
    if schema.get("nullable") is not True and schema.get("x-nullable") is not True:
        return parts
    if "enum" in parts and None not in parts["enum"]:
        parts = {**parts, "enum": [*parts["enum"], None]}
    kind = parts.get("type")
    if kind is not None:
        kinds = [kind] if isinstance(kind, str) else kind
        return {**parts, "type": [*(name for name in kinds if name != "null"), "null"]}
    if not parts.keys() & (SUBSCHEMA_KEYWORDS | {"$ref"}):
        return parts
    annotations = {key: value for key, value in parts.items() if key in _ANNOTATION_KEYWORDS}
    return {
        "anyOf": [{key: parts[key] for key in parts if key not in annotations}, {"type": "null"}],
        **annotations,
    }


def _drop_conflicting_type(parts: JsonObject) -> JsonObject:
    """Drop a type that forbids all values of `enum`."""
    kinds = parts.get("type")
    if kinds and "enum" in parts:
        choice_types = set(map(type, parts["enum"]))
        listed = [kinds] if isinstance(kinds, str) else kinds
        if all(choice_types.isdisjoint(_PYTHON_TYPES[kind]) for kind in listed):
            del parts["type"]
    return parts


def _unwrap_single_all_of(parts: JsonObject) -> JsonObject:
    """Unwrap `allOf` of one schema, which was used to add annotations to a reference."""
    if len(parts.get("allOf", ())) != 1 or parts.keys() - _ANNOTATION_KEYWORDS - {"allOf"}:
        return parts
    return {**parts["allOf"][0], **{key: value for key, value in parts.items() if key != "allOf"}}


class SchemaTranslator:
    def __init__(self, references: References) -> None:
        self.references = references
        self._used_names = UniqueNames("_")
        self._names: dict[str, str] = {}  # names of definitions by reference
        self._targets: dict[str, JsonObject] = {}
        self._definitions: dict[str, JsonObject] = {}
        self._node_counts: dict[str, int] = {}
        self.unresolved: set[str] = set()
        self._budget_left = MAX_WORK
        self._nodes_left = 0  # of the schema that is being translated

    def translate(self, schema: Any) -> JsonObject:
        """Return the translated schema with a resolved top level.

        Inner references point to `$defs`.
        """
        target = self.references.follow(schema)
        if target is schema or not isinstance(target, dict):
            return self._translate_root(target)
        overrides = {key: schema[key] for key in ("description", "nullable") if key in schema}
        if overrides:
            return self._translate_root({**target, **overrides})
        return self._get_definition(self._claim_name(schema["$ref"], target))

    def collect_definitions(self, schemas: Iterable[Any]) -> JsonObject:
        """Return all definitions to which these schemas refer, the nearest first."""
        definitions: JsonObject = {}
        budget = MAX_NODES
        roots = list(schemas)
        self.spend(sum(1 for schema in roots for _ in _iterate_nodes(schema)))
        names = [name for schema in roots for name in self._find_definition_names(schema)]
        while names:
            next_names: list[str] = []
            for name in (name for name in dict.fromkeys(names) if name not in definitions):
                definition = self._get_definition(name)
                budget -= self._node_counts[name]
                self.spend(1 + max(0, min(budget, self._node_counts[name])))
                definitions[name] = definition if budget >= 0 else _summarize(definition)
                next_names += self._find_definition_names(definitions[name])
            names = next_names
        return definitions

    def resolve(self, schema: JsonObject) -> JsonObject:
        """Resolve a translated schema that is only a reference to a definition."""
        name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
        return self._get_definition(name) if name in self._targets else schema

    def find_types(self, schema: JsonObject) -> set[str]:
        """Return the declared types of a translated schema."""
        return {kind for part in self.list_branches(schema) for kind in _get_declared_types(part)}

    def find_members(self, schema: JsonObject) -> tuple[JsonObject, list[str]] | None:
        """Return properties and required names of the first object among the alternatives."""
        objects = (part for part in self.list_branches(schema) if part.get("properties"))
        return next(((part["properties"], part.get("required", [])) for part in objects), None)

    def list_branches(
        self, schema: JsonObject, keys: Iterable[str] = ("anyOf", "oneOf", "allOf")
    ) -> list[JsonObject]:
        """Return the schema and the subschemas of these keywords, each once, up to a limit."""
        branches: list[JsonObject] = []
        seen: set[int] = set()
        pending = [schema]
        while pending and len(branches) < MAX_BRANCHES:
            part = self.resolve(pending.pop(0))
            if id(part) not in seen:
                seen.add(id(part))
                branches.append(part)
                pending += [branch for key in keys for branch in part.get(key, ())][:MAX_BRANCHES]
        return branches

    def _get_definition(self, name: str) -> JsonObject:
        if name not in self._definitions:
            self._definitions[name] = self._translate_root(self._targets[name])
            self._node_counts[name] = sum(1 for _ in _iterate_nodes(self._definitions[name]))
        return self._definitions[name]

    def _find_definition_names(self, schema: Any) -> list[str]:
        references = (node.get("$ref") for node in _iterate_nodes(schema))
        links = (
            link for link in references if isinstance(link, str) and link.startswith("#/$defs/")
        )
        return [name for link in links if (name := link.removeprefix("#/$defs/")) in self._targets]

    def spend(self, nodes: int) -> None:
        self._budget_left -= nodes
        if self._budget_left < 0:
            raise BundleError(
                "the document is too large: its references expand to too many schemas",
                code="too_large",
                details={},
            )

    # --- references -------------------------------------------------------------------------------

    def _translate_reference(self, schema: JsonMapping) -> JsonObject:
        reference = schema["$ref"]
        try:
            target = self.references.follow(schema)
        except BundleError:
            self.unresolved.add(reference)  # at the top of an argument it is rejected
            return {}
        if not isinstance(target, dict) or not SUBSCHEMA_KEYWORDS & target.keys():
            return self._translate(target)
        description = shorten(schema.get("description"), MAX_DETAIL_LENGTH)
        link: JsonObject = {"$ref": f"#/$defs/{self._claim_name(reference, target)}"}
        return {**link, "description": description} if description else link

    def _claim_name(self, reference: str, target: JsonObject) -> str:
        """Return a definition name without translating it: chains may be too deep to recurse."""
        if reference not in self._names:
            basename = reference.rpartition("/")[2].replace("~1", "_").replace("~0", "_")
            clean_name = "".join(
                c if c.isascii() and (c.isalnum() or c in "_.-") else "_" for c in basename
            )
            name = self._names[reference] = self._used_names.claim(clean_name[:60] or "value")
            self._targets[name] = target
        return self._names[reference]

    # --- translation ------------------------------------------------------------------------------

    def _translate_root(self, schema: Any) -> JsonObject:
        """Translate a schema. What is beyond its limit accepts any value."""
        self._nodes_left = MAX_NODES
        return self._translate(schema)

    def _translate(self, schema: Any) -> JsonObject:
        if schema is False:
            return {"not": {}}
        self._nodes_left -= isinstance(schema, dict)
        if not isinstance(schema, dict) or self._nodes_left < 0:
            return {}
        self.spend(1)
        if get_reference(schema) is not None:
            return apply_nullable(self._translate_reference(schema), schema)
        parts = {key: part for key, part in self._translate_keywords(schema) if part is not None}
        return normalize(parts, schema)

    def _translate_keywords(self, schema: JsonObject) -> Iterator[tuple[str, Any]]:
        yield from translate_simple_keywords(schema)
        for key in [key for key in schema if key in SUBSCHEMA_KEYWORDS]:
            # With a discriminator, one branch is meant even if several match.
            is_choice = key == "oneOf" and "discriminator" in schema and "anyOf" not in schema
            yield from self._translate_subschemas("anyOf" if is_choice else key, schema[key])
        properties = as_mapping(schema.get("properties"))
        names = list_strings(schema.get("required"))
        writable = [name for name in names if not self._is_read_only(properties.get(name))]
        yield "required", writable or None

    def _translate_subschemas(self, key: str, value: Any) -> Iterator[tuple[str, Any]]:
        if key in MAP_KEYWORDS and isinstance(value, dict):
            yield key, self._translate_members(key, value)
        elif key in LIST_KEYWORDS and isinstance(value, list) and value:
            yield key, [*map(self._translate, value)]
        elif key == "items" and isinstance(value, list):  # the form of drafts before 2020-12
            yield "prefixItems", [*map(self._translate, value)] or None
        elif key in SCHEMA_KEYWORDS | {"items"} and isinstance(value, dict | bool):
            # Only `additionalProperties` and the like stay booleans; `items` is always a mapping.
            stays = isinstance(value, bool) and key != "items"
            yield key, value if stays else self._translate(value)

    def _translate_members(self, key: str, members: JsonObject) -> JsonObject:
        """Translate the writable members; those that are read-only are omitted."""
        translated = {}
        for name, part in members.items():
            is_valid = key != "patternProperties" or is_linear(name)
            if is_valid and not self._is_read_only(part):
                translated[name] = self._translate(part)
        return translated

    def _is_read_only(self, schema: Any) -> bool:
        try:
            targets = (self.references.follow(schema), schema)
        except BundleError:
            return False
        return any(as_mapping(target).get("readOnly") is True for target in targets)


def _get_declared_types(schema: JsonObject) -> set[str]:
    declared = schema.get("type")
    if declared is None:
        return {
            kind for key, kind in (("properties", "object"), ("items", "array")) if key in schema
        }
    return {declared} if isinstance(declared, str) else set(declared)


# --- walking --------------------------------------------------------------------------------------


def _iterate_nodes(schema: Any) -> Iterator[JsonObject]:
    """Yield all subschemas, including some mappings that are not schemas, which is harmless."""
    pending = [schema]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            yield node
            pending += node.values()
        elif isinstance(node, list):
            pending += node


def _summarize(definition: JsonObject) -> JsonObject:
    return {key: definition[key] for key in ("type", "description") if key in definition}
