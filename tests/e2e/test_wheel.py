"""The wheel as a stranger installs it: pip and nothing else, on each Python there is, in a home without anything.

CI tries the Python it runs on; `ONETOOL_NIGHTLY=1` tries all that are found.
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
PROMISED = ((3, 11), (3, 12), (3, 13))
VERSIONS = sorted({*PROMISED, CURRENT}) if NIGHTLY else [CURRENT]
ASK = "import sys; print(*sys.version_info[:2])"
PARTS = (
    "onetool/py.typed",
    "onetool/transports/ui/index.html",
    "onetool/bundles/builtin/",
    "onetool/cli/demo/tickets.py",
    "onetool/stats/report.css",
)


def succeeded(*command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


# --- what is in it ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    succeeded(find_uv_bin(), "build", "--quiet", "--wheel", "--out-dir", folder, cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_has_all_of_the_source_and_nothing_else(wheel: Path) -> None:
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


# --- where it works --------------------------------------------------------------------------------------------------


def candidates(version: tuple[int, int]) -> Iterator[Path]:
    name = "python{}.{}".format(*version)
    if version == CURRENT:
        yield Path(sys.executable)
    if found := shutil.which(name):
        yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path("~/.pyenv").expanduser())
    yield from sorted(pyenv.glob(f"versions/{name.removeprefix('python')}.*/bin/{name}"), reverse=True)


def works(python: Path, version: tuple[int, int]) -> bool:
    """A name on the path may be that of another version, or of a shim that leads nowhere."""
    done = subprocess.run([python, "-c", ASK], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.split() == list(map(str, version))


def python_of(version: tuple[int, int]) -> Path | None:
    return next((python for python in candidates(version) if works(python, version)), None)


def without_uv(home: Path) -> dict[str, str]:
    directories = [folder for folder in ("/usr/bin", "/bin") if not Path(folder, "uv").exists()]
    return {**environment(home), "PATH": os.pathsep.join(directories)}


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: "{}.{}".format(*version))
def test_pip_alone_installs_it_and_everything_works(version: tuple[int, int], wheel: Path, tmp_path: Path) -> None:
    python = python_of(version)
    if python is None:
        pytest.skip("this Python is not installed here")
    bin_, home = tmp_path / "venv" / "bin", tmp_path / "home"
    succeeded(python, "-m", "venv", bin_.parent)
    succeeded(bin_ / "python", "-m", "pip", "install", "--quiet", wheel)
    succeeded(bin_ / "python", "-m", "pip", "check")
    variables = without_uv(home)
    told = json.loads(succeeded(bin_ / "onetool", "demo", "--json", cwd=home, env=variables))
    assert [step["problem"] for step in told["steps"] if step["problem"]] == []
    assert told["saved"]["context_saved"] > 0
    assert list(home.rglob("*")) == [scratch_directory(home)], "nothing is left"
    assert succeeded(bin_ / "onetool", "run", "6 * 7", cwd=home, env=variables) == "42\n"
