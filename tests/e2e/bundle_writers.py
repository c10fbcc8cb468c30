"""Kill processes that write bundles, for test_bundle_kills.

Run as a program; prints one line of JSON per result.

Children are forked from a process that has imported all modules and opened no files, so that
starting them is fast.
"""

import contextlib
import importlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any

from onetool.errors import BundleError
from onetool.sources.bundles import BundleStore, StoredTool

LONG_AGO = datetime.now(UTC) - timedelta(days=3)
FULL, EMPTY, OVER, NEW = (f"0192f0c1-7a10-7c3e-9d2b-00000000000{number}" for number in range(4))


def body(**more: Any) -> dict[str, Any]:
    return {
        "displayName": "T",
        "isEnabled": True,
        "type": "python",
        "pythonImpl": {"function": "f"},
        **more,
    }


def bundle(slug: str) -> dict[str, Any]:
    return {"slug": slug, "displayName": slug, "isEnabled": True}


def prepare(root: Path) -> None:
    """Create a bundle with tools, an empty bundle, and a deleted one that has expired."""
    store = BundleStore(root, clock=lambda: LONG_AGO)
    for ident, slug in ((FULL, "full"), (EMPTY, "empty"), (OVER, "over")):
        store.put_bundle(ident, bundle(slug))
    store.put_many(FULL, [(f"tool-{number}", "1", body()) for number in range(3)])
    store.delete_bundle(OVER)
    store.close()


ACTIONS: dict[str, Callable[[BundleStore], object]] = {
    "put_bundle": lambda store: store.put_bundle(NEW, bundle("new")),
    "rename_bundle": lambda store: store.put_bundle(FULL, bundle("renamed")),
    "switch_bundle": lambda store: store.set_bundle_enabled(FULL, False),
    "delete_bundle": lambda store: store.delete_bundle(EMPTY),
    "put_tool": lambda store: store.put_tool(
        FULL, "Tool", "1.0", body(displayName="New", tags=["x"])
    ),
    "put_many": lambda store: store.put_many(
        FULL, [(f"many-{number}", "1", body()) for number in range(3)]
    ),
    "switch_tool": lambda store: store.set_tool_enabled(FULL, "tool-1", "1", False),
    "delete_tool": lambda store: store.delete_tool(FULL, "tool-1", "1"),
    "remove_expired": lambda store: store.remove_expired(),
}
ACKS_PER_TOOL = 3  # acknowledgements of a writer for its first tool
IN_PARTS = {"put_many"}  # each file is complete, but a kill may leave only some of them


def list_all_tools(store: BundleStore) -> list[StoredTool]:
    tools, token = [], None
    while True:
        page = store.list_tools(include_disabled=True, size=256, token=token)
        tools += page.items
        if (token := page.next_token) is None:
            return tools


def read_state(store: BundleStore) -> dict[str, Any]:
    """Return the visible state of a store, without new ids and times."""
    bundles = store.list_bundles(include_disabled=True, size=256).items
    tools = list_all_tools(store)
    found = (
        store.search("tool many", include_disabled=True, size=256).items
        + store.search("t", include_disabled=True, size=256).items
    )
    return {
        "bundles": sorted([one.id, one.slug, one.is_enabled] for one in bundles),
        "tools": sorted(
            [one.slug, one.version, one.is_enabled, one.display_name, one.bundle_slug]
            for one in tools
        ),
        "found": sorted({hit.tool.slug for hit in found}),
        "problems": store.problems,
    }


def read_store(root: Path) -> dict[str, Any]:
    store = BundleStore(root)
    try:
        return read_state(store)
    finally:
        store.close()


def read_store_without_index(root: Path) -> dict[str, Any]:
    copy = root.with_name("copy")
    shutil.copytree(root, copy)
    shutil.rmtree(copy / ".index", ignore_errors=True)
    try:
        return read_store(copy)
    finally:
        shutil.rmtree(copy)


def run_in_child(work: Callable[[], object]) -> int:
    """Run work in a child process and return its exit status."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the child must not continue
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def preload_modules(directory: Path) -> None:
    """Import all modules that children import, because importing takes most of their time."""
    names = directory / "modules"

    def read() -> None:
        prepare(directory / "loading")
        read_store(directory / "loading")
        names.write_text("\n".join(sys.modules))

    assert run_in_child(read) == 0
    for name in names.read_text().splitlines():
        with contextlib.suppress(ImportError):  # created by other modules
            importlib.import_module(name)


# --- killed at a chosen step ----------------------------------------------------------------------


def die_at(step: int) -> None:
    """Count calls and returns, of Python and of C, and kill this process at one of them."""
    left = [step]

    def count(_frame: FrameType, _event: str, _argument: object) -> None:
        left[0] -= 1
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)


def kill_at_steps(directory: Path, name: str, chance: random.Random, kills: int) -> None:
    origin, root = directory / "origin", directory / "bundles"
    if not origin.exists():
        run_in_child(lambda: prepare(origin))
    shutil.copytree(origin, root)
    before, steps, after = (
        read_store_in_child(root),
        count_steps(root, name),
        read_store_in_child(root),
    )
    shutil.rmtree(root)
    steps_to_die_at = sorted(chance.sample(range(1, steps), min(kills, steps - 1)))
    states = [kill_at_step(origin, root, name, step) for step in steps_to_die_at]
    result = {"action": name, "steps": steps, "before": before, "after": after, "states": states}
    sys.stdout.write(json.dumps(result) + "\n")


def kill_at_step(origin: Path, root: Path, name: str, step: int) -> dict[str, Any]:
    """Kill a writer at this step and return the state of the store, with and without its index."""
    shutil.copytree(origin, root)
    died = run_in_child(lambda: run_killed_child(root, name, step))
    seen, rebuilt = read_store_in_child(root), read_store_in_child(root, index=False)
    shutil.rmtree(root)
    return {"step": step, "died": died, "seen": seen, "rebuilt": rebuilt}


def run_killed_child(root: Path, name: str, step: int) -> None:
    store = BundleStore(root)
    store._directory._start_rescan = lambda: None  # type: ignore[method-assign] # it would do the work of the next process
    store.list_bundles()
    die_at(step)
    ACTIONS[name](store)
    sys.setprofile(None)


def count_steps(root: Path, name: str) -> int:
    counted = root.with_name("steps")

    def count_all() -> None:
        store = BundleStore(root)
        store._directory._start_rescan = lambda: None  # type: ignore[method-assign]
        store.list_bundles()
        number = [0]

        def count(_frame: FrameType, _event: str, _argument: object) -> None:
            number[0] += 1

        sys.setprofile(count)
        ACTIONS[name](store)
        sys.setprofile(None)
        counted.write_text(str(number[0]))

    assert run_in_child(count_all) == 0
    return int(counted.read_text())


def read_store_in_child(root: Path, *, index: bool = True) -> dict[str, Any]:
    """Read the state in a child, because a store has threads and the forking process must not."""
    file = root.with_name("seen")
    read = read_store if index else read_store_without_index
    assert run_in_child(lambda: file.write_text(json.dumps(read(root)))) == 0
    seen: dict[str, Any] = json.loads(file.read_text())
    return seen


# --- killed at any moment -------------------------------------------------------------------------


def kill_at_random(directory: Path, chance: random.Random, kills: int) -> None:
    """Kill concurrent writers of one store repeatedly, and print the acknowledged and the actual
    state.
    """
    root = directory / "bundles"
    run_in_child(lambda: prepare(root))
    acknowledged: dict[str, str] = {}
    doubtful: set[str] = set()
    for number in range(kills):
        logs = [directory / f"log-{writer}" for writer in range(3)]
        children = [fork_writer(root, log, number, writer) for writer, log in enumerate(logs)]
        wait_for_acknowledgements(logs, 1 if number % 2 else ACKS_PER_TOOL)
        time.sleep(chance.uniform(0.0, 0.1))
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)
        for log in logs:
            read_log(log, acknowledged, doubtful)
    seen = read_store_in_child(root)
    rebuilt = read_store_in_child(root, index=False)
    sys.stdout.write(
        json.dumps(
            {
                "acknowledged": acknowledged,
                "doubtful": sorted(doubtful),
                "seen": seen,
                "rebuilt": rebuilt,
            }
        )
        + "\n"
    )


def wait_for_acknowledgements(logs: list[Path], number: int) -> None:
    """Wait until one of the writers has acknowledged this number of changes."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and not any(
        log.exists() and log.read_text().count("!") >= number for log in logs
    ):
        time.sleep(0.002)


def read_log(log: Path, acknowledged: dict[str, str], doubtful: set[str]) -> None:
    lines = log.read_text().splitlines() if log.exists() else []
    for line in lines:
        sign, _, rest = line.partition(" ")
        slug, _, state = rest.partition(" ")
        if sign == "?":
            doubtful.add(slug)
        else:
            doubtful.discard(slug)
            acknowledged[slug] = state
    log.unlink(missing_ok=True)


def fork_writer(root: Path, log: Path, number: int, writer: int) -> int:
    child = os.fork()
    if child == 0:
        try:
            write_until_killed(root, log, f"{number}-{writer}")
        finally:
            os._exit(0)
    return child


def write_until_killed(root: Path, log: Path, name: str) -> None:
    store = BundleStore(root)
    with log.open("w", buffering=1) as lines:
        for turn in range(1000):
            slug = f"w-{name}-{turn}"
            for state, action in (
                ("on", lambda slug=slug: store.put_tool(FULL, slug, "1", body())),
                ("off", lambda slug=slug: store.set_tool_enabled(FULL, slug, "1", False)),
                ("gone", lambda slug=slug: store.delete_tool(FULL, slug, "1")),
            ):
                if state == "gone" and turn % 3:
                    continue
                lines.write(f"? {slug} {state}\n")
                try:
                    action()
                except BundleError as error:
                    sys.stderr.write(f"{error}\n")
                lines.write(f"! {slug} {state}\n")


if __name__ == "__main__":
    kind, path, seed, number, *names = sys.argv[1:]
    preload_modules(Path(path))
    if kind == "steps":
        for action in names:
            kill_at_steps(Path(path), action, random.Random(seed), int(number))
    else:
        kill_at_random(Path(path), random.Random(seed), int(number))
