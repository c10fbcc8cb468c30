"""Extension packs: files that cannot be read, names that two have, and starts that failed."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from ot.checks.finding import PROBLEM, Finding, problem, told, warning
from ot.config.load import Loaded
from ot.extensions.environments import FAILED
from ot.extensions.pack import FAILED_STATE
from ot.extensions.packs import TAKEN, Extensions
from ot.extensions.source import Extension
from ot.registry import Registry

INSTALL_UV = f"{sys.executable} -m pip install uv"


def findings(extensions: Extensions, registry: Registry, loaded: Loaded) -> Iterator[Finding]:
    yield from _unreadable(extensions.found)
    yield from _twice(extensions.found, loaded)
    yield from _taken(registry)
    yield from _without_uv(extensions)
    yield from _not_started(extensions)


def has_uv() -> bool:
    try:
        from uv import find_uv_bin

        find_uv_bin()
    except (ImportError, FileNotFoundError):
        return False
    return True


def _unreadable(found: Iterable[Extension]) -> Iterator[Finding]:
    for extension in found:
        for text in (*([extension.problem] if extension.problem else []), *extension.problems):
            yield told(PROBLEM, text, "")


def _twice(found: list[Extension], loaded: Loaded) -> Iterator[Finding]:
    """A project may put a pack in the place of the person's own; beside each other they are a mistake."""
    files: dict[str, list[Path]] = {}
    for extension in found:
        files.setdefault(extension.pack, []).append(extension.file)
    for pack, several in files.items():
        yield from _namesakes(pack, several, loaded) if len(several) > 1 else ()


def _namesakes(pack: str, files: list[Path], loaded: Loaded) -> Iterator[Finding]:
    first, others = files[0], ", ".join(map(str, files[1:]))
    advice = f'delete one of them, or write `pack = "another_name"` into it: {others}'
    what = f"several extension files are called {pack}: {first} counts, and not {others}"
    is_override = len({_layer(file, loaded) for file in files}) == len(files)
    yield warning(what, advice) if is_override else problem(what, advice)


def _layer(file: Path, loaded: Loaded) -> Path:
    own = (layer for layer in loaded.folders.layers if file.is_relative_to(layer))
    return next(own, file.parent.parent)


def _taken(registry: Registry) -> Iterator[Finding]:
    for reason in registry.broken.values():
        if reason.endswith(TAKEN):
            file = reason.partition(": ")[0]
            yield problem(reason, f'write `pack = "another_name"` into {file}, or give the file another name')


def _without_uv(extensions: Extensions) -> Iterator[Finding]:
    files = sorted(str(each.file) for each in extensions.used if each.header is not None)
    if files and not has_uv():
        what = f"uv is missing, so that these extension packs cannot be started: {', '.join(files)}"
        yield problem(what, INSTALL_UV)


def _not_started(extensions: Extensions) -> Iterator[Finding]:
    """Those whose last start failed; without uv that is reported already."""
    for extension in extensions.used:
        state, file = extensions.states[extension.pack], extension.file
        if state.startswith(FAILED_STATE) and (extension.header is None or has_uv()):
            reason = state.removeprefix(FAILED_STATE)
            dependencies = f"correct the dependencies in the header of {file}, or see that uv reaches its index"
            what = reason if str(file) in reason else f"{file}: {reason}"
            yield told(PROBLEM, what, dependencies if FAILED in reason else "")
