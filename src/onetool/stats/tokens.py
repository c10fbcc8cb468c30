"""How many tokens a text or a value would be in a model's context: an estimate, bytes of UTF-8 divided by four."""

from typing import Any

from onetool.util.raw_json import RawJson

BYTES_A_TOKEN = 4
MAX_COUNTED_ITEMS = 5_000  # of a list: the event loop waits for the count


def tokens_of_text(text: str) -> int:
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return -(-size // BYTES_A_TOKEN)


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - see below
        return ""


def tokens_of(value: Any) -> int:
    """Of data, as JSON writes it; what is no data counts as nothing. Of a long list, some items stand for all."""
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
    except Exception:  # noqa: BLE001 - numbers over 64 bits, circles, and whatever the methods of an object raise
        return tokens_of_text(_text(value))
    return -(-size // BYTES_A_TOKEN)
