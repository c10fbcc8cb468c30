"""Test that every route that changes something asks who may: each operation of the OpenAPI document
is tried.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.rest_support import Rest, http_draft, serve_app

from onetool.util.token_ids import hash_token

AGENTS = {
    "without write": {"permissions": ["read", "network"]},
    "read-only": {"permissions": ["read", "write", "network"], "policy": "read-only"},
    "denying": {
        "permissions": ["read", "write", "network"],
        "policy": [{"effect": "write", "decision": "deny"}],
    },
}
CHANGING = {"post", "put", "patch", "delete"}
# They call tools, which are authorized by the bus, check a draft, or sign a browser in with a code.
CALLS = {
    ("post", "/api/run"),
    ("post", "/api/tools/{name}/call"),
    ("post", "/tools/bundles/{bundleID}/tools/{toolSlug}/version/{version}/invoke"),
    ("post", "/api/agents/{name}/tools"),
    ("post", "/api/agents/{name}/check"),
    ("post", "/api/session"),
    ("delete", "/api/session"),
}
# Local requests without a token may change these; all other routes need a scope.
STORED = ("/tools/", "/api/tools/", "/api/packs/", "/api/import", "/api/request-preview")
NAMES = {
    "/api/tools/": "rain.now",
    "/api/packs/": "rain",
    "/api/servers/": "web",
    "/api/agents/": "read-only",
}


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rest]:
    tokens = [{"name": name, "hash": hash_token(f"ot_{name}"), "agent": name} for name in AGENTS]
    servers = {"web": {"url": "https://example.com/mcp", "enabled": False}}
    settings = {"auth": {"tokens": tokens}, "agents": AGENTS, "servers": servers}
    with serve_app(tmp_path_factory.mktemp("home"), settings) as served:
        yield served.rest


@pytest.fixture(scope="module")
def operations(rest: Rest) -> list[tuple[str, str, str]]:
    """Return the method, the path and the URL of an existing thing for each operation that changes
    something.
    """
    bundle = rest.bundle("rain")
    rest.tool(bundle, "now", "1", **http_draft("https://example.com/now"))
    values = {
        "bundleID": bundle.rpartition("/")[2],
        "toolSlug": "now",
        "version": "1",
        "runID": f"r_{'0' * 32}",
    }
    found = []
    for path, methods in rest.get("/openapi.json")["paths"].items():
        name = next((name for start, name in NAMES.items() if path.startswith(start)), "any")
        url = fill(path, {**values, "name": name})
        found += [
            (method, path, url)
            for method in methods.keys() & CHANGING
            if (method, path) not in CALLS
        ]
    return found


def fill(path: str, values: dict[str, str]) -> str:
    """Return the path with these values of its parameters; the others are unknown things."""
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], "any"), path)


def send(rest: Rest, method: str, url: str, token: str) -> tuple[int, Any]:
    headers = {"authorization": f"Bearer ot_{token}"} if token else {}
    answer = rest.client.request(method, url, json={}, headers=headers)
    return answer.status_code, answer.json().get("error", {}).get("code")


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_that_may_not_write_changes_nothing(
    rest: Rest, operations: list[tuple[str, str, str]], agent: str
) -> None:
    assert len(operations) > 25
    for method, path, url in operations:
        code = "permission_denied" if path.startswith(STORED) else "forbidden"
        assert send(rest, method, url, agent) == (403, code), (method, path)


def test_a_request_without_a_token_changes_stored_tools_only(
    rest: Rest, operations: list[tuple[str, str, str]]
) -> None:
    for method, path, url in operations:
        if not path.startswith(STORED):
            assert send(rest, method, url, "") == (403, "forbidden"), (method, path)
