"""Ranking of stored tools: the index and the ranking rule agree."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from tests.bundles_support import (
    START,
    bundle_body,
    expect_error,
    new_bundle,
    open_store,
    search_slugs,
    tool_body,
)
from tests.rest_support import new_id

from onetool.sources.bundles import BundleDraft, BundleStore, ToolDraft
from onetool.sources.bundles.bundle_index import (
    create_tables,
    open_database,
    write_bundle,
    write_tool,
)
from onetool.sources.bundles.filesystem import Stamp
from onetool.sources.bundles.queries import ToolQuery, find_ranked
from onetool.sources.bundles.records import BundleFile, ToolFile, fold_name, list_words
from onetool.sources.search.index import index_rows
from onetool.sources.search.words import deletions, is_one_typo_away

STAMP = Stamp(0, 0)
BUNDLE = "0192f0c1-7a10-7c3e-9d2b-3f5a6b7c8d9e"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BundleStore]:
    with open_store(tmp_path / "bundles") as store:
        yield store


def list_matches(store: BundleStore, q: str) -> list[tuple[str, str]]:
    return [(hit.tool.slug, hit.match) for hit in store.search(q).items]


def test_words_may_be_in_any_order_and_in_several_fields(store: BundleStore) -> None:
    bundle = new_bundle(store)
    store.put_tool(
        bundle, "send-mail", "1", tool_body(displayName="Post", description="to a friend")
    )
    store.put_tool(bundle, "send-fax", "1", tool_body(displayName="Old"))
    assert list_matches(store, "mail send") == [("send-mail", "word")]
    assert list_matches(store, "friend send") == [("send-mail", "word")]
    assert list_matches(store, "friend fax") == []


def test_parts_of_words_and_typos_are_fuzzy_matches(store: BundleStore) -> None:
    bundle = new_bundle(store)
    store.put_tool(bundle, "read-file", "1", tool_body(displayName="Reader"))
    for q in ("ead", "raed", "red", "readd", "rfad", "readfile", "eadfil", "fi"):
        expected = [] if q == "red" else [("read-file", "fuzzy")]
        assert list_matches(store, q) == expected, q


def test_a_part_of_many_words_finds_all_of_them_newest_first(store: BundleStore) -> None:
    bundle = new_bundle(store)
    slugs = [f"thread{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    store.put_many(bundle, [(slug, "1", tool_body()) for slug in slugs])
    assert list_matches(store, "hread") == [(slug, "fuzzy") for slug in reversed(slugs)][:25]


def test_numbers_are_not_matched_fuzzily(store: BundleStore) -> None:
    bundle = new_bundle(store)
    store.put_tool(bundle, "job-1234", "1", tool_body())
    assert list_matches(store, "1235") == []
    assert list_matches(store, "1234") == [("job-1234", "word")]


def test_camel_case_is_split_into_words(store: BundleStore) -> None:
    bundle = new_bundle(store)
    store.put_tool(bundle, "getUserName", "1", tool_body())
    assert list_matches(store, "user") == [("getUserName", "word")]
    assert list_matches(store, "GETUSER") == [("getUserName", "prefix")]


def test_scripts_without_spaces_are_searched_by_character(store: BundleStore) -> None:
    bundle = new_bundle(store)
    store.put_tool(bundle, "検索ツール", "1", tool_body(displayName="ファイルを読む"))
    assert list_matches(store, "検索") == [("検索ツール", "prefix")]
    assert list_matches(store, "索") == [("検索ツール", "word")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "q",
    [
        '"',
        "*",
        "a*",
        "NEAR(a b)",
        "slug:x",
        "{slug}",
        "a AND",
        "^a",
        "-a",
        "a OR b",
        "'; --",
        "()",
        "\x00",
        "\ue000",
        "%_",
    ],
)
def test_a_query_has_no_special_characters(store: BundleStore, q: str) -> None:
    bundle = new_bundle(store)
    store.put_tool(bundle, "x", "1", tool_body(displayName=f"name {q.strip(chr(0))} end"))
    assert isinstance(search_slugs(store, q), list)


def test_a_display_name_may_start_with_symbols(store: BundleStore) -> None:
    bundle = new_bundle(store)
    store.put_tool(bundle, "odd", "1", tool_body(displayName="*** stars ***"))
    assert list_matches(store, "***") == [("odd", "prefix")]


def test_a_query_that_is_too_long_is_rejected(store: BundleStore) -> None:
    expect_error("invalid", lambda: store.search("x" * 1001))
    assert store.search("word " * 200).items == []


WORDS = st.sampled_from(
    [
        "read",
        "reads",
        "raed",
        "file",
        "fil",
        "f",
        "re",
        "x1",
        "x2",
        "reader",
        "rédeR",
        "検索",
        "ab",
        "a",
    ]
)
SOME_WORDS = st.lists(WORDS, min_size=1, max_size=3)


@pytest.mark.slow
@settings(deadline=None)
@given(
    tools=st.lists(st.tuples(SOME_WORDS, SOME_WORDS, SOME_WORDS), min_size=1, max_size=8),
    asked=SOME_WORDS,
)
def test_the_index_and_the_ranking_agree(
    tools: list[tuple[list[str], list[str], list[str]]], asked: list[str]
) -> None:
    question = ToolQuery.of(" ".join(asked))
    with closing(open_database(":memory:")) as database:
        create_tables(database)
        write_bundle(
            database, "folder", BundleFile.new(BUNDLE, BundleDraft.of(bundle_body()), START), STAMP
        )
        files = [write_to_index(database, number, *fields) for number, fields in enumerate(tools)]
        ranks = {
            key: rank for key, file in files if (rank := find_rank(question, file)) is not None
        }
        expected = [(ranks[key], key) for key in sorted(ranks, key=lambda key: (ranks[key], -key))]
        assert list_hits(database, question, None, 100) == expected
        for number, hit in enumerate(expected):
            assert list_hits(database, question, hit, 2) == expected[number + 1 : number + 3]


def list_hits(
    database: sqlite3.Connection, question: ToolQuery, after: tuple[int, int] | None, limit: int
) -> list[tuple[int, int]]:
    hits = find_ranked(database, question, after, include_disabled=False, limit=limit)
    return [(rank, row.key) for rank, row in hits]


def find_rank(question: ToolQuery, file: ToolFile) -> int | None:
    """Return the rank of a tool by the rules of the documentation; None if it does not match."""
    starts = [fold_name(file.slug), fold_name(file.display_name)]
    ranks = [rank for rank, start in enumerate(starts) if start.startswith(question.text)]
    fields = list_words(file, ("tools", "tools"))
    for first, fits in ((2, str.__eq__), (7, is_like)):
        found = [
            [
                number
                for number, field in enumerate(fields)
                if any(fits(word, other) for other in field)
            ]
            for word in question.words
        ]
        if all(found):
            ranks.append(first + max(numbers[0] for numbers in found))
    return min(ranks, default=None)


def is_like(word: str, other: str) -> bool:
    if len(word) == 2:
        return other.startswith(word)
    return word == other or (len(word) > 2 and word in other) or is_one_typo_away(word, other)


def write_to_index(
    database: sqlite3.Connection, number: int, slug: list[str], name: list[str], about: list[str]
) -> tuple[int, ToolFile]:
    draft = ToolDraft.of(tool_body(displayName=" ".join(name), description=" ".join(about)))
    file = ToolFile.new(
        new_id(), f"{'-'.join(slug)}-{number}", "1", draft, START + timedelta(seconds=number)
    )
    write_tool(database, BUNDLE, f"{number}.json", file, STAMP, known_words=set())
    index_rows(database)
    (key,) = database.execute("select key from tools where id = ?", (file.id,)).fetchone()
    return key, file


@settings(deadline=None)
@given(st.text("abcd", min_size=4, max_size=8), st.integers(0, 7), st.sampled_from("abcdx"))
def test_words_one_typo_apart_share_a_deletion(word: str, at: int, letter: str) -> None:
    at %= len(word)
    slips = {
        word[:at] + word[at + 1 :],
        word[:at] + letter + word[at:],
        word[:at] + letter + word[at + 1 :],
    }
    if at + 1 < len(word):
        slips.add(word[:at] + word[at + 1] + word[at] + word[at + 2 :])
    assert all(deletions(word) & deletions(slip) for slip in slips)
