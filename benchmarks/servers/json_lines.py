"""The baseline of a call from a cell: a plain Python process that calls its parent in JSON lines.

For every line {"calls": N} it makes N sequential calls, and prints the median of their seconds.
"""

import json
import statistics
import sys
import time


def call(ident: int) -> float:
    started = time.perf_counter()
    question = {
        "jsonrpc": "2.0",
        "id": ident,
        "method": "call",
        "params": {"name": "nothing", "args": [], "kwargs": {}},
    }
    sys.stdout.write(json.dumps(question) + "\n")
    sys.stdout.flush()
    json.loads(sys.stdin.readline())
    return time.perf_counter() - started


def main() -> None:
    while line := sys.stdin.readline():
        seconds = [call(ident) for ident in range(json.loads(line)["calls"])]
        sys.stdout.write(json.dumps({"median": statistics.median(seconds)}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
