"""Test the declarations of what people can do, and where commands run."""

import re
from pathlib import Path

import onetool.cli
from onetool.admin.action import WRITE
from onetool.cli.main import COMMANDS, can_be_remote, load_command
from onetool.daemon_client import COMMANDS as SENT
from onetool.transports.http.route_table import ROUTES
from onetool.util.token_ids import SCOPES

COMMAND_FILES = list(Path(onetool.cli.__file__).parent.glob("*.py"))
SHARED = {f"onetool.admin.{name}" for name in ("agents", "secrets", "servers", "settings", "sign_ins", "tokens")}
ONLY_OVER_REST = {
    "get_server",
    "start_server",  # connections of the server that gets the request
    "stop_server",
    "list_agent_tools",
    "preview_agent_tools",  # of a draft in the admin UI
    "set_hosts",  # commands add and remove
    "sign_out",  # of the agent of the request; commands sign out all agents
}


def test_each_route_has_an_action_that_says_what_it_needs_and_does() -> None:
    for route in ROUTES:
        action = route.action
        assert action.needs in {"", WRITE, *SCOPES}, action.name
        assert bool(action.purpose) == (action.needs in SCOPES), action.name
        assert action.summary, action.name


def test_commands_call_the_functions_of_routes() -> None:
    text = "\n".join(file.read_text(encoding="utf-8") for file in COMMAND_FILES)
    names = set(re.findall(r"\w+", text))
    shared = [route.action for route in ROUTES if route.action.function.__module__ in SHARED]
    assert {action.name for action in shared if action.name not in names} == ONLY_OVER_REST


def test_the_client_sends_exactly_the_commands_that_may_run_in_the_shared_server() -> None:
    modules = {name: load_command(name) for name in COMMANDS}
    assert set(SENT) == {name for name, module in modules.items() if can_be_remote(module)}
