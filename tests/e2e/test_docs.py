"""What the documents show works as they show it: every block of Python, YAML and JSON in them."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import App, command_line, configure, environment, opened

from ot.config.load import load
from ot.paths import find_folders

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return [block for kind, block in BLOCK.findall(text) if kind == language]


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with opened() as made:
        yield made


@pytest.mark.parametrize("code", blocks("docs/guide.md", "python"))
def test_code_in_the_guide_runs(app: App, code: str) -> None:
    answer = app.run(code)
    assert not answer.is_error, answer.text


def test_the_tool_in_the_guide_is_one(tmp_path: Path) -> None:
    (source,) = blocks("docs/guide.md", "py")
    file = tmp_path / ".onetool" / "tools" / "times" / "times_tools.py"
    file.parent.mkdir(parents=True)
    file.write_text(source, encoding="utf-8")
    done = command_line(tmp_path, "run", "times.since(day='2000-01-01'), ot.help('times')")
    assert " years" in done.stdout, done.stdout + done.stderr
    assert "Times in words." in done.stdout


TOOLBUS_PRINTS = {
    "slack": "{'sent': True, 'channel': '#general'}\n",
    "Shout": "['read']\n",
    "budget": "hello\nsandbox_denied\nbudget_exceeded\n",
    "subscribe": "called add\ncompleted add\n",
}


@pytest.mark.parametrize("program", blocks("docs/toolbus.md", "python"))
def test_programs_with_a_bus_alone_run(tmp_path: Path, program: str) -> None:
    (expected,) = (printed for word, printed in TOOLBUS_PRINTS.items() if word in program)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.endswith(expected), done.stdout + done.stderr


def test_code_in_the_readme_runs(app: App, tmp_path: Path) -> None:
    run, program = blocks("README.md", "python")
    assert '"cores"' in app.value(run)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == 'Hello Ada\n["Hello Ada","Hello Alan"]\n', done.stderr


@pytest.mark.parametrize("text", blocks("docs/guide.md", "yaml"))
def test_settings_in_the_guide_load(tmp_path: Path, text: str) -> None:
    configure(tmp_path, text)
    loaded = load(find_folders({}, tmp_path, None, tmp_path), {})
    assert loaded.files


def test_client_settings_in_the_readme_are_json() -> None:
    (block,) = blocks("README.md", "json")
    assert "onetool" in json.loads(block)["mcpServers"]


def test_documents_link_to_what_exists() -> None:
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} -> {target}"
