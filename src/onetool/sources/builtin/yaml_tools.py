"""The `yaml` pack: a parser for untrusted YAML."""

from typing import Any

from onetool.core.tool import tool
from onetool.errors import ArgumentError, ConfigError
from onetool.sources.builtin.json_tools import validate
from onetool_child.json_types import JsonObject

__all__ = ["parse"]


@tool(permissions=["read"], labels=())
def parse(yaml: str, schema: JsonObject | None = None) -> Any:
    """Parse YAML 1.2 text into data: `on` and `yes` are strings, `012` is 12.

    The text is one document. Keys are strings, duplicate keys are an error, and tags never create
    objects.

    Args:
        yaml: The YAML text.
        schema: A JSON Schema to validate the data against. References to other documents are rejected.

    Example:
        yaml.parse(yaml="name: Otto", schema={"type": "object", "required": ["name"]})
    """
    from onetool.util import yaml_loader

    try:
        data = yaml_loader.read(yaml, "yaml").data
    except ConfigError as error:
        raise ArgumentError(error.message, hint=error.hint, field="yaml") from None
    if schema is not None:
        validate(data, schema, "yaml")
    return data
