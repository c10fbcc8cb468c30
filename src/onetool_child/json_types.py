"""The types of JSON objects: `JsonObject` may be changed, `JsonMapping` is only read."""

from collections.abc import Mapping
from typing import Any

JsonObject = dict[str, Any]
JsonMapping = Mapping[str, Any]
