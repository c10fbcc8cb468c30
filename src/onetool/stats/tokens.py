"""Estimates of the number of tokens of texts and values: bytes of UTF-8 divided by four."""

from typing import Any

from onetool.util.raw_json import RawJson

BYTES_A_TOKEN = 4
MAX_COUNTED_ITEMS = 5_000  # of a list, because counting blocks the event loop


def tokens_of_text(text: str) -> int:
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return -(-size // BYTES_A_TOKEN)


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - see below
        return ""


def tokens_of(value: Any) -> int:
    """Return the tokens of a value as JSON. The tokens of a long list are estimated from a sample."""
    if isinstance(value, str):
        return tokens_of_text(value)
    if isinstance(value, RawJson):
        return -(-value.size // BYTES_A_TOKEN)
    if isinstance(value, list) and len(value) > 2 * MAX_COUNTED_ITEMS:
        some = value[:: len(value) // MAX_COUNTED_ITEMS]
        return round(tokens_of(some) * len(value) / len(some))
    import orjson

    try:
        size = len(orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS))
    except Exception:  # noqa: BLE001 - integers over 64 bits, cycles, errors in methods of the object
        return tokens_of_text(_text(value))
    return -(-size // BYTES_A_TOKEN)
