"""Extension packs: files that cannot be read, names that two have, and whether each can be started."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import anyio.to_thread

from ot.app import OneTool
from ot.cli.doctor.finding import PROBLEM, Finding, ok, problem, told, warning
from ot.cli.doctor.machine import has_uv
from ot.config.load import Loaded
from ot.errors import ToolError
from ot.extensions import source
from ot.extensions.environments import FAILED
from ot.extensions.pack import RUNNING, Pack
from ot.extensions.source import Extension
from ot.paths import extension_files
from ot.tool import Tool

SECONDS = 60.0
TAKEN = "is taken by a pack that ships"


async def findings(app: OneTool, loaded: Loaded, say: Callable[[str], None]) -> list[Finding]:
    found = await anyio.to_thread.run_sync(_read, loaded)
    tools = {tool.pack: tool for tool in app.registry if isinstance(tool.backend, Pack)}
    startable = [tool for tool in tools.values() if has_uv() or _pack(tool).extension.header is None]
    if startable:
        say(f"starting {', '.join(tool.pack for tool in startable)}")
    started = await asyncio.gather(*(_started(app, tool) for tool in startable))
    return [*_unreadable(found), *_twice(found, loaded), *_taken(app), *started]


def problems_of(app: OneTool) -> list[str]:
    """What is said here in other words."""
    return [reason for reason in app.registry.broken.values() if reason.endswith(TAKEN)]


def _read(loaded: Loaded) -> list[Extension]:
    folders = [layer / "tools" for layer in reversed(loaded.folders.layers)]
    folders += [Path(text) for text in loaded.settings.tools_dir]
    files = [file for folder in dict.fromkeys(folders) for file in extension_files(folder)]
    return [source.read(file) for file in files]


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


def _taken(app: OneTool) -> Iterator[Finding]:
    for reason in problems_of(app):
        file = reason.partition(": ")[0]
        yield problem(reason, f'write `pack = "another_name"` into {file}, or give the file another name')


async def _started(app: OneTool, tool: Tool) -> Finding:
    pack, file = _pack(tool), tool.file
    try:
        async with asyncio.timeout(SECONDS):
            with suppress(ToolError):
                await pack.warm_up(app.context())
    except TimeoutError:
        what = f"{file}: {tool.pack} was not ready within {SECONDS:g} s"
        return warning(what, "type `onetool doctor` again: uv goes on where it was")
    if pack.state == RUNNING:
        return ok(f"the extension pack {tool.pack} can be started")
    reason = pack.state.removeprefix("failed: ")
    dependencies = f"correct the dependencies in the header of {file}, or see that uv reaches its index"
    what = reason if str(file) in reason else f"{file}: {reason}"
    return told(PROBLEM, what, dependencies if FAILED in reason else "")


def _pack(tool: Tool) -> Pack:
    assert isinstance(tool.backend, Pack)
    return tool.backend
