"""Time from the start of the process to the answer of `tools/list`, and to the answer of a first
call.
"""

import time
from dataclasses import dataclass

from benchmarks.lib import (
    BARE_SDK,
    ONETOOL,
    Client,
    Command,
    Row,
    interleave,
    read_tree_cpu_seconds,
)


@dataclass(frozen=True, slots=True)
class Start:
    """Milliseconds from the start of the process; `cpu` is the processor time of the process tree."""

    listed: float
    cpu: float
    called: float


def measure(rounds: int) -> list[Row]:
    starts = interleave(rounds, {"ours": lambda: start(ONETOOL), "bare": lambda: start(BARE_SDK)})
    ours, bare = starts["ours"], starts["bare"]
    return [
        Row(
            "start-up to tools/list, wall",
            [s.listed for s in ours],
            [s.listed for s in bare],
            target=1.2,
        ),
        Row(
            "start-up to tools/list, CPU of the process tree",
            [s.cpu for s in ours],
            [s.cpu for s in bare],
            target=1.2,
        ),
        Row(
            "start-up to the answer of a first run(1+1), wall",
            [s.called for s in ours],
            [s.called for s in bare],
        ),
    ]


def start(command: Command) -> Start:
    with Client(command) as client:
        client.open()
        listed = time.perf_counter() - client.spawned
        cpu = read_tree_cpu_seconds(client.pid)
        client.call("1+1")
        called = time.perf_counter() - client.spawned
    return Start(listed * 1e3, cpu * 1e3, called * 1e3)
