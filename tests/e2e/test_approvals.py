"""Approvals of calls by people: questions through MCP clients, runs that wait, and servers that are
killed.
"""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.approvals_support import DISMISS, Approver, Notes, make_notes, read_value
from tests.conformance_support import ERAS
from tests.support import (
    PROGRAM,
    TIMEOUT_SECONDS,
    Connection,
    RawClient,
    connect,
    eventually,
    get_texts,
)

PAUSED = re.compile(
    r"paused: run (r_[0-9a-f]{32}) waits for a person to approve (.+)\. Continue with other work"
)
MANY = "ot.parallel([lambda i=i: notes.add(text=f'note {i}') for i in range(5)])"


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return make_notes(tmp_path)


def pause(client: Connection, code: str) -> str:
    """Run code that waits for a person, and return the ID of its run."""
    result = client.run(code)
    (text,) = get_texts(result)
    found = PAUSED.match(text)
    assert found is not None, text
    assert not result.is_error, text
    return found[1]


def wait_for_value(client: Connection, run: str) -> str:
    """Return the value of a run as text, once it is done."""
    texts: list[str] = []

    def is_done() -> bool:
        texts[:] = get_texts(client.run(f'ot.run_result("{run}", wait=5)'))
        return not texts[0].startswith(("paused", "running"))

    assert eventually(is_done), texts
    return texts[0]


@pytest.mark.parametrize("mode", ERAS)
def test_calls_that_wait_together_are_one_question(notes: Notes, mode: str) -> None:
    person = Approver()
    with connect(notes.home, mode, **person.able) as client:
        assert read_value(client, MANY) == [6] * 5
        assert sorted(notes.written) == [f"note {i}" for i in range(5)]
        (question,) = person.asked
        assert "Approve 5 calls of agent default (notes.add ×5)?" in question.message  # noqa: RUF001
        assert all(f'text: "note {i}"' in question.message for i in range(5))
        assert question.requested_schema["required"] == ["decision"]
        assert question.requested_schema["properties"]["decision"]["enum"][0] == "approve"
        assert read_value(client, "notes.count()")[0] in {f"note {i}" for i in range(5)}
        assert len(person.asked) == 1


@pytest.mark.parametrize("mode", ERAS)
def test_a_loop_of_fifty_writes_takes_two_questions(notes: Notes, mode: str) -> None:
    person = Approver(["approve", "approve_similar"], similar={"count": 48, "varying": "text"})
    with connect(notes.home, mode, **person.able) as client:
        code = "[notes.add(text=f'note {i}') for i in range(50)]\n'done'"
        assert get_texts(client.run(code)) == ["done"]
        assert len(notes.written) == 50
        assert len(person.asked) == 2
        fields = person.asked[1].requested_schema["properties"]
        assert fields["count"]["default"] == 1
        assert fields["varying"]["description"].endswith(
            'In these calls: text: "note 1"; repo: "me/app"; slow: 0'
        )


def test_similar_calls_are_the_same_call_once_unless_the_person_says_more(notes: Notes) -> None:
    person = Approver(["approve_similar", "reject"])
    with connect(notes.home, **person.able) as client:
        for names in (["a", "a", "a"], ["b", "c"]):
            person.asked.clear()
            result = client.run(f"for name in {names}:\n    notes.add(text=name)")
            assert "rejected notes.add" in get_texts(result)[0]
            assert len(person.asked) == 2
    assert notes.written == ["a", "a", "b"]


def test_a_grant_does_not_cover_other_arguments(notes: Notes) -> None:
    person = Approver(
        ["approve", "approve_similar", "reject"], similar={"count": 9, "varying": "text"}
    )
    code = """\
for name in ("me/app", "me/app", "me/app", "you/app"):
    notes.add(text=name, repo=name)
"""
    with connect(notes.home, **person.able) as client:
        result = client.run(code)
        assert result.is_error
        assert "the person at mcp rejected notes.add: as agreed" in get_texts(result)[0]
    assert notes.written == ["me/app"] * 3
    assert len(person.asked) == 3


@pytest.mark.parametrize(
    ("answer", "expected"), [("reject", "caught rejected"), (None, "caught rejected")]
)
def test_code_can_catch_a_rejection(notes: Notes, answer: str | None, expected: str) -> None:
    code = (
        "try:\n    notes.add(text='x')\nexcept CallRejected as error:\n    result = f'caught"
        " {error.type}'\nresult"
    )
    with connect(notes.home, **Approver([answer]).able) as client:
        assert get_texts(client.run(code)) == [expected]
    assert notes.written == []


def test_stop_ends_the_run(notes: Notes) -> None:
    code = "try:\n    notes.add(text='x')\nexcept Exception:\n    pass\nnotes.count()"
    with connect(notes.home, **Approver(["stop"]).able) as client:
        result = client.run(code)
        assert result.is_error
        assert "was stopped: as agreed" in get_texts(result)[0]
        assert get_texts(client.run("1 + 1")) == ["2"]


def test_without_a_client_that_asks_the_run_is_paused(notes: Notes) -> None:
    with connect(notes.home) as client:
        run = pause(client, f"rows = {MANY}\nlen(rows)")
        assert get_texts(client.run(f'ot.run_result("{run}", wait=0)'))[0].startswith(
            "paused: run r_"
        )
        assert get_texts(client.run("notes.count()")) == ["[]"]
        assert notes.decide(run) == [1, 2, 3, 4, 5]
        assert wait_for_value(client, run) == "5"
        assert len(notes.written) == 5
        rejected = pause(client, "notes.add(text='never')")
        notes.decide(rejected, is_approved=False, reason="not today")
        assert "Ada rejected notes.add: not today" in wait_for_value(client, rejected)
    assert "never" not in notes.written


@pytest.mark.parametrize("mode", ERAS)
def test_a_dismissed_question_leaves_the_call_to_others(notes: Notes, mode: str) -> None:
    person = Approver([DISMISS])
    with connect(notes.home, mode, (PROGRAM, "--expose", "notes.add"), **person.able) as client:
        asked = pause(client, "notes.add(text='run')")
        (text,) = get_texts(client.call("add", {"text": "call"}))
        called = re.search("run (r_[0-9a-f]{32}) waits", text)
        assert called is not None, text
        assert "a person must approve notes.add" in text
        assert len(person.asked) == 2
        for run in (asked, called[1]):
            notes.decide(run)
            wait_for_value(client, run)
    assert notes.written == ["run", "call"]


def test_a_waiting_run_survives_a_killed_server(notes: Notes) -> None:
    code = """\
import random, uuid
before = notes.count()
tag = f"{uuid.uuid4()} {random.random()}"
rows = [notes.add(text=f"{tag} {name}") for name in {"a", "b", "c"}]
[before, len(set(rows)), tag]
"""
    with connect(notes.home) as client:
        run = pause(client, code)
        notes.decide(run)
        assert eventually(
            lambda: [call.state for call in notes.list_calls(run)][1:] == ["done", "pending"]
        )
        os.kill(client.server, signal.SIGKILL)
    tag = notes.written[0].rpartition(" ")[0]
    with connect(notes.home) as client:
        assert eventually(lambda: not notes.decide(run) and len(notes.written) == 3)
        assert tag in wait_for_value(client, run)
    assert len(notes.written) == 3 == len(set(notes.written))
    assert {line.rpartition(" ")[0] for line in notes.written} == {tag}


def test_a_call_that_was_sent_is_never_repeated(notes: Notes) -> None:
    with connect(notes.home) as client:
        run = pause(client, "notes.add(text='once', slow=30)\n'done'")
        notes.decide(run)
        assert eventually(lambda: notes.written == ["once"])
        os.kill(client.server, signal.SIGKILL)
    with connect(notes.home) as client:
        text = get_texts(client.run(f'ot.run_result("{run}", wait=5)'))[0]
        assert "waits for a person to say whether 1 call (notes.add) happened" in text
        assert notes.written == ["once"]


def call_modern(client: RawClient, code: str, **more: Any) -> dict[str, Any]:
    """Send a run of the 2026 protocol and return its result."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "wire", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
    }
    answer = client.request(
        "tools/call", {"name": "run", "arguments": {"command": code}, "_meta": meta, **more}
    )
    assert "result" in answer, answer
    result: dict[str, Any] = answer["result"]
    return result


def test_a_client_answers_a_question_of_a_killed_server(notes: Notes) -> None:
    code = "notes.add(text='kept')\n'done'"
    client = RawClient(notes.home)
    question = call_modern(client, code)
    client.process.kill()
    client.process.wait()
    client.hang_up()
    (key,) = question["inputRequests"]
    assert 'text: "kept"' in question["inputRequests"][key]["params"]["message"]
    answers = {key: {"action": "accept", "content": {"decision": "approve"}}}
    again = {"inputResponses": answers, "requestState": question["requestState"]}
    client = RawClient(notes.home)
    try:
        for _ in range(2):  # the answer counts once
            assert eventually(
                lambda: call_modern(client, code, **again)["content"][0]["text"] == "done"
            )
        assert notes.written == ["kept"]
    finally:
        client.hang_up()
        client.process.wait(TIMEOUT_SECONDS)


def test_a_call_in_the_background_outlives_its_run(notes: Notes) -> None:
    with connect(notes.home) as client:
        run = get_texts(client.run("ot.background('notes.add', text='later', slow=0.5)"))[0]
        assert get_texts(client.run(f'ot.run_result("{run}", wait=0)'))[0].startswith(
            ("running", "paused")
        )
        assert eventually(lambda: notes.decide(run))
        assert wait_for_value(client, run) == "5"
        assert notes.written == ["later"]
        reading = get_texts(client.run("ot.background('notes.count')"))[0]
        assert wait_for_value(client, reading) == '["later"]'
        assert "ToolNotFound" in get_texts(client.run("ot.background('notes.nothing')"))[0]
        failed = get_texts(client.run("ot.background('notes.add')"))[0]
        assert "ArgumentError: notes.add() requires 'text'" in wait_for_value(client, failed)


# in a WebAssembly sandbox, addresses and process IDs are the same when a run is replayed
@pytest.mark.kernel
def test_a_call_that_comes_back_with_other_arguments_is_asked_again(notes: Notes) -> None:
    # what a replay does not repeat
    code = "import os\nnotes.add(text=f'{id(object())} {os.getpid()}')\n'done'"
    with connect(notes.home) as client:
        run = pause(client, code)
        os.kill(client.server, signal.SIGKILL)
    notes.decide(run)
    with connect(notes.home) as client:
        assert eventually(lambda: len(notes.list_calls(run)) == 2)
        withdrawn, again = notes.list_calls(run)
        assert (withdrawn.state, again.state) == ("rejected", "pending")
        assert "made this call with other arguments: text was" in again.reason
        assert notes.written == []
        notes.decide(run)
        assert wait_for_value(client, run) == "done"
    assert len(notes.written) == 1
