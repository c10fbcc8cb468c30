"""The object `proj`: the configured projects, as code uses them.

A path is a `str` with methods to join and read.

Joined paths stay in the directory of the project unless `.outside()` is used. This only prevents
mistakes; the server decides what may be read, because every access is a call of `fs.stat`,
`fs.list` or `fs.read`.
"""

import builtins
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from pathlib import PurePath

MAX_LISTED = 100_000
Call = Callable[[str, JsonObject], Any]
Part = str | os.PathLike[str]


class ProjectPath(str):
    """A path in a project, absolute and without `..`. Methods of `str` return a plain `str`."""

    __slots__ = ("_call", "_root")
    _call: Call
    _root: str

    def __new__(cls, path: Part, call: Call, root: Part | None = None) -> Self:
        """Create a path in the directory `root`; without one, the path itself is the root."""
        self = super().__new__(cls, os.path.normpath(path))
        self._call = call
        self._root = os.path.normpath(path if root is None else root)
        if not _pure_path(self).is_relative_to(self._root):
            raise ValueError(
                f"{str(self)!r} is outside the project directory {self._root!r}; use .outside(…) to"
                " leave it"
            )
        return self

    def __truediv__(self, other: Part) -> "ProjectPath":
        return self.joinpath(other)

    def joinpath(self, *others: Part) -> "ProjectPath":
        return ProjectPath(_pure_path(self, *others), self._call, self._root)

    def outside(self, *others: Part) -> "ProjectPath":
        """Return the joined path, which may leave the project: `proj.app.outside("..", "other")`."""
        path = _pure_path(self, *others)
        return ProjectPath(path, self._call, path.anchor)

    def __fspath__(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"ProjectPath({str(self)!r})"

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)

    @property
    def name(self) -> str:
        return _pure_path(self).name

    @property
    def stem(self) -> str:
        return _pure_path(self).stem

    @property
    def suffix(self) -> str:
        return _pure_path(self).suffix

    @property
    def parts(self) -> tuple[str, ...]:
        return _pure_path(self).parts

    @property
    def parent(self) -> "ProjectPath":
        return ProjectPath(_pure_path(self).parent, self._call, self._root)

    # --- file access ------------------------------------------------------------------------------

    def exists(self) -> bool:
        return self._kind() is not None

    def is_dir(self) -> bool:
        return self._kind() == "dir"

    def is_file(self) -> bool:
        return self._kind() == "file"

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        """Return the text, decoded as `pathlib` does, by default as UTF-8."""
        if encoding or errors:
            return self.read_bytes().decode(encoding or "utf-8", errors or "strict")
        content: str = self._ask("fs.read")["content"]
        return content

    def read_bytes(self) -> bytes:
        import base64

        return base64.b64decode(self._ask("fs.read", encoding="base64")["content"])

    def iterdir(self) -> Iterator["ProjectPath"]:
        return self._list()

    def glob(self, pattern: str) -> Iterator["ProjectPath"]:
        """Yield the matching paths below this one; `**` matches any number of directories."""
        if ".." in _pure_path(pattern).parts or _pure_path(pattern).is_absolute():
            raise ValueError(f"the pattern {pattern!r} leaves the directory")
        return self._list(pattern=pattern)

    def rglob(self, pattern: str) -> Iterator["ProjectPath"]:
        return self.glob(f"**/{pattern}")

    def _list(self, **options: Any) -> Iterator["ProjectPath"]:
        return (
            self / entry["name"]
            for entry in self._ask("fs.list", max_results=MAX_LISTED, **options)
        )

    def _kind(self) -> str | None:
        try:
            kind: str = self._ask("fs.stat")["type"]
        except (FileNotFoundError, NotADirectoryError):
            return None
        return kind

    def _ask(self, tool: str, **options: Any) -> Any:
        return self._call(tool, {"path": str(self), **options})


class ProjectsProxy:
    """The object `proj`: projects are attributes, unless a method has their name."""

    def __init__(self, projects: Mapping[str, str], call: Call) -> None:
        self._projects = projects
        self._call = call

    def path(self, name: str) -> ProjectPath:
        """Return the directory of a project by name."""
        if name not in self._projects:
            raise AttributeError(
                f"proj has no {name!r}. Functions: path, list. Projects:"
                f" {', '.join(self.list()) or 'none'}."
            )
        return ProjectPath(self._projects[name], self._call)

    def list(self) -> builtins.list[str]:
        """Return the names of the projects."""
        return sorted(self._projects)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        matches = (project for project in self._projects if _attribute_name(project) == name)
        return self.path(name if name in self._projects else next(matches, name))

    def __dir__(self) -> builtins.list[str]:
        return ["path", "list", *map(_attribute_name, self.list())]

    def __repr__(self) -> str:
        return "<pack proj>"

    __str__ = __repr__


def _attribute_name(project: str) -> str:
    return re.sub(r"\W", "_", project)


def _pure_path(*parts: Part) -> "PurePath":
    from pathlib import PurePath  # loaded late, because most cells do not need it

    return PurePath(*parts)
