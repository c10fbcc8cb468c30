"""Translation of schemas to JSON Schema 2020-12, without external references and with limited size.

Swagger 2 and OpenAPI 3.0 schemas are converted. Keywords that validators do not know are omitted, so that a schema is
too permissive rather than wrong. Definitions are translated once and shared by all tools; if a tool would need too many
of them, the most distant ones accept any value.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from onetool.bundles.openapi.document import as_mapping
from onetool.bundles.openapi.keywords import (
    JSON,
    LISTS,
    MAPS,
    SCHEMAS,
    SUBSCHEMAS,
    compiles,
    finished,
    names_in,
    nullable,
    simple_parts,
)
from onetool.bundles.openapi.names import UniqueNames
from onetool.bundles.openapi.references import References, reference_of
from onetool.bundles.openapi.texts import MAX_DETAIL_LENGTH, shorten
from onetool.errors import BundleError

MAX_NODES: Final = 1_500  # of one schema, and of all definitions of one tool
MAX_WORK: Final = 4_000_000  # nodes, for a whole document; the largest known one needs half of it
MAX_BRANCHES: Final = 200


class SchemaTranslator:
    def __init__(self, references: References) -> None:
        self._references = references
        self._taken = UniqueNames("_")
        self.names_in: dict[str, str] = {}  # names of definitions by reference
        self._targets: dict[str, JSON] = {}
        self._definitions: dict[str, JSON] = {}
        self._weights: dict[str, int] = {}
        self.unresolved: set[str] = set()
        self._left = MAX_WORK

    def of(self, schema: Any) -> JSON:
        """Return the translated schema with a resolved top level. Inner references point to `$defs`."""
        found = self._references.follow(schema)
        if found is schema or not isinstance(found, dict):
            return self._translated(found, _Budget(MAX_NODES))
        own = {key: schema[key] for key in ("description", "nullable") if key in schema}
        if own:
            return self._translated({**found, **own}, _Budget(MAX_NODES))
        return self._definition(self._name(schema["$ref"], found))

    def definitions(self, schemas: Iterable[Any]) -> JSON:
        """Return all definitions to which these refer, the nearest first."""
        found: JSON = {}
        budget = MAX_NODES
        given = list(schemas)
        self.work(sum(1 for schema in given for _ in _nodes(schema)))
        wanted = [name for schema in given for name in self._referred(schema)]
        while wanted:
            further: list[str] = []
            for name in (name for name in dict.fromkeys(wanted) if name not in found):
                definition = self._definition(name)
                budget -= self._weights[name]
                self.work(1 + max(0, min(budget, self._weights[name])))
                found[name] = definition if budget >= 0 else _outline(definition)
                further += self._referred(found[name])
            wanted = further
        return found

    def linked(self, schema: JSON) -> JSON:
        """Resolve a translated schema that is only a reference to a definition."""
        name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
        return self._definition(name) if name in self._targets else schema

    def kinds(self, schema: JSON) -> set[str]:
        """Return the declared types of a translated schema."""
        return {kind for part in self.branches(schema) for kind in _own_kinds(part)}

    def members(self, schema: JSON) -> tuple[JSON, list[str]] | None:
        """Return properties and required names of an object, or of the first object among alternatives."""
        found = (part for part in self.branches(schema) if part.get("properties"))
        return next(((part["properties"], part.get("required", [])) for part in found), None)

    def branches(self, schema: JSON, keys: Iterable[str] = ("anyOf", "oneOf", "allOf")) -> list[JSON]:
        """Return the schema and the subschemas of these keywords, each once, up to a limit."""
        found: list[JSON] = []
        seen: set[int] = set()
        waiting = [schema]
        while waiting and len(found) < MAX_BRANCHES:
            part = self.linked(waiting.pop(0))
            if id(part) not in seen:
                seen.add(id(part))
                found.append(part)
                waiting += [branch for key in keys for branch in part.get(key, ())][:MAX_BRANCHES]
        return found

    def _definition(self, name: str) -> JSON:
        if name not in self._definitions:
            self._definitions[name] = self._translated(self._targets[name], _Budget(MAX_NODES))
            self._weights[name] = sum(1 for _ in _nodes(self._definitions[name]))
        return self._definitions[name]

    def _referred(self, schema: Any) -> list[str]:
        found = (node.get("$ref") for node in _nodes(schema))
        links = (link for link in found if isinstance(link, str) and link.startswith("#/$defs/"))
        return [name for link in links if (name := link.removeprefix("#/$defs/")) in self._targets]

    def work(self, nodes: int) -> None:
        self._left -= nodes
        if self._left < 0:
            raise BundleError("the document is too large when it is written out", code="too_large", details={})

    # --- references ------------------------------------------------------------------------------------------------

    def _reference(self, schema: Mapping[str, Any], budget: "_Budget") -> JSON:
        reference = schema["$ref"]
        try:
            target = self._references.follow(schema)
        except BundleError:
            self.unresolved.add(reference)  # inside a schema; at the top of an argument it is rejected
            return {}
        if not isinstance(target, dict) or not SUBSCHEMAS & target.keys():
            return self._translated(target, budget)
        described = shorten(schema.get("description"), MAX_DETAIL_LENGTH)
        link: JSON = {"$ref": f"#/$defs/{self._name(reference, target)}"}
        return {**link, "description": described} if described else link

    def _name(self, reference: str, target: JSON) -> str:
        """Return only the name: chains of definitions may exceed the recursion limit."""
        if reference not in self.names_in:
            last = reference.rpartition("/")[2].replace("~1", "_").replace("~0", "_")
            plain = "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "_" for c in last)
            name = self.names_in[reference] = self._taken.claim(plain[:60] or "value")
            self._targets[name] = target
        return self.names_in[reference]

    # --- translation -----------------------------------------------------------------------------------------------

    def _translated(self, schema: Any, budget: "_Budget") -> JSON:
        if schema is False:
            return {"not": {}}
        if not isinstance(schema, dict) or not budget.spend():
            return {}
        self.work(1)
        if reference_of(schema) is not None:
            return nullable(self._reference(schema, budget), schema)
        parts = {key: part for key, part in self._parts(schema, budget) if part is not None}
        return finished(parts, schema)

    def _parts(self, schema: JSON, budget: "_Budget") -> Iterator[tuple[str, Any]]:
        yield from simple_parts(schema)
        for key in [key for key in schema if key in SUBSCHEMAS]:
            # With a discriminator, one branch is meant even if several match.
            declared = "anyOf" if key == "oneOf" and "discriminator" in schema and "anyOf" not in schema else key
            yield from self._subschemas(declared, schema[key], budget)
        hidden = _hidden(schema, self._references)
        yield "required", [name for name in names_in(schema.get("required")) if name not in hidden] or None

    def _subschemas(self, key: str, value: Any, budget: "_Budget") -> Iterator[tuple[str, Any]]:
        if key in MAPS and isinstance(value, dict):
            yield key, self._members(key, value, budget)
        elif key in LISTS and isinstance(value, list) and value:
            yield key, [self._translated(item, budget) for item in value]
        elif key == "items" and isinstance(value, list):  # the form of drafts before 2020-12
            yield "prefixItems", [self._translated(item, budget) for item in value] or None
        elif key in SCHEMAS | {"items"} and isinstance(value, dict | bool):
            yield key, value if isinstance(value, bool) else self._translated(value, budget)

    def _members(self, key: str, members: JSON, budget: "_Budget") -> JSON:
        """Omit properties that are read-only."""
        shown = {name: part for name, part in members.items() if not is_read_only(part, self._references)}
        legal = shown if key != "patternProperties" else {name: part for name, part in shown.items() if compiles(name)}
        return {name: self._translated(part, budget) for name, part in legal.items()}


class _Budget:
    def __init__(self, nodes: int) -> None:
        self._left = nodes

    def spend(self) -> bool:
        self._left -= 1
        return self._left >= 0


def is_read_only(schema: Any, references: References) -> bool:
    try:
        return (
            as_mapping(references.follow(schema)).get("readOnly") is True or as_mapping(schema).get("readOnly") is True
        )
    except BundleError:
        return False


def _hidden(schema: JSON, references: References) -> set[str]:
    properties = as_mapping(schema.get("properties"))
    return {name for name in properties if is_read_only(properties[name], references)}


def _own_kinds(schema: JSON) -> set[str]:
    declared = schema.get("type")
    if declared is None:
        return {kind for key, kind in (("properties", "object"), ("items", "array")) if key in schema}
    return {declared} if isinstance(declared, str) else set(declared)


# --- walking -------------------------------------------------------------------------------------------------------


def _nodes(schema: Any) -> Iterator[JSON]:
    """Yield all subschemas, including some mappings that are not schemas, which is harmless."""
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def _outline(definition: JSON) -> JSON:
    return {key: definition[key] for key in ("type", "description") if key in definition}
