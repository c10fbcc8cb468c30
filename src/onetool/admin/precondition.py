"""The condition of a write: the ETag that the person has seen. Commands have none."""

from collections.abc import Collection
from dataclasses import dataclass

ANY = "*"


@dataclass(frozen=True, slots=True)
class Precondition:
    """The ETags of `If-Match` and `If-None-Match`.

    Those of tools and packs have a second part for fields that change by themselves, which is not compared.
    """

    expected: Collection[str] = ()
    unexpected: Collection[str] = ()

    def find_failed(self, tag: str | None) -> str:
        """Return the header whose condition does not hold for a thing with this ETag; None if it does not exist."""
        if self.expected and not _is_among(tag, self.expected):
            return "If-Match"
        return "If-None-Match" if _is_among(tag, self.unexpected) else ""


def _is_among(tag: str | None, tags: Collection[str]) -> bool:
    return tag is not None and (ANY in tags or _stable_part(tag) in map(_stable_part, tags))


def _stable_part(tag: str) -> str:
    return tag.strip('"').partition("-")[0]
