"""What every test may lean on: the `spec` mark, and the rule for programs that a machine may lack."""

import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from tests.http_support import Site


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "spec(*ids): the promises of tests/spec/catalog that a test keeps")
    config.addinivalue_line("markers", "slow: takes seconds; `make` leaves it to the whole run")
    # How long one example takes says more about the machine than about the code.
    examples = 500 if os.environ.get("ONETOOL_NIGHTLY") == "1" else 50
    settings.register_profile("patient", deadline=None, max_examples=examples)
    settings.load_profile("patient")
    # Compiled modules are kept, also for the workers and programs that tests start: to compile all that a worker of
    # pytest imports takes it longer than a minute of tests.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # Children of a process in the background would not hear Ctrl-C, and some tests press it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # `import tests.…` must work for plain `pytest` as it does for `python -m pytest`
    sys.path.insert(0, str(config.rootpath))
    from tests.forked_program import patch_popen

    patch_popen()


def find_program(name: str) -> str:
    """The path of the program. Without it a person's test is skipped, and one under CI=true fails."""
    path = shutil.which(name)
    if path is None:
        refuse = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        refuse(f"{name} is not installed")
    return path


@pytest.fixture(scope="session")
def needs() -> Callable[[str], str]:
    """The rule above for tests and fixtures that cannot do without a program."""
    return find_program


@pytest.fixture(scope="module")
def shared_site() -> Iterator["Site"]:
    from tests.http_support import served

    with served() as site:
        yield site


@pytest.fixture
def site(shared_site: "Site") -> "Site":
    """A web server that has been asked nothing yet."""
    for kept in (shared_site.requests, shared_site.asked, shared_site.hung_up):
        kept.clear()
    return shared_site


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """A real one, for the page."""
    from tests.page_support import chromium

    with chromium() as found:
        yield found


@pytest.fixture
def silent_index() -> Iterator[str]:
    """An index of packages that takes every connection and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/simple"
