"""Directories that hostile code has filled: they go, whatever is in them, and nothing beyond them is touched.

The rights of a folder mean little to root, so what depends on them is tried once more as an ordinary user.
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
    folder = tmp_path / "top"
    folder.mkdir()
    return folder


def _files(top: Path) -> None:
    (top / "a" / "b").mkdir(parents=True)
    for name in ("one", "a/two", "a/b/three"):
        (top / name).write_text("x", encoding="utf-8")


def _deep(top: Path) -> None:
    """Deeper than any path can say."""
    here = os.open(top, os.O_RDONLY)
    for _ in range(5000):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


def _broad(top: Path) -> None:
    for number in range(1000):
        (top / str(number)).touch()


def _long_names(top: Path) -> None:
    here = os.open(top, os.O_RDONLY)
    for _ in range(50):
        os.mkdir("d" * 255, dir_fd=here)
        inner = os.open("d" * 255, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


def _no_text(top: Path) -> None:
    for number in range(1, 256):
        if number != ord("/"):
            (top / os.fsdecode(b"name" + bytes([number]))).mkdir()


def _names_of_the_cleaner(top: Path) -> None:
    for number in range(20):
        (top / f".up{number}" / "inner" / "more").mkdir(parents=True)
        (top / f".up{number}" / "inner" / "file").touch()
    for number in range(20, 30):
        (top / f".up{number}").touch()
    (top / "a" / "b" / "c").mkdir(parents=True)


def _pipes_and_sockets(top: Path) -> None:
    import socket

    os.mkfifo(top / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(top / "socket"))


def _closed(top: Path) -> None:
    """Directories that may not be entered, read or written, at the top and inside others."""
    _files(top)
    for folder in (top, top / "a", top / "a" / "b"):
        for mode in (0o000, 0o100, 0o200, 0o300, 0o400, 0o500):
            inner = folder / f"{mode:o}"
            inner.mkdir()
            (inner / "folder" / "more").mkdir(parents=True)
            (inner / "folder" / "file").touch()
            inner.chmod(mode)
    (top / "a").chmod(0o000)


LITTER: dict[str, Callable[[Path], None]] = {
    "nothing": lambda _top: None,
    "files": _files,
    "folders 5,000 deep": _deep,
    "1,000 files": _broad,
    "long names": _long_names,
    "names that are no text": _no_text,
    "the names that the cleaner uses itself": _names_of_the_cleaner,
    "pipes and sockets": _pipes_and_sockets,
    "folders that nobody may enter": _closed,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LITTER)
def test_a_folder_goes_with_all_that_is_in_it(top: Path, kind: str) -> None:
    LITTER[kind](top)
    remove(str(top))
    assert not os.path.lexists(top)


@pytest.mark.slow
def test_an_ordinary_user_can_remove_all_of_it_too() -> None:
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
    folder = tempfile.mkdtemp(dir="/tmp")
    Path(folder).chmod(0o777)
    try:
        done = subprocess.run(
            as_ordinary_user([sys.executable, "-c", program]),
            cwd=ROOT,
            env={**os.environ, "TMPDIR": folder},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_what_is_linked_is_not_touched(top: Path, tmp_path: Path) -> None:
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


def test_a_link_in_place_of_the_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "kept").touch()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    remove(str(tmp_path / "link"))
    assert (tmp_path / "real" / "kept").exists()


def test_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    remove(str(tmp_path / "nowhere"))
    (tmp_path / "file").touch()
    remove(str(tmp_path / "file"))
    assert (tmp_path / "file").exists()


def test_a_folder_that_still_grows_goes_when_it_stops(top: Path) -> None:
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
@pytest.mark.parametrize("kind", ["files", "folders 5,000 deep", "1,000 files", "folders that nobody may enter"])
def test_two_who_remove_the_same_folder_do_not_stop_each_other(top: Path, kind: str) -> None:
    """The server and the zygote both clean up when all ends."""
    LITTER[kind](top)
    both = [threading.Thread(target=remove, args=[str(top)]) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert not top.exists()


def test_no_descriptor_is_left_open(top: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - of this process alone
    for litter in (_files, _closed, _names_of_the_cleaner):
        top.mkdir(exist_ok=True)
        litter(top)
        larger_than(str(top), 1 << 20)
        remove(str(top))
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - see above


# --- measuring -----------------------------------------------------------------------------------------------------


def test_the_size_is_that_of_all_files_below(top: Path) -> None:
    (top / "a" / "b").mkdir(parents=True)
    for folder in (top, top / "a", top / "a" / "b"):
        (folder / "file").write_bytes(bytes(100_000))
    assert larger_than(str(top), 290_000)
    assert not larger_than(str(top), 340_000)


def test_many_small_files_count_as_a_page_each(top: Path) -> None:
    for number in range(100):
        (top / str(number)).touch()
    assert larger_than(str(top), 99 * 4096)
    assert not larger_than(str(top), 101 * 4096)


def test_holes_do_not_count(top: Path) -> None:
    with (top / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    assert not larger_than(str(top), 1 << 20)


def test_what_is_linked_does_not_count(top: Path, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(1 << 20))
    (top / "link").symlink_to(tmp_path / "large")
    (top / "here").symlink_to(top)
    assert not larger_than(str(top), 100_000)


def test_what_no_path_reaches_counts_too(top: Path) -> None:
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


def test_files_that_come_and_go_do_not_hide_the_others(top: Path) -> None:
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


def test_a_folder_that_is_not_there_has_no_size(tmp_path: Path) -> None:
    assert not larger_than(str(tmp_path / "nowhere"), 0)


def _nameless(top: Path) -> int:
    file = os.open(top / "file", os.O_CREAT | os.O_RDWR)
    (top / "file").unlink()
    os.ftruncate(file, mmap.PAGESIZE)
    return file


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a process maps")
def test_a_mapped_file_without_a_name_counts_as_too_much(top: Path) -> None:
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    file = _nameless(top)
    mapped = libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_PRIVATE, file, 0)
    try:
        assert not larger_than(str(top), 1 << 20, [os.getpid()])
        os.close(file)
        assert larger_than(str(top), 1 << 20, [os.getpid()])
    finally:
        libc.munmap(mapped, mmap.PAGESIZE)
    assert not larger_than(str(top), 1 << 20, [os.getpid()])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a process maps")
def test_a_file_without_a_name_that_python_maps_counts_by_its_size(top: Path) -> None:
    file = _nameless(top)
    with mmap.mmap(file, mmap.PAGESIZE), mmap.mmap(-1, mmap.PAGESIZE):
        os.close(file)
        assert not larger_than(str(top), 1 << 20, [os.getpid()])
