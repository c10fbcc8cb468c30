"""Encodings of secrets and invisible characters, for tests of redaction and sanitizing."""

import base64
import html
import json
import quopri
import re
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

SECRETS = (
    "sk-live-Abc123/xyz+==9",
    "pä\"ss\\wörd'1",
    "s3cr3t value&more<x>",
    "hunter2hunter2",
    "ghp_0123456789abcdef",
)


def encodings(secret: str) -> Iterator[tuple[str, str]]:
    data, once = secret.encode(), json.dumps(secret)
    yield "plain", secret
    yield "repr", repr(secret)
    yield "bytes", repr(data)
    yield "quote", quote(secret, safe="")
    yield "quote in part", quote(secret)
    yield "quote plus", quote_plus(secret)
    yield "percent", "".join(f"%{byte:02X}" for byte in data)
    yield "percent lower", "".join(f"%{byte:02x}" for byte in data)
    yield (
        "percent mixed",
        "".join(f"%{ord(char):02x}" if char in "abcs3e-_" else char for char in secret),
    )
    yield "percent twice", quote(quote(secret, safe=""), safe="")
    for offset in range(3):
        yield f"base64 at {offset}", base64.b64encode(b"x" * offset + data + b"behind").decode()
        yield (
            f"base64 at {offset} without padding",
            base64.urlsafe_b64encode(b"x" * offset + data).decode().rstrip("="),
        )
    for width in (64, 76):
        text = base64.b64encode(b"x" * (width * 3 // 4 - 5) + data + b"behind" * 9).decode()
        lines = [text[at : at + width] for at in range(0, len(text), width)]
        yield f"base64 in lines of {width}", "\n".join(lines)
        yield f"base64 in lines of {width}, indented", "\r\n    ".join(lines)
        yield f"base64 in lines of {width} in JSON", json.dumps("\n".join(lines))
    yield "base64 of UTF-16", base64.b64encode(secret.encode("utf-16-le")).decode()
    yield "percent in base64", quote(base64.b64encode(data).decode(), safe="")
    yield "hex", data.hex()
    yield "hex upper", data.hex().upper()
    yield "hex with colons", data.hex(":")
    yield "hex with spaces", data.hex(" ").upper()
    yield "hex in lines", data.hex(":", 1).replace(":", ":\n    ", 7)
    yield (
        "hex in lines without a space at the end",
        re.sub(r"((?:\w\w ){7}\w\w) ", r"\1\n", data.hex(" ")),
    )
    yield "html", html.escape(secret)
    yield "html twice", html.escape(html.escape(secret))
    yield "html decimal", "".join(f"&#{ord(char)};" for char in secret)
    yield "html hex", "".join(f"&#x{ord(char):X};" for char in secret)
    yield "json", once
    yield "json in json", json.dumps(once)
    yield "json in json in json", json.dumps(json.dumps(once))
    yield "json of percent", json.dumps({"url": f"https://x/?key={quote(secret, safe='')}&b=1"})
    yield "unicode escapes", "".join(f"\\u{ord(char):04x}" for char in secret)
    yield "byte escapes", "".join(f"\\x{byte:02x}" for byte in data)
    yield "quoted-printable", quopri.encodestring(data).decode()
    yield "UTF-16", "\0".join(secret)


ALL = [(name, secret, text) for secret in SECRETS for name, text in encodings(secret)]


INVISIBLE_CHARACTERS = {
    "zero-width space": "\u200b",
    "zero-width joiner": "\u200d",
    "zero-width non-joiner": "\u200c",
    "word joiner": "\u2060",
    "byte order mark": "\ufeff",
    "soft hyphen": "\u00ad",
    "combining grapheme joiner": "\u034f",
    "right-to-left override": "\u202e",
    "isolate": "\u2066",
    "right-to-left mark": "\u200f",
    "Arabic letter mark": "\u061c",
    "tag": "\U000e0041",
    "language tag": "\U000e0001",
    "variation selector 1": "\ufe00",
    "supplementary variation selector": "\U000e0100",
    "last supplementary variation selector": "\U000e01ef",
    "Mongolian vowel separator": "\u180e",
    "Hangul filler": "\u3164",
    "half-width Hangul filler": "\uffa0",
    "Hangul choseong filler": "\u115f",
    "interlinear annotation": "\ufff9",
    "null": "\x00",
    "backspace": "\x08",
    "escape": "\x1b",
    "delete": "\x7f",
    "CSI": "\x9b",
    "next line": "\x85",
}
