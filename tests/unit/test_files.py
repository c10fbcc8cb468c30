"""File access of tools with both openers: allowed and denied paths, writes, moves and the trash."""

import base64
import errno
import os
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.cells_support import IS_ROOT, ORDINARY_USER

from onetool.errors import ArgumentError, SandboxDenied, ToolError
from onetool.sources import files as disk
from onetool.sources.builtin import fs_tools as fs
from onetool.sources.files import TRASH, Files, writing
from onetool.sources.files.files import (
    Opener,
    choose_opener,
    get_descriptor_path,
    open_by_kernel,
    open_by_walking,
)
from onetool.util.context import ToolContext

OPENERS = {"kernel": open_by_kernel, "walking": open_by_walking}


@pytest.fixture(params=OPENERS)
def opener(request: pytest.FixtureRequest) -> Opener:
    chosen: Opener = OPENERS[request.param]
    return chosen


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Return an allowed directory with a secret next to it."""
    for directory in ("app/src/deep", "lib", "outside", "app2"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "app/src/a.txt").write_text("alpha")
    (tmp_path / "lib/b.txt").write_text("beta")
    (tmp_path / "app2/x").write_text("secret")
    (tmp_path / "outside/secret.txt").write_text("secret")
    return tmp_path / "app"


def make_context(app: Path, **sandbox: Any) -> ToolContext:
    return ToolContext(working_dir=app, sandbox={"enabled": True, **sandbox})


def make_files(app: Path, opener: Opener | None = None, **sandbox: Any) -> Files:
    return Files(make_context(app, **sandbox), opener)


def text(opened: Files, path: str) -> str:
    return disk.read(opened, path, 1 << 20).data.decode()


def read_tree(directory: Path) -> dict[str, bytes | None]:
    found = sorted(directory.rglob("*"))
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in found
    }


@pytest.fixture(autouse=True)
def check_descriptors() -> Iterator[None]:
    before = len(list(Path("/proc/self/fd").iterdir()))
    yield
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


# --- openers --------------------------------------------------------------------------------------


def test_the_kernel_opener_is_chosen_where_it_works() -> None:
    assert choose_opener() is open_by_kernel


def test_a_kernel_without_openat2_gets_the_walking_opener(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> int:
        raise OSError(errno.ENOSYS, "no such call")

    monkeypatch.setattr("onetool.sources.files.files.open_by_kernel", missing)
    assert choose_opener() is open_by_walking


def test_an_opener_opens_names_below_and_follows_no_link(app: Path, opener: Opener) -> None:
    (app / "link").symlink_to("src")
    (app / "src/up").symlink_to("..")
    start = os.open(app, os.O_PATH)
    try:
        descriptor = opener(start, ["src", "deep"], os.O_PATH | os.O_DIRECTORY)
        assert get_descriptor_path(descriptor) == f"{app}/src/deep"
        os.close(descriptor)
        for names in (
            ["link"],
            ["link", "deep"],
            ["src", "up"],
            [".."],
            ["src", "..", "..", "outside"],
            ["none"],
        ):
            with pytest.raises(OSError, match="Errno"):
                opener(start, names, os.O_PATH | os.O_DIRECTORY)
    finally:
        os.close(start)


# --- reading --------------------------------------------------------------------------------------


def test_files_inside_the_sandbox_are_read(app: Path, opener: Opener) -> None:
    for path in (
        "src/a.txt",
        "./src//a.txt",
        "src/deep/../a.txt",
        str(app / "src/a.txt"),
        f"//{app}/src/a.txt",
    ):
        content = disk.read(make_files(app, opener), path, 100)
        assert (content.data, content.path) == (b"alpha", f"{app}/src/a.txt")


def test_links_inside_the_sandbox_are_followed(app: Path, opener: Opener) -> None:
    (app / "relative").symlink_to("src/a.txt")
    (app / "absolute").symlink_to(app / "src" / "a.txt")
    (app / "folder").symlink_to(app / "src")
    (app / "chain").symlink_to("folder")
    (app / "other_root").symlink_to(app.parent / "lib")
    (app.parent / "from_outside").symlink_to(app)
    opened = make_files(app, opener, allowed_paths=[".", "../lib"])
    for path in (
        "relative",
        "absolute",
        "folder/a.txt",
        "chain/a.txt",
        "../from_outside/src/a.txt",
        "chain/deep/../a.txt",
    ):
        assert text(opened, path) == "alpha"
    assert text(opened, "other_root/b.txt") == "beta"


def test_an_allowed_path_may_be_a_link_a_file_or_missing(app: Path, opener: Opener) -> None:
    (app / "way").symlink_to(app.parent / "lib")
    (app / "src/c.txt").write_text("gamma")
    opened = make_files(app, opener, allowed_paths=["way", "src/a.txt", "not/there"])
    assert text(opened, "way/b.txt") == "beta"
    assert text(opened, "src/a.txt") == "alpha"
    for path in ("src/c.txt", "src", ".", "src/a.txt2"):
        with pytest.raises(SandboxDenied):
            text(opened, path)
    with pytest.raises(FileNotFoundError):
        text(opened, "not/there/x")


def test_the_whole_machine_may_be_allowed(app: Path, opener: Opener) -> None:
    opened = make_files(app, opener, allowed_paths=["/"], denied_patterns=["outside"])
    assert text(opened, "src/a.txt") == "alpha"
    assert disk.stat_path(opened, "/")[0] == "/"
    with pytest.raises(SandboxDenied):
        text(opened, "../outside/secret.txt")


def test_without_a_sandbox_everything_is_read(app: Path, opener: Opener) -> None:
    for sandbox in (None, {"enabled": False, "denied_patterns": ["*"]}):
        opened = Files(ToolContext(working_dir=app, sandbox=sandbox), opener)
        assert text(opened, "../outside/secret.txt") == "secret"


def test_circular_links_are_reported(app: Path, opener: Opener) -> None:
    (app / "one").symlink_to("two")
    (app / "two").symlink_to("one")
    (app / "self").symlink_to("self/x")
    for path in ("one", "one/x", "self", "self/y"):
        with pytest.raises((ToolError, FileNotFoundError), match=r"are circular|not found"):
            text(make_files(app, opener), path)


def test_a_missing_file_is_reported(app: Path, opener: Opener) -> None:
    (app / "dangling").symlink_to("nothing")
    for path in ("nothing", "nothing/x", "src/a.txt/x", "dangling", "dangling/x"):
        with pytest.raises(FileNotFoundError, match=f"^File not found: {path}$"):
            text(make_files(app, opener), path)


def test_only_regular_files_are_opened_without_blocking(app: Path, opener: Opener) -> None:
    os.mkfifo(app / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(app)  # the path of a socket must be short
        listener.bind("socket")
        os.chdir(here)
        for path in ("pipe", "socket"):
            with pytest.raises(ToolError, match="not a regular file"):
                text(make_files(app, opener), path)
    opened = Files(ToolContext(working_dir=app), opener)
    for path in ("/dev/null", "/dev/zero", "/dev/tty"):
        with pytest.raises(ToolError, match="not a regular file"):
            text(opened, path)
    with pytest.raises(ToolError, match="is a directory"):
        text(make_files(app, opener), "src")


def test_the_size_limit_applies_to_what_is_read(app: Path) -> None:
    (app / "empty").touch()
    (app / "full").write_bytes(b"x" * 10)
    assert disk.read(make_files(app), "full", 10).data == b"x" * 10
    assert disk.read(make_files(app), "empty", 0).data == b""
    with pytest.raises(ToolError, match="File too large: 10 bytes") as caught:
        disk.read(make_files(app), "full", 9)
    assert (caught.value.size, caught.value.max_size) == (10, 9)
    kernel = Files(ToolContext())
    assert Path("/proc/self/status").stat().st_size == 0
    assert b"Name:" in disk.read(kernel, f"/proc/{os.getpid()}/status", 1 << 16).data
    with pytest.raises(ToolError, match="File too large"):
        disk.read(kernel, f"/proc/{os.getpid()}/status", 10)


def test_reads_check_encoding_and_size(app: Path) -> None:
    (app / "bytes").write_bytes(b"\xff\x00")
    (app / "latin").write_bytes("é\r\n".encode("latin-1"))
    assert (
        base64.b64decode(fs.read("bytes", make_context(app), encoding="base64")["content"])
        == b"\xff\x00"
    )
    assert fs.read("latin", make_context(app), encoding="latin-1")["content"] == "é\r\n"
    with pytest.raises(ToolError, match=r'bytes is not valid utf-8 .*encoding="base64"'):
        fs.read("bytes", make_context(app))
    for size in (-1, 1 << 40):
        with pytest.raises(ArgumentError, match="invalid max_size"):
            fs.read("bytes", make_context(app), max_size=size)


# --- races ----------------------------------------------------------------------------------------


def make_swapping_opener(opener: Opener, swap: Callable[[], None], times: int) -> Opener:
    """Return an opener that calls `swap` between the check and the opening."""
    left = [times]

    def opened(start: int, names: Sequence[str], flags: int) -> int:
        if left[0]:
            left[0] -= 1
            swap()
        return opener(start, names, flags)

    return opened


@pytest.mark.parametrize("times", [1, 1000])
def test_a_directory_replaced_by_a_link_gains_no_access(
    app: Path, opener: Opener, times: int
) -> None:
    (app / "src/secret.txt").write_text("harmless")

    def swap() -> None:
        if not (app / "src").is_symlink():
            (app / "src").rename(app / "gone")
            (app / "src").symlink_to(app.parent / "outside")

    operations: list[Callable[[Files], object]] = [
        lambda opened: text(opened, "src/secret.txt"),
        lambda opened: disk.write(opened, "src/secret.txt", b"overwritten"),
        lambda opened: disk.write(opened, "src/new/deep.txt", b"new", create_folders=True),
        lambda opened: disk.list_entries(opened, "src", "*", 100),
        lambda opened: disk.stat_path(opened, "src/secret.txt"),
        lambda opened: disk.delete(opened, "src/secret.txt", recursive=False),
        lambda opened: disk.move(opened, "src/secret.txt", "taken", overwrite=False),
        lambda opened: disk.copy(opened, "src/secret.txt", "taken", overwrite=False),
        lambda opened: opened.resolve_search_root("src/secret.txt"),
    ]
    before = read_tree(app.parent / "outside")
    for operate in operations:
        with pytest.raises(SandboxDenied):
            operate(make_files(app, make_swapping_opener(opener, swap, times)))
        (app / "src").unlink()
        (app / "gone").rename(app / "src")
    assert read_tree(app.parent / "outside") == before
    assert not (app / "taken").exists()


def test_a_directory_replaced_repeatedly_ends_in_an_error(app: Path, opener: Opener) -> None:
    """The path is a directory at every check and a link at every opening."""
    (app / "other").mkdir()
    (app / "other/a.txt").write_text("alpha")

    def flip(start: int, names: Sequence[str], flags: int) -> int:
        (app / "src").rename(app / "gone")
        (app / "src").symlink_to("other")
        try:
            return opener(start, names, flags)
        finally:
            (app / "src").unlink()
            (app / "gone").rename(app / "src")

    with pytest.raises((ToolError, FileNotFoundError), match=r"keep changing|not found"):
        text(make_files(app, flip), "src/a.txt")


def test_a_link_changed_inside_the_sandbox_is_followed_to_its_new_target(
    app: Path, opener: Opener
) -> None:
    (app / "one").mkdir()
    (app / "two").mkdir()
    (app / "two/x").write_text("two")
    (app / "current").symlink_to("one")

    def swap() -> None:
        (app / "current").unlink()
        (app / "current").symlink_to("two")
        (app / "one").rmdir()

    assert text(make_files(app, make_swapping_opener(opener, swap, 1)), "current/x") == "two"


def test_a_directory_moved_out_of_the_sandbox_is_not_read(app: Path, opener: Opener) -> None:
    """The descriptor is valid, but its directory is now outside of the sandbox."""

    def moved_out(start: int, names: Sequence[str], flags: int) -> int:
        descriptor = opener(start, names, flags)
        if get_descriptor_path(descriptor) == f"{app}/src":
            (app / "src").rename(app.parent / "outside/src")
        return descriptor

    with pytest.raises(SandboxDenied):
        text(make_files(app, moved_out), "src/a.txt")


def test_a_directory_renamed_to_a_denied_name_is_not_read(app: Path, opener: Opener) -> None:
    def renamed(start: int, names: Sequence[str], flags: int) -> int:
        descriptor = opener(start, names, flags)
        if get_descriptor_path(descriptor) == f"{app}/src":
            (app / "src").rename(app / "private")
        return descriptor

    with pytest.raises(SandboxDenied):
        text(make_files(app, renamed, denied_patterns=["private"]), "src/a.txt")


# --- writing --------------------------------------------------------------------------------------


def test_a_new_file_is_written(app: Path, opener: Opener) -> None:
    before = os.umask(0o077)
    try:
        written = disk.write(make_files(app, opener), "new.txt", b"new")
    finally:
        os.umask(before)
    assert (written.path, written.size, written.backup_path) == (f"{app}/new.txt", 3, None)
    assert stat.S_IMODE((app / "new.txt").stat().st_mode) == 0o644
    assert sorted(path.name for path in app.iterdir()) == ["new.txt", "src"]


def test_an_old_file_keeps_its_mode_and_its_bytes_in_the_backup(app: Path, opener: Opener) -> None:
    file = app / "src/a.txt"
    file.chmod(0o640)
    written = disk.write(make_files(app, opener), "src/a.txt", b"new")
    assert written.backup_path == f"{app}/src/a.txt.bak"
    assert (file.read_text(), (app / "src/a.txt.bak").read_text()) == ("new", "alpha")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    disk.write(make_files(app, opener), "src/a.txt", b"newer", mode=0o600)
    assert ((app / "src/a.txt.bak").read_text(), stat.S_IMODE(file.stat().st_mode)) == (
        "new",
        0o600,
    )
    assert (
        disk.write(make_files(app, opener), "src/a.txt", b"newest", backup=False).backup_path
        is None
    )
    assert (app / "src/a.txt.bak").read_text() == "new"
    assert sorted(path.name for path in (app / "src").iterdir()) == ["a.txt", "a.txt.bak", "deep"]


def test_writing_replaces_one_of_two_hard_links(app: Path) -> None:
    os.link(app.parent / "outside/secret.txt", app / "twin")
    disk.write(make_files(app), "twin", b"new")
    disk.write(make_files(app), "twin.bak", b"newer")
    assert (app.parent / "outside/secret.txt").read_text() == "secret"


def test_the_backup_is_a_copy_without_hard_links(
    app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "not here")

    monkeypatch.setattr(os, "link", refused)
    (app / "src/a.txt").chmod(0o600)
    disk.write(make_files(app), "src/a.txt", b"new")
    kept = app / "src/a.txt.bak"
    assert (kept.read_text(), stat.S_IMODE(kept.stat().st_mode)) == ("alpha", 0o600)
    assert sorted(path.name for path in (app / "src").iterdir()) == ["a.txt", "a.txt.bak", "deep"]


def test_a_pipe_that_replaces_the_file_does_not_block(
    app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swapped(*_: object, **__: object) -> None:
        (app / "src/a.txt").unlink()
        os.mkfifo(app / "src/a.txt")
        raise OSError(errno.EPERM, "not here")

    monkeypatch.setattr(os, "link", swapped)
    with pytest.raises(ToolError, match="not a regular file"):
        disk.write(make_files(app), "src/a.txt", b"new")


def test_writing_through_a_link_writes_an_allowed_target(app: Path, opener: Opener) -> None:
    (app / "link").symlink_to("src/a.txt")
    (app / "to_come").symlink_to("src/new.txt")
    (app / "out").symlink_to(app.parent / "outside/secret.txt")
    (app / "out_new").symlink_to(app.parent / "outside/new.txt")
    assert disk.write(make_files(app, opener), "link", b"new").path == f"{app}/src/a.txt"
    assert disk.write(make_files(app, opener), "to_come", b"new").path == f"{app}/src/new.txt"
    assert (app / "link").is_symlink()
    for path in ("out", "out_new"):
        with pytest.raises(SandboxDenied):
            disk.write(make_files(app, opener), path, b"overwritten")
    assert read_tree(app.parent / "outside") == {"secret.txt": b"secret"}


def test_a_link_with_the_name_of_the_backup_is_replaced(app: Path) -> None:
    (app / "src/a.txt.bak").symlink_to(app.parent / "outside/secret.txt")
    disk.write(make_files(app), "src/a.txt", b"new")
    assert not (app / "src/a.txt.bak").is_symlink()
    assert (app.parent / "outside/secret.txt").read_text() == "secret"


def test_a_denied_pattern_covers_the_backup_too(app: Path) -> None:
    opened = make_files(app, denied_patterns=["*.bak"])
    assert disk.write(opened, "new.txt", b"new").backup_path is None
    with pytest.raises(
        SandboxDenied,
        match=r"new\.txt\.bak\. It matches a pattern in denied_patterns\. Pass backup=False",
    ):
        disk.write(opened, "new.txt", b"newer")
    assert disk.write(opened, "new.txt", b"newer", backup=False).size == 5


def test_directories_are_created_on_request(app: Path, opener: Opener) -> None:
    with pytest.raises(
        FileNotFoundError,
        match=r"directory not found for a/b/c\.txt; create_folders=True creates it",
    ):
        fs.write("a/b/c.txt", "c", make_context(app))
    disk.write(make_files(app, opener), "a/b/c.txt", b"c", create_folders=True)
    disk.write(make_files(app, opener), "a/b/d.txt", b"d", create_folders=True)
    assert read_tree(app / "a") == {"b": None, "b/c.txt": b"c", "b/d.txt": b"d"}
    deep = "/".join("d" * 900) + "/x"
    assert disk.write(make_files(app, opener), deep, b"deep", create_folders=True).size == 4


def test_concurrent_writers_leave_complete_files_only(app: Path) -> None:
    def many(letter: str) -> None:
        for _ in range(15):
            disk.write(make_files(app), "shared", letter.encode() * 50_000)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(many, "abcdef"))
    for name in ("shared", "shared.bak"):
        content = (app / name).read_text()
        assert (len(content), len(set(content))) == (50_000, 1)
    assert sorted(path.name for path in app.iterdir()) == ["shared", "shared.bak", "src"]


def test_only_regular_files_are_replaced(app: Path, opener: Opener) -> None:
    os.mkfifo(app / "pipe")
    for path in ("src", "pipe", "."):
        with pytest.raises(ToolError, match="not a regular file"):
            disk.write(make_files(app, opener), path, b"new")
    assert stat.S_ISFIFO((app / "pipe").stat().st_mode)


def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    before = read_tree(app)
    with pytest.raises(ToolError, match=r"No space left on device: src/a\.txt"):
        disk.write(make_files(app), "src/a.txt", b"new")
    assert read_tree(app) == before


@pytest.mark.parametrize("mode", ["0644", "644", 0o644, "0o644"])
def test_modes_are_accepted_as_numbers_and_strings(app: Path, mode: int | str) -> None:
    fs.write("x", "x", make_context(app), mode=mode)
    assert fs.stat("x", make_context(app))["mode"] == "0644"


@pytest.mark.parametrize(
    "mode", ["4755", 0o4755, 644, "rw-r--r--", "", "-1", "0888", -1, "9" * 5000]
)
def test_an_invalid_mode_is_rejected(app: Path, mode: int | str) -> None:
    with pytest.raises(ArgumentError, match=r"invalid mode .*: expected permissions such as"):
        fs.write("x", "x", make_context(app), mode=mode)
    assert not (app / "x").exists()


def test_content_that_cannot_be_encoded_is_rejected(app: Path) -> None:
    with pytest.raises(ToolError, match="cannot encode the content as utf-8: character 1"):
        fs.write("x", "a\ud800", make_context(app))
    with pytest.raises(ToolError, match="not valid base64"):
        fs.write("x", "*", make_context(app), encoding="base64")
    assert fs.write("x", "/wA=", make_context(app), encoding="base64")["size"] == 2
    assert (app / "x").read_bytes() == b"\xff\x00"


@pytest.mark.skipif(not IS_ROOT, reason="only root can change the user")
def test_read_only_files_are_not_replaced() -> None:
    with TemporaryDirectory() as directory:
        app = Path(directory)
        app.chmod(0o777)
        for name, mode in (("protected", 0o444), ("unreadable", 0)):
            (app / name).write_text("alpha")
            (app / name).chmod(mode)
        (app / "closed").mkdir(mode=0o700)
        os.seteuid(ORDINARY_USER)
        try:
            with pytest.raises(PermissionError, match=r"^Permission denied: protected$"):
                disk.write(make_files(app), "protected", b"new")
            with pytest.raises(PermissionError, match=r"^Permission denied: unreadable$"):
                text(make_files(app), "unreadable")
            for operate in (disk.stat_path, text):
                with pytest.raises(PermissionError, match=r"^Permission denied: closed/x$"):
                    operate(make_files(app), "closed/x")
            with pytest.raises(PermissionError, match=r"^Permission denied: closed$"):
                list_names(app, "closed")
            assert list_names(app, ".", "**") == ["closed", "protected", "unreadable"]
        finally:
            os.seteuid(0)
        assert (app / "protected").read_text() == "alpha"


# --- editing --------------------------------------------------------------------------------------


def test_an_exact_text_is_replaced(app: Path) -> None:
    (app / "x").write_bytes("one\r\ntwo\r\none é".encode())
    edited = fs.edit("x", "two\r\n", "2\r\n", make_context(app))
    assert (edited["replaced"], edited["backup_path"]) == (1, f"{app}/x.bak")
    assert fs.edit("x", "one", "1", make_context(app), count=2)["replaced"] == 2
    assert (app / "x").read_bytes() == "1\r\n2\r\n1 é".encode()


@pytest.mark.parametrize(
    ("old", "count", "found"), [("a", 1, 3), ("b", 1, 0), ("a", 4, 3), ("bc", 0, 0), ("aaa", 3, 1)]
)
def test_an_edit_with_the_wrong_count_changes_nothing(
    app: Path, old: str, count: int, found: int
) -> None:
    (app / "x").write_text("aaa")
    with pytest.raises(ToolError, match=rf"has {found} occurrences? in x, expected {count}"):
        fs.edit("x", old, "new", make_context(app), count)
    assert sorted(path.name for path in app.iterdir()) == ["src", "x"]


def test_an_edit_that_would_use_too_much_memory_is_rejected(app: Path) -> None:
    (app / "x").write_text("a" * 100_000)
    with pytest.raises(ToolError, match="would make x larger than"):
        fs.edit("x", "a", "b" * 100_000, make_context(app), count=100_000)


def test_an_edit_of_a_concurrently_changed_file_changes_nothing(app: Path) -> None:
    opened = make_files(app)
    content = disk.read(opened, "src/a.txt", 100)
    (app / "src/a.txt").write_text("changed")
    with pytest.raises(ToolError, match="changed since it was read"):
        disk.write(opened, "src/a.txt", b"new", expected=content.status)
    assert (app / "src/a.txt").read_text() == "changed"


# --- listing --------------------------------------------------------------------------------------


def list_names(
    app: Path, *arguments: Any, sandbox: dict[str, Any] | None = None, **options: Any
) -> list[str]:
    return [
        entry["name"]
        for entry in fs.list(make_context(app, **(sandbox or {})), *arguments, **options)
    ]


def test_a_directory_is_listed_in_order(app: Path) -> None:
    (app / "b").write_text("bb")
    (app / ".hidden").touch()
    os.mkfifo(app / "pipe")
    assert fs.list(make_context(app)) == [
        {"name": ".hidden", "type": "file", "size": 0},
        {"name": "b", "type": "file", "size": 2},
        {"name": "pipe", "type": "other", "size": 0},
        {"name": "src", "type": "dir", "size": 0},
    ]


@pytest.mark.parametrize(
    ("pattern", "recursive", "found"),
    [
        ("*.txt", False, []),
        ("**/*.txt", False, ["src/a.txt", "src/deep/z.txt"]),
        ("src/*", False, ["src/a.txt", "src/deep"]),
        ("*.txt", True, ["src/a.txt", "src/deep/z.txt"]),
        (None, True, ["src", "src/a.txt", "src/deep", "src/deep/z.txt"]),
        ("**", False, ["src", "src/a.txt", "src/deep", "src/deep/z.txt"]),
        ("src/**/z.txt", False, ["src/deep/z.txt"]),
        ("none/*", False, []),
    ],
)
def test_entries_are_filtered_by_pattern(
    app: Path, pattern: str | None, recursive: bool, found: list[str]
) -> None:
    (app / "src/deep/z.txt").touch()
    assert list_names(app, ".", pattern, recursive) == found


@pytest.mark.parametrize("pattern", ["", "/etc/*", "../*", "src/../../*", "x" * 5000])
def test_a_pattern_that_leaves_the_directory_is_rejected(app: Path, pattern: str) -> None:
    with pytest.raises(ArgumentError, match="leaves the directory"):
        list_names(app, ".", pattern)


def test_denied_files_are_not_listed(app: Path) -> None:
    (app / ".env").touch()
    (app / "kept").mkdir()
    (app / "kept/secrets.yaml").touch()
    (app / "out").symlink_to(app.parent / "outside")
    (app / "out_file").symlink_to(app.parent / "outside/secret.txt")
    (app / "out_nothing").symlink_to(app.parent / "outside/nothing")
    (app / "env_link").symlink_to(".env")
    (app / "in").symlink_to("src")
    (app / "in_nothing").symlink_to("nothing")
    (app / "circle").symlink_to("circle")
    (app / "up").symlink_to(".")
    sandbox = {"denied_patterns": [".env*"], "hidden_paths": [str(app / "kept/secrets.yaml")]}
    assert list_names(app, ".", None, True, sandbox=sandbox) == [
        "circle", "in", "in_nothing", "kept", "src", "src/a.txt", "src/deep", "up",
    ]  # fmt: skip
    types = {entry["name"]: entry["type"] for entry in fs.list(make_context(app))}
    assert [types[name] for name in ("in", "in_nothing", "circle", "up")] == [
        "dir",
        "other",
        "other",
        "dir",
    ]


def test_a_list_is_never_truncated(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        (app / str(number)).touch()
    assert len(list_names(app, max_results=6)) == 6
    with pytest.raises(ToolError, match="more than 5 entries"):
        list_names(app, max_results=5)
    with pytest.raises(ArgumentError, match="expected 1 or more"):
        list_names(app, max_results=0)
    monkeypatch.setattr("onetool.sources.files.reading.MAX_SCANNED_ENTRIES", 3)
    with pytest.raises(ToolError, match="more than 3 entries"):
        list_names(app, pattern="nothing*")


def test_undecodable_names_are_omitted_and_a_file_is_not_listed(app: Path) -> None:
    (app / os.fsdecode(b"\xff")).touch()
    assert list_names(app) == ["src"]
    with pytest.raises(ToolError, match="not a directory"):
        list_names(app, "src/a.txt")
    with pytest.raises(FileNotFoundError):
        list_names(app, "nothing")


# --- stat -----------------------------------------------------------------------------------------


def test_stat_returns_path_type_size_and_mode(app: Path) -> None:
    os.utime(app / "src/a.txt", (0, 0))
    (app / "src/a.txt").chmod(0o640)
    (app / "link").symlink_to("src/a.txt")
    expected = {
        "path": f"{app}/src/a.txt",
        "type": "file",
        "size": 5,
        "modified": "1970-01-01T00:00:00+00:00",
        "mode": "0640",
    }
    assert fs.stat("src/a.txt", make_context(app)) == fs.stat("link", make_context(app)) == expected
    assert fs.stat(".", make_context(app))["type"] == "dir"
    os.mkfifo(app / "pipe")
    assert fs.stat("pipe", make_context(app))["type"] == "other"


# --- deleting, moving, copying --------------------------------------------------------------------


def test_a_deleted_file_can_be_restored(app: Path, opener: Opener) -> None:
    kept = disk.delete(make_files(app, opener), "src/a.txt", recursive=False)
    assert kept.startswith(f"{app}/{TRASH}/")
    assert kept.endswith("/a.txt")
    assert not (app / "src/a.txt").exists()
    assert (
        disk.move(make_files(app, opener), kept, "src/a.txt", overwrite=False) == f"{app}/src/a.txt"
    )
    assert text(make_files(app, opener), "src/a.txt") == "alpha"


def test_a_directory_is_deleted_only_with_recursive(app: Path, opener: Opener) -> None:
    with pytest.raises(ToolError, match="recursive=True"):
        disk.delete(make_files(app, opener), "src", recursive=False)
    kept = disk.delete(make_files(app, opener), "src", recursive=True)
    assert read_tree(Path(kept)) == {"a.txt": b"alpha", "deep": None}


def test_the_trash_is_kept_out_of_lists_and_repositories_and_is_not_deleted(app: Path) -> None:
    kept = disk.delete(make_files(app), "src/a.txt", recursive=False)
    assert (app / TRASH / ".gitignore").read_text() == "*\n"
    assert list_names(app, ".", None, True) == [TRASH, "src", "src/deep"]
    assert list_names(app, TRASH, "**/a.txt") == [Path(kept).relative_to(app / TRASH).as_posix()]
    for path in (kept, TRASH, str(Path(kept).parent)):
        with pytest.raises(ToolError, match="already in the trash"):
            disk.delete(make_files(app), path, recursive=True)


def test_a_link_is_deleted_and_moved_itself(app: Path, opener: Opener) -> None:
    (app / "link").symlink_to("src/a.txt")
    (app / "out").symlink_to(app.parent / "outside/secret.txt")
    disk.move(make_files(app, opener), "link", "link2", overwrite=False)
    assert (app / "link2").is_symlink()
    for path in ("link2", "out"):
        kept = Path(disk.delete(make_files(app, opener), path, recursive=False))
        assert kept.is_symlink()
    assert text(make_files(app, opener), "src/a.txt") == "alpha"
    with pytest.raises(SandboxDenied):
        text(make_files(app, opener), str(kept))


def test_without_a_sandbox_the_trash_can_be_used(app: Path) -> None:
    opened = Files(ToolContext(working_dir=app))
    assert disk.delete(opened, "src/a.txt", recursive=False).startswith(f"{app}/{TRASH}/")
    kept = disk.delete(opened, str(app.parent / "lib/b.txt"), recursive=False)
    assert kept.startswith(f"{app.parent}/lib/{TRASH}/")


@pytest.mark.parametrize("path", [".", "src/..", "", "..", "/"])
def test_the_allowed_directory_itself_cannot_be_deleted(app: Path, path: str) -> None:
    with pytest.raises(ToolError):
        disk.delete(make_files(app), path, recursive=True)
    with pytest.raises(ToolError):
        disk.move(make_files(app), path, "src/deep/x", overwrite=True)
    assert (app / "src/a.txt").exists()


def test_directories_with_rules_cannot_be_moved(app: Path) -> None:
    sandbox: list[dict[str, Any]] = [
        {"denied_patterns": ["src/secret"]},
        {"hidden_paths": [str(app / "src/deep/x")]},
        {"protected_paths": [str(app / "src/deep")]},
        {"allowed_paths": [".", "src/deep"]},
    ]
    for rules in sandbox:
        with pytest.raises(ToolError, match="cannot move or delete"):
            disk.move(make_files(app, **rules), "src", "other", overwrite=False)
        with pytest.raises(ToolError, match="cannot move or delete"):
            disk.delete(make_files(app, **rules), "src", recursive=True)


def test_moving_a_directory_creates_no_protected_files(app: Path) -> None:
    """Reject moving a directory or a link that contains files which are not allowed in
    .onetool/tools.
    """
    opened = make_files(
        app, protected_paths=[str(app / ".onetool/tools")], denied_patterns=["config/*.key"]
    )
    disk.write(opened, "made/tools/evil_tools.py", b"evil", create_folders=True)
    disk.write(opened, "made/a.key", b"evil")
    (app / "link").symlink_to("made")
    for source in ("made", "link"):
        for target in (".onetool", "config"):
            with pytest.raises(ToolError, match=f"cannot move to {target}"):
                disk.move(opened, source, target, overwrite=True)
    assert sorted(path.name for path in app.iterdir()) == ["link", "made", "src"]


def test_files_and_directories_are_moved(app: Path, opener: Opener) -> None:
    (app / "x").write_text("x")
    opened = make_files(app, opener)
    with pytest.raises(ToolError, match=r"src/a\.txt already exists"):
        disk.move(opened, "x", "src/a.txt", overwrite=False)
    assert disk.move(opened, "x", "src/a.txt", overwrite=True) == f"{app}/src/a.txt"
    assert (
        disk.move(opened, "src", "lib/sub", overwrite=False, create_folders=True)
        == f"{app}/lib/sub"
    )
    assert read_tree(app) == {
        "lib": None,
        "lib/sub": None,
        "lib/sub/a.txt": b"x",
        "lib/sub/deep": None,
    }
    with pytest.raises(FileNotFoundError, match="File not found: nothing"):
        disk.move(opened, "nothing", "y", overwrite=False)
    with pytest.raises(ToolError, match="into itself"):
        disk.move(opened, "lib", "lib/sub/x", overwrite=False)
    with pytest.raises(ToolError, match="not a regular file"):
        disk.move(opened, "lib/sub/a.txt", "lib", overwrite=True)
    with pytest.raises(ToolError, match="only a regular file can replace a file"):
        disk.move(opened, "lib/sub/deep", "lib/sub/a.txt", overwrite=True)


def test_source_and_target_are_both_checked(app: Path, opener: Opener) -> None:
    opened = make_files(
        app,
        opener,
        readable_paths=["../lib"],
        denied_patterns=["*.key"],
        protected_paths=[str(app / "src/deep")],
    )
    rejected = [("src/a.txt", "../outside/x"), ("../outside/secret.txt", "x"), ("src/a.txt", "a.key"),
               ("src/a.txt", "../lib/x"), ("src/a.txt", "src/deep/x"), ("a.key", "x")]  # fmt: skip
    before = read_tree(app.parent)
    for source, target in [*rejected, ("../lib/b.txt", "x")]:
        with pytest.raises(SandboxDenied):
            disk.move(opened, source, target, overwrite=True)
    for source, target in rejected:
        with pytest.raises(SandboxDenied):
            disk.copy(opened, source, target, overwrite=True)
    assert read_tree(app.parent) == before
    assert disk.copy(opened, "../lib/b.txt", "b.txt", overwrite=False).size == 4


def test_files_are_copied(app: Path, opener: Opener) -> None:
    (app / "src/a.txt").chmod(0o755)
    opened = make_files(app, opener)
    copied = disk.copy(opened, "src/a.txt", "new/b.txt", overwrite=False, create_folders=True)
    assert (copied.path, copied.size) == (f"{app}/new/b.txt", 5)
    assert stat.S_IMODE((app / "new/b.txt").stat().st_mode) == 0o755
    with pytest.raises(ToolError, match="already exists"):
        disk.copy(opened, "src/a.txt", "new/b.txt", overwrite=False)
    (app / "c").write_text("longer than alpha")
    disk.copy(opened, "c", "new/b.txt", overwrite=True)
    assert (app / "new/b.txt").read_text() == "longer than alpha"
    disk.copy(opened, "c", "c", overwrite=True)
    assert (app / "c").read_text() == "longer than alpha"
    with pytest.raises(ToolError, match="is a directory"):
        disk.copy(opened, "src", "d", overwrite=False)


def test_nothing_is_replaced_without_renameat2(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise OSError(errno.EINVAL, "not here")

    monkeypatch.setattr(writing, "rename_without_replacing", missing)
    (app / "x").write_text("x")
    with pytest.raises(ToolError, match="already exists"):
        disk.move(make_files(app), "x", "src/a.txt", overwrite=False)
    with pytest.raises(ToolError):
        disk.move(make_files(app), "src/deep", "src/a.txt", overwrite=False)
    disk.move(make_files(app), "x", "y", overwrite=False)
    disk.move(make_files(app), "src", "z", overwrite=False)
    assert read_tree(app) == {"y": b"x", "z": None, "z/a.txt": b"alpha", "z/deep": None}


def test_a_file_moves_to_another_disk(app: Path) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == app.stat().st_dev:
        pytest.skip("no second file system is available")
    other = memory / f"onetool-{os.urandom(4).hex()}"
    other.mkdir()
    try:
        opened = make_files(app, allowed_paths=[".", str(other)])
        assert disk.move(opened, "src/a.txt", str(other / "a.txt"), overwrite=False) == str(
            other / "a.txt"
        )
        assert (other / "a.txt").read_text() == "alpha"
        assert not (app / "src/a.txt").exists()
        with pytest.raises(ToolError, match="to another disk: it is not a regular file"):
            disk.move(opened, "src", str(other / "src"), overwrite=False)
    finally:
        (other / "a.txt").unlink(missing_ok=True)
        other.rmdir()
