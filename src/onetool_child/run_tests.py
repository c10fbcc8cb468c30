"""Runs the tests of a pack with pytest, inside a worker that has loaded the pack."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing `typing` would double the start-up time of a worker
if TYPE_CHECKING:
    from typing import Any

    from onetool_child.json_types import JsonObject

CONFIG_NAMES = ("tests/pytest.ini", "pytest.ini")


def run_tests(directory: str, tests: list[str], packages: str) -> JsonObject:
    """Run files or directories of tests; return the exit status of pytest and the outcome of each
    test.

    `directory` is the directory of the pack. `packages` contains pytest, for environments that do
    not have it.
    """
    sys.path.append(packages)
    import builtins
    import importlib

    import pytest

    vars(builtins)["ot"] = importlib.import_module("ot")  # predefined in tests too, as in the pack

    found = (os.path.join(directory, name) for name in CONFIG_NAMES)  # noqa: PTH118 - importing pathlib is slow
    # Files further up belong to another project.
    config = next(filter(os.path.isfile, found), os.devnull)
    bounds = ["-c", config, "--rootdir", directory, "--confcutdir", directory]
    # Other ways to capture output need a temporary directory, which a sandbox may not have.
    options = ["-q", "--color=no", "--capture=sys", "-p", "no:cacheprovider"]
    collector = OutcomeCollector()
    status = pytest.main([*options, *bounds, *tests], plugins=[collector])
    return {"status": int(status), "tests": list(collector.tests.values())}


class OutcomeCollector:
    """A pytest plugin that records the outcome of each test."""

    def __init__(self) -> None:
        self.tests: dict[str, JsonObject] = {}

    def pytest_load_initial_conftests(self) -> None:
        """Write no bytecode beside the tests. That of pytest itself has been written by now."""
        sys.dont_write_bytecode = True

    def pytest_collectreport(self, report: Any) -> None:
        """Record a file that cannot be imported or skips all of its tests."""
        if not report.passed:
            self._record(report, 0.0)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Record a phase of a test: its setup, the call or its teardown."""
        self._record(report, report.duration)

    def _record(self, report: Any, seconds: float) -> None:
        new = {"name": report.nodeid, "status": "ok", "seconds": 0.0, "detail": ""}
        test = self.tests.setdefault(report.nodeid, new)
        test["seconds"] += seconds
        if report.failed:
            test.update(status="failed", detail=report.longreprtext)
        elif report.skipped and test["status"] == "ok":
            test.update(status="skipped", detail=_get_reason(report))


def _get_reason(report: Any) -> str:
    if hasattr(report, "wasxfail"):
        return f"expected failure: {report.wasxfail}"
    return str(report.longrepr[2]).removeprefix("Skipped: ")
