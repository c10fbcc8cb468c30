"""Files that `onetool init` and `ot.scaffold` write, and existing files."""

import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from tests.extensions_support import configure, open_app_in
from tests.support import PROGRAM, environment, run_cli

from onetool.errors import ToolError
from onetool.settings.access import Agent, Budgets, Issuer, Sandbox, Token
from onetool.settings.model import PackSettings, Param, Server, Settings, Snippet, ToolFilter, Topic
from onetool.settings.scaffold import (
    CONFIGURATION,
    NOT_FOR_GIT,
    extension_file,
    write_extension,
    write_settings_directory,
)
from onetool.settings.sections import Section
from onetool.settings.settings_reader import read_settings
from onetool.settings.trust import is_trusted, trust
from onetool.sources.extensions import static_analysis

UNCOMMENTED = re.sub(r"(?m)^#(?!#)", "", CONFIGURATION)
EXAMPLES = {
    key: re.sub(r"(?m)(?<=\S) {2,}\S.*$", "", text.replace("##", "  "))
    for key, text in re.findall(r"(?m)^#(\w+): \{\}.*\n((?:##   .*\n)+)", CONFIGURATION)
}
WRITER = "agents: {default: {permissions: [read, write]}}"


# --- the directory --------------------------------------------------------------------------------


def test_a_directory_gets_settings_an_example_and_a_gitignore(tmp_path: Path) -> None:
    directory = tmp_path / ".onetool"
    example = extension_file(directory, "hello")
    assert write_settings_directory(directory) == [
        directory / "onetool.yaml",
        directory / ".gitignore",
        example,
    ]
    assert example == directory / "tools" / "hello" / "hello_tools.py"


def test_the_example_is_a_valid_pack(tmp_path: Path) -> None:
    extension = static_analysis.read(write_extension(tmp_path, "my_pack"))
    assert (extension.pack, extension.problem, extension.problems) == ("my_pack", None, ())
    assert extension.header is not None
    assert extension.header.data["dependencies"] == ["humanize"]
    assert extension.description
    assert {function.name for function in extension.functions} == {"greet", "since"}
    assert all(f"my_pack.{function.name}(" in function.example for function in extension.functions)
    assert not extension.permissions


def test_the_new_settings_file_is_valid_and_sets_nothing(tmp_path: Path) -> None:
    write_settings_directory(tmp_path / ".onetool")
    loaded = read_settings({}, tmp_path, None, tmp_path)
    assert loaded.problems == ()
    assert loaded.settings == Settings()


def test_commented_settings_are_the_defaults(tmp_path: Path) -> None:
    directory = tmp_path / ".onetool"
    configure(directory, UNCOMMENTED)
    loaded = read_settings({}, tmp_path, None, tmp_path)
    assert loaded.settings == Settings()
    assert loaded.problems == ()


def test_every_setting_is_listed_with_its_default() -> None:
    written = yaml.safe_load(UNCOMMENTED)
    assert written.keys() == Settings.kinds().keys()
    for key, kind in Settings.kinds().items():
        if isinstance(kind, type) and issubclass(kind, Section):
            assert written[key].keys() == kind.kinds().keys(), key
    assert written["agents"]["default"].keys() == Agent.kinds().keys()
    assert written["agents"]["default"]["budgets"].keys() == Budgets.kinds().keys()


@pytest.mark.parametrize(
    "kind", [Server, ToolFilter, PackSettings, Snippet, Param, Token, Issuer, Topic, Sandbox]
)
def test_every_key_of_an_entry_is_in_an_example(kind: type[Section]) -> None:
    missing = [key for key in kind.kinds() if not re.search(rf"[#{{ ]{key}:", CONFIGURATION)]
    assert missing == []


@pytest.mark.parametrize("key", ["aliases", "snippets", "projects", "servers", "tools"])
def test_the_examples_are_valid(tmp_path: Path, key: str) -> None:
    """Each example is below its setting, with explanations after some values."""
    configure(tmp_path / ".onetool", f"{key}:\n{EXAMPLES[key]}")
    env = {"GITHUB_TOKEN": "1", "DASHBOARD_TOKEN": "2"}
    assert getattr(read_settings(env, tmp_path, None, tmp_path).settings, key)


def test_private_and_generated_files_are_ignored_by_git() -> None:
    assert {"secrets.yaml", "logs/", "stats/", "tmp/", "cache/", "environments/"} <= set(
        NOT_FOR_GIT.split()
    )


def test_existing_files_are_not_changed(tmp_path: Path) -> None:
    directory = tmp_path / ".onetool"
    configure(directory, "aliases: {x: machine.now}")
    assert directory / "onetool.yaml" not in write_settings_directory(directory)
    assert (directory / "onetool.yaml").read_text("utf-8") == "aliases: {x: machine.now}"
    assert write_settings_directory(directory) == []


def test_links_are_not_followed_when_writing(tmp_path: Path) -> None:
    directory = tmp_path / ".onetool"
    directory.mkdir()
    (directory / "onetool.yaml").symlink_to(tmp_path / "elsewhere")
    write_settings_directory(directory)
    assert not (tmp_path / "elsewhere").exists()


# --- a pack ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["", "my-pack", "a b", "../up", "a/b", "1st", "a.b", "class", "None", "x\n", "x\0"]
)
def test_an_invalid_pack_name_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(ToolError, match="invalid pack name"):
        write_extension(tmp_path, name)
    assert not list(tmp_path.iterdir())


def test_an_existing_pack_is_not_overwritten(tmp_path: Path) -> None:
    file = write_extension(tmp_path, "notes")
    file.write_text("mine", encoding="utf-8")
    with pytest.raises(ToolError, match="already exists"):
        write_extension(tmp_path, "notes")
    assert file.read_text("utf-8") == "mine"


@pytest.mark.parametrize("name", ["notes", "n" * 300])
def test_an_unwritable_path_is_reported(tmp_path: Path, name: str) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "notes").touch()  # a file in place of the directory
    with pytest.raises(ToolError, match="cannot write"):
        write_extension(tmp_path, name)


@pytest.mark.slow
def test_a_model_with_write_permission_can_create_a_pack(tmp_path: Path) -> None:
    with open_app_in(tmp_path) as app:
        assert "write permission" in app.failure("ot.scaffold(pack='notes')")
    configure(tmp_path / ".onetool", WRITER)
    with open_app_in(tmp_path) as app:
        assert app.value("ot.scaffold(pack='notes')").startswith("OK: wrote ")
        assert app.data("ot.tools(pattern='notes.', info='list')") == ["notes.greet", "notes.since"]
        assert "already exists" in app.failure("ot.scaffold(pack='notes')")
        assert "invalid pack name" in app.failure("ot.scaffold(pack='../notes')")


@pytest.mark.slow
def test_a_pack_created_by_a_model_in_a_project_needs_trust(tmp_path: Path) -> None:
    home, directory = tmp_path / "home", tmp_path / "project" / ".onetool"
    configure(home / ".onetool", WRITER)
    directory.mkdir(parents=True)
    trust(directory, home / ".onetool")
    with open_app_in(home, tmp_path / "project") as app:
        assert "`onetool trust`" in app.value("ot.scaffold(pack='notes')")
        assert "notes" in app.failure("notes.greet(name='Ada')")
        trust(directory, home / ".onetool")
        assert app.data("ot.tools(pattern='notes.', info='list')") == ["notes.greet", "notes.since"]


# --- the command ----------------------------------------------------------------------------------


def test_init_lists_written_files_and_next_steps(tmp_path: Path) -> None:
    process = run_cli(tmp_path, "init")
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.count("Wrote ") == 3
    assert "onetool run 'hello.greet" in process.stdout
    again = run_cli(tmp_path, "init")
    assert "is already complete" in again.stdout


def test_init_prints_json(tmp_path: Path) -> None:
    printed = json.loads(run_cli(tmp_path, "init", "--json").stdout)
    assert printed["folder"] == str(tmp_path / ".onetool")
    assert len(printed["written"]) == 3


@pytest.mark.slow
@pytest.mark.parametrize("obstacle", [".onetool", ".onetool/tools"])
def test_init_explains_why_it_cannot_write(tmp_path: Path, obstacle: str) -> None:
    (tmp_path / obstacle).parent.mkdir(exist_ok=True)
    (tmp_path / obstacle).touch()
    process = run_cli(tmp_path, "init")
    assert process.returncode == 1
    assert process.stderr.startswith("onetool: ")
    assert "Traceback" not in process.stderr


def test_init_trusts_the_directory_that_it_creates(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "home" / "project"
    project.mkdir(parents=True)
    process = run_in_directory(project, home, "init")
    assert (process.returncode, process.stderr) == (0, "")
    assert is_trusted(project / ".onetool", home / ".onetool", {})


def test_init_reports_that_trust_cannot_be_stored(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "home" / "project"
    project.mkdir(parents=True)
    (home / ".onetool").touch()
    process = run_in_directory(project, home, "init")
    assert process.returncode == 1
    assert "was created but not trusted" in process.stderr
    assert "Traceback" not in process.stderr


def run_in_directory(
    directory: Path, home: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *arguments],
        cwd=directory,
        env=environment(home),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def test_concurrent_inits_create_one_directory(tmp_path: Path) -> None:
    """Each file is written once and completely, and no process fails."""
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: write_settings_directory(tmp_path / ".onetool"), range(8)))
    files = [file for one in made for file in one]
    assert len(files) == len(set(files)) == 3
    assert [file for file in (tmp_path / ".onetool").rglob("*") if file.suffix == ".tmp"] == []
