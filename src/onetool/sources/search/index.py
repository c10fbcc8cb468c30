"""The database schema of the search, and how documents are written.

`index_reader` reads what is written here. Registered tools, snippets and aliases are in one
database, stored tools in that of the bundle store. For each stem, `postings` has the documents that
contain it with its impact, so that a query reads the best documents of each stem first.

Words are scored by BM25F: it divides the occurrences of a word in each field by the field length,
adds them with the field weight, and saturates the sum. The usual lengths are constants, so the
impact of a word depends only on the document, and is stored. A score is the sum of the impacts of
the query's words, multiplied by how rare each word is. `benchmarks/search.py` measures the effect
of these parameters.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import log
from sqlite3 import Connection

from onetool.sources.search import SearchDocument
from onetool.sources.search.words import (
    deletions,
    is_one_typo_away,
    load_stemmer,
    load_word_vectors,
    may_be_misspelled,
    squeeze,
    words,
)

FORMAT = "1"  # increase it with every change of what is written, here or in `words`
SCHEMA = """
create table if not exists passages (number integer primary key, digest blob, meaning blob, terms text, impacts blob,
    form text);
create table if not exists postings (term text, impact integer, number integer, primary key (term, impact, number))
    without rowid;
create table if not exists frequencies (term text primary key, count integer) without rowid;
create table if not exists unindexed (number integer primary key);
create table if not exists names (form text, document integer, primary key (form, document)) without rowid;
create index if not exists names_of_documents on names (document);
create table if not exists vocabulary (word text primary key) without rowid;
create table if not exists near (cut text, word text, primary key (cut, word)) without rowid;
create virtual table if not exists forms using fts5(form, content = 'passages', content_rowid = 'number',
    tokenize = 'trigram case_sensitive 1', detail = none);
"""
TABLES = (
    *("postings", "frequencies", "unindexed", "names"),
    *("vocabulary", "near", "forms", "passages"),
)
UNINDEXED = "(select number from unindexed)"
MAX_CHARACTERS = 20_000  # of a field
# Words to remember during bulk writes; each slows down garbage collections.
MAX_WRITTEN_WORDS = 10_000
MAX_NEAR = 64  # similar words for one word
FIELDS = ((3.0, 5), (1.0, 25), (0.5, 80), (0.5, 80))  # weight and usual length, in index order
LENGTH_EFFECT = 0.6  # `b` of BM25
SATURATION = 1.2  # `k1` of BM25
MAX_IMPACT = 255
COVERAGE_EFFECT = 0.5  # how much more a document with all words of the query scores
LOW_SIMILARITY = 0.1  # if no document is nearer than this, similarity has little weight
NAME_PREFIX = "name:"  # of a term that is searched for in names only
Rarities = Mapping[str, float]  # by term


def put(
    connection: Connection, number: int, document: SearchDocument, digest: bytes = b""
) -> list[str]:
    """Write a document and return the words of its name. It is found after `index_rows`."""
    fields = (document.name, document.description, document.arguments, document.instructions)
    name, about, *others = (field[:MAX_CHARACTERS] for field in fields)
    texts = [words(text) for text in (name, about, *others)]
    impacts = compute_impacts(texts)
    meaning = load_word_vectors().encode_document((name, about, " ".join(others)))
    terms = " ".join(impacts)
    row = (number, digest, meaning, terms, bytes(impacts.values()), squeeze(document.name))
    connection.execute("insert into passages values (?, ?, ?, ?, ?, ?)", row)
    connection.execute("insert into unindexed values (?)", (number,))
    names = ((form, number) for form in name_forms(document.name))
    connection.executemany("insert into names values (?, ?)", names)
    return texts[0]


def index_rows(connection: Connection) -> None:
    """Make new documents searchable.

    Entries are written in order, which is much faster if there are many.
    """
    connection.execute(
        "create temp table if not exists pending (term text, impact integer, number integer)"
    )
    rows = connection.execute(
        f"select number, terms, impacts from passages where number in {UNINDEXED}"  # noqa: S608 - constants only
    )
    entries = (entry for row in rows for entry in list_entries(*row))
    connection.executemany("insert into pending values (?, ?, ?)", entries)
    connection.execute(
        "insert into postings select term, impact, number from pending order by 1, 2, 3"
    )
    connection.execute(
        "insert into frequencies select term, count(*) from pending where true group by term"
        " on conflict (term) do update set count = count + excluded.count"
    )
    connection.execute("delete from pending")
    insert = f"insert into forms (rowid, form) select number, form from passages where number in {UNINDEXED}"  # noqa: S608
    connection.execute(f"{insert} order by number")  # out of order, FTS5 would flush each time
    connection.execute("delete from unindexed")


def list_entries(number: int, terms: str, impacts: bytes) -> Iterator[tuple[str, int, int]]:
    return ((term, impact, number) for term, impact in zip(terms.split(" "), impacts, strict=False))


def learn(connection: Connection, words: Iterable[str], written: set[str]) -> None:
    """Add words to the vocabulary for misspelled queries, except those `written` before."""
    if len(written) > MAX_WRITTEN_WORDS:
        written.clear()
    for word in set(words) - written:
        written.add(word)
        is_new = connection.execute("insert or ignore into vocabulary values (?)", (word,)).rowcount
        if is_new and may_be_misspelled(word):
            cuts = ((cut, word) for cut in deletions(word))
            connection.executemany("insert into near values (?, ?)", cuts)


def drop(connection: Connection, number: int) -> None:
    """Delete a document that is searchable: FTS5 must not delete what it does not have."""
    connection.execute("delete from names where document = ?", (number,))
    query = "select number, terms, impacts from passages where number = ?"
    rows = connection.execute(query, (number,)).fetchall()
    entries = [entry for row in rows for entry in list_entries(*row)]
    delete = "delete from postings where term = ? and impact = ? and number = ?"
    connection.executemany(delete, entries)
    terms = [(term,) for term, _, _ in entries]
    connection.executemany("update frequencies set count = count - 1 where term = ?", terms)
    # Before the passages, which FTS5 reads.
    connection.execute("delete from forms where rowid = ?", (number,))
    connection.execute("delete from passages where number = ?", (number,))


def name_forms(name: str) -> set[str]:
    """Return the searchable forms of a name: all of it, and the parts around the last dot."""
    pack, _, short = name.rpartition(".")
    first = squeeze(pack)
    last = squeeze(short)
    return {first + last, first, last} - {""}


def find_similar_words(db: Connection, word: str) -> list[str]:
    """Return the vocabulary words one typing error away; they share a deletion with the word."""
    if not may_be_misspelled(word):
        return []
    cuts = sorted(deletions(word))
    query = f"select distinct word from near where cut in ({', '.join('?' * len(cuts))})"  # noqa: S608 - marks
    similar = sorted(other for (other,) in db.execute(query, cuts) if is_one_typo_away(word, other))
    return [other for other in similar if other != word][:MAX_NEAR]


# --- scores ---------------------------------------------------------------------------------------


def compute_impacts(fields: Sequence[Sequence[str]]) -> dict[str, int]:
    """Return the impact of each stem of a document, between 1 and MAX_IMPACT."""
    amounts: dict[str, float] = {}
    stems = iter(load_stemmer().stem([word for field_words in fields for word in field_words]))
    for place, (field_words, (weight, usual)) in enumerate(zip(fields, FIELDS, strict=True)):
        unit = weight / (1 - LENGTH_EFFECT + LENGTH_EFFECT * len(field_words) / usual)
        terms = list(islice(stems, len(field_words)))
        if place == 0:
            terms += [NAME_PREFIX + word for word in field_words if word.isdecimal()]
        for stem in terms:
            amounts[stem] = amounts.get(stem, 0.0) + unit
    return {
        stem: max(1, round(MAX_IMPACT * amount / (amount + SATURATION)))
        for stem, amount in amounts.items()
    }


def compute_rarity(size: int, count: int) -> float:
    """Return the weight of a term that `count` of `size` documents have.

    It is positive even if all have it.
    """
    return log(1 + (max(size, count) - count + 0.5) / (count + 0.5))


def score_words(rarities: Rarities, impacts: Mapping[str, int]) -> tuple[float, bool]:
    """Return the score of a document, and whether it has all terms."""
    terms = [term for term in rarities if term in impacts]
    score = sum([rarities[term] * impacts[term] for term in terms])
    coverage = len(terms) / max(1, len(rarities))
    return score * (1 + COVERAGE_EFFECT * coverage) / (1 + COVERAGE_EFFECT), coverage == 1


def combine(parts: Iterable[tuple[float, float, Sequence[float]]]) -> list[float]:
    """Add up scores by kind, each divided by its best or by a minimum, times its weight."""
    scaled = []
    for weight, minimum, scores in parts:
        factor = weight / max(minimum, max(scores, default=0.0))
        scaled.append([factor * score for score in scores])
    return [sum(several) for several in zip(*scaled, strict=True)]
