"""Remove the values of secrets from text that is about to be shown or stored.

A secret is recognized by its value: as it is, hexadecimal, in base64 at any offset, and in text whose characters are
escaped, some or all of them, up to three times over: JSON and Python escapes, percent-encoding, HTML entities,
quoted-printable, UTF-16. Base64 may be wrapped in lines, and a colon or a space may stand between pairs of hexadecimal
digits. Each line of a secret that has several counts too, because formats put lines apart.
"""

import base64
import html
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

REDACTED = "[REDACTED]"
SHORTEST_SECRET = 4  # a shorter one would redact half the text
SHORTEST_LINE = 8  # of a secret that has several
SHORTEST_CODED = 8  # characters of base64 or hexadecimal digits: fewer occur by chance
MAX_DECODINGS = 3
LARGE_TEXT = 4_096  # characters from which on one search for all forms is cheaper than one for each
LONGEST_ESCAPE = 14  # characters that stand for one, like \\\\u00e9 or &#x1F600;
MAX_CUT_ESCAPE = 64
WRAPPED_LINE = 40  # characters of base64 without a break, at least, before the line goes on in the next
GAP_BYTES = b" \t\r\n:"

Span = tuple[int, int]
Edit = tuple[int, int, int, int]  # start and end in the decoded text, and in the text before

_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "0": "\0"}
# It begins with a set of characters, so that all others are skipped fast.
_ESCAPE = re.compile(
    r"[%=&\\\0](?:(?<=%)(?P<percent>[0-9A-Fa-f]{2}(?:%[0-9A-Fa-f]{2})*+)"
    r"|(?<==)(?P<quoted>\r?\n|[0-9A-F]{2}(?:=[0-9A-F]{2})*+)"
    r"|(?<=&)(?P<html>(?:\#[0-9]{1,7}|\#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});)"
    r"|(?<=\\)\\*+(?:(?P<pair>u[dD][89abAB][0-9A-Fa-f]{2}\\++u[dD][c-fC-F][0-9A-Fa-f]{2})"
    r"|u(?P<short>[0-9A-Fa-f]{4})|U(?P<long>000[0-9A-Fa-f]{5})|x(?P<byte>[0-9A-Fa-f]{2}(?:\\++x[0-9A-Fa-f]{2})*+)"
    r"|(?P<other>.))"
    r"|(?<=\0)\0*+)",
    re.DOTALL,
)
# What stands between pairs of hexadecimal digits, and a line break behind a long run of base64.
_GAP = re.compile(
    r"[\r\n: ](?:(?:(?<=[0-9A-Fa-f]{2}[: ])|(?<=[0-9A-Fa-f]{2}[: ][0-9A-Fa-f]{2}[\r\n]))"
    r"[\r\n]{0,3}+[ \t]{0,16}+(?=[0-9A-Fa-f]{2}|[0-9A-Fa-f]?\Z)"
    rf"|(?<=[\w+/=-]{{{WRAPPED_LINE}}}[\r\n])[\r\n]{{0,3}}+[ \t]{{0,16}}+(?=[\w+/=-]|\Z))",
    re.ASCII,
)
# An escape that goes on behind the end of the text, or the first bytes of a character in UTF-8.
_CUT_ESCAPE = re.compile(
    r"(?:(?:%[89A-Fa-f][0-9A-Fa-f]){0,3}(?:%[0-9A-Fa-f]?)?|(?:=[89A-F][0-9A-F]){0,3}(?:=[0-9A-F\r]?)?|&[\#\w]{0,31}"
    r"|(?:\\+x[89A-Fa-f][0-9A-Fa-f]){0,3}(?:\\+(?:[uU][0-9A-Fa-f]{0,7}|u[dD][89abAB][0-9A-Fa-f]{2}\\*|x[0-9A-Fa-f]?)?)?)\Z"
)


class Redactor:
    """`redact(text)` returns the text without the secrets."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {secret for secret in secrets if len(secret) >= SHORTEST_SECRET}
        lines = {line.strip() for secret in known for line in secret.splitlines()}
        known |= {line for line in lines if len(line) >= SHORTEST_LINE}
        self._coded = sorted({form for secret in known for form in _coded(secret)})
        self._forms = sorted({form for secret in known for form in _forms(secret)})
        self._decoded_forms = sorted({form for secret in known for form in _decoded_forms(secret)})
        self._longest = max(map(len, (*self._coded, *self._forms, *self._decoded_forms)), default=0)

    def __call__(self, text: str) -> str:
        return self._redacted(text, 0, len(text))[0] if self._forms else text

    def in_data(self, value: Any) -> Any:
        """The same for all texts and numbers in JSON data."""
        if not self._forms or value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self(value)
        if isinstance(value, dict):
            return {self(key): self.in_data(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.in_data(item) for item in value]
        shown = repr(value)
        return value if (hidden := self(shown)) == shown else hidden

    def beginning(self, text: str, length: int) -> str:
        """The first so many characters; of a secret that goes on behind them nothing is left either."""
        border = min(length, len(text))
        return self._redacted(text[: border + LONGEST_ESCAPE * self._longest], 0, border)[0]

    def pieces(self, pieces: Iterable[str]) -> Iterator[str]:
        """The same for a text in pieces."""
        stream = self.stream()
        for piece in pieces:
            yield stream.add(piece)
        yield stream.end()

    def stream(self) -> "Stream":
        """For a text that comes piece by piece."""
        return Stream(self._redacted, self._open_end)

    def cut(self, text: str) -> str:
        """A text that somebody has cut off; where that was inside of a secret, nothing of it is left either."""
        return self.stream().add(text)

    def _open_end(self, text: str) -> int:
        """Where a secret may have begun that the text does not end; the length of the text where none has."""
        if not self._forms:
            return len(text)
        start = max(0, len(text) - LONGEST_ESCAPE * self._longest - WRAPPED_LINE)
        tail = text[start:]
        opened, layers = min(_open(form, tail) for form in self._forms), list[list[Edit]]()
        for _ in range(MAX_DECODINGS + 1):
            cut = _CUT_ESCAPE.search(tail, max(0, len(tail) - MAX_CUT_ESCAPE))
            before = tail[: cut.start()] if cut else tail
            at = min(_open(form, end) for form in self._decoded_forms for end in {before, tail})
            opened = min(opened, _place(min(at, len(before)), layers, is_end=False))
            for end in {before, tail}:
                joined, gaps = _replace(end, _GAP, lambda _: "")
                at = min((_open(form, joined) for form in self._coded), default=len(joined))
                if at < len(joined):
                    opened = min(opened, _place(at, [gaps, *layers], is_end=False))
            tail, edits = _decode(before)
            if not edits:
                break
            layers = [edits, *layers]
        return start + opened

    def _redacted(self, text: str, hidden: int, border: int) -> tuple[str, int]:
        """The text up to the border, and how much behind it belongs to a secret whose mark is there already.

        `hidden` is that of the text before this one. Secrets that overlap are one, so that no end of any is left.
        """
        shown, at = [], hidden
        for start, end in sorted(self._spans(text)):
            if start >= border:
                break
            if start >= at:
                shown += [text[at:start], REDACTED]
            at = max(at, end)
        return "".join([*shown, text[at:border]]), max(0, at - border)

    def _spans(self, text: str) -> Iterator[Span]:
        yield from self._find(self._forms, text)
        for decoded, layers in _decodings(text):
            for start, end in self._find(self._decoded_forms, decoded):
                yield _place(start, layers, is_end=False), _place(end, layers, is_end=True)

    def _find(self, forms: list[str], text: str) -> Iterator[Span]:
        joined, gaps = "", list[Edit]()
        if len(text) < LARGE_TEXT:
            if _GAP.search(text):
                joined, gaps = _replace(text, _GAP, lambda _: "")
        else:
            without_gaps = text.encode("utf-8", "surrogatepass").translate(None, GAP_BYTES)
            if not self._any_form.search(without_gaps):
                return
            if self._any_coded.search(without_gaps):
                joined, gaps = _replace(text, _GAP, lambda _: "")
        yield from (span for some in (forms, self._coded) for form in some for span in _spans(form, text))
        for start, end in (span for form in self._coded for span in _spans(form, joined)) if gaps else ():
            yield _place(start, [gaps], is_end=False), _place(end, [gaps], is_end=True)

    @cached_property
    def _any_form(self) -> Any:
        """A pattern for all forms without gaps, to be searched in a text without gaps."""
        return _any_of((*self._coded, *self._forms, *self._decoded_forms))

    @cached_property
    def _any_coded(self) -> Any:
        return _any_of(self._coded)


class Stream:
    """What could be the beginning of a secret is held back until it is known, so that one across a border is seen."""

    def __init__(self, redacted: Callable[[str, int, int], tuple[str, int]], open_end: Callable[[str], int]) -> None:
        self._redacted, self._open_end = redacted, open_end
        self._rest, self._hidden = "", 0

    def add(self, piece: str) -> str:
        """What may be shown after this piece."""
        text = self._rest + piece
        border = self._open_end(text)
        shown, hidden = self._redacted(text, self._hidden, border)
        kept = max(0, border - WRAPPED_LINE - 1)  # what tells whether a line break is one in wrapped base64
        self._rest, self._hidden = text[kept:], hidden + border - kept
        return shown

    def end(self) -> str:
        """What is left, now that nothing follows."""
        return self._redacted(self._rest, self._hidden, len(self._rest))[0]


# --- how a secret may be written -------------------------------------------------------------------------------------


def _forms(secret: str) -> Iterator[str]:
    yield from (secret, repr(secret)[1:-1])
    for is_ascii in (True, False):
        text = secret
        for _ in range(MAX_DECODINGS):
            text = json.dumps(text, ensure_ascii=is_ascii)[1:-1]
            yield text


def _decoded_forms(secret: str) -> Iterator[str]:
    """How the secret looks in a text that was decoded once, twice and so on: it may have escapes of its own."""
    for text in (secret, secret.replace(" ", "+")):
        yield from (form for form in (text, *(form for form, _ in _decodings(text))) if len(form) >= SHORTEST_SECRET)


def _coded(secret: str) -> Iterator[str]:
    """Hexadecimal and base64, of the latter only what does not depend on the bytes before and after."""
    for encoding in ("utf-8", "utf-16-le"):
        data = secret.encode(encoding, "surrogatepass")
        coded = [data.hex(), data.hex().upper()]
        for offset in range(3):
            text = base64.b64encode(bytes(offset) + data).decode().rstrip("=")
            whole = len(text) if (offset + len(data)) % 3 == 0 else len(text) - 1
            core = text[-(-offset * 8 // 6) : whole]
            coded += [core, core.replace("+", "-").replace("/", "_")]
        yield from (form for form in coded if len(form) >= SHORTEST_CODED)


def _decodings(text: str) -> Iterator[tuple[str, list[list[Edit]]]]:
    """The text with its escapes decoded, then decoded again, and so on, as long as that changes it.

    The edits of each time lead back to the text itself, the last ones first.
    """
    layers: list[list[Edit]] = []
    for _ in range(MAX_DECODINGS):
        text, edits = _decode(text)
        if not edits:
            return
        layers = [edits, *layers]
        yield text, layers


def _decode(text: str) -> tuple[str, list[Edit]]:
    return _replace(text, _ESCAPE, _meant)


def _replace(
    text: str, pattern: re.Pattern[str], replacement: Callable[[re.Match[str]], str]
) -> tuple[str, list[Edit]]:
    parts, edits, at, length = [], [], 0, 0
    for match in pattern.finditer(text):
        before, meant = text[at : match.start()], replacement(match)
        length += len(before)
        edits.append((length, length + len(meant), match.start(), match.end()))
        parts += [before, meant]
        at, length = match.end(), length + len(meant)
    return "".join([*parts, text[at:]]), edits


def _meant(match: re.Match[str]) -> str:
    """What an escape stands for."""
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


def _place(position: int, layers: list[list[Edit]], *, is_end: bool) -> int:
    """Where a position of the decoded text is in the text itself; inside of an escape, at its start or its end."""
    for edits in layers:
        position = _place_before(position, edits, is_end=is_end)
    return position


def _place_before(position: int, edits: list[Edit], *, is_end: bool) -> int:
    index = bisect_right(edits, position - is_end, key=lambda edit: edit[0]) - 1
    if index < 0:
        return position
    _, end, before_start, before_end = edits[index]
    if position < end or (is_end and position == end):
        return before_end if is_end else before_start
    return before_end + position - end


def _any_of(forms: Iterable[str]) -> Any:
    """Return a pattern that takes time that does not depend on how many forms there are."""
    import re2

    options = re2.Options()
    options.never_capture, options.log_errors = True, False
    options.encoding = re2.Options.Encoding.LATIN1
    without_gaps = {form.encode("utf-8", "surrogatepass").translate(None, GAP_BYTES) for form in forms}
    return re2.compile(b"|".join(map(re2.escape, sorted(without_gaps))), options)


def _open(form: str, text: str) -> int:
    at = text.find(form[0], max(0, len(text) - len(form) + 1))
    while at >= 0 and not form.startswith(text[at:]):
        at = text.find(form[0], at + 1)
    return at if at >= 0 else len(text)


def _spans(form: str, text: str) -> Iterator[Span]:
    """Where it stands; places that overlap are one."""
    start = text.find(form)
    while start >= 0:
        last, following = start, text.find(form, start + 1)
        while 0 <= following < last + len(form):
            last, following = following, text.find(form, following + 1)
        yield start, last + len(form)
        start = following
