"""Test the declarations of what people can do, and where commands run."""

from onetool.admin.action import WRITE
from onetool.cli.main import COMMANDS, can_be_remote, load_command
from onetool.daemon_client import COMMANDS as SENT
from onetool.transports.http.route_table import ROUTES
from onetool.util.token_ids import SCOPES


def test_each_route_has_an_action_that_says_what_it_needs_and_does() -> None:
    for route in ROUTES:
        action = route.action
        assert action.needs in {"", WRITE, *SCOPES}, action.name
        assert bool(action.purpose) == (action.needs in SCOPES), action.name
        assert action.summary, action.name


def test_the_client_sends_exactly_the_commands_that_may_run_in_the_shared_server() -> None:
    modules = {name: load_command(name) for name in COMMANDS}
    assert set(SENT) == {name for name, module in modules.items() if can_be_remote(module)}
