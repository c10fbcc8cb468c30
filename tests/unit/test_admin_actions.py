"""Test that REST and the command line can do the same, and where commands run."""

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from starlette.types import Receive, Scope, Send
from tests.support import App, open_app

from onetool.admin.action import READ, WRITE, Person
from onetool.cli.main import COMMANDS, load_command
from onetool.processes.daemon_client import SHARED_COMMANDS
from onetool.server.http.route_table import ACTION_ROUTES, build_actions
from onetool.util.token_ids import SCOPES

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "rest.md"
# Routes that are not actions. `onetool api` has all others.
HANDLERS = {
    "POST /api/run": "streams a run; `onetool run`",
    "POST /api/tools/{name}/call": "the path of a call; `onetool call`",
    "POST /tools/bundles/{bundleID}/tools/{toolSlug}/version/{version}/invoke": (
        "the path of a call; `onetool call`"
    ),
    "POST /api/sign-ins/{name}": "sets a cookie of the browser; `onetool login`",
    "GET /api/session": "of a browser",
    "POST /api/session": "of a browser; `onetool ui`",
    "DELETE /api/session": "of a browser",
    "GET /api/activity": "an endless stream",
    "GET /api/changes": "an endless stream",
    "GET /healthz": "of the server",
    "GET /readyz": "of the server; `onetool doctor`",
    "GET /metrics": "of the server",
}
# Decisions about what models want: the person confirms them at the terminal, or with a token.
DECISIONS = {
    "decide_calls": "onetool approve",
    "accept_tools": "onetool servers accept",
    "accept_snippet": "onetool snippets accept",
}
ONLY_COMMANDS = {
    *("serve", "daemon", "worker", "reload", "demo", "ui"),  # processes of this machine
    *("init", "connect", "dev", "test", "completion", "backup", "store"),  # files of this machine
    *("trust", "untrust"),
    *("run", "call", "search", "help"),  # the bus, like `/api/run`
    *("approve", "reject"),  # `onetool.cli.approver` asks, then calls the function of the route
    *("import", "doctor"),  # other modules of the command call the functions of the routes
    "login",  # in the browser of this machine
    "logout",  # of all agents, not of that of the request
    "api",  # all actions
}


def test_each_action_says_what_it_needs_and_does() -> None:
    for route in ACTION_ROUTES:
        action = route.action
        assert action.needs in {"", READ, WRITE, *SCOPES}, action.name
        assert bool(action.purpose) == (action.needs in SCOPES), action.name
        assert action.summary, action.name


def test_each_route_is_an_action_or_stays_for_a_reason() -> None:
    routes = set(re.findall(r"^\| `([A-Z]+ [^`]+)` \|", REFERENCE.read_text("utf-8"), re.MULTILINE))
    actions = {f"{route.method} {route.path}" for route in ACTION_ROUTES}
    assert routes == actions | HANDLERS.keys()
    assert actions.isdisjoint(HANDLERS)


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with open_app() as opened:
        yield opened


def test_the_command_line_can_do_what_rest_can(app: App) -> None:
    """Send a request to each route, as `onetool api` does.

    What it names does not exist, so it changes nothing.
    """
    actions = build_actions(app.onetool)

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"] = {"person": Person("user", "owner", transport="cli")}
        await actions(scope, receive, send)

    async def send_all() -> dict[str, str]:
        transport = httpx2.ASGITransport(app=serve)
        refused = {}
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for route in ACTION_ROUTES:
                path = re.sub(r"\{\w+\}", "any", route.path)
                async with client.stream(route.method, path, json={}) as response:
                    if response.is_error:
                        message = (await response.aread()).decode()
                        assert "no such path" not in message
                        if "a person has to confirm" in message:
                            refused[route.action.name] = message
        return refused

    refused = app.portal.call(send_all)
    assert refused.keys() == DECISIONS.keys()
    assert all(f"use `{DECISIONS[name]}`" in message for name, message in refused.items())


def test_each_other_command_calls_the_function_of_a_route() -> None:
    names = {route.action.name for route in ACTION_ROUTES}
    assert {name for name in COMMANDS if names.isdisjoint(find_imports(name))} == ONLY_COMMANDS


def find_imports(name: str) -> set[str]:
    """Return what the functions of a command import from the modules of `onetool.admin`."""
    command = load_command(name)
    first = command.add_arguments or command.execute or command.main
    assert first is not None
    tree = ast.parse(inspect.getsource(sys.modules[first.__module__]))
    functions = {node.name: node for node in tree.body if hasattr(node, "name")}
    steps = [
        step.__name__ for step in (command.add_arguments, command.execute, command.main) if step
    ]
    imports: set[str] = set()
    while steps:
        function = functions.pop(steps.pop(), None)
        for node in ast.walk(function) if function is not None else ():
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("onetool.admin"):
                imports |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Name):
                steps.append(node.id)
    return imports


def test_commands_that_the_client_sends_may_run_in_the_shared_server() -> None:
    for name in SHARED_COMMANDS:
        command = load_command(name)
        assert (command.main, command.is_guarded) == (None, False), name
    only_here = {
        name for name in COMMANDS if name not in SHARED_COMMANDS and load_command(name).main is None
    }
    assert only_here == {
        *("approve", "reject", "snippets"),  # a person decides
        "login",  # in the browser of this machine
        "disconnect",  # a server does not ask itself
    }
