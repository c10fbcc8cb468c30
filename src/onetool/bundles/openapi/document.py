"""The text of an OpenAPI document as plain data: JSON or YAML, of a size and depth that can be walked.

It tells which version the document is of and looks no further into it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

from onetool.bundles.imported import most_values
from onetool.bundles.rules import invalid
from onetool.errors import BundleError, ConfigError

MAX_BYTES: Final = 64 * 1024 * 1024
MAX_DEPTH: Final = 100
MAX_VALUES: Final = 4_000_000  # in memory a value is many times as large as `[],` is in a file
_LARGEST = 2**64 - 1
_SMALLEST = -(2**63)


@dataclass(frozen=True, slots=True)
class Document:
    root: dict[str, Any]
    is_swagger: bool  # version 2, before it was called OpenAPI

    def section(self, name: str) -> Mapping[str, Any]:
        return as_mapping(self.root.get(name))


def as_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def as_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def read(document: bytes | str) -> Document:
    text = _decoded(document)
    root = _json(text) if text.lstrip().startswith("{") else _yaml(text)
    if not isinstance(root, dict):
        raise invalid("this is no OpenAPI document: at its top there is no mapping")
    _check_depth(root)
    return Document(root, is_swagger=_is_swagger(root))


def _decoded(document: bytes | str) -> str:
    try:
        raw = document.encode() if isinstance(document, str) else document
        if len(raw) > MAX_BYTES:
            raise invalid(f"the document has {len(raw):,} bytes; at most {MAX_BYTES:,} are read")
        if most_values(raw) > MAX_VALUES:
            raise invalid(f"the document holds more than {MAX_VALUES:,} values")
        return raw.decode("utf-8-sig")
    except UnicodeError:
        raise invalid("the document is not UTF-8 text; save it as UTF-8") from None


def _json(text: str) -> Any:
    import orjson

    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        reason = str(error)
    try:
        return _yaml(text)  # YAML may begin with a brace as well
    except BundleError:
        raise invalid(f"the document is not valid JSON: {reason}") from None


def _yaml(text: str) -> Any:
    from onetool.util import yaml12

    try:
        return _portable(yaml12.read(text, "the document").data)
    except ConfigError as error:
        is_large = error.fields.get("code") == yaml12.TOO_LARGE
        hint = "a document as large as this is read as JSON" if is_large else error.hint
        raise invalid(f"{error.message}; {hint}" if hint else error.message) from None


def _portable(value: Any) -> Any:
    """YAML has numbers that JSON has not. Depth is bounded by who read it."""
    if isinstance(value, dict):
        return {key: _portable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_portable(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    if isinstance(value, int) and not _SMALLEST <= value <= _LARGEST:
        return str(value)
    return value


def _check_depth(root: Any) -> None:
    """Whoever walks the document later may recurse."""
    level, depth = [root], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise invalid(f"the document is nested more than {MAX_DEPTH} deep")
        level = [child for node in level for child in _children(node)]


def _children(node: Any) -> Iterator[Any]:
    children = node.values() if isinstance(node, dict) else node
    return (child for child in children if isinstance(child, dict | list))


def _is_swagger(root: Mapping[str, Any]) -> bool:
    version = root.get("openapi", root.get("swagger"))
    if version is None:
        raise invalid('this is no OpenAPI document: it has neither `openapi: 3.x` nor `swagger: "2.0"` at its top')
    number = str(version).partition(".")[0]
    if number not in {"2", "3"}:
        raise invalid(f"OpenAPI {str(version)[:20]!r} is not known; 3.0, 3.1 and Swagger 2.0 are")
    return number == "2"
