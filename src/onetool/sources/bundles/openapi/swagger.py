"""Conversion of Swagger 2 servers, operations and security schemes to OpenAPI 3.

Schemas are nearly the same.

References are unchanged; they refer to the same document.
"""

from collections.abc import Iterable, Mapping

from onetool.sources.bundles.openapi.document import OpenApiDocument, as_list, as_mapping, as_text
from onetool_child.json_types import JsonMapping, JsonObject

_PARAMETER_KEYS = {
    "name",
    "in",
    "required",
    "description",
    "schema",
    "collectionFormat",
    "allowEmptyValue",
}
_STYLES: Mapping[str, JsonMapping] = {
    "csv": {"explode": False},
    "ssv": {"style": "spaceDelimited", "explode": False},
    "tsv": {"style": "tabDelimited", "explode": False},
    "pipes": {"style": "pipeDelimited", "explode": False},
    "multi": {"explode": True},
}
_FORM = "application/x-www-form-urlencoded"


def convert_servers(document: OpenApiDocument) -> list[JsonObject]:
    root = document.root
    host = as_text(root.get("host")).rpartition("://")[2].rstrip("/")
    base = as_text(root.get("basePath"))
    base = base if base.startswith("/") or not base else f"/{base}"
    schemes = [
        scheme for scheme in as_list(root.get("schemes")) if as_text(scheme) in {"https", "http"}
    ]
    scheme = "https" if "https" in schemes or not schemes else schemes[0]
    return [{"url": f"{scheme}://{host}{base}" if host else base or "/"}]


def convert_scheme(definition: JsonMapping) -> JsonMapping:
    return {"type": "http", "scheme": "basic"} if definition.get("type") == "basic" else definition


def convert_operation(
    document: OpenApiDocument, definition: JsonMapping, parameters: Iterable[JsonMapping]
) -> JsonObject:
    """Convert an operation.

    `parameters` are those of the operation and of its path, with references resolved.
    """
    all_parameters = list(parameters)
    plain = [
        _convert_parameter(parameter)
        for parameter in all_parameters
        if as_text(parameter.get("in")) not in {"body", "formData"}
    ]
    consumes = _list_media_types(document, definition, "consumes")
    body = _convert_body(all_parameters, consumes) or _convert_form(all_parameters, consumes)
    content: JsonObject = {
        media_type: {} for media_type in _list_media_types(document, definition, "produces")
    }
    responses = as_mapping(definition.get("responses"))
    headers = [
        as_mapping(responses[code]).get("headers")
        for code in responses
        if str(code).startswith("2")
    ]
    response = {"content": content, "headers": next(filter(None, headers), {})}
    converted = {**definition, "parameters": plain, "responses": {"200": response}}
    return {**converted, "requestBody": body} if body else converted


def _list_media_types(document: OpenApiDocument, definition: JsonMapping, key: str) -> list[str]:
    return [
        media_type
        for media_type in as_list(definition.get(key) or document.root.get(key))
        if isinstance(media_type, str)
    ]


def _convert_parameter(definition: JsonMapping) -> JsonObject:
    schema = {key: value for key, value in definition.items() if key not in _PARAMETER_KEYS}
    common = {
        key: definition[key]
        for key in ("name", "in", "required", "description")
        if key in definition
    }
    is_list = definition.get("type") == "array"
    style = (
        _STYLES.get(as_text(definition.get("collectionFormat")), _STYLES["csv"]) if is_list else {}
    )
    return {**common, "schema": definition.get("schema", schema), **style}


def _convert_body(parameters: list[JsonMapping], consumes: list[str]) -> JsonObject | None:
    body = next((parameter for parameter in parameters if parameter.get("in") == "body"), None)
    if body is None:
        return None
    content = {
        media_type: {"schema": body.get("schema", {})}
        for media_type in consumes or ["application/json"]
    }
    common = {key: body[key] for key in ("required", "description") if key in body}
    return {**common, "content": content}


def _convert_form(parameters: list[JsonMapping], consumes: list[str]) -> JsonObject | None:
    fields = [parameter for parameter in parameters if parameter.get("in") == "formData"]
    if not fields:
        return None
    has_file = any(parameter.get("type") == "file" for parameter in fields)
    kind = "multipart/" if has_file else "form"
    media_types = [media_type for media_type in consumes if kind in media_type] or [
        "multipart/form-data" if has_file else _FORM
    ]
    converted = {
        as_text(parameter.get("name")): _convert_parameter(parameter) for parameter in fields
    }
    schema = {
        "type": "object",
        "properties": {name: _add_description(parameter) for name, parameter in converted.items()},
        "required": [
            name for name, parameter in converted.items() if parameter.get("required") is True
        ],
    }
    encoding = {
        name: {key: parameter[key] for key in ("style", "explode") if key in parameter}
        for name, parameter in converted.items()
    }
    return {
        "required": True,
        "content": {
            media_type: {"schema": schema, "encoding": encoding} for media_type in media_types
        },
    }


def _add_description(parameter: JsonMapping) -> JsonObject:
    schema = dict(as_mapping(parameter["schema"]))
    return (
        {**schema, "description": parameter["description"]}
        if "description" in parameter
        else schema
    )
