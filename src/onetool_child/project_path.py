"""`proj`: the configured projects as code sees them. A path is a `str` that can be joined, looked at and read.

Joining never leaves the project's folder unless `.outside()` asks for it. That is a courtesy to honest code; what may
be read is decided in the server, because every look at the disk is a call of `fs.stat`, `fs.list` or `fs.read`.
"""

import builtins
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pathlib import PurePath

MOST_LISTED = 100_000
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
        if not _pure(self).is_relative_to(self._root):
            raise ValueError(f"{str(self)!r} is outside the project's folder {self._root!r}; .outside(…) leads there")
        return self

    def __truediv__(self, other: Part) -> "ProjectPath":
        return self.joinpath(other)

    def joinpath(self, *others: Part) -> "ProjectPath":
        return ProjectPath(_pure(self, *others), self._call, self._root)

    def outside(self, *others: Part) -> "ProjectPath":
        """The joined path, wherever it leads: `proj.app.outside("..", "other")`."""
        path = _pure(self, *others)
        return ProjectPath(path, self._call, path.anchor)

    def __fspath__(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"ProjectPath({str(self)!r})"

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)

    @property
    def name(self) -> str:
        return _pure(self).name

    @property
    def stem(self) -> str:
        return _pure(self).stem

    @property
    def suffix(self) -> str:
        return _pure(self).suffix

    @property
    def parts(self) -> tuple[str, ...]:
        return _pure(self).parts

    @property
    def parent(self) -> "ProjectPath":
        return ProjectPath(_pure(self).parent, self._call, self._root)

    # --- the disk -----------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        return self._kind() is not None

    def is_dir(self) -> bool:
        return self._kind() == "dir"

    def is_file(self) -> bool:
        return self._kind() == "file"

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        """The text, decoded as `pathlib` would; UTF-8 unless another encoding is named."""
        if encoding or errors:
            return self.read_bytes().decode(encoding or "utf-8", errors or "strict")
        content: str = self._ask("fs.read")["content"]
        return content

    def read_bytes(self) -> bytes:
        import base64

        return base64.b64decode(self._ask("fs.read", encoding="base64")["content"])

    def iterdir(self) -> Iterator["ProjectPath"]:
        return self._listed()

    def glob(self, pattern: str) -> Iterator["ProjectPath"]:
        """The paths below this one that match; `**` stands for any number of folders."""
        if ".." in _pure(pattern).parts or _pure(pattern).is_absolute():
            raise ValueError(f"the pattern {pattern!r} leads out of the folder")
        return self._listed(pattern=pattern)

    def rglob(self, pattern: str) -> Iterator["ProjectPath"]:
        return self.glob(f"**/{pattern}")

    def _listed(self, **options: Any) -> Iterator["ProjectPath"]:
        return (self / entry["name"] for entry in self._ask("fs.list", max_results=MOST_LISTED, **options))

    def _kind(self) -> str | None:
        try:
            kind: str = self._ask("fs.stat")["type"]
        except (FileNotFoundError, NotADirectoryError):
            return None
        return kind

    def _ask(self, tool: str, **options: Any) -> Any:
        return self._call(tool, {"path": str(self), **options})


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
        like_it = (project for project in self._projects if _as_attribute(project) == name)
        return self.path(name if name in self._projects else next(like_it, name))

    def _names(self) -> str:
        return ", ".join(self.list()) or "none"

    def __dir__(self) -> builtins.list[str]:
        return ["path", "list", *map(_as_attribute, self.list())]

    def __repr__(self) -> str:
        return "<pack proj>"


def _as_attribute(project: str) -> str:
    return re.sub(r"\W", "_", project)


def _pure(*parts: Part) -> "PurePath":
    from pathlib import PurePath  # every cell would pay for it

    return PurePath(*parts)
