"""A home with tools that write, and people who answer questions about them."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mcp_types as types
from tests.support import Connection, configure, get_texts

from onetool.state.run_records import CallState, Decision, DurableCall, RunState
from onetool.state.run_store import RunStore

SETTINGS = """\
agents: {default: {policy: ask-writes, permissions: [read, write, network]}}
approvals: {wait: 0.2}
tools: {notes: {effects: {count: read, "*": write}, idempotent: [put]}}
"""
DISMISS = "dismiss"  # an answer of `Approver`: close the question
NOTES = '''\
import os
from pathlib import Path
FILE = Path(__file__).parents[3] / "notes.txt"

def add(text: str, repo: str = "me/app", slow: float = 0) -> int:
    """Add a note."""
    import time
    with FILE.open("a") as file:
        file.write(text + "\\n")
    time.sleep(slow)
    return len(text)

def put(text: str, slow: float = 0) -> str:
    """Put a note. Repeating it changes nothing."""
    import time
    if text not in count():
        add(text)
    time.sleep(slow)
    return text

def count() -> list[str]:
    """List the notes."""
    return FILE.read_text().splitlines() if FILE.exists() else []
'''


@dataclass(frozen=True)
class Notes:
    """A home whose default agent needs approvals for the tools of the pack `notes`."""

    home: Path

    @property
    def written(self) -> list[str]:
        file = self.home / "notes.txt"
        return file.read_text("utf-8").splitlines() if file.exists() else []

    @property
    def store(self) -> RunStore:
        return RunStore(self.home / ".onetool")

    def waiting(self) -> list[str]:
        """Return the runs that wait for a person."""
        store = self.store
        try:
            return [run.id for run in store.list_runs((RunState.WAITING, RunState.HALTED))]
        finally:
            store.close()

    def list_calls(self, run: str) -> list[DurableCall]:
        store = self.store
        try:
            return store.list_calls(run)
        finally:
            store.close()

    def decide(self, run: str, *, is_approved: bool = True, **more: Any) -> list[int]:
        """Answer as a person does in another process."""
        store = self.store
        try:
            return store.decide(run, Decision(is_approved, "Ada", **more))
        finally:
            store.close()


def make_notes(home: Path, settings: str = SETTINGS) -> Notes:
    configure(home, settings)
    pack = home / ".onetool" / "tools" / "notes"
    pack.mkdir(parents=True)
    (pack / "notes_tools.py").write_text(NOTES, encoding="utf-8")
    return Notes(home)


@dataclass
class Approver:
    """A person at a client who answers questions in this order; the last answer is repeated.

    None declines.
    """

    answers: list[str | None] = field(default_factory=lambda: ["approve"])
    asked: list[Any] = field(default_factory=list)
    similar: dict[str, Any] = field(default_factory=dict)  # what `approve_similar` allows

    @property
    def able(self) -> dict[str, Any]:
        return {"elicitation_callback": self.answer}

    async def answer(self, _context: Any, params: Any) -> types.ElicitResult:
        self.asked.append(params)
        decision = self.answers[min(len(self.asked), len(self.answers)) - 1]
        if decision is None:
            return types.ElicitResult(action="decline")
        if decision == DISMISS:
            return types.ElicitResult(action="cancel")
        similar = self.similar if decision == "approve_similar" else {}
        return types.ElicitResult(
            action="accept", content={"decision": decision, "reason": "as agreed", **similar}
        )


def read_value(client: Connection, code: str) -> Any:
    """Run code whose value is JSON data."""
    result = client.run(code)
    (text,) = get_texts(result)
    assert not result.is_error, text
    return json.loads(text)


@dataclass
class Owner:
    """A person at the computer who answers everything that waits, and remembers what was approved.

    Notes with the text `no` are rejected. For a call that was interrupted, the person looks whether
    the note exists.
    """

    notes: Notes
    approved: set[str] = field(default_factory=set)
    answers: int = 0

    def answer(self, store: RunStore, run: str) -> bool:
        """Answer what waits in a run. Return whether something did."""
        pending = store.list_calls(run, {CallState.PENDING})
        for call in pending:
            text = json.loads(call.arguments)["text"]
            if not text.endswith("no"):
                self.approved.add(text)
            store.decide(run, Decision(not text.endswith("no"), "Ada", (call.number,)))
        unknown = store.list_calls(run, {CallState.UNKNOWN})
        for call in unknown:
            happened = json.loads(call.arguments)["text"] in self.notes.written
            state, result = (
                (CallState.DONE, '{"value": 0}') if happened else (CallState.APPROVED, None)
            )
            store.resolve(run, call.number, state, by="Ada", result=result)
        self.answers += bool(pending or unknown)
        return bool(pending or unknown)
