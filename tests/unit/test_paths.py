"""Directories and files, computed only from the given arguments."""

import dataclasses
from pathlib import Path

import pytest

from onetool.settings.paths import (
    Directories,
    agent_files,
    extension_files,
    find_directories,
    resolve_path,
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def make_trusted(directories: Directories) -> Directories:
    return dataclasses.replace(directories, trusted=True)


def test_without_a_project_the_user_directory_holds_data(home: Path, work: Path) -> None:
    directories = find_directories({}, work, None, home)
    assert directories == Directories(working_dir=work, user=home / ".onetool")
    assert (directories.data, directories.layers) == (home / ".onetool", (home / ".onetool",))


def test_a_trusted_project_directory_holds_data(home: Path, work: Path) -> None:
    (work / ".onetool").mkdir()
    directories = find_directories({}, work, None, home)
    assert directories.project == work / ".onetool"
    assert (directories.data, make_trusted(directories).data) == (
        home / ".onetool",
        work / ".onetool",
    )


def test_a_project_is_looked_for_up_to_the_root_of_the_repository(home: Path, work: Path) -> None:
    inner = work / "repository" / "packages" / "one"
    inner.mkdir(parents=True)
    (work / ".onetool").mkdir()

    def find() -> Path | None:
        return find_directories({}, inner, None, home).project

    assert find() is None, "without a repository, only the working directory counts"
    (work / "repository" / ".git").write_text("gitdir: elsewhere")
    assert find() is None, "it is above the root of the repository"
    for directory in (work / "repository", work / "repository" / "packages", inner):
        (directory / ".onetool").mkdir()
        assert find() == directory / ".onetool", "the nearest counts"
    (inner / ".git").mkdir()
    (inner / ".onetool").rmdir()
    assert find() is None, "a repository inside another one is a root"


def test_the_directory_of_the_user_is_no_project_of_a_repository_in_it(home: Path) -> None:
    (home / ".onetool").mkdir()
    (home / ".git").mkdir()
    (home / "code").mkdir()
    directories = find_directories({}, home / "code", None, home)
    assert (directories.project, directories.data) == (None, home / ".onetool")


def test_paths_in_settings_refer_to_the_project_in_use(home: Path, work: Path) -> None:
    (work / ".git").mkdir()
    (work / ".onetool").mkdir()
    (work / "sub").mkdir()
    directories = find_directories({}, work / "sub", None, home)
    assert (directories.working_dir, directories.root) == (work / "sub", work / "sub")
    assert make_trusted(directories).root == work
    named = find_directories({}, work / "sub", work / ".onetool" / "onetool.yaml", home)
    assert named.root == work / "sub"


def test_ot_cwd_replaces_the_current_directory(home: Path, work: Path) -> None:
    (work / "sub" / ".onetool").mkdir(parents=True)
    named = [str(work / "sub"), "sub"]
    assert {find_directories({"OT_CWD": name}, work, None, home).project for name in named} == {
        work / "sub" / ".onetool"
    }


def test_the_working_directory_may_start_with_a_tilde(home: Path, work: Path) -> None:
    assert find_directories({"OT_CWD": "~/code"}, work, None, home).working_dir == home / "code"
    assert find_directories({"OT_CWD": "~"}, work, None, home).working_dir == home


def test_a_config_file_makes_its_directory_the_project(home: Path, work: Path) -> None:
    (work / ".onetool").mkdir()
    for directories in (
        find_directories({}, work, Path("conf/my.yaml"), home),
        find_directories({"ONETOOL_CONFIG": "conf/my.yaml"}, work, None, home),
    ):
        assert directories.project == directories.data == work / "conf"
        assert directories.trusted
        assert directories.config_path(work / "conf") == work / "conf" / "my.yaml"
        assert directories.config_path(directories.user) == home / ".onetool" / "onetool.yaml"


def test_the_config_option_overrides_the_environment(home: Path, work: Path) -> None:
    directories = find_directories({"ONETOOL_CONFIG": "env.yaml"}, work, work / "line.yaml", home)
    assert directories.config_file == work / "line.yaml"


def test_a_config_file_is_relative_to_the_current_directory(home: Path, work: Path) -> None:
    (work / "elsewhere").mkdir()
    directories = find_directories({"OT_CWD": "elsewhere"}, work, Path("my.yaml"), home)
    assert (directories.working_dir, directories.config_file) == (
        work / "elsewhere",
        work / "my.yaml",
    )


def test_the_home_directory_is_used_only_once(home: Path) -> None:
    (home / ".onetool").mkdir()
    directories = find_directories({}, home, None, home)
    assert (directories.project, directories.layers, directories.data) == (
        None,
        (home / ".onetool",),
        home / ".onetool",
    )


def test_a_link_to_the_home_directory_is_used_once(home: Path, tmp_path: Path) -> None:
    (home / ".onetool").mkdir()
    (tmp_path / "link").symlink_to(home)
    assert find_directories({}, tmp_path / "link", None, home).project is None


def test_a_config_file_in_the_user_directory_replaces_the_default_file(
    home: Path, work: Path
) -> None:
    (home / ".onetool").mkdir()
    directories = find_directories({}, work, home / ".onetool" / "other.yaml", home)
    assert directories.layers == (home / ".onetool",)
    assert directories.config_path(home / ".onetool") == home / ".onetool" / "other.yaml"


def test_a_file_named_onetool_is_not_a_project(home: Path, work: Path) -> None:
    (work / ".onetool").write_text("")
    assert find_directories({}, work, None, home).project is None


def test_a_link_to_itself_is_not_a_project(home: Path, work: Path) -> None:
    (work / ".onetool").symlink_to(".onetool")
    assert find_directories({}, work, None, home).project is None


def test_finding_directories_creates_none(home: Path, work: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    find_directories({"ONETOOL_CONFIG": "a/b.yaml", "OT_CWD": "c"}, work, None, home)
    assert sorted(tmp_path.rglob("*")) == before


def test_files_are_found_in_the_project_first(home: Path, work: Path) -> None:
    for directory in (home / ".onetool", work / ".onetool"):
        directory.mkdir()
        (directory / "both.txt").write_text("")
    (home / ".onetool" / "one.txt").write_text("")
    directories = find_directories({}, work, None, home)
    assert directories.find("both.txt") == home / ".onetool" / "both.txt"
    assert make_trusted(directories).find("both.txt") == work / ".onetool" / "both.txt"
    assert make_trusted(directories).find("one.txt") == home / ".onetool" / "one.txt"
    assert make_trusted(directories).find("none.txt") is None


def test_agents_and_extensions_are_listed_in_order(work: Path) -> None:
    for name in (
        "agents/b.yml",
        "agents/a.yaml",
        "agents/.hidden.yml",
        "agents/c.txt",
        "tools/x/x_tools.py",
    ):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text("")
    (work / "tools" / "x" / "helper.py").write_text("")
    assert [path.name for path in agent_files(work)] == ["a.yaml", "b.yml"]
    assert extension_files(work / "tools") == (work / "tools" / "x" / "x_tools.py",)
    assert agent_files(work / "none") == extension_files(work / "none") == ()


def test_paths_are_relative_to_home_base_or_root() -> None:
    base, home = Path("/base"), Path("/home/me")
    assert [str(resolve_path(text, base, home)) for text in ("~/x", "~x", "x/y", "/x", "~")] == [
        "/home/me/x",
        "/base/~x",
        "/base/x/y",
        "/x",
        "/home/me",
    ]
