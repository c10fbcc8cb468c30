"""Creation of valid, readable and unique slugs, versions, tags, arguments and secret names.

A slug becomes a name in Python code, so it starts with a letter and is not a keyword.
"""

import re
import unicodedata
from collections.abc import Iterable
from keyword import iskeyword
from typing import Final

LONGEST: Final = 64
MAX_TAGS: Final = 10
# Words to ignore in titles: "Swagger Petstore - OpenAPI 3.0" is the petstore.
_NOISE = {"api", "apis", "rest", "restful", "openapi", "swagger", "spec", "specification", "specifications"}
_NOISE |= {"documentation", "docs", "reference", "definition"}
_NUMBER = re.compile(r"v?\d+")
_APOSTROPHE = re.compile(r"['\u2019]s?\b")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def words(text: str) -> list[str]:
    """Split `listPets`, `list_pets` and `pets/list` into lower-case words of letters and decimal digits."""
    return _plain_words(_HUMP.sub(" ", text))


def _plain_words(text: str) -> list[str]:
    joined = _APOSTROPHE.sub("", unicodedata.normalize("NFC", text)).lower()
    return "".join(character if _is_letter_or_digit(character) else " " for character in joined).split()


def _is_letter_or_digit(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] == "L" or category == "Nd"


def slug(parts: list[str]) -> str:
    """Return a slug; empty if there are no words. It ends with a whole word if possible."""
    made = ""
    for word in parts:
        longer = f"{made}-{word}" if made else word
        if len(longer) > LONGEST:
            return made or word[:LONGEST]
        made = longer
    return made


def bundle_slug(name: str, title: str) -> str:
    """Return a slug for the given name, else for the significant words of the title."""
    title_words = _plain_words(title)  # a name like GitHub is one word
    significant = [word for word in title_words if word not in _NOISE and not _NUMBER.fullmatch(word)]
    candidate = slug(_plain_words(name)) or slug(significant) or slug(title_words) or "api"
    return candidate if is_callable_name(candidate) else slug(["api", *candidate.split("-")])


def is_callable_name(made: str) -> bool:
    name = made.replace("-", "_")
    return name.isidentifier() and not iskeyword(name)


def operation_slug(operation_id: str, method: str, path: str) -> str:
    candidate = slug(words(operation_id)) or slug([method, *words(path)])
    return candidate if is_callable_name(candidate) else slug([method, *candidate.split("-")])


class UniqueNames:
    """A set of unique names. It remembers the last number of each name, because thousands may be equal."""

    def __init__(self, separator: str = "-") -> None:
        self._separator = separator
        self._names: set[str] = set()
        self._last: dict[str, int] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def claim(self, name: str) -> str:
        """Return the name, with a number if it is already used."""
        free = name
        while free in self._names:
            number = self._last[name] = self._last.get(name, 1) + 1
            free = f"{name[: LONGEST - 1 - len(str(number))]}{self._separator}{number}"
        self._names.add(free)
        return free


def version(text: object) -> str:
    """Return a valid version for `info.version`; `1` if no valid characters remain."""
    kept = "".join(c if c == "." or _is_letter_or_digit(c) else "-" for c in str(text if text is not None else ""))
    legal = re.sub(r"-{2,}", "-", kept).strip("-")[:LONGEST]
    return legal if legal.strip(".") else "1"


def tags(names: Iterable[str]) -> list[str]:
    made = (_ascii(name) for name in names)
    legal = (f"_{tag}" if tag[0].isdigit() else tag for tag in made if tag)
    return list(dict.fromkeys(tag[:LONGEST] for tag in legal))[:MAX_TAGS]


def _ascii(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return "-".join(words(plain))


def argument(text: str, place: str, taken: UniqueNames) -> str:
    """Return a Python name for a parameter, followed by its location if the name is already used."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    name = re.sub(r"\W+", "_", plain.replace("[]", ""), flags=re.ASCII).strip("_")[:LONGEST] or place
    name = f"{place}_{name}" if name[0].isdigit() else name
    name = f"{name}_" if iskeyword(name) else name
    return taken.claim(f"{name[: LONGEST - 10]}_{place}" if name in taken else name)


def secret(bundle: str, scheme: str) -> str:
    """Return the secret name, like `PETSTORE_API_KEY` for the scheme `api_key` of the bundle `petstore`."""
    of_bundle, of_scheme = _ascii(bundle).split("-"), _ascii(scheme).split("-")
    same = of_scheme[: len(of_bundle)] == of_bundle
    parts = [part for part in (of_scheme if same else of_bundle + of_scheme) if part] or ["API", "KEY"]
    name = "_".join(parts).upper()[:LONGEST].strip("_")
    return f"API_{name}" if name[0].isdigit() else name
