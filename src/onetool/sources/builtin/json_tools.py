"""The `json` pack: a parser for untrusted JSON. `json.dumps` of Python writes JSON.

Validating against a hostile schema can take forever, so schemas that may be expensive are validated
in another process.
"""

import json
from math import isfinite
from typing import Any, NoReturn

from onetool.core.foreign_schema import MAX_SCHEMA_BYTES, ForeignSchema, find_problem_in_process
from onetool.core.schema_work import list_objects
from onetool.core.tool import tool
from onetool.errors import ArgumentError
from onetool_child.data import MAX_DEPTH, is_deeper_than
from onetool_child.json_types import JsonMapping, JsonObject
from onetool_child.messages import MAX_VALUES, has_few_values

__all__ = ["parse"]
MAX_BYTES = 8 << 20  # more would block the server for too long
MAX_NUMBER_CHARS = 40
COSTLY_KEYWORDS = frozenset({
    "$ref", "$dynamicRef", "$recursiveRef", "uniqueItems", "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
MAX_MESSAGE_CHARS = 1000


@tool(permissions=["read"], labels=())
def parse(json: str, schema: JsonObject | None = None) -> Any:
    """Parse JSON text into data. Raises an error if the text is not valid JSON.

    If a key occurs twice, the last one wins. NaN and Infinity are invalid; integers are exact. The
    limit is 120,000 values; for more, use Python's json.loads.

    Args:
        json: The JSON text.
        schema: A JSON Schema to validate the data against. References to other documents are rejected.

    Example:
        json.parse(json='{"name": "Otto"}', schema={"type": "object", "required": ["name"]})
    """
    size = len(json.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise _error(f"the text has {size:,} bytes, the limit is {MAX_BYTES:,}")
    if not has_few_values(json):
        hint = "use json.loads() of Python in the code"
        raise ArgumentError(
            f"the text has more than {MAX_VALUES:,} values", hint=hint, field="json"
        )
    text = json.removeprefix("\ufeff")
    data = _load(text)
    if is_deeper_than(data, MAX_DEPTH):
        raise _depth_error()
    if schema is not None:
        validate(data, schema, "json")
    return data


def _load(text: str) -> Any:
    import json

    try:
        return json.loads(text, parse_float=_parse_float, parse_constant=_reject_constant)
    except json.JSONDecodeError as error:
        raise _error(
            f"the text is not valid JSON: {error.msg} in line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        raise _depth_error() from None
    except ValueError:  # Python limits the number of digits
        raise _error("an integer has too many digits; put it in quotes") from None


def _parse_float(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise _error(f"{text[:MAX_NUMBER_CHARS]} is out of range; put it in quotes")
    return value


def _reject_constant(text: str) -> NoReturn:
    raise _error(
        f"the text is not valid JSON: {text} is not allowed; write null, or put it in quotes"
    )


def _depth_error() -> ArgumentError:
    return _error(f"the text is nested more than {MAX_DEPTH} levels deep")


def _error(message: str) -> ArgumentError:
    return ArgumentError(message, field="json")


# --- Schemas --------------------------------------------------------------------------------------


def validate(data: Any, schema: JsonMapping, field: str) -> None:
    """Validate the data against a schema and raise the first problem."""
    if is_deeper_than(schema, MAX_DEPTH):
        raise ArgumentError(
            f"the schema is nested more than {MAX_DEPTH} levels deep", field="schema"
        )
    if len(json.dumps(schema)) > MAX_SCHEMA_BYTES:
        raise ArgumentError(f"the schema is larger than {MAX_SCHEMA_BYTES:,} bytes", field="schema")
    if problem := _find_problem(data, schema):
        raise ArgumentError(
            f"the data does not match the schema: {problem[:MAX_MESSAGE_CHARS]}", field=field
        )


def _find_problem(data: Any, schema: JsonMapping) -> str | None:
    foreign = ForeignSchema.from_json(schema)
    foreign.are_references_limited = False
    if foreign.pattern_problem:
        raise ArgumentError(f"invalid schema: {foreign.pattern_problem}", field="schema")
    try:
        has_costly_keyword = any(
            not COSTLY_KEYWORDS.isdisjoint(part) for part in list_objects(schema)
        )
        if has_costly_keyword or foreign.is_costly(data):
            return find_problem_in_process(foreign, data)
        return foreign.problem(data)
    except ArgumentError as error:
        reason = str(error.fields["reason"]).partition("\n")[0]
        raise ArgumentError(
            f"invalid schema: {reason[:MAX_MESSAGE_CHARS]}", field="schema"
        ) from None
    except UnicodeEncodeError:
        return "a string contains an unpaired surrogate"
    except ValueError as error:  # for example, too many levels for the validator
        return str(error)
