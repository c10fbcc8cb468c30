"""`make bench`: measure, and print one table. Read docs/performance.md for what its rows mean.

A target that is missed is printed as MISS and is no failure of this program; it fails only where something crashed.
"""

import argparse
import json
import platform
import re
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import bus, calls, cells, flight, lib, memory, roundtrip, startup

TOPICS: dict[str, Callable[[int], list[lib.Row]]] = {
    "startup": startup.measure,
    "roundtrip": roundtrip.measure,
    "calls": calls.measure,
    "bus": bus.measure,
    "cells": cells.measure,
    "memory": memory.measure,
    "flight": flight.measure,
}
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"


def main() -> None:
    options = arguments()
    started, before = time.monotonic(), lib.machine_load()
    with lib.as_on_a_fresh_machine():
        rows = {topic: measured(topic, options.rounds) for topic in options.only}
    seconds = time.monotonic() - started
    text = report([row for topic in rows.values() for row in topic], options.rounds, before, seconds)
    print(text)
    if options.json:
        options.json.write_text(as_json(rows, options.rounds))
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


def measured(topic: str, rounds: int) -> list[lib.Row]:
    print(f"{topic} ...", file=sys.stderr, flush=True)
    return TOPICS[topic](rounds)


def report(rows: Iterable[lib.Row], rounds: int, before: str, seconds: float) -> str:
    about = f"Python {platform.python_version()}, {platform.system()} {platform.release()}, {platform.machine()}"
    return "\n".join(
        [
            f"{about}; {rounds} rounds, {seconds:.0f} s",
            f"before: {before}",
            f"after:  {lib.machine_load()}",
            "",
            lib.table(list(rows)),
        ]
    )


def as_json(rows: dict[str, list[lib.Row]], rounds: int) -> str:
    data = {topic: [row.as_data() for row in found] for topic, found in rows.items()}
    return json.dumps({"rounds": rounds, "load": lib.machine_load(), "topics": data}, indent=1) + "\n"


def with_report(page: str, text: str) -> str:
    """The page with the report between its two markers, in place of what stood there."""
    if BEGIN not in page or END not in page:
        raise SystemExit(f"the page has no place for the table: write {BEGIN} and {END} where it belongs")
    block = f"{BEGIN}\n```text\n{text}\n```\n{END}"
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block, page, flags=re.DOTALL)


if __name__ == "__main__":
    main()
