"""Test recorded runs: as Python tests that replay them, and as snippets that agents save."""

import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.approvals_support import Approver
from tests.extensions_support import open_app_in, write_pack
from tests.runs_support import answer_in_terminal, make_call, store_run
from tests.support import App, configure, connect, environment, run_cli

from onetool.errors import ToolError
from onetool.runs.snippets.parameters import make_template
from onetool.runs.wasm_launcher import PYTHON
from onetool.state.run_records import CallState, RunState

CODE = """\
import random, time
found = shop.find(text='tea', limit=2)
first = shop.price(found[0]["id"])
{"first": first, "names": [each["name"] for each in found], "random": random.random(), "time": time.time()}
"""
PACK = '''\
"""A shop."""

COUNT = []
INFINITY = float("inf")


def find(text: str, limit: int = 10) -> list[dict[str, object]]:
    """Find products."""
    return [{"id": number, "name": f"{text} {number}"} for number in range(limit)]


def price(id: int) -> float:
    """Return a price, which rises with each call."""
    COUNT.append(id)
    return 1.5 * len(COUNT)


def limits() -> dict[str, float]:
    """Return numbers that JSON does not have."""
    return {"worst": -INFINITY, "unknown": INFINITY - INFINITY}
'''
RECORD = "approvals: {record: true}\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    configure(tmp_path, RECORD)
    write_pack(tmp_path / ".onetool" / "tools", "shop", PACK)
    return tmp_path


def run(home: Path, code: str) -> Any:
    done = run_cli(home, "run", "--json", code)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def last_run(home: Path) -> str:
    runs = json.loads(run_cli(home, "runs", "--json").stdout)["runs"]
    return str(runs[0]["id"])


def run_tests(home: Path, **texts: str) -> str:
    """Run tests in a directory without settings and packs. Return the output."""
    place = home / "elsewhere"
    place.mkdir()
    for name, text in texts.items():
        (place / f"test_{name}.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(place)]
    done = subprocess.run(
        command,
        cwd=place,
        env=environment(place),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.stdout


@pytest.mark.slow
def test_a_recorded_run_is_a_test_that_needs_no_tools(home: Path) -> None:
    run(home, CODE)
    shown = run_cli(home, "runs", "show", last_run(home), "--as-test")
    assert shown.returncode == 0, shown.stderr
    run(home, "shop.find(text='tea')\nshop.find('tea').missing")
    failing = run_cli(home, "runs", "show", last_run(home), "--as-test")
    assert "pytest.raises(Exception)" in failing.stdout, failing.stderr
    shutil.rmtree(home / ".onetool")
    output = run_tests(
        home,
        same=shown.stdout,
        failing=failing.stdout,
        other_call=shown.stdout.replace("limit=2", "limit=3"),
        other_value=shown.stdout.replace("'first': 1.5", "'first': 2.5"),
    )
    assert "2 failed, 2 passed" in output, output
    assert "the replayed code called shop.find, and no recorded call matches it" in output


@pytest.mark.slow
def test_a_recorded_run_with_nan_and_infinity_is_a_test(home: Path) -> None:
    run(home, "[shop.limits(), float('nan')]")
    value = run_cli(home, "runs", "show", last_run(home), "--as-test")
    assert value.returncode == 0, value.stderr
    run(home, "shop.limits()['worst']")
    infinite = run_cli(home, "runs", "show", last_run(home), "--as-test")
    changed = value.stdout.replace("VALUE = [{'worst': -inf", "VALUE = [{'worst': inf")
    output = run_tests(home, value=value.stdout, infinite=infinite.stdout, changed=changed)
    assert "1 failed, 2 passed" in output, output


REFUSED = {
    "invalid": "shop.price('x')",
    "missing": "shop.find()",
    "caught": (
        "try:\n    shop.find('tea', color='green')\nexcept ToolError as error:\n    text ="
        " error.type\ntext"
    ),
    "several": "shop.find('tea', limit=1)\nshop.find('tea', limit='many')",
    "rejected": "fs.write(path='a.txt', content='x')",
    "text": "shop.find('Tee für 日本 \\u202e')[0]['nom \\U0001f375']",
    "long": (
        "\n".join(f"name_{number} = {number}" for number in range(5_000))
        + "\nshop.find('tea', limit=1)"
    ),
}


@pytest.mark.slow
def test_a_run_with_refused_calls_is_a_test_that_expects_their_errors(home: Path) -> None:
    agents = "agents: {default: {permissions: [read, write], policy: ask-writes}}\n"
    configure(home, RECORD + agents + 'tools: {shop: {effects: {"*": read}}}\n')
    texts: dict[str, str] = {}
    with connect(home, **Approver(["reject"]).able) as client:
        for name, code in REFUSED.items():
            client.run(code)
            shown = run_cli(home, "runs", "show", "last", "--as-test")
            assert shown.returncode == 0, shown.stderr
            texts[name] = shown.stdout
        listed = json.loads(run_cli(home, "runs", "show", "last", "--json").stdout)
    assert f"{len(REFUSED)} passed" in run_tests(home, **texts)
    assert [call["tool"] for call in listed["recorded"]] == ["shop.find"]


NO_TEST = {
    "ot.snippet('one')": (
        "without tools and settings, the code raises ToolNotFound: unknown snippet $one"
    ),
    "shop.nope()": (
        "without tools and settings, the code raises NameError: name 'shop' is not defined"
    ),
    "while True: pass": "it timed out",
    "x = []\nfor _ in range(200): x = [x]\nx": "too many nested parentheses in a value",
}


@pytest.mark.slow
def test_a_run_that_cannot_be_repeated_elsewhere_is_no_test(home: Path) -> None:
    configure(home, RECORD + "execution: {timeout: 1}\nsnippets: {one: {body: '1'}}\n")
    with connect(home) as client:
        for code, problem in NO_TEST.items():
            client.run(code)
            shown = run_cli(home, "runs", "show", "last", "--as-test")
            assert (shown.returncode, shown.stdout) == (1, ""), code
            assert problem in shown.stderr


SAVE = "ot.save_snippet(name='cheapest', description='The second product')"


@pytest.mark.slow
def test_a_run_becomes_a_snippet_after_a_person_approved_it(home: Path) -> None:
    run(
        home,
        "found = shop.find(text='tea', limit=2)\nname = 'x'\n[found[1]['name'], name, shop.price(1)"
        " > 0]",
    )
    recorded = last_run(home)
    configure(
        home, "approvals: {wait: 0}\nagents: {other: {}}\n"
    )  # from now on, runs cannot be replayed
    asked = run_cli(home, "run", SAVE)
    assert asked.returncode == 3, asked.stdout
    (question,) = json.loads(run_cli(home, "approvals", "--json").stdout)["approvals"]
    assert question["calls"][0]["reason"].startswith(
        "a saved snippet is code that later runs execute"
    )
    assert (
        question["calls"][0]["arguments"]["run"] == recorded
    )  # not `last`, which may be another run later
    status, shown = answer_in_terminal(home, "y", "approve", question["run"])
    assert status == 0, shown
    with open_app_in(home) as app:
        assert "unknown snippet $cheapest" in app.failure("$cheapest")
        result = app.value(f"ot.run_result({question['run']!r}, wait=10)")
        assert result == "OK: saved. Call it as: $cheapest [text=tea] [limit=2] [name=x] [id=1]"
        assert json.loads(app.value("$cheapest text=coffee limit=3 name=12")) == [
            "coffee 1",
            "12",
            True,
        ]
        assert app.data("ot.snippets(pattern='cheap')") == ["cheapest: The second product"]
        (hit,) = app.data(
            "[hit for hit in ot.search(query='the second product') if hit['kind'] == 'snippet']"
        )
        assert (hit["name"], hit["call"]) == (
            "cheapest",
            "$cheapest [text=tea] [limit=2] [name=x] [id=1]",
        )
        assert "The second product" in app.value("ot.help(query='$cheapest')")
        assert "$cheapest" in app.value("ot.help(query='second product')")
        assert json.loads(app.value("ot.snippet('cheapest', text='milk')"))[0] == "milk 1"
        configure(home, RECORD)
        run(home, "$cheapest text=milk")
        written = run_cli(home, "runs", "show", "last", "--as-test")
        assert "shop.find(text=" in written.stdout, written.stderr
        configure(home, "approvals: {wait: 0}\nagents: {other: {}}\n")
        assert "unknown snippet $cheapest" in run_as_other(app, "$cheapest")
        searches = (
            "ot.search(query='cheapest'), ot.help(query='$cheapest'), ot.help(query='second"
            " product')"
        )
        assert "The second product" not in run_as_other(app, searches)

        listed = json.loads(run_cli(home, "snippets", "list", "--json").stdout)["snippets"]
        assert [(each["name"], each["run"], each["accepted_by"]) for each in listed] == [
            ("cheapest", recorded, "")
        ]
        status, shown = answer_in_terminal(home, "n", "snippets", "accept", "cheapest")
        assert status == 1
        assert 'text = "tea"' in shown
        assert run_cli(home, "snippets", "accept", "cheapest").returncode == 1  # without a terminal
        assert answer_in_terminal(home, "y", "snippets", "accept", "cheapest")[0] == 0
        other = app.portal.call(partial(app.onetool.run, "$cheapest", agent="other"))
        assert not other.is_error, other.text
        assert "The second product" in run_as_other(app, "ot.search(query='cheapest')")
        assert run_cli(home, "snippets", "delete", "cheapest").returncode == 0
        assert "unknown snippet $cheapest" in app.failure("$cheapest")


def run_as_other(app: App, code: str) -> str:
    return app.portal.call(partial(app.onetool.run, code, agent="other")).text


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "is_saved"), [("approve", True), ("reject", False)])
def test_the_client_asks_although_the_policy_is_open(
    home: Path, answer: str, is_saved: bool
) -> None:
    person = Approver([answer])
    with connect(home, **person.able) as client:
        client.run("machine.memory(unit='MiB')['total'] > 0")
        configure(home, "approvals: {record: false}\n")
        client.run("ot.reload()")
        assert client.run(SAVE).is_error is not is_saved
        assert len(person.asked) == 1
        assert client.run("$cheapest unit=GiB").is_error is not is_saved


SECRET = "correct-horse-battery"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("code", "name", "problem"),
    [
        ("shop.find(text='tea')", "no name", "invalid name"),
        ("shop.find(text='tea')", "configured", "the settings have a snippet 'configured'"),
        (f"shop.find(text='{SECRET}')", "ok", "contains the value of a secret"),
        ("shop.find(text='ghp_0123456789abcdefghij0123')", "ok", "looks like a secret"),
        ("shop.find(text='tea')  # ghp_0123456789abcdefghij0123", "ok", "looks like a secret"),
        (
            "login = {'password': 'hunter2'}\nshop.find(text='tea')",
            "ok",
            "'password' looks like a secret",
        ),
        ("shop.price('x')", "ok", "no run"),
    ],
)
def test_a_run_that_must_not_be_saved_is_rejected(
    home: Path, code: str, name: str, problem: str
) -> None:
    configure(home, RECORD + "snippets: {configured: {body: '1'}}\n")
    (home / ".onetool" / "secrets.yaml").write_text(f"KEY: {SECRET}\n", encoding="utf-8")
    (home / ".onetool" / "secrets.yaml").chmod(0o600)
    with open_app_in(home) as app:
        app.run(code)
        context = app.onetool.context()
        saving = partial(app.onetool.runs.save_snippet, name, "text", "last", context)
        with pytest.raises(ToolError, match=problem):
            app.portal.call(saving)


def test_lines_and_settings_of_code_are_not_confused_with_parameters() -> None:
    code = '__format__ = "json"\r\ntext = "tea"\rshop.find(text, limit=2)'
    template = make_template(code, [("shop.find", {"text": "tea", "limit": 2})])
    assert template.params == {"text": "tea", "limit": 2}
    assert (
        template.body
        == '__format__ = "json"\ntext = "{{ text }}"\nshop.find(text, limit={{ limit }})'
    )


def test_a_run_without_recorded_results_cannot_be_a_test(home: Path) -> None:
    configure(home, "agents: {default: {permissions: [read, write]}}\n")
    for code in ("fs.write(path='a.txt', content='x')", "1 + 1"):  # with and without effects
        run(home, code)
        shown = run_cli(home, "runs", "show", last_run(home), "--as-test")
        assert shown.returncode == 1
        assert (
            "its results were not recorded\nHint: set `approvals: {record: true}`" in shown.stderr
        )
    missing = run_cli(home, "runs", "show", "r_none", "--as-test")
    assert "no run 'r_none', or it has expired" in missing.stderr


def test_a_recorded_run_whose_policy_never_asks_is_not_continued_after_a_crash(home: Path) -> None:
    data = home / ".onetool"
    state: dict[str, Any] = {
        "state": RunState.RUNNING,
        "directory": str(home),
        "python": PYTHON,
        "is_replayable": True,
    }
    run_id = store_run(data, make_call(1, "shop.price", CallState.DONE, id=1), **state)
    with open_app_in(home) as app:
        assert "interrupted: its process ended" in app.failure(f"ot.run_result({run_id!r})")
