"""Packs of installed packages: a real package in a real environment, loaded by a worker."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
from tests.support import configure, environment

FILES = {
    "pyproject.toml": (
        """
        [project]
        name = "Shouting_Tools"
        version = "1.0"
        [project.entry-points."onetool.packs"]
        sums = "shouting.sums"
        voice = "shouting.voice"
        loud = "shouting.named:loud"
        soft = "shouting.named:soft"
        fs = "shouting.sums"
        broken = "shouting.broken"
        gone = "shouting.nowhere"
        object = "shouting.named:Whisper"
        half = "shouting.named:Half"
        [build-system]
        requires = ["hatchling"]
        build-backend = "hatchling.build"
        [tool.hatch.build.targets.wheel]
        packages = ["shouting"]
        """
    ),
    "shouting/__init__.py": "import sys\nIS_IN_SERVER = 'onetool.app' in sys.modules",
    "shouting/sums.py": (
        """
        '''Add numbers.'''
        from . import IS_IN_SERVER
        permissions = ["read"]
        def add(left: int, right: int = 1) -> int:
            '''Add two numbers.'''
            return left + right
        def is_in_server() -> bool:
            return IS_IN_SERVER
        """
    ),
    "shouting/voice.py": "def shout(text: str) -> str:\n    return text.upper()",
    "shouting/named.py": (
        """
        from onetool import tool
        @tool("shouts.loud")
        def loud(text: str) -> str:
            return text.upper()
        @tool("shouts.soft")
        def soft(text: str) -> str:
            return text.lower()
        class Whisper:
            "Speak softly."
            name = "shouts.whisper"
            permissions = ["read"]
            param_schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
            def validate_params(self, params):
                return "the text is empty" if not params["text"] else None
            async def call(self, params, context):
                if params["text"] == "nobody":
                    return ("error", ":not_found")
                return ("ok", params["text"].lower() + await context.call("shouts.loud", "!"))
        class Half:
            name = "shouts.half"
        """
    ),
    "shouting/broken.py": "import package_that_is_missing\ndef tool(): ...",
}
# OneTool and its dependencies, in an environment that has its own packages.
LINK = "import site; site.addsitedir({!r})"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory, needs: Callable[[str], str]) -> str:
    """The interpreter of an environment with OneTool and the package."""
    uv, folder = needs("uv"), tmp_path_factory.mktemp("installed")
    for name, text in FILES.items():
        (folder / "package" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "package" / name).write_text(dedent(text), encoding="utf-8")
    interpreter = str(folder / "env" / "bin" / "python")
    target = ["--python", interpreter, "--no-deps", str(folder / "package")]
    for command in (
        ["venv", "-q", "--python", sys.executable, str(folder / "env")],
        ["pip", "install", "-q", *target],
    ):
        done = subprocess.run(
            [uv, *command], capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
    (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    linked = next(path for path in sys.path if path.endswith("site-packages"))
    (packages / "onetool_for_tests.pth").write_text(LINK.format(linked) + "\n", encoding="utf-8")
    return interpreter


def command(
    python: str, home: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    code = "import sys; from onetool.cli.main import main; sys.exit(main())"
    return subprocess.run(
        [python, "-c", code, *arguments],
        cwd=home,
        env={**environment(home), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.slow
@pytest.mark.spec("toolbus.register.entry-points")
def test_an_installed_package_brings_packs_that_a_worker_loads(python: str, tmp_path: Path) -> None:
    code = (
        "packs = {each['name']: each['source'] for each in ot.packs()}\n[sums.add(2, right=3),"
        " voice.shout('a'), shouts.loud('b'), shouts.soft('C'), sums.is_in_server(), packs]"
    )
    done = command(python, tmp_path, "run", "--json", code)
    assert done.returncode == 0, done.stdout + done.stderr
    *values, packs = json.loads(json.loads(done.stdout)["blocks"][-1])
    assert values == [5, "A", "B", "c", False]
    assert {packs[name] for name in ("sums", "voice", "shouts")} == {"package Shouting_Tools"}
    assert packs["fs"] == "local"
    done = command(python, tmp_path, "run", "shouts.whisper(text='A')")
    assert done.stdout == "a!\n", done.stderr
    rejected = (
        ("''", "ArgumentError: the text is empty"),
        ("5", 'text: 5 is not of type "string"'),
        ("'nobody'", "ToolNotFound: not found"),
    )
    for wrong, message in rejected:
        assert message in command(python, tmp_path, "run", f"shouts.whisper(text={wrong})").stdout


@pytest.mark.slow
def test_what_an_entry_point_names_is_not_called_ignored(python: str, tmp_path: Path) -> None:
    code = "[note for note in ot.health().get('ignored', []) if 'named.py' in note]"
    assert command(python, tmp_path, "run", code).stdout == "[]\n"


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.spec("toolbus.register.entry-points")
def test_the_doctor_names_the_package(python: str, tmp_path: Path) -> None:
    text = command(python, tmp_path, "doctor").stdout
    assert "extension pack sums of the package Shouting_Tools starts" in text
    assert "'fs' conflicts with a built-in pack" in text
    assert "install package_that_is_missing in the environment of OneTool" in text
    assert (
        "cannot use the pack gone of the package Shouting_Tools (shouting.nowhere): module" in text
    )
    assert "the class 'Half' needs call(params, context), name and permissions" in text


@pytest.mark.slow
@pytest.mark.spec("toolbus.register.entry-points")
def test_a_package_can_be_disabled_and_must_belong_to_the_environment(
    python: str, tmp_path: Path
) -> None:
    configure(tmp_path, "disabled_packages: [shouting-tools]")
    planted = tmp_path / "planted-1.0.dist-info"  # in the current directory, and on the path
    planted.mkdir()
    (planted / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n", encoding="utf-8"
    )
    (planted / "entry_points.txt").write_text(
        "[onetool.packs]\nplanted = planted\n", encoding="utf-8"
    )
    (tmp_path / "planted.py").write_text("def run(): return 1", encoding="utf-8")
    done = command(python, tmp_path, "run", "ot.packs(info='list')", PYTHONPATH=str(tmp_path))
    assert "machine" in done.stdout, done.stderr
    assert not {"sums", "shouts", "planted"} & set(re.findall(r"\w+", done.stdout))
