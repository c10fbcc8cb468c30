"""Request bodies: fields of JSON objects, forms and multipart bodies become arguments; any other
body is one argument.

JSON is preferred, then a form, then multipart, then text, which includes XML, and files.
"""

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from onetool.sources.bundles.openapi.document import as_mapping, as_text
from onetool.sources.bundles.openapi.parameters import (
    add_fields,
    get_list_format,
    join_list,
    to_json_text_schema,
)
from onetool.sources.bundles.openapi.request import RequestBuilder, escape_literal
from onetool.sources.bundles.rules import invalid
from onetool.sources.http.body import FORM_DATA, OTHER_TYPE, is_json
from onetool_child.json_types import JsonMapping, JsonObject

_FORM = "application/x-www-form-urlencoded"
_JSON = "application/json"
_BINARY_TYPES = re.compile(
    r"(?:image|audio|video|font)/(?!svg).*|application/(?:octet-stream|pdf|zip|gzip|x-tar|x-gzip|java-archive|x-zip.*)"
)
_ANNOTATIONS = {"title", "description", "examples", "default", "deprecated"}
_EXPANDABLE_KEYWORDS = {
    "type",
    "properties",
    "required",
    "additionalProperties",
    "anyOf",
    "oneOf",
    "minProperties",
}


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
        self._request.rules = {
            key: [
                {"required": [argument_names[name] for name in branch["required"]]}
                for branch in rule
            ]
            for key, rule in rules.items()
        }
        return {escape_literal(name): placeholder for name, placeholder in placeholders.items()}

    def _find_expandable_members(
        self, schema: JsonObject
    ) -> tuple[JsonObject, list[str], JsonObject] | None:
        """Return properties, required names and rules of a plain object; None if it cannot become
        arguments.
        """
        merged = self._merge_all_of(schema)
        properties = merged.get("properties")
        if (
            not properties
            or merged.keys() - _EXPANDABLE_KEYWORDS - _ANNOTATIONS
            or merged.get("additionalProperties", False) is not False
        ):
            return None
        if merged.get("type", "object") != "object":
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
            merged = _merge_objects(
                merged, {key: value for key, value in part.items() if key != "allOf"}
            )
        return merged

    # --- forms and text ---------------------------------------------------------------------------

    def _add_form(self, media: _MediaType) -> None:
        members = self._schemas.find_members(self._merge_all_of(media.schema))
        if members is None:
            self._add_unknown_fields(media)
            return
        fields: dict[str, str] = {}
        for name, schema in members[0].items():
            self._add_field(
                fields, name, schema, as_mapping(media.encoding.get(name)), name in members[1]
            )
        self._request.body = "&".join(
            f"{quote(name, safe='')}={value}" for name, value in fields.items()
        )
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
        is_complex = "object" in types or "object" in self._schemas.find_types(
            schema.get("items") or {}
        )
        field_schema = to_json_text_schema(schema) if is_complex else schema
        placeholder = self._add(name, field_schema, required=required)
        style = as_text(encoding.get("style")) or "form"
        is_joined = (
            "array" in types
            and not is_complex
            and encoding.get("explode", style == "form") is not True
        )
        fields[name] = join_list(placeholder, get_list_format(style)) if is_joined else placeholder

    def _add_multipart(self, media: _MediaType) -> None:
        members = self._schemas.find_members(self._merge_all_of(media.schema))
        if members is None:
            self._leave_out_multipart(media)
            return
        self._request.body = {
            escape_literal(name): self._build_part(
                name, schema, as_mapping(media.encoding.get(name)), name in members[1]
            )
            for name, schema in members[0].items()
        }
        media_type = media.media_type.partition(";")[0].strip().lower()
        self._request.headers["Content-Type"] = (
            media_type if media_type.startswith("multipart/") else FORM_DATA
        )

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
        media_type = media.media_type.partition(";")[0].strip().lower()
        if "xml" not in media_type and (self._is_file(media.schema) or is_binary(media_type)):
            self._request.body = to_file(
                self._add("body", to_file_schema(media.schema), required=media.required)
            )
            self._set_type(OTHER_TYPE if "*" in media_type else media.media_type)
            return
        self._set_argument(
            media,
            {"type": "string", "description": f"The body, as text ({media.media_type[:60]})."},
        )
        self._set_type("text/plain" if "*" in media.media_type else media.media_type)


def _rank_media_type(media_type: str) -> int:
    bare_type = media_type.partition(";")[0].strip().lower()
    if bare_type in {"*/*", "application/*", ""} or is_json(bare_type):
        return 0
    if bare_type == _FORM:
        return 1
    return 2 if bare_type.startswith("multipart/") or bare_type.endswith("form-data") else 3


def is_binary(media_type: str) -> bool:
    return _BINARY_TYPES.fullmatch(media_type) is not None


def to_file_schema(schema: JsonObject) -> JsonObject:
    """Return the schema of an argument that names or contains a file."""
    description = (
        f"{schema.get('description', '')} A path, or an object with base64 and filename.".strip()
    )
    return {"type": ["string", "object"], "description": description}


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
