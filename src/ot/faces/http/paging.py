"""What a list is asked for, read from the query of a URL. Texts only: whether an id is one is not decided here."""

import re
from collections.abc import Callable
from typing import Final, TypeVar

from starlette.datastructures import QueryParams

from ot.bundles.model import Page
from ot.bundles.rules import tags_problem
from ot.faces.http.refusals import Refusal

T = TypeVar("T")
DEFAULT_SIZE: Final = 25
MOST_ITEMS: Final = 256
SWITCHES: Final = {"true": True, "false": False}
_NUMBER = re.compile(r"[0-9]+")


def size_of(query: QueryParams, *names: str) -> int:
    """The size of a page, by whichever of its names it is given."""
    given = [(name, text) for name in names for text in query.getlist(name)]
    if not given:
        return DEFAULT_SIZE
    name, text = given[0]
    digits = text.lstrip("0")
    if len(given) > 1 or not _NUMBER.fullmatch(text) or not digits:
        what = "given twice" if len(given) > 1 else f"{text!a}"
        raise Refusal("invalid", f"{name} is {what}; give a number from 1 to {MOST_ITEMS}, once", {"parameter": name})
    return MOST_ITEMS if len(digits) > len(str(MOST_ITEMS)) else min(int(digits), MOST_ITEMS)


def token_of(query: QueryParams) -> str | None:
    return single(query, "pageToken") or None


def includes_disabled(query: QueryParams) -> bool:
    text = single(query, "includeDisabled")
    if text is None:
        return False
    if text not in SWITCHES:
        message = f"includeDisabled is {text!a}; write true or false"
        raise Refusal("invalid", message, {"parameter": "includeDisabled"})
    return SWITCHES[text]


def many(query: QueryParams, name: str) -> list[str] | None:
    """Given repeatedly, or with commas between, or both; None where it is not given."""
    given = query.getlist(name)
    return [item for text in given for item in text.split(",")] if given else None


def tags_of(query: QueryParams) -> list[str] | None:
    tags = many(query, "tags")
    problem = next(filter(None, (tags_problem([tag]) for tag in tags or ())), None)
    if problem:
        raise Refusal("invalid", f"tags: {problem}", {"parameter": "tags"})
    return tags


def single(query: QueryParams, name: str) -> str | None:
    given = query.getlist(name)
    if len(given) > 1:
        raise Refusal("invalid", f"{name} is given {len(given)} times; give it once", {"parameter": name})
    return given[0] if given else None


def filled(
    page: Callable[[int, str | None], Page[T]], keep: Callable[[T], bool], size: int, token: str | None
) -> Page[T]:
    """A page of what is to be kept, as full as one of everything would be."""
    items: list[T] = []
    while True:
        found = page(size - len(items), token)
        items += filter(keep, found.items)
        token = found.next_token
        if token is None or len(items) == size:
            return Page(items, token)
