"""Projects in code: paths that can be joined and read, and that stay inside unless explicitly left."""

import base64
import copy
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path, PurePath
from typing import Any

import pytest
from hypothesis import given, strategies as st

from onetool_child.errors import SandboxDenied
from onetool_child.project_path import ProjectPath, ProjectsProxy


def call(name: str, arguments: dict[str, Any]) -> Any:
    """Call the tools behind a path like the server does."""
    path = Path(arguments["path"])
    match name:
        case "fs.read":
            data = path.read_bytes()
            content = (
                base64.b64encode(data).decode()
                if arguments.get("encoding") == "base64"
                else data.decode()
            )
            return {"content": content, "path": str(path), "size": len(data)}
        case "fs.list":
            found = sorted(path.glob(arguments.get("pattern", "*")))
            return [{"name": entry.relative_to(path).as_posix()} for entry in found]
        case "fs.stat":
            if path.name == "secret":
                raise SandboxDenied("not allowed")
            path.stat()
            return {"type": "dir" if path.is_dir() else "file" if path.is_file() else "other"}
    raise AssertionError(name)


@pytest.fixture
def project(tmp_path: Path) -> ProjectPath:
    (tmp_path / "app" / "src").mkdir(parents=True)
    (tmp_path / "app" / "src" / "main.py").write_text("print('é')")
    (tmp_path / "app" / "data.bin").write_bytes(b"\xff\0")
    (tmp_path / "other").mkdir()
    os.mkfifo(tmp_path / "app" / "pipe")
    return ProjectsProxy({"app": str(tmp_path / "app")}, call).path("app")


def test_a_path_is_a_string_that_can_be_joined(project: ProjectPath) -> None:
    joined = project / "src" / "main.py"

    assert isinstance(joined, ProjectPath)
    assert joined == f"{project}/src/main.py"
    assert (
        joined
        == project / Path("src") / "x" / ".." / "main.py"
        == project.joinpath("src", "main.py")
    )
    assert hash(joined) == hash(str(joined))
    assert joined.upper() == str(joined).upper()
    assert f"{joined}" == str(joined)
    assert repr(joined) == f"ProjectPath({str(joined)!r})"


def test_a_path_has_name_suffix_and_parent(project: ProjectPath) -> None:
    path = project / "src" / "main.test.py"

    assert (path.name, path.stem, path.suffix) == ("main.test.py", "main.test", ".py")
    assert path.parts == PurePath(str(path)).parts
    assert path.parent == project / "src"
    assert isinstance(path.parent, ProjectPath)


@pytest.mark.parametrize(
    "part", ["..", "../other", "src/../../other", "/etc/passwd", "//etc", "../app2", "a/../.."]
)
def test_joining_cannot_leave_the_project(project: ProjectPath, part: str) -> None:
    with pytest.raises(ValueError, match=r"is outside the project directory .*; use \.outside\("):
        project / part
    with pytest.raises(ValueError, match="outside"):
        _ = (project / "src").joinpath("..", part)


def test_the_parent_of_the_project_is_outside(project: ProjectPath) -> None:
    with pytest.raises(ValueError, match="outside"):
        _ = project.parent


@pytest.mark.parametrize("part", ["", ".", "src/..", "./src", "..data", "a/.../b"])
def test_joining_inside_the_project_is_unrestricted(project: ProjectPath, part: str) -> None:
    assert (project / part) == os.path.normpath(os.path.join(project, part))  # noqa: PTH118 - the reference implementation


def test_an_absolute_path_inside_may_be_joined(project: ProjectPath) -> None:
    assert project / f"{project}/src" == project / "src"


@given(
    st.lists(
        st.sampled_from(
            ["..", ".", "a", "app", "app2", "/", "//", "../", "a/..", "/app", "/app/x", "\0", "~"]
        )
    )
)
def test_no_sequence_of_joins_leaves_the_project(parts: list[str]) -> None:
    path = ProjectPath("/app", call)
    for part in parts:
        try:
            path = path / part
        except ValueError:
            continue
        assert path == "/app" or path.startswith("/app/")
        assert ".." not in path.parts


def test_leaving_the_project_must_be_explicit(project: ProjectPath) -> None:
    outside = project.outside("..", "other")

    assert outside == str(Path(project).parent / "other")
    assert outside.is_dir()
    assert (outside / ".." / "app").exists()
    assert project.outside().parent == Path(project).parent.as_posix()
    assert project.outside("/etc") == "/etc"


def test_reading_uses_the_fs_tools(project: ProjectPath) -> None:
    assert (project / "src" / "main.py").read_text() == "print('é')"
    assert (project / "src" / "main.py").read_text(encoding="utf-8") == "print('é')"
    assert (project / "data.bin").read_text("latin-1") == "ÿ\0"
    assert (project / "data.bin").read_text(errors="replace") == "\ufffd\0"
    assert (project / "data.bin").read_bytes() == b"\xff\0"
    with pytest.raises(FileNotFoundError):
        (project / "none").read_text()


def test_checking_existence_uses_the_fs_tools(project: ProjectPath) -> None:
    assert [(project / name).exists() for name in ("src", "data.bin", "pipe", "none", "data.bin/x")] == [
        True, True, True, False, False,
    ]  # fmt: skip
    assert [(project / name).is_dir() for name in ("src", "data.bin", "pipe", "none")] == [
        True,
        False,
        False,
        False,
    ]
    assert [(project / name).is_file() for name in ("src", "data.bin", "pipe", "none")] == [
        False,
        True,
        False,
        False,
    ]


def test_a_denied_path_is_not_reported_as_missing(project: ProjectPath) -> None:
    with pytest.raises(SandboxDenied):
        (project / "secret").exists()


def test_a_directory_lists_paths(project: ProjectPath) -> None:
    assert list(project.iterdir()) == [project / "data.bin", project / "pipe", project / "src"]
    assert (
        list(project.glob("**/*.py"))
        == list(project.rglob("*.py"))
        == [project / "src" / "main.py"]
    )
    assert all(isinstance(path, ProjectPath) for path in project.iterdir())


@pytest.mark.parametrize("pattern", ["../*", "/etc/*", "src/../../*", "**/../.."])
def test_a_glob_pattern_cannot_leave_the_directory(project: ProjectPath, pattern: str) -> None:
    with pytest.raises(ValueError, match="leaves the directory"):
        project.glob(pattern)


def test_a_path_is_accepted_wherever_a_string_is(project: ProjectPath) -> None:
    assert json.loads(json.dumps([project])) == [str(project)]
    assert Path(project) == Path(str(project))
    assert os.fspath(project) == str(project)
    assert pickle.loads(pickle.dumps(project)) == copy.deepcopy(project) == str(project)


def test_projects_are_attributes_of_proj() -> None:
    proj = ProjectsProxy({"onetool": "/projects/onetool", "my-app": "/projects/app"}, call)

    assert proj.onetool == "/projects/onetool"
    assert isinstance(proj.onetool, ProjectPath)
    assert proj.onetool / "src" == "/projects/onetool/src"
    assert proj.path("my-app") == proj.my_app == "/projects/app"
    assert proj.list() == ["my-app", "onetool"]
    assert dir(proj) == ["list", "my_app", "onetool", "path"]


def test_an_exact_name_takes_precedence_over_its_python_form() -> None:
    assert ProjectsProxy({"my-app": "/a", "my_app": "/b"}, call).my_app == "/b"
    assert ProjectsProxy({"my_app": "/b", "my-app": "/a"}, call).my_app == "/b"


def test_functions_take_precedence_over_projects_with_the_same_name() -> None:
    proj = ProjectsProxy({"path": "/a", "list": "/b"}, call)

    assert proj.list() == ["list", "path"]
    assert proj.path("path") == "/a"


@pytest.mark.parametrize("look_up", [lambda proj: proj.unknown, lambda proj: proj.path("unknown")])
def test_an_unknown_project_lists_functions_and_projects(look_up: Any) -> None:
    with pytest.raises(AttributeError) as error:
        look_up(ProjectsProxy({"onetool": "/x"}, call))
    assert str(error.value) == "proj has no 'unknown'. Functions: path, list. Projects: onetool."
    assert not hasattr(ProjectsProxy({}, call), "__wrapped__")


def test_the_child_module_imports_only_the_standard_library() -> None:
    code = (
        "import sys, onetool_child.project_path\nsys.exit(bool(set(sys.modules) & {'onetool',"
        " 'pydantic', 'yaml'}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
