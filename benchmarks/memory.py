"""Memory of an idle server after one call: the server process, its zygote and its waiting cells."""

import statistics
import time
from dataclasses import dataclass

from benchmarks.lib import (
    BARE_SDK,
    ONETOOL,
    Client,
    Command,
    Memory,
    Row,
    WrongAnswer,
    find_children,
    interleave,
    memory,
)

QUIET_SECONDS = 0.7
MAX_ROUNDS = 3  # memory hardly varies


@dataclass(frozen=True, slots=True)
class Idle:
    server: Memory
    zygotes: list[Memory]
    cells: list[Memory]

    @property
    def together(self) -> float:
        return sum(process.share for process in (self.server, *self.zygotes, *self.cells))


def measure(rounds: int) -> list[Row]:
    contestants = {"ours": lambda: measure_idle(ONETOOL), "bare": lambda: measure_idle(BARE_SDK)}
    found = interleave(min(rounds, MAX_ROUNDS), contestants)
    ours, bare = found["ours"], found["bare"]
    servers = [one.server.resident for one in ours], [one.server.resident for one in bare]
    shares = [one.together for one in ours], [one.together for one in bare]
    return [
        Row("idle server process, resident", *servers, "MB", target=1.3),
        Row("idle server with zygote and waiting cells, PSS", *shares, "MB"),
        Row(
            "waiting cell, private memory",
            [compute_private(one.cells) for one in ours],
            unit="MB",
            target=5,
        ),
        Row("zygote, PSS", [one.zygotes[0].share for one in ours], unit="MB"),
        Row("zygote, private memory", [compute_private(one.zygotes) for one in ours], unit="MB"),
    ]


def measure_idle(command: Command) -> Idle:
    with Client(command) as client:
        client.open().call("1+1")
        time.sleep(QUIET_SECONDS)
        zygotes = find_children(client.pid)
        cells = [cell for zygote in zygotes for cell in find_children(zygote)]
        if command is ONETOOL and not cells:
            raise WrongAnswer("no cell is waiting")
        return Idle(memory(client.pid), list(map(memory, zygotes)), list(map(memory, cells)))


def compute_private(processes: list[Memory]) -> float:
    return statistics.median(process.own for process in processes)
