"""The files of the page: how they are served, and what holds for all of them: no markup, all words in one table."""

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rest_support import Rest, get_error_code, serve_app

import onetool.transports

FOLDER = Path(str(onetool.transports.__file__)).parent / "ui"
SCRIPTS = {str(file.relative_to(FOLDER)): file.read_text(encoding="utf-8") for file in FOLDER.rglob("*.js")}
WORDS = SCRIPTS["words.js"]
IMPORTS = re.compile(r"""^(?:import|export)\b[^;"]*"(\.[^"]+)";""", re.MULTILINE)
LATER = re.compile(r"""import\("(\.[^"]+)"\)""")
MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc|createContextualFragment|setHTML|"
    r"\beval\(|new Function|setAttribute\(\"style\"|\.cssText|javascript:"
)
ADDRESS = re.compile(r"""["'`(](?:https?:)?//(?!www\.w3\.org/2000/svg|api\.example\.com)\w""")
LONGEST = 260  # lines: a file is about one thing


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rest]:
    with serve_app(tmp_path_factory.mktemp("page")) as served:
        yield served.rest


# --- served ----------------------------------------------------------------------------------------------------------


def test_every_file_is_served_as_what_it_is_and_only_once(rest: Rest) -> None:
    kinds = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
    for file in (file for file in FOLDER.rglob("*") if file.is_file()):
        path = f"/page/{file.relative_to(FOLDER)}"
        answer = rest.client.get(path)
        assert answer.content == file.read_bytes()
        assert answer.headers["content-type"].startswith(kinds[file.suffix])
        assert answer.headers["cache-control"] == "no-cache"
        known = rest.client.get(path, headers={"if-none-match": answer.headers["etag"]})
        assert (known.status_code, known.content) == (304, b"")
    assert rest.client.get("/").text == (FOLDER / "index.html").read_text(encoding="utf-8")


def test_what_is_large_is_packed_for_who_can_unpack(rest: Rest) -> None:
    plain = rest.client.get("/page/words.js", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    with rest.client.stream("GET", "/page/words.js", headers={"accept-encoding": "gzip"}) as packed:
        raw = b"".join(packed.iter_raw())
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == "accept-encoding"
    assert gzip.decompress(raw) == plain.content
    assert len(raw) < len(plain.content) / 2


def test_a_question_without_content_and_a_wrong_method_are_answered(rest: Rest) -> None:
    answer = rest.client.head("/")
    assert (answer.status_code, answer.content) == (200, b"")
    assert get_error_code(rest.client.post("/")) == (405, "method_not_allowed")


@pytest.mark.parametrize(
    "path",
    ["nothing.js", "", "core", "../__init__.py", "%2e%2e/__init__.py", "core/%2e%2e/main.js", "words.js/", "MAIN.JS"],
)
def test_there_is_nothing_else_below_the_page(rest: Rest, path: str) -> None:
    answer = rest.client.get(f"/page/{path}")
    assert answer.status_code in {400, 404}
    assert answer.json()["error"]["message"]


# --- kept by looking -------------------------------------------------------------------------------------------------


def test_no_script_makes_markup_of_text_or_asks_another_host() -> None:
    assert [name for name, text in SCRIPTS.items() if MARKUP.search(text)] == []
    assert [name for name, text in SCRIPTS.items() if ADDRESS.search(text)] == []
    assert not re.search(r"style=|<script(?! type=\"module\" src)|\son\w+=", (FOLDER / "index.html").read_text("utf-8"))
    styles = "".join(file.read_text(encoding="utf-8") for file in FOLDER.rglob("*.css"))
    assert not re.search(r"url\(|@import", styles)


def test_every_module_that_is_named_exists_and_is_small() -> None:
    for name, text in SCRIPTS.items():
        for target in (*IMPORTS.findall(text), *LATER.findall(text)):
            if "words." not in target:
                assert _resolved(name, target) in SCRIPTS, (name, target)
        assert name == "words.js" or text.count("\n") < LONGEST, name
        assert text.startswith("/** "), name


def test_what_the_first_view_needs_is_announced_at_once() -> None:
    page = (FOLDER / "index.html").read_text(encoding="utf-8")
    announced = re.findall(r'rel="modulepreload" href="/page/([^"]+)"', page)
    assert announced == sorted(_needed("main.js") - {"main.js"})


def _needed(name: str) -> set[str]:
    found, todo = set[str](), [name]
    while todo:
        one = todo.pop()
        found.add(one)
        todo += [
            target for target in (_resolved(one, to) for to in IMPORTS.findall(SCRIPTS[one])) if target not in found
        ]
    return found


def _resolved(name: str, target: str) -> str:
    return str((FOLDER / name).parent.joinpath(target).resolve().relative_to(FOLDER.resolve()))


@pytest.mark.spec("bundles.screen.languages")
def test_all_words_are_in_one_table_and_all_of_it_is_used() -> None:
    known = set(re.findall(r'^  "?([\w.-]+)"?:', WORDS, re.MULTILINE))
    others = "\n".join(text for name, text in SCRIPTS.items() if name != "words.js")
    said = set(re.findall(r'\bsay(?:Or)?\(\s*"([^"]+)"', others))
    assert said <= known
    made = set(re.findall(r"\bsay(?:Or)?\(`(\w+\.)\$\{", others))
    quoted = set(re.findall(r'"([\w.-]+)"', others))
    assert {key for key in known - said - quoted if not key.startswith(tuple(made))} == set()


def test_no_sentence_stands_outside_the_table() -> None:
    sentence = re.compile(r'"[A-Z][a-z]+ [a-z]+[^"]*"')
    outside = {name: sentence.findall(text) for name, text in SCRIPTS.items() if name != "words.js"}
    assert {name: found for name, found in outside.items() if found} == {}
