"""What the tests cost: the option --costs prints the processor time of directories, files and
tests.

The time of a test includes its fixtures and the processes that have ended in the meantime.
Processes that nobody waits for are missing.
"""

import resource
from collections.abc import Generator
from dataclasses import dataclass

import pytest

COST = "processor seconds"
MAX_ROWS = 60


@dataclass
class Cost:
    processor_seconds: float = 0.0
    seconds: float = 0.0
    tests: int = 0


def count_processor_seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class CostReport:
    """Measures each test in the worker that runs it, and prints the sums in the process that the
    worker reports to.
    """

    def __init__(self) -> None:
        self._before = 0.0
        self._costs: dict[str, Cost] = {}

    def pytest_collection_finish(self) -> None:
        self._before = count_processor_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            now = count_processor_seconds()
            report.user_properties.append((COST, now - self._before))
            self._before = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cost = self._costs.setdefault(report.nodeid, Cost(tests=1))
        cost.seconds += report.duration
        for name, value in report.user_properties:
            if name == COST and isinstance(value, float):
                cost.processor_seconds += value

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for title, depth in (("directory", 0), ("file", 1), ("test", 2)):
            terminalreporter.section(
                f"processor seconds, seconds and number of tests of each {title}"
            )
            for name, cost in self._sum_up(depth)[:MAX_ROWS]:
                terminalreporter.write_line(
                    f"{cost.processor_seconds:8.1f} {cost.seconds:8.1f} {cost.tests:6}  {name}"
                )

    def _sum_up(self, depth: int) -> list[tuple[str, Cost]]:
        """Return the costs of directories, files or tests; the most expensive ones first."""
        sums: dict[str, Cost] = {}
        for test, cost in self._costs.items():
            file = test.partition("::")[0]
            name = (file.rpartition("/")[0], file, test)[depth]
            total = sums.setdefault(name, Cost())
            total.processor_seconds += cost.processor_seconds
            total.seconds += cost.seconds
            total.tests += cost.tests
        return sorted(sums.items(), key=lambda item: -item[1].processor_seconds)
