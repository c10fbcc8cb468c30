"""Finding things: by name, by a misspelt name, by what they are for; and the cache, which may be lost at any time."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given, settings, strategies as st

from onetool.search import Search, SearchDocument, SearchHit

CATALOGUE = (
    SearchDocument("pack", "firecrawl", instructions="Prefer markdown. Large sites need a budget of credits."),
    SearchDocument("pack", "web"),
    SearchDocument("tool", "firecrawl.scrape", "Scrape one page.", "url: the page\nformats: markdown or html"),
    SearchDocument("tool", "web.fetch", "Fetch a page of the web as text.", "url: where it is\ntimeout: seconds"),
    SearchDocument("tool", "web.fetch_batch", "Fetch several pages side by side.", "urls: where they are"),
    SearchDocument("tool", "brave.web_search", "Search the web.", "query: what to look for"),
    SearchDocument("tool", "ot.scaffold", "Create the files of a new pack.", "name: of the pack"),
    SearchDocument("tool", "machine.disk", "How full the disks are."),
    SearchDocument("tool", "meteo.today", "Weather now and for the next hours.", "place: a town"),
    SearchDocument("tool", "fs.remove_directory", "Delete a directory with everything in it.", "path: which"),
    SearchDocument("tool", "getUserName", "Who is logged in."),
    SearchDocument("tool", "menu.order", "Order from the café: crème brûlée and more."),
    SearchDocument("snippet", "b_q", "Quick question to the brave search."),
    SearchDocument("alias", "ws", "brave.web_search"),
)


def make_search(*documents: SearchDocument, cache: Path | None = None) -> Search:
    made = Search(cache, semantic=False)
    made.update(documents)
    return made


def asked(query: str, documents: Iterable[SearchDocument] = CATALOGUE) -> list[SearchHit]:
    return make_search(*documents).search(query)


def names(hits: Iterable[SearchHit]) -> list[str]:
    return [hit.name for hit in hits]


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("brave.web_search", "brave.web_search"),
        ("BRAVE.Web-Search", "brave.web_search"),
        ("brave web search", "brave.web_search"),
        ("firecrawl", "firecrawl"),
        ("get_user_name", "getUserName"),
        ("$b_q", "b_q"),
        ("ws", "ws"),
    ],
)
def test_a_whole_name_comes_first_however_it_is_written(query: str, name: str) -> None:
    first = asked(query)[0]
    assert (first.name, first.match) == (name, "exact")


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("scaf", "ot.scaffold"),
        ("machine.d", "machine.disk"),
        ("FETCH_B", "web.fetch_batch"),
        ("fire", "firecrawl"),
    ],
)
def test_the_beginning_of_a_name_or_of_its_last_part_finds_it(query: str, name: str) -> None:
    first = asked(query)[0]
    assert (first.name, first.match) == (name, "prefix")


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("frirecrawl", "firecrawl"),
        ("scaffoldl", "ot.scaffold"),
        ("brave.web_serach", "brave.web_search"),
        ("fech batch", "web.fetch_batch"),
        ("crawl", "firecrawl"),
        ("frirecrawl budget", "firecrawl"),
    ],
)
def test_typing_errors_in_names_are_forgiven(query: str, name: str) -> None:
    first = asked(query)[0]
    assert (first.name, first.match) == (name, "fuzzy")


def test_a_known_word_is_not_a_typing_error() -> None:
    assert set(names(asked("page"))[:3]) == {"firecrawl.scrape", "web.fetch", "web.fetch_batch"}
    assert {hit.match for hit in asked("page")} == {"text"}


def test_all_words_in_the_name_come_before_words_in_the_text() -> None:
    hits = asked("user name")
    assert (hits[0].name, hits[0].match) == ("getUserName", "word")
    assert (hits[1].name, hits[1].match) == ("ot.scaffold", "text")


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("how much space is left on my disks?", "machine.disk"),
        ("scraping pages as markdown", "firecrawl.scrape"),
        ("seconds to wait", "web.fetch"),
        ("which one has a budget of credits", "firecrawl"),
        ("please could you tell me what I should do to get some pages side by side", "web.fetch_batch"),
    ],
)
def test_sentences_match_names_descriptions_arguments_and_instructions(query: str, name: str) -> None:
    assert names(asked(query))[0] == name


@pytest.mark.parametrize("query", ["creme brulee", "CRÈME BRÛLÉE", "Cafe", "cafe\u0301"])
def test_case_and_diacritics_do_not_count(query: str) -> None:
    assert names(asked(query)) == ["menu.order"]


def test_scripts_without_spaces_are_found_by_their_characters() -> None:
    weather = SearchDocument("tool", "tenki.yohou", "明日の天気予報")
    assert names(asked("天気", [weather, SearchDocument("tool", "other.thing", "音楽")])) == ["tenki.yohou"]


@pytest.mark.parametrize(
    "query",
    [
        'disk"', '"disk', "disk*", "^disk", "-disk", "name:disk", "(disk", "{name} : disk", "disk + disk", "disk' --",
        "disk AND", "OR disk", "NOT disk", "NEAR(disk)", "disk; drop table documents", "\x00disk", "disk\ud800",
    ],
)  # fmt: skip
def test_characters_of_query_syntax_are_plain_text(query: str) -> None:
    assert "machine.disk" in names(asked(query))


@pytest.mark.parametrize("query", ["", " ", "\n\t", "???", "$", "\x00", "\ud800", "…"])
def test_a_question_without_words_finds_nothing(query: str) -> None:
    assert asked(query) == []


def test_unknown_words_find_nothing() -> None:
    assert asked("xyznonexistent") == []
    assert asked("anything", []) == []


@pytest.mark.parametrize("query", ["filling", "kindoftool", "\ue000", "\ue000filling"])
def test_the_words_of_the_index_itself_are_not_found(query: str) -> None:
    assert asked(query) == []


def test_filler_and_numbers_count_where_there_is_nothing_else() -> None:
    assert names(asked("who is 1984", [SearchDocument("tool", "tv.who", "Is 1984 a year of Doctor Who?")])) == [
        "tv.who"
    ]
    assert names(asked("what is it", [SearchDocument("tool", "a.b", "what it is")])) == ["a.b"]


def test_a_megabyte_of_question_is_answered() -> None:
    assert names(asked("disk " * 200_000))[0] == "machine.disk"
    assert names(asked("disk" * 250_000)) == []


def test_scores_fall_from_the_first_to_the_last_and_stay_between_0_and_1() -> None:
    hits = asked("web")
    assert {hit.match for hit in hits} == {"exact", "prefix", "text"}
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] == 1
    assert scores[-1] > 0


def test_nothing_is_found_twice_and_no_more_than_asked_for() -> None:
    search = make_search(*CATALOGUE)
    assert len(set(names(search.search("web page fetch")))) == len(search.search("web page fetch"))
    assert len(search.search("web", limit=2)) == 2
    assert search.search("web", limit=0) == []
    assert search.search("web", limit=10**30) == search.search("web", limit=100)


def test_only_the_kinds_that_are_asked_for_are_found() -> None:
    search = make_search(*CATALOGUE)
    assert names(search.search("brave search", kinds=["snippet"])) == ["b_q"]
    assert names(search.search("budget of credits", kinds=["pack", "alias"])) == ["firecrawl"]
    assert search.search("web", kinds=[]) == []


def test_a_tool_and_an_alias_of_one_name_are_both_found() -> None:
    both = [SearchDocument("tool", "grep", "Find lines."), SearchDocument("alias", "grep", "files.search")]
    assert [(hit.kind, hit.match) for hit in asked("grep", both)] == [("tool", "exact"), ("alias", "exact")]


def test_fields_that_only_run_together_are_not_the_same() -> None:
    both = [SearchDocument("tool", "a", "b\0c"), SearchDocument("tool", "a\0b", "c")]
    assert sorted(names(asked("c", both))) == ["a", "a\0b"]


def test_equal_scores_are_ordered_by_name_regardless_of_earlier_changes() -> None:
    alike = [SearchDocument("tool", f"pack.{letter}", "Plays the gramophone.") for letter in "abcd"]
    search = make_search(alike[0], SearchDocument("tool", "pack.z", "Other."), *reversed(alike[1:]))
    assert names(search.search("gramophone")) == [document.name for document in alike]
    search.update(alike)
    assert names(search.search("gramophone")) == [document.name for document in alike]


def test_an_update_does_not_wait_for_a_question() -> None:
    search = make_search(*CATALOGUE)
    with search._lock:  # as while a question makes the index
        updating = Thread(target=search.update, args=[CATALOGUE[:3]], daemon=True)
        updating.start()
        updating.join(timeout=60)
        assert not updating.is_alive()
    assert names(search.search("machine.disk")) == []


@pytest.mark.parametrize("on_disk", [False, True])
def test_changes_and_removals_take_effect_at_once(tmp_path: Path, on_disk: bool) -> None:
    search = make_search(*CATALOGUE, cache=tmp_path if on_disk else None)
    assert names(search.search("gramophone")) == []
    search.update([SearchDocument("tool", "machine.disk", "Plays the gramophone."), *CATALOGUE[:7]])
    assert names(search.search("gramophone")) == ["machine.disk"]
    assert names(search.search("full disks"))[:1] == ["machine.disk"]
    search.update(CATALOGUE[:7])
    assert names(search.search("gramophone")) == names(search.search("machine.disk")) == []
    assert names(search.search("scaffold")) == ["ot.scaffold"]


def test_to_hold_a_search_writes_nothing_before_the_first_question(tmp_path: Path) -> None:
    search = make_search(*CATALOGUE, cache=tmp_path / "cache")
    assert list(tmp_path.iterdir()) == []
    search.search("disk")
    assert len(files(tmp_path / "cache")) == 1


def test_to_import_the_search_loads_nothing_that_costs_time() -> None:
    code = "import sys, onetool.search; print([n for n in ('sqlite3', 'rapidfuzz', 'numpy') if n in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_the_next_process_finds_the_index_ready(tmp_path: Path) -> None:
    make_search(*CATALOGUE, cache=tmp_path).search("disk")
    (file,) = files(tmp_path)
    before = file.read_bytes()
    assert process(tmp_path, CATALOGUE, "frirecrawl") == ["firecrawl", "firecrawl.scrape"]
    assert files(tmp_path) == [file]
    assert file.read_bytes() == before


@pytest.mark.slow
def test_processes_that_start_together_share_one_file(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: process(tmp_path, CATALOGUE, "full disks"), range(4)))
    assert found == [["machine.disk"]] * 4
    assert len(files(tmp_path)) == len(list(tmp_path.iterdir())) == 1


def test_processes_with_other_documents_do_not_disturb_each_other(tmp_path: Path) -> None:
    here = make_search(*CATALOGUE, cache=tmp_path)
    assert names(here.search("full disks")) == ["machine.disk"]
    assert process(tmp_path, [SearchDocument("tool", "far.away", "Other disks.")], "full disks") == ["far.away"]
    assert names(here.search("full disks")) == ["machine.disk"]


def test_a_change_writes_the_changed_rows_only(tmp_path: Path) -> None:
    search = make_search(*CATALOGUE, cache=tmp_path)
    search.search("disk")
    before = rows(files(tmp_path)[0])
    search.update([*CATALOGUE[:-1], SearchDocument("alias", "ws", "brave.image_search")])
    search.search("disk")
    after = rows(max(files(tmp_path), key=lambda file: file.stat().st_mtime_ns))
    assert len(before & after) == len(CATALOGUE) - 1
    assert len(after) == len(CATALOGUE)


def test_an_update_that_changes_nothing_touches_no_file(tmp_path: Path) -> None:
    search = make_search(*CATALOGUE, cache=tmp_path)
    search.search("disk")
    files(tmp_path)[0].unlink()
    search.update(CATALOGUE)
    assert names(search.search("full disks")) == ["machine.disk"]
    assert files(tmp_path) == []


def test_old_files_are_swept_and_those_in_use_still_answer(tmp_path: Path) -> None:
    first = make_search(CATALOGUE[0], cache=tmp_path)
    first.search("markdown")
    for last in range(2, 10):
        make_search(*CATALOGUE[:last], cache=tmp_path).search("markdown")
    assert len(files(tmp_path)) == 4
    assert names(first.search("markdown")) == ["firecrawl"]


@pytest.mark.parametrize("damage", [b"", b"not a database", b"SQLite format 3\x00" + bytes(5000)])
def test_a_damaged_file_is_made_again(tmp_path: Path, damage: bytes) -> None:
    make_search(*CATALOGUE, cache=tmp_path).search("disk")
    (file,) = files(tmp_path)
    whole = file.stat().st_size
    file.write_bytes(damage)
    assert names(make_search(*CATALOGUE, cache=tmp_path).search("full disks")) == ["machine.disk"]
    assert file.stat().st_size == whole


def test_a_file_cut_in_half_is_made_again(tmp_path: Path) -> None:
    make_search(*many(300), cache=tmp_path).search("disk")
    (file,) = files(tmp_path)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert names(make_search(*many(300), cache=tmp_path).search("pack7.tool_17"))[0] == "pack7.tool_17"


@pytest.mark.slow
def test_a_file_that_breaks_while_it_is_open_is_made_again(tmp_path: Path) -> None:
    search = make_search(*many(3000), cache=tmp_path)
    search.search("disk")
    (file,) = files(tmp_path)
    with file.open("r+b") as opened:
        opened.write(b"\xff" * file.stat().st_size)
    for number in range(0, 3000, 50):
        assert names(search.search(f"what does number{number} do for me"))[0] == f"pack{number % 10}.tool_{number}"


def test_a_file_that_holds_something_else_is_not_believed(tmp_path: Path) -> None:
    make_search(*CATALOGUE, cache=tmp_path).search("disk")
    (file,) = files(tmp_path)
    with sqlite3.connect(file) as database:
        database.execute("delete from passages where number < 5")
    database.close()
    assert names(make_search(*CATALOGUE, cache=tmp_path).search("frirecrawl"))[0] == "firecrawl"


def test_a_damaged_base_is_not_used(tmp_path: Path) -> None:
    make_search(*CATALOGUE[1:], cache=tmp_path).search("disk")
    files(tmp_path)[0].write_bytes(b"not a database")
    assert names(make_search(*CATALOGUE, cache=tmp_path).search("full disks")) == ["machine.disk"]


def test_where_nothing_can_be_written_the_index_lives_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    search = make_search(*CATALOGUE, cache=tmp_path / "file" / "cache")
    assert names(search.search("full disks")) == ["machine.disk"]
    search.update(CATALOGUE[:3])
    assert names(search.search("machine.disk")) == []
    (tmp_path / "file").unlink()
    search.update(CATALOGUE)
    assert names(search.search("full disks")) == ["machine.disk"]
    assert len(files(tmp_path / "file" / "cache")) == 1
    search.update(CATALOGUE[:3])
    assert names(search.search("machine.disk")) == []


def test_a_search_that_was_closed_answers_again(tmp_path: Path) -> None:
    search = make_search(*CATALOGUE, cache=tmp_path)
    search.close()
    assert names(search.search("full disks")) == ["machine.disk"]
    search.close()
    assert names(search.search("full disks")) == ["machine.disk"]


@pytest.mark.slow
def test_ten_thousand_documents_are_searched_and_one_of_them_changed(tmp_path: Path) -> None:
    documents = many(10_000)
    search = make_search(*documents, cache=tmp_path)
    assert names(search.search("what does number4242 do"))[0] == "pack2.tool_4242"
    assert names(search.search("pack2.tol_4242"))[0] == "pack2.tool_4242"
    search.update([*documents[1:], SearchDocument("tool", "pack0.tool_0", "Feeds the giraffe.")])
    assert names(search.search("giraffe")) == ["pack0.tool_0"]
    assert len(search.search("tool", limit=500)) == 500


def test_threads_may_ask_while_documents_change() -> None:
    search = make_search(*CATALOGUE)

    def ask(number: int) -> bool:
        search.update(CATALOGUE[: 8 + number % 6])
        return names(search.search("how full are the disks"))[0] == "machine.disk"

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(100)))


ANY_TEXT = st.text(max_size=80) | st.text(alphabet="\"'*^:()-+{}AND OR NOT NEAR disk", max_size=80)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(query=ANY_TEXT, limit=st.integers(-1, 30))
def test_no_question_makes_it_fail(query: str, limit: int) -> None:
    hits = SHARED.search(query, limit)
    assert len(hits) <= max(limit, 0)
    assert all(0 <= hit.score <= 1 for hit in hits)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(text=st.lists(st.text(max_size=30), min_size=4, max_size=4), query=ANY_TEXT)
def test_no_document_makes_it_fail(text: list[str], query: str) -> None:
    SHARED_TOO.update([SearchDocument("tool", *text), *CATALOGUE])
    assert "machine.disk" in names(SHARED_TOO.search("machine.disk"))
    SHARED_TOO.search(query)


needs_vectors = pytest.mark.skipif(find_spec("wordllama") is None, reason="the extra semantic is not installed")


def test_a_number_beside_words_prefers_the_name_that_has_it() -> None:
    tools = [SearchDocument("tool", f"shop.list-things-{number}", "of an invoice, 77 at most") for number in range(100)]
    assert names(make_search(*tools).search("invoice things 77"))[0] == "shop.list-things-77"


@needs_vectors
def test_vectors_find_similar_meanings_without_common_words(tmp_path: Path) -> None:
    question = "is there any laundry detergent around for my shirts?"
    washing = SearchDocument("tool", "home.washer", "Starts the washing machine.")
    search = Search(tmp_path)
    search.update([*CATALOGUE, washing])
    assert names(search.search(question))[0] == "home.washer"
    assert "home.washer" not in names(asked(question, [*CATALOGUE, washing]))
    assert search.search("xyznonexistent") == []
    assert names(search.search("frirecrawl", kinds=["pack"]))[0] == "firecrawl"


@needs_vectors
def test_vectors_do_not_find_dissimilar_documents() -> None:
    search = Search(None)
    search.update(CATALOGUE)
    assert names(search.search("how full are my disks")) == ["machine.disk"]
    assert search.search("how full are my disks", kinds=["alias", "snippet"]) == []


@needs_vectors
@pytest.mark.parametrize("damage", [None, b"xx"])
def test_a_file_with_damaged_vectors_is_made_again(tmp_path: Path, damage: bytes | None) -> None:
    first = Search(tmp_path)
    first.update(CATALOGUE)
    first.search("disk")
    (file,) = files(tmp_path)
    with sqlite3.connect(file) as database:
        database.execute("update passages set vector = ? where rowid = 3", (damage,))
    database.close()
    again = Search(tmp_path)
    again.update(CATALOGUE)
    assert names(again.search("how full are my disks")) == ["machine.disk"]


SHARED, SHARED_TOO = make_search(*CATALOGUE), make_search(*CATALOGUE)


def many(count: int) -> list[SearchDocument]:
    return [
        SearchDocument(
            "tool", f"pack{number % 10}.tool_{number}", f"Does number{number}, which no other does.", "x: a number"
        )
        for number in range(count)
    ]


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.db"))


def rows(file: Path) -> set[tuple[int, bytes]]:
    with sqlite3.connect(file) as database:
        found = set(database.execute("select number, digest from passages"))
    database.close()
    return found


def process(cache: Path, documents: Iterable[SearchDocument], query: str) -> list[str]:
    """The names that a process of its own finds."""
    code = """if True:
        import json, pathlib, sys
        from onetool.search import SearchDocument, Search
        cache, documents, query = json.load(sys.stdin)
        search = Search(pathlib.Path(cache), semantic=False)
        search.update(SearchDocument(*fields) for fields in documents)
        print(json.dumps([hit.name for hit in search.search(query)]))
    """
    fields = [[one.kind, one.name, one.description, one.arguments, one.instructions] for one in documents]
    asked_for = json.dumps([str(cache), fields, query])
    answer = subprocess.run([sys.executable, "-c", code], input=asked_for, text=True, check=True, capture_output=True)
    found: list[str] = json.loads(answer.stdout)
    return found
