"""Descriptions of pydantic's errors in the words of our messages."""

import re
from collections.abc import Mapping
from typing import Any, Final

SUBJECT: Final = re.compile(r"^\w+ should ")  # "Input should be ...", "String should match ..."
PHRASES: Final = {
    "missing": "is required",
    "extra_forbidden": "unknown field",
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type"), "must be an object"),
    **dict.fromkeys(("list_type", "tuple_type"), "must be an array"),
}


def describe_problem(error: Mapping[str, Any]) -> str:
    """Return what is wrong with the value of an error, without the value."""
    message = str(error["msg"]).removeprefix("Value error, ")
    return PHRASES.get(error["type"]) or SUBJECT.sub("must ", message)
