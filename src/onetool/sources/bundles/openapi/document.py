"""OpenAPI documents: parsing with limits, references, descriptions, names, and Swagger 2.

Only the version of the document is checked here. References are resolved inside one document;
nothing is ever fetched. Swagger 2 becomes OpenAPI 3, except schemas, which are nearly the same.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from keyword import iskeyword
from math import isfinite
from typing import Any
from urllib.parse import unquote

from onetool.errors import BundleError, ConfigError
from onetool.sources.bundles.imported import max_value_count
from onetool.sources.bundles.rules import invalid
from onetool.util.sanitize import clean
from onetool.util.text import quote
from onetool_child.json_types import JsonMapping, JsonObject

MAX_SHOWN_CHARS = 200
MAX_CHAIN_LENGTH = 20
MAX_TOOL_LENGTH = 1_200
MAX_ARGUMENT_LENGTH = 400
MAX_DETAIL_LENGTH = 200
_MAX_READ_LENGTH = 5_000
MAX_BYTES = 64 * 1024 * 1024
MAX_DEPTH = 100
MAX_VALUES = 4_000_000  # in memory a value is many times as large as `[],` is in a file
_MAX_INTEGER = 2**64 - 1
_MIN_INTEGER = -(2**63)
MAX_LENGTH = 64
MAX_TAGS = 10
# Words to ignore in titles: "Swagger Petstore - OpenAPI 3.0" is the petstore.
_NOISE_WORDS = {"api", "apis", "rest", "restful", "openapi", "swagger", "spec", "specification"}
_NOISE_WORDS |= {"specifications", "documentation", "docs", "reference", "definition"}
_NUMBER = re.compile(r"v?\d+")
_APOSTROPHE = re.compile(r"['\u2019]s?\b")
_CAMEL_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_COMMON_KEYS = ("name", "in", "required", "description")  # of parameters
_PARAMETER_KEYS = {*_COMMON_KEYS, "schema", "collectionFormat", "allowEmptyValue"}
_STYLES: Mapping[str, JsonMapping] = {
    "csv": {"explode": False},
    "ssv": {"style": "spaceDelimited", "explode": False},
    "tsv": {"style": "tabDelimited", "explode": False},
    "pipes": {"style": "pipeDelimited", "explode": False},
    "multi": {"explode": True},
}
_FORM = "application/x-www-form-urlencoded"


class References:
    def __init__(self, root: JsonMapping) -> None:
        self._root = root

    def follow(self, node: Any) -> Any:
        """Return the node, or the target of its chain of references."""
        seen: set[str] = set()
        while (reference := get_reference(node)) is not None:
            if reference in seen:
                raise invalid(f"the reference {quote(reference, MAX_SHOWN_CHARS)} is circular")
            if len(seen) == MAX_CHAIN_LENGTH:
                raise invalid(
                    f"the reference {quote(reference, MAX_SHOWN_CHARS)} is a chain of more than "
                    f"{MAX_CHAIN_LENGTH} references"
                )
            seen.add(reference)
            node = self.find_target(reference)
        return node

    def resolve_mapping(self, node: Any) -> JsonMapping:
        target = self.follow(node)
        return target if isinstance(target, dict) else {}

    def resolve_or_empty(self, node: Any) -> JsonMapping:
        try:
            return self.resolve_mapping(node)
        except BundleError:
            return {}

    def find_target(self, reference: str) -> Any:
        if not reference.startswith("#"):
            raise invalid(
                "references to another document are not supported:"
                f" {quote(reference, MAX_SHOWN_CHARS)}"
            )
        pointer = unquote(reference[1:])
        if pointer and not pointer.startswith("/"):
            raise invalid(f"the reference {quote(reference, MAX_SHOWN_CHARS)} cannot be resolved")
        node: Any = self._root
        for part in pointer.split("/")[1:]:
            node = _get_child(node, part.replace("~1", "/").replace("~0", "~"), reference)
        return node


def get_reference(node: Any) -> str | None:
    reference = node.get("$ref") if isinstance(node, dict) else None
    return reference if isinstance(reference, str) else None


def _get_child(node: Any, key: str, reference: str) -> Any:
    if isinstance(node, dict) and key in node:
        return node[key]
    if (
        isinstance(node, list)
        and key.isdecimal()
        and key.isascii()
        and len(key) < MAX_SHOWN_CHARS
        and int(key) < len(node)
    ):
        return node[int(key)]
    raise invalid(f"the reference {quote(reference, MAX_SHOWN_CHARS)} cannot be resolved")


def shorten(text: Any, limit: int) -> str:
    """Shorten text to whole paragraphs if one fits, else to whole sentences, else to words."""
    return _shorten(text[:_MAX_READ_LENGTH], limit) if isinstance(text, str) else ""


@lru_cache(maxsize=512)  # the same few parameters are described again and again
def _shorten(text: str, limit: int) -> str:
    cleaned = clean(text.strip(), _MAX_READ_LENGTH).strip()
    if len(cleaned) <= limit:
        return cleaned
    head = cleaned[: limit - 2]
    for end in ("\n\n", ". ", ".\n", " "):
        cut = head.rfind(end)
        if cut > limit // 4:
            return f"{head[:cut].rstrip()}{'.' if end[0] == '.' else ''} …"
    return f"{head}…"


def describe_operation(summary: Any, description: Any) -> str:
    """Return the summary as the first line, followed by the description."""
    first = shorten(summary, MAX_DETAIL_LENGTH)
    rest = shorten(description, MAX_TOOL_LENGTH)
    if not rest or rest == first:
        return first
    return f"{first.rstrip('.')}.\n\n{rest}" if first and not rest.startswith(first) else rest


@dataclass(frozen=True, slots=True)
class OpenApiDocument:
    root: JsonObject
    is_swagger: bool  # version 2, before it was called OpenAPI

    def get_section(self, name: str) -> JsonMapping:
        return as_mapping(self.root.get(name))


def as_mapping(value: object) -> JsonMapping:
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def as_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def parse_document(document: bytes | str) -> OpenApiDocument:
    text = _decode(document)
    root = _parse_json(text) if text.lstrip().startswith("{") else _parse_yaml(text)
    if not isinstance(root, dict):
        raise invalid("not an OpenAPI document: the top level is not an object")
    _check_depth(root)
    return OpenApiDocument(root, is_swagger=_is_swagger(root))


def _decode(document: bytes | str) -> str:
    try:
        raw = document.encode() if isinstance(document, str) else document
        if len(raw) > MAX_BYTES:
            raise invalid(f"the document is too large: {len(raw):,} bytes (at most {MAX_BYTES:,})")
        if max_value_count(raw) > MAX_VALUES:
            raise invalid(f"the document is too large: more than {MAX_VALUES:,} values")
        return raw.decode("utf-8-sig")
    except UnicodeError:
        raise invalid("the document is not UTF-8 text; save it as UTF-8") from None


def _parse_json(text: str) -> Any:
    import orjson

    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        reason = str(error)
    try:
        return _parse_yaml(text)  # YAML may start with a brace too
    except BundleError:
        raise invalid(f"the document is not valid JSON: {reason}") from None


def _parse_yaml(text: str) -> Any:
    from onetool.util import yaml_loader

    try:
        return _to_json_values(yaml_loader.read(text, "the document").data)
    except ConfigError as error:
        is_large = error.fields.get("code") == yaml_loader.TOO_LARGE
        hint = "convert a document of this size to JSON" if is_large else error.hint
        raise invalid(f"{error.message}; {hint}" if hint else error.message) from None


def _to_json_values(value: Any) -> Any:
    """Convert YAML numbers that JSON does not have. The parser has limited the depth."""
    if isinstance(value, dict):
        return {key: _to_json_values(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_to_json_values(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    if isinstance(value, int) and not _MIN_INTEGER <= value <= _MAX_INTEGER:
        return str(value)
    return value


def _check_depth(root: Any) -> None:
    """Limit the depth, so that later code can recurse."""
    level = [root]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise invalid(f"the document is nested more than {MAX_DEPTH} deep")
        level = [child for node in level for child in _iterate_children(node)]


def _iterate_children(node: Any) -> Iterator[Any]:
    children = node.values() if isinstance(node, dict) else node
    return (child for child in children if isinstance(child, dict | list))


def _is_swagger(root: JsonMapping) -> bool:
    version = root.get("openapi", root.get("swagger"))
    if version is None:
        raise invalid(
            'not an OpenAPI document: neither `openapi: 3.x` nor `swagger: "2.0"` at the top level'
        )
    number = str(version).partition(".")[0]
    if number not in {"2", "3"}:
        raise invalid(
            f"unsupported OpenAPI version {quote(str(version), 20)} (expected 3.0, 3.1 or Swagger"
            " 2.0)"
        )
    return number == "2"


# --- names ----------------------------------------------------------------------------------------


def split_words(text: str) -> list[str]:
    """Split `listPets` or `pets/list` into lower-case words of letters and decimal digits."""
    return _split_plain_words(_CAMEL_BOUNDARY.sub(" ", text))


def _split_plain_words(text: str) -> list[str]:
    joined = _APOSTROPHE.sub("", unicodedata.normalize("NFC", text)).lower()
    spaced = [character if _is_letter_or_digit(character) else " " for character in joined]
    return "".join(spaced).split()


def _is_letter_or_digit(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] == "L" or category == "Nd"


def build_slug(parts: list[str]) -> str:
    """Return a slug; empty if there are no words. It ends with a whole word if possible."""
    slug = ""
    for word in parts:
        longer = f"{slug}-{word}" if slug else word
        if len(longer) > MAX_LENGTH:
            return slug or word[:MAX_LENGTH]
        slug = longer
    return slug


def build_bundle_slug(name: str, title: str) -> str:
    """Return a slug for the given name, else for the significant words of the title."""
    title_words = _split_plain_words(title)  # a name like GitHub is one word
    specific = [word for word in title_words if word not in _NOISE_WORDS]
    significant = [word for word in specific if not _NUMBER.fullmatch(word)]
    candidates = map(build_slug, (_split_plain_words(name), significant, title_words))
    candidate = next(filter(None, candidates), "api")
    return candidate if is_python_name(candidate) else build_slug(["api", *candidate.split("-")])


def is_python_name(slug: str) -> bool:
    name = slug.replace("-", "_")
    return name.isidentifier() and not iskeyword(name)


def build_operation_slug(operation_id: str, method: str, path: str) -> str:
    candidate = build_slug(split_words(operation_id)) or build_slug([method, *split_words(path)])
    return candidate if is_python_name(candidate) else build_slug([method, *candidate.split("-")])


class UniqueNames:
    """A set of unique names.

    It remembers the last number of each name, because thousands may be equal.
    """

    def __init__(self, separator: str = "-") -> None:
        self._separator = separator
        self._names: set[str] = set()
        self._last: dict[str, int] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def claim(self, name: str) -> str:
        """Return the name, with a number if it is already used."""
        candidate = name
        while candidate in self._names:
            number = self._last[name] = self._last.get(name, 1) + 1
            candidate = f"{name[: MAX_LENGTH - 1 - len(str(number))]}{self._separator}{number}"
        self._names.add(candidate)
        return candidate


def to_version(text: object) -> str:
    """Return a valid version for `info.version`; `1` if no valid characters remain."""
    characters = "" if text is None else str(text)
    allowed = [c if c == "." or _is_letter_or_digit(c) else "-" for c in characters]
    valid = re.sub(r"-{2,}", "-", "".join(allowed)).strip("-")[:MAX_LENGTH]
    return valid if valid.strip(".") else "1"


def to_tags(names: Iterable[str]) -> list[str]:
    slugs = (_to_ascii_slug(name) for name in names)
    valid = (f"_{tag}" if tag[0].isdigit() else tag for tag in slugs if tag)
    return list(dict.fromkeys(tag[:MAX_LENGTH] for tag in valid))[:MAX_TAGS]


def _to_ascii_slug(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return "-".join(split_words(plain))


def to_argument_name(text: str, location: str, used_names: UniqueNames) -> str:
    """Return a Python name for a parameter, followed by its location if the name is already used."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    name = (
        re.sub(r"\W+", "_", plain.replace("[]", ""), flags=re.ASCII).strip("_")[:MAX_LENGTH]
        or location
    )
    name = f"{location}_{name}" if name[0].isdigit() else name
    name = f"{name}_" if iskeyword(name) else name
    return used_names.claim(f"{name[: MAX_LENGTH - 10]}_{location}" if name in used_names else name)


def to_secret_name(bundle: str, scheme: str) -> str:
    """Return the secret name: `PETSTORE_API_KEY` for bundle `petstore` and scheme `api_key`."""
    bundle_words = _to_ascii_slug(bundle).split("-")
    scheme_words = _to_ascii_slug(scheme).split("-")
    has_prefix = scheme_words[: len(bundle_words)] == bundle_words
    name_words = scheme_words if has_prefix else bundle_words + scheme_words
    parts = list(filter(None, name_words)) or ["API", "KEY"]
    name = "_".join(parts).upper()[:MAX_LENGTH].strip("_")
    return f"API_{name}" if name[0].isdigit() else name


# --- Swagger 2 ------------------------------------------------------------------------------------


def convert_servers(document: OpenApiDocument) -> list[JsonObject]:
    root = document.root
    host = as_text(root.get("host")).rpartition("://")[2].rstrip("/")
    base = as_text(root.get("basePath"))
    base = base if base.startswith("/") or not base else f"/{base}"
    schemes = as_list(root.get("schemes"))
    scheme = "http" if "http" in schemes and "https" not in schemes else "https"
    return [{"url": f"{scheme}://{host}{base}" if host else base or "/"}]


def convert_scheme(definition: JsonMapping) -> JsonMapping:
    return {"type": "http", "scheme": "basic"} if definition.get("type") == "basic" else definition


def convert_operation(
    document: OpenApiDocument, definition: JsonMapping, parameters: Iterable[JsonMapping]
) -> JsonObject:
    """Convert an operation with the resolved `parameters` of itself and its path."""
    all_parameters = list(parameters)
    plain = [
        _convert_parameter(parameter)
        for parameter in all_parameters
        if as_text(parameter.get("in")) not in {"body", "formData"}
    ]
    consumes = _list_media_types(document, definition, "consumes")
    body = _convert_body(all_parameters, consumes) or _convert_form(all_parameters, consumes)
    produces = _list_media_types(document, definition, "produces")
    content: JsonObject = {media_type: {} for media_type in produces}
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
    media_types = as_list(definition.get(key) or document.root.get(key))
    return [media_type for media_type in media_types if isinstance(media_type, str)]


def _convert_parameter(definition: JsonMapping) -> JsonObject:
    schema = {key: value for key, value in definition.items() if key not in _PARAMETER_KEYS}
    common = {key: definition[key] for key in _COMMON_KEYS if key in definition}
    converted = {**common, "schema": definition.get("schema", schema)}
    if definition.get("type") == "array":
        style = as_text(definition.get("collectionFormat"))
        converted |= _STYLES.get(style, _STYLES["csv"])
    return converted


def _convert_body(parameters: list[JsonMapping], consumes: list[str]) -> JsonObject | None:
    body = next((parameter for parameter in parameters if parameter.get("in") == "body"), None)
    if body is None:
        return None
    media = {"schema": body.get("schema", {})}
    content = dict.fromkeys(consumes or ["application/json"], media)
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
    properties: JsonObject = {}
    required: list[str] = []
    encoding: JsonObject = {}
    for parameter in fields:
        name = as_text(parameter.get("name"))
        converted = _convert_parameter(parameter)
        properties[name] = _add_description(converted)
        if converted.get("required") is True:
            required.append(name)
        encoding[name] = {key: converted[key] for key in ("style", "explode") if key in converted}
    schema = {"type": "object", "properties": properties, "required": required}
    media = {"schema": schema, "encoding": encoding}
    return {"required": True, "content": dict.fromkeys(media_types, media)}


def _add_description(parameter: JsonMapping) -> JsonObject:
    schema = dict(as_mapping(parameter["schema"]))
    if "description" in parameter:
        schema["description"] = parameter["description"]
    return schema
