"""Lists the paths that a sandbox opens, for the kernel, which allows directories with everything in
them.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from onetool.sources.files.rules import Rules, fold


@dataclass(frozen=True, slots=True)
class OpenPaths:
    """Files and directories of a sandbox. Of `listed`, only the names of entries may be read.

    In a directory that contains hidden or protected paths, every other entry is listed by itself,
    and no entry can be created.
    """

    read: list[str] = field(default_factory=list)
    write: list[str] = field(default_factory=list)
    listed: list[str] = field(default_factory=list)


def find_open_paths(rules: Rules) -> OpenPaths:
    """Return the open paths of a sandbox.

    Blocks: it looks for hidden and denied names in all directories.
    """
    paths = OpenPaths()
    for root in rules.roots:
        readable = _find_readable(rules, root.real, paths.listed)
        paths.read.extend(readable)
        if root.writable:
            paths.write.extend(path for entry in readable for path in _find_writable(rules, entry))
    return paths


def _find_readable(rules: Rules, path: str, listed: list[str]) -> list[str]:
    """Return the path if everything in it is readable, or else the readable paths in it.

    Links are not followed.
    """
    if not os.path.isdir(path):  # noqa: PTH112 - called for every entry
        return [path]
    has_rules = bool(rules.denied or rules.denied_absolute) or rules.has_rules_below(path)
    readable = []
    is_whole = True
    for entry in _scan(path):
        if fold(entry.name) in rules.hidden_names or (
            has_rules and rules.find_denial(entry.path, writing=False)
        ):
            is_whole = False
        elif entry.is_dir(follow_symlinks=False):
            found = _find_readable(rules, entry.path, listed)
            is_whole = is_whole and found == [entry.path]
            readable += found
        elif not entry.is_symlink():
            readable.append(entry.path)
    if not is_whole:
        listed.append(path)
    return [path] if is_whole else readable


def _find_writable(rules: Rules, path: str) -> Iterator[str]:
    if rules.find_denial(path, writing=True):
        return
    if not (os.path.isdir(path) and rules.has_rules_below(path)):  # noqa: PTH112 - a string, as the kernel gets it
        yield path
        return
    for entry in _scan(path):
        if not entry.is_symlink():
            yield from _find_writable(rules, entry.path)


def _scan(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError:  # it cannot be read, or was removed
        return []
