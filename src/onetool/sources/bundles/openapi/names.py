"""Creation of valid, readable and unique slugs, versions, tags, arguments and secret names.

A slug becomes a name in Python code, so it starts with a letter and is not a keyword.
"""

import re
import unicodedata
from collections.abc import Iterable
from keyword import iskeyword

MAX_LENGTH = 64
MAX_TAGS = 10
# Words to ignore in titles: "Swagger Petstore - OpenAPI 3.0" is the petstore.
_NOISE_WORDS = {
    "api",
    "apis",
    "rest",
    "restful",
    "openapi",
    "swagger",
    "spec",
    "specification",
    "specifications",
}
_NOISE_WORDS |= {"documentation", "docs", "reference", "definition"}
_NUMBER = re.compile(r"v?\d+")
_APOSTROPHE = re.compile(r"['\u2019]s?\b")
_CAMEL_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def split_words(text: str) -> list[str]:
    """Split `listPets`, `list_pets` and `pets/list` into lower-case words of letters and decimal
    digits.
    """
    return _split_plain_words(_CAMEL_BOUNDARY.sub(" ", text))


def _split_plain_words(text: str) -> list[str]:
    joined = _APOSTROPHE.sub("", unicodedata.normalize("NFC", text)).lower()
    return "".join(
        character if _is_letter_or_digit(character) else " " for character in joined
    ).split()


def _is_letter_or_digit(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] == "L" or category == "Nd"


def build_slug(parts: list[str]) -> str:
    """Return a slug; empty if there are no words. It ends with a whole word if possible."""
    slug = ""
    for word in parts:
        longer = f"{slug}-{word}" if slug else word
        if len(longer) > MAX_LENGTH:
            return slug or word[:MAX_LENGTH]
        slug = longer
    return slug


def build_bundle_slug(name: str, title: str) -> str:
    """Return a slug for the given name, else for the significant words of the title."""
    title_words = _split_plain_words(title)  # a name like GitHub is one word
    significant = [
        word for word in title_words if word not in _NOISE_WORDS and not _NUMBER.fullmatch(word)
    ]
    candidate = (
        build_slug(_split_plain_words(name))
        or build_slug(significant)
        or build_slug(title_words)
        or "api"
    )
    return candidate if is_python_name(candidate) else build_slug(["api", *candidate.split("-")])


def is_python_name(slug: str) -> bool:
    name = slug.replace("-", "_")
    return name.isidentifier() and not iskeyword(name)


def build_operation_slug(operation_id: str, method: str, path: str) -> str:
    candidate = build_slug(split_words(operation_id)) or build_slug([method, *split_words(path)])
    return candidate if is_python_name(candidate) else build_slug([method, *candidate.split("-")])


class UniqueNames:
    """A set of unique names.

    It remembers the last number of each name, because thousands may be equal.
    """

    def __init__(self, separator: str = "-") -> None:
        self._separator = separator
        self._names: set[str] = set()
        self._last: dict[str, int] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def claim(self, name: str) -> str:
        """Return the name, with a number if it is already used."""
        candidate = name
        while candidate in self._names:
            number = self._last[name] = self._last.get(name, 1) + 1
            candidate = f"{name[: MAX_LENGTH - 1 - len(str(number))]}{self._separator}{number}"
        self._names.add(candidate)
        return candidate


def to_version(text: object) -> str:
    """Return a valid version for `info.version`; `1` if no valid characters remain."""
    allowed = "".join(
        c if c == "." or _is_letter_or_digit(c) else "-"
        for c in str(text if text is not None else "")
    )
    valid = re.sub(r"-{2,}", "-", allowed).strip("-")[:MAX_LENGTH]
    return valid if valid.strip(".") else "1"


def to_tags(names: Iterable[str]) -> list[str]:
    slugs = (_to_ascii_slug(name) for name in names)
    valid = (f"_{tag}" if tag[0].isdigit() else tag for tag in slugs if tag)
    return list(dict.fromkeys(tag[:MAX_LENGTH] for tag in valid))[:MAX_TAGS]


def _to_ascii_slug(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return "-".join(split_words(plain))


def to_argument_name(text: str, location: str, used_names: UniqueNames) -> str:
    """Return a Python name for a parameter, followed by its location if the name is already used."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    name = (
        re.sub(r"\W+", "_", plain.replace("[]", ""), flags=re.ASCII).strip("_")[:MAX_LENGTH]
        or location
    )
    name = f"{location}_{name}" if name[0].isdigit() else name
    name = f"{name}_" if iskeyword(name) else name
    return used_names.claim(f"{name[: MAX_LENGTH - 10]}_{location}" if name in used_names else name)


def to_secret_name(bundle: str, scheme: str) -> str:
    """Return the secret name, like `PETSTORE_API_KEY` for the scheme `api_key` of the bundle
    `petstore`.
    """
    bundle_words = _to_ascii_slug(bundle).split("-")
    scheme_words = _to_ascii_slug(scheme).split("-")
    has_prefix = scheme_words[: len(bundle_words)] == bundle_words
    parts = [
        part for part in (scheme_words if has_prefix else bundle_words + scheme_words) if part
    ] or ["API", "KEY"]
    name = "_".join(parts).upper()[:MAX_LENGTH].strip("_")
    return f"API_{name}" if name[0].isdigit() else name
