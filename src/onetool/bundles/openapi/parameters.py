"""Parameters of an operation as entries of a request: in the path, the query, headers and cookies, in each style.

A list is repeated or joined, as its style wants it. An object becomes one argument for each of its properties, or one
argument where its keys are not known. What has no form that a template could give it is left out, and told.
"""

from collections.abc import Callable, Mapping
from typing import Any

from onetool.bundles.openapi.document import as_mapping, as_text
from onetool.bundles.openapi.keywords import JSON
from onetool.bundles.openapi.references import References
from onetool.bundles.openapi.request import Request, encoded, literal
from onetool.bundles.openapi.schemas import Schemas
from onetool.bundles.rules import invalid

# What the sender writes itself, or what the document says elsewhere. OpenAPI tells to ignore the first three.
_NOT_TAKEN = {"accept", "content-type", "authorization", "host", "content-length", "transfer-encoding", "connection"}
_NOT_TAKEN |= {"upgrade", "te", "trailer", "expect", "keep-alive", "accept-encoding"}
_SEPARATORS = {"spaceDelimited": "ssv", "pipeDelimited": "pipes", "tabDelimited": "tsv"}
_SCALARS = {"string", "number", "integer", "boolean"}
_DEEPEST = 3


class Parameter:
    """One parameter with its schema translated."""

    def __init__(self, given: Mapping[str, Any], schemas: Schemas, references: References) -> None:
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
    """Documents like to show a list as the text that is sent."""
    if kinds - {"null"} != {"array"} or "examples" not in schema:
        return schema
    kept = [example for example in schema["examples"] if isinstance(example, list)]
    rest = {key: value for key, value in schema.items() if key != "examples"}
    return {**rest, "examples": kept} if kept else rest


class Parameters:
    """Writes parameters into one request."""

    def __init__(self, request: Request, schemas: Schemas) -> None:
        self._request, self._schemas = request, schemas

    def add(self, parameter: Parameter) -> None:
        writers: Mapping[str, Callable[[Parameter], None]] = {
            "query": self._query, "header": self._header, "cookie": self._cookie
        }  # fmt: skip
        if parameter.place not in writers:
            raise invalid(f"the parameter {parameter.name[:60]!r} stands in {parameter.place[:60]!r}")
        if parameter.is_taken:
            writers[parameter.place](parameter)

    def path(self, parameter: Parameter) -> str:
        """The template that stands in its place."""
        prefix = {"label": ".", "matrix": f";{encoded(parameter.name)}="}.get(parameter.style, "")
        if not (parameter.is_flat or parameter.is_json):
            raise invalid(f"{parameter.name[:60]!r}, which is an object or a list of lists, cannot stand in a path")
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
            self._leave_out(parameter, "a list of objects or lists has no form in a query")
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
            self._leave_out(parameter, "an object whose keys are not known beforehand has no form in a query")
            return
        found: dict[str, str] = {}
        entries = Entries(self._request, self._schemas, "query", found)
        entries.add_members("" if parameter.style == "form" else parameter.name, *members, required=parameter.required)
        self._request.query |= {literal(name): value for name, value in found.items()}

    # --- headers and cookies ---------------------------------------------------------------------------------------

    def _header(self, parameter: Parameter) -> None:
        if not (parameter.is_flat or parameter.is_json):
            self._leave_out(parameter, "an object or a list of lists has no form in a header")
        elif parameter.name.lower() not in map(str.lower, self._request.headers):
            self._request.headers[literal(parameter.name)] = self._one_value(parameter)

    def _cookie(self, parameter: Parameter) -> None:
        """All cookies are one header, which is there or not: an optional one would take the others along."""
        if parameter.kinds & {"object", "array"} or (self._request.cookies and not parameter.required):
            self._leave_out(parameter, "a second optional cookie, a list and an object have no form here")
            return
        self._request.cookies.append(f"{literal(parameter.name)}={self._plain(parameter)}")

    # --- values ----------------------------------------------------------------------------------------------------

    def _one_value(self, parameter: Parameter) -> str:
        """A placeholder that is filled with one text, also where the parameter is a list."""
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
            raise invalid(f"it needs the parameter {parameter.name[:60]!r}: {reason}")
        self._request.leave_out(f"the parameter {parameter.name[:60]!r} is left out: {reason}")


class Entries:
    """Properties of an object as entries of a query or a form: `name[key]`, or `key` where there is no name."""

    def __init__(self, request: Request, schemas: Schemas, place: str, entries: dict[str, str]) -> None:
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
        reason = f"the field {name[:60]!r} is left out: a list of objects has no form there"
        if required:
            raise invalid(reason.replace("is left out", "is needed"))
        self._request.leave_out(reason)


def json_text(schema: JSON) -> JSON:
    """The value as JSON in a text."""
    told = schema.get("description", "")
    return {"type": "string", "contentMediaType": "application/json", "description": f"{told} As JSON text.".strip()}


def separator(style: str) -> str:
    return _SEPARATORS.get(style, "csv")


def joined(placeholder: str, by: str) -> str:
    """The placeholder of a list that becomes one text."""
    return f"${{{by}:{placeholder.removeprefix('${')}"
