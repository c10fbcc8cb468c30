"""Quality and speed of the search: `python benchmarks/search.py --data DIRECTORY`.

The directory holds retrieval sets, one JSON file each: {name, tools: [{name, description, server,
params}], queries: [{q, gold: [[names that are equally right], ...]}]}. They are not part of this
repository; `benchmarks/search_sets.py` builds some from public packages. Beside our scores it
prints those of plain FTS5, for all queries and for each half of them by hash, and cross-set results
of the most sensitive parameter. --json prints only our scores, without speed.
"""

import argparse
import json
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from onetool.sources.search import SearchDocument, catalog
from onetool.sources.search.catalog import Search
from onetool.sources.search.words import drop_stop_words, plain, split_names

TOOLS, QUESTIONS = 10_000, 300
Scores = tuple[float, float, float]
# Fields: weights (4), usual lengths (4); b, k1, coverage; weights of meaning (3), of arguments in
# it, of intents; minima (3); the number of words of a short query; the share of a weak hit.
PARAMETERS = 21
MEANING_WEIGHTS = (0.2, 0.4, 0.8, 1.2)
SHIPPED_WEIGHT = catalog.MEANING_WEIGHT
MAX_SAMPLE = 250  # queries of a set, to compare weights
REAL = (
    "list",
    "send",
    "merge",
    "delete",
    "user",
    "issue",
    "invoice",
    "message",
    "report",
    "image",
    "weather",
)
FILLER_TEXT = "please can you help me to find out how I could with the for my and is there a way of"
FILLER = FILLER_TEXT.split()


@dataclass(frozen=True)
class RetrievalSet:
    stem: str
    documents: list[SearchDocument]
    questions: list[tuple[str, list[list[str]]]]
    names: dict[str, str]  # from names in the search to names in the set


def main() -> None:
    options = arguments()
    if options.json:
        print(json.dumps(measure_sets(options.data, options.every)))
        return
    if options.data:
        print_quality(options.data, options.every)
    else:
        print("Quality: not measured without --data DIRECTORY (see the top of this file).\n")
    print_speed()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, metavar="DIRECTORY", help="retrieval sets")
    parser.add_argument(
        "--every", type=int, default=1, metavar="N", help="measure every Nth query of each set"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the scores as JSON; needs --data"
    )
    options = parser.parse_args()
    if options.json and not options.data:
        parser.error("--json needs --data DIRECTORY")
    if options.data and not any(options.data.glob("*.json")):
        parser.error(f"there are no JSON files in {options.data}")
    return options


def read_sets(folder: Path, every: int = 1) -> list[RetrievalSet]:
    sets = map(read_set, sorted(folder.glob("*.json")))
    return [replace(one, questions=one.questions[::every]) for one in sets]


def measure_sets(folder: Path, every: int) -> dict[str, dict[str, float]]:
    sets = read_sets(folder, every)
    return {
        retrieval.stem: name_scores(average(measure(retrieval, search_ours(retrieval))))
        for retrieval in sets
    }


def name_scores(scores: Scores) -> dict[str, float]:
    return {
        name: round(score, 4) for name, score in zip(("r@1", "r@5", "mrr"), scores, strict=True)
    }


def print_quality(folder: Path, every: int) -> None:
    sets = read_sets(folder, every)
    ways: dict[str, Callable[[RetrievalSet], Callable[[str], list[str]]]] = {
        "plain FTS5": search_plain,
        "OneTool": search_ours,
    }
    scores = {
        (way, one.stem): measure(one, make(one)) for way, make in ways.items() for one in sets
    }
    rows = [["R@1 / R@5 / MRR", "tools", "queries", *ways]]
    for one in sets:
        cells = (format_scores(average(scores[way, one.stem])) for way in ways)
        rows.append([one.stem, str(len(one.documents)), str(len(one.questions)), *cells])
    print_table(rows)
    print(
        f"\nR@5 of each half of the queries, by hash ({PARAMETERS} parameters were chosen, some on"
        " these sets)"
    )
    print_table(
        [
            ["", *(f"{way} {half}" for way in ways for half in "ab")],
            *split_rows(sets, list(ways), scores),
        ]
    )
    print("\nWeight of meaning, chosen on one set and measured on the others (R@5)")
    print_table(list(compare_weights(sets)))
    print()


def split_rows(
    sets: list[RetrievalSet], ways: list[str], scores: dict[tuple[str, str], list[Scores]]
) -> Iterator[list[str]]:
    for one in sets:
        halves = [
            blake2b(question.encode(), digest_size=1).digest()[0] % 2
            for question, _ in one.questions
        ]
        cells = []
        for way in ways:
            for half in (0, 1):
                picked = [
                    score
                    for score, place in zip(scores[way, one.stem], halves, strict=True)
                    if place == half
                ]
                cells.append(f"{average(picked)[1]:.3f}" if picked else "")
        yield [one.stem, *cells]


def compare_weights(sets: list[RetrievalSet]) -> Iterator[list[str]]:
    """Yield, for each set, the weight that is best on it, and the mean R@5 of the other sets with
    this weight.
    """
    found = {
        (weight, one.stem): measure_weight(one, weight)
        for weight in MEANING_WEIGHTS
        for one in sets
    }
    yield [
        "chosen on",
        "weight",
        "its R@5",
        "mean R@5 of the others",
        f"with {SHIPPED_WEIGHT}, as shipped",
    ]
    for one in sets:
        best = max(MEANING_WEIGHTS, key=lambda weight: found[weight, one.stem])
        others = [other.stem for other in sets if other is not one] or [one.stem]
        means = (
            statistics.mean(found[weight, stem] for stem in others)
            for weight in (best, SHIPPED_WEIGHT)
        )
        yield [
            one.stem,
            str(best),
            f"{found[best, one.stem]:.3f}",
            *(f"{mean:.3f}" for mean in means),
        ]


def measure_weight(one: RetrievalSet, weight: float) -> float:
    vars(catalog)["MEANING_WEIGHT"] = weight
    sample = replace(one, questions=one.questions[:: max(1, len(one.questions) // MAX_SAMPLE)])
    try:
        return average(measure(sample, search_ours(sample)))[1]
    finally:
        vars(catalog)["MEANING_WEIGHT"] = SHIPPED_WEIGHT


def read_set(path: Path) -> RetrievalSet:
    data = json.loads(path.read_text(encoding="utf-8"))
    names = {qualify_name(tool): tool["name"] for tool in data["tools"]}
    questions = [(query["q"], query["gold"]) for query in data["queries"]]
    return RetrievalSet(
        path.stem, [build_document(tool) for tool in data["tools"]], questions, names
    )


def qualify_name(tool: dict[str, Any]) -> str:
    """Return the name with its server as prefix, like the name of an upstream tool."""
    server, name = tool.get("server") or "", str(tool["name"])
    return name if not server or name.startswith(server) else f"{server}.{name}"


def build_document(tool: dict[str, Any]) -> SearchDocument:
    params = "\n".join(f"{name}: {about}" for name, about in (tool.get("params") or {}).items())
    return SearchDocument("tool", qualify_name(tool), tool.get("description") or "", params)


def measure(one: RetrievalSet, search: Callable[[str], list[str]]) -> list[Scores]:
    return [
        grade([one.names[name] for name in search(question)], gold)
        for question, gold in one.questions
    ]


def average(scores: list[Scores]) -> Scores:
    first, five, reciprocal = (statistics.mean(column) for column in zip(*scores, strict=True))
    return first, five, reciprocal


def search_ours(one: RetrievalSet) -> Callable[[str], list[str]]:
    search = Search(None)
    search.update(one.documents)
    return lambda question: [hit.name for hit in search.search(question)]


def search_plain(one: RetrievalSet) -> Callable[[str], list[str]]:
    """Return a search with plain FTS5: porter, split identifiers, name weight 4, stop words, OR of
    terms, bm25.
    """
    database = sqlite3.connect(":memory:")
    database.execute(
        "create virtual table tools using fts5(name, description, arguments, tokenize = porter)"
    )
    rows = (
        tuple(" ".join(split_names(text)) for text in texts)
        for texts in map(list_texts, one.documents)
    )
    database.executemany("insert into tools values (?, ?, ?)", rows)
    query = "select rowid from tools(?) order by bm25(tools, 4.0, 1.0, 1.0) limit 20"

    def search(question: str) -> list[str]:
        terms = dict.fromkeys(drop_stop_words(split_names(question)))
        expression = " OR ".join(f'"{term}"' for term in terms)
        found = database.execute(query, (expression,)) if terms else ()
        return [one.documents[row - 1].name for (row,) in found]

    return search


def list_texts(document: SearchDocument) -> tuple[str, str, str]:
    return document.name, document.description, document.arguments


def grade(found: list[str], gold: list[list[str]]) -> Scores:
    """Return recall of the gold groups at 1 and 5, and the reciprocal rank."""
    places = [
        min((found.index(name) for name in group if name in found), default=len(found) + 1000)
        for group in gold
    ]
    first = min(places)
    reciprocal = 1 / (first + 1) if first < len(found) else 0.0
    return (
        sum(place < 1 for place in places) / len(gold),
        sum(place < 5 for place in places) / len(gold),
        reciprocal,
    )


def format_scores(numbers: Iterable[float]) -> str:
    return " / ".join(f"{number:.3f}".removeprefix("0") for number in numbers)


def print_speed() -> None:
    documents, questions = generate_tools(), generate_queries()
    print(f"{TOOLS:,} made-up tools")
    with tempfile.TemporaryDirectory() as folder:
        search = Search(Path(folder))
        search.update(documents)
        print(
            "  first question, which makes the index:    "
            f" {time_call(lambda: search.search('x')):8.1f} ms"
        )
        again = Search(Path(folder))
        again.update(documents)
        print(
            "  first question with the index on disk:     "
            f" {time_call(lambda: again.search('x')):8.1f} ms"
        )
        print_questions(search, questions, make_bare_fts(documents))
        print(
            f"  update of 1 changed tool, then a question: {make_change(search, documents):8.1f} ms"
        )


def print_questions(
    search: Search, questions: dict[str, list[str]], bare: sqlite3.Connection
) -> None:
    for what, texts in questions.items():
        ours, theirs = [], []
        for text in texts:  # alternating, so that both see the same load
            ours.append(time_call(partial(search.search, text)))
            theirs.append(time_call(partial(search_bare, bare, text)))
        p50, p95 = format_percentiles(ours)
        relation = p50 / format_percentiles(theirs)[0]
        print(
            f"  {what:<42} p50 {p50:6.2f} ms, p95 {p95:6.2f} ms, {relation:5.2f} x a bare FTS5"
            " query"
        )


def make_change(search: Search, documents: list[SearchDocument]) -> float:
    """Return the median of several updates, each with a different tool changed."""

    def change(number: int) -> None:
        search.update(
            [
                *documents[:number],
                SearchDocument("tool", documents[number].name, "changed"),
                *documents[number + 1 :],
            ]
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
    database.execute(
        "create virtual table tools using fts5(name, description, arguments, tokenize = porter)"
    )
    rows = ((one.name, one.description, one.arguments) for one in documents)
    database.executemany("insert into tools values (?, ?, ?)", rows)
    return database


def search_bare(database: sqlite3.Connection, text: str) -> list[Any]:
    expression = " OR ".join(f'"{word}"' for word in dict.fromkeys(plain(text)))
    return database.execute(
        "select rowid from tools(?) order by rank limit 20", (expression,)
    ).fetchall()


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
    return {
        "a sentence": sentences,
        "two words": [words.some(2) for _ in range(QUESTIONS)],
        "a misspelt name": typos,
    }


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
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


if __name__ == "__main__":
    main()
