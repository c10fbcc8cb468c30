"""Descriptions of pydantic's errors in the words of our messages."""

import re

from onetool_child.json_types import JsonMapping

SUBJECT = re.compile(r"^\w+ should ")  # "Input should be ...", "String should match ..."
PHRASES = {
    "missing": "is required",
    "extra_forbidden": "unknown field",
    **dict.fromkeys(
        ("dict_type", "mapping_type", "model_type", "model_attributes_type"), "must be an object"
    ),
    **dict.fromkeys(("list_type", "tuple_type"), "must be an array"),
}


def describe_problem(error: JsonMapping) -> str:
    """Return what is wrong with the value of an error, without the value."""
    message = str(error["msg"]).removeprefix("Value error, ")
    return PHRASES.get(error["type"]) or SUBJECT.sub("must ", message)
