"""Taking the values of secrets out of texts, wherever a text is about to be seen or kept.

A secret is known by its value, plain and as JSON and Python write it; one of several lines by each of them too, because
formats put lines apart. Whose secrets these are is the business of others.
"""

import json
from collections.abc import Iterable, Iterator

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

    def pieces(self, pieces: Iterable[str]) -> Iterator[str]:
        """The same for a text in pieces; the end of each is held back, so that a secret across a border is seen."""
        held = max((len(form) - 1 for form in self._forms), default=0)
        rest, hidden = "", 0
        for piece in pieces:
            text = rest + piece
            border = max(0, len(text) - held)
            shown, hidden = self._redacted(text, hidden, border)
            rest = text[border:]
            yield shown
        yield self._redacted(rest, hidden, len(rest))[0]

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
