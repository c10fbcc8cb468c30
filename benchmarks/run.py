"""`make bench`: measure, and print one table. Read docs/performance.md for what its rows mean.

A target that is missed is printed as MISS and is no failure of this program; it fails only where something crashed.
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
    discovery,
    flight,
    floods,
    grep,
    invoke,
    lib,
    memory,
    page,
    proxy,
    recorded,
    roundtrip,
    serving,
    stalls,
    startup,
    workers,
)

TOPICS: dict[str, Callable[[int], list[lib.Row]]] = {
    "startup": startup.measure,
    "roundtrip": roundtrip.measure,
    "calls": calls.measure,
    "bus": bus.measure,
    "cells": cells.measure,
    "memory": memory.measure,
    "flight": flight.measure,
    "floods": floods.measure,
    "workers": workers.measure,
    "proxy": proxy.measure,
    "discovery": discovery.measure,
    "grep": grep.measure,
    "http": serving.measure,
    "invoke": invoke.measure,
    "page": page.measure,
    "stalls": stalls.measure,
    "statistics": recorded.measure,
    "bundles": bundles.measure,
}
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"


@dataclass(frozen=True, slots=True)
class Measured:
    """What a topic found, how long that took, and for how much of it some process, ours or not, lacked a processor."""

    rows: list[lib.Row]
    seconds: float
    waited: float

    @property
    def about(self) -> str:
        return f"{self.seconds:.0f} s ({self.waited / self.seconds:.0%})"


def main() -> None:
    options = arguments()
    before = lib.machine_load()
    with lib.as_on_a_fresh_machine():
        found = {topic: measured(topic, options.rounds) for topic in options.only}
    text = report(found, options.rounds, before)
    print(text)
    if options.json:
        options.json.write_text(as_json(found, options.rounds))
    if options.markdown:
        options.markdown.write_text(with_report(options.markdown.read_text(), text))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="rounds that count, after a warm-up round")
    parser.add_argument(
        "--only", nargs="+", choices=TOPICS, default=list(TOPICS), metavar="NAME", help=" ".join(TOPICS)
    )
    parser.add_argument("--json", type=absolute, metavar="FILE", help="write every sample here")
    parser.add_argument("--markdown", type=absolute, metavar="FILE", help="put the table between this page's markers")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


def absolute(text: str) -> Path:
    """The benchmarks have a working folder of their own."""
    return Path(text).absolute()


def measured(topic: str, rounds: int) -> Measured:
    print(f"{topic} ...", file=sys.stderr, flush=True)
    started, waited = time.monotonic(), lib.seconds_waited()
    rows = TOPICS[topic](rounds)
    return Measured(rows, time.monotonic() - started, lib.seconds_waited() - waited)


def report(found: dict[str, Measured], rounds: int, before: str) -> str:
    system = f"Python {platform.python_version()}, {platform.system()} {platform.release()}, {platform.machine()}"
    return "\n".join(
        [
            f"{system}; {rounds} rounds, {sum(topic.seconds for topic in found.values()):.0f} s",
            f"before: {before}",
            f"after:  {lib.machine_load()}",
            f"waited: {', '.join(f'{name} {topic.about}' for name, topic in found.items())}",
            "",
            lib.table([row for topic in found.values() for row in topic.rows]),
        ]
    )


def as_json(found: dict[str, Measured], rounds: int) -> str:
    topics = {
        name: {"seconds": topic.seconds, "waited": topic.waited, "rows": [row.as_data() for row in topic.rows]}
        for name, topic in found.items()
    }
    return json.dumps({"rounds": rounds, "topics": topics}, indent=1) + "\n"


def with_report(page: str, text: str) -> str:
    """The page with the report between its two markers, in place of what stood there."""
    if BEGIN not in page or END not in page:
        raise SystemExit(f"the page has no place for the table: write {BEGIN} and {END} where it belongs")
    block = f"{BEGIN}\n```text\n{text}\n```\n{END}"
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block, page, flags=re.DOTALL)


if __name__ == "__main__":
    main()
