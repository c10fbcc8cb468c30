"""Views of durable runs, and patterns of grants."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.runs_support import make_call, store_run

from onetool.admin.recorded_calls import find_run, list_recorded, list_waiting
from onetool.errors import ArgumentError, ToolError
from onetool.runs.questions import MAX_DAYS, parse_pattern
from onetool.state.run_records import CallState
from onetool.state.run_store import RunStore
from onetool.util.redact import Redactor
from onetool.util.time_format import parse_duration

SECRET = "s3cr3t-value-1"


def test_arguments_are_shown_safely_and_what_is_hidden_is_counted(tmp_path: Path) -> None:
    call = make_call(
        1, "mail.send", to=f"a\u202eb {SECRET}", body="x" * 5000, rows=["y" * 3900] * 10, n=1
    )
    odd = make_call(2, "mail.send", CallState.PENDING, **{"x: 1\n  3. mail.send": 1})
    run = store_run(tmp_path, call, odd, client="a\nb")
    store = RunStore(tmp_path)
    (waiting,) = list_waiting(store, Redactor([SECRET]))
    shown, other = waiting.calls
    assert list(other.arguments) == ["x: 1\\n  3. mail.send"]
    assert waiting.client == "a\\nb"
    assert waiting.run == run
    assert shown.arguments["to"] == "a\\u202eb [REDACTED]"
    assert shown.arguments["body"] == f"{'x' * 4000}… (1,000 more characters not shown)"
    assert shown.arguments["rows"][-1].endswith("more items not shown)")
    assert len(json.dumps(waiting.as_json())) < 30_000
    assert SECRET not in json.dumps(
        [
            call.as_json()
            for call in list_recorded(store, find_run(store, run[:8]).id, Redactor([SECRET]))
        ]
    )
    store_run(tmp_path, call, run_id=f"{run[:-1]}x")
    with pytest.raises(ToolError, match="ambiguous: 2 runs"):
        find_run(store, run[:-1])
    assert find_run(store, run).id == run
    store.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gh.*", ("gh.*", {}, ())),
        ("gh.*(...)", ("gh.*", {}, ("*",))),
        ("a.b(x=1, y=...)", ("a.b", {"x": 1}, ("y",))),
        (' gh.create_issue(repo="me/*", n=3) ', ("gh.create_issue", {"repo": "me/*", "n": 3}, ())),
        ("a.b()", ("a.b", {}, ())),
        ("a.b(x=[1, {'y': None}])", ("a.b", {"x": [1, {"y": None}]}, ())),
    ],
)
def test_patterns_are_calls_with_literals(text: str, expected: object) -> None:
    assert parse_pattern(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a b",
        "a.b(1)",
        "a.b(**x)",
        "a.b(x=y)",
        "a.b(x=1",
        "a.b(x=1)(y=2)",
        "a.b(x=1) or 1",
        "a.b(x=[...])",
        "a.b({1})",
    ],
)
def test_other_patterns_are_rejected(text: str) -> None:
    with pytest.raises(ArgumentError, match="invalid"):
        parse_pattern(text)


def test_durations() -> None:
    assert [parse_duration(text, MAX_DAYS) for text in ("30m", "2h", "1d")] == [1800, 7200, 86_400]
    for text in ("", "0m", "5", "31d", "1w", "-1h"):
        with pytest.raises(ArgumentError):
            parse_duration(text, MAX_DAYS)


def test_names_that_look_the_same_do_not_hide_each_other(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {
        "to\u200b": "eve",
        "to\\u200b": "ada",
        "body": {"a\u200b": 1, "a\\u200b": 2},
    }
    run = store_run(tmp_path, make_call(1, "mail.send", **arguments))
    store = RunStore(tmp_path)
    (waiting,) = list_waiting(store, Redactor())
    store.close()
    shown = waiting.calls[0].arguments
    assert waiting.run == run
    assert sorted(map(str, shown)) == ["body", "to\\u200b", "to\\u200b (2)"]
    assert sorted(shown["body"].values()) == [1, 2]
