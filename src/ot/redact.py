"""Taking the values of secrets out of texts, wherever a text is about to be seen or kept.

A secret is known by its value, plain and as JSON and Python write it; one of several lines by each of them too, because
formats put lines apart. Whose secrets these are is the business of others.
"""

import json
from collections.abc import Callable, Iterable, Iterator

REDACTED = "[REDACTED]"
SHORTEST_SECRET = 4  # a shorter one would redact half the text
SHORTEST_LINE = 8  # of a secret that has several


class Redactor:
    """`redact(text)` is the text without the secrets."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {secret for secret in secrets if len(secret) >= SHORTEST_SECRET}
        lines = {line.strip() for secret in known for line in secret.splitlines()}
        known |= {line for line in lines if len(line) >= SHORTEST_LINE}
        self._forms = sorted({form for secret in known for form in _forms(secret)})

    def __call__(self, text: str) -> str:
        return self._redacted(text, 0, len(text))[0] if self._forms else text

    def beginning(self, text: str, length: int) -> str:
        """The first so many characters; of a secret that goes on behind them nothing is left either."""
        border = min(length, len(text))
        seen = text[: border + max(map(len, self._forms), default=0)]
        return self._redacted(seen, 0, border)[0]

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
        return min((_open(form, text) for form in self._forms), default=len(text))

    def _redacted(self, text: str, hidden: int, border: int) -> tuple[str, int]:
        """The text up to the border, and how much behind it belongs to a secret whose mark is there already.

        `hidden` is that of the text before this one. Secrets that overlap are one, so that no end of any is left.
        """
        shown, at = [], hidden
        for start, end in sorted(span for form in self._forms for span in _spans(form, text)):
            if start >= border:
                break
            if start >= at:
                shown += [text[at:start], REDACTED]
            at = max(at, end)
        return "".join([*shown, text[at:border]]), max(0, at - border)


class Stream:
    """What could be the beginning of a secret is held back until it is known, so that one across a border is seen."""

    def __init__(self, redacted: Callable[[str, int, int], tuple[str, int]], open_end: Callable[[str], int]) -> None:
        self._redacted, self._open_end = redacted, open_end
        self._rest, self._hidden = "", 0

    def add(self, piece: str) -> str:
        """What may be shown after this piece."""
        text = self._rest + piece
        border = self._open_end(text)
        shown, self._hidden = self._redacted(text, self._hidden, border)
        self._rest = text[border:]
        return shown

    def end(self) -> str:
        """What is left, now that nothing follows."""
        return self._redacted(self._rest, self._hidden, len(self._rest))[0]


def _open(form: str, text: str) -> int:
    at = text.find(form[0], max(0, len(text) - len(form) + 1))
    while at >= 0 and not form.startswith(text[at:]):
        at = text.find(form[0], at + 1)
    return at if at >= 0 else len(text)


def _forms(secret: str) -> tuple[str, ...]:
    in_json = (json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1])
    return (secret, *in_json, repr(secret)[1:-1])


def _spans(form: str, text: str) -> Iterator[tuple[int, int]]:
    """Where it stands; places that overlap are one."""
    start = text.find(form)
    while start >= 0:
        last, following = start, text.find(form, start + 1)
        while 0 <= following < last + len(form):
            last, following = following, text.find(form, following + 1)
        yield start, last + len(form)
        start = following
