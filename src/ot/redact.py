"""Taking the values of secrets out of texts, wherever a text is about to be seen or kept.

A secret is known by its value, plain and as JSON writes it. Whose secrets these are is the business of others.
"""

import json
from collections.abc import Iterable, Iterator

REDACTED = "[REDACTED]"
SHORTEST_SECRET = 4  # a shorter one would redact half the text


class Redactor:
    """`redact(text)` is the text without the secrets."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {secret for secret in secrets if len(secret) >= SHORTEST_SECRET}
        self._forms = sorted(known | {json.dumps(secret)[1:-1] for secret in known}, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for form in self._forms:
            text = text.replace(form, REDACTED)
        return text

    def pieces(self, pieces: Iterable[str]) -> Iterator[str]:
        """A text that comes in pieces; the end of each is held back, so that a secret across a border is seen."""
        held = max((len(form) - 1 for form in self._forms), default=0)
        rest = ""
        for piece in pieces:
            text = self(rest + piece)
            border = max(0, len(text) - held)
            rest = text[border:]
            yield text[:border]
        yield rest
