"""Names in a run, over MCP: any identifier finds its pack, no builtin is hidden, and errors know
every name.
"""

import builtins
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml
from tests.bundles_support import new_bundle, open_store, tool_body
from tests.extensions_support import open_app_in, write_pack
from tests.proxy_support import hostile_server
from tests.support import (
    Connection,
    configure,
    connect,
    environment,
    get_texts,
    make_tool,
    open_app,
)

NOW = {"pythonImpl": {"function": "machine.now"}}
USES = (
    "g = PACK; g.now()",
    "f = PACK.now\nf()",
    "[pack.now() for pack in (PACK,)][0]",
    "def f(pack=PACK): return pack.now()\nf()",
    "def f(): return PACK\nf().now()",
    "def f(PACK): return PACK\nPACK.now()",
    "(lambda: PACK)().now()",
    "getattr(PACK, 'now')()",
    "PACK = PACK.now()\nPACK",
    "g = PACK\nreturn g.now()",
    "PACK = PACK.now()\nreturn PACK",
    "import asyncio\nawait asyncio.sleep(0)\ng = PACK\ng.now()",
    "class A:\n    pack = PACK\nA.pack.now()",
    "f'{PACK.now()}'",
    "ot.parallel([lambda: PACK.now()])[0]",
)
HIDDEN = (
    (
        "import time\ntime.now()",
        "Hint: the import hides the pack 'time'; call ot.pack(\"time\").now()",
    ),
    ("import json as h1\nh1.now()", "Hint: the import hides the pack 'h1'"),
    ("h2 = 3\nh2.now()", "Hint: the variable hides the pack 'h2'; call ot.pack(\"h2\").now()"),
    ("h3 = None\nh3.now()", "Hint: the variable hides the pack 'h3'"),
    ("def f(h4):\n    return h4.now()\nf(3)", "Hint: the variable hides the pack 'h4'"),
    ("def f():\n    h5 = h5.now()\nf()", "Hint: the local variable hides the pack 'h5'"),
    ("from calendar import now", "Hint: now is a tool of the pack 'calendar'"),
    ("from h6 import noww", "Hint: the pack h6 has: now. Did you mean now?"),
    ("import machin", "Did you mean machine?"),
    ("eval('h' + '7')", 'Hint: h7 is a pack; use ot.pack("h7")'),
)
RESERVED = ("map", "proj", "def", "ToolError")
BUNDLES = (
    *RESERVED,
    "srch",
    "time",
    "calendar",
    *(f"h{n}" for n in range(9)),
    *(f"use{n}" for n in range(len(USES))),
)
SETTINGS = {
    "servers": {
        "len": hostile_server("echo"),
        "off": hostile_server("echo", enabled=False),
        "gone": {"command": "a-program-that-nobody-has"},
    },
    "aliases": {"print": "machine.disk", "sum": "machine.now", "room": "machine.disk"},
    "snippets": {"greeting": {"body": "'hello'"}},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    configure(home, yaml.safe_dump(SETTINGS))
    write_pack(
        home / ".onetool" / "tools", "list", "def size(of: list) -> int:\n    return len(of)\n"
    )
    with open_store(home / ".onetool" / "bundles") as store:
        for slug in BUNDLES:
            store.put_tool(new_bundle(store, slug), "now", "1.0.0", tool_body(**NOW))
    return home


@pytest.fixture(scope="module")
def client(home: Path) -> Iterator[Connection]:
    with connect(home) as client:
        yield client


def run_value(client: Connection, code: str) -> str:
    result = client.run(code)
    assert not result.is_error, get_texts(result)
    return get_texts(result)[-1]


def run_failure(client: Connection, code: str) -> str:
    result = client.run(code)
    assert result.is_error, get_texts(result)
    return get_texts(result)[-1]


# --- builtins -------------------------------------------------------------------------------------


BUILTINS = (
    "print(sum(map(len, list(['ab', 'c']))))\nassert isinstance(3, int) and list((1,)) =="
    " [1]\nassert issubclass(ToolError, Exception)\n(map, len, list, print, sum) =="
    " tuple(vars(__import__('builtins'))[n] for n in ('map','len','list','print','sum'))"
)


def test_packs_and_aliases_never_hide_a_builtin(client: Connection) -> None:
    for name in ("map.now()", "ot.tools()"):  # before and after all packs are loaded
        client.run(name)
        assert run_value(client, BUILTINS) == "True"


def test_ot_pack_finds_packs_with_reserved_names(client: Connection) -> None:
    for pack in (*RESERVED, "h8"):
        assert run_value(client, f"'T' in str(ot.pack('{pack}').now())") == "True", pack


def test_servers_extensions_and_aliases_named_like_builtins_are_callable(
    client: Connection,
) -> None:
    assert run_value(client, "ot.pack('len').echo(text='hi')") == "hi"
    assert run_value(client, "ot.pack('list').size([1, 2])") == "2"
    assert run_value(client, "'T' in str(ot.call('sum'))") == "True"
    assert run_value(client, "ot.pack('ot') is ot") == "True"


def test_a_pack_still_hides_no_builtin_after_ot_pack(client: Connection) -> None:
    assert run_value(client, "ot.pack('map').now()\nlist(map(str, [1]))") == '["1"]'


def test_help_and_search_show_a_call_that_works(client: Connection) -> None:
    assert 'ot.pack("map").now()' in run_value(client, "ot.help(query='map.now')")
    assert "ot.pack(" in run_value(client, "ot.help(query='ot.pack')")
    assert 'ot.pack("map").now(' in run_value(
        client, "[hit['call'] for hit in ot.search('map.now') if 'call' in hit][0]"
    )


def test_health_lists_packs_and_aliases_with_reserved_names(client: Connection) -> None:
    problems = run_value(client, "ot.health()['problems']")
    for name in ("pack map", "pack len", "pack list", "pack def", "alias print", "alias sum"):
        assert f"{name} has a name reserved" in problems
    assert "alias room" not in problems


def test_builtins_keep_their_meaning_in_a_run(client: Connection) -> None:
    names = sorted(
        name for name in vars(builtins) if name.isidentifier() and not name.startswith("_")
    )
    known = [name for name in names if name not in {"copyright", "credits", "license"}]
    code = f"import builtins\n[n for n in {known} if eval(n) is not getattr(builtins, n)]"
    assert run_value(client, code) == "[]"


# --- any identifier -------------------------------------------------------------------------------


def test_a_stored_pack_is_found_by_any_use_of_its_name(client: Connection) -> None:
    """Each use has its own pack, which no earlier code has loaded."""
    for number, code in enumerate(USES):
        assert "T" in run_value(client, code.replace("PACK", f"use{number}")), code


def test_a_name_in_a_string_or_comment_starts_no_server(tmp_path: Path) -> None:
    started = tmp_path / "started"
    server = {"command": sys.executable, "args": ["-c", f"open({str(started)!r}, 'w')"]}
    with open_app({"servers": {"gone": server}}) as app:
        assert app.value("# gone.x\nlen('gone.x is gone')") == "14"
        assert app.value("gone = [1]\ngone.append(2)\ngone") == "[1,2]"
        assert not started.exists()
        app.run("gone.x()")
        assert started.exists()


def test_a_new_pack_is_found_by_reading_its_name(client: Connection) -> None:
    assert "'later' is not defined" in run_failure(client, "g = later")
    write_pack(client.home / ".onetool" / "tools", "later", "def one() -> int:\n    return 1\n")
    assert run_value(client, "g = later\ng.one()") == "1"


# --- errors ---------------------------------------------------------------------------------------


def test_errors_name_what_hides_a_pack(client: Connection) -> None:
    for code, hint in HIDDEN:
        assert hint in run_failure(client, code)


def test_an_ordinary_attribute_error_has_no_hint(client: Connection) -> None:
    assert "Hint" not in run_failure(client, "import time\ntime.nwo()")
    assert "Hint" not in run_failure(client, "x = 3\nx.now()")


MISSPELLED = (
    ("srhc.now()", "srch"),
    ("g = srhc", "srch"),
    ("of.echo()", "off"),
    ("goone.x()", "gone"),
    ("latr.one()", "later"),
    ("romo()", "room"),
    ("greetin()", "$greeting"),
    ("ot.call('srhc.now')", "srch"),
    ("ot.pack('srhc')", "srch"),
    ("essentals.x()", "essentials"),
    ("srch.noww()", "srch.now"),
)


def test_an_unknown_name_suggests_the_nearest_in_a_new_server(home: Path) -> None:
    write_pack(home / ".onetool" / "tools", "later", "def one() -> int:\n    return 1\n")
    with connect(home) as fresh:
        for code, meant in MISSPELLED:
            text = run_failure(fresh, code)
            assert f"Did you mean {meant}" in text or f" or {meant}?" in text, text


def test_an_error_says_that_a_server_is_disabled(client: Connection) -> None:
    assert "off is disabled" in run_failure(client, "off.echo(text='x')")
    assert "off is disabled" in run_failure(client, "ot.pack('off').echo(text='x')")


def test_a_list_of_packs_is_bounded() -> None:
    with open_app({}, [make_tool(f"server{number}.echo") for number in range(130)]) as app:
        text = app.failure("sevrer29.x()")
    assert "and 38 more" in text
    assert len(text) < 6000


def test_a_list_of_packs_has_no_disabled_pack(client: Connection, home: Path) -> None:
    with open_store(home / ".onetool" / "bundles") as store:
        bundle = new_bundle(store, "asleep")
        store.put_tool(bundle, "now", "1.0.0", tool_body(**NOW))
        store.set_bundle_enabled(bundle, False)
    for code in (
        "nowhere.x()",
        "ot.call('nowhere.x')",
        "ot.pack('nowhere')",
        "ot.help('xylophone zzz')",
    ):
        result = client.run(code)
        packs = get_texts(result)[-1].partition("Packs: ")[2].partition(". ")[0].split(", ")
        assert {"machine", "len", "gone", "srch"} <= set(packs), (code, packs)
        assert not {"off", "asleep"}.intersection(packs), (code, packs)


def test_a_pack_that_a_person_disabled_is_not_listed(tmp_path: Path) -> None:
    with open_app_in(tmp_path) as app:
        app.portal.call(partial(app.onetool.registry.switch, "machine", on=False))
        assert "machine" not in app.failure("nowhere.x()").partition("Packs: ")[2]


def test_an_unknown_name_lists_tools_of_servers(client: Connection) -> None:
    assert run_value(client, "ot.pack('len').echo(text='hi')") == "hi"
    assert "len.echo" in run_failure(client, "unknwn(1)").partition("Tools: ")[2]


def test_a_list_of_tools_that_is_too_long_is_stored() -> None:
    names = [f"many.tool_number_{number}" for number in range(300)]
    with open_app({}, map(make_tool, names)) as app:
        for code in ("many.tool_numbr_7()", "unknwn(1)"):
            text = app.failure(code)
            assert len(text) < 2000
            handle = re.search(r"ot\.result\(handle='(\w+)'\) lists all", text)
            assert handle is not None, text
            assert set(names) <= set(
                app.data(f"ot.result(handle='{handle[1]}', limit=1000)['lines']")
            )
        assert "Did you mean many.tool_number_7" in app.failure("many.tool_numbr_7()")
        assert "many has 300 tools; ot.search(" in str(app.call("many.nothing").error)


# --- spawned cells --------------------------------------------------------------------------------


SPAWNED = """
import functools, json, sys
from pathlib import Path
import anyio
from onetool.app import OneTool
from onetool.settings.settings_reader import read_settings
from onetool.runs.cells import Cells
from onetool.runs.launch import SpawnLauncher

async def answers():
    read = functools.partial(read_settings, {}, Path.cwd(), None, Path.cwd())
    async with OneTool(read=read, make_cells=functools.partial(Cells, make_launcher=SpawnLauncher)) as app:
        return [(await app.run(code)).blocks[-1] for code in json.loads(sys.argv[1])]

print(json.dumps(anyio.run(answers)))
"""


def test_a_spawned_cell_finds_names(home: Path) -> None:
    codes = json.dumps(["g = srch\n'T' in str(g.now())", BUILTINS, "import time\ntime.now()"])
    command = [sys.executable, "-c", SPAWNED, codes]
    done = subprocess.run(
        command, cwd=home, env=environment(home), capture_output=True, encoding="utf-8", check=True
    )
    found, kept, hidden = json.loads(done.stdout)
    assert (found, kept) == ("True", "True")
    assert 'ot.pack("time").now()' in hidden


def test_a_server_never_joins_another_pack(tmp_path: Path) -> None:
    file = write_pack(
        tmp_path / ".onetool" / "tools", "mine", "def first() -> int:\n    return 1\n"
    )
    names = ("machine", "mine", "a-b", "a_b", "other")
    settings = {
        "servers": {name: hostile_server("echo") for name in names},
        "agents": {"default": {"tools": ["machine.*", "mine.*", "a_b.*", "other.*", "ot.*"]}},
    }
    configure(tmp_path, yaml.safe_dump(settings))
    with open_app_in(tmp_path) as app:
        app.onetool.bus.register_tool(make_tool("other.now"))
        for name in ("machine", "mine", "other"):
            assert app.run(f"ot.call('{name}.echo', text='a')").error == "not_found", name
        assert app.run("ot.call('a_b.echo', text='a')").error == "permission_denied", (
            "it is the name of a-b in code"
        )
        assert "machine has: cpu, disk, memory, now." in app.failure("machine.echo(text='a')")
        assert app.value("mine.first()") == "1"
        problems = "\n".join(app.data("ot.health()")["problems"])
        assert problems.count("so its tools are left out") == len(names) - 1
        file.unlink()
        assert app.run("mine.echo(text='a')").text == "a"
