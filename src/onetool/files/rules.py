"""The sandbox rules of a context. They decide on path strings; `files.py` resolves the paths.

Denied patterns take precedence, then hidden and protected paths, then allowed directories. Patterns are matched
relative to an allowed directory: a project in `/build` can deny `build`. Hidden and protected paths apply without a
sandbox too, and are compared without regard to case and Unicode normal form.
"""

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any
from unicodedata import category, normalize

from onetool.context import ToolContext
from onetool.errors import ConfigError
from onetool.files.asked import absolute, plain, real_path
from onetool.files.globs import Glob, alternatives, for_ripgrep
from onetool.paths import is_folder

Names = tuple[str, ...]


class Refusal(Enum):
    OUTSIDE = "outside"
    READ_ONLY = "read-only"
    DENIED = "denied"
    HIDDEN = "hidden"
    PROTECTED = "protected"


@dataclass(frozen=True, slots=True)
class Root:
    """An allowed directory or file: its resolved path, and its path as configured."""

    real: str
    named: str
    is_folder: bool
    writable: bool

    @classmethod
    def at(cls, path: str, *, writable: bool) -> "Root":
        real = real_path(path)
        return cls(real, plain(path), is_folder(Path(real)), writable)

    @property
    def base(self) -> str:
        """The directory from which it is opened."""
        return self.real if self.is_folder else posixpath.dirname(self.real)

    def seen(self, path: str) -> Iterator[Names]:
        """Yield the relative names that patterns are matched with; for an allowed file, its own name."""
        for own in {self.real, self.named}:
            if path == own and not self.is_folder:
                yield names_of(path)[-1:]
            elif is_below(path, own):
                yield names_of(path)[len(names_of(own)) :]


@dataclass(frozen=True)
class Rules:
    """The rules for paths. Without a sandbox, `everything` is allowed."""

    roots: tuple[Root, ...]
    everything: bool = False
    hidden: tuple[Names, ...] = ()
    hidden_names: frozenset[str] = frozenset()  # folded; hidden in every directory, with everything below
    protected: tuple[Names, ...] = ()
    protected_patterns: tuple[Glob, ...] = ()  # of folded names
    denied: tuple[Glob, ...] = ()  # relative to each root
    denied_absolute: tuple[Glob, ...] = ()

    @classmethod
    def of(cls, context: ToolContext) -> "Rules":
        sandbox = context.sandbox or {}
        base = context.working_dir.absolute()
        hidden = _both_ways(texts(sandbox, "hidden_paths"), base)
        names = frozenset(map(fold, texts(sandbox, "hidden_names")))
        protected = _both_ways(texts(sandbox, "protected_paths"), base)
        # The files that turn a subdirectory into a pack.
        packs = tuple(
            Glob(f"/{_literally((*map(fold, folder), ''))}*/*_tools.py")
            for folder in _both_ways(texts(sandbox, "pack_directories"), base)
        )
        if context.sandbox is None or not sandbox.get("enabled", True):
            whole_disk = Root("/", "/", is_folder=True, writable=True)
            return cls((whole_disk,), True, hidden, names, protected, packs)
        patterns = [text for pattern in texts(sandbox, "denied_patterns") for text in _patterns(pattern)]
        return cls(
            roots=(*_roots(allowed_paths(sandbox), base, True), *_roots(texts(sandbox, "readable_paths"), base, False)),
            hidden=hidden,
            hidden_names=names,
            protected=protected,
            protected_patterns=packs,
            denied=tuple(Glob(text) for text in patterns if not text.startswith("/")),
            denied_absolute=tuple(Glob(text) for text in patterns if text.startswith("/")),
        )

    def refusal(self, path: str, *, writing: bool) -> Refusal | None:
        """Return why this resolved path may not be opened, or None."""
        if not any(is_below(path, root.real) for root in self.roots):
            # OUTSIDE suggests a setting; no setting can allow hidden and protected paths.
            if self._is_hidden(spelled(path)):
                return Refusal.HIDDEN
            return Refusal.PROTECTED if writing and self._is_protected(path) else Refusal.OUTSIDE
        return self.named_refusal(path) or (self._writing_refusal(path) if writing else None)

    def named_refusal(self, path: str) -> Refusal | None:
        """Return why a path of this name may not be opened, whatever its target, or None."""
        if self.is_denied(path):
            return Refusal.DENIED
        return Refusal.HIDDEN if self._is_hidden(spelled(path)) else None

    def _is_hidden(self, names: Names) -> bool:
        folded = tuple(map(fold, names))
        if not self.hidden_names.isdisjoint(folded):
            return True
        return any(_begins(folded, hidden) for hidden in self._folded_hidden)

    def _writing_refusal(self, path: str) -> Refusal | None:
        if self._is_protected(path):
            return Refusal.PROTECTED
        writable = any(root.writable and is_below(path, root.real) for root in self.roots)
        return None if writable else Refusal.READ_ONLY

    def _is_protected(self, path: str) -> bool:
        names = tuple(map(fold, spelled(path)))
        if any(_begins(names, protected) for protected in self._folded_protected):
            return True
        return any(pattern.covers(names) for pattern in self.protected_patterns)

    def is_denied(self, path: str) -> bool:
        if any(pattern.covers(names_of(path)) for pattern in self.denied_absolute):
            return True
        return any(pattern.covers(names) for names in self._seen_from_roots(path) for pattern in self.denied)

    def holds_guarded(self, folder: str) -> bool:
        """Return whether rules apply to files below this directory, which renaming it would evade.

        It does not check whether such files exist, so the result does not reveal that.
        """
        names = tuple(map(fold, spelled(folder)))
        if any(_begins(guarded, names) for guarded in (*self._folded_hidden, *self._folded_protected)):
            return True
        if any(pattern.bound_to(names) for pattern in self.protected_patterns):
            return True
        if any(pattern.bound_to(names_of(folder)) for pattern in self.denied_absolute):
            return True
        return any(pattern.bound_to(seen) for seen in self._seen_from_roots(folder) for pattern in self.denied)

    def root_of(self, path: str) -> Root:
        """Return the innermost root that contains this allowed path."""
        return max((root for root in self.roots if is_below(path, root.real)), key=lambda root: len(root.real))

    def globs_below(self, folder: str) -> list[str]:
        """Return the globs that ripgrep, started in this directory, must exclude."""
        seen = [(pattern, names) for pattern in self.denied for names in self._seen_from_roots(folder)]
        seen += [(pattern, names_of(folder)) for pattern in self.denied_absolute]
        rests = {rest for pattern, names in seen for rest in pattern.rests(names)}
        own = len(spelled(folder))
        rests |= {_literally(hidden[own:]) for hidden in self.hidden if _begins(hidden, spelled(folder))}
        rests |= {f"**/{_literally((name,))}" for name in self.hidden_names}
        least = (rest for rest in sorted(rests) if f"**/{rest}" not in rests)  # ripgrep tries each one on every file
        globs = [glob for rest in least for glob in for_ripgrep(rest)]
        # A name that matches in every directory needs no anchor, and ripgrep is faster without one.
        names = {glob: glob[3:] for glob in globs if glob.startswith("**/") and "/" not in glob[3:]}
        return [f"!{names.get(glob, f'/{glob}')}" for glob in globs]

    @cached_property
    def _folded_hidden(self) -> tuple[Names, ...]:
        return tuple(tuple(map(fold, names)) for names in self.hidden)

    @cached_property
    def _folded_protected(self) -> tuple[Names, ...]:
        return tuple(tuple(map(fold, names)) for names in self.protected)

    def _seen_from_roots(self, path: str) -> list[Names]:
        return [names for root in self.roots for names in root.seen(path)]


def allowed_paths(sandbox: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the configured paths; by default the working directory."""
    return texts(sandbox, "allowed_paths") or (".",)


def texts(sandbox: Mapping[str, Any], key: str) -> tuple[str, ...]:
    values = sandbox.get(key) or ()
    if not isinstance(values, list | tuple) or not all(
        isinstance(value, str | Path) and str(value) for value in values
    ):
        raise ConfigError(
            f"invalid sandbox.{key}: expected a list of strings like [src, docs], not {values!r}", key=key
        )
    return tuple(map(str, values))


def names_of(path: str) -> Names:
    return tuple(name for name in path.split("/") if name)


def spelled(path: str) -> Names:
    """Return the names in Unicode normal form C, because some file systems accept any form."""
    return names_of(normalize("NFC", path))


def fold(name: str) -> str:
    """Return the same string for all spellings of a name that a file system may treat as equal.

    Some file systems ignore case, and some ignore invisible characters.
    """
    if name.isascii():
        return name.lower()
    visible = "".join(char for char in normalize("NFKC", name) if category(char) != "Cf")
    return normalize("NFKC", visible.casefold())


def is_below(path: str, folder: str) -> bool:
    """Return whether the path is this directory or inside it."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _begins(names: Names, first: Names) -> bool:
    return names[: len(first)] == first


def _roots(paths: Iterable[str], base: Path, writable: bool) -> Iterable[Root]:
    return (Root.at(absolute(path, base), writable=writable) for path in paths)


def _both_ways(paths: Iterable[str], base: Path) -> tuple[Names, ...]:
    """Return the paths as configured and resolved."""
    named = [absolute(path, base) for path in paths]
    return tuple({spelled(form) for path in named for form in (plain(path), real_path(path))})


def _patterns(pattern: str) -> Iterable[str]:
    """Expand a configured pattern: without a slash, a name in any directory; with a leading `~` or `/`, full paths."""
    for text in filter(None, alternatives(pattern)):
        if ".." in text.split("/"):
            raise ConfigError(
                f"invalid denied pattern {pattern!r}: `..` leaves the directory", hint="use an absolute path"
            )
        path = absolute(text, Path("/")) if text.startswith("~/") else text.rstrip("/") or text
        if path.startswith("/"):  # as written, and with links resolved in the part before the first wildcard
            names = path.split("/")
            count = next((place for place, name in enumerate(names) if set(name) & set("*?[")), len(names))
            real = real_path("/".join(names[:count]) or "/").rstrip("/")
            yield from {path, "/".join([real, *names[count:]])}
        else:
            yield path if "/" in path.removeprefix("./") else f"**/{path.removeprefix('./')}"


def _literally(names: Names) -> str:
    return "/".join(re.sub(r"([*?[])", r"[\1]", name) for name in names)
