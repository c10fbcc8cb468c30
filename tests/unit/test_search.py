"""Search by name, misspelled name and description, and the index cache, which may be lost at any
time.
"""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import example, given, settings, strategies as st

from onetool.sources.search import SearchDocument, SearchHit
from onetool.sources.search.catalog import Search

CATALOGUE = (
    SearchDocument(
        "pack", "firecrawl", instructions="Prefer markdown. Large sites need a budget of credits."
    ),
    SearchDocument("pack", "web"),
    SearchDocument(
        "tool", "firecrawl.scrape", "Scrape one page.", "url: the page\nformats: markdown or html"
    ),
    SearchDocument(
        "tool",
        "web.fetch",
        "Fetch a page of the web as text.",
        "url: where it is\ntimeout: seconds",
    ),
    SearchDocument(
        "tool", "web.fetch_batch", "Fetch several pages side by side.", "urls: where they are"
    ),
    SearchDocument("tool", "brave.web_search", "Search the web.", "query: what to look for"),
    SearchDocument("tool", "ot.scaffold", "Create the files of a new pack.", "name: of the pack"),
    SearchDocument("tool", "machine.disk", "How full the disks are."),
    SearchDocument("tool", "meteo.today", "Weather now and for the next hours.", "place: a town"),
    SearchDocument(
        "tool", "fs.remove_directory", "Delete a directory with everything in it.", "path: which"
    ),
    SearchDocument("tool", "getUserName", "Who is logged in."),
    SearchDocument("tool", "menu.order", "Order from the café: crème brûlée and more."),
    SearchDocument("snippet", "b_q", "Quick question to the brave search."),
    SearchDocument("alias", "ws", "brave.web_search"),
)


def make_search(*documents: SearchDocument, cache: Path | None = None) -> Search:
    made = Search(cache)
    made.update(documents)
    return made


def search_documents(
    query: str, documents: Iterable[SearchDocument] = CATALOGUE
) -> list[SearchHit]:
    return make_search(*documents).search(query)


def list_names(hits: Iterable[SearchHit]) -> list[str]:
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
def test_an_exact_name_in_any_spelling_is_first(query: str, name: str) -> None:
    first = search_documents(query)[0]
    assert (first.name, first.match) == (name, "exact")


def test_a_name_with_parentheses_is_exact() -> None:
    hits = search_documents("Machine.DISK()")
    assert (hits[0].name, hits[0].match) == ("machine.disk", "exact")


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("how much RAM is in use", "machine.memory"),
        ("recommend a movie for tonight", "media.films"),
        ("take a picture", "camera.photo"),
        ("uncommitted changes", "git.status"),
        ("uncommitted work", "git.status"),
    ],
)
def test_words_of_similar_meaning_are_found(query: str, name: str) -> None:
    tools = [
        SearchDocument("tool", "machine.memory", "Return how much memory is free."),
        SearchDocument("tool", "machine.disk", "Return the space on the disk."),
        SearchDocument("tool", "git.status", "Show changed files that were not committed."),
        SearchDocument("tool", "git.log", "Show the history of a repository."),
        SearchDocument("tool", "media.films", "Find films by actor."),
        SearchDocument("tool", "camera.photo", "Save a photo."),
        SearchDocument("tool", "clock.now", "Return the time."),
    ]
    assert list_names(search_documents(query, tools))[0] == name


@pytest.mark.parametrize(
    "query", ["uncommitted", "uncommitted files", "what is uncommitted in git"]
)
def test_words_that_tools_have_other_words_for_are_found(query: str) -> None:
    tools = [
        SearchDocument("tool", "git.git_status", "Shows the working tree status"),
        SearchDocument(
            "tool", "git.git_diff_unstaged", "Shows changes in the working directory not yet staged"
        ),
        SearchDocument("tool", "git.git_commit", "Records changes to the repository"),
        SearchDocument("tool", "git.git_log", "Shows the commit logs"),
        SearchDocument("tool", "files.list", "List the files of a directory."),
    ]
    assert "git.git_status" in list_names(search_documents(query, tools))[:2]


def test_an_unknown_word_outweighs_a_frequent_one_in_a_short_query() -> None:
    tools = [
        SearchDocument(
            "tool", "machine.memory", "Return the memory of the machine: total and available."
        ),
        SearchDocument(
            "tool", "machine.disk", "Return how much of the disk is used: total, used and free."
        ),
        SearchDocument("tool", "clock.now", "Return the time."),
    ]
    assert list_names(search_documents("how much RAM is in use", tools))[0] == "machine.memory"


def test_each_part_of_a_request_finds_its_tool() -> None:
    others = [
        SearchDocument("tool", f"shop.order_{number}", "Order a brown paper bag.")
        for number in range(30)
    ]
    request = "order a brown paper bag, order paper, then show how full the disks are"
    assert "machine.disk" in list_names(make_search(*others, *CATALOGUE).search(request))[:2]


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("scaf", "ot.scaffold"),
        ("machine.d", "machine.disk"),
        ("FETCH_B", "web.fetch_batch"),
        ("fire", "firecrawl"),
    ],
)
def test_a_prefix_of_a_name_or_of_its_last_part_is_found(query: str, name: str) -> None:
    first = search_documents(query)[0]
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
def test_typos_in_names_are_found(query: str, name: str) -> None:
    first = search_documents(query)[0]
    assert (first.name, first.match) == (name, "fuzzy")


def test_a_known_word_is_not_a_typo() -> None:
    assert set(list_names(search_documents("page"))[:3]) == {
        "firecrawl.scrape",
        "web.fetch",
        "web.fetch_batch",
    }
    assert {hit.match for hit in search_documents("page")} == {"text"}


def test_matches_of_all_words_in_the_name_precede_matches_in_the_text() -> None:
    hits = search_documents("user name")
    assert (hits[0].name, hits[0].match) == ("getUserName", "word")
    assert "ot.scaffold" in list_names(hits[1:])
    assert {hit.match for hit in hits[1:]} == {"text"}


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("how much space is left on my disks?", "machine.disk"),
        ("scraping pages as markdown", "firecrawl.scrape"),
        ("seconds to wait", "web.fetch"),
        ("which one has a budget of credits", "firecrawl"),
        (
            "please could you tell me what I should do to get some pages side by side",
            "web.fetch_batch",
        ),
    ],
)
def test_sentences_match_names_descriptions_arguments_and_instructions(
    query: str, name: str
) -> None:
    assert list_names(search_documents(query))[0] == name


@pytest.mark.parametrize("query", ["creme brulee", "CRÈME BRÛLÉE", "Cafe", "cafe\u0301"])
def test_case_and_diacritics_are_ignored(query: str) -> None:
    assert list_names(search_documents(query)) == ["menu.order"]


def test_scripts_without_spaces_are_searched_by_character() -> None:
    weather = SearchDocument("tool", "tenki.yohou", "明日の天気予報")
    assert list_names(
        search_documents("天気", [weather, SearchDocument("tool", "other.thing", "音楽")])
    ) == ["tenki.yohou"]


@pytest.mark.parametrize(
    "query",
    [
        'disk"', '"disk', "disk*", "^disk", "-disk", "name:disk", "(disk", "{name} : disk", "disk + disk", "disk' --",
        "disk AND", "OR disk", "NOT disk", "NEAR(disk)", "disk; drop table documents", "\x00disk", "disk\ud800",
    ],
)  # fmt: skip
def test_query_syntax_is_plain_text(query: str) -> None:
    assert "machine.disk" in list_names(search_documents(query))


@pytest.mark.parametrize("query", ["", " ", "\n\t", "???", "$", "\x00", "\ud800", "…"])
def test_a_query_without_words_finds_nothing(query: str) -> None:
    assert search_documents(query) == []


def test_unknown_words_find_nothing() -> None:
    assert search_documents("xyznonexistent") == []
    assert search_documents("anything", []) == []


@pytest.mark.parametrize("query", ["filling", "kindoftool", "\ue000", "\ue000filling"])
def test_internal_words_of_the_index_are_not_found(query: str) -> None:
    assert search_documents(query) == []


def test_stop_words_and_numbers_match_if_there_is_nothing_else() -> None:
    assert list_names(
        search_documents(
            "who is 1984", [SearchDocument("tool", "tv.who", "Is 1984 a year of Doctor Who?")]
        )
    ) == ["tv.who"]
    assert list_names(
        search_documents("what is it", [SearchDocument("tool", "a.b", "what it is")])
    ) == ["a.b"]


def test_a_query_of_a_megabyte_is_answered() -> None:
    assert list_names(search_documents("disk " * 200_000))[0] == "machine.disk"
    assert list_names(search_documents("disk" * 250_000)) == []


def test_scores_are_descending_and_between_0_and_1() -> None:
    hits = search_documents("web")
    assert {hit.match for hit in hits} == {"exact", "prefix", "text"}
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] == 1
    assert scores[-1] > 0


def test_results_are_unique_and_limited() -> None:
    search = make_search(*CATALOGUE)
    assert len(set(list_names(search.search("web page fetch")))) == len(
        search.search("web page fetch")
    )
    assert len(search.search("web", limit=2)) == 2
    assert search.search("web", limit=0) == []
    assert search.search("web", limit=10**30) == search.search("web", limit=100)


def test_results_are_filtered_by_kind() -> None:
    search = make_search(*CATALOGUE)
    assert list_names(search.search("brave search", kinds=["snippet"])) == ["b_q"]
    assert list_names(search.search("budget of credits", kinds=["pack", "alias"])) == ["firecrawl"]
    assert search.search("web", kinds=[]) == []


def test_a_tool_and_an_alias_with_the_same_name_are_both_found() -> None:
    both = [
        SearchDocument("tool", "grep", "Find lines."),
        SearchDocument("alias", "grep", "files.search"),
    ]
    assert [(hit.kind, hit.match) for hit in search_documents("grep", both)] == [
        ("tool", "exact"),
        ("alias", "exact"),
    ]


def test_documents_with_equal_concatenated_fields_are_distinct() -> None:
    both = [SearchDocument("tool", "a", "b\0c"), SearchDocument("tool", "a\0b", "c")]
    assert sorted(list_names(search_documents("c", both))) == ["a", "a\0b"]


def test_equal_scores_are_ordered_by_name_regardless_of_earlier_changes() -> None:
    alike = [SearchDocument("tool", f"pack.{letter}", "Plays the gramophone.") for letter in "abcd"]
    search = make_search(alike[0], SearchDocument("tool", "pack.z", "Other."), *reversed(alike[1:]))
    assert list_names(search.search("gramophone")) == [document.name for document in alike]
    search.update(alike)
    assert list_names(search.search("gramophone")) == [document.name for document in alike]


def test_an_update_does_not_wait_for_a_query() -> None:
    search = make_search(*CATALOGUE)
    with search._lock:  # like during the creation of the index
        updating = Thread(target=search.update, args=[CATALOGUE[:3]], daemon=True)
        updating.start()
        updating.join(timeout=60)
        assert not updating.is_alive()
    assert list_names(search.search("machine.disk")) == []


@pytest.mark.parametrize("on_disk", [False, True])
def test_changes_and_removals_take_effect_at_once(tmp_path: Path, on_disk: bool) -> None:
    search = make_search(*CATALOGUE, cache=tmp_path if on_disk else None)
    assert list_names(search.search("gramophone")) == []
    search.update([SearchDocument("tool", "machine.disk", "Plays the gramophone."), *CATALOGUE[:7]])
    assert list_names(search.search("gramophone")) == ["machine.disk"]
    assert list_names(search.search("full disks"))[:1] == ["machine.disk"]
    search.update(CATALOGUE[:7])
    assert (
        list_names(search.search("gramophone")) == list_names(search.search("machine.disk")) == []
    )
    assert list_names(search.search("scaffold")) == ["ot.scaffold"]


def test_nothing_is_written_before_the_first_query(tmp_path: Path) -> None:
    search = make_search(*CATALOGUE, cache=tmp_path / "cache")
    assert list(tmp_path.iterdir()) == []
    search.search("disk")
    assert len(list_databases(tmp_path / "cache")) == 1


def test_importing_the_search_loads_no_slow_modules() -> None:
    code = (
        "import sys, onetool.sources.search; print([n for n in ('sqlite3', 'rapidfuzz', 'numpy') if"
        " n in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_the_next_process_uses_the_existing_index(tmp_path: Path) -> None:
    make_search(*CATALOGUE, cache=tmp_path).search("disk")
    (file,) = list_databases(tmp_path)
    before = file.read_bytes()
    assert search_in_process(tmp_path, CATALOGUE, "frirecrawl") == ["firecrawl", "firecrawl.scrape"]
    assert list_databases(tmp_path) == [file]
    assert file.read_bytes() == before


@pytest.mark.slow
def test_processes_that_start_together_share_one_file(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(
            pool.map(lambda _: search_in_process(tmp_path, CATALOGUE, "full disks"), range(4))
        )
    assert found == [["machine.disk"]] * 4
    assert len(list_databases(tmp_path)) == len(list(tmp_path.iterdir())) == 1


def test_processes_with_different_documents_do_not_interfere(tmp_path: Path) -> None:
    here = make_search(*CATALOGUE, cache=tmp_path)
    assert list_names(here.search("full disks")) == ["machine.disk"]
    assert search_in_process(
        tmp_path, [SearchDocument("tool", "far.away", "Other disks.")], "full disks"
    ) == ["far.away"]
    assert list_names(here.search("full disks")) == ["machine.disk"]


def test_a_change_writes_no_file_and_is_found(tmp_path: Path) -> None:
    search = make_search(*CATALOGUE, cache=tmp_path)
    search.search("disk")
    before = list_databases(tmp_path)
    changed = [*CATALOGUE[2:], SearchDocument("tool", "gramophone.play", "Play a record.")]
    search.update(changed)
    assert list_names(search.search("play gramophone"))[0] == "gramophone.play"
    assert "firecrawl" not in list_names(search.search("firecrawl"))
    assert search_in_process(tmp_path, changed, "gramophone")[0] == "gramophone.play"
    assert list_databases(tmp_path) == before


def test_many_changes_write_only_the_changed_rows(tmp_path: Path) -> None:
    documents = make_documents(200)
    search = make_search(*documents, cache=tmp_path)
    search.search("disk")
    before = read_rows(list_databases(tmp_path)[0])
    search.update([*documents[:120], *make_documents(300)[220:]])
    assert list_names(search.search("number290"))[0] == "pack0.tool_290"
    after = read_rows(max(list_databases(tmp_path), key=lambda file: file.stat().st_mtime_ns))
    assert (len(before & after), len(after)) == (120, 200)


def test_an_update_without_changes_writes_no_file(tmp_path: Path) -> None:
    search = make_search(*CATALOGUE, cache=tmp_path)
    search.search("disk")
    list_databases(tmp_path)[0].unlink()
    search.update(CATALOGUE)
    assert list_names(search.search("full disks")) == ["machine.disk"]
    assert list_databases(tmp_path) == []


def test_old_files_are_removed_and_open_ones_still_work(tmp_path: Path) -> None:
    first = make_search(CATALOGUE[0], cache=tmp_path)
    first.search("markdown")
    for number in range(1, 10):
        make_search(*CATALOGUE[number : number + 2], cache=tmp_path).search("markdown")
    assert len(list_databases(tmp_path)) == 4
    assert list_names(first.search("markdown")) == ["firecrawl"]


@pytest.mark.parametrize("damage", [b"", b"not a database", b"SQLite format 3\x00" + bytes(5000)])
def test_a_damaged_file_is_recreated(tmp_path: Path, damage: bytes) -> None:
    make_search(*CATALOGUE, cache=tmp_path).search("disk")
    (file,) = list_databases(tmp_path)
    whole = file.stat().st_size
    file.write_bytes(damage)
    assert list_names(make_search(*CATALOGUE, cache=tmp_path).search("full disks")) == [
        "machine.disk"
    ]
    assert file.stat().st_size == whole


def test_a_truncated_file_is_recreated(tmp_path: Path) -> None:
    make_search(*make_documents(300), cache=tmp_path).search("disk")
    (file,) = list_databases(tmp_path)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert (
        list_names(make_search(*make_documents(300), cache=tmp_path).search("pack7.tool_17"))[0]
        == "pack7.tool_17"
    )


@pytest.mark.nightly
@pytest.mark.slow
def test_a_file_damaged_while_open_is_recreated(tmp_path: Path) -> None:
    search = make_search(*make_documents(3000), cache=tmp_path)
    search.search("disk")
    (file,) = list_databases(tmp_path)
    with file.open("r+b") as opened:
        opened.write(b"\xff" * file.stat().st_size)
    for number in range(0, 3000, 50):
        assert (
            list_names(search.search(f"what does number{number} do for me"))[0]
            == f"pack{number % 10}.tool_{number}"
        )


def test_a_file_with_missing_rows_is_recreated(tmp_path: Path) -> None:
    make_search(*CATALOGUE, cache=tmp_path).search("disk")
    (file,) = list_databases(tmp_path)
    with sqlite3.connect(file) as database:
        database.execute("delete from passages where number < 5")
    database.close()
    assert (
        list_names(make_search(*CATALOGUE, cache=tmp_path).search("frirecrawl"))[0] == "firecrawl"
    )


def test_a_damaged_file_is_not_used_as_a_base(tmp_path: Path) -> None:
    make_search(*CATALOGUE[1:], cache=tmp_path).search("disk")
    list_databases(tmp_path)[0].write_bytes(b"not a database")
    assert list_names(make_search(*CATALOGUE, cache=tmp_path).search("full disks")) == [
        "machine.disk"
    ]


def test_the_index_is_in_memory_if_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    search = make_search(*CATALOGUE, cache=tmp_path / "file" / "cache")
    assert list_names(search.search("full disks")) == ["machine.disk"]
    search.update(CATALOGUE[:3])
    assert list_names(search.search("machine.disk")) == []
    (tmp_path / "file").unlink()
    search.update(CATALOGUE)
    assert list_names(search.search("full disks")) == ["machine.disk"]
    assert len(list_databases(tmp_path / "file" / "cache")) == 1
    search.update(CATALOGUE[:3])
    assert list_names(search.search("machine.disk")) == []


def test_a_closed_search_can_be_used_again(tmp_path: Path) -> None:
    search = make_search(*CATALOGUE, cache=tmp_path)
    search.close()
    assert list_names(search.search("full disks")) == ["machine.disk"]
    search.close()
    assert list_names(search.search("full disks")) == ["machine.disk"]


@pytest.mark.slow
def test_ten_thousand_documents_are_searched_and_updated(tmp_path: Path) -> None:
    documents = make_documents(10_000)
    search = make_search(*documents, cache=tmp_path)
    assert list_names(search.search("what does number4242 do"))[0] == "pack2.tool_4242"
    assert list_names(search.search("pack2.tol_4242"))[0] == "pack2.tool_4242"
    search.update([*documents[1:], SearchDocument("tool", "pack0.tool_0", "Feeds the giraffe.")])
    assert list_names(search.search("giraffe")) == ["pack0.tool_0"]
    assert len(search.search("tool", limit=500)) == 500


@pytest.mark.parametrize(
    "query", ["list the invoices of a customer", "list invoices", "lst.invoces_1"]
)
def test_the_work_of_a_query_hardly_grows_with_the_catalog(query: str) -> None:
    small, large = (count_steps(query, list_alike(size)) for size in (300, 3_000))
    assert large < 2.5 * small


def test_the_work_of_a_change_does_not_grow_with_the_catalog(tmp_path: Path) -> None:
    documents = list_alike(500)
    search = make_search(*documents, cache=tmp_path)
    search.search("list")
    search.update([SearchDocument("tool", "pack0.list_0", "Play the gramophone."), *documents[1:]])
    assert list_names(search.search("gramophone")) == ["pack0.list_0"]
    assert search._readers
    memory = search._files._memory
    assert memory is not None
    assert memory.total_changes < 100


def test_threads_may_search_while_documents_change() -> None:
    search = make_search(*CATALOGUE)

    def ask(number: int) -> bool:
        search.update(CATALOGUE[: 8 + number % 6])
        return list_names(search.search("how full are the disks"))[0] == "machine.disk"

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(100)))


ANY_TEXT = st.text(max_size=80) | st.text(alphabet="\"'*^:()-+{}AND OR NOT NEAR disk", max_size=80)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(query=ANY_TEXT, limit=st.integers(-1, 30))
@example(query="A0TA;NA/C", limit=1)
def test_no_query_makes_the_search_fail(query: str, limit: int) -> None:
    hits = SHARED.search(query, limit)
    assert len(hits) <= max(limit, 0)
    assert all(0 <= hit.score <= 1 for hit in hits)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(text=st.lists(st.text(max_size=30), min_size=4, max_size=4), query=ANY_TEXT)
def test_no_document_makes_the_search_fail(text: list[str], query: str) -> None:
    SHARED_TOO.update([SearchDocument("tool", *text), *CATALOGUE])
    assert "machine.disk" in list_names(SHARED_TOO.search("machine.disk"))
    SHARED_TOO.search(query)


def test_a_number_in_a_query_prefers_the_name_that_contains_it() -> None:
    tools = [
        SearchDocument("tool", f"shop.list-things-{number}", "of an invoice, 77 at most")
        for number in range(100)
    ]
    assert list_names(make_search(*tools).search("invoice things 77"))[0] == "shop.list-things-77"


def test_a_file_with_damaged_vectors_is_recreated(tmp_path: Path) -> None:
    make_search(*CATALOGUE, cache=tmp_path).search("disk")
    (file,) = list_databases(tmp_path)
    with sqlite3.connect(file) as database:
        database.execute("update passages set meaning = x'7878' where rowid = 3")
    database.close()
    hits = make_search(*CATALOGUE, cache=tmp_path).search("how full are my disks")
    assert list_names(hits) == ["machine.disk"]


SHARED, SHARED_TOO = make_search(*CATALOGUE), make_search(*CATALOGUE)


def make_documents(count: int) -> list[SearchDocument]:
    return [
        SearchDocument(
            "tool",
            f"pack{number % 10}.tool_{number}",
            f"Does number{number}, which no other does.",
            "x: a number",
        )
        for number in range(count)
    ]


def list_alike(size: int) -> list[SearchDocument]:
    about = "List the invoices and the orders of a customer."
    return [
        SearchDocument("tool", f"pack{number % 9}.list_{number}", about, "x: a number")
        for number in range(size)
    ]


def count_steps(query: str, documents: Iterable[SearchDocument]) -> int:
    """Return the number of steps of SQLite that the query takes, in hundreds."""
    search = make_search(*documents)
    search.search(query)
    assert search._readers
    connection = search._files._memory
    assert connection is not None
    steps = count()
    connection.set_progress_handler(lambda: next(steps) and None, 100)
    assert search.search(query)
    return next(steps)


def list_databases(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.db"))


def read_rows(file: Path) -> set[tuple[int, bytes]]:
    with sqlite3.connect(file) as database:
        found = set(database.execute("select number, digest from passages"))
    database.close()
    return found


def search_in_process(cache: Path, documents: Iterable[SearchDocument], query: str) -> list[str]:
    """Return the names that a search in another process finds."""
    code = """if True:
        import json, pathlib, sys
        from onetool.sources.search.catalog import Search
        from onetool.sources.search import SearchDocument
        cache, documents, query = json.load(sys.stdin)
        search = Search(pathlib.Path(cache))
        search.update(SearchDocument(*fields) for fields in documents)
        print(json.dumps([hit.name for hit in search.search(query)]))
    """
    fields = [
        [one.kind, one.name, one.description, one.arguments, one.instructions] for one in documents
    ]
    asked_for = json.dumps([str(cache), fields, query])
    answer = subprocess.run(
        [sys.executable, "-c", code], input=asked_for, text=True, check=True, capture_output=True
    )
    found: list[str] = json.loads(answer.stdout)
    return found
