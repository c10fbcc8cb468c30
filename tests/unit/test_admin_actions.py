"""Test the declarations of what people can do, and where commands run."""

import ast
import inspect
from pathlib import Path

import onetool.cli
from onetool.admin.action import READ, WRITE
from onetool.cli.main import COMMANDS, can_be_remote, load_command
from onetool.daemon_client import COMMANDS as SENT
from onetool.transports.http.route_table import IMPORT_ROUTES, ROUTES, STORED_ROUTES, TOOL_ROUTES
from onetool.util.token_ids import SCOPES

ALL_ROUTES = (*STORED_ROUTES, *TOOL_ROUTES, *IMPORT_ROUTES, *ROUTES)
COMMAND_FILES = list(Path(onetool.cli.__file__).parent.rglob("*.py"))
ONLY_OVER_REST = {
    *("get_server", "get_bundle", "get_tool", "get_pack", "list_packs", "delete_bundle"),  # commands use lists
    *("start_server", "stop_server"),  # connections of the server that gets the request
    *("list_agent_tools", "preview_agent_tools", "preview_request"),  # of a draft in the admin UI
    *("put_bundle", "put_tool", "add_requirements"),  # commands import documents
    *("list_bundles", "list_tools", "list_runs"),  # commands list everything, without pages
    "import_bundle",  # commands show the difference first, then call a part of it
    *("search_tools", "complete_name"),  # commands search with the bus, and complete without an application
    *("read_result", "read_medium"),  # code reads them with `ot`
    "set_hosts",  # commands add and remove
    "sign_out",  # of the agent of the request; commands sign out all agents
    *("show_health", "make_fix"),  # `onetool doctor` also checks what an application cannot see
}
ONLY_COMMANDS = {
    *("serve", "daemon", "worker", "reload", "doctor", "demo", "ui"),  # processes of this machine
    *("init", "connect", "import", "dev", "test", "completion", "backup", "store"),  # files of this machine
    *("trust", "untrust"),
    *("run", "call", "search", "help"),  # the bus, like `/api/run` and `/api/tools`
    *("approve", "reject"),  # `onetool.cli.approver` asks in the terminal, then calls the function of the route
    *("login", "logout"),  # in the browser of this machine
    "snippets",
}


def test_each_route_has_an_action_that_says_what_it_needs_and_does() -> None:
    for route in ALL_ROUTES:
        action = route.action
        assert action.needs in {"", READ, WRITE, *SCOPES}, action.name
        assert bool(action.purpose) == (action.needs in SCOPES), action.name
        assert action.summary, action.name


def test_commands_call_the_functions_of_routes() -> None:
    called = {name for file in COMMAND_FILES for name in find_imports(file.read_text(encoding="utf-8"))}
    assert list_actions() - called == ONLY_OVER_REST


def test_each_other_command_calls_the_function_of_a_route() -> None:
    sources = {name: inspect.getsource(load_command(name)) for name in COMMANDS}
    assert {
        name for name, source in sources.items() if list_actions().isdisjoint(find_imports(source))
    } == ONLY_COMMANDS


def list_actions() -> set[str]:
    return {route.action.name for route in ALL_ROUTES}


def find_imports(source: str) -> set[str]:
    """Return the names that code takes from the modules of `onetool.admin`."""
    nodes = list(ast.walk(ast.parse(source)))
    names: set[str] = set()
    modules: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("onetool.admin"):
            imported = modules if node.module == "onetool.admin" else names
            imported |= {alias.name for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            names.add(node.attr)
    return names


def test_the_client_sends_exactly_the_commands_that_may_run_in_the_shared_server() -> None:
    modules = {name: load_command(name) for name in COMMANDS}
    assert set(SENT) == {name for name, module in modules.items() if can_be_remote(module)}
