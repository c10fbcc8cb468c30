"""Quality and speed of the search: `python benchmarks/search.py --data DIRECTORY`.

The directory holds retrieval sets, one JSON file each: {name, tools: [{name, description, server, params}], queries:
[{q, gold: [[names that are equally right], ...]}]}. They are not part of this repository. Baselines are read from a
table in the README.md beside them, if there is one. Without --data only speed is measured, on generated tools.
"""

import argparse
import json
import random
import re
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from onetool.search import Search, SearchDocument
from onetool.search.words import plain

TOOLS, QUESTIONS = 10_000, 300
SEMANTIC = find_spec("wordllama") is not None
NOT_INSTALLED = "not installed here: pip install 'onetool[semantic]'"
REAL = ("list", "send", "merge", "delete", "user", "issue", "invoice", "message", "report", "image", "weather")
FILLER = "please can you help me to find out how I could with the for my and is there a way of".split()  # noqa: SIM905


@dataclass(frozen=True)
class RetrievalSet:
    stem: str
    documents: list[SearchDocument]
    questions: list[tuple[str, list[list[str]]]]
    names: dict[str, str]  # from names in the search to names in the set


def main() -> None:
    options = arguments()
    if options.data:
        print_quality(options.data)
    else:
        print("Quality: not measured without --data DIRECTORY (see the top of this file).\n")
    print_speed(semantic=False)
    if SEMANTIC:
        print_speed(semantic=True)
    else:
        print(f"with [semantic]: {NOT_INSTALLED}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="DIRECTORY", help="retrieval sets")
    options = parser.parse_args()
    if options.data and not any(options.data.glob("*.json")):
        parser.error(f"there are no JSON files in {options.data}")
    return options


def print_quality(folder: Path) -> None:
    sets = [read_set(path) for path in sorted(folder.glob("*.json"))]
    heads = [f"{one.stem} ({len(one.documents)} tools, {len(one.questions)} queries)" for one in sets]
    rows = [["R@1 / R@5 / MRR", *heads]]
    rows += read_baselines(folder, [one.stem for one in sets])
    rows.append(["OneTool, default install", *(format_scores(measure_quality(one, semantic=False)) for one in sets)])
    if SEMANTIC:
        rows.append(["OneTool with [semantic]", *(format_scores(measure_quality(one, semantic=True)) for one in sets)])
    print_table(rows)
    print("" if SEMANTIC else f"\nOneTool with [semantic]: {NOT_INSTALLED}\n")


def read_set(path: Path) -> RetrievalSet:
    data = json.loads(path.read_text(encoding="utf-8"))
    names = {qualify_name(tool): tool["name"] for tool in data["tools"]}
    questions = [(query["q"], query["gold"]) for query in data["queries"]]
    return RetrievalSet(path.stem, [build_document(tool) for tool in data["tools"]], questions, names)


def qualify_name(tool: dict[str, Any]) -> str:
    """Return the name with its server as prefix, like the name of an upstream tool."""
    server, name = tool.get("server") or "", str(tool["name"])
    return name if not server or name.startswith(server) else f"{server}.{name}"


def build_document(tool: dict[str, Any]) -> SearchDocument:
    params = "\n".join(f"{name}: {about}" for name, about in (tool.get("params") or {}).items())
    return SearchDocument("tool", qualify_name(tool), tool.get("description") or "", params)


def measure_quality(one: RetrievalSet, *, semantic: bool) -> tuple[float, float, float]:
    search = Search(None, semantic=semantic)
    search.update(one.documents)
    scores = []
    for question, gold in one.questions:
        found = [one.names[hit.name] for hit in search.search(question)]
        scores.append(grade(found, gold))
    return (
        statistics.mean(s[0] for s in scores),
        statistics.mean(s[1] for s in scores),
        statistics.mean(s[2] for s in scores),
    )


def grade(found: list[str], gold: list[list[str]]) -> tuple[float, float, float]:
    """Return recall of the gold groups at 1 and 5, and the reciprocal rank."""
    places = [min((found.index(name) for name in group if name in found), default=len(found) + 1000) for group in gold]
    first = min(places)
    reciprocal = 1 / (first + 1) if first < len(found) else 0.0
    return sum(place < 1 for place in places) / len(gold), sum(place < 5 for place in places) / len(gold), reciprocal


def format_scores(numbers: Iterable[float]) -> str:
    return " / ".join(f"{number:.3f}".removeprefix("0") for number in numbers)


def read_baselines(folder: Path, stems: list[str]) -> list[list[str]]:
    """Return the rows of the R@1 table in README.md, with columns in the order of the sets."""
    pages = [
        path.read_text(encoding="utf-8")
        for path in (folder / "README.md", folder.parent / "README.md")
        if path.is_file()
    ]
    lines = [line for page in pages for line in page.splitlines() if line.startswith("|")]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    head = next((row for row in table if row[0].startswith("R@1")), None)
    if head is None:
        return []
    columns = [next((place for place, cell in enumerate(head) if is_same_set(cell, stem)), None) for stem in stems]
    rows = [row for row in table if len(row) == len(head) and row is not head and not row[0].startswith("-")]
    return [[row[0], *(row[place] if place else "" for place in columns)] for row in rows]


def is_same_set(cell: str, stem: str) -> bool:
    word = re.match(r"\w*", cell.casefold())
    return bool(word and word[0] and (stem.casefold().startswith(word[0]) or word[0].startswith(stem.casefold())))


def print_speed(*, semantic: bool) -> None:
    documents, questions = generate_tools(), generate_queries()
    print(f"{TOOLS:,} made-up tools, {'with [semantic]' if semantic else 'default install'}")
    with tempfile.TemporaryDirectory() as folder:
        search = Search(Path(folder), semantic=semantic)
        search.update(documents)
        print(f"  first question, which makes the index:     {time_call(lambda: search.search('x')):8.1f} ms")
        again = Search(Path(folder), semantic=semantic)
        again.update(documents)
        print(f"  first question with the index on disk:      {time_call(lambda: again.search('x')):8.1f} ms")
        print_questions(search, questions, make_bare_fts(documents))
        print(f"  update of 1 changed tool, then a question: {make_change(search, documents):8.1f} ms")


def print_questions(search: Search, questions: dict[str, list[str]], bare: sqlite3.Connection) -> None:
    for what, texts in questions.items():
        ours, theirs = [], []
        for text in texts:  # alternating, so that both see the same load
            ours.append(time_call(partial(search.search, text)))
            theirs.append(time_call(partial(search_bare, bare, text)))
        p50, p95 = format_percentiles(ours)
        relation = p50 / format_percentiles(theirs)[0]
        print(f"  {what:<42} p50 {p50:6.2f} ms, p95 {p95:6.2f} ms, {relation:5.2f} x a bare FTS5 query")


def make_change(search: Search, documents: list[SearchDocument]) -> float:
    """Return the median of several updates, each with a different tool changed."""

    def change(number: int) -> None:
        search.update(
            [*documents[:number], SearchDocument("tool", documents[number].name, "changed"), *documents[number + 1 :]]
        )
        search.search("x")

    return statistics.median(time_call(partial(change, number)) for number in range(7))


def time_call(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1000


def format_percentiles(samples: list[float]) -> tuple[float, float]:
    return statistics.median(samples), statistics.quantiles(samples, n=20)[-1]


def make_bare_fts(documents: Iterable[SearchDocument]) -> sqlite3.Connection:
    """Build a plain FTS5 index of the same text: porter stemming, BM25, all words of the query."""
    database = sqlite3.connect(":memory:")
    database.execute("create virtual table tools using fts5(name, description, arguments, tokenize = porter)")
    rows = ((one.name, one.description, one.arguments) for one in documents)
    database.executemany("insert into tools values (?, ?, ?)", rows)
    return database


def search_bare(database: sqlite3.Connection, text: str) -> list[Any]:
    expression = " OR ".join(f'"{word}"' for word in dict.fromkeys(plain(text)))
    return database.execute("select rowid from tools(?) order by rank limit 20", (expression,)).fetchall()


def generate_tools() -> list[SearchDocument]:
    chance = random.Random(1)
    words = Words(chance)
    return [generate_tool(number, words) for number in range(TOOLS)]


def generate_tool(number: int, words: "Words") -> SearchDocument:
    arguments = "\n".join(f"{words.some(1)}: {words.some(6)}" for _ in range(3))
    name = f"pack{number % 250}.{words.some(2).replace(' ', '_')}_{number}"
    return SearchDocument("tool", name, words.some(16), arguments)


def generate_queries() -> dict[str, list[str]]:
    chance = random.Random(2)
    words = Words(chance)
    sentences = [" ".join(shuffle_words(chance, words)) for _ in range(QUESTIONS)]
    typos = [misspell(generate_tool(number, words).name) for number in range(QUESTIONS)]
    return {"a sentence": sentences, "two words": [words.some(2) for _ in range(QUESTIONS)], "a misspelt name": typos}


def shuffle_words(chance: random.Random, words: "Words") -> Iterator[str]:
    for word in words.some(8).split():
        yield chance.choice(FILLER)
        yield word


def misspell(name: str) -> str:
    return name[:8] + name[9:]


class Words:
    """Random words with a Zipf distribution, as in real text."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        syllables = [first + vowel for first in "bdfgklmnprstvz" for vowel in "aeiou"]
        real = [f"{first}{last}" for first in REAL for last in ("", "s", "ed", "ing", "er")]
        invented = [a + b + c for a in syllables[:20] for b in syllables for c in syllables[::7]]
        self._words = random.Random(0).sample(real + invented[: 12_000 - len(real)], 12_000)
        self._weights = [1 / (place + 10) for place in range(len(self._words))]

    def some(self, count: int) -> str:
        return " ".join(self._chance.choices(self._words, self._weights, k=count))


def print_table(rows: list[list[str]]) -> None:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
