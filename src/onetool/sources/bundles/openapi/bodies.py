"""Request bodies and parameters: they become arguments, and templates of a request.

Each field of a JSON object, a form or a multipart body is an argument; any other body is one
argument. JSON is preferred, then a form, then multipart, then text, which includes XML, and files.

A list in a parameter is repeated or joined, depending on its style. An object becomes one argument
per property, or one argument if its keys are not known. Parameters that a template cannot express
are omitted and reported.
"""

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote as percent_encode

from onetool.sources.bundles.openapi.document import References, as_mapping, as_text
from onetool.sources.bundles.openapi.request import RequestBuilder, encode_path, escape_literal
from onetool.sources.bundles.openapi.schemas import SchemaTranslator
from onetool.sources.bundles.rules import invalid
from onetool.sources.http.body import FORM_DATA, OTHER_TYPE, is_json, strip_parameters
from onetool.util.text import quote
from onetool_child.json_types import JsonMapping, JsonObject

_FORM = "application/x-www-form-urlencoded"
_JSON = "application/json"
_BINARY_TYPES = re.compile(
    r"(?:image|audio|video|font)/(?!svg).*|application/(?:octet-stream|pdf|zip|gzip|x-tar|x-gzip|java-archive|x-zip.*)"
)
_ANNOTATIONS = {"title", "description", "examples", "default", "deprecated"}
_EXPANDABLE_KEYWORDS = {"type", "properties", "required", "additionalProperties", "minProperties"}
_EXPANDABLE_KEYWORDS |= {"anyOf", "oneOf"}
_IGNORED_HEADERS = {"accept", "content-type", "authorization"}  # as OpenAPI requires
# Headers that are set elsewhere.
_IGNORED_HEADERS |= {"host", "content-length", "transfer-encoding", "connection", "upgrade", "te"}
_IGNORED_HEADERS |= {"trailer", "expect", "keep-alive", "accept-encoding"}
_SEPARATORS = {"spaceDelimited": "ssv", "pipeDelimited": "pipes", "tabDelimited": "tsv"}
_SCALARS = {"string", "number", "integer", "boolean"}
_MAX_DEPTH = 3


@dataclass(frozen=True, slots=True)
class _MediaType:
    """A media type of a body, with its translated schema."""

    media_type: str
    schema: JsonObject
    encoding: JsonMapping
    required: bool


class BodyWriter:
    """A writer that adds the body to a request."""

    def __init__(self, request: RequestBuilder) -> None:
        self._request = request
        self._schemas = request.schemas

    def add(self, definition: Any) -> None:
        references = self._schemas.references
        body = references.resolve_mapping(definition)
        content = as_mapping(body.get("content"))
        if not content:
            return
        media_type = min(content, key=_rank_media_type)
        media = references.resolve_mapping(content[media_type])
        schema = self._schemas.translate(media.get("schema", {}))
        encoding = as_mapping(media.get("encoding"))
        writers = (self._add_json, self._add_form, self._add_multipart, self._add_text)
        writers[_rank_media_type(media_type)](
            _MediaType(media_type.strip(), schema, encoding, body.get("required") is True)
        )

    # --- JSON -------------------------------------------------------------------------------------

    def _add_json(self, media: _MediaType) -> None:
        content_type = (
            _JSON if "*" in media.media_type or not media.media_type else media.media_type
        )
        members = self._find_expandable_members(media.schema)
        if members:
            self._request.body = self._expand_members(*members)
        else:
            self._set_argument(media, media.schema)
        if not members or content_type != _JSON:
            self._set_type(content_type)

    def _set_argument(self, media: _MediaType, schema: JsonObject) -> None:
        """Make the whole body one argument."""
        self._request.body = self._add("body", schema, required=media.required)

    def _set_type(self, media_type: str) -> None:
        self._request.headers["Content-Type"] = escape_literal(media_type)

    def _add(self, name: str, schema: JsonObject, *, required: bool) -> str:
        return self._request.add_argument(name, "body", schema, required=required)

    def _expand_members(
        self, properties: JsonObject, required: list[str], rules: JsonObject
    ) -> JsonObject:
        placeholders = {}
        for name, schema in properties.items():
            placeholders[name] = self._add(name, schema, required=name in required)
        argument_names = {name: placeholder[2:-1] for name, placeholder in placeholders.items()}
        for key, rule in rules.items():
            required_names = [
                map(argument_names.__getitem__, branch["required"]) for branch in rule
            ]
            self._request.rules[key] = [{"required": list(names)} for names in required_names]
        return {escape_literal(name): placeholder for name, placeholder in placeholders.items()}

    def _find_expandable_members(
        self, schema: JsonObject
    ) -> tuple[JsonObject, list[str], JsonObject] | None:
        """Return properties, required names and rules; None if they cannot become arguments."""
        merged = self._merge_all_of(schema)
        properties = merged.get("properties")
        is_closed = merged.get("additionalProperties", False) is False
        if not properties or not is_closed or merged.get("type", "object") != "object":
            return None
        if merged.keys() - _EXPANDABLE_KEYWORDS - _ANNOTATIONS:
            return None
        rules: JsonObject = {key: merged[key] for key in ("anyOf", "oneOf") if key in merged}
        if not all(
            _is_required_rule(branch, properties) for rule in rules.values() for branch in rule
        ):
            return None
        required = [name for name in merged.get("required", []) if name in properties]
        return properties, required, rules

    def _merge_all_of(self, schema: JsonObject) -> JsonObject:
        """Merge `allOf` of objects into one object."""
        if "allOf" not in schema:
            return schema
        merged: JsonObject = {"type": "object", "properties": {}, "required": []}
        for part in self._schemas.list_branches(schema, ("allOf",)):
            plain = {key: value for key, value in part.items() if key != "allOf"}
            merged = _merge_objects(merged, plain)
        return merged

    # --- forms and text ---------------------------------------------------------------------------

    def _add_form(self, media: _MediaType) -> None:
        members = self._schemas.find_members(self._merge_all_of(media.schema))
        if members is None:
            self._add_unknown_fields(media)
            return
        fields: dict[str, str] = {}
        properties, required = members
        for name, schema in properties.items():
            encoding = as_mapping(media.encoding.get(name))
            self._add_field(fields, name, schema, encoding, name in required)
        pairs = [f"{percent_encode(name, safe='')}={value}" for name, value in fields.items()]
        self._request.body = "&".join(pairs)
        self._set_type(media.media_type)

    def _add_unknown_fields(self, media: _MediaType) -> None:
        """Add a form as one argument. Documents declare an empty form where there is none."""
        if media.schema.get("properties") == {} and "additionalProperties" not in media.schema:
            return
        description = media.schema.get("description", "The fields of the form.")
        self._set_argument(media, {"type": "object", "description": description})
        self._set_type(media.media_type)

    def _leave_out_multipart(self, media: _MediaType) -> None:
        """Omit a multipart body without known parts."""
        if media.required and media.schema.get("properties") != {}:
            raise invalid("its body is multipart with unknown parts")
        if "properties" not in media.schema:
            self._request.omit("its body is omitted: it is multipart with unknown parts")

    def _add_field(
        self,
        fields: dict[str, str],
        name: str,
        schema: JsonObject,
        encoding: JsonMapping,
        required: bool,
    ) -> None:
        types = self._schemas.find_types(schema)
        if encoding.get("style") == "deepObject":
            add_fields(self._request, fields, "body", name, schema, required=required)
            return
        item_types = self._schemas.find_types(schema.get("items") or {})
        is_complex = "object" in types | item_types
        field_schema = to_json_text_schema(schema) if is_complex else schema
        placeholder = self._add(name, field_schema, required=required)
        style = as_text(encoding.get("style")) or "form"
        is_exploded = encoding.get("explode", style == "form") is True
        if "array" in types and not is_complex and not is_exploded:
            placeholder = join_list(placeholder, get_list_format(style))
        fields[name] = placeholder

    def _add_multipart(self, media: _MediaType) -> None:
        members = self._schemas.find_members(self._merge_all_of(media.schema))
        if members is None:
            self._leave_out_multipart(media)
            return
        properties, required = members
        parts = {}
        for name, schema in properties.items():
            encoding = as_mapping(media.encoding.get(name))
            parts[escape_literal(name)] = self._build_part(name, schema, encoding, name in required)
        self._request.body = parts
        media_type = strip_parameters(media.media_type)
        is_multipart = media_type.startswith("multipart/")
        self._request.headers["Content-Type"] = media_type if is_multipart else FORM_DATA

    def _build_part(
        self, name: str, schema: JsonObject, encoding: JsonMapping, required: bool
    ) -> Any:
        content_type = as_text(encoding.get("contentType"))
        is_list = self._is_file(schema.get("items") or {})
        if is_list or self._is_file(schema):
            definition = to_file_schema(schema)
            definition = {"type": "array", "items": definition} if is_list else definition
            placeholder = to_file(self._add(name, definition, required=required))
        else:
            placeholder = self._add(name, schema, required=required)
        is_single = content_type and not set(content_type) & set(",*${}") and "/" in content_type
        return {"value": placeholder, "contentType": content_type} if is_single else placeholder

    def _is_file(self, schema: JsonObject) -> bool:
        return any(
            part.get("format") == "binary"
            or _BINARY_TYPES.fullmatch(part.get("contentMediaType", ""))
            for part in self._schemas.list_branches(schema)
        )

    def _add_text(self, media: _MediaType) -> None:
        media_type = strip_parameters(media.media_type)
        if "xml" not in media_type and (self._is_file(media.schema) or is_binary(media_type)):
            self._set_argument(media, to_file_schema(media.schema))
            self._request.body = to_file(self._request.body)
            self._set_type(OTHER_TYPE if "*" in media_type else media.media_type)
            return
        description = f"The body, as text ({media.media_type[:60]})."
        self._set_argument(media, {"type": "string", "description": description})
        self._set_type("text/plain" if "*" in media.media_type else media.media_type)


def _rank_media_type(media_type: str) -> int:
    bare_type = strip_parameters(media_type)
    if bare_type in {"*/*", "application/*", ""} or is_json(bare_type):
        return 0
    if bare_type == _FORM:
        return 1
    return 2 if bare_type.startswith("multipart/") or bare_type.endswith("form-data") else 3


def is_binary(media_type: str) -> bool:
    return _BINARY_TYPES.fullmatch(media_type) is not None


def to_file_schema(schema: JsonObject) -> JsonObject:
    """Return the schema of an argument that names or contains a file."""
    description = f"{schema.get('description', '')} A path, or an object with base64 and filename."
    return {"type": ["string", "object"], "description": description.strip()}


def to_file(placeholder: str) -> str:
    return f"${{file:{placeholder.removeprefix('${')}"


def _is_required_rule(branch: Any, properties: JsonObject) -> bool:
    names = branch.get("required") if isinstance(branch, dict) else None
    return (
        isinstance(names, list)
        and branch.keys() == {"required"}
        and all(name in properties for name in names)
    )


def _merge_objects(left: JsonObject, right: JsonObject) -> JsonObject:
    properties = dict(left["properties"])
    for name, schema in right.get("properties", {}).items():
        differs = name in properties and properties[name] != schema
        properties[name] = {"allOf": [properties[name], schema]} if differs else schema
    return {
        **right,
        **left,
        "properties": properties,
        "required": [*left["required"], *right.get("required", [])],
    }


# --- parameters -----------------------------------------------------------------------------------


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
        prefixes = {"label": ".", "matrix": f";{encode_path(parameter.name)}="}
        if not (parameter.is_flat or parameter.is_json):
            raise invalid(
                f"path parameter {quote(parameter.name, 60)}: objects and lists of lists are not"
                " supported"
            )
        return f"{prefixes.get(parameter.style, '')}{self._add_single_value(parameter)}"

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
            value = self._add_single_value(parameter)
            self._request.headers[escape_literal(parameter.name)] = value

    def _add_cookie(self, parameter: Parameter) -> None:
        """Add a cookie. All share one header: an omitted optional one would remove the others."""
        is_second_optional = self._request.cookies and not parameter.required
        if parameter.types & {"object", "array"} or is_second_optional:
            self._omit(parameter, "lists, objects and a second optional cookie are not supported")
            return
        placeholder = self._add_argument(parameter)
        self._request.cookies.append(f"{escape_literal(parameter.name)}={placeholder}")

    # --- values -----------------------------------------------------------------------------------

    def _add_single_value(self, parameter: Parameter) -> str:
        """Add an argument, and return a placeholder that joins the items of a list."""
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
    """Add a value to query or form fields; of an object each property, as `name[key]` or `key`."""
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
    item_types = request.schemas.find_types(schema.get("items") or {})
    has_objects = "object" in types | item_types
    is_list = "array" in types and not has_objects and not name.endswith("[]")
    placeholder = request.add_argument(name, location, schema, required=required)
    fields[f"{name}[]" if is_list else name] = placeholder


def to_json_text_schema(schema: JsonObject) -> JsonObject:
    """Return the schema of a string that contains the value as JSON."""
    description = schema.get("description", "")
    text = f"{description} As JSON text.".strip()
    return {"type": "string", "contentMediaType": "application/json", "description": text}


def get_list_format(style: str) -> str:
    return _SEPARATORS.get(style, "csv")


def join_list(placeholder: str, by: str) -> str:
    """Return the placeholder of a list that is joined to one string."""
    return f"${{{by}:{placeholder.removeprefix('${')}"
