"""JSON in request bodies: which content types are JSON, and how values are serialized."""

import json
from typing import Any

from onetool.errors import ArgumentError

_JSON_SEQUENCE_TYPES = ("ndjson", "jsonl", "jsonlines", "json-lines", "json-seq", "json-stream", "stream+json")


def dumps(value: Any) -> bytes:
    """Serialize to JSON. `json` accepts what orjson rejects: large integers, lone surrogates, deep nesting."""
    import orjson

    try:
        return orjson.dumps(value)
    except TypeError:
        pass
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ArgumentError(f"cannot serialize a value as JSON: {reason}") from None


def is_json(kind: str) -> bool:
    """Return whether the content type is a single JSON document, not a sequence of them."""
    return "json" in kind and not kind.endswith(_JSON_SEQUENCE_TYPES)
