"""Environments for script headers, created with the real uv."""

import asyncio
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.extensions_support import HEADER
from tests.support import list_descendants

from onetool.errors import StorageError, ToolError
from onetool.sources.extensions.environments import (
    Environments,
    StartCommand,
    make_uv_environment,
    make_worker_environment,
)
from onetool.sources.extensions.script_header import ScriptHeader, parse_header

FILE = Path("/nowhere/notes_tools.py")  # only used by headers that contain paths
EMPTY = ScriptHeader("dependencies = []\n")
Work = Callable[[Environments], Awaitable[object]]


def parse_six_header() -> ScriptHeader:
    header = parse_header(HEADER)
    assert header is not None
    return header


def ignore(_line: str) -> None: ...


def make_environments(directory: Path) -> Environments:
    return Environments(directory, os.environ)


def get_python(start: StartCommand) -> str:
    assert not start.by_uv
    (python,) = start.command
    return python


def imports(python: str, module: str) -> bool:
    return (
        subprocess.run(
            [python, "-P", "-c", f"import {module}"], capture_output=True, check=False
        ).returncode
        == 0
    )


async def build(environments: Environments, header: ScriptHeader, file: Path = FILE) -> str:
    await environments.build(header, file, ignore)
    return get_python(await environments.get_start_command(header, file))


def test_a_file_without_a_header_uses_the_python_of_the_server(tmp_path: Path) -> None:
    assert asyncio.run(make_environments(tmp_path).get_start_command(None, FILE)) == StartCommand(
        (sys.executable,)
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_prebuilt_environment_is_started_without_uv(tmp_path: Path) -> None:
    python = asyncio.run(build(make_environments(tmp_path), parse_six_header()))
    assert imports(python, "six")
    assert not imports(python, "pydantic")


def test_a_missing_environment_is_created_when_the_worker_starts(tmp_path: Path) -> None:
    lines: list[str] = []
    start = asyncio.run(
        make_environments(tmp_path).get_start_command(parse_six_header(), FILE, lines.append)
    )
    assert start.by_uv
    assert start.command[1] == "run"
    assert start.command[-2] == "--script"
    assert parse_header(Path(start.command[-1]).read_text("utf-8")) == parse_six_header()
    assert lines


def test_an_existing_environment_is_not_created_again(tmp_path: Path) -> None:
    first = asyncio.run(build(make_environments(tmp_path), EMPTY))
    (script,) = tmp_path.glob("*.py")
    script.unlink()
    assert (
        asyncio.run(build(make_environments(tmp_path), EMPTY)) == first
    )  # the next server does the same
    assert not script.exists()  # uv was not called


def test_the_interpreter_of_a_worker_is_recorded(tmp_path: Path) -> None:
    async def remembered() -> StartCommand:
        await make_environments(tmp_path).remember(EMPTY, sys.executable)
        return await make_environments(tmp_path).get_start_command(EMPTY, FILE)

    assert asyncio.run(remembered()) == StartCommand((sys.executable,))


@pytest.mark.parametrize("note", [b"", b"/nowhere/python", b"\xff", b"/tmp", b"a\0b"])
def test_a_recorded_interpreter_that_does_not_exist_is_ignored(tmp_path: Path, note: bytes) -> None:
    (tmp_path / f"{EMPTY.digest}.path").write_bytes(note)
    assert asyncio.run(make_environments(tmp_path).get_start_command(EMPTY, FILE)).by_uv


def test_a_deleted_environment_is_created_again(tmp_path: Path) -> None:
    environments = make_environments(tmp_path)
    first = asyncio.run(build(environments, EMPTY))
    shutil.rmtree(Path(first).parent.parent)
    assert asyncio.run(environments.get_start_command(EMPTY, FILE)).by_uv
    again = asyncio.run(build(environments, EMPTY))
    assert imports(again, "json")


@pytest.mark.slow
def test_concurrent_callers_share_an_environment(tmp_path: Path) -> None:
    async def at_once() -> list[str]:
        one, other = (
            make_environments(tmp_path),
            make_environments(tmp_path),
        )  # the second one is like another process
        return await asyncio.gather(
            *(build(each, parse_six_header()) for each in (one, one, other, other))
        )

    assert len(set(asyncio.run(at_once()))) == 1


def test_a_caller_waits_while_the_environment_is_created(tmp_path: Path) -> None:
    async def during() -> tuple[StartCommand, StartCommand]:
        environments = make_environments(tmp_path)
        building = asyncio.ensure_future(environments.build(EMPTY, FILE, ignore))
        while not environments._in_progress:  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0)
        started = await environments.get_start_command(EMPTY, FILE)
        await building
        return started, await environments.get_start_command(EMPTY, FILE)

    first, second = asyncio.run(during())
    assert first == second
    assert not first.by_uv


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('requires-python = ">=99"\n', ">=99"),
        ('dependencies = ["six>2", "six<1"]\n', "six"),
        ('dependencies = ["no such requirement!"]\n', "no such requirement!"),
        ("dependencies = 5\n", "dependencies = 5"),
        ('requires-python = "soon"\n', "soon"),
        ("tool = 1\n", "tool = 1"),
    ],
)
def test_a_missing_package_is_reported_with_the_output_of_uv(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ToolError, match="uv could not create the environment: ") as caught:
        asyncio.run(build(make_environments(tmp_path), ScriptHeader(text)))
    assert message in str(caught.value)
    assert not list(tmp_path.glob("*.path"))


@pytest.mark.slow
def test_a_failed_environment_is_retried_by_the_next_caller(tmp_path: Path) -> None:
    async def twice() -> int:
        environments, failures = make_environments(tmp_path), 0
        for _ in range(2):
            try:
                await environments.build(ScriptHeader('requires-python = ">=99"\n'), FILE, ignore)
            except ToolError:
                failures += 1
        return failures

    assert asyncio.run(twice()) == 2


def test_an_unwritable_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for work in (
        lambda each: each.build(EMPTY, FILE, ignore),
        lambda each: each.get_start_command(EMPTY, FILE),
    ):
        with pytest.raises(StorageError, match=r"cannot write .*environments"):
            asyncio.run(_await_work(work, make_environments(tmp_path / "file" / "environments")))


async def _await_work(work: Work, environments: Environments) -> None:
    await work(environments)


def test_closing_leaves_no_processes(tmp_path: Path) -> None:
    async def closed() -> object:
        environments = make_environments(tmp_path)
        building = asyncio.ensure_future(environments.build(parse_six_header(), FILE, ignore))
        while len(list_descendants(os.getpid())) == before:  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0.001)
        await environments.close()
        (outcome,) = await asyncio.gather(building, return_exceptions=True)
        return outcome

    before = len(list_descendants(os.getpid()))
    assert isinstance(asyncio.run(closed()), asyncio.CancelledError)
    assert len(list_descendants(os.getpid())) == before


# --- headers with paths ---------------------------------------------------------------------------


def write_wheel(directory: Path, version: str) -> Path:
    """Write a minimal wheel and return its path."""
    directory.mkdir(exist_ok=True)
    file = directory / f"tiny_thing-{version}-py3-none-any.whl"
    info = f"tiny_thing-{version}.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("tiny_thing.py", f"version = {version!r}")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-thing\nVersion: {version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return file


def make_source(path: str) -> str:
    lines = (
        'dependencies = ["tiny-thing"]',
        "[tool.uv.sources]",
        f'tiny-thing = {{ path = "{path}" }}',
    )
    return "".join(
        f"{line}\n" for line in ("# /// script", *(f"# {line}" for line in lines), "# ///")
    )


@pytest.mark.slow
def test_a_path_in_a_header_is_relative_to_the_file(tmp_path: Path) -> None:
    environments = make_environments(tmp_path / "environments")
    pythons = {}
    for name, version in (("one", "1.0"), ("two", "2.0")):
        directory = tmp_path / name
        source = make_source(f"./{write_wheel(directory, version).name}")
        (directory / "notes_tools.py").write_text(source, encoding="utf-8")
        header = parse_header(source)
        assert header is not None
        pythons[version] = asyncio.run(build(environments, header, directory / "notes_tools.py"))
    found = {
        subprocess.run(
            [python, "-c", "import tiny_thing as t; print(t.version)"],
            capture_output=True,
            check=True,
        ).stdout
        for python in pythons.values()
    }
    assert found == {b"1.0\n", b"2.0\n"}


def test_a_missing_path_is_reported_with_the_output_of_uv(tmp_path: Path) -> None:
    source = make_source("./gone.whl")
    (tmp_path / "notes_tools.py").write_text(source, encoding="utf-8")
    header = parse_header(source)
    assert header is not None
    with pytest.raises(ToolError, match=r"(?s)uv could not create the environment: .*gone\.whl"):
        asyncio.run(
            build(make_environments(tmp_path / "environments"), header, tmp_path / "notes_tools.py")
        )


# --- environment variables ------------------------------------------------------------------------


def test_workers_get_few_variables_and_uv_a_few_more() -> None:
    environment = dict.fromkeys(
        (
            "HOME",
            "PATH",
            "https_proxy",
            "SSL_CERT_FILE",
            "UV_INDEX_URL",
            "UV_CACHE_DIR",
            "AWS_SECRET",
            "PYTHONPATH",
        ),
        "x",
    )
    assert set(make_worker_environment(environment)) == {
        "HOME",
        "PATH",
        "https_proxy",
        "SSL_CERT_FILE",
        "UV_CACHE_DIR",
    }
    assert set(make_uv_environment(environment)) == {
        *make_worker_environment(environment),
        "UV_INDEX_URL",
    }
