"""Request bodies: fields of JSON objects and forms become arguments, any other body is one argument `body`.

JSON is preferred, then a form, then text, which includes XML. Multipart bodies are not supported.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from onetool.backends.http_tool.body import is_json
from onetool.bundles.openapi.document import as_mapping, as_text
from onetool.bundles.openapi.keywords import JSON
from onetool.bundles.openapi.parameters import Entries, joined, json_text, separator
from onetool.bundles.openapi.references import References
from onetool.bundles.openapi.request import RequestBuilder, literal
from onetool.bundles.openapi.schemas import SchemaTranslator
from onetool.bundles.rules import invalid

_FORM: Final = "application/x-www-form-urlencoded"
_JSON: Final = "application/json"
_ANNOTATIONS = {"title", "description", "examples", "default", "deprecated"}
_LIFTED = {"type", "properties", "required", "additionalProperties", "anyOf", "oneOf", "minProperties"}


@dataclass(frozen=True, slots=True)
class _Media:
    """One media type of a body."""

    kind: str
    schema: JSON
    encoding: Mapping[str, Any]
    required: bool


class Bodies:
    """Writes the body to one request."""

    def __init__(self, request: RequestBuilder, schemas: SchemaTranslator, references: References) -> None:
        self._request, self._schemas, self._references = request, schemas, references

    def add(self, given: Any) -> None:
        body = self._references.mapping(given)
        content = as_mapping(body.get("content"))
        if not content:
            return
        kind = min(content, key=_preference)
        media = self._references.mapping(content[kind])
        schema, encoding = self._schemas.of(media.get("schema", {})), as_mapping(media.get("encoding"))
        write = {0: self._json, 1: self._form, 2: self._text}.get(_preference(kind), _reject)
        write(_Media(kind.strip(), schema, encoding, body.get("required") is True))

    # --- JSON ------------------------------------------------------------------------------------------------------

    def _json(self, media: _Media) -> None:
        content_type = _JSON if "*" in media.kind or not media.kind else media.kind
        members = self._liftable(media.schema)
        if members:
            self._request.body = self._lifted(*members)
        else:
            self._request.body = self._request.argument("body", "body", media.schema, required=media.required)
        if not members or content_type != _JSON:
            self._request.headers["Content-Type"] = literal(content_type)

    def _lifted(self, properties: JSON, required: list[str], rules: JSON) -> JSON:
        names = {}
        for name, schema in properties.items():
            names[name] = self._request.argument(name, "body", schema, required=name in required)
        own = {name: placeholder[2:-1] for name, placeholder in names.items()}
        self._request.rules = {
            key: [{"required": [own[name] for name in branch["required"]]} for branch in rule]
            for key, rule in rules.items()
        }
        return {literal(name): placeholder for name, placeholder in names.items()}

    def _liftable(self, schema: JSON) -> tuple[JSON, list[str], JSON] | None:
        """Return properties, required names and rules of a plain object; None if it cannot become arguments."""
        flat = self._merged(schema)
        properties = flat.get("properties")
        if (
            not properties
            or flat.keys() - _LIFTED - _ANNOTATIONS
            or flat.get("additionalProperties", False) is not False
        ):
            return None
        if flat.get("type", "object") != "object":
            return None
        rules: JSON = {key: flat[key] for key in ("anyOf", "oneOf") if key in flat}
        if not all(_is_about_names(branch, properties) for rule in rules.values() for branch in rule):
            return None
        required = [name for name in flat.get("required", []) if name in properties]
        return properties, required, rules

    def _merged(self, schema: JSON) -> JSON:
        """Merge `allOf` of objects into one object."""
        if "allOf" not in schema:
            return schema
        merged: JSON = {"type": "object", "properties": {}, "required": []}
        for part in self._schemas.branches(schema, ("allOf",)):
            merged = _joined(merged, {key: value for key, value in part.items() if key != "allOf"})
        return merged

    # --- forms and texts -------------------------------------------------------------------------------------------

    def _form(self, media: _Media) -> None:
        members = self._schemas.members(self._merged(media.schema))
        if members is None:
            self._leave_out_form(media)
            return
        fields: dict[str, str] = {}
        for name, schema in members[0].items():
            self._field(fields, name, schema, as_mapping(media.encoding.get(name)), name in members[1])
        self._request.body = "&".join(f"{quote(name, safe='')}={value}" for name, value in fields.items())
        self._request.headers["Content-Type"] = literal(media.kind)

    def _leave_out_form(self, media: _Media) -> None:
        """Leave out a form without known fields: some documents declare one if there is no body."""
        if media.required and media.schema.get("properties") != {}:
            raise invalid("its body is a form with unknown fields")
        if "properties" not in media.schema:
            self._request.leave_out("its body is omitted: it is a form with unknown fields")

    def _field(
        self, fields: dict[str, str], name: str, schema: JSON, encoding: Mapping[str, Any], needed: bool
    ) -> None:
        kinds = self._schemas.kinds(schema)
        if encoding.get("style") == "deepObject":
            Entries(self._request, self._schemas, "body", fields).add(name, schema, required=needed)
            return
        is_complex = "object" in kinds or "object" in self._schemas.kinds(schema.get("items") or {})
        described = json_text(schema) if is_complex else schema
        placeholder = self._request.argument(name, "body", described, required=needed)
        style = as_text(encoding.get("style")) or "form"
        is_joined = "array" in kinds and not is_complex and encoding.get("explode", style == "form") is not True
        fields[name] = joined(placeholder, separator(style)) if is_joined else placeholder

    def _text(self, media: _Media) -> None:
        text = {"type": "string", "description": f"The body, as text ({media.kind[:60]})."}
        self._request.body = self._request.argument("body", "body", text, required=media.required)
        self._request.headers["Content-Type"] = "text/plain" if "*" in media.kind else literal(media.kind)


def _preference(kind: str) -> int:
    plain = kind.partition(";")[0].strip().lower()
    if plain in {"*/*", "application/*", ""} or is_json(plain):
        return 0
    if plain == _FORM:
        return 1
    return 3 if plain.startswith("multipart/") or plain.endswith("form-data") else 2


def _reject(media: _Media) -> None:
    raise invalid(f"{media.kind[:60]} bodies are not supported")


def _is_about_names(branch: Any, properties: JSON) -> bool:
    names = branch.get("required") if isinstance(branch, dict) else None
    return isinstance(names, list) and branch.keys() == {"required"} and all(name in properties for name in names)


def _joined(one: JSON, other: JSON) -> JSON:
    properties = dict(one["properties"])
    for name, schema in other.get("properties", {}).items():
        both = name in properties and properties[name] != schema
        properties[name] = {"allOf": [properties[name], schema]} if both else schema
    return {**other, **one, "properties": properties, "required": [*one["required"], *other.get("required", [])]}
