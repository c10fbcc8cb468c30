"""Kill processes that write bundles, at chosen steps and at random: the store stays consistent and
loses nothing.

`ONETOOL_NIGHTLY=1` raises the number of kills.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cells_support import NIGHTLY
from tests.e2e.bundle_writers import ACTIONS, FULL, IN_PARTS

WRITERS = Path(__file__).with_name("bundle_writers.py")
TIMEOUT_FACTOR = 10 if NIGHTLY else 1
KILLS = 240 if NIGHTLY else 4  # for each action, each at a different step
KILLS_AT_RANDOM = 400 if NIGHTLY else 8


def run_writers(*arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, str(WRITERS), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=290 * TIMEOUT_FACTOR, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(300 * TIMEOUT_FACTOR)
@pytest.mark.spec("bundles.store.whole-after-a-kill")
def test_a_killed_writer_leaves_the_old_or_the_new_state(tmp_path: Path) -> None:
    results = run_writers("steps", str(tmp_path), "7", str(KILLS), *ACTIONS)
    assert [result["action"] for result in results] == list(ACTIONS)
    for result in results:
        before, after, action = result["before"], result["after"], result["action"]
        assert before != after or action == "remove_expired"
        killed = [state for state in result["states"] if state["died"] == -signal.SIGKILL]
        assert len(killed) > KILLS * 2 / 3
        for state in killed:
            seen, moment = state["seen"], (action, state["step"])
            assert seen["problems"] == []
            assert seen == state["rebuilt"], moment
            if action in IN_PARTS:
                assert all(tool in seen["tools"] for tool in before["tools"])
                assert all(tool in after["tools"] for tool in seen["tools"])
            else:
                assert seen in (before, after), moment


@pytest.mark.slow
@pytest.mark.timeout(300 * TIMEOUT_FACTOR)
@pytest.mark.spec("bundles.store.whole-after-a-kill")
def test_acknowledged_changes_of_killed_writers_are_stored(tmp_path: Path) -> None:
    (result,) = run_writers("random", str(tmp_path), "11", str(KILLS_AT_RANDOM))
    seen = {
        slug: enabled for slug, _, enabled, _, _ in result["seen"]["tools"] if slug.startswith("w-")
    }
    expected = {
        slug: what
        for slug, what in result["acknowledged"].items()
        if slug not in result["doubtful"]
    }
    assert len(expected) > KILLS_AT_RANDOM / 2
    wrong = {
        slug: (what, seen.get(slug))
        for slug, what in expected.items()
        if seen.get(slug) != {"on": True, "off": False}.get(what)
    }
    assert wrong == {}
    assert set(seen) <= set(expected) | set(result["doubtful"])
    assert result["seen"] == result["rebuilt"]
    assert result["seen"]["problems"] == []
    assert FULL in [bundle[0] for bundle in result["seen"]["bundles"]]


READER = """
import sys
from pathlib import Path
from onetool.sources.bundles import BundleStore

store = BundleStore(Path(sys.argv[1]))
for line in sys.stdin:
    print(" ".join(sorted(tool.slug for tool in store.list_tools(size=256).items)), flush=True)
store.close()
"""


@pytest.mark.slow
def test_another_process_sees_each_change_immediately(tmp_path: Path) -> None:
    from tests.bundles_support import new_bundle, open_store, tool_body

    command = [sys.executable, "-c", READER, str(tmp_path / "bundles")]
    with (
        open_store(tmp_path / "bundles") as store,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as reader,
    ):
        assert reader.stdin
        assert reader.stdout
        bundle = new_bundle(store)
        current: list[str] = []
        for number in range(20):
            store.put_tool(bundle, f"tool-{number:02}", "1", tool_body())
            current.append(f"tool-{number:02}")
            if number % 3 == 2:
                store.delete_tool(bundle, current.pop(0), "1")
            reader.stdin.write("look\n")
            reader.stdin.flush()
            assert reader.stdout.readline().split() == current
        reader.stdin.close()
