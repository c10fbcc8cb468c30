"""Names of packs and tools: as Python identifiers, similar ones, and lists for messages."""

import re
from collections.abc import Mapping
from operator import itemgetter

from onetool.errors import ToolNotFound

NOT_IN_IDENTIFIERS = re.compile(r"[^\w.]")
MAX_SIMILAR_NAMES = 3
MAX_LISTED_NAMES = 20
MAX_LIST_CHARS = 4096  # of all names of tools in a message; a longer list is stored
MAX_LISTED_PACKS = 100
MAX_NAME_LENGTH = 500
COMPARE_BATCH_SIZE = 5_000  # names per call; a call holds the interpreter lock


def check_name(name: str, kind: str = "tool") -> None:
    """Raise ToolNotFound if the name is too long, because comparing it with others would be slow."""
    if len(name) > MAX_NAME_LENGTH:
        raise ToolNotFound(
            f"the {kind} name is too long: {len(name)} characters, the limit is {MAX_NAME_LENGTH}"
        )


def python_name(name: str) -> str:
    """Return the name with underscores for all characters that are invalid in Python identifiers."""
    return NOT_IN_IDENTIFIERS.sub("_", name)


def fold(name: str) -> str:
    """Return the name for comparisons that ignore case and underscores."""
    return name.replace("_", "").casefold()


def nearest(name: str, candidates: Mapping[str, object] | list[str]) -> list[str]:
    """Return up to three similar known names, best match first."""
    from rapidfuzz import fuzz, process

    if len(name) > MAX_NAME_LENGTH:
        return []
    names = list(candidates)
    matches = []
    for start in range(0, len(names), COMPARE_BATCH_SIZE):  # other threads can run between batches
        part = names[start : start + COMPARE_BATCH_SIZE]
        matches += process.extract(name, part, scorer=fuzz.WRatio, limit=3, score_cutoff=75)
    best = sorted(matches, key=itemgetter(1), reverse=True)
    return [match[0] for match in best[:3]]


def find_by_words(name: str, summaries: Mapping[str, str]) -> list[str]:
    """Return up to three names with the same words, such as `list_issues`, `issues_list`.

    Those whose summary consists of the same words come first.
    """
    words = split_words(name)
    matches = [other for other in summaries if words and words <= split_words(other)]
    differences = {other: len(words ^ split_words(summaries[other])) for other in matches}
    return sorted(matches, key=lambda other: (differences[other], len(other)))[:MAX_SIMILAR_NAMES]


def split_words(name: str) -> set[str]:
    """Return the words of a name, in singular and lower case."""
    parts = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)
    return {part.lower().removesuffix("s") for part in parts}


def join_names(names: Mapping[str, object] | list[str], limit: int = MAX_LISTED_NAMES) -> str:
    """Return the first names, separated by commas."""
    listed = sorted(names)
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return (", ".join(listed[:limit]) or "none") + more


def join_packs(packs: list[str]) -> str:
    """Return the packs, separated by commas: all of them, unless there are very many."""
    return join_names(packs, limit=MAX_LISTED_PACKS)
