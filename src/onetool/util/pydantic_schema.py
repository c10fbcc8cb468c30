"""JSON Schemas that pydantic makes from types.

Import it only where it is needed: pydantic is slow to load.
"""

from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from onetool_child.json_types import JsonMapping, JsonObject


class _UntitledSchema(GenerateJsonSchema):
    """Schemas without titles for fields, which only repeat their names."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - the signature of pydantic
        return False


def describe_types(types: JsonMapping) -> tuple[dict[str, JsonObject], JsonObject]:
    """Return the schema of each type, and the definitions that they share.

    Types without a schema accept anything.
    """
    adapters = {
        name: adapter
        for name, annotation in types.items()
        if (adapter := _make_adapter(annotation)) is not None
    }
    inputs: list[Any] = [(name, "validation", adapter) for name, adapter in adapters.items()]
    schemas, shared = TypeAdapter.json_schemas(inputs, schema_generator=_UntitledSchema)
    return {name: schemas.get((name, "validation"), {}) for name in types}, shared.get("$defs", {})


def _make_adapter(annotation: Any) -> TypeAdapter[Any] | None:
    try:
        adapter = TypeAdapter(annotation)
        adapter.json_schema(schema_generator=_UntitledSchema)
    except Exception:  # noqa: BLE001 - types of extensions may be anything, and pydantic has no common error
        return None
    return adapter
