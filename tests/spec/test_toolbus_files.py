"""Specification 5, sandbox and files: the `fs` tools on a bus, with the context of a caller."""

import os
import socket
import stat
import threading
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
from tests.cells_support import IS_ROOT, ORDINARY_USER

from onetool import Result, ToolBus, ToolContext
from onetool.core.python_backend import function_tool
from onetool.errors import describe
from onetool.sources.builtin import fs_tools as fs
from onetool.sources.files import Files
from onetool.sources.files.files import get_descriptor_path
from onetool.util.context import permissions
from onetool_child.project_path import ProjectPath

DEFAULT_LIMIT = 2 * 1024 * 1024
OPEN: dict[str, Any] = {"enabled": True}


@pytest.fixture
def bus() -> ToolBus:
    made = ToolBus()
    for name in fs.__all__:
        made.register_tool(as_pack_tool(name))
    return made


def as_pack_tool(name: str) -> object:
    return function_tool(getattr(fs, name), f"fs.{name}")


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Create the directory of the specification, with similar names and secrets next to it."""
    for directory in ("app/src", "app/lib", "app2", "etc"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "app/README.md").write_text("# My Project\n")
    (tmp_path / "app/src/main.ex").write_text("defmodule")
    (tmp_path / "app2/x").write_text("secret")
    (tmp_path / "etc/passwd").write_text("secret")
    return tmp_path / "app"


def call(  # noqa: PLR0917 - optional arguments are last
    bus: ToolBus,
    name: str,
    params: Mapping[str, Any],
    app: Path,
    sandbox: Mapping[str, Any] | None = OPEN,
    granted: tuple[str, ...] = ("read", "write"),
) -> Result:
    context = ToolContext(
        agent_id="helper", working_dir=app, permissions=permissions(granted), sandbox=sandbox
    )
    return anyio.run(bus.call_tool, name, params, context)


def content(bus: ToolBus, path: Path | str, app: Path, **sandbox: Any) -> str:
    text: str = call(bus, "fs.read", {"path": str(path)}, app, OPEN | sandbox).unwrap()["content"]
    return text


def failure(
    bus: ToolBus, name: str, params: Mapping[str, Any], app: Path, **sandbox: Any
) -> dict[str, Any]:
    result = call(bus, name, params, app, OPEN | sandbox)
    assert result.error is not None, result.value
    return describe(result.error)


def expect_denied(bus: ToolBus, path: Path | str, app: Path, **sandbox: Any) -> str:
    """Check that reading and writing are rejected with the path; return the message of reading."""
    for params in ({"path": str(path)}, {"path": str(path), "content": "overwritten"}):
        error = failure(bus, "fs.read" if len(params) == 1 else "fs.write", params, app, **sandbox)
        assert error["type"] == "sandbox_denied"
        assert error["path"] == str(path)
        assert error["message"].startswith(f"File access denied by sandbox: {path}")
    message: str = failure(bus, "fs.read", {"path": str(path)}, app, **sandbox)["message"]
    return message


# --- sandbox --------------------------------------------------------------------------------------


@pytest.mark.spec("toolbus.sandbox.none")
@pytest.mark.parametrize(
    "sandbox", [None, {"enabled": False}, {"enabled": False, "allowed_paths": ["/nowhere"]}]
)
def test_without_a_sandbox_every_path_is_allowed(
    bus: ToolBus, app: Path, sandbox: Mapping[str, Any] | None
) -> None:
    path = str(app.parent / "etc/passwd")
    assert call(bus, "fs.read", {"path": path}, app, sandbox).unwrap()["content"] == "secret"
    assert call(bus, "fs.write", {"path": path, "content": "x"}, app, sandbox).ok


@pytest.mark.spec("toolbus.sandbox.working-folder")
def test_enabled_without_allowed_paths_means_the_working_directory(bus: ToolBus, app: Path) -> None:
    sandboxes: list[dict[str, Any]] = [{}, {"allowed_paths": []}, {"allowed_paths": None}]
    for sandbox in sandboxes:
        assert content(bus, "README.md", app, **sandbox) == "# My Project\n"
        expect_denied(bus, app.parent / "etc/passwd", app, **sandbox)


@pytest.mark.spec("toolbus.sandbox.inside")
def test_a_path_inside_an_allowed_path_is_allowed(bus: ToolBus, app: Path) -> None:
    allowed = [str(app / "src"), str(app / "test")]
    assert content(bus, app / "src/main.ex", app, allowed_paths=allowed) == "defmodule"
    assert content(bus, "src/../src/./main.ex", app, allowed_paths=allowed) == "defmodule"


@pytest.mark.spec("toolbus.sandbox.outside")
def test_a_path_outside_is_rejected_and_named_in_the_error(bus: ToolBus, app: Path) -> None:
    for path in (app.parent / "etc/passwd", "../etc/passwd", "src/../../etc/passwd", "/etc/passwd"):
        message = expect_denied(bus, path, app)
        assert "pass sandbox to ToolContext" in message  # a bus alone has no settings
    expect_denied(bus, "README.md", app, allowed_paths=["src"])


@pytest.mark.spec("toolbus.sandbox.whole-components")
def test_an_allowed_directory_does_not_allow_directories_with_its_prefix(
    bus: ToolBus, app: Path
) -> None:
    expect_denied(bus, app.parent / "app2/x", app, allowed_paths=[str(app)])
    expect_denied(bus, "../app2/x", app, allowed_paths=[f"{app}/"])
    expect_denied(bus, f"{app}.txt", app)


@pytest.mark.spec("toolbus.sandbox.symlinks")
def test_links_are_resolved_before_the_check(bus: ToolBus, app: Path) -> None:
    (app / "inside").symlink_to(app / "src")
    (app / "outside").symlink_to(app.parent / "etc")
    (app / "outside_file").symlink_to("../etc/passwd")
    (app.parent / "to_app").symlink_to(app)
    assert content(bus, "inside/main.ex", app) == "defmodule"
    assert content(bus, app.parent / "to_app/README.md", app) == "# My Project\n"
    for path in ("outside/passwd", "outside_file", "outside/new"):
        expect_denied(bus, path, app)
    assert (app.parent / "etc/passwd").read_text() == "secret"


@pytest.mark.spec("toolbus.sandbox.swapped-links")
def test_the_opened_directory_is_checked_again(app: Path) -> None:
    """The directory is replaced after the check. `test_swapped_links` repeats this for longer."""

    def swapped(start: int, names: Any, flags: int) -> int:
        if not (app / "src").is_symlink():
            (app / "src").rename(app / "gone")
            (app / "src").symlink_to(app.parent / "etc")
        return Files(ToolContext()).open_beneath(start, names, flags)

    opened = Files(ToolContext(working_dir=app, sandbox=OPEN), swapped)
    with pytest.raises(Exception, match="File access denied by sandbox: src/passwd"):
        opened.run_at(
            "src/passwd",
            lambda anchored: pytest.fail(f"reached {get_descriptor_path(anchored.directory_fd)}"),
        )


@pytest.mark.spec("toolbus.sandbox.denied-beats-allowed")
def test_a_denied_pattern_wins_over_an_allowed_path(bus: ToolBus, app: Path) -> None:
    (app / "src/a.secret").write_text("secret")
    allowed = {"allowed_paths": [str(app), str(app / "src"), str(app / "src/a.secret")]}
    message = expect_denied(
        bus, "src/a.secret", app, denied_patterns=["**/*.secret", ".env*"], **allowed
    )
    assert "It matches a pattern in denied_patterns" in message
    assert content(bus, "src/a.secret", app, **allowed) == "secret"


@pytest.mark.spec("toolbus.sandbox.name-patterns")
@pytest.mark.parametrize(
    "path", [".env", "src/.env", "src/a/b/.env.local", ".env/file", "lib/../.env"]
)
def test_a_pattern_without_a_slash_matches_a_name_at_any_depth(
    bus: ToolBus, app: Path, path: str
) -> None:
    (app / path).parent.mkdir(parents=True, exist_ok=True)
    (app / path).write_text("secret")
    expect_denied(bus, path, app, denied_patterns=[".env*"])
    assert content(bus, path, app, denied_patterns=["env*"]) == "secret"


@pytest.mark.spec("toolbus.sandbox.double-star")
@pytest.mark.parametrize("path", ["a.secret", "src/a.secret", "src/deep/er/a.secret"])
def test_a_leading_double_star_also_matches_no_directory(
    bus: ToolBus, app: Path, path: str
) -> None:
    expect_denied(bus, path, app, denied_patterns=["**/*.secret"])


@pytest.mark.spec("toolbus.sandbox.files-to-come")
def test_patterns_apply_to_files_that_do_not_exist_yet(bus: ToolBus, app: Path) -> None:
    (app / "link").symlink_to(".env.local")
    for path in (".env", "src/.env.new", "new/folder/x.secret", "link"):
        params = {"path": path, "content": "x", "create_folders": True}
        error = failure(bus, "fs.write", params, app, denied_patterns=["**/*.secret", ".env*"])
        assert error["type"] == "sandbox_denied"
    assert sorted(path.name for path in app.iterdir()) == ["README.md", "lib", "link", "src"]


@pytest.mark.spec("toolbus.sandbox.regular-files")
def test_only_regular_files_are_opened(
    bus: ToolBus, app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(app / "pipe")
    monkeypatch.chdir(app)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        for path in ("pipe", "socket", "src"):
            error = failure(bus, "fs.read", {"path": path}, app)
            assert error["type"] == "execution_error"
            assert error["message"].startswith(
                (f"{path} is a directory", f"cannot open {path}: it is a pipe")
            )
            assert not call(bus, "fs.write", {"path": path, "content": "x"}, app).ok
    device = call(bus, "fs.read", {"path": "/dev/zero"}, app, None)
    assert "not a regular file" in describe(device.error or AssertionError())["message"]


@pytest.mark.spec("toolbus.sandbox.silent-refusal")
def test_an_error_does_not_reveal_whether_the_file_exists(bus: ToolBus, app: Path) -> None:
    (app / ".env").write_text("secret")
    (app / "out").symlink_to(app.parent / "etc")
    pairs = [
        ("../etc/passwd", "../etc/missing"),
        (".env", ".env2"),
        ("out/passwd", "out/missing"),
        ("../etc", "../absent"),
    ]
    calls: list[tuple[str, dict[str, Any]]] = [
        ("fs.read", {}), ("fs.stat", {}), ("fs.list", {}), ("fs.delete", {"recursive": True}),
        ("fs.write", {"content": "x"}), ("fs.edit", {"old": "a", "new": "b"}),
    ]  # fmt: skip
    for present, missing in pairs:
        for name, more in calls:
            one = failure(bus, name, {"path": present, **more}, app, denied_patterns=[".env*"])
            other = failure(bus, name, {"path": missing, **more}, app, denied_patterns=[".env*"])
            assert one["type"] == "sandbox_denied"
            assert str(one).replace(Path(present).name, "_") == str(other).replace(
                Path(missing).name, "_"
            )


# --- fs.read --------------------------------------------------------------------------------------


@pytest.mark.spec("toolbus.fs-read.result")
def test_reading_returns_content_path_and_size_and_requires_read(bus: ToolBus, app: Path) -> None:
    value = call(bus, "fs.read", {"path": "src/main.ex"}, app, granted=("read",)).unwrap()
    assert value == {"content": "defmodule", "path": str(app / "src/main.ex"), "size": 9}
    (app / "é").write_text("é")
    assert call(bus, "fs.read", {"path": "é"}, app).unwrap()["size"] == 2
    without = call(bus, "fs.read", {"path": "src/main.ex"}, app, granted=("write",))
    assert describe(without.error or AssertionError())["type"] == "permission_denied"


@pytest.mark.spec("toolbus.fs-read.working-folder")
def test_a_relative_path_starts_at_the_working_directory(bus: ToolBus, app: Path) -> None:
    assert content(bus, "README.md", app) == "# My Project\n"
    assert content(bus, "main.ex", app / "src") == "defmodule"


@pytest.mark.spec("toolbus.fs-read.default-limit")
def test_without_max_size_the_limit_is_two_mebibytes(bus: ToolBus, app: Path) -> None:
    (app / "large").write_bytes(b"x" * DEFAULT_LIMIT)
    assert len(content(bus, "large", app)) == DEFAULT_LIMIT
    (app / "large").write_bytes(b"x" * (DEFAULT_LIMIT + 1))
    assert "File too large" in failure(bus, "fs.read", {"path": "large"}, app)["message"]
    more = {"path": "large", "max_size": DEFAULT_LIMIT + 1}
    assert call(bus, "fs.read", more, app).unwrap()["size"] == DEFAULT_LIMIT + 1
    assert bus.get_tool("fs.read").limits == ("max_size",)


@pytest.mark.spec("toolbus.fs-read.too-large")
def test_a_file_over_the_limit_is_an_error_with_its_size(bus: ToolBus, app: Path) -> None:
    error = failure(bus, "fs.read", {"path": "src/main.ex", "max_size": 8}, app)
    assert error["message"].startswith("File too large: 9 bytes")
    assert (error["size"], error["max_size"]) == (9, 8)


@pytest.mark.spec("toolbus.fs-read.missing")
def test_a_missing_file_is_an_error_that_names_it(bus: ToolBus, app: Path) -> None:
    error = failure(bus, "fs.read", {"path": "src/missing.ex"}, app)
    assert (error["class"], error["message"]) == (
        "FileNotFoundError",
        "File not found: src/missing.ex",
    )


@pytest.mark.spec("toolbus.fs-read.unreadable")
def test_an_unreadable_file_is_an_error_that_names_it(bus: ToolBus) -> None:
    with TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        file = Path(directory) / "closed"
        file.write_text("x")
        file.chmod(0)
        if IS_ROOT:
            os.seteuid(ORDINARY_USER)
        try:
            error = failure(bus, "fs.read", {"path": "closed"}, Path(directory))
        finally:
            if IS_ROOT:
                os.seteuid(0)
    assert (error["class"], error["message"]) == ("PermissionError", "Permission denied: closed")


# --- fs.write -------------------------------------------------------------------------------------


@pytest.mark.spec("toolbus.fs-write.result")
def test_writing_returns_path_size_and_backup_and_requires_write(bus: ToolBus, app: Path) -> None:
    params = {"path": "output.txt", "content": "Hello, Otto!", "backup": True}
    file = str(app / "output.txt")
    assert call(bus, "fs.write", params, app, granted=("write",)).unwrap() == {
        "path": file, "size": 12, "backup_path": None,
    }  # fmt: skip
    assert call(bus, "fs.write", params, app).unwrap()["backup_path"] == f"{file}.bak"
    without = call(bus, "fs.write", params, app, granted=("read",))
    assert describe(without.error or AssertionError())["type"] == "permission_denied"


@pytest.mark.slow
@pytest.mark.spec("toolbus.fs-write.atomic")
def test_a_reader_sees_the_old_or_the_new_content(bus: ToolBus, app: Path) -> None:
    file = app / "file"
    file.write_text("a" * 300_000)
    done, unexpected, seen = threading.Event(), [], set()

    def read_repeatedly() -> None:
        while not done.is_set():
            text = file.read_text()
            seen.add(text[:1])
            if len(text) != 300_000 or len(set(text)) != 1:
                unexpected.append(text[:10])

    reader = threading.Thread(target=read_repeatedly)
    reader.start()
    try:
        for letter in "bcdefghij" * 5:
            call(bus, "fs.write", {"path": "file", "content": letter * 300_000}, app).unwrap()
    finally:
        done.set()
        reader.join()
    assert unexpected == []
    assert len(seen) > 1


@pytest.mark.spec("toolbus.fs-write.backup")
def test_a_backup_of_the_old_content_is_written_by_default(bus: ToolBus, app: Path) -> None:
    (app / "bytes").write_bytes(b"\xff\x00\r\n")
    call(bus, "fs.write", {"path": "bytes", "content": "new"}, app).unwrap()
    assert (app / "bytes.bak").read_bytes() == b"\xff\x00\r\n"
    off = call(
        bus, "fs.write", {"path": "README.md", "content": "new", "backup": False}, app
    ).unwrap()
    assert off["backup_path"] is None
    assert not (app / "README.md.bak").exists()


@pytest.mark.spec("toolbus.fs-write.mode")
def test_a_new_file_has_mode_0644_and_an_existing_one_keeps_its_mode(
    bus: ToolBus, app: Path
) -> None:
    (app / "old").touch(mode=0o600)
    cases: list[tuple[str, dict[str, Any], int]] = [
        ("new", {}, 0o644), ("script", {"mode": "0755"}, 0o755), ("number", {"mode": 0o600}, 0o600), ("old", {}, 0o600),
        ("old", {"mode": "0640"}, 0o640),
    ]  # fmt: skip
    for name, more, mode in cases:
        call(bus, "fs.write", {"path": name, "content": "x", **more}, app).unwrap()
        assert stat.S_IMODE((app / name).stat().st_mode) == mode
    error = failure(bus, "fs.write", {"path": "new", "content": "x", "mode": "4755"}, app)
    assert error["type"] == "validation_error"
    assert (
        failure(bus, "fs.write", {"path": "new", "content": 5}, app)["type"] == "validation_error"
    )


# --- projects -------------------------------------------------------------------------------------


def test_project_paths_use_the_fs_tools(bus: ToolBus, app: Path) -> None:
    """`proj` uses fs.read, fs.list and fs.stat; a configured project is readable and not writable."""
    sandbox = OPEN | {"readable_paths": [str(app)]}
    elsewhere = app.parent / "app2"
    project = ProjectPath(
        str(app), lambda name, args: call(bus, name, args, elsewhere, sandbox).unwrap()
    )
    assert (project / "src" / "main.ex").read_text() == "defmodule"
    assert (project / "README.md").read_bytes() == b"# My Project\n"
    assert sorted(project.rglob("*.ex")) == [f"{app}/src/main.ex"]
    assert [path.name for path in project.iterdir()] == ["README.md", "lib", "src"]
    assert not (project / "missing" / "x").exists()
    assert (project / "src").is_dir()
    error = describe(
        call(bus, "fs.write", {"path": f"{app}/x", "content": "x"}, elsewhere, sandbox).error
        or KeyError()
    )
    assert error["type"] == "sandbox_denied"
    assert "It is read-only" in error["message"]
