"""Removal of directories filled by hostile code: everything inside is removed, and nothing outside
is changed.

Root ignores the modes of directories, so the tests that depend on modes also run as an ordinary
user.
"""

import ctypes
import mmap
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cells_support import ROOT, as_ordinary_user, require_ordinary_user

from onetool_child.scratch import larger_than, remove


@pytest.fixture
def top(tmp_path: Path) -> Path:
    directory = tmp_path / "top"
    directory.mkdir()
    return directory


def _write_files(top: Path) -> None:
    (top / "a" / "b").mkdir(parents=True)
    for name in ("one", "a/two", "a/b/three"):
        (top / name).write_text("x", encoding="utf-8")


def _make_deep(top: Path) -> None:
    """Create directories that are deeper than any path can be long."""
    here = os.open(top, os.O_RDONLY)
    for _ in range(5000):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


def _make_broad(top: Path) -> None:
    for number in range(1000):
        (top / str(number)).touch()


def _make_long_names(top: Path) -> None:
    here = os.open(top, os.O_RDONLY)
    for _ in range(50):
        os.mkdir("d" * 255, dir_fd=here)
        inner = os.open("d" * 255, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


def _make_undecodable_names(top: Path) -> None:
    for number in range(1, 256):
        if number != ord("/"):
            (top / os.fsdecode(b"name" + bytes([number]))).mkdir()


def _make_names_of_the_cleaner(top: Path) -> None:
    for number in range(20):
        (top / f".up{number}" / "inner" / "more").mkdir(parents=True)
        (top / f".up{number}" / "inner" / "file").touch()
    for number in range(20, 30):
        (top / f".up{number}").touch()
    (top / "a" / "b" / "c").mkdir(parents=True)


def _make_pipes_and_sockets(top: Path) -> None:
    import socket

    os.mkfifo(top / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(top / "socket"))


def _make_inaccessible(top: Path) -> None:
    """Create directories that cannot be entered, read or written, at the top level and nested."""
    _write_files(top)
    for directory in (top, top / "a", top / "a" / "b"):
        for mode in (0o000, 0o100, 0o200, 0o300, 0o400, 0o500):
            inner = directory / f"{mode:o}"
            inner.mkdir()
            (inner / "folder" / "more").mkdir(parents=True)
            (inner / "folder" / "file").touch()
            inner.chmod(mode)
    (top / "a").chmod(0o000)


LITTER: dict[str, Callable[[Path], None]] = {
    "nothing": lambda _top: None,
    "files": _write_files,
    "folders 5,000 deep": _make_deep,
    "1,000 files": _make_broad,
    "long names": _make_long_names,
    "names that are no text": _make_undecodable_names,
    "the names that the cleaner uses itself": _make_names_of_the_cleaner,
    "pipes and sockets": _make_pipes_and_sockets,
    "folders that nobody may enter": _make_inaccessible,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LITTER)
def test_a_directory_is_removed_with_its_contents(top: Path, kind: str) -> None:
    LITTER[kind](top)
    remove(str(top))
    assert not os.path.lexists(top)


@pytest.mark.nightly
@pytest.mark.slow
def test_an_ordinary_user_can_remove_everything() -> None:
    require_ordinary_user()
    program = """
import sys, tempfile
from pathlib import Path
from tests.unit.test_scratch import LITTER
from onetool_child.scratch import remove
for kind, litter in LITTER.items():
    top = Path(tempfile.mkdtemp())
    litter(top)
    remove(str(top))
    if top.exists():
        sys.stdout.write(f'{kind} is left at {top}; ')
"""
    directory = tempfile.mkdtemp(dir="/tmp")
    Path(directory).chmod(0o777)
    try:
        done = subprocess.run(
            as_ordinary_user([sys.executable, "-c", program]),
            cwd=ROOT,
            env={**os.environ, "TMPDIR": directory},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        subprocess.run(["rm", "-rf", directory], check=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_targets_of_links_are_not_changed(top: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x", encoding="utf-8")
    (top / "folder").symlink_to(outside)
    (top / "file").symlink_to(outside / "kept")
    (top / "nowhere").symlink_to(tmp_path / "nowhere")
    (top / "inner").mkdir()
    (top / "inner" / "folder").symlink_to(outside)
    os.link(outside / "kept", top / "hard")
    remove(str(top))
    assert not top.exists()
    assert (outside / "kept").read_text(encoding="utf-8") == "x"


def test_a_link_in_place_of_the_directory_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "kept").touch()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    remove(str(tmp_path / "link"))
    assert (tmp_path / "real" / "kept").exists()


def test_a_missing_directory_is_not_an_error(tmp_path: Path) -> None:
    remove(str(tmp_path / "nowhere"))
    (tmp_path / "file").touch()
    remove(str(tmp_path / "file"))
    assert (tmp_path / "file").exists()


def test_a_directory_that_is_still_written_is_removed_when_writing_stops(top: Path) -> None:
    stop = threading.Event()

    def grow() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                (top / str(number)).touch()
            except OSError:
                return

    growing = threading.Thread(target=grow)
    growing.start()
    threading.Timer(0.1, stop.set).start()
    remove(str(top))
    growing.join()
    remove(str(top))
    assert not top.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["files", "folders 5,000 deep", "1,000 files", "folders that nobody may enter"]
)
def test_concurrent_removals_do_not_stop_each_other(top: Path, kind: str) -> None:
    """The server and the zygote both clean up at the end."""
    LITTER[kind](top)
    both = [threading.Thread(target=remove, args=[str(top)]) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert not top.exists()


def test_no_descriptor_is_left_open(top: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - descriptors of this process
    for litter in (_write_files, _make_inaccessible, _make_names_of_the_cleaner):
        top.mkdir(exist_ok=True)
        litter(top)
        larger_than(str(top), 1 << 20)
        remove(str(top))
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - see above


# --- sizes ----------------------------------------------------------------------------------------


def test_the_size_includes_nested_files(top: Path) -> None:
    (top / "a" / "b").mkdir(parents=True)
    for directory in (top, top / "a", top / "a" / "b"):
        (directory / "file").write_bytes(bytes(100_000))
    assert larger_than(str(top), 290_000)
    assert not larger_than(str(top), 340_000)


def test_each_small_file_counts_as_a_page(top: Path) -> None:
    for number in range(100):
        (top / str(number)).touch()
    assert larger_than(str(top), 99 * 4096)
    assert not larger_than(str(top), 101 * 4096)


def test_holes_of_sparse_files_do_not_count(top: Path) -> None:
    with (top / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    assert not larger_than(str(top), 1 << 20)


def test_targets_of_links_do_not_count(top: Path, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(1 << 20))
    (top / "link").symlink_to(tmp_path / "large")
    (top / "here").symlink_to(top)
    assert not larger_than(str(top), 100_000)


def test_files_beyond_the_path_length_limit_count(top: Path) -> None:
    here = os.open(top, os.O_RDONLY)
    for _ in range(60):
        os.mkdir("d" * 200, dir_fd=here)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    hidden = os.open("hidden", os.O_CREAT | os.O_WRONLY, dir_fd=here)
    os.write(hidden, bytes(4 << 20))
    os.close(hidden)
    os.close(here)
    assert larger_than(str(top), 2 << 20)


def test_files_that_appear_and_disappear_do_not_hide_others(top: Path) -> None:
    for number in range(300):
        (top / f"{number}").write_bytes(bytes(8192))
    stop = threading.Event()

    def flicker() -> None:
        while not stop.is_set():
            for number in range(20):
                (top / f"flicker{number}").touch()
            for number in range(20):
                (top / f"flicker{number}").unlink()

    flickering = threading.Thread(target=flicker)
    flickering.start()
    try:
        assert [larger_than(str(top), 290 * 8192) for _ in range(50)] == [True] * 50
    finally:
        stop.set()
        flickering.join()


def test_a_missing_directory_has_no_size(tmp_path: Path) -> None:
    assert not larger_than(str(tmp_path / "nowhere"), 0)


def _create_unlinked_file(top: Path) -> int:
    file = os.open(top / "file", os.O_CREAT | os.O_RDWR)
    (top / "file").unlink()
    os.ftruncate(file, mmap.PAGESIZE)
    return file


@pytest.mark.skipif(sys.platform != "linux", reason="requires the maps in /proc")
def test_a_mapped_unlinked_file_counts_as_too_large(top: Path) -> None:
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    file = _create_unlinked_file(top)
    mapped = libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_PRIVATE, file, 0)
    try:
        assert not larger_than(str(top), 1 << 20, [os.getpid()])
        os.close(file)
        assert larger_than(str(top), 1 << 20, [os.getpid()])
    finally:
        libc.munmap(mapped, mmap.PAGESIZE)
    assert not larger_than(str(top), 1 << 20, [os.getpid()])


@pytest.mark.skipif(sys.platform != "linux", reason="requires the maps in /proc")
def test_an_unlinked_file_mapped_by_python_counts_with_its_size(top: Path) -> None:
    file = _create_unlinked_file(top)
    with mmap.mmap(file, mmap.PAGESIZE), mmap.mmap(-1, mmap.PAGESIZE):
        os.close(file)
        assert not larger_than(str(top), 1 << 20, [os.getpid()])
