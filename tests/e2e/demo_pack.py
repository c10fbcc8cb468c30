"""A pack of harmless tools for hostile code. Its module contains a secret that no run may see."""

import functools
from collections.abc import Callable
from typing import Any

API_KEY = "SENTINEL-ESCAPED"
ECHOED: list[None] = []


def echo(text: str = "") -> str:
    """Give back the text."""
    ECHOED.append(None)
    return text


def fails() -> str:
    """Fail, with a secret in a local variable."""
    token = API_KEY
    raise RuntimeError(f"this tool always fails, whatever its token of {len(token)} letters")


@functools.wraps(echo)
def wrapped(text: str = "") -> str:
    return echo(text)


def _make_closure() -> Callable[..., str]:
    token = API_KEY

    def closed(text: str = "") -> str:
        """Give back the text; the secret is in a closure."""
        return text if token else ""

    return closed


TOOLS: dict[str, Callable[..., Any]] = {
    "echo": echo,
    "fails": fails,
    "wrapped": wrapped,
    "closed": _make_closure(),
    "partial": functools.partial(echo, text="partial"),
}
