"""Test that a process that swaps files for links while tools read and write gains no access.

Also test that a killed writer leaves the complete old or new file.
"""

import random
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cells_support import NIGHTLY

from onetool.errors import SandboxDenied, ToolError
from onetool.sources import files as disk
from onetool.sources.files import Files
from onetool.sources.files.files import Opener, open_by_kernel, open_by_walking
from onetool.util.context import ToolContext

ATTEMPTS = 100_000 if NIGHTLY else 1_500
KILLS = 300 if NIGHTLY else 15
SECRET = "the secret that is outside"
FINE = "what may be read"
SIZE = 200_000

SWAPPER = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
app, outside = sys.argv[1:]
os.chdir(app)
os.symlink(outside, "link_to_folder")
os.symlink(outside, "link_to_deep")
def put(make, source, name):
    make(source, "swap")
    os.rename("swap", name)
def exchange(one, other):
    if libc.renameat2(-100, one.encode(), -100, other.encode(), 2):
        raise OSError(ctypes.get_errno(), one)
print("swapping", flush=True)
while True:
    put(os.symlink, outside + "/file", "file")
    exchange("folder", "link_to_folder")
    put(os.link, "good", "file")
    exchange("folder", "link_to_folder")
    exchange("way/deep", "link_to_deep")
    put(os.symlink, outside + "/new", "new")
    exchange("way/deep", "link_to_deep")
    put(os.link, "good", "new")
"""

WRITER = """
import sys
from pathlib import Path
from onetool.util.context import ToolContext
from onetool.sources.builtin import fs_tools as fs
context = ToolContext(working_dir=Path(sys.argv[1]), sandbox={"enabled": True})
for number in range(10**9):
    fs.write("file", "abcdefgh"[number % 8] * int(sys.argv[2]), context)
    print(number, flush=True)
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    for directory in ("app/folder", "app/way/deep", "outside"):
        (tmp_path / directory).mkdir(parents=True)
    for path in ("app/file", "app/good", "app/new", "app/folder/file", "app/way/deep/file"):
        (tmp_path / path).write_text(FINE)
    for path in ("outside/file", "outside/only"):
        (tmp_path / path).write_text(SECRET)
    return tmp_path / "app"


@contextmanager
def start_swapper(app: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", SWAPPER, str(app), str(app.parent / "outside")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "swapping\n"
            yield process
            assert process.poll() is None, process.stderr and process.stderr.read()
        finally:
            process.kill()


def to_text(value: Any) -> str:
    return value.data.decode() if isinstance(value, disk.FileContent) else str(value)


OPERATIONS: dict[str, Callable[[Files], Any]] = {
    "read file": lambda files: disk.read(files, "file", 1000),
    "read folder/file": lambda files: disk.read(files, "folder/file", 1000),
    "read way/deep/file": lambda files: disk.read(files, "way/deep/file", 1000),
    "stat folder/file": lambda files: disk.stat_path(files, "folder/file")[1].st_size,
    "list folder": lambda files: disk.list_entries(files, "folder", "*", 100),
    "list all": lambda files: disk.list_entries(files, ".", "**", 100),
    "copy folder/file": lambda files: disk.copy(files, "folder/file", "copied", overwrite=True),
}
WRITES: dict[str, Callable[[Files], Any]] = {
    "write file": lambda files: disk.write(files, "file", FINE.encode()),
    "write new": lambda files: disk.write(files, "new", FINE.encode(), backup=False),
    "write folder/file": lambda files: disk.write(files, "folder/file", FINE.encode()),
    "write way/deep/made/x": lambda files: disk.write(
        files, "way/deep/made/x", FINE.encode(), create_folders=True, backup=False
    ),
    "move folder/file": lambda files: (
        disk.move(files, "folder/file", "moved", overwrite=True),
        disk.move(files, "moved", "folder/file", overwrite=True),
    ),
    "delete folder/made": lambda files: (
        disk.write(files, "folder/only", FINE.encode(), backup=False),
        disk.delete(files, "folder/only", recursive=False),
    ),
}


def attempt(operate: Callable[[Files], Any], files: Files) -> str:
    try:
        value = to_text(operate(files))
    except SandboxDenied:
        return "denied"
    except FileNotFoundError:
        return "missing"
    except ToolError as error:
        return error.message[:60]
    assert SECRET not in value
    return "done"


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.spec("toolbus.sandbox.swapped-links")
@pytest.mark.parametrize("opener", [open_by_kernel, open_by_walking])
def test_a_replaced_link_gains_no_access(
    app: Path, opener: Opener, record_property: Callable[[str, object], None]
) -> None:
    outside = app.parent / "outside"
    before = {path.name: path.read_bytes() for path in outside.iterdir()}
    context = ToolContext(working_dir=app, sandbox={"enabled": True})
    outcomes: Counter[tuple[str, str]] = Counter()
    with start_swapper(app):
        for number in range(ATTEMPTS):
            chosen = WRITES if number % 10 == 0 else OPERATIONS
            name = random.choice(list(chosen))
            outcomes[name, attempt(chosen[name], Files(context, opener))] += 1
            if number % 50 == 0:
                assert {path.name for path in outside.iterdir()} == set(before)
    record_property(
        "outcomes",
        {f"{name}: {outcome}": count for (name, outcome), count in sorted(outcomes.items())},
    )
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == before
    assert not [
        path
        for path in app.rglob("*")
        if path.is_file() and not path.is_symlink() and is_secret(path)
    ]
    for name in OPERATIONS:
        assert outcomes[name, "done"], (
            f"{name} never succeeded, so the test is inconclusive: {outcomes}"
        )
    assert sum(outcomes[name, "done"] for name in WRITES) > ATTEMPTS // 100
    assert (
        sum(count for (_, outcome), count in outcomes.items() if outcome == "denied")
        > ATTEMPTS // 100
    )
    assert (
        sum(count for (_, outcome), count in outcomes.items() if outcome == "done") > ATTEMPTS // 10
    )


def is_secret(path: Path) -> bool:
    return SECRET in path.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.spec("toolbus.fs-write.atomic")
def test_a_killed_writer_leaves_the_old_or_the_new_file(tmp_path: Path) -> None:
    file, backup = tmp_path / "file", tmp_path / "file.bak"
    file.write_text("z" * SIZE)
    letters = set()
    for _ in range(KILLS):
        kill_at_random(tmp_path)
        for path in (file, backup):
            content = path.read_text()
            assert (len(content), len(set(content))) == (SIZE, 1)
        letters.add(file.read_text()[0])
    assert len(letters) > 1


def kill_at_random(directory: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(directory), str(SIZE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(random.randint(2, 12)):
            assert process.stdout.readline()
        select.select([], [], [], random.random() * 0.005)
        process.kill()
