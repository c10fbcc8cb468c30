"""Conversion of parameters in the path, the query, headers and cookies to entries of a request.

A list is repeated or joined, depending on its style. An object becomes one argument per property, or one argument if
its keys are not known. Parameters that a template cannot express are omitted and reported.
"""

from collections.abc import Callable, Mapping
from typing import Any

from onetool.bundles.openapi.document import as_mapping, as_text
from onetool.bundles.openapi.keywords import JSON
from onetool.bundles.openapi.references import References
from onetool.bundles.openapi.request import RequestBuilder, encoded, literal
from onetool.bundles.openapi.schemas import SchemaTranslator
from onetool.bundles.rules import invalid

# Headers that are set elsewhere. OpenAPI requires ignoring the first three.
_NOT_TAKEN = {"accept", "content-type", "authorization", "host", "content-length", "transfer-encoding", "connection"}
_NOT_TAKEN |= {"upgrade", "te", "trailer", "expect", "keep-alive", "accept-encoding"}
_SEPARATORS = {"spaceDelimited": "ssv", "pipeDelimited": "pipes", "tabDelimited": "tsv"}
_SCALARS = {"string", "number", "integer", "boolean"}
_DEEPEST = 3


class Parameter:
    """A parameter with its translated schema."""

    def __init__(self, given: Mapping[str, Any], schemas: SchemaTranslator, references: References) -> None:
        self.name, self.place = as_text(given.get("name")), as_text(given.get("in"))
        self.required = given.get("required") is True or self.place == "path"
        self.description = given.get("description", "")
        self.is_json, schema = _schema_of(given, references)
        self.schema = schemas.of(schema)
        if isinstance(given.get("example"), str | int | float):
            self.schema = {**self.schema, "examples": [given["example"]]}
        self.kinds = schemas.kinds(self.schema)
        self.schema = _with_fitting_examples(self.schema, self.kinds)
        item = schemas.kinds(self.schema.get("items") or {})
        self.is_flat = "object" not in self.kinds and ("array" not in self.kinds or not item or bool(item & _SCALARS))
        self.style = as_text(given.get("style")) or ("form" if self.place in {"query", "cookie"} else "simple")
        self.explode = given.get("explode", self.style in {"form", "deepObject"}) is True

    @property
    def is_taken(self) -> bool:
        return bool(self.name) and not (self.place == "header" and self.name.lower() in _NOT_TAKEN)


def _schema_of(given: Mapping[str, Any], references: References) -> tuple[bool, Any]:
    content = as_mapping(given.get("content"))
    if not content:
        return False, given.get("schema", {})
    kind, media = next(iter(content.items()))
    return "json" in kind, as_mapping(references.follow(media)).get("schema", {})


def _with_fitting_examples(schema: JSON, kinds: set[str]) -> JSON:
    """Convert examples of a list that are written as the text that is sent."""
    if kinds - {"null"} != {"array"} or "examples" not in schema:
        return schema
    kept = [example for example in schema["examples"] if isinstance(example, list)]
    rest = {key: value for key, value in schema.items() if key != "examples"}
    return {**rest, "examples": kept} if kept else rest


class Parameters:
    """Writes parameters to one request."""

    def __init__(self, request: RequestBuilder, schemas: SchemaTranslator) -> None:
        self._request, self._schemas = request, schemas

    def add(self, parameter: Parameter) -> None:
        writers: Mapping[str, Callable[[Parameter], None]] = {
            "query": self._query, "header": self._header, "cookie": self._cookie
        }  # fmt: skip
        if parameter.place not in writers:
            raise invalid(f"parameter {parameter.name[:60]!r}: unsupported location {parameter.place[:60]!r}")
        if parameter.is_taken:
            writers[parameter.place](parameter)

    def path(self, parameter: Parameter) -> str:
        """Return the template of a path parameter."""
        prefix = {"label": ".", "matrix": f";{encoded(parameter.name)}="}.get(parameter.style, "")
        if not (parameter.is_flat or parameter.is_json):
            raise invalid(f"path parameter {parameter.name[:60]!r}: objects and lists of lists are not supported")
        return f"{prefix}{self._one_value(parameter)}"

    # --- the query -------------------------------------------------------------------------------------------------

    def _query(self, parameter: Parameter) -> None:
        if parameter.is_json or not parameter.kinds & {"object", "array"}:
            self._request.query[literal(parameter.name)] = self._one_value(parameter)
        elif "object" in parameter.kinds:
            self._query_object(parameter)
        else:
            self._query_list(parameter)

    def _query_list(self, parameter: Parameter) -> None:
        if not parameter.is_flat:
            self._leave_out(parameter, "lists of objects or lists are not supported in a query")
        elif parameter.style == "deepObject":
            self._request.query[literal(f"{parameter.name}[]")] = self._plain(parameter)
        elif parameter.explode:
            self._request.query[literal(parameter.name)] = self._plain(parameter)
        else:
            self._request.query[literal(parameter.name)] = self._one_value(parameter)

    def _query_object(self, parameter: Parameter) -> None:
        members = self._schemas.members(parameter.schema)
        if members is None and parameter.style == "deepObject":
            self._request.query[literal(parameter.name)] = self._plain(parameter)
            return
        if members is None or not (parameter.explode or parameter.style == "deepObject"):
            self._leave_out(parameter, "objects with unknown keys are not supported in a query")
            return
        found: dict[str, str] = {}
        entries = Entries(self._request, self._schemas, "query", found)
        entries.add_members("" if parameter.style == "form" else parameter.name, *members, required=parameter.required)
        self._request.query |= {literal(name): value for name, value in found.items()}

    # --- headers and cookies ---------------------------------------------------------------------------------------

    def _header(self, parameter: Parameter) -> None:
        if not (parameter.is_flat or parameter.is_json):
            self._leave_out(parameter, "objects and lists of lists are not supported in a header")
        elif parameter.name.lower() not in map(str.lower, self._request.headers):
            self._request.headers[literal(parameter.name)] = self._one_value(parameter)

    def _cookie(self, parameter: Parameter) -> None:
        """Add a cookie. All cookies share one header, so that an omitted optional cookie would remove the others."""
        if parameter.kinds & {"object", "array"} or (self._request.cookies and not parameter.required):
            self._leave_out(parameter, "lists, objects and a second optional cookie are not supported")
            return
        self._request.cookies.append(f"{literal(parameter.name)}={self._plain(parameter)}")

    # --- values ----------------------------------------------------------------------------------------------------

    def _one_value(self, parameter: Parameter) -> str:
        """Return a placeholder for a single text, even if the parameter is a list."""
        if parameter.is_json and parameter.kinds - {"string"}:
            parameter.schema = json_text(parameter.schema)
        elif "array" in parameter.kinds:
            return joined(self._plain(parameter), separator(parameter.style))
        return self._plain(parameter)

    def _plain(self, parameter: Parameter) -> str:
        required, text = parameter.required, parameter.description
        return self._request.argument(
            parameter.name, parameter.place, parameter.schema, required=required, description=text
        )

    def _leave_out(self, parameter: Parameter, reason: str) -> None:
        if parameter.required:
            raise invalid(f"required parameter {parameter.name[:60]!r}: {reason}")
        self._request.leave_out(f"the parameter {parameter.name[:60]!r} is omitted: {reason}")


class Entries:
    """Properties of an object as entries of a query or a form: `name[key]`, or `key` without a name."""

    def __init__(self, request: RequestBuilder, schemas: SchemaTranslator, place: str, entries: dict[str, str]) -> None:
        self._request, self._schemas, self._place, self._entries = request, schemas, place, entries

    def add_members(self, name: str, members: JSON, needed: list[str], *, required: bool, depth: int = 1) -> None:
        for key, schema in members.items():
            full = f"{name}[{key}]" if name else key
            self.add(full, schema, required=required and key in needed, depth=depth)

    def add(self, name: str, schema: JSON, *, required: bool, depth: int = 0) -> None:
        kinds = self._schemas.kinds(schema)
        members = self._schemas.members(schema) if "object" in kinds else None
        if members is not None and depth < _DEEPEST:
            self.add_members(name, *members, required=required, depth=depth + 1)
        elif "object" in self._schemas.kinds(schema.get("items") or {}):
            self._leave_out(name, required=required)
        elif "object" in kinds:
            self._entries[name] = self._request.argument(name, self._place, schema, required=required)
        else:
            key = f"{name}[]" if "array" in kinds and not name.endswith("[]") else name
            self._entries[key] = self._request.argument(name, self._place, schema, required=required)

    def _leave_out(self, name: str, *, required: bool) -> None:
        reason = "lists of objects are not supported"
        if required:
            raise invalid(f"required field {name[:60]!r}: {reason}")
        self._request.leave_out(f"the field {name[:60]!r} is omitted: {reason}")


def json_text(schema: JSON) -> JSON:
    """Return the schema of a string that contains the value as JSON."""
    description = schema.get("description", "")
    return {
        "type": "string",
        "contentMediaType": "application/json",
        "description": f"{description} As JSON text.".strip(),
    }


def separator(style: str) -> str:
    return _SEPARATORS.get(style, "csv")


def joined(placeholder: str, by: str) -> str:
    """Return the placeholder of a list that is joined to one text."""
    return f"${{{by}:{placeholder.removeprefix('${')}"
