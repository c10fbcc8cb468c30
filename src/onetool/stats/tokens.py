"""Estimates of the number of tokens of texts and values: bytes of UTF-8 divided by four."""

from typing import Any

from onetool.stats.details import encode_value

BYTES_PER_TOKEN = 4


def count_tokens(value: Any) -> int:
    """Return the tokens of a text, or of a value as JSON. The tokens of a long list are estimated from a sample."""
    return -(-encode_value(value)[1] // BYTES_PER_TOKEN)
