"""Markers, fixtures for all tests, and the rule for missing programs."""

import gc
import os
import shutil
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from tests.http_support import Site
    from tests.postgres_support import PostgresServer

NEIGHBOR_FUNCTIONS = {"run_beside_neighbor", "watch_neighbor"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--isolation",
        choices=["auto", "wasm"],
        default=os.environ.get("ONETOOL_TEST_ISOLATION", "auto"),
        help="isolation of runs in tests that do not set execution.isolation",
    )
    parser.addoption(
        "--costs",
        action="store_true",
        help="print the processor time of directories, files and tests",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Measure the delay of a neighbor again if it was too long, up to three times in all.

    The least of several measurements is what the server does; the rest is the machine.
    """
    if NEIGHBOR_FUNCTIONS.isdisjoint(vars(pyfuncitem.module)):
        return None
    from tests.support import NeighborDelayed

    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    for _ in range(2):
        try:
            pyfuncitem.obj(**arguments)
        except NeighborDelayed as delayed:
            pyfuncitem.add_report_section("call", "delays of a neighbor", str(delayed))
        else:
            return True
    pyfuncitem.obj(**arguments)
    return True


def pytest_configure(config: pytest.Config) -> None:
    os.environ["ONETOOL_TEST_ISOLATION"] = config.getoption(
        "isolation"
    )  # also for workers of pytest
    config.addinivalue_line(
        "markers", "spec(*ids): the requirements of tests/spec/catalog that a test verifies"
    )
    config.addinivalue_line("markers", "slow: takes seconds; `make` leaves it to the whole run")
    config.addinivalue_line(
        "markers", "nightly: takes too long for every change; only ONETOOL_NIGHTLY=1 runs it"
    )
    config.addinivalue_line(
        "markers", "sampled(every): without ONETOOL_NIGHTLY=1, one in so many cases is run"
    )
    config.addinivalue_line(
        "markers", "kernel: of the isolation by the kernel, or of what only a process can do"
    )
    # How long one example takes says more about the machine than about the code.
    examples = 500 if os.environ.get("ONETOOL_NIGHTLY") == "1" else 15
    settings.register_profile("patient", deadline=None, max_examples=examples)
    settings.load_profile("patient")
    # Keep compiled modules, also for the programs that tests start: compiling all imports of a
    # pytest worker takes longer than a minute of tests.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # Children of a background process would ignore SIGINT, which some tests send.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # `import tests.…` must work for plain `pytest` as it does for `python -m pytest`
    sys.path.insert(0, str(config.rootpath))
    from tests.costs import CostReport
    from tests.forked_program import patch_popen

    patch_popen()
    if config.getoption("costs"):
        config.pluginmanager.register(CostReport())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out: set[pytest.Item] = set()
    if config.getoption("isolation") == "wasm":
        left_out.update(item for item in items if "kernel" in item.keywords)
    is_named = any("::" in argument for argument in config.args)  # then it is wanted
    if os.environ.get("ONETOOL_NIGHTLY") != "1" and not is_named:
        left_out.update(list_nightly(items))
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def list_nightly(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Return the tests and the cases of tests that take too long for every change."""
    seen: Counter[str] = Counter()
    for item in items:
        function = item.nodeid.partition("[")[0]
        sampled = item.get_closest_marker("sampled")
        if item.get_closest_marker("nightly") or (sampled and seen[function] % sampled.args[0]):
            yield item
        seen[function] += 1


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect garbage as seldom as a server does, and never look at modules and tests, which are no
    garbage.

    Collections took a tenth of the processor time of a worker.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)
        gc.enable()


def find_program(name: str) -> str:
    """Return the path of a program. If it is missing, skip the test, or fail it with CI=true."""
    path = shutil.which(name)
    if path is None:
        stop = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        stop(f"{name} is not installed")
    return path


@pytest.fixture(scope="session")
def needs() -> Callable[[str], str]:
    """Return `find_program`, for tests and fixtures that require a program."""
    return find_program


@pytest.fixture(scope="module")
def shared_site() -> Iterator["Site"]:
    from tests.http_support import serve_site

    with serve_site() as site:
        yield site


@pytest.fixture
def site(shared_site: "Site") -> "Site":
    """Return a web server without recorded requests."""
    for kept in (shared_site.requests, shared_site.asked, shared_site.hung_up):
        kept.clear()
    return shared_site


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[PostgresServer]":
    """Yield a server of PostgreSQL that the workers of pytest share."""
    from tests.postgres_support import share_server

    with share_server(tmp_path_factory) as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: "PostgresServer") -> Iterator[str]:
    """Yield the URL of a fresh, empty database."""
    name = postgres_server.create_database()
    yield postgres_server.url(name)
    postgres_server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """Yield a real browser, for the admin UI."""
    from tests.ui_support import launch_chromium

    with launch_chromium() as browser:
        yield browser


@pytest.fixture
def silent_index() -> Iterator[str]:
    """Start a package index that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/simple"
