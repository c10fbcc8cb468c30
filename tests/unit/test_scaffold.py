"""What `onetool init` and `ot.scaffold` write, and what they leave alone."""

import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from tests.extensions_support import configure, open_app_in
from tests.support import PROGRAM, environment, run_cli

from onetool.app import read_settings
from onetool.config.model import (
    Agent,
    Budgets,
    Pack,
    Param,
    Sandbox,
    Section,
    Server,
    Settings,
    Snippet,
    Token,
    ToolFilter,
    Topic,
)
from onetool.config.scaffold import CONFIGURATION, NOT_FOR_GIT, extension_file, write_extension, write_folder
from onetool.config.trust import is_trusted, trust
from onetool.errors import ToolError
from onetool.extensions import static_analysis

UNCOMMENTED = re.sub(r"(?m)^#(?!#)", "", CONFIGURATION)
EXAMPLES = {
    key: re.sub(r"(?m)(?<=\S) {2,}\S.*$", "", text.replace("##", "  "))
    for key, text in re.findall(r"(?m)^#(\w+): \{\}.*\n((?:##   .*\n)+)", CONFIGURATION)
}
WRITER = "agents: {default: {permissions: [read, write]}}"


# --- a folder ----------------------------------------------------------------------------------------------


def test_a_folder_gets_a_configuration_an_example_and_a_list_for_git(tmp_path: Path) -> None:
    folder = tmp_path / ".onetool"
    example = extension_file(folder, "hello")
    assert write_folder(folder) == [folder / "onetool.yaml", folder / ".gitignore", example]
    assert example == folder / "tools" / "hello" / "hello_tools.py"


def test_the_example_is_a_pack_without_problems(tmp_path: Path) -> None:
    extension = static_analysis.read(write_extension(tmp_path, "my_pack"))
    assert (extension.pack, extension.problem, extension.problems) == ("my_pack", None, ())
    assert extension.header is not None
    assert extension.header.data["dependencies"] == ["humanize"]
    assert extension.description
    assert {function.name for function in extension.functions} == {"greet", "since"}
    assert all(function.example.startswith("my_pack.") for function in extension.functions)
    assert not extension.permissions


def test_the_configuration_is_right_and_says_nothing_yet(tmp_path: Path) -> None:
    write_folder(tmp_path / ".onetool")
    loaded = read_settings({}, tmp_path, None, tmp_path)
    assert loaded.problems == ()
    assert loaded.settings == Settings()


def test_all_that_is_commented_out_is_the_default(tmp_path: Path) -> None:
    folder = tmp_path / ".onetool"
    configure(folder, UNCOMMENTED)
    loaded = read_settings({}, tmp_path, None, tmp_path)
    assert loaded.settings == Settings()
    assert loaded.problems == ()


def test_every_setting_is_shown_with_its_default() -> None:
    written = yaml.safe_load(UNCOMMENTED)
    assert written.keys() == Settings.kinds().keys()
    for key, kind in Settings.kinds().items():
        if isinstance(kind, type) and issubclass(kind, Section):
            assert written[key].keys() == kind.kinds().keys(), key
    assert written["agents"]["default"].keys() == Agent.kinds().keys()
    assert written["agents"]["default"]["budgets"].keys() == Budgets.kinds().keys()


@pytest.mark.parametrize("kind", [Server, ToolFilter, Pack, Snippet, Param, Token, Topic, Sandbox])
def test_every_key_of_an_entry_stands_in_an_example(kind: type[Section]) -> None:
    missing = [key for key in kind.kinds() if not re.search(rf"[#{{ ]{key}:", CONFIGURATION)]
    assert missing == []


@pytest.mark.parametrize("key", ["aliases", "snippets", "projects", "servers", "tools"])
def test_the_examples_are_right(tmp_path: Path, key: str) -> None:
    """Each stands under the setting that it is for, with words behind some of its values."""
    configure(tmp_path / ".onetool", f"{key}:\n{EXAMPLES[key]}")
    env = {"GITHUB_TOKEN": "1", "DASHBOARD_TOKEN": "2"}
    assert getattr(read_settings(env, tmp_path, None, tmp_path).settings, key)


def test_what_is_private_or_made_again_stays_out_of_git() -> None:
    assert {"secrets.yaml", "logs/", "stats/", "tmp/", "cache/", "environments/"} <= set(NOT_FOR_GIT.split())


def test_files_that_exist_stay_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / ".onetool"
    configure(folder, "aliases: {x: machine.now}")
    assert folder / "onetool.yaml" not in write_folder(folder)
    assert (folder / "onetool.yaml").read_text("utf-8") == "aliases: {x: machine.now}"
    assert write_folder(folder) == []


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    folder = tmp_path / ".onetool"
    folder.mkdir()
    (folder / "onetool.yaml").symlink_to(tmp_path / "elsewhere")
    write_folder(folder)
    assert not (tmp_path / "elsewhere").exists()


# --- a pack ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "my-pack", "a b", "../up", "a/b", "1st", "a.b", "class", "None", "x\n", "x\0"])
def test_a_name_that_code_cannot_use_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ToolError, match="is no name for a pack"):
        write_extension(tmp_path, name)
    assert not list(tmp_path.iterdir())


def test_a_pack_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    file = write_extension(tmp_path, "notes")
    file.write_text("mine", encoding="utf-8")
    with pytest.raises(ToolError, match="is there already"):
        write_extension(tmp_path, "notes")
    assert file.read_text("utf-8") == "mine"


@pytest.mark.parametrize("name", ["notes", "n" * 300])
def test_a_place_that_cannot_be_written_says_so(tmp_path: Path, name: str) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "notes").touch()  # where a folder would have to be
    with pytest.raises(ToolError, match="cannot be written"):
        write_extension(tmp_path, name)


@pytest.mark.slow
def test_a_model_may_write_a_pack_where_it_may_write(tmp_path: Path) -> None:
    with open_app_in(tmp_path) as app:
        assert "write permission" in app.failure("ot.scaffold(pack='notes')")
    configure(tmp_path / ".onetool", WRITER)
    with open_app_in(tmp_path) as app:
        assert app.value("ot.scaffold(pack='notes')").startswith("OK: wrote ")
        assert app.data("ot.tools(pattern='notes.', info='list')") == ["notes.greet", "notes.since"]
        assert "is there already" in app.failure("ot.scaffold(pack='notes')")
        assert "no name for a pack" in app.failure("ot.scaffold(pack='../notes')")


@pytest.mark.slow
def test_a_pack_that_a_model_wrote_into_a_project_waits_for_a_person(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "project" / ".onetool"
    configure(home / ".onetool", WRITER)
    folder.mkdir(parents=True)
    trust(folder, home / ".onetool")
    with open_app_in(home, tmp_path / "project") as app:
        assert "`onetool trust`" in app.value("ot.scaffold(pack='notes')")
        assert "notes" in app.failure("notes.greet(name='Ada')")
        trust(folder, home / ".onetool")
        assert app.data("ot.tools(pattern='notes.', info='list')") == ["notes.greet", "notes.since"]


# --- the command -------------------------------------------------------------------------------------------


def test_init_says_what_it_wrote_and_what_to_try(tmp_path: Path) -> None:
    process = run_cli(tmp_path, "init")
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.count("wrote ") == 3
    assert "onetool run 'hello.greet" in process.stdout
    again = run_cli(tmp_path, "init")
    assert "is already complete" in again.stdout


def test_init_can_be_read_by_programs(tmp_path: Path) -> None:
    printed = json.loads(run_cli(tmp_path, "init", "--json").stdout)
    assert printed["folder"] == str(tmp_path / ".onetool")
    assert len(printed["written"]) == 3


@pytest.mark.slow
@pytest.mark.parametrize("obstacle", [".onetool", ".onetool/tools"])
def test_init_that_cannot_write_says_why(tmp_path: Path, obstacle: str) -> None:
    (tmp_path / obstacle).parent.mkdir(exist_ok=True)
    (tmp_path / obstacle).touch()
    process = run_cli(tmp_path, "init")
    assert process.returncode == 1
    assert process.stderr.startswith("onetool: ")
    assert "Traceback" not in process.stderr


def test_init_trusts_the_folder_that_it_makes(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "home" / "project"
    project.mkdir(parents=True)
    process = run_in(project, home, "init")
    assert (process.returncode, process.stderr) == (0, "")
    assert is_trusted(project / ".onetool", home / ".onetool", {})


def test_init_that_cannot_remember_its_trust_says_so(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "home" / "project"
    project.mkdir(parents=True)
    (home / ".onetool").touch()
    process = run_in(project, home, "init")
    assert process.returncode == 1
    assert "was created but not trusted" in process.stderr
    assert "Traceback" not in process.stderr


def run_in(folder: Path, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *arguments], cwd=folder, env=environment(home), capture_output=True, encoding="utf-8", check=False
    )


def test_several_who_make_a_folder_at_once_make_one(tmp_path: Path) -> None:
    """Each file is one's own or another's, whole, and nobody is told off."""
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: write_folder(tmp_path / ".onetool"), range(8)))
    files = [file for one in made for file in one]
    assert len(files) == len(set(files)) == 3
    assert [file for file in (tmp_path / ".onetool").rglob("*") if file.suffix == ".tmp"] == []
