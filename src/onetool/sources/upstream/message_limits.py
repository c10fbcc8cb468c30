"""Limits of messages from upstream servers, checked before the SDK parses them.

Parsing and validation block the event loop for a time that depends on the number of values. A
message over a limit is replaced by an error response to the same request: one call fails, and the
connection survives.
"""

import json
from typing import Any

from onetool.processes.collector import END_BYTES, find_id
from onetool_child.json_types import JsonObject
from onetool_child.messages import MAX_VALUES, TooLarge, has_few_values

MAX_UPSTREAM_BYTES = 8 << 20  # a message cannot be split, and images are large
MAX_ITEMS = 10_000  # in a list of a result; the SDK validates each one
MIN_CHARGED_BYTES = 1 << 12  # handling even a short message costs time
METHOD = b'"method"'  # in requests and notifications, not in responses


def admit(message: bytes, problem: str | None) -> bytes:
    """Return the message, or an error response in its place; nothing if it is not a response.

    `problem` is a problem that is already known. Raise TooLarge if the id of the request is
    unknown.
    """
    if problem is None and not has_few_values(message):
        problem = f"the message has more than {MAX_VALUES} values"
    return message if problem is None else reject(message, problem)


def reject(message: bytes, problem: str) -> bytes:
    if METHOD in message[:END_BYTES]:
        return b""
    ident = find_id(message)
    if ident is None:
        raise TooLarge(problem)
    return json.dumps(error_response(ident, problem)).encode()


def error_response(ident: int | str, reason: str) -> JsonObject:
    return {"jsonrpc": "2.0", "id": ident, "error": {"code": -32603, "message": reason}}


def has_too_many_items(result: Any) -> bool:
    return isinstance(result, dict) and any(
        isinstance(part, list) and len(part) > MAX_ITEMS for part in result.values()
    )
