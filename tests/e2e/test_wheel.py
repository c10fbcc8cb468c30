"""Test the wheel as a new user installs it, in an empty home directory, without uv on the path.

CI tests the Python that it runs on, and installs with uv, which takes seconds. `ONETOOL_NIGHTLY=1`
tests all Pythons that are found, and installs with pip.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from zipfile import ZipFile

import pytest
from tests.cells_support import NIGHTLY
from tests.support import environment, scratch_directory
from uv import find_uv_bin

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
CURRENT = (sys.version_info.major, sys.version_info.minor)
SUPPORTED = ((3, 11), (3, 12), (3, 13))
VERSIONS = sorted({*SUPPORTED, CURRENT}) if NIGHTLY else [CURRENT]
PRINT_VERSION = "import sys; print(*sys.version_info[:2])"
PARTS = (
    "onetool/py.typed",
    "onetool/server/ui/index.html",
    "onetool/sources/bundles/builtin/",
    "onetool/cli/demo_tickets.py",
    "onetool/state/stats/report.css",
)


def run_successfully(
    *command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


# --- content --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dist")
    run_successfully(find_uv_bin(), "build", "--quiet", "--wheel", "--out-dir", directory, cwd=ROOT)
    (built,) = directory.glob("*.whl")
    return built


def test_the_wheel_contains_exactly_the_source(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = archive.namelist()
    for part in PARTS:
        assert any(name.startswith(part) for name in names), part
    packages = {name for name in names if ".dist-info/" not in name}
    source = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packages == source
    assert {name.partition("/")[0] for name in packages} == {"onetool", "onetool_child"}


# --- installation ---------------------------------------------------------------------------------


def list_candidates(version: tuple[int, int]) -> Iterator[Path]:
    name = "python{}.{}".format(*version)
    if version == CURRENT:
        yield Path(sys.executable)
    if found := shutil.which(name):
        yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path("~/.pyenv").expanduser())
    yield from sorted(
        pyenv.glob(f"versions/{name.removeprefix('python')}.*/bin/{name}"), reverse=True
    )


def has_version(python: Path, version: tuple[int, int]) -> bool:
    """Check the version: a name on the path may belong to another version or to a broken shim."""
    done = subprocess.run(
        [python, "-c", PRINT_VERSION], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout.split() == list(map(str, version))


def find_python(version: tuple[int, int]) -> Path | None:
    return next(
        (python for python in list_candidates(version) if has_version(python, version)), None
    )


def make_environment(home: Path) -> dict[str, str]:
    directories = [
        directory for directory in ("/usr/bin", "/bin") if not Path(directory, "uv").exists()
    ]
    return {**environment(home), "PATH": os.pathsep.join(directories)}


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: "{}.{}".format(*version))
def test_the_wheel_works_after_installation(
    version: tuple[int, int], wheel: Path, tmp_path: Path
) -> None:
    python = find_python(version)
    if python is None:
        pytest.skip("this Python is not installed here")
    bin_, home = tmp_path / "venv" / "bin", tmp_path / "home"
    if NIGHTLY:
        run_successfully(python, "-m", "venv", bin_.parent)
        run_successfully(bin_ / "python", "-m", "pip", "install", "--quiet", wheel)
        run_successfully(bin_ / "python", "-m", "pip", "check")
    else:
        run_successfully(find_uv_bin(), "venv", "--quiet", "--python", python, bin_.parent)
        options = ("--quiet", "--python", bin_ / "python")
        run_successfully(find_uv_bin(), "pip", "install", *options, wheel, cwd=tmp_path)
        run_successfully(find_uv_bin(), "pip", "check", *options)
    variables = make_environment(home)
    result = json.loads(
        run_successfully(bin_ / "onetool", "demo", "--json", cwd=home, env=variables)
    )
    assert [step["problem"] for step in result["steps"] if step["problem"]] == []
    assert result["saved"]["context_saved"] > 0
    assert list(home.rglob("*")) == [scratch_directory(home)], "files are left behind"
    assert run_successfully(bin_ / "onetool", "run", "6 * 7", cwd=home, env=variables) == "42\n"
