"""Limits and schema validation for `json.parse` and `yaml.parse`.

Validating against a hostile schema can take forever. Schemas that may be expensive are validated in
another process.
"""

import json
from typing import Any

from onetool.core.foreign_schema import MAX_SCHEMA_BYTES, ForeignSchema, find_problem_in_process
from onetool.core.schema_work import list_objects
from onetool.errors import ArgumentError
from onetool_child.data import MAX_DEPTH, is_deeper_than
from onetool_child.json_types import JsonMapping

COSTLY_KEYWORDS = frozenset({
    "$ref", "$dynamicRef", "$recursiveRef", "uniqueItems", "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
MAX_MESSAGE_CHARS = 1000


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
