"""Idioms that Python programmers expect of packs and tools, over MCP: imports, help, inspection,
letter case.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.bundles_support import new_bundle, open_store, tool_body
from tests.extensions_support import write_pack
from tests.proxy_support import HOSTILE, hostile_server
from tests.support import Connection, configure, connect, get_texts

BRAVE = '''\
"""Search engine."""


def search(query: str, count: int = 5, site: str | None = None) -> str:
    """Search the web.

    Args:
        query: What to find.
    """
    return f"{query}:{count}"


def newsSearch(query: str) -> str:
    """Search the news."""
    return f"news of {query}"
'''
STEP = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "after": {"$ref": "#/$defs/step"}},
}
PLAN = {
    "name": "plan",
    "description": "Plan a project.",
    "inputSchema": {
        "type": "object",
        "$defs": {"step": {**STEP, "required": ["title"]}},
        "properties": {
            "owner": {"type": "string"},
            "steps": {"type": "array", "items": {"$ref": "#/$defs/step"}},
        },
        "required": ["steps"],
    },
}
DIRECT = "a:5"
SIGNATURE = "(query: str, count: int = 5, site: str | None = None) -> str"
IDIOMS = {
    "import ot\not.version() == ot.call('ot.version')": "True",
    "from ot import version\nversion() == ot.version()": "True",
    "import brave\nbrave.search('a')": DIRECT,
    "import brave as b\nb.search('a')": DIRECT,
    "import brave.search\nbrave.search('a')": DIRECT,
    "from brave import search\nsearch(query='a')": DIRECT,
    "from brave import search as find\nfind('a')": DIRECT,
    "from brave import *\nsearch('a') + newsSearch('b')": "a:5news of b",
    "import importlib\nimportlib.import_module('brave').search('a')": DIRECT,
    "def f():\n    from brave import search\n    return search('a')\nf()": DIRECT,
    "import proj\nproj.list()": '["app"]',
    "import json\njson.dumps([1])": "[1]",
    "import yaml\nyaml.parse('a: 1')": '{"a":1}',
    "g = brave; g.search('a')": DIRECT,
    "getattr(brave, 'search')('a')": DIRECT,
    "hasattr(brave, 'search'), hasattr(brave, 'nothing')": "[true,false]",
    "dir(brave)": '["newsSearch","search"]',
    "callable(brave.search)": "True",
    "brave.__name__, brave.search.__name__, brave.search.__qualname__": (
        '["brave","search","brave.search"]'
    ),
    "import inspect\nstr(inspect.signature(brave.search))": SIGNATURE,
    "import inspect\nlist(inspect.signature(BRAVE.search).parameters)": '["query","count","site"]',
    "import inspect\ninspect.signature(brave.search).parameters['count'].default": "5",
    "Brave.search('a')": DIRECT,
    "brave.Search('a')": DIRECT,
    "BRAVE.SEARCH(query='a')": DIRECT,
    "ot.call('Brave.Search', 'a')": DIRECT,
    "ot.pack('BRAVE').search('a')": DIRECT,
    "brave.news_search('b')": "news of b",
    "OT.version() == ot.version()": "True",
    "Stored.now() > '2000'": "True",
    "Planner.plan([{'title': 'a'}], owner=None)": '{"steps":[{"title":"a"}]}',
    "planner.plan([{'title': 'a'}], 'me')": '{"steps":[{"title":"a"}],"owner":"me"}',
}
HELP = "# brave.search\n\nSearch the web."
TEXTS = {
    "help(brave.search)": HELP,
    "help('brave.search')": HELP,
    "print(brave.search.__doc__)": HELP,
    "brave.search.__doc__": HELP,
    "import inspect\ninspect.getdoc(brave.search)": HELP,
    "ot.help('brave.search()')": HELP,
    "ot.help('brave.search(query=\"x\")')": HELP,
    "ot.help('Brave.Search')": HELP,
    "ot.help(brave.search)": HELP,
    "ot.help('BRAVE')": "# brave\n\nsource: ",
    "help(brave)": "# brave\n\nsource: ",
    "brave.__doc__": "# brave\n\nsource: ",
    "help()": "OneTool: write Python",
    "help(len)": "Help on built-in function len",
    "help('json')": "Help on package json",
    "ot.help('proj')": "# proj\n\nThe directories of your projects",
    "help(proj)": "# proj\n\nThe directories of your projects",
}


def prepare(home: Path) -> Path:
    plans = home / "plans"
    plans.mkdir()
    (plans / "tools.json").write_text(json.dumps([PLAN]), encoding="utf-8")
    servers = {
        "planner": {"command": sys.executable, "args": [str(HOSTILE), "scripted", str(plans)]},
        "quiet": hostile_server("echo"),
    }
    configure(home, yaml.safe_dump({"servers": servers, "projects": {"app": str(home)}}))
    write_pack(home / ".onetool" / "tools", "brave", BRAVE)
    with open_store(home / ".onetool" / "bundles") as store:
        body = tool_body(pythonImpl={"function": "machine.now"})
        store.put_tool(new_bundle(store, "stored"), "now", "1", body)
    return home


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with connect(prepare(tmp_path_factory.mktemp("home"))) as client:
        yield client


@pytest.mark.parametrize("code", IDIOMS)
def test_an_idiom_has_the_value_that_python_programmers_expect(
    client: Connection, code: str
) -> None:
    answer = client.run(code)
    assert not answer.is_error, get_texts(answer)
    assert get_texts(answer)[-1] == IDIOMS[code]


@pytest.mark.parametrize("code", TEXTS)
def test_help_is_shown_for_objects_names_and_calls(client: Connection, code: str) -> None:
    (text,) = get_texts(client.run(code))
    assert text.startswith(TEXTS[code])


def test_the_first_answer_of_a_new_server_knows_every_pack(tmp_path: Path) -> None:
    prepare(tmp_path)
    for code in ("nothing.at_all()", "ot.call('nothing.at_all')", "ot.pack('nothing')"):
        shutil.rmtree(tmp_path / ".onetool" / "bundles" / ".index")  # built again
        with connect(tmp_path) as fresh:
            text = get_texts(fresh.run(code))[-1]
        for pack in ("brave", "fs", "ot", "planner", "quiet", "stored"):
            assert f" {pack}," in text, code


def test_a_pack_never_replaces_a_module_and_failed_imports_have_hints(client: Connection) -> None:
    assert "add: import inspect" in get_texts(client.run("inspect.signature(brave.search)"))[-1]
    assert "Did you mean brave?" in get_texts(client.run("import brav"))[-1]
    assert (
        "the pack brave has: newsSearch, search."
        in get_texts(client.run("from brave import nothing"))[-1]
    )
    assert "Only Python's standard library" in get_texts(client.run("import numpy"))[-1]
    assert (
        get_texts(
            client.run("import fractions, pickle, multiprocessing\nfractions.Fraction(1, 2)")
        )[-1]
        == "1/2"
    )


def test_proj_is_explained(client: Connection) -> None:
    assert "proj" in get_texts(client.run("ot.help()"))[-1]
    assert get_texts(client.run("ot.help('proj')"))[-1].endswith("Projects: app")


def test_help_and_errors_show_the_fields_of_nested_arguments(client: Connection) -> None:
    text = get_texts(client.run("ot.help('planner.plan')"))[-1]
    steps = "steps: list[{'title': str, 'after': NotRequired[dict]}], owner: str = '...'"
    assert f"Signature: planner.plan({steps})" in text
    assert "- steps (list[dict])\n  - title (str, required)\n  - after (dict)\n" in text
    (listed,) = yaml.safe_load(get_texts(client.run("ot.tools('planner', info='full')"))[-1])
    assert listed["signature"] == f"planner.plan({steps})"
    failed = get_texts(client.run("planner.plan(steps=[{'name': 'a'}])"))[-1]
    assert '"title" is a required property' in failed
    assert steps in failed


def test_help_is_never_stored(tmp_path: Path) -> None:
    many = [
        {**PLAN, "name": f"plan_{number}", "description": "long " * 500} for number in range(60)
    ]
    prepare(tmp_path)
    (tmp_path / "plans" / "tools.json").write_text(json.dumps(many), encoding="utf-8")
    with connect(tmp_path) as client:
        for code in (
            "ot.help('planner', info='full')",
            "help(planner)",
            "ot.search('plan')\nprint(ot.help('planner', info='full'))",
            "[ot.help('planner', info='full')]",
        ):
            text = get_texts(client.run(code))[-1]
            assert "planner" in text[:200], code
            assert '"handle"' not in text, code
        assert (
            "(cut: ask for one tool" in get_texts(client.run("ot.help('planner', info='full')"))[-1]
        )
    assert not list((tmp_path / ".onetool" / "tmp").glob("*.txt"))
