"""Message limits: sizes are checked before parsing, long strings are sent separately, and reading
is paced.
"""

import json
from typing import Any

import pytest

from onetool.processes.channel import SLICE_SECONDS, Collector, Pace, find_id
from onetool.processes.process import MAX_KEPT_CHARS, MAX_QUOTED_CHARS, Printed
from onetool.sources.upstream.http_client import _EventSplitter
from onetool_child import messages


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        5,
        "a,b[{",
        'a"b,c',
        "\\",
        '\\",[',
        [[], [], []],
        {"a": [1, 2], "b,": "[{,"},
        ["\\" * 5, ",\\"],
        [["x"] * 9] * 9,
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_values_are_counted_outside_of_strings_in_any_chunks(value: Any, size: int) -> None:
    line = json.dumps(value).encode()

    def count_separators(part: Any) -> int:
        if not isinstance(part, dict | list):
            return 0
        inner = part.values() if isinstance(part, dict) else part
        return 1 + max(0, len(part) - 1) + sum(map(count_separators, inner))

    assert messages.count_values(messages.split_bytes(line, size)) == count_separators(value)


def test_a_line_over_a_limit_is_not_parsed() -> None:
    messages.check_size(b"x" * messages.MAX_MESSAGE_BYTES)
    with pytest.raises(messages.TooLarge, match="1048576 bytes"):
        messages.parse(b"x" * (messages.MAX_MESSAGE_BYTES + 1))
    with pytest.raises(messages.TooLarge, match="120000 values"):
        messages.parse(b"[" * (messages.MAX_VALUES + 1))


def test_long_strings_are_extracted_and_restored() -> None:
    value = {
        "args": ["x" * 2000, 5],
        "kwargs": {"a": {"b": ["é" * 3000, "short"]}, "c": "\ud800" * 1024},
    }
    before = json.loads(json.dumps(value))
    paths, text = messages.take_strings(value)
    assert len(json.dumps(value)) < 200
    messages.put_strings(value, json.loads(json.dumps(paths)), text)
    assert value == before


@pytest.mark.parametrize(
    "paths",
    [[[["x"], 1]], [[["a"], 9]], [[["a"], -1]], [[[], 1]], [["a", 1, 2]], [5], [[["b"], 1]]],
)
def test_strings_with_an_invalid_path_are_rejected(paths: Any) -> None:
    with pytest.raises((ValueError, TypeError, LookupError)):
        messages.put_strings({"a": "", "b": "full"}, paths, "text")


@pytest.mark.parametrize(
    "line",
    [b"=x", b"=x y", b"=x -1", b"=x 262145", b"=x " + b"1" * 5000, "=x ²".encode(), b"=\xff 1"],
)
def test_an_invalid_header_is_rejected(line: bytes) -> None:
    with pytest.raises((messages.TooLarge, UnicodeDecodeError)):
        messages.parse_piece_header(line)


def test_a_fast_sender_is_paused() -> None:
    now = [0.0]
    pace = Pace()
    pace.now = lambda: now[0]
    assert pace.charge(0.0, 1000) == 0
    assert pace.charge(0.0, 1 << 20) == pytest.approx(0.05, rel=0.01)
    now[0] = 1.0
    assert pace.charge(0.99, 0) == pytest.approx(0.01)
    now[0] = 2.0
    assert pace.charge(2.0 - SLICE_SECONDS / 2, 0) == 0


@pytest.mark.parametrize(
    ("message", "ident"),
    [
        (b'{"jsonrpc":"2.0","id":5,"result":{}}', 5),
        (b'{"id": "a-b", "method": "x"}', "a-b"),
        (b'{"result":{"id":7},"jsonrpc":"2.0","id":8}', 8),
        (b'{"result":{},"id":9,"jsonrpc":"2.0"}', 9),
        (b'{"result":{"id":7}}', None),
        (b'{"result":"\\"id\\":7}', None),
        (b"", None),
    ],
)
def test_the_id_is_found_at_either_end_of_a_message(message: bytes, ident: object) -> None:
    assert find_id(message) == ident


def test_both_ends_of_an_oversized_message_are_kept() -> None:
    collector = Collector(1000)
    for chunk in (b'{"id":5,', b"x" * 800, b"y" * 800, b'"end":1}'):
        collector.add(chunk)
    data, problem = collector.take()
    assert problem == "the message has 1616 bytes, the limit is 1000"
    assert data.startswith(b'{"id":5,x')
    assert data.endswith(b'y"end":1}')
    assert collector.take() == (b"", None)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_events_are_complete_in_any_chunks(size: int, end: bytes) -> None:
    lines = [
        b"event: message",
        b'data: {"a":1}',
        b"",
        b"data: [1,",
        b"data: 2]",
        b"id: 5",
        b"",
        b": ping",
        b"",
    ]
    stream, whole = end.join(lines) + end, _EventSplitter()
    found = [event for chunk in messages.split_bytes(stream, size) for event in whole.add(chunk)]
    assert [event.strip() for event in found] == [
        b'event: message\ndata: {"a":1}', b"data: [1,\ndata: 2]\nid: 5", b": ping",
    ]  # fmt: skip


def test_printed_output_is_kept_in_complete_lines_since_the_last_call() -> None:
    lines: list[str] = []
    printed = Printed(lines.append)
    for number in range(1000):
        printed.add(b"line %d\nli" % number)
        printed.add(b"ne\n")
    assert len(printed.shown) <= MAX_QUOTED_CHARS
    assert set(printed.shown.splitlines()) >= {"line", "line 999"}
    assert all(line.startswith("line") for line in printed.shown.splitlines())
    assert all(text.endswith("\n") for text in lines)
    printed.clear()
    assert printed.sentence == ""
    printed.add("é".encode()[:1])
    printed.add("é".encode()[1:] + b" half a line", final=True)
    assert printed.sentence == ". It last printed:\né half a line\n"
    printed.add(b"x" * 100_000)
    assert len(printed.shown) == MAX_QUOTED_CHARS < MAX_KEPT_CHARS
