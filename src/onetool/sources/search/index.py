"""The database schema of the search, and how documents are written.

`index_reader` reads what is written here. Registered tools, snippets and aliases are in one
database (`onetool.sources.search.index_files`), stored tools in that of the bundle store. For each
stem, `postings` has the documents that contain it with its impact (`scoring`), so that a query
reads the best documents of each stem first.
"""

import sqlite3
from collections.abc import Iterable, Iterator

from onetool.sources.search.documents import SearchDocument
from onetool.sources.search.scoring import compute_impacts
from onetool.sources.search.word_vectors import load_word_vectors
from onetool.sources.search.words import (
    deletions,
    is_one_typo_away,
    may_be_misspelled,
    squeeze,
    words,
)

FORMAT = "1"  # increase it with every change of what is written, here or in `words` and `scoring`
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
    "postings",
    "frequencies",
    "unindexed",
    "names",
    "vocabulary",
    "near",
    "forms",
    "passages",
)
UNINDEXED = "(select number from unindexed)"
MAX_CHARACTERS = 20_000  # of a field
MAX_KNOWN_WORDS = (
    10_000  # words to remember during bulk writes; each slows down garbage collections
)
MAX_NEAR = 64  # similar words for one word


def put(
    connection: sqlite3.Connection, number: int, document: SearchDocument, digest: bytes = b""
) -> list[str]:
    """Write a document and return the words of its name. It is found after `index_rows`."""
    fields = (document.name, document.description, document.arguments, document.instructions)
    name, about, *others = (field[:MAX_CHARACTERS] for field in fields)
    texts = [words(text) for text in (name, about, *others)]
    impacts = compute_impacts(texts)
    meaning = load_word_vectors().encode_document((name, about, " ".join(others)))
    row = (
        number,
        digest,
        meaning,
        " ".join(impacts),
        bytes(impacts.values()),
        squeeze(document.name),
    )
    connection.execute("insert into passages values (?, ?, ?, ?, ?, ?)", row)
    connection.execute("insert into unindexed values (?)", (number,))
    names = ((form, number) for form in name_forms(document.name))
    connection.executemany("insert into names values (?, ?)", names)
    return texts[0]


def index_rows(connection: sqlite3.Connection) -> None:
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


def learn(connection: sqlite3.Connection, words: Iterable[str], known_words: set[str]) -> None:
    """Add words to the vocabulary for misspelled queries.

    `known_words` are some that were written before.
    """
    if len(known_words) > MAX_KNOWN_WORDS:
        known_words.clear()
    for word in set(words) - known_words:
        known_words.add(word)
        is_new = connection.execute("insert or ignore into vocabulary values (?)", (word,)).rowcount
        if is_new and may_be_misspelled(word):
            connection.executemany(
                "insert into near values (?, ?)", ((cut, word) for cut in deletions(word))
            )


def drop(connection: sqlite3.Connection, number: int) -> None:
    """Delete a document that is searchable: FTS5 must not delete what it does not have."""
    connection.execute("delete from names where document = ?", (number,))
    query = "select number, terms, impacts from passages where number = ?"
    entries = [
        entry for row in connection.execute(query, (number,)) for entry in list_entries(*row)
    ]
    connection.executemany(
        "delete from postings where term = ? and impact = ? and number = ?", entries
    )
    terms = [(term,) for term, _, _ in entries]
    connection.executemany("update frequencies set count = count - 1 where term = ?", terms)
    connection.execute(
        "delete from forms where rowid = ?", (number,)
    )  # before the passages, which FTS5 reads
    connection.execute("delete from passages where number = ?", (number,))


def name_forms(name: str) -> set[str]:
    """Return the forms by which a name is found: all of it, the part after the last dot, and the
    part before it.
    """
    pack, _, short = name.rpartition(".")
    first = squeeze(pack)
    last = squeeze(short)
    return {first + last, first, last} - {""}


def find_similar_words(db: sqlite3.Connection, word: str) -> list[str]:
    """Return the known words that are one typing error away from this one.

    They share a deletion with it.
    """
    if not may_be_misspelled(word):
        return []
    cuts = sorted(deletions(word))
    query = f"select distinct word from near where cut in ({', '.join('?' * len(cuts))})"  # noqa: S608 - marks
    similar = sorted(other for (other,) in db.execute(query, cuts) if is_one_typo_away(word, other))
    return [other for other in similar if other != word][:MAX_NEAR]
