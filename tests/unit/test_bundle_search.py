"""Ranking of stored tools: the index and the ranking rule agree."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st
from tests.bundles_support import START, bundle_body, expect_error, new_bundle, open_store, search_slugs, tool_body

from onetool.bundles import BundleDraft, BundleStore, ToolDraft
from onetool.bundles.bundle_index import create_tables, index_rows, open_database, write_bundle, write_tool
from onetool.bundles.bundle_search import RankedHit, ToolFinder, _next_prefix
from onetool.bundles.bundle_store import new_id
from onetool.bundles.filesystem import Stamp
from onetool.bundles.ranking import ToolQuery, find_rank
from onetool.bundles.records import BundleFile, ToolFile
from onetool.bundles.search_text import SearchText, fold_name
from onetool.search.words import deletions

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
    store.put_tool(bundle, "send-mail", "1", tool_body(displayName="Post", description="to a friend"))
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
    ["read", "reads", "raed", "file", "fil", "f", "re", "x1", "x2", "reader", "rédeR", "検索", "ab", "a"]
)
SOME_WORDS = st.lists(WORDS, min_size=1, max_size=3)


@pytest.mark.slow
@settings(deadline=None)
@given(tools=st.lists(st.tuples(SOME_WORDS, SOME_WORDS, SOME_WORDS), min_size=1, max_size=8), asked=SOME_WORDS)
def test_the_index_and_the_ranking_agree(tools: list[tuple[list[str], list[str], list[str]]], asked: list[str]) -> None:
    question = ToolQuery.of(" ".join(asked))
    with closing(open_database(":memory:")) as database:
        create_tables(database)
        write_bundle(database, "folder", BundleFile.new(BUNDLE, BundleDraft.of(bundle_body()), START), STAMP)
        files = [write_to_index(database, number, *fields) for number, fields in enumerate(tools)]
        ranks = {
            key: find_rank(
                question, fold_name(file.slug), fold_name(file.display_name), SearchText.of(file, "tools tools")
            )
            for key, file in files
        }
        newest_first = sorted((key for key, rank in ranks.items() if rank is not None), reverse=True)
        expected = [RankedHit(ranks[key] or 0, key) for key in sorted(newest_first, key=lambda key: ranks[key] or 0)]
        finder = ToolFinder(database, question, include_disabled=False)
        assert list(finder.hits(None)) == expected
        for number, hit in enumerate(expected):
            assert list(finder.hits(hit)) == expected[number + 1 :]


def write_to_index(
    database: sqlite3.Connection, number: int, slug: list[str], name: list[str], about: list[str]
) -> tuple[int, ToolFile]:
    draft = ToolDraft.of(tool_body(displayName=" ".join(name), description=" ".join(about)))
    file = ToolFile.new(new_id(), f"{'-'.join(slug)}-{number}", "1", draft, START + timedelta(seconds=number))
    write_tool(database, BUNDLE, f"{number}.json", file, STAMP, known_words=set())
    index_rows(database)
    (key,) = database.execute("select key from tools where id = ?", (file.id,)).fetchone()
    return key, file


@settings(deadline=None)
@given(st.text(min_size=1, max_size=5), st.text(max_size=3))
@example("\U0010ffff", "\U0010ffff" * 2)
def test_the_next_prefix_sorts_after_all_texts_with_the_prefix(start: str, rest: str) -> None:
    if all(ord(letter) < 0xD800 or ord(letter) > 0xDFFF for letter in start + rest):
        assert start <= start + rest < _next_prefix(start)
        _next_prefix(start).encode()


@settings(deadline=None)
@given(st.text("abcd", min_size=4, max_size=8), st.integers(0, 7), st.sampled_from("abcdx"))
def test_words_one_typo_apart_share_a_deletion(word: str, at: int, letter: str) -> None:
    at %= len(word)
    slips = {word[:at] + word[at + 1 :], word[:at] + letter + word[at:], word[:at] + letter + word[at + 1 :]}
    if at + 1 < len(word):
        slips.add(word[:at] + word[at + 1] + word[at] + word[at + 2 :])
    assert all(deletions(word) & deletions(slip) for slip in slips)
