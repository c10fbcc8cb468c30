"""Estimates of the number of tokens of texts and values: bytes of UTF-8 divided by four."""

from typing import Any

from onetool.util.raw_json import RawJson

BYTES_PER_TOKEN = 4
MAX_COUNTED_ITEMS = 5_000  # of a list, because counting blocks the event loop


def count_text_tokens(text: str) -> int:
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return -(-size // BYTES_PER_TOKEN)


def _to_text(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - its __str__ may raise anything
        return ""


def count_tokens(value: Any) -> int:
    """Return the tokens of a value as JSON. The tokens of a long list are estimated from a sample."""
    if isinstance(value, str):
        return count_text_tokens(value)
    if isinstance(value, RawJson):
        return -(-value.size // BYTES_PER_TOKEN)
    if isinstance(value, list) and len(value) > 2 * MAX_COUNTED_ITEMS:
        sample = value[:: len(value) // MAX_COUNTED_ITEMS]
        return round(count_tokens(sample) * len(value) / len(sample))
    import orjson

    try:
        size = len(orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS))
    except Exception:  # noqa: BLE001 - integers over 64 bits, cycles, errors in methods of the object
        return count_text_tokens(_to_text(value))
    return -(-size // BYTES_PER_TOKEN)
