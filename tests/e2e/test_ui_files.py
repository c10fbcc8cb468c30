"""Files of the admin UI: how they are served, and rules that hold for all of them."""

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rest_support import Rest, get_error_code, serve_app

import onetool.server

DIRECTORY = Path(str(onetool.server.__file__)).parent / "ui"
SCRIPTS = {
    str(file.relative_to(DIRECTORY)): file.read_text(encoding="utf-8")
    for file in DIRECTORY.rglob("*.js")
}
MESSAGES = SCRIPTS["messages.js"]
IMPORTS = re.compile(r"""^(?:import|export)\b[^;"]*"(\.[^"]+)";""", re.MULTILINE)
LATER = re.compile(r"""import\("(\.[^"]+)"\)""")
MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc|createContextualFragment|setHTML|"
    r"\beval\(|new Function|setAttribute\(\"style\"|\.cssText|javascript:"
)
ADDRESS = re.compile(r"""["'`(](?:https?:)?//(?!www\.w3\.org/2000/svg|api\.example\.com)\w""")
MAX_LINES = 260


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rest]:
    with serve_app(tmp_path_factory.mktemp("ui")) as served:
        yield served.rest


# --- serving --------------------------------------------------------------------------------------


def test_every_file_has_its_media_type_and_is_revalidated(rest: Rest) -> None:
    kinds = {
        ".js": "text/javascript",
        ".css": "text/css",
        ".svg": "image/svg+xml",
        ".html": "text/html",
    }
    for file in (file for file in DIRECTORY.rglob("*") if file.is_file()):
        path = f"/page/{file.relative_to(DIRECTORY)}"
        answer = rest.client.get(path)
        assert answer.content == file.read_bytes()
        assert answer.headers["content-type"].startswith(kinds[file.suffix])
        assert answer.headers["cache-control"] == "no-cache"
        known = rest.client.get(path, headers={"if-none-match": answer.headers["etag"]})
        assert (known.status_code, known.content) == (304, b"")
    assert rest.client.get("/").text == (DIRECTORY / "index.html").read_text(encoding="utf-8")


def test_large_files_are_compressed_if_the_client_accepts_it(rest: Rest) -> None:
    plain = rest.client.get("/page/messages.js", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    with rest.client.stream(
        "GET", "/page/messages.js", headers={"accept-encoding": "gzip"}
    ) as compressed:
        raw = b"".join(compressed.iter_raw())
    assert compressed.headers["content-encoding"] == "gzip"
    assert compressed.headers["vary"] == "accept-encoding"
    assert gzip.decompress(raw) == plain.content
    assert len(raw) < len(plain.content) / 2


def test_head_is_supported_and_other_methods_are_rejected(rest: Rest) -> None:
    answer = rest.client.head("/")
    assert (answer.status_code, answer.content) == (200, b"")
    assert get_error_code(rest.client.post("/")) == (405, "method_not_allowed")


@pytest.mark.parametrize(
    "path",
    [
        "nothing.js",
        "",
        "core",
        "../__init__.py",
        "%2e%2e/__init__.py",
        "core/%2e%2e/main.js",
        "messages.js/",
        "MAIN.JS",
    ],
)
def test_other_paths_are_not_found(rest: Rest, path: str) -> None:
    answer = rest.client.get(f"/page/{path}")
    assert answer.status_code in {400, 404}
    assert answer.json()["error"]["message"]


# --- rules for the sources ------------------------------------------------------------------------


def test_no_script_parses_markup_or_contacts_another_host() -> None:
    assert [name for name, text in SCRIPTS.items() if MARKUP.search(text)] == []
    assert [name for name, text in SCRIPTS.items() if ADDRESS.search(text)] == []
    assert not re.search(
        r"style=|<script(?! type=\"module\" src)|\son\w+=",
        (DIRECTORY / "index.html").read_text("utf-8"),
    )
    styles = "".join(file.read_text(encoding="utf-8") for file in DIRECTORY.rglob("*.css"))
    assert not re.search(r"url\(|@import", styles)


def test_imported_modules_exist_and_modules_are_small() -> None:
    for name, text in SCRIPTS.items():
        for target in (*IMPORTS.findall(text), *LATER.findall(text)):
            if "messages." not in target:
                assert _resolve(name, target) in SCRIPTS, (name, target)
        assert name == "messages.js" or text.count("\n") < MAX_LINES, name
        assert text.startswith("/** "), name


def test_modules_of_the_first_screen_are_preloaded() -> None:
    page = (DIRECTORY / "index.html").read_text(encoding="utf-8")
    preloaded = re.findall(r'rel="modulepreload" href="page/([^"]+)"', page)
    assert preloaded == sorted(_import_closure("main.js") - {"main.js"})


def _import_closure(name: str) -> set[str]:
    found, todo = set[str](), [name]
    while todo:
        one = todo.pop()
        found.add(one)
        todo += [
            target
            for target in (_resolve(one, to) for to in IMPORTS.findall(SCRIPTS[one]))
            if target not in found
        ]
    return found


def _resolve(name: str, target: str) -> str:
    return str(
        (DIRECTORY / name).parent.joinpath(target).resolve().relative_to(DIRECTORY.resolve())
    )


@pytest.mark.spec("bundles.screen.languages")
def test_every_message_is_defined_and_used() -> None:
    known = set(re.findall(r'^  "?([\w.-]+)"?:', MESSAGES, re.MULTILINE))
    others = "\n".join(text for name, text in SCRIPTS.items() if name != "messages.js")
    used = set(re.findall(r'\bt(?:Or)?\(\s*"([^"]+)"', others))
    assert used <= known
    prefixes = set(re.findall(r"\bt(?:Or)?\(`([\w.]+\.)\$\{", others))
    quoted = set(re.findall(r'"([\w.-]+)"', others))
    assert {key for key in known - used - quoted if not key.startswith(tuple(prefixes))} == set()


def test_messages_are_only_in_the_message_table() -> None:
    sentence = re.compile(r'"[A-Z][a-z]+ [a-z]+[^"]*"')
    outside = {
        name: sentence.findall(text) for name, text in SCRIPTS.items() if name != "messages.js"
    }
    assert {name: found for name, found in outside.items() if found} == {}
