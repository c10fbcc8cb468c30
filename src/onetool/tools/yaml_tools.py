"""The `yaml` pack: YAML text as data, however hostile the text."""

from typing import Any

from onetool._tool import tool
from onetool.errors import ArgumentError, ConfigError
from onetool.tools.parsing import check

__all__ = ["parse"]


@tool(permissions=["read"])
def parse(yaml: str, schema: dict[str, Any] | None = None) -> Any:
    """YAML text as data, by the rules of YAML 1.2: `on`, `yes` and `012` are not what older YAML makes of them.

    The text is one document. Keys are always text, equal keys are an error, and no tag makes an object.

    Args:
        yaml: The text.
        schema: A JSON Schema that the data must fit. It may not refer to other documents.

    Example:
        yaml.parse(yaml="name: Otto", schema={"type": "object", "required": ["name"]})
    """
    import json

    from onetool.util import yaml12

    try:
        data = yaml12.read(yaml, "yaml").data
    except ConfigError as error:
        raise ArgumentError(error.message, hint=error.hint, field="yaml") from None
    if schema is not None:
        check(data, json.dumps(data), schema, "yaml")
    return data
