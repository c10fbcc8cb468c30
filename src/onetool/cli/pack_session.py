"""Opens OneTool for one extension pack, named by its name or its file, and checks the pack."""

import os
import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from anyio.to_thread import run_sync as run_in_thread

from onetool.app import OneTool
from onetool.cli.command import find_command_directories
from onetool.cli.examples import (
    FAILED,
    SKIPPED,
    CheckOutcome,
    PackReport,
    explain_effects,
    run_examples,
)
from onetool.cli.exit_status import run_cancellable
from onetool.cli.invocation import check_settings
from onetool.cli.terminal import Progress
from onetool.cli.trust import require_trust
from onetool.core.names import python_name
from onetool.core.tool import Tool
from onetool.errors import ToolError
from onetool.runs.run_output import ClientChannel, RunOutput
from onetool.settings.load import Loaded
from onetool.settings.paths import FOLDER, Directories, extension_files, is_directory
from onetool.settings.settings_reader import read_settings
from onetool.settings.trust import check_trust
from onetool.sources.extensions.backends import TESTS_DIRECTORY, WorkerBackend, find_tests
from onetool.sources.extensions.static_analysis import SUFFIX, Extension
from onetool.util.context import Caller, Permission
from onetool.util.problem import Location, Problem
from onetool.util.text import quote, suggestion_hint

T = TypeVar("T")
EXPECTED = f"a Python file named <pack>{SUFFIX}.py with a public function for each tool"
CREATE = "run `onetool init` to create an example, .onetool/tools/hello/hello_tools.py"


def run_with_pack(options: Namespace, work: Callable[[OneTool, Path], Awaitable[T]]) -> T:
    """Run a coroutine function with OneTool and the pack's file."""
    named = _find_named_file(options.pack)
    directories = find_command_directories(options)
    project = _find_project(options.pack, named, directories)
    if project is not None and not check_trust(project, directories.user, os.environ).trusted:
        require_trust(directories, project, sys.stdout)

    def read() -> Loaded:
        return _adjust(
            read_settings(os.environ, Path.cwd(), options.config), effects=options.effects
        )

    async def open_and_work() -> T:
        async with OneTool(read=read) as app:
            check_settings(app)
            app.extensions.named_files = () if named is None else (named,)
            await app.extensions.refresh()
            return await work(app, named or _find_pack_file(app, options.pack))

    return run_cancellable(open_and_work)


def _adjust(loaded: Loaded, *, effects: bool) -> Loaded:
    """Return settings for tests: all tools for the default agent, and no statistics."""
    settings = loaded.settings
    permissions = frozenset(Permission) if effects else frozenset({Permission.READ})
    # The user asked for the effects.
    update = {"permissions": permissions, "tools": None, "policy": "open"}
    agent = settings.agents["default"].model_copy(update=update)
    stats = settings.stats.model_copy(update={"enabled": False})
    # They run here.
    tools = {name: pack.model_copy(update={"queue": ""}) for name, pack in settings.tools.items()}
    changed = {"agents": {**settings.agents, "default": agent}, "stats": stats, "tools": tools}
    return replace(loaded, settings=settings.model_copy(update=changed))


# --- the file of a pack ---------------------------------------------------------------------------


def _find_named_file(text: str) -> Path | None:
    """Return the file that the user named by its path; None if the text is the name of a pack."""
    if "/" not in text and os.sep not in text and not text.endswith(".py"):
        return None
    file = Path(os.path.abspath(text))  # noqa: PTH100 - unlike Path.resolve, it keeps links
    if not file.is_file():
        message = f"{file} is a directory" if file.is_dir() else f"no such file: {file}"
        files = [
            str(candidate)
            for candidate in sorted((file if file.is_dir() else file.parent).glob(f"*{SUFFIX}.py"))
        ]
        near = files if file.is_dir() else get_close_matches(str(file), files, 1)
        raise ToolError(f"{message}; a pack is {EXPECTED}", hint=suggestion_hint(near) or CREATE)
    if not file.name.endswith(f"{SUFFIX}.py"):
        hint = (
            f"rename it to {file.stem}{SUFFIX}.py, or {CREATE}" if file.suffix == ".py" else CREATE
        )
        raise ToolError(f"{file} is not a pack: expected {EXPECTED}", hint=hint)
    return file


def _find_project(name: str, named: Path | None, directories: Directories) -> Path | None:
    """Return the pack's project, whose code and tests must not run without trust."""
    if named is not None:
        candidates = (
            parent if parent.name == FOLDER else parent / FOLDER for parent in named.parents
        )
        project = next(filter(is_directory, candidates), None)
    else:
        project = directories.project
        files = extension_files(project / "tools") if project is not None else ()
        if f"{name}{SUFFIX}.py" not in {file.name for file in files}:
            return None
    return None if directories.trusted and project == directories.project else project


def _find_pack_file(app: OneTool, name: str) -> Path:
    files = {
        extension.pack: extension.file for extension in reversed(app.extensions.all_extensions)
    }
    if name in files:
        return files[name]
    message = f"no extension pack named {quote(name)}"
    if app.registry.is_pack(python_name(name)):
        message = (
            f"{quote(name)} is not an extension pack: its tools do not come from a file of yours"
        )
    hint = suggestion_hint(get_close_matches(name, files, 1))
    raise ToolError(
        message,
        hint=hint or (f"extension packs are {', '.join(sorted(files))}" if files else CREATE),
    )


def find_extension(app: OneTool, file: Path) -> Extension | None:
    """Return the extension that was read from a file; None if the file no longer exists."""
    for extension in app.extensions.all_extensions:
        if extension.file == file:
            return extension
    return None


def find_tools(app: OneTool, extension: Extension) -> list[Tool]:
    """Return the tools of a pack; none if it cannot be used."""
    return [
        tool
        for tool in app.extensions.list_tools(extension.pack)
        if tool.file == str(extension.file)
    ]


# --- checks ---------------------------------------------------------------------------------------


async def check_pack(app: OneTool, extension: Extension, *, effects: bool) -> PackReport:
    """Start the worker of a pack and run its examples and tests."""
    report = PackReport(_find_problems(app, extension))
    tools = find_tools(app, extension)
    if not tools:
        return report
    with Progress(f"starting {extension.pack}") as progress:
        output = RunOutput(ClientChannel(listener=progress.on_event))
        if (failure := await _start_worker(app, tools, output)) is not None:
            report.problems.append(failure)
            return report
        for tool in tools:
            progress.update(f"running the examples of {tool.name}")
            report.outcomes.extend(
                await run_examples(app, tool, progress.on_event, effects=effects)
            )
        progress.update(f"running the tests of {extension.pack}")
        report.outcomes.extend(await _run_tests(app, extension, tools, output, effects=effects))
    return report


def _find_problems(app: OneTool, extension: Extension) -> list[Problem]:
    """Return the problems of a file, found without running it."""
    conflict = app.extensions.name_conflicts.get(extension.pack)
    problems = [
        problem
        for problem in (extension.problem, conflict, *extension.problems)
        if problem is not None
    ]
    if problems or extension.functions:
        return problems
    message = f"{extension.file}: the pack has no tools"
    return [
        Problem(
            message,
            "write a function whose name does not begin with _",
            Location(str(extension.file)),
        )
    ]


async def _start_worker(app: OneTool, tools: list[Tool], output: RunOutput) -> Problem | None:
    """Start the worker of a pack; return the problem if that fails."""
    backend = tools[0].backend
    assert isinstance(backend, WorkerBackend)
    try:
        await backend.warm_up(app.runs.open_context(Caller(), output))
    except ToolError as error:
        return app.extensions.failures.get(tools[0].pack) or Problem.of(error)
    return None


async def _run_tests(
    app: OneTool, extension: Extension, tools: list[Tool], output: RunOutput, *, effects: bool
) -> list[CheckOutcome]:
    """Run the tests in `tests/` beside the file, if there are any."""
    # A directory `tests` beside an installed module may belong to another package.
    if extension.package or not await run_in_thread(find_tests, extension.file):
        return []
    needed = frozenset[Permission]().union(*(tool.permissions for tool in tools))
    if not effects and (reason := explain_effects(needed)):
        return [CheckOutcome(f"{TESTS_DIRECTORY}/", SKIPPED, detail=reason)]
    try:
        tests = await app.extensions.run_tests(
            extension.pack, app.runs.open_context(Caller(), output)
        )
    except Exception as error:  # noqa: BLE001 - the worker passes on whatever pytest raises
        return [CheckOutcome(f"{TESTS_DIRECTORY}/", FAILED, detail=f"cannot run pytest: {error}")]
    return [CheckOutcome(**test) for test in tests]
