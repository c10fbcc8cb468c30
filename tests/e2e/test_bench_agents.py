"""Test `benchmarks/agents/run.py` on a sample of its tasks: every arm reaches the expected state,
and no gate fails.

It is also a test of binding, validation and proxying: the tools must receive exactly the expected
calls.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.agents.measurements import Measurement
from benchmarks.agents.report import check_gates, list_direct_wins
from benchmarks.agents.run import main
from benchmarks.agents.task_process import SCRIPT, tau_worlds
from benchmarks.agents.tasks import GoldCall, Task, Turn, group_calls, plan_runs
from tests.cells_support import NIGHTLY
from tests.support import environment

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "agents" / "run.py"
SAMPLE, ALL = 40, 400
TIMEOUT_SECONDS = 1800 if NIGHTLY else 240
ARMS = ["direct", "search", "code", "code-cold"] if NIGHTLY else ["direct", "code", "code-cold"]


def run_bench(home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmark. If its data cannot be installed, skip the test, or fail it with CI=true."""
    done = subprocess.run(
        [sys.executable, BENCHMARK, *options],
        cwd=home,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    if "cannot install" in done.stderr:
        stop = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        stop(done.stderr)
    return done


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_code_is_not_worse_than_direct_calls(tmp_path: Path) -> None:
    tasks, sizes = (ALL, "8,96,500") if NIGHTLY else (SAMPLE, "96")
    done = run_bench(
        tmp_path, "--json", "--tasks", str(tasks), "--tools", sizes, "--arms", ",".join(ARMS)
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    report = json.loads(done.stdout)
    assert report["tasks"] == tasks
    assert list(report["arms"]) == ARMS
    assert all(gate["kept"] for gate in report["gates"])
    rows = [row for rows in report["arms"].values() for row in rows]
    assert all(row["state_equal"] == row["calls_equal"] == row["tasks"] == tasks for row in rows)
    direct, code = report["arms"]["direct"][-1], report["arms"]["code"][-1]
    assert code["input_tokens"] < direct["input_tokens"]


@pytest.mark.slow
@pytest.mark.skipif(not NIGHTLY, reason="starts six more processes: make nightly")
def test_a_real_client_plays_the_same_tasks(tmp_path: Path) -> None:
    """The client is a script that makes one call, so that the state is not the expected one in
    either arm.
    """
    script = tmp_path / "client.py"
    script.write_text(CLIENT, encoding="utf-8")
    command = f"{sys.executable} {script} {{config}} {{prompt}}"
    done = run_bench(tmp_path, "--json", "--tasks", "1", "--tools", "8", "--client", command)
    assert done.returncode == 0, done.stderr
    rows = {row["arm"]: row for row in json.loads(done.stdout)["client"]}
    assert rows.keys() == {"direct", "code"}
    assert all(not row["state_equal"] and row["exit_status"] == 0 for row in rows.values())


CLIENT = """
import asyncio, json, sys
from mcp import Client, StdioServerParameters

async def main():
    (server,) = json.loads(open(sys.argv[1]).read())["mcpServers"].values()
    assert sys.argv[2].startswith("Do the following steps")
    async with Client(StdioServerParameters(**server)) as client:
        (first, *_) = (await client.list_tools()).tools
        arguments = {"command": "bfcl.pwd()"} if first.name == "run" else {}
        await client.call_tool("run" if first.name == "run" else "pwd", arguments)

asyncio.run(main())
"""


TAU = {
    "__init__.py": "raise ImportError('imports language model clients')",
    "types.py": (
        """
from typing import Any
from pydantic import BaseModel
class Action(BaseModel):
    name: str
    kwargs: dict[str, Any]
class Task(BaseModel):
    user_id: str
    actions: list[Action]
    instruction: str
    outputs: list[str]
"""
    ),
    "envs/__init__.py": "raise ImportError('imports language model clients')",
    "envs/tool.py": "class Tool: pass",
    "envs/DOMAIN/__init__.py": "from .env import Env",
    "envs/DOMAIN/data/__init__.py": (
        "def load_data():\n    return {'orders': {'#1': {'items': ['cup']}}}"
    ),
    "envs/DOMAIN/tools/__init__.py": "from .add_items import AddItems\nALL_TOOLS = [AddItems]",
    "envs/DOMAIN/tools/add_items.py": (
        """
from tau_bench.envs.tool import Tool
class AddItems(Tool):
    @staticmethod
    def invoke(data, order_id, items):
        if order_id not in data["orders"]:
            return "Error: order not found"
        items += data["orders"][order_id]["items"]
        data["orders"][order_id]["items"] = items
        return str(len(items))
    @staticmethod
    def get_info():
        items = {"type": "array", "items": {"type": "string"}}
        properties = {"order_id": {"type": "string"}, "items": items}
        parameters = {"type": "object", "properties": properties, "required": ["order_id", "items"]}
        function = {"name": "add_items", "description": "Add items to an order.", "parameters": parameters}
        return {"type": "function", "function": function}
"""
    ),
    "envs/DOMAIN/tasks_test.py": (
        """
from tau_bench.types import Task, Action
TASKS = [Task(user_id="u", instruction="Add a spoon.", outputs=[], actions=[
    Action(name="add_items", kwargs={"order_id": "#1", "items": ["spoon"]}),
    Action(name="respond", kwargs={"content": "Done."}),
])]
"""
    ),
}
PLAY_TAU = """
import json, sys
from tau import TauWorld
world = TauWorld(sys.argv[1], sys.argv[2])
(task,) = world.outline()
calls = world.describe(task)["turns"][0]["calls"]
world.load(task)
before = world.check()["state"]
answers = [world.call(call["tool"], call["arguments"]) for call in calls]
print(json.dumps([world.definitions()[0]["name"], calls, answers, before, world.check()]))
"""


@pytest.mark.parametrize(("domain", "tasks"), [("retail", "TASKS_TEST"), ("airline", "TASKS")])
def test_tasks_are_read_from_the_layout_of_tau_bench(
    tmp_path: Path, domain: str, tasks: str
) -> None:
    """The directory has the files and names of github.com/sierra-research/tau-bench, with other
    content.
    """
    for name, text in TAU.items():
        file = tmp_path / "tau_bench" / name.replace("DOMAIN", domain)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("TASKS", tasks), encoding="utf-8")
    (world,) = tau_worlds(tmp_path)
    done = subprocess.run(
        [world.python, "-c", PLAY_TAU, world.name, world.directory],
        env={**os.environ, "PYTHONPATH": str(SCRIPT)},
        capture_output=True,
        text=True,
        check=True,
    )
    name, (call,), answers, before, after = json.loads(done.stdout)
    assert (name, call["tool"], call["arguments"]) == (
        "add_items",
        name,
        {"order_id": "#1", "items": ["spoon"]},
    )
    assert answers == [call["answer"]] == ["2"]
    assert not before
    assert after == {"state": True, "calls": True, "wrong": []}


def test_invalid_options_are_usage_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, message in (
        (("--tools", "8,x"), "invalid sizes '8,x' (expected numbers from 1 to 500, like 8,96)"),
        (("--tools", "0"), "invalid sizes '0'"),
        (
            ("--arms", "code,x"),
            "invalid arms 'code,x' (expected some of direct, search, code, code-cold)",
        ),
        (("--tasks", "0"), "invalid number '0' (expected 1 or more)"),
    ):
        monkeypatch.setattr(sys, "argv", ["run.py", *options])
        with pytest.raises(SystemExit, match="2"):
            main()
        assert message in capsys.readouterr().err


def measurement(arm: str, tools: int = 96, **changes: Any) -> Measurement:
    values: dict[str, Any] = {
        "rounds": 3,
        "tokens": 1000,
        "cached_tokens": 500.0,
        "bytes": 4000,
        "seconds": 0.1,
    }
    return replace(
        Measurement(
            world="bfcl",
            tools=tools,
            arm=arm,
            task="t",
            state=True,
            calls=True,
            one_by_one=4,
            **values,
        ),
        **changes,
    )


@pytest.mark.parametrize(
    ("tools", "changes", "failed"),
    [
        (96, {}, []),
        (96, {"state": False}, ["the final state is the expected one in all arms"]),
        (96, {"calls": False}, ["the tools receive exactly the expected calls"]),
        (96, {"rounds": 4}, ["code needs no more rounds than direct on any task"]),
        (
            96,
            {"tokens": 1001},
            ["code needs no more tokens than direct on any task, from 20 tools on"],
        ),
        (8, {"tokens": 1500}, []),
        (
            8,
            {"tokens": 1501},
            ["code needs at most 500 more tokens than direct on any task, below"],
        ),
    ],
)
def test_gates_fail_for_worse_measurements(
    tools: int, changes: dict[str, Any], failed: list[str]
) -> None:
    found = [measurement("direct", tools), measurement("code", tools, **changes)]
    assert [gate.name for gate in check_gates(found) if not gate.is_kept] == failed


def test_tasks_that_direct_calls_win_are_listed() -> None:
    found = [
        measurement("direct"),
        measurement("code"),
        measurement("code-cold", rounds=5, tokens=1200),
    ]
    (win,) = list_direct_wins(found)
    assert (win["arm"], win["rounds"], win["input_tokens"]) == ("code-cold", 2, 200)


def test_calls_wait_for_values_that_only_an_answer_has() -> None:
    calls = (
        GoldCall(
            "find",
            {"name": "notes"},
            '{"matches": ["dir/notes-2024.txt"], "text": "code is X-77-Q"}',
        ),
        GoldCall("read", {"file": "dir/notes-2024.txt"}, "content"),
        GoldCall("unlock", {"code": "X-77-Q"}, "open"),
        GoldCall("close", {}, "closed"),
    )
    task = Task("t", (Turn("Read my notes, then unlock and close.", calls),), ())
    assert [[[call.tool for call in group] for group in turn] for turn in group_calls(task)] == [
        [["find"], ["read", "unlock", "close"]]
    ]
    (runs,) = plan_runs(task)
    assert [run.write("bfcl") for run in runs] == [
        "a1 = bfcl.find(name='notes')\na2 = bfcl.read(file=a1['matches'][0])\n[a1, a2]",
        "a1 = bfcl.unlock(code='X-77-Q')\na2 = bfcl.close()\n[a1, a2]",
    ]
