"""The `json` pack: JSON text as data, however hostile the text. Writing JSON is Python's own `json.dumps`."""

from math import isfinite
from typing import Any, NoReturn

from onetool._tool import tool
from onetool.errors import ArgumentError
from onetool.tools.parsing import MAX_DEPTH, check, is_deeper_than
from onetool_child.messages import MAX_VALUES, has_few_values

__all__ = ["parse"]

MAX_BYTES = 8 << 20  # more would hold the server up for too long
LONGEST_NUMBER_SHOWN = 40


@tool(permissions=["read"])
def parse(json: str, schema: dict[str, Any] | None = None) -> Any:
    """JSON text as data: what the text says, and an error where it is not JSON.

    Of two equal keys the last one counts. NaN and Infinity are no JSON; integers are exact, however large. A text has
    at most 120,000 values; for more, use json.loads of Python.

    Args:
        json: The text.
        schema: A JSON Schema that the data must fit. It may not refer to other documents.

    Example:
        json.parse(json='{"name": "Otto"}', schema={"type": "object", "required": ["name"]})
    """
    size = len(json.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise _wrong(f"the text has {size:,} bytes; at most {MAX_BYTES:,} are read")
    if not has_few_values(json):
        hint = "json.loads() parses it in the code"
        raise ArgumentError(f"the text has more than {MAX_VALUES:,} values", hint=hint, field="json")
    text = json.removeprefix("\ufeff")
    data = _loaded(text)
    if is_deeper_than(data, MAX_DEPTH):
        raise _too_deep()
    if schema is not None:
        check(data, text, schema, "json")
    return data


def _loaded(text: str) -> Any:
    import json

    try:
        return json.loads(text, parse_float=_number, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise _wrong(f"the text is not JSON: {error.msg} in line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:  # from Python's own bound on digits
        raise _wrong("an integer in the text has too many digits; put it in quotes") from None


def _number(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise _wrong(f"{text[:LONGEST_NUMBER_SHOWN]} is too large for a number; put it in quotes")
    return value


def _no_number(text: str) -> NoReturn:
    raise _wrong(f"the text is not JSON: {text} is no number there; write null, or put it in quotes")


def _too_deep() -> ArgumentError:
    return _wrong(f"the text is nested more than {MAX_DEPTH} deep")


def _wrong(message: str) -> ArgumentError:
    return ArgumentError(message, field="json")
