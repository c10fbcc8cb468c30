"""The sandbox rules of a context. They decide on path strings; `files.py` resolves the paths.

Denied patterns take precedence, then hidden and protected paths, then allowed directories. Patterns
are matched relative to an allowed directory: a project in `/build` can deny `build`. Hidden and
protected paths apply without a sandbox too, and are compared without regard to case and Unicode
normal form.

In a glob pattern, `*` matches inside a name, and `**` matches any number of directories, including
none. Patterns are matched name by name, so that a walk knows early whether anything below a
directory can still match, and in time bounded by pattern length times path length.
"""

import fnmatch
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from pathlib import Path
from unicodedata import category, normalize

from onetool.errors import ArgumentError, ConfigError
from onetool.settings.paths import is_directory
from onetool.sources.files.requested_path import make_absolute, normalize_path, real_path
from onetool.util.context import ToolContext
from onetool_child.json_types import JsonMapping

Names = tuple[str, ...]
ANY = "**"
States = frozenset[int]
_BRACES = re.compile(r"\{([^{},]*+,[^{}]*+)\}")
_STARS = re.compile(r"\*+")
_TOKEN = re.compile(r"\[!?\]?[^\]]*\]|.", re.DOTALL)
_PLAIN_CLASS = re.compile(r"\[(!?[\w.,@~+-]+|[*?[])\]", re.ASCII)
_MAX_ALTERNATIVES = 256
_MAX_RIPGREP_CHARS = 1_000
_SPECIAL = {"\\": r"\\", "{": "[{]", "}": "[}]", "[": "[[]", "]": "[]]", " ": "[ ]"}


# --- Globs ----------------------------------------------------------------------------------------


class Glob:
    """A pattern. A path matches if its last name leads to a complete state."""

    def __init__(self, pattern: str) -> None:
        self._parts = _parts(pattern)
        self._tests = [None if part == ANY else _compile_part(part) for part in self._parts]

    @cached_property
    def start(self) -> States:
        return self._skip_wildcards({0})

    def advance(self, states: States, name: str) -> States:
        """Return the states that a name leads to from these."""
        name = normalize("NFC", name)
        reached = set[int]()
        for state in states:
            if state < len(self._tests):
                test = self._tests[state]
                if test is None:
                    reached.add(state)
                elif test.match(name):
                    reached.add(state + 1)
        return self._skip_wildcards(reached)

    def is_complete(self, states: States) -> bool:
        return len(self._parts) in states

    def iter_states(self, names: Sequence[str]) -> Iterator[States]:
        """Yield the states before the first name and after each name."""
        states = self.start
        yield states
        for name in names:
            states = self.advance(states, name)
            yield states

    def covers(self, names: Sequence[str]) -> bool:
        """Return whether the path or a parent directory matches."""
        return any(map(self.is_complete, self.iter_states(names)))

    def depends_on(self, names: Sequence[str]) -> bool:
        """Return whether a match below this directory depends on its name."""
        *_, states = self.iter_states(names)
        return bool(states - self.start)

    def remainders(self, names: Sequence[str]) -> list[str]:
        """Return equivalent patterns relative to this directory."""
        *_, states = self.iter_states(names)
        return [
            "/".join(self._parts[state:]) for state in sorted(states) if state < len(self._parts)
        ]

    def _skip_wildcards(self, states: set[int]) -> States:
        for state in range(len(self._parts)):
            if state in states and self._parts[state] == ANY:
                states.add(state + 1)
        return frozenset(states)


def _parts(pattern: str) -> tuple[str, ...]:
    names = [name for name in pattern.split("/") if name not in {"", "."}]
    parts = [name if name == ANY else _STARS.sub("*", normalize("NFC", name)) for name in names]
    if parts and parts[-1] == ANY:  # `a/**` matches everything in a, but not a itself
        parts.append("*")
    return tuple(
        part for index, part in enumerate(parts) if part != ANY or parts[index - 1 : index] != [ANY]
    )


@lru_cache(maxsize=1024)
def _compile_part(part: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(part))


def expand_braces(pattern: str) -> list[str]:
    """Expand `{a,b}` into several patterns."""
    done = set[str]()
    waiting = [pattern]
    while waiting:
        text = waiting.pop()
        braces = _BRACES.search(text)
        if braces is None:
            done.add(text)
        else:
            waiting += [
                text[: braces.start()] + choice + text[braces.end() :]
                for choice in braces[1].split(",")
            ]
        if len(waiting) + len(done) > _MAX_ALTERNATIVES:
            raise ArgumentError(
                f"pattern {pattern[:100]!r} expands to more than {_MAX_ALTERNATIVES} patterns"
            )
    return sorted(done)


def to_ripgrep(pattern: str) -> list[str]:
    """Return the `--glob` pattern in both normal forms; nothing if ripgrep reads it differently."""
    if len(pattern) > _MAX_RIPGREP_CHARS:
        return []
    tokens = [token[0] for token in _TOKEN.finditer(pattern)]
    for token in tokens:
        ranges = re.findall(r"(.)-(.)", token)
        if len(token) > 1 and not (
            _PLAIN_CLASS.fullmatch(token) and all(first <= last for first, last in ranges)
        ):
            return []
    text = "".join(token if len(token) > 1 else _SPECIAL.get(token, token) for token in tokens)
    return sorted({normalize(form, text) for form in ("NFC", "NFD")})


# --- Rules ----------------------------------------------------------------------------------------


class Denial(Enum):
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
    is_directory: bool
    writable: bool

    @classmethod
    def resolve(cls, path: str, *, writable: bool) -> "Root":
        real = real_path(path)
        return cls(real, normalize_path(path), is_directory(Path(real)), writable)

    @property
    def base(self) -> str:
        """The directory from which it is opened."""
        return self.real if self.is_directory else posixpath.dirname(self.real)

    def iter_relative_names(self, path: str) -> Iterator[Names]:
        """Yield the relative names to match; for an allowed file, its own name."""
        for own in {self.real, self.named}:
            if path == own and not self.is_directory:
                yield split_names(path)[-1:]
            elif is_below(path, own):
                yield split_names(path)[len(split_names(own)) :]


@dataclass(frozen=True)
class Rules:
    """The rules for paths. Without a sandbox, `is_unrestricted` is set."""

    roots: tuple[Root, ...]
    is_unrestricted: bool = False
    hidden: tuple[Names, ...] = ()
    hidden_names: frozenset[str] = (
        frozenset()
    )  # folded; hidden in every directory, with everything below
    protected: tuple[Names, ...] = ()
    protected_names: frozenset[str] = (
        frozenset()
    )  # folded; protected in every directory, but not above `base`
    base: Names = ()  # the working directory, folded
    protected_patterns: tuple[Glob, ...] = ()  # of folded names
    denied: tuple[Glob, ...] = ()  # relative to each root
    denied_absolute: tuple[Glob, ...] = ()

    @classmethod
    def from_context(cls, context: ToolContext) -> "Rules":
        sandbox = context.sandbox or {}
        base = context.working_dir.absolute()
        hidden = _normalize_and_resolve(get_strings(sandbox, "hidden_paths"), base)
        names = frozenset(map(fold, get_strings(sandbox, "hidden_names")))
        protected = _normalize_and_resolve(get_strings(sandbox, "protected_paths"), base)
        protected_names = frozenset(map(fold, get_strings(sandbox, "protected_names")))
        folded_base = tuple(map(fold, normalize_names(real_path(str(base)))))
        # The files that are packs.
        packs = tuple(
            Glob(f"/{_escape_glob((*map(fold, directory), ''))}{pattern}")
            for directory in _normalize_and_resolve(get_strings(sandbox, "pack_directories"), base)
            for pattern in ("*_tools.py", "*/*_tools.py")
        )
        if context.sandbox is None or not sandbox.get("enabled", True):
            whole_disk = Root("/", "/", is_directory=True, writable=True)
            return cls(
                (whole_disk,), True, hidden, names, protected, protected_names, folded_base, packs
            )
        patterns = [
            text
            for pattern in get_strings(sandbox, "denied_patterns")
            for text in _expand_pattern(pattern)
        ]
        return cls(
            roots=(
                *_make_roots(get_allowed_paths(sandbox), base, True),
                *_make_roots(get_strings(sandbox, "readable_paths"), base, False),
            ),
            hidden=hidden,
            hidden_names=names,
            protected=protected,
            protected_names=protected_names,
            base=folded_base,
            protected_patterns=packs,
            denied=tuple(Glob(text) for text in patterns if not text.startswith("/")),
            denied_absolute=tuple(Glob(text) for text in patterns if text.startswith("/")),
        )

    def find_denial(self, path: str, *, writing: bool) -> Denial | None:
        """Return why this resolved path may not be opened, or None."""
        if not any(is_below(path, root.real) for root in self.roots):
            # OUTSIDE suggests a setting; no setting can allow hidden and protected paths.
            if self._is_hidden(normalize_names(path)):
                return Denial.HIDDEN
            return Denial.PROTECTED if writing and self._is_protected(path) else Denial.OUTSIDE
        return self.find_name_denial(path) or (self._find_write_denial(path) if writing else None)

    def find_name_denial(self, path: str) -> Denial | None:
        """Return why a path with this name may not be opened, whatever its target, or None."""
        if self.is_denied(path):
            return Denial.DENIED
        return Denial.HIDDEN if self._is_hidden(normalize_names(path)) else None

    def _is_hidden(self, names: Names) -> bool:
        folded = tuple(map(fold, names))
        if not self.hidden_names.isdisjoint(folded):
            return True
        return any(_starts_with(folded, hidden) for hidden in self._folded_hidden)

    def _find_write_denial(self, path: str) -> Denial | None:
        if self._is_protected(path):
            return Denial.PROTECTED
        writable = any(root.writable and is_below(path, root.real) for root in self.roots)
        return None if writable else Denial.READ_ONLY

    def _is_protected(self, path: str) -> bool:
        names = tuple(map(fold, normalize_names(path)))
        inner = names[len(self.base) :] if _starts_with(names, self.base) else names
        if not self.protected_names.isdisjoint(inner):
            return True
        if any(_starts_with(names, protected) for protected in self._folded_protected):
            return True
        return any(pattern.covers(names) for pattern in self.protected_patterns)

    def is_denied(self, path: str) -> bool:
        if any(pattern.covers(split_names(path)) for pattern in self.denied_absolute):
            return True
        return any(
            pattern.covers(names)
            for names in self._names_from_roots(path)
            for pattern in self.denied
        )

    def has_rules_below(self, directory: str) -> bool:
        """Return whether rules apply to files below this directory, which renaming it would evade.

        It does not check whether such files exist, so the result does not reveal that.
        """
        names = tuple(map(fold, normalize_names(directory)))
        if any(
            _starts_with(guarded, names)
            for guarded in (*self._folded_hidden, *self._folded_protected)
        ):
            return True
        if any(pattern.depends_on(names) for pattern in self.protected_patterns):
            return True
        if any(pattern.depends_on(split_names(directory)) for pattern in self.denied_absolute):
            return True
        return any(
            pattern.depends_on(names)
            for names in self._names_from_roots(directory)
            for pattern in self.denied
        )

    def find_root(self, path: str) -> Root:
        """Return the innermost root that contains this allowed path."""
        return max(
            (root for root in self.roots if is_below(path, root.real)),
            key=lambda root: len(root.real),
        )

    def list_excluded_globs(self, directory: str) -> list[str]:
        """Return the globs that ripgrep, started in this directory, must exclude."""
        pairs = [
            (pattern, names)
            for pattern in self.denied
            for names in self._names_from_roots(directory)
        ]
        pairs += [(pattern, split_names(directory)) for pattern in self.denied_absolute]
        remainders = {rest for pattern, names in pairs for rest in pattern.remainders(names)}
        parent = normalize_names(directory)
        remainders |= {
            _escape_glob(hidden[len(parent) :])
            for hidden in self.hidden
            if _starts_with(hidden, parent)
        }
        remainders |= {f"**/{_escape_glob((name,))}" for name in self.hidden_names}
        # ripgrep tries each glob on every file, so redundant ones are left out.
        minimal = (rest for rest in sorted(remainders) if f"**/{rest}" not in remainders)
        globs = [glob for rest in minimal for glob in to_ripgrep(rest)]
        # A name that matches in every directory needs no anchor, and ripgrep is faster without one.
        names = {glob: glob[3:] for glob in globs if glob.startswith("**/") and "/" not in glob[3:]}
        return [f"!{names.get(glob, f'/{glob}')}" for glob in globs]

    @cached_property
    def _folded_hidden(self) -> tuple[Names, ...]:
        return tuple(tuple(map(fold, names)) for names in self.hidden)

    @cached_property
    def _folded_protected(self) -> tuple[Names, ...]:
        return tuple(tuple(map(fold, names)) for names in self.protected)

    def _names_from_roots(self, path: str) -> list[Names]:
        return [names for root in self.roots for names in root.iter_relative_names(path)]


def get_allowed_paths(sandbox: JsonMapping) -> tuple[str, ...]:
    """Return the configured paths; by default the working directory."""
    return get_strings(sandbox, "allowed_paths") or (".",)


def get_strings(sandbox: JsonMapping, key: str) -> tuple[str, ...]:
    values = sandbox.get(key) or ()
    if not isinstance(values, list | tuple) or not all(
        isinstance(value, str | Path) and str(value) for value in values
    ):
        raise ConfigError(
            f"invalid sandbox.{key}: expected a list of strings like [src, docs], not {values!r}",
            key=key,
        )
    return tuple(map(str, values))


def split_names(path: str) -> Names:
    return tuple(name for name in path.split("/") if name)


def normalize_names(path: str) -> Names:
    """Return the names in Unicode normal form C, because some file systems accept any form."""
    return split_names(normalize("NFC", path))


def fold(name: str) -> str:
    """Return one string for all spellings that a file system may treat as equal.

    Some file systems ignore case, and some ignore invisible characters.
    """
    if name.isascii():
        return name.lower()
    visible = "".join(char for char in normalize("NFKC", name) if category(char) != "Cf")
    return normalize("NFKC", visible.casefold())


def is_below(path: str, directory: str) -> bool:
    """Return whether the path is this directory or inside it."""
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")


def _starts_with(names: Names, first: Names) -> bool:
    return names[: len(first)] == first


def _make_roots(paths: Iterable[str], base: Path, writable: bool) -> Iterable[Root]:
    return (Root.resolve(make_absolute(path, base), writable=writable) for path in paths)


def _normalize_and_resolve(paths: Iterable[str], base: Path) -> tuple[Names, ...]:
    """Return the paths as configured and resolved."""
    named = [make_absolute(path, base) for path in paths]
    return tuple(
        {
            normalize_names(form)
            for path in named
            for form in (normalize_path(path), real_path(path))
        }
    )


def _expand_pattern(pattern: str) -> Iterable[str]:
    """Expand a pattern: a name in any directory, or full paths after a leading `~` or `/`."""
    for text in filter(None, expand_braces(pattern)):
        if ".." in text.split("/"):
            raise ConfigError(
                f"invalid denied pattern {pattern!r}: `..` leaves the directory",
                hint="use an absolute path",
            )
        path = make_absolute(text, Path("/")) if text.startswith("~/") else text.rstrip("/") or text
        if path.startswith(
            "/"
        ):  # as written, and with links resolved in the part before the first wildcard
            names = path.split("/")
            count = next(
                (index for index, name in enumerate(names) if set(name) & set("*?[")), len(names)
            )
            real = real_path("/".join(names[:count]) or "/").rstrip("/")
            yield from {path, "/".join([real, *names[count:]])}
        else:
            yield path if "/" in path.removeprefix("./") else f"**/{path.removeprefix('./')}"


def _escape_glob(names: Names) -> str:
    return "/".join(re.sub(r"([*?[])", r"[\1]", name) for name in names)
