"""Run the benchmarks (`make bench`) and print one table. docs/performance.md explains the rows.

A missed target is printed as MISS. The program fails only if something crashes or returns a wrong
answer.
"""

import argparse
import json
import platform
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import (
    bundles,
    bus,
    calls,
    cells,
    daemon,
    discovery,
    flight,
    floods,
    grep,
    invoke,
    isolation,
    lib,
    memory,
    proxy,
    queues,
    recorded,
    replicas,
    roundtrip,
    serving,
    stalls,
    startup,
    ui,
    workers,
)

TOPICS: dict[str, Callable[[int], list[lib.Row]]] = {
    "startup": startup.measure,
    "daemon": daemon.measure,
    "roundtrip": roundtrip.measure,
    "calls": calls.measure,
    "bus": bus.measure,
    "cells": cells.measure,
    "isolation": isolation.measure,
    "memory": memory.measure,
    "flight": flight.measure,
    "floods": floods.measure,
    "workers": workers.measure,
    "queues": queues.measure,
    "proxy": proxy.measure,
    "discovery": discovery.measure,
    "grep": grep.measure,
    "http": serving.measure,
    "invoke": invoke.measure,
    "ui": ui.measure,
    "stalls": stalls.measure,
    "statistics": recorded.measure,
    "bundles": bundles.measure,
    "replicas": replicas.measure,
}
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"


@dataclass(frozen=True, slots=True)
class TopicResult:
    """The rows of a topic, its duration, and how long at least one process on the machine waited
    for a processor.
    """

    rows: list[lib.Row]
    seconds: float
    waited: float

    @property
    def about(self) -> str:
        return f"{self.seconds:.0f} s ({self.waited / self.seconds:.0%})"


def main() -> None:
    options = parse_arguments()
    before = lib.describe_load()
    with lib.use_fresh_environment():
        found = {topic: measure_topic(topic, options.rounds) for topic in options.only}
    text = render_report(found, options.rounds, before)
    print(text)
    if options.json:
        options.json.write_text(to_json(found, options.rounds))
    if options.markdown:
        options.markdown.write_text(insert_report(options.markdown.read_text(), text))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=15,
        metavar="N",
        help="number of rounds after the warm-up round",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=TOPICS,
        default=list(TOPICS),
        metavar="NAME",
        help=" ".join(TOPICS),
    )
    parser.add_argument(
        "--json", type=to_absolute, metavar="FILE", help="write every sample to this file"
    )
    parser.add_argument(
        "--markdown",
        type=to_absolute,
        metavar="FILE",
        help="replace the table between the markers of this page",
    )
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


def to_absolute(text: str) -> Path:
    """Return an absolute path, because the benchmarks change the working directory."""
    return Path(text).absolute()


def measure_topic(topic: str, rounds: int) -> TopicResult:
    print(f"{topic} ...", file=sys.stderr, flush=True)
    started, waited = time.monotonic(), lib.read_wait_seconds()
    rows = TOPICS[topic](rounds)
    return TopicResult(rows, time.monotonic() - started, lib.read_wait_seconds() - waited)


def render_report(found: dict[str, TopicResult], rounds: int, before: str) -> str:
    system = (
        f"Python {platform.python_version()}, {platform.system()} {platform.release()},"
        f" {platform.machine()}"
    )
    return "\n".join(
        [
            f"{system}; {rounds} rounds, {sum(topic.seconds for topic in found.values()):.0f} s",
            f"before: {before}",
            f"after:  {lib.describe_load()}",
            f"waited: {', '.join(f'{name} {topic.about}' for name, topic in found.items())}",
            "",
            lib.render_table([row for topic in found.values() for row in topic.rows]),
        ]
    )


def to_json(found: dict[str, TopicResult], rounds: int) -> str:
    topics = {
        name: {
            "seconds": topic.seconds,
            "waited": topic.waited,
            "rows": [row.to_dict() for row in topic.rows],
        }
        for name, topic in found.items()
    }
    return json.dumps({"rounds": rounds, "topics": topics}, indent=1) + "\n"


def insert_report(page: str, text: str) -> str:
    """Replace the text between the markers of a page with the report."""
    if BEGIN not in page or END not in page:
        raise SystemExit(f"markers not found: add {BEGIN} and {END} to the page")
    block = f"{BEGIN}\n```text\n{text}\n```\n{END}"
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block, page, flags=re.DOTALL)


if __name__ == "__main__":
    main()
