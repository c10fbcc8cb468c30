"""Where things are, from nothing but what is passed in."""

import dataclasses
from pathlib import Path

import pytest

from onetool.paths import Folders, agent_files, extension_files, find_folders, resolve_path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def trusted(folders: Folders) -> Folders:
    return dataclasses.replace(folders, trusted=True)


def test_without_a_project_the_user_folder_holds_data(home: Path, work: Path) -> None:
    folders = find_folders({}, work, None, home)
    assert folders == Folders(working_dir=work, user=home / ".onetool")
    assert (folders.data, folders.layers) == (home / ".onetool", (home / ".onetool",))


def test_a_project_folder_holds_data_once_trusted(home: Path, work: Path) -> None:
    (work / ".onetool").mkdir()
    folders = find_folders({}, work, None, home)
    assert folders.project == work / ".onetool"
    assert (folders.data, trusted(folders).data) == (home / ".onetool", work / ".onetool")


def test_a_named_working_folder_replaces_the_current_one(home: Path, work: Path) -> None:
    (work / "sub" / ".onetool").mkdir(parents=True)
    named = [str(work / "sub"), "sub"]
    assert {find_folders({"OT_CWD": name}, work, None, home).project for name in named} == {work / "sub" / ".onetool"}


def test_the_working_folder_may_start_with_a_tilde(home: Path, work: Path) -> None:
    assert find_folders({"OT_CWD": "~/code"}, work, None, home).working_dir == home / "code"
    assert find_folders({"OT_CWD": "~"}, work, None, home).working_dir == home


def test_a_named_file_makes_its_folder_the_project(home: Path, work: Path) -> None:
    (work / ".onetool").mkdir()
    for folders in (
        find_folders({}, work, Path("conf/my.yaml"), home),
        find_folders({"ONETOOL_CONFIG": "conf/my.yaml"}, work, None, home),
    ):
        assert folders.project == folders.data == work / "conf"
        assert folders.trusted
        assert folders.config_path(work / "conf") == work / "conf" / "my.yaml"
        assert folders.config_path(folders.user) == home / ".onetool" / "onetool.yaml"


def test_a_file_on_the_command_line_beats_the_environment(home: Path, work: Path) -> None:
    folders = find_folders({"ONETOOL_CONFIG": "env.yaml"}, work, work / "line.yaml", home)
    assert folders.config_file == work / "line.yaml"


def test_a_file_is_found_from_where_the_person_stands(home: Path, work: Path) -> None:
    (work / "elsewhere").mkdir()
    folders = find_folders({"OT_CWD": "elsewhere"}, work, Path("my.yaml"), home)
    assert (folders.working_dir, folders.config_file) == (work / "elsewhere", work / "my.yaml")


def test_the_home_folder_counts_only_once(home: Path) -> None:
    (home / ".onetool").mkdir()
    folders = find_folders({}, home, None, home)
    assert (folders.project, folders.layers, folders.data) == (None, (home / ".onetool",), home / ".onetool")


def test_a_link_to_the_home_folder_counts_once(home: Path, tmp_path: Path) -> None:
    (home / ".onetool").mkdir()
    (tmp_path / "link").symlink_to(home)
    assert find_folders({}, tmp_path / "link", None, home).project is None


def test_a_named_file_in_the_user_folder_replaces_its_own(home: Path, work: Path) -> None:
    (home / ".onetool").mkdir()
    folders = find_folders({}, work, home / ".onetool" / "other.yaml", home)
    assert folders.layers == (home / ".onetool",)
    assert folders.config_path(home / ".onetool") == home / ".onetool" / "other.yaml"


def test_a_file_called_like_the_folder_is_no_project(home: Path, work: Path) -> None:
    (work / ".onetool").write_text("")
    assert find_folders({}, work, None, home).project is None


def test_a_link_to_itself_is_no_project(home: Path, work: Path) -> None:
    (work / ".onetool").symlink_to(".onetool")
    assert find_folders({}, work, None, home).project is None


def test_looking_for_folders_creates_none_of_them(home: Path, work: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    find_folders({"ONETOOL_CONFIG": "a/b.yaml", "OT_CWD": "c"}, work, None, home)
    assert sorted(tmp_path.rglob("*")) == before


def test_files_are_found_in_the_project_first(home: Path, work: Path) -> None:
    for folder in (home / ".onetool", work / ".onetool"):
        folder.mkdir()
        (folder / "both.txt").write_text("")
    (home / ".onetool" / "one.txt").write_text("")
    folders = find_folders({}, work, None, home)
    assert folders.find("both.txt") == home / ".onetool" / "both.txt"
    assert trusted(folders).find("both.txt") == work / ".onetool" / "both.txt"
    assert trusted(folders).find("one.txt") == home / ".onetool" / "one.txt"
    assert trusted(folders).find("none.txt") is None


def test_agents_and_extensions_are_listed_in_order(work: Path) -> None:
    for name in ("agents/b.yml", "agents/a.yaml", "agents/.hidden.yml", "agents/c.txt", "tools/x/x_tools.py"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text("")
    (work / "tools" / "x" / "helper.py").write_text("")
    assert [path.name for path in agent_files(work)] == ["a.yaml", "b.yml"]
    assert extension_files(work / "tools") == (work / "tools" / "x" / "x_tools.py",)
    assert agent_files(work / "none") == extension_files(work / "none") == ()


def test_paths_start_at_home_base_or_root() -> None:
    base, home = Path("/base"), Path("/home/me")
    assert [str(resolve_path(text, base, home)) for text in ("~/x", "~x", "x/y", "/x", "~")] == [
        "/home/me/x",
        "/base/~x",
        "/base/x/y",
        "/x",
        "/home/me",
    ]
