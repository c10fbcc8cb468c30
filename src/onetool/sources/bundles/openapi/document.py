"""OpenAPI documents: parsing JSON or YAML with limits, resolving `$ref`, and shortening
descriptions for a model.

Only the version of the document is checked here. References are resolved inside one document;
nothing is ever fetched.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
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
