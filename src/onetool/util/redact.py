"""Remove the values of secrets from text that is about to be shown or stored.

A secret is recognized by its value: unchanged, in hexadecimal, in base64 at any offset, and in text
that is partly or completely escaped, up to three times: JSON and Python escapes, percent-encoding,
HTML entities, quoted-printable, UTF-16. Base64 may be wrapped, and pairs of hexadecimal digits may
be separated by colons or spaces. Each line of a multi-line secret is redacted too, because formats
may separate the lines.
"""

import base64
import html
import json
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

REDACTED = "[REDACTED]"
TOO_SLOW = "[REDACTED: searching the rest for secrets takes too long]"
MAX_SECONDS = 10.0  # of processor time for one text
MAX_PIECE_CHARS = 1 << 16
MIN_SECRET_CHARS = 4  # shorter values would redact too much
MIN_LINE_CHARS = 8  # of a line of a multi-line secret
MIN_ENCODED_CHARS = 8  # of base64 or hexadecimal digits; shorter sequences occur by chance
MAX_DECODINGS = 3
LARGE_TEXT_CHARS = 4_096  # from this size, one search for all forms is cheaper than one per form
MAX_ESCAPE_CHARS = 14  # length of the escape of one character, such as \\\\u00e9 or &#x1F600;
MAX_CUT_ESCAPE_CHARS = 64
MIN_WRAPPED_LINE_CHARS = 40  # a line of base64 this long may continue on the next line
GAP_BYTES = b" \t\r\n:"

Span = tuple[int, int]
Edit = tuple[int, int, int, int]  # start and end in the decoded text, and in the text before

_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "0": "\0"}
# The pattern begins with a character set, so that all other characters are skipped fast.
_ESCAPE = re.compile(
    r"[%=&\\\0](?:(?<=%)(?P<percent>[0-9A-Fa-f]{2}(?:%[0-9A-Fa-f]{2})*+)"
    r"|(?<==)(?P<quoted>\r?\n|[0-9A-F]{2}(?:=[0-9A-F]{2})*+)"
    r"|(?<=&)(?P<html>(?:\#[0-9]{1,7}|\#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});)"
    r"|(?<=\\)(?<!\\\\)\\*+(?:(?P<pair>u[dD][89abAB][0-9A-Fa-f]{2}\\++u[dD][c-fC-F][0-9A-Fa-f]{2})"
    r"|u(?P<short>[0-9A-Fa-f]{4})|U(?P<long>000[0-9A-Fa-f]{5})|x(?P<byte>[0-9A-Fa-f]{2}(?:\\++x[0-9A-Fa-f]{2})*+)"
    r"|(?P<other>.))"
    r"|(?<=\0)\0*+)",
    re.DOTALL,
)
# Separators of pairs of hexadecimal digits, and line breaks in wrapped base64.
_GAP = re.compile(
    r"[\r\n: ](?:(?:(?<=[0-9A-Fa-f]{2}[: ])|(?<=[0-9A-Fa-f]{2}[: ][0-9A-Fa-f]{2}[\r\n]))"
    r"[\r\n]{0,3}+[ \t]{0,16}+(?=[0-9A-Fa-f]{2}|[0-9A-Fa-f]?\Z)"
    rf"|(?<=[\w+/=-]{{{MIN_WRAPPED_LINE_CHARS}}}[\r\n])[\r\n]{{0,3}}+["
    r" \t]{0,16}+(?=[\w+/=-]|\Z))",
    re.ASCII,
)
# An incomplete escape at the end of the text, or the first bytes of a character in UTF-8.
_CUT_ESCAPE = re.compile(
    r"(?:(?:%[89A-Fa-f][0-9A-Fa-f]){0,3}(?:%[0-9A-Fa-f]?)?|(?:=[89A-F][0-9A-F]){0,3}(?:=[0-9A-F\r]?)?|&[\#\w]{0,31}"
    r"|(?:\\+x[89A-Fa-f][0-9A-Fa-f]){0,3}(?:\\+(?:[uU][0-9A-Fa-f]{0,7}|u[dD][89abAB][0-9A-Fa-f]{2}\\*|x[0-9A-Fa-f]?)?)?)\Z"
)


class Redactor:
    """A callable that returns a text without the secrets."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        values = {secret for secret in secrets if len(secret) >= MIN_SECRET_CHARS}
        lines = {line.strip() for value in values for line in value.splitlines()}
        self._values = values | {line for line in lines if len(line) >= MIN_LINE_CHARS}
        self._encoded_forms = sorted(
            {form for value in self._values for form in list_encodings(value)}
        )
        self._forms = sorted({form for value in self._values for form in _escape(value)})
        self._decoded_forms = sorted(
            {form for value in self._values for form in _decode_secret(value)}
        )
        self._max_form_chars = max(
            map(len, (*self._encoded_forms, *self._forms, *self._decoded_forms)), default=0
        )

    def __call__(self, text: str) -> str:
        """Redact a text.

        Call it in a thread if the text is long: it takes up to 3 µs per character.
        """
        if not self._forms:
            return text
        if len(text) > MAX_PIECE_CHARS:
            return "".join(self.redact_pieces([text]))
        return self._redact_until(text, 0, len(text))[0]

    def redact_data(self, value: Any) -> Any:
        """Redact all strings and numbers in JSON data."""
        if not self._forms or value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self(value)
        if isinstance(value, dict):
            return {self(key): self.redact_data(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.redact_data(item) for item in value]
        text = repr(value)
        return value if (redacted := self(text)) == text else redacted

    def redact_prefix(self, text: str, length: int) -> str:
        """Return the first `length` characters; a secret that continues after them is redacted too."""
        border = min(length, len(text))
        return self._redact_until(
            text[: border + MAX_ESCAPE_CHARS * self._max_form_chars], 0, border
        )[0]

    def redact_pieces(
        self, pieces: Iterable[str], *, max_seconds: float = MAX_SECONDS
    ) -> Iterator[str]:
        """Redact a text that consists of pieces.

        What takes more processor time than `max_seconds` is left out.
        """
        if not self._forms:
            yield from pieces
            return
        stream = self.stream()
        started = time.thread_time()
        for piece in _resize(pieces):
            yield stream.add(piece)
            if time.thread_time() - started > max_seconds:
                yield TOO_SLOW
                return
        yield stream.end()

    def stream(self) -> "RedactionStream":
        """Return a stream that redacts a text piece by piece."""
        return RedactionStream(self._redact_until, self._find_open_secret)

    def _find_open_secret(self, text: str) -> int:
        """Return where a secret starts that may continue after the text, else the length."""
        if not self._forms:
            return len(text)
        start = max(0, len(text) - MAX_ESCAPE_CHARS * self._max_form_chars - MIN_WRAPPED_LINE_CHARS)
        tail = text[start:]
        first = min(_find_partial(form, tail) for form in self._forms)
        layers = list[list[Edit]]()
        for _ in range(MAX_DECODINGS + 1):
            cut = _CUT_ESCAPE.search(tail, max(0, len(tail) - MAX_CUT_ESCAPE_CHARS))
            before = tail[: cut.start()] if cut else tail
            at = min(
                _find_partial(form, end) for form in self._decoded_forms for end in {before, tail}
            )
            first = min(first, _map_position(min(at, len(before)), layers, is_end=False))
            for end in {before, tail}:
                joined, gaps = _replace(end, _GAP, lambda _: "")
                at = min(
                    (_find_partial(form, joined) for form in self._encoded_forms),
                    default=len(joined),
                )
                if at < len(joined):
                    first = min(first, _map_position(at, [gaps, *layers], is_end=False))
            tail, edits = _decode(before)
            if not edits:
                break
            layers = [edits, *layers]
        return start + first

    def _redact_until(self, text: str, hidden: int, border: int) -> tuple[str, int]:
        """Return the redacted text up to the border, and the redacted characters after it.

        `hidden` is that number for the preceding text. Overlapping secrets are redacted as one.
        """
        if not self._forms:
            return text[hidden:border], max(0, hidden - border)
        parts = []
        at = hidden
        for start, end in sorted(self._find_secrets(text)):
            if start >= border:
                break
            if start >= at:
                parts += [text[at:start], REDACTED]
            at = max(at, end)
        return "".join([*parts, text[at:border]]), max(0, at - border)

    def _find_secrets(self, text: str) -> Iterator[Span]:
        yield from self._find_forms(self._forms, text)
        for decoded, layers in _decode_repeatedly(text):
            for start, end in self._find_forms(self._decoded_forms, decoded):
                yield (
                    _map_position(start, layers, is_end=False),
                    _map_position(end, layers, is_end=True),
                )

    def _find_forms(self, forms: list[str], text: str) -> Iterator[Span]:
        joined = ""
        gaps = list[Edit]()
        if len(text) < LARGE_TEXT_CHARS:
            if _GAP.search(text):
                joined, gaps = _replace(text, _GAP, lambda _: "")
        else:
            without_gaps = text.encode("utf-8", "surrogatepass").translate(None, GAP_BYTES)
            if not self._form_pattern.search(without_gaps):
                return
            if self._encoded_pattern.search(without_gaps):
                joined, gaps = _replace(text, _GAP, lambda _: "")
        yield from (
            span
            for group in (forms, self._encoded_forms)
            for form in group
            for span in _find_spans(form, text)
        )
        for start, end in (
            (span for form in self._encoded_forms for span in _find_spans(form, joined))
            if gaps
            else ()
        ):
            yield (
                _map_position(start, [gaps], is_end=False),
                _map_position(end, [gaps], is_end=True),
            )

    @cached_property
    def _form_pattern(self) -> Any:
        """A pattern that matches all forms without gaps in a text without gaps."""
        return _compile_pattern((*self._encoded_forms, *self._forms, *self._decoded_forms))

    @cached_property
    def _encoded_pattern(self) -> Any:
        return _compile_pattern(self._encoded_forms)


class RedactionStream:
    """A redactor of a text in pieces. It holds back what may be the start of a secret."""

    def __init__(
        self,
        redact_until: Callable[[str, int, int], tuple[str, int]],
        find_open_secret: Callable[[str], int],
    ) -> None:
        self._redact_until = redact_until
        self._find_open_secret = find_open_secret
        self._rest = ""
        self._hidden = 0

    @property
    def held_chars(self) -> int:
        return len(self._rest)

    def add(self, piece: str) -> str:
        """Add a piece and return the redacted text that is complete."""
        text = self._rest + piece
        border = self._find_open_secret(text)
        redacted, hidden = self._redact_until(text, self._hidden, border)
        kept = max(
            0, border - MIN_WRAPPED_LINE_CHARS - 1
        )  # needed to recognize a line break in wrapped base64
        self._rest = text[kept:]
        self._hidden = hidden + border - kept
        return redacted

    def end(self) -> str:
        """Return the rest of the redacted text."""
        return self._redact_until(self._rest, self._hidden, len(self._rest))[0]


def _resize(pieces: Iterable[str]) -> Iterator[str]:
    """Yield the text in pieces of at most `MAX_PIECE_CHARS`, joining short ones."""
    waiting: list[str] = []
    size = 0
    for piece in pieces:
        for start in range(0, len(piece), MAX_PIECE_CHARS):
            part = piece[start : start + MAX_PIECE_CHARS]
            if size + len(part) > MAX_PIECE_CHARS:
                yield "".join(waiting)
                waiting = []
                size = 0
            waiting.append(part)
            size += len(part)
    yield "".join(waiting)


# --- forms of a secret ----------------------------------------------------------------------------


def _escape(secret: str) -> Iterator[str]:
    yield from (secret, repr(secret)[1:-1])
    for is_ascii in (True, False):
        text = secret
        for _ in range(MAX_DECODINGS):
            text = json.dumps(text, ensure_ascii=is_ascii)[1:-1]
            yield text


def _decode_secret(secret: str) -> Iterator[str]:
    """Yield the secret as it appears in decoded text; the secret itself may contain escapes."""
    for text in (secret, secret.replace(" ", "+")):
        yield from (
            form
            for form in (text, *(form for form, _ in _decode_repeatedly(text)))
            if len(form) >= MIN_SECRET_CHARS
        )


def list_encodings(secret: str) -> Iterator[str]:
    """Yield the secret in hexadecimal, and the fixed part of its base64."""
    for encoding in ("utf-8", "utf-16-le"):
        data = secret.encode(encoding, "surrogatepass")
        encoded = [data.hex(), data.hex().upper()]
        for offset in range(3):
            text = base64.b64encode(bytes(offset) + data).decode().rstrip("=")
            whole = len(text) if (offset + len(data)) % 3 == 0 else len(text) - 1
            core = text[-(-offset * 8 // 6) : whole]
            encoded += [core, core.replace("+", "-").replace("/", "_")]
        yield from (form for form in encoded if len(form) >= MIN_ENCODED_CHARS)


def _decode_repeatedly(text: str) -> Iterator[tuple[str, list[list[Edit]]]]:
    """Yield the text with its escapes decoded, repeatedly, as long as decoding changes it.

    The edits map positions back to the original text, the last decoding first.
    """
    layers: list[list[Edit]] = []
    for _ in range(MAX_DECODINGS):
        text, edits = _decode(text)
        if not edits:
            return
        layers = [edits, *layers]
        yield text, layers


def _decode(text: str) -> tuple[str, list[Edit]]:
    return _replace(text, _ESCAPE, _unescape)


def _replace(
    text: str, pattern: re.Pattern[str], replacement: Callable[[re.Match[str]], str]
) -> tuple[str, list[Edit]]:
    parts = []
    edits = []
    at = 0
    length = 0
    for match in pattern.finditer(text):
        before = text[at : match.start()]
        decoded = replacement(match)
        length += len(before)
        edits.append((length, length + len(decoded), match.start(), match.end()))
        parts += [before, decoded]
        at = match.end()
        length = length + len(decoded)
    return "".join([*parts, text[at:]]), edits


def _unescape(match: re.Match[str]) -> str:
    """Return the character that an escape represents."""
    kind = match.lastgroup
    if kind in {"percent", "quoted", "byte"}:
        digits = re.sub(r"[^0-9A-Fa-f]", "", match[kind])
        return bytes.fromhex(digits).decode("utf-8", "replace")
    if kind == "html":
        return html.unescape(match[0])
    if kind == "pair":
        high, low = (int(part[1:5], 16) for part in re.split(r"\\+", match["pair"]))
        return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))
    if kind in {"short", "long"}:
        return chr(min(int(match[kind], 16), 0x10FFFF))
    return _CONTROLS.get(match["other"], match["other"]) if kind == "other" else ""


def _map_position(position: int, layers: list[list[Edit]], *, is_end: bool) -> int:
    """Map a decoded position to the original text, or to the border of an escape."""
    for edits in layers:
        position = _map_through(position, edits, is_end=is_end)
    return position


def _map_through(position: int, edits: list[Edit], *, is_end: bool) -> int:
    index = bisect_right(edits, position - is_end, key=lambda edit: edit[0]) - 1
    if index < 0:
        return position
    _, end, before_start, before_end = edits[index]
    if position < end or (is_end and position == end):
        return before_end if is_end else before_start
    return before_end + position - end


def _compile_pattern(forms: Iterable[str]) -> Any:
    """Return a pattern whose matching time does not depend on the number of forms."""
    import re2

    options = re2.Options()
    options.never_capture = True
    options.log_errors = False
    options.encoding = re2.Options.Encoding.LATIN1
    without_gaps = {
        form.encode("utf-8", "surrogatepass").translate(None, GAP_BYTES) for form in forms
    }
    return re2.compile(b"|".join(map(re2.escape, sorted(without_gaps))), options)


def _find_partial(form: str, text: str) -> int:
    at = text.find(form[0], max(0, len(text) - len(form) + 1))
    while at >= 0 and not form.startswith(text[at:]):
        at = text.find(form[0], at + 1)
    return at if at >= 0 else len(text)


def _find_spans(form: str, text: str) -> Iterator[Span]:
    """Yield the occurrences of a form; overlapping ones are merged."""
    start = text.find(form)
    while start >= 0:
        last = start
        following = text.find(form, start + 1)
        while 0 <= following < last + len(form):
            last = following
            following = text.find(form, following + 1)
        yield start, last + len(form)
        start = following
