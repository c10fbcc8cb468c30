"""Shared parts of the benchmarks: alternating rounds, a client, process statistics from /proc, and
the table.

A target applies to a ratio: the median, over rounds, of OneTool's number divided by the baseline's
number of the same round. Both run on the same machine under the same load, so shared effects cancel
out.
"""

import contextlib
import json
import os
import random
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

T = TypeVar("T")
Command = Sequence[str | Path]

SERVERS = Path(__file__).parent / "servers"
BARE_SDK: Command = (sys.executable, SERVERS / "bare_sdk.py")
ONETOOL: Command = (Path(sys.executable).with_name("onetool"),)
PROTOCOL = "2025-06-18"
TIMEOUT_SECONDS = 60.0
READ_SIZE = 1 << 20
UNUSUAL_VARIABLES = (
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONUNBUFFERED",
)  # each slows down child processes


# --- rounds ---------------------------------------------------------------------------------------


def iterate_turns(rounds: int, names: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield each contestant once per round in random order, and whether the round counts: the first
    is a warm-up.
    """
    for number in range(rounds + 1):
        for name in random.sample(names, len(names)):
            yield name, number > 0


def interleave(rounds: int, contestants: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    samples: dict[str, list[T]] = {name: [] for name in contestants}
    for name, counts in iterate_turns(rounds, list(contestants)):
        sample = contestants[name]()
        if counts:
            samples[name].append(sample)
    return samples


async def interleave_async(
    rounds: int, contestants: Mapping[str, Callable[[], Awaitable[T]]]
) -> dict[str, list[T]]:
    samples: dict[str, list[T]] = {name: [] for name in contestants}
    for name, counts in iterate_turns(rounds, list(contestants)):
        sample = await contestants[name]()
        if counts:
            samples[name].append(sample)
    return samples


@contextlib.contextmanager
def use_fresh_environment() -> Iterator[None]:
    """Use an empty home and working directory, and cache byte code as on a user's machine.

    Share no server.
    """
    here = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="onetool-bench-") as folder:
        os.environ.update({"HOME": folder, "ONETOOL_STANDALONE": "1"})
        for name in UNUSUAL_VARIABLES:
            os.environ.pop(name, None)
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(here)


# --- a client -------------------------------------------------------------------------------------


class WrongAnswer(Exception):
    """The measured program returned a wrong answer, so its time is meaningless."""


class Client:
    """A minimal MCP client: JSON lines over the pipes of a process that it starts."""

    def __init__(self, command: Command) -> None:
        self.spawned = time.perf_counter()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._writer, self._reader = self._process.stdin, self._process.stdout
        self._buffer = bytearray()
        self._last_id = 0
        self._tool, self._argument = "", ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection and wait until the server is gone, so that it does not disturb the
        next turn.
        """
        self._writer.close()
        try:
            self._process.wait(TIMEOUT_SECONDS)
        finally:
            self._process.kill()
            self._reader.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def open(self) -> Self:
        """Initialize the session and list the tools."""
        about = {"name": "bench", "version": "0"}
        self.request(
            "initialize", {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": about}
        )
        self._send({"method": "notifications/initialized"})
        tool = self.request("tools/list", {})["tools"][0]
        self._tool, self._argument = tool["name"], tool["inputSchema"]["required"][0]
        return self

    def call(self, text: str) -> str:
        """Call the only tool with its only argument."""
        return get_text(self.answer(self.send_call(text)))

    def send_call(self, text: str) -> int:
        return self._send_request(
            "tools/call", {"name": self._tool, "arguments": {self._argument: text}}
        )

    def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        return self.answer(self._send_request(method, params))

    def answer(self, ident: int) -> dict[str, Any]:
        while (message := self.receive()).get("id") != ident:
            pass
        return get_result(message)

    def receive(self) -> dict[str, Any]:
        """Return the next message, whichever request it belongs to."""
        while (end := self._buffer.find(b"\n")) < 0:
            self._buffer += self._read()
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        message: dict[str, Any] = json.loads(line)
        return message

    def _read(self) -> bytes:
        if not select.select([self._reader], [], [], TIMEOUT_SECONDS)[0]:
            raise WrongAnswer(f"{self._process.args!r} did not answer within {TIMEOUT_SECONDS:g} s")
        chunk = os.read(self._reader.fileno(), READ_SIZE)
        if not chunk:
            raise WrongAnswer(f"{self._process.args!r} has ended")
        return chunk

    def _send_request(self, method: str, params: dict[str, Any]) -> int:
        self._last_id += 1
        self._send({"id": self._last_id, "method": method, "params": params})
        return self._last_id

    def _send(self, message: dict[str, Any]) -> None:
        left = memoryview(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        while left:
            left = left[os.write(self._writer.fileno(), left) :]


def get_result(message: dict[str, Any]) -> dict[str, Any]:
    if "result" not in message:
        raise WrongAnswer(json.dumps(message))
    result: dict[str, Any] = message["result"]
    return result


def get_text(result: dict[str, Any]) -> str:
    text = "\n".join(block["text"] for block in result["content"])
    if result.get("isError"):
        raise WrongAnswer(text)
    return text


# --- process data of /proc ------------------------------------------------------------------------


def find_children(pid: int) -> list[int]:
    """Return the live child processes of a process, in the order of their start."""
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return sorted(found)


def tree(pid: int) -> list[int]:
    return [pid, *(one for child in find_children(pid) for one in tree(child))]


def read_tree_cpu_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process and its descendants."""
    spent = 0
    for one in tree(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            spent += sum(
                int((task / "schedstat").read_text().split()[0])
                for task in Path(f"/proc/{one}/task").iterdir()
            )
    return spent / 1e9


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in megabytes: resident, proportional share (PSS) and private."""

    resident: float
    share: float
    own: float


def memory(pid: int) -> Memory:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kilobytes = {
        name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)
    }
    own = kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]
    return Memory(kilobytes["Rss"] / 1024, kilobytes["Pss"] / 1024, own / 1024)


def describe_load() -> str:
    averages = " ".join(f"{average:.2f}" for average in os.getloadavg())
    return f"load {averages} on {os.cpu_count()} cores"


def read_wait_seconds() -> float:
    """Return how long, since boot, at least one process has waited for a processor."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/pressure/cpu").read_text().splitlines()[0].rpartition("=")[2]) / 1e6
    return 0.0


# --- the table ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement, with one sample per round.

    `target` limits the ratio, or the number if there is no baseline.
    """

    what: str
    ours: Sequence[float]
    baseline: Sequence[float] = ()
    unit: str = "ms"
    target: float | None = None

    @property
    def ratios(self) -> list[float]:
        return (
            [ours / theirs for ours, theirs in zip(self.ours, self.baseline, strict=True)]
            if self.baseline
            else []
        )

    @property
    def status(self) -> str:
        if self.target is None:
            return ""
        return "ok" if statistics.median(self.ratios or self.ours) <= self.target else "MISS"

    def cells(self) -> list[str]:
        ratio = "-"
        if self.ratios:
            low, middle, high = compute_quartiles(self.ratios)
            ratio = f"{middle:.2f}x ({low:.2f}-{high:.2f})"
        target = (
            "-"
            if self.target is None
            else f"<= {self.target:g}{'x' if self.ratios else f' {self.unit}'}"
        )
        theirs = format_amount(self.baseline, self.unit) if self.baseline else "-"
        return [self.what, format_amount(self.ours, self.unit), theirs, ratio, target, self.status]

    def to_dict(self) -> dict[str, Any]:
        samples = {"ours": list(self.ours), "baseline": list(self.baseline), "ratios": self.ratios}
        return {
            "what": self.what,
            "unit": self.unit,
            "target": self.target,
            "status": self.status,
            **samples,
        }


def compute_quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def format_amount(values: Sequence[float], unit: str) -> str:
    middle = statistics.median(values)
    digits = 0 if middle >= 100 or middle == int(middle) else 1 if middle >= 10 else 2
    return f"{middle:.{digits}f} {unit}".strip()


HEAD = ["measured", "OneTool", "baseline", "ratio (p25-p75)", "target", ""]


def render_table(rows: Sequence[Row]) -> str:
    lines = [HEAD, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    lines.insert(1, ["-" * width for width in widths])
    padded = [
        [cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)
