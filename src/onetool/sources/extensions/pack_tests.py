"""Runs the tests beside a pack with pytest, in a worker with the environment, settings and sandbox
of the pack.
"""

from dataclasses import replace
from itertools import islice
from pathlib import Path

from anyio.to_thread import run_sync as run_in_thread

import onetool_child
from onetool.errors import ToolError
from onetool.processes.process import Printed
from onetool.sources.extensions.environments import ScriptHeader
from onetool.sources.extensions.static_analysis import SUFFIX, Stamp, stamp_file
from onetool.sources.extensions.worker import CallTool, Worker, WorkerLaunch, WorkerUser
from onetool.util.context import ToolContext
from onetool.util.large_data import RawJson
from onetool_child.json_types import JsonObject

TESTS_DIRECTORY = "tests"
PYTEST = ScriptHeader('dependencies = ["pytest>=8"]')
MAX_SECONDS = 3600.0
MAX_FILES = 1_000  # of tests that are watched
SUCCESSFUL = {0, 5}  # exit statuses of pytest: all tests passed, no tests found


def find_tests(file: Path) -> list[Path]:
    """Return the tests of a pack: `tests/` beside it, or its files there if several packs share the
    directory.
    """
    directory = file.parent / TESTS_DIRECTORY
    if len(list(file.parent.glob(f"*{SUFFIX}.py"))) > 1:
        name = file.stem.removesuffix(SUFFIX)
        return [*directory.glob(f"test_{name}.py"), *sorted(directory.glob(f"test_{name}_*.py"))]
    return [directory] if directory.is_dir() else []


def stamp_tests(file: Path) -> frozenset[tuple[Path, Stamp]]:
    """Return the stamps of the Python files in `tests/` beside the pack."""
    found = islice((file.parent / TESTS_DIRECTORY).rglob("*.py"), MAX_FILES)
    return frozenset((path, stamp_file(path)) for path in found)


async def run_tests(
    launch: WorkerLaunch,
    start_seconds: float,
    packages: Path,
    call_tool: CallTool,
    context: ToolContext,
) -> list[JsonObject]:
    """Run the tests of a pack; return name, status, seconds and detail of each.

    `packages` contains pytest.
    """
    sandbox = launch.sandbox
    if sandbox is not None:
        readable = (str(Path(onetool_child.__file__).parent), str(packages))
        sandbox = {**sandbox, "read": [*sandbox["read"], *readable]}
    output = Printed()
    user = WorkerUser(call_tool, lambda text: output.add(text.encode()))
    worker = Worker(replace(launch, sandbox=sandbox, runs_tests=True))
    worker.users.add(user)
    tests = [str(path) for path in find_tests(launch.file)]
    arguments = {"directory": str(launch.file.parent), "tests": tests, "packages": str(packages)}
    try:
        await worker.start(user, start_seconds)
        result = await worker.call(user, "run_tests", arguments, context, MAX_SECONDS)
    finally:
        await worker.release(user)
    if isinstance(result, RawJson):
        result = await run_in_thread(result.parse, "run_tests")
    outcomes: list[JsonObject] = result["tests"]
    if result["status"] not in SUCCESSFUL and all(test["status"] != "failed" for test in outcomes):
        raise ToolError(f"pytest exited with status {result['status']}:\n{output.tail}")
    return outcomes
