"""The backends of extension packs, and the tests beside a pack.

`WorkerBackend` starts a worker on the first call, replaces it if it is lost or its file has
changed, and stops it when it is idle. After a failed start, callers get the same error until the
next attempt is due.

`QueueBackend` makes a call a job for workers on other machines. If its process ends, the job does
not, and repeating the call in another process follows the same job.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from anyio.to_thread import run_sync as run_in_thread

import onetool_child
from onetool.core.tool import Tool
from onetool.errors import ToolError, ToolTimeout
from onetool.processes.process import Printed
from onetool.processes.supervised import Supervised
from onetool.sources.extensions.environments import Report, WorkerLaunch
from onetool.sources.extensions.script_header import ScriptHeader
from onetool.sources.extensions.static_analysis import SUFFIX, Extension, Stamp, stamp_file
from onetool.sources.extensions.worker import CallTool, Worker, WorkerUser
from onetool.state.storage import JobRequest, Jobs
from onetool.util.context import CallClient, ToolContext
from onetool.util.large_data import RawJson
from onetool_child.json_types import JsonMapping, JsonObject

RUNNING = "running"
FAILED = "failed"
MAX_LOGGED_PER_SECOND = 2 << 20  # characters
Prepare = Callable[[Extension, Report], Awaitable[WorkerLaunch]]
TESTS_DIRECTORY = "tests"
PYTEST = ScriptHeader('dependencies = ["pytest>=8"]')
MAX_SECONDS = 3600.0
MAX_FILES = 1_000  # of tests that are watched
SUCCESSFUL = {0, 5}  # exit statuses of pytest: all tests passed, no tests found


class Timeouts(NamedTuple):
    """A pack's timeouts in seconds."""

    start: float
    call: float
    idle: float


class _OutputLog:
    """A logger for worker output, with a limit per second."""

    def __init__(self, log: Callable[..., None], pack: str) -> None:
        self._log = log
        self._pack = pack
        self._since = 0.0
        self._logged_chars = 0
        self._omitted = 0

    def __call__(self, text: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._since > 1:
            self._since = now
            self._logged_chars = 0
        self._logged_chars += len(text)
        if self._logged_chars > MAX_LOGGED_PER_SECOND:
            self._omitted += len(text)
            return
        if self._omitted:
            self._log(
                "worker.output", pack=self._pack, text=f"[{self._omitted} characters omitted]"
            )
            self._omitted = 0
        self._log("worker.output", pack=self._pack, text=text)


class WorkerBackend:
    """One extension pack's backend, with its worker.

    `get_worker` may return one that other applications use.
    """

    def __init__(
        self,
        extension: Extension,
        timeouts: Timeouts,
        prepare: Prepare,
        call_tool: CallTool,
        log: Callable[..., None],
        *,
        get_worker: Callable[[WorkerLaunch], Worker] = Worker,
        identity: Any = None,
    ) -> None:
        self.extension = extension
        self.timeouts = timeouts
        self._identity = identity  # of the settings that its tools see
        self._prepare = prepare
        self._log = log
        self._get_worker = get_worker
        self._user = WorkerUser(call_tool, _OutputLog(log, extension.pack))
        self._supervised = Supervised(
            extension.pack,
            self._start,
            self._stop,
            lambda worker: None if worker.users.is_calling(self._user) else timeouts.idle,
        )
        self._workers: set[Worker] = set()  # that have not ended
        self._listeners: list[Report] = []  # callers that wait for the start
        self._state = "not started"
        self._is_retired = self._is_closed = False

    def identify(self, _tool: Tool) -> Any:
        return [self.extension.identify(), self._identity]

    async def invoke(self, tool: Tool, args: JsonMapping, context: ToolContext) -> Any:
        worker = await self._ready_worker(context)
        try:
            return await worker.call(self._user, tool.short_name, args, context, self.timeouts.call)
        finally:
            self._supervised.last_use = asyncio.get_running_loop().time()
            if self._is_retired:  # while it was being started
                worker.leave(self._user)

    async def warm_up(self, context: ToolContext) -> None:
        """Start the worker; raise if that fails."""
        await self._ready_worker(context)

    @property
    def state(self) -> str:
        is_gone = self._state == RUNNING and self._supervised.live is None
        return "ended" if is_gone else self._state

    @property
    def failure(self) -> ToolError | None:
        """The last start's error, if it failed."""
        return self._supervised.failure

    def retire(self) -> None:
        """Stop using the worker because its file or settings have changed.

        Calls in flight complete.
        """
        self._is_retired = True
        if (worker := self._supervised.live) is not None:
            worker.leave(self._user)

    @property
    def is_over(self) -> bool:
        """Whether it was replaced and all its workers have ended, or are used by others only."""
        return self._is_retired and all(worker.is_done(self._user) for worker in self._workers)

    async def close(self) -> None:
        """End all workers, including retired ones with calls in flight.

        Other applications keep shared ones.
        """
        self._is_closed = True
        self.retire()
        if self._supervised.starting is not None:
            self._supervised.starting.cancel()
        await asyncio.gather(*(worker.release(self._user) for worker in self._workers))

    async def _ready_worker(self, context: ToolContext) -> Worker:
        if (worker := self._supervised.live) is not None:
            await worker.settle()  # replace a stuck worker, so that it does not delay the next call
        self._raise_if_blocked()
        report = context.client.progress
        if report is None or self._supervised.live is not None:
            return await self._supervised.get()
        self._listeners.append(report)
        try:
            return await self._supervised.get()
        finally:
            self._listeners.remove(report)

    def _raise_if_blocked(self) -> None:
        failure = self._supervised.failure
        seconds = self._supervised.wait_seconds
        if self._is_closed:
            raise ToolError(f"cannot start {self.extension.pack}: OneTool is shutting down")
        if failure is not None and seconds > 0 and self._supervised.starting is None:
            raise ToolError(
                f"{failure.message} (next attempt in {seconds:.0f} s, or when the file changes)",
                **failure.fields,
            )

    async def _start(self) -> Worker:
        name = self.extension.pack
        began = asyncio.get_running_loop().time()
        self._state = "starting"
        try:
            launch = await self._prepare_launch()
            self._report("starting")
            worker = self._get_worker(launch)
            worker.users.add(self._user)
            used = {other for other in self._workers if not other.is_done(self._user)}
            self._workers = used | {worker}
            python = await worker.start(self._user, self.timeouts.start)
            if launch.remember is not None:
                await launch.remember(python)
        except ToolError as error:
            failure = self._supervised.failure
            if failure is None or failure.message != error.message:  # log the same error once
                self._log("worker.start", pack=name, status="error", text=error.message)
            self._state = FAILED
            raise
        except BaseException:
            self._state = "not started"
            raise
        self._state = RUNNING
        seconds = asyncio.get_running_loop().time() - began
        self._log("worker.start", pack=name, status="ok", duration_ms=round(seconds * 1000, 3))
        return worker

    def _report(self, line: str) -> None:
        for report in self._listeners:
            report(f"{self.extension.pack}: {line}")

    async def _prepare_launch(self) -> WorkerLaunch:
        try:
            async with asyncio.timeout(self.timeouts.start):
                return await self._prepare(self.extension, self._report)
        except TimeoutError:
            raise ToolTimeout(
                f"the environment of {self.extension.pack} was not ready within"
                f" {self.timeouts.start:g} s",
                hint=(
                    "raise workers.start_timeout in onetool.yaml, or retry in a moment: uv"
                    " continues meanwhile"
                ),
            ) from None

    def _stop(self, worker: Worker) -> None:
        worker.leave(self._user)
        self._state = "stopped"  # it was idle


# --- Queues ---------------------------------------------------------------------------------------


class QueueBackend:
    """One pack's backend. `get_jobs` returns the jobs in the state."""

    is_resumable = True  # a repeated call with the same ID is the same call

    def __init__(
        self,
        extension: Extension,
        timeouts: Timeouts,
        queue: str,
        wait_seconds: float,
        get_jobs: Callable[[], Jobs],
    ) -> None:
        self.extension = extension
        self.timeouts = timeouts
        self.queue = queue
        self._wait_seconds = wait_seconds
        self._get_jobs = get_jobs
        self._is_retired = False
        self._calls = 0

    def identify(self, _tool: Tool) -> Any:
        return [self.extension.identify(), self.queue]

    async def invoke(self, tool: Tool, args: JsonMapping, context: ToolContext) -> Any:
        ticket = context.run.ticket
        is_detached = ticket is not None and ticket.is_detached
        request = JobRequest(
            id=os.urandom(16).hex() if ticket is None else ticket.call_id,
            queue=self.queue,
            pack=self.extension.pack,
            function=tool.short_name,
            arguments=args,
            options={
                "context": context.to_data(self.extension.pack),
                "token_id": context.token_id,
                "scope": str(context.working_dir),  # to which media belong
            },
            seconds=self.timeouts.call,
            start_seconds=self.timeouts.start,
            wait_seconds=self._wait_seconds if is_detached else self.timeouts.call,
            is_idempotent=tool.is_idempotent,
            ticket=ticket,
        )
        self._calls += 1
        try:
            return await self._get_jobs().call(request, partial(_report, context.client))
        finally:
            self._calls -= 1

    @property
    def state(self) -> str:
        return f"queue {self.queue}"

    @property
    def failure(self) -> ToolError | None:
        return None

    def retire(self) -> None:
        """Make no new calls because the settings have changed. Calls in flight complete."""
        self._is_retired = True

    @property
    def is_over(self) -> bool:
        return self._is_retired and not self._calls

    async def close(self) -> None:
        self.retire()


def _report(client: CallClient, event: JsonMapping) -> None:
    """Report a tool's message to the client."""
    callback = client.progress if event["kind"] == "progress" else client.log
    if callback is not None:
        callback(event["message"], *event["details"])


# --- Tests beside a pack --------------------------------------------------------------------------


def find_tests(file: Path) -> list[Path]:
    """Return a pack's tests: `tests/`, or its files there if packs share the directory."""
    directory = file.parent / TESTS_DIRECTORY
    if len(list(file.parent.glob(f"*{SUFFIX}.py"))) > 1:
        name = file.stem.removesuffix(SUFFIX)
        return [*directory.glob(f"test_{name}.py"), *sorted(directory.glob(f"test_{name}_*.py"))]
    return [directory] if directory.is_dir() else []


def stamp_tests(file: Path) -> frozenset[tuple[Path, Stamp]]:
    """Return stamps for the Python files in `tests/` beside the pack."""
    paths = islice((file.parent / TESTS_DIRECTORY).rglob("*.py"), MAX_FILES)
    return frozenset((path, stamp_file(path)) for path in paths)


async def run_pack_tests(
    launch: WorkerLaunch,
    start_seconds: float,
    packages: Path,
    call_tool: CallTool,
    context: ToolContext,
) -> list[JsonObject]:
    """Run a pack's tests; return name, status, seconds and detail for each.

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
