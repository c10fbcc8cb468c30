"""Test that what an upstream server lists, and what clients read of it directly, cannot freeze the
server.

As in `test_foreign_data.py`, a neighbor runs `1 + 1` on the same server meanwhile.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from tests.support import (
    PROGRAM,
    Connection,
    configure,
    connect,
    get_texts,
    run_attack,
    run_beside_neighbor,
)

SERVER = Path(__file__).parent / "servers" / "catalog.py"
SETTINGS = {
    "servers": {
        "foreign": {
            "command": sys.executable,
            "args": [str(SERVER)],
            "timeout": 60,
            "sanitize": True,
        }
    },
    "execution": {"timeout": 60},
    "agents": {"default": {"permissions": ["read", "write", "network"]}},
}
# A method of the client with its arguments, and part of the answer.
READS: dict[str, tuple[str, tuple[Any, ...], str]] = {
    "tools": ("list_tools", (), "t_1"),
    "the list of tools": ("read_resource", ("ot://tools",), "foreign.t_4999"),
    "a tool": ("read_resource", ("ot://tool/foreign.t_1",), "foreign.t_1"),
    "resource templates": ("list_resource_templates", (), "x://2999"),
    "a resource": ("read_resource", ("x://1",), "%2525%2525"),
    "prompts": ("list_prompts", (), "p499"),
    "a prompt": ("get_prompt", ("p1", {"a": "x"}), "[REDACTED:"),
    "a result": ("call_tool", ("t_1", {}), "[cut: "),
    "a completion": (
        "complete",
        (types.PromptReference(type="ref/prompt", name="p1"), {"name": "a", "value": "x"}),
        "['x']",
    ),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    home = tmp_path_factory.mktemp("home")
    configure(home, json.dumps(SETTINGS))
    (home / ".onetool" / "secrets.yaml").write_text("KEY: " + "k9" * 1_000)
    (home / ".onetool" / "secrets.yaml").chmod(0o600)
    with connect(home, command=(PROGRAM, "--expose", "foreign")) as client:
        assert get_texts(client.run("len(ot.tools(pattern='foreign.'))"))[-1] == "5000"
        client.run(
            "ot.prompt(server='foreign')"
        )  # modules loaded at the first use delay other runs once
        yield client


@pytest.mark.parametrize("case", READS)
def test_what_a_client_reads_does_not_delay_others(client: Connection, case: str) -> None:
    method, arguments, expected = READS[case]
    reading = client.portal.start_task_soon(getattr(client.client, method), *arguments)
    assert expected in str(run_beside_neighbor(client, reading))


@pytest.mark.parametrize("code", ["ot.resources(server='foreign')", "ot.prompt(server='foreign')"])
def test_a_list_in_a_run_does_not_delay_others(client: Connection, code: str) -> None:
    assert "True" in run_attack(client, f"len({code}) >= 5_000")


def test_a_stored_result_of_a_server_does_not_delay_others(client: Connection) -> None:
    answer = "\n".join(get_texts(client.run("foreign.t_2()")))
    match = re.search(r'"handle":"(\w+)"', answer)
    assert match is not None, answer
    uri = f"ot://result/{match[1]}"
    reading = client.portal.start_task_soon(client.client.read_resource, uri)
    assert "%2525" in str(run_beside_neighbor(client, reading))
