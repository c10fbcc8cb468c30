"""Conversion of parameters in the path, the query, headers and cookies to templates of a request.

A list is repeated or joined, depending on its style. An object becomes one argument per property,
or one argument if its keys are not known. Parameters that a template cannot express are omitted and
reported.
"""

from typing import Any

from onetool.sources.bundles.openapi.document import References, as_mapping, as_text
from onetool.sources.bundles.openapi.request import RequestBuilder, encode_path, escape_literal
from onetool.sources.bundles.openapi.schemas import SchemaTranslator
from onetool.sources.bundles.rules import invalid
from onetool.util.text import quote
from onetool_child.json_types import JsonMapping, JsonObject

# Headers that are set elsewhere. OpenAPI requires ignoring the first three.
_IGNORED_HEADERS = {
    "accept",
    "content-type",
    "authorization",
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
}
_IGNORED_HEADERS |= {"upgrade", "te", "trailer", "expect", "keep-alive", "accept-encoding"}
_SEPARATORS = {"spaceDelimited": "ssv", "pipeDelimited": "pipes", "tabDelimited": "tsv"}
_SCALARS = {"string", "number", "integer", "boolean"}
_MAX_DEPTH = 3


class Parameter:
    """A parameter with its translated schema."""

    def __init__(self, definition: JsonMapping, schemas: SchemaTranslator) -> None:
        self.name = as_text(definition.get("name"))
        self.location = as_text(definition.get("in"))
        self.required = definition.get("required") is True or self.location == "path"
        self.description = definition.get("description", "")
        self.is_json, schema = _find_schema(definition, schemas.references)
        self.schema = schemas.translate(schema)
        if isinstance(definition.get("example"), str | int | float):
            self.schema = {**self.schema, "examples": [definition["example"]]}
        self.types = schemas.find_types(self.schema)
        self.schema = _drop_string_examples(self.schema, self.types)
        item = schemas.find_types(self.schema.get("items") or {})
        self.is_flat = "object" not in self.types and (
            "array" not in self.types or not item or bool(item & _SCALARS)
        )
        self.style = as_text(definition.get("style")) or (
            "form" if self.location in {"query", "cookie"} else "simple"
        )
        self.explode = definition.get("explode", self.style in {"form", "deepObject"}) is True

    @property
    def is_argument(self) -> bool:
        return bool(self.name) and not (
            self.location == "header" and self.name.lower() in _IGNORED_HEADERS
        )


def _find_schema(definition: JsonMapping, references: References) -> tuple[bool, Any]:
    content = as_mapping(definition.get("content"))
    if not content:
        return False, definition.get("schema", {})
    kind, media = next(iter(content.items()))
    return "json" in kind, as_mapping(references.follow(media)).get("schema", {})


def _drop_string_examples(schema: JsonObject, types: set[str]) -> JsonObject:
    """Drop examples of a list that show the text to send instead of a list."""
    if types - {"null"} != {"array"} or "examples" not in schema:
        return schema
    lists = [example for example in schema["examples"] if isinstance(example, list)]
    rest = {key: value for key, value in schema.items() if key != "examples"}
    return {**rest, "examples": lists} if lists else rest


class ParameterWriter:
    """A writer that adds parameters to a request."""

    def __init__(self, request: RequestBuilder) -> None:
        self._request = request

    def add(self, parameter: Parameter) -> None:
        writers = {"query": self._add_query, "header": self._add_header, "cookie": self._add_cookie}
        if parameter.location not in writers:
            raise invalid(
                f"parameter {quote(parameter.name, 60)}: unsupported location"
                f" {quote(parameter.location, 60)}"
            )
        if parameter.is_argument:
            writers[parameter.location](parameter)

    def build_path_segment(self, parameter: Parameter) -> str:
        """Return the template of a path parameter."""
        prefix = {"label": ".", "matrix": f";{encode_path(parameter.name)}="}.get(
            parameter.style, ""
        )
        if not (parameter.is_flat or parameter.is_json):
            raise invalid(
                f"path parameter {quote(parameter.name, 60)}: objects and lists of lists are not"
                " supported"
            )
        return f"{prefix}{self._add_single_value(parameter)}"

    # --- the query --------------------------------------------------------------------------------

    def _add_query(self, parameter: Parameter) -> None:
        if parameter.is_json or not parameter.types & {"object", "array"}:
            self._set_query(parameter.name, self._add_single_value(parameter))
        elif "object" in parameter.types:
            self._add_query_object(parameter)
        else:
            self._add_query_list(parameter)

    def _add_query_list(self, parameter: Parameter) -> None:
        if not parameter.is_flat:
            self._set_query(parameter.name, self._add_argument(parameter))
            if parameter.style != "deepObject":
                name = parameter.name[:60]
                self._request.omit(
                    f"{name} is sent as {name}[0][key]: the document does not define its format"
                )
        elif parameter.style == "deepObject":
            self._set_query(f"{parameter.name}[]", self._add_argument(parameter))
        else:
            add = self._add_argument if parameter.explode else self._add_single_value
            self._set_query(parameter.name, add(parameter))

    def _add_query_object(self, parameter: Parameter) -> None:
        members = self._request.schemas.find_members(parameter.schema)
        if members is None and parameter.style == "deepObject":
            self._set_query(parameter.name, self._add_argument(parameter))
            return
        if members is None or not (parameter.explode or parameter.style == "deepObject"):
            self._omit(parameter, "objects with unknown keys are not supported in a query")
            return
        fields: dict[str, str] = {}
        name = "" if parameter.style == "form" else parameter.name
        add_fields(
            self._request, fields, "query", name, parameter.schema, required=parameter.required
        )
        for name, value in fields.items():
            self._set_query(name, value)

    def _set_query(self, name: str, value: str) -> None:
        self._request.query[escape_literal(name)] = value

    # --- headers and cookies ----------------------------------------------------------------------

    def _add_header(self, parameter: Parameter) -> None:
        if not (parameter.is_flat or parameter.is_json):
            self._omit(parameter, "objects and lists of lists are not supported in a header")
        elif parameter.name.lower() not in map(str.lower, self._request.headers):
            self._request.headers[escape_literal(parameter.name)] = self._add_single_value(
                parameter
            )

    def _add_cookie(self, parameter: Parameter) -> None:
        """Add a cookie.

        All cookies share one header, so an omitted optional cookie would remove the others.
        """
        if parameter.types & {"object", "array"} or (
            self._request.cookies and not parameter.required
        ):
            self._omit(parameter, "lists, objects and a second optional cookie are not supported")
            return
        self._request.cookies.append(
            f"{escape_literal(parameter.name)}={self._add_argument(parameter)}"
        )

    # --- values -----------------------------------------------------------------------------------

    def _add_single_value(self, parameter: Parameter) -> str:
        """Add an argument and return the placeholder of a single string, even if the parameter is a
        list.
        """
        if parameter.is_json and parameter.types - {"string"}:
            parameter.schema = to_json_text_schema(parameter.schema)
        elif "array" in parameter.types:
            return join_list(self._add_argument(parameter), get_list_format(parameter.style))
        return self._add_argument(parameter)

    def _add_argument(self, parameter: Parameter) -> str:
        return self._request.add_argument(
            parameter.name,
            parameter.location,
            parameter.schema,
            required=parameter.required,
            description=parameter.description,
        )

    def _omit(self, parameter: Parameter, reason: str) -> None:
        if parameter.required:
            raise invalid(f"required parameter {quote(parameter.name, 60)}: {reason}")
        self._request.omit(f"the parameter {quote(parameter.name, 60)} is omitted: {reason}")


def add_fields(
    request: RequestBuilder,
    fields: dict[str, str],
    location: str,
    name: str,
    schema: JsonObject,
    *,
    required: bool,
    depth: int = 0,
) -> None:
    """Add a value to the fields of a query or a form; of an object each property, as `name[key]`,
    or without a name.
    """
    types = request.schemas.find_types(schema)
    members = request.schemas.find_members(schema) if "object" in types else None
    if members is not None and depth < _MAX_DEPTH:
        for key, part in members[0].items():
            full_name = f"{name}[{key}]" if name else key
            is_required = required and key in members[1]
            add_fields(
                request, fields, location, full_name, part, required=is_required, depth=depth + 1
            )
        return
    has_objects = "object" in types or "object" in request.schemas.find_types(
        schema.get("items") or {}
    )
    is_list = "array" in types and not has_objects and not name.endswith("[]")
    placeholder = request.add_argument(name, location, schema, required=required)
    fields[f"{name}[]" if is_list else name] = placeholder


def to_json_text_schema(schema: JsonObject) -> JsonObject:
    """Return the schema of a string that contains the value as JSON."""
    description = schema.get("description", "")
    return {
        "type": "string",
        "contentMediaType": "application/json",
        "description": f"{description} As JSON text.".strip(),
    }


def get_list_format(style: str) -> str:
    return _SEPARATORS.get(style, "csv")


def join_list(placeholder: str, by: str) -> str:
    """Return the placeholder of a list that is joined to one string."""
    return f"${{{by}:{placeholder.removeprefix('${')}"
