"""The official programs find nothing wrong with us: the conformance suite for both eras, and Inspector's strict look.

The suite wants tools, resources and prompts of fixed names. They stand in a server behind ours, which publishes them.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.conformance_support import CONFORMANCE, INSPECTOR, fixtures, install_program, run_node
from tests.rest_support import serve_process
from tests.support import PROGRAM, configure, environment

SUMMARY = re.compile(r"^([✓✗]) ([\w-]+): (\d+) passed, (\d+) failed", re.MULTILINE)
TASKS = "tasks-"  # an extension that is not scored, and that we do not have
SCENARIOS = {"2026-07-28": 50, "2025-11-25": 33}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("revision", "behind"), [("2026-07-28", "modern"), ("2025-11-25", "modern"), ("2025-11-25", "legacy")]
)
def test_the_conformance_suite_passes(tmp_path: Path, revision: str, behind: str) -> None:
    suite = install_program(CONFORMANCE) / "dist" / "index.js"
    configure(tmp_path, yaml.safe_dump({"servers": {"fixtures": fixtures(behind)}}))
    with serve_process(tmp_path, "--expose", "fixtures") as (_, said):
        done = run_node(suite, "server", "--url", f"{said['url']}/mcp", "--requirements", revision)
    results = {name: int(failed) for _, name, _, failed in SUMMARY.findall(done.stdout)}
    assert len(results) == SCENARIOS[revision], done.stdout[-3000:] + done.stderr
    failed = [name for name, number in results.items() if number and not name.startswith(TASKS)]
    assert failed == [], done.stdout[-6000:]
    assert done.returncode == 0


# --- Inspector -----------------------------------------------------------------------------------------------------


def inspected(home: Path, *arguments: str) -> Any:
    """What Inspector prints, which finds nothing to complain of."""
    script = install_program(INSPECTOR) / "clients" / "launcher" / "build" / "index.js"
    done = run_node(script, "--cli", *arguments, cwd=home, env=environment(home))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr + done.stdout
    return json.loads(done.stdout)


@pytest.mark.slow
def test_inspector_is_content_over_standard_input(tmp_path: Path) -> None:
    listed = inspected(tmp_path, PROGRAM, "--method", "tools/list", "--strict")
    assert [each["name"] for each in listed["tools"]] == ["run"]
    called = inspected(tmp_path, PROGRAM, "--method", "tools/call", "--tool-name", "run", "--tool-arg", "command=6 * 7")
    assert called["content"][0]["text"] == "42"


@pytest.mark.slow
def test_inspector_is_content_over_http(tmp_path: Path) -> None:
    configure(tmp_path, yaml.safe_dump({"servers": {"fixtures": fixtures()}}))
    with serve_process(tmp_path, "--expose", "fixtures", "machine") as (_, said):
        address = [f"{said['url']}/mcp", "--transport", "http"]
        listed = inspected(tmp_path, *address, "--method", "tools/list", "--strict")
        assert {"run", "test_simple_text", "now"} <= {each["name"] for each in listed["tools"]}
        run = ["--method", "tools/call", "--tool-name", "run", "--tool-arg", "command=6 * 7"]
        assert inspected(tmp_path, *address, *run)["content"][0]["text"] == "42"
        direct = inspected(tmp_path, *address, "--method", "tools/call", "--tool-name", "test_simple_text")
        assert direct["content"][0]["text"] == "This is a simple text response for testing."
        assert inspected(tmp_path, *address, "--method", "resources/list")["resources"][0]["uri"] == "ot://tools"
        assert inspected(tmp_path, *address, "--method", "prompts/list")["prompts"]
