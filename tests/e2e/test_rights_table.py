"""Test the tables of docs/security.md: who may call which route, and for whom a command acts.

Each operation of the OpenAPI document is sent without a token and with a token of each scope, under
three policies. Its body is empty and the things that it names do not exist, so it changes nothing.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import httpx2
import pytest
from tests.rest_support import serve_process
from tests.support import TIMEOUT_SECONDS, configure

from onetool.cli.main import COMMANDS, make_parser
from onetool.util.token_ids import SCOPES, hash_token

SECURITY = Path(__file__).parents[2] / "docs" / "security.md"
POLICIES = ("open", "ask-writes", "read-only")
NO_TOKEN = ""
CALLERS = (NO_TOKEN, *SCOPES)
METHODS = ("get", "put", "post", "patch", "delete")
DENIED = {"unauthorized", "forbidden", "permission_denied"}
DELEGATED = {
    "/api/session"
}  # for any caller: it takes a one-time code, and describes or ends the caller's session


class Operation(NamedTuple):
    method: str
    path: str

    @property
    def area(self) -> str:
        """The path up to the kind of thing, such as `/api/servers`."""
        return "/".join(self.path.split("/")[:3])


Rights = tuple[str, ...]  # a table cell for each caller


def describe_rights(policies: Mapping[str, bool]) -> str:
    if all(policies.values()):
        return "yes"
    allowed = [policy for policy in POLICIES if policies[policy]]
    return f"yes, not under `{'`, `'.join(set(POLICIES).difference(allowed))}`" if allowed else "no"


def is_allowed(client: httpx2.Client, operation: Operation, token: str) -> bool:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    url = re.sub(r"\{\w+\}", "any", operation.path)
    body: dict[str, object] | None = None if operation.method == "get" else {}
    with client.stream(operation.method.upper(), url, headers=headers, json=body) as answer:
        if answer.status_code not in {401, 403}:
            return True
        assert json.loads(answer.read())["error"]["code"] in DENIED
        return False


def try_operations(home: Path, policy: str) -> dict[tuple[Operation, str], bool]:
    tokens = [
        {"name": scope, "hash": hash_token(f"ot_{scope}"), "scope": scope} for scope in SCOPES
    ]
    agent = {"permissions": ["read", "write", "network"], "policy": policy}
    configure(home, json.dumps({"auth": {"tokens": tokens}, "agents": {"default": agent}}))
    allowed = {}
    with (
        serve_process(home) as (_, started),
        httpx2.Client(base_url=started["url"], timeout=TIMEOUT_SECONDS) as client,
    ):
        for path, methods in client.get("/openapi.json").json()["paths"].items():
            for method in methods.keys() & set(METHODS):
                operation = Operation(method, path)
                for caller in CALLERS:
                    token = f"ot_{caller}" if caller else ""
                    allowed[operation, caller] = is_allowed(client, operation, token)
    return allowed


@pytest.fixture(scope="module")
def rights(tmp_path_factory: pytest.TempPathFactory) -> dict[Operation, Rights]:
    """Return the rights of each operation, as they were tried."""
    tried = {policy: try_operations(tmp_path_factory.mktemp(policy), policy) for policy in POLICIES}
    operations = sorted({operation for operation, _ in tried["open"]})
    return {
        operation: tuple(
            describe_rights({policy: tried[policy][operation, caller] for policy in POLICIES})
            for caller in CALLERS
        )
        for operation in operations
        if operation.path not in DELEGATED
    }


def render_routes(rights: Mapping[Operation, Rights]) -> Iterator[str]:
    """Yield the table.

    Methods of an area with the same rights share a row, unless a path differs from the others.
    """
    by_method: dict[tuple[str, str], set[Rights]] = defaultdict(set)
    for operation, cells in rights.items():
        by_method[operation.area, operation.method].add(cells)
    rows: dict[tuple[str, Rights], list[str]] = defaultdict(list)
    for operation, cells in rights.items():
        is_uniform = len(by_method[operation.area, operation.method]) == 1
        methods = rows[operation.area if is_uniform else operation.path, cells]
        if operation.method.upper() not in methods:
            methods.append(operation.method.upper())
    yield "| route | no token | " + " | ".join(f"`{scope}`" for scope in SCOPES) + " |"
    yield "|---" * (len(CALLERS) + 1) + "|"
    for (path, cells), methods in sorted(rows.items()):
        ordered = sorted(methods, key=lambda method: METHODS.index(method.lower()))
        yield f"| `{path}` {', '.join(ordered)} | " + " | ".join(cells) + " |"


def render_commands() -> Iterator[str]:
    """Yield the table of commands that do not act for the owner."""
    yield "| command | acts for |"
    yield "|---|---|"
    for name in COMMANDS:
        parser = make_parser(name)
        options = {
            option: action.metavar for action in parser._actions for option in action.option_strings
        }
        if options.get("--token") == "TOKEN":
            yield (
                f"| `onetool {name}` | the person at the terminal, or a token of scope `approve`"
                " (`--token`) |"
            )
        elif options.get("--agent") == "NAME":
            yield (
                f"| `onetool {name}` | the agent of `--agent`, with its permissions and its"
                " policy |"
            )


def read_table(heading: str) -> list[str]:
    """Return the lines of the first table under a heading."""
    section = SECURITY.read_text(encoding="utf-8").partition(f"\n### {heading}\n")[2]
    lines = section.partition("\n#")[0].splitlines()
    return [line for line in lines if line.startswith("|")]


def test_the_table_of_routes_is_what_the_server_allows(rights: dict[Operation, Rights]) -> None:
    assert len(rights) > 60
    assert read_table("Who may call which route") == list(render_routes(rights))


def test_the_table_of_commands_is_what_they_accept() -> None:
    assert read_table("For whom a command acts") == list(render_commands())
