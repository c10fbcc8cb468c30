"""Conversion of Swagger 2 servers, operations and security schemes to OpenAPI 3. Schemas are nearly the same.

References are unchanged; they refer to the same document.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from onetool.bundles.openapi.document import OpenApiDocument, as_list, as_mapping, as_text

_PARAMETER_KEYS = {"name", "in", "required", "description", "schema", "collectionFormat", "allowEmptyValue"}
_STYLES: Mapping[str, Mapping[str, Any]] = {
    "csv": {"explode": False},
    "ssv": {"style": "spaceDelimited", "explode": False},
    "tsv": {"style": "tabDelimited", "explode": False},
    "pipes": {"style": "pipeDelimited", "explode": False},
    "multi": {"explode": True},
}
_FORM = "application/x-www-form-urlencoded"


def servers(document: OpenApiDocument) -> list[dict[str, Any]]:
    root = document.root
    host, base = as_text(root.get("host")).rpartition("://")[2].rstrip("/"), as_text(root.get("basePath"))
    base = base if base.startswith("/") or not base else f"/{base}"
    schemes = [scheme for scheme in as_list(root.get("schemes")) if as_text(scheme) in {"https", "http"}]
    scheme = "https" if "https" in schemes or not schemes else schemes[0]
    return [{"url": f"{scheme}://{host}{base}" if host else base or "/"}]


def scheme(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": "http", "scheme": "basic"} if definition.get("type") == "basic" else definition


def operation(
    document: OpenApiDocument, given: Mapping[str, Any], parameters: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """Convert an operation. `parameters` are those of the operation and of its path, with references resolved."""
    all_of_them = list(parameters)
    plain = [_parameter(one) for one in all_of_them if as_text(one.get("in")) not in {"body", "formData"}]
    consumes = _kinds(document, given, "consumes")
    body = _body(all_of_them, consumes) or _form(all_of_them, consumes)
    content: dict[str, Any] = {kind: {} for kind in _kinds(document, given, "produces")}
    made = {**given, "parameters": plain, "responses": {"200": {"content": content}}}
    return {**made, "requestBody": body} if body else made


def _kinds(document: OpenApiDocument, given: Mapping[str, Any], key: str) -> list[str]:
    return [kind for kind in as_list(given.get(key) or document.root.get(key)) if isinstance(kind, str)]


def _parameter(given: Mapping[str, Any]) -> dict[str, Any]:
    schema = {key: value for key, value in given.items() if key not in _PARAMETER_KEYS}
    kept = {key: given[key] for key in ("name", "in", "required", "description") if key in given}
    is_list = given.get("type") == "array"
    style = _STYLES.get(as_text(given.get("collectionFormat")), _STYLES["csv"]) if is_list else {}
    return {**kept, "schema": given.get("schema", schema), **style}


def _body(parameters: list[Mapping[str, Any]], consumes: list[str]) -> dict[str, Any] | None:
    found = next((one for one in parameters if one.get("in") == "body"), None)
    if found is None:
        return None
    content = {kind: {"schema": found.get("schema", {})} for kind in consumes or ["application/json"]}
    kept = {key: found[key] for key in ("required", "description") if key in found}
    return {**kept, "content": content}


def _form(parameters: list[Mapping[str, Any]], consumes: list[str]) -> dict[str, Any] | None:
    fields = [one for one in parameters if one.get("in") == "formData"]
    if not fields:
        return None
    has_file = any(one.get("type") == "file" for one in fields)
    kinds = [kind for kind in consumes if "form" in kind] or ["multipart/form-data" if has_file else _FORM]
    made = {as_text(one.get("name")): _parameter(one) for one in fields}
    schema = {
        "type": "object",
        "properties": {name: _described(one) for name, one in made.items()},
        "required": [name for name, one in made.items() if one.get("required") is True],
    }
    encoding = {name: {key: one[key] for key in ("style", "explode") if key in one} for name, one in made.items()}
    return {"required": True, "content": {kind: {"schema": schema, "encoding": encoding} for kind in kinds}}


def _described(parameter: Mapping[str, Any]) -> dict[str, Any]:
    schema = dict(as_mapping(parameter["schema"]))
    return {**schema, "description": parameter["description"]} if "description" in parameter else schema
