"""`proj`: the configured projects as code sees them. A path is a `str` that can be joined, looked at and read.

Joining never leaves the project's folder unless `.outside()` asks for it. That is a courtesy to honest code; what may
be read is decided in the server, because every look at the disk is a call of `fs.stat`, `fs.list` or `fs.read`.
"""

import builtins
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, Self

Call = Callable[[str, dict[str, Any]], Any]
Part = str | os.PathLike[str]


class ProjectPath(str):
    """A path in a project, absolute and without `..`. What the methods of `str` return is a plain `str`."""

    __slots__ = ("_call", "_root")
    _call: Call
    _root: str

    def __new__(cls, path: Part, call: Call, root: Part | None = None) -> Self:
        """A path in the folder `root`, which is the path itself where it is left out."""
        self = super().__new__(cls, os.path.normpath(path))
        self._call, self._root = call, os.path.normpath(path if root is None else root)
        if not PurePath(self).is_relative_to(self._root):
            raise ValueError(f"{str(self)!r} is outside the project's folder {self._root!r}; .outside(…) leads there")
        return self

    def __truediv__(self, other: Part) -> "ProjectPath":
        return self.joinpath(other)

    def joinpath(self, *others: Part) -> "ProjectPath":
        return ProjectPath(PurePath(self, *others), self._call, self._root)

    def outside(self, *others: Part) -> "ProjectPath":
        """The joined path, wherever it leads: `proj.app.outside("..", "other")`."""
        path = PurePath(self, *others)
        return ProjectPath(path, self._call, path.anchor)

    def __fspath__(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"ProjectPath({str(self)!r})"

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)

    @property
    def name(self) -> str:
        return PurePath(self).name

    @property
    def stem(self) -> str:
        return PurePath(self).stem

    @property
    def suffix(self) -> str:
        return PurePath(self).suffix

    @property
    def parts(self) -> tuple[str, ...]:
        return PurePath(self).parts

    @property
    def parent(self) -> "ProjectPath":
        return ProjectPath(PurePath(self).parent, self._call, self._root)

    # --- the disk -----------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        return self._kind() is not None

    def is_dir(self) -> bool:
        return self._kind() == "dir"

    def is_file(self) -> bool:
        return self._kind() == "file"

    def read_text(self) -> str:
        content: str = self._call("fs.read", {"path": str(self)})["content"]
        return content

    def read_bytes(self) -> bytes:
        import base64

        content = self._call("fs.read", {"path": str(self), "encoding": "base64"})["content"]
        return base64.b64decode(content)

    def iterdir(self) -> Iterator["ProjectPath"]:
        return self._listed({})

    def glob(self, pattern: str) -> Iterator["ProjectPath"]:
        """The paths below this one that match; `**` stands for any number of folders."""
        if ".." in PurePath(pattern).parts or PurePath(pattern).is_absolute():
            raise ValueError(f"the pattern {pattern!r} leads out of the folder")
        return self._listed({"pattern": pattern})

    def _listed(self, options: dict[str, Any]) -> Iterator["ProjectPath"]:
        entries = self._call("fs.list", {"path": str(self), **options})
        return (self / entry["name"] for entry in entries)

    def _kind(self) -> str | None:
        try:
            kind: str = self._call("fs.stat", {"path": str(self)})["type"]
        except (FileNotFoundError, NotADirectoryError):
            return None
        return kind


class ProjectsProxy:
    """`proj`: each project is an attribute; the functions come before a project of the same name."""

    def __init__(self, projects: Mapping[str, str], call: Call) -> None:
        self._projects, self._call = projects, call

    def path(self, name: str) -> ProjectPath:
        """The folder of a project, whatever its name."""
        if name not in self._projects:
            raise AttributeError(f"proj has no {name!r}. Functions: path, list. Projects: {self._names()}.")
        return ProjectPath(self._projects[name], self._call)

    def list(self) -> builtins.list[str]:
        """The names of the projects."""
        return sorted(self._projects)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.path(next((project for project in self._projects if _as_attribute(project) == name), name))

    def _names(self) -> str:
        return ", ".join(self.list()) or "none"

    def __dir__(self) -> builtins.list[str]:
        return ["path", "list", *map(_as_attribute, self.list())]

    def __repr__(self) -> str:
        return "<pack proj>"


def _as_attribute(project: str) -> str:
    return re.sub(r"\W", "_", project)
