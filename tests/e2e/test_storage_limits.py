"""Test the limits of stored results and messages, and the notes and errors about them."""

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cells_support import IS_ROOT
from tests.rest_support import serve_app
from tests.support import PROGRAM, Connection, configure, connect, get_texts

SETTINGS = """
output: {max_stored_bytes: 6000000, max_stored_bytes_per_agent: 3000000}
notify: {topics: [{pattern: "**", file: notes.yaml}], per_minute: 5}
agents: {default: {permissions: []}}
"""


def measure_size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


def test_the_stored_results_of_an_agent_are_limited(tmp_path: Path) -> None:
    configure(tmp_path, SETTINGS)
    with connect(tmp_path) as client:
        stored = [json.loads(get_texts(client.run("'x' * 1_000_000"))[-1]) for _ in range(8)]
        assert "note" not in stored[0]
        assert stored[-1]["note"] == "1 older result removed to make room"
        first = client.run(f"ot.result(handle={stored[0]['handle']!r})")
        assert first.is_error
        assert "was removed to make room" in get_texts(first)[-1]
        assert not client.run(f"ot.result(handle={stored[-1]['handle']!r}, limit=10)").is_error
        too_large = client.run("'x' * 4_000_000")
        assert too_large.is_error
        assert "output.max_stored_bytes_per_agent is 3000000" in get_texts(too_large)[-1]
        assert get_texts(client.run("1 + 1")) == ["2"]
    assert measure_size(tmp_path / ".onetool" / "tmp") < 4_000_000


def test_messages_are_audited_and_limited(tmp_path: Path) -> None:
    configure(tmp_path, SETTINGS)
    with connect(tmp_path) as client:
        answer = client.run(
            "for number in range(100):\n    ot.notify(topic='t', message='x' * 1000)"
        )
        assert "notify.per_minute is 5" in get_texts(answer)[-1]
    assert (tmp_path / ".onetool" / "notes.yaml").read_bytes().count(b"---\n") == 5
    audit = (
        (tmp_path / ".onetool" / "logs" / "audit.jsonl").read_text(encoding="utf-8").splitlines()
    )
    lines: list[dict[str, Any]] = [json.loads(line) for line in audit]
    assert (
        sum(line["name"] == "call.started" and line["tool"] == "ot.notify" for line in lines) >= 6
    )


def test_a_result_that_cannot_be_stored_has_an_error_code(tmp_path: Path) -> None:
    (tmp_path / "tmp").write_text("a file in the place of the directory", encoding="utf-8")
    with serve_app(tmp_path) as served:
        answer = served.rest.send("POST", "/api/run", {"command": "'x' * 100_000"})
        assert answer.json()["error"] == "storage_unavailable", answer.text
        assert str(tmp_path / "tmp") in answer.text


RECORDS = (
    "[{'number': number, 'name': f'record {number}', 'text': 'x' * 40} for number in range(%d)]"
)


@pytest.mark.parametrize("count", [2_000, 30_000])  # sent as one message, and in several pieces
@pytest.mark.parametrize("shape", ["%s", "{'total': 1, 'data': {'items': %s}}"])
def test_a_large_json_value_is_stored_with_one_record_per_line(
    tmp_path: Path, count: int, shape: str
) -> None:
    code = shape % (RECORDS % count)
    with connect(tmp_path) as client:
        handle = json.loads(get_texts(client.run(code))[-1])["handle"]
        found = client.run(f"ot.result(handle={handle!r}, search='record 17\"')['lines']")
        (line,) = json.loads(get_texts(found)[-1])
        assert json.loads(line.rstrip(","))["number"] == 17
        assert get_texts(client.run(f"ot.load(handle={handle!r}) == {code}"))[-1] == "True"


def test_part_of_a_stored_result_is_not_stored_again(tmp_path: Path) -> None:
    with connect(tmp_path) as client:
        handle = json.loads(get_texts(client.run(RECORDS % 2_000))[-1])["handle"]
        window = f"ot.result(handle={handle!r}, limit=2000)"
        assert yaml.safe_load(get_texts(client.run(window))[-1])["note"].startswith(
            "cut to fit: continue with offset="
        )
        for code in (f"{window}['lines']", f"'\\n'.join({window}['lines'])", f"print({window})"):
            answer = client.run(code)
            assert not answer.is_error
            assert "[cut: " in get_texts(answer)[0]
            assert "record 1" in get_texts(answer)[0]
            assert len(get_texts(answer)[0]) <= 50_000
        assert get_texts(client.run(f"len({window}['lines'])")) == ["2000"]
        assert "note" not in get_texts(client.run(f"ot.result(handle={handle!r}, limit=200)"))[-1]
    assert len(list((tmp_path / ".onetool" / "tmp").glob("*.txt"))) == 1


LARGE_VALUES = {
    "records": (RECORDS % 2_000, ""),
    "other letters": ("'\\n'.join('\u00e4\u6f22\\U0001f600\\t\"' * 9 for _ in range(900))", ""),
    "one line": ("'\u00e4 ' * 20_000", ""),
    "a few long lines": ("'\\n'.join('x' * 700 for _ in range(30)) + '\\n' + 'y' * 9_000", ""),
    "hits": (RECORDS % 2_000, ", search='record'"),
    "hits in one line": ("'\u00e4 b ' * 20_000", ", search='b', unit='chars'"),
    "a line that is too long": ("'\\n'.join(['z' * 30_000] * 3)", ", unit='lines'"),
    "in pieces": (RECORDS % 30_000, ""),
}


@pytest.mark.parametrize(("code", "arguments"), LARGE_VALUES.values(), ids=LARGE_VALUES)
@pytest.mark.parametrize("limit", [900, 10_000])
def test_a_large_window_is_cut_with_a_note(
    clients_by_limit: dict[int, Connection], code: str, arguments: str, limit: int
) -> None:
    client = clients_by_limit[limit]
    handle = json.loads(get_texts(client.run(code))[-1])["handle"]
    answer = client.run(f"ot.result({handle!r}, limit=1000000{arguments})")
    assert not answer.is_error, get_texts(answer)
    assert limit / 2 < len(get_texts(answer)[-1].encode()) <= limit
    cut = yaml.safe_load(get_texts(answer)[-1])
    assert cut["has_more"]
    if found := re.search(r"continue with offset=(\d+)", cut["note"]):
        assert int(found[1]) == 1 + cut["returned"]
        exact = client.run(f"ot.result({handle!r}, limit={cut['returned']}{arguments})")
        assert yaml.safe_load(get_texts(exact)[-1])["lines"] == cut["lines"]
        rest = client.run(f"ot.result({handle!r}, limit=1, offset={found[1]}{arguments})")
        assert not rest.is_error
    else:
        assert "unit='chars'" in cut["note"]


@pytest.fixture(scope="module")
def clients_by_limit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Connection]]:
    with contextlib.ExitStack() as stack:
        clients = {}
        for limit in (900, 10_000):
            home = tmp_path_factory.mktemp(f"inline-{limit}")
            configure(home, f"output: {{max_inline_size: {limit}}}")
            clients[limit] = stack.enter_context(connect(home))
        yield clients


@pytest.mark.parametrize(
    "forged",
    ["{}", "{'returned': 1e400, 'lines': 3}", "{'returned': 10 ** 4000, 'lines': [{}] * 9_999}"],
)
def test_a_forged_window_is_cut(clients_by_limit: dict[int, Connection], forged: str) -> None:
    client = clients_by_limit[900]
    handle = json.loads(get_texts(client.run(RECORDS % 100))[-1])["handle"]
    answer = client.run(
        f"w = ot.result({handle!r}, limit=100); w.update({forged}); w['more'] = 'x' * 2000; w"
    )
    assert "the limit is 900 (output.max_inline_size)" in get_texts(answer)[-1]


@pytest.mark.skipif(not IS_ROOT, reason="only root can mount a directory")
def test_stored_results_are_read_from_a_read_only_disk(tmp_path: Path) -> None:
    with connect(tmp_path) as client:
        handle = json.loads(get_texts(client.run(RECORDS % 2_000))[-1])["handle"]
    command = (sys.executable, str(Path(__file__).parent / "read_only.py"), str(tmp_path), PROGRAM)
    with connect(tmp_path, command=command) as client:
        assert not client.run(f"ot.result({handle!r}, limit=2)").is_error
        assert get_texts(client.run(f"len(ot.load({handle!r}))"))[-1] == "2000"
        rejected = client.run("'x' * 100_000")
        assert rejected.is_error
        assert "Read-only file system" in get_texts(rejected)[-1]
        assert str(tmp_path / ".onetool" / "tmp") in get_texts(rejected)[-1]
        assert get_texts(client.run("1 + 1"))[-1] == "2"


def test_help_is_not_truncated(tmp_path: Path) -> None:
    configure(tmp_path, "output: {max_inline_size: 500}")
    with connect(tmp_path) as client:
        (text,) = get_texts(client.run("ot.help(query='ot', info='full')"))
        assert len(text) > 2_000
        assert "handle" not in text.splitlines()[0]
