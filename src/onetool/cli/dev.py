"""The commands dev and test, for extension packs."""

import asyncio
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from onetool.cli.command import Command, add_effects
from onetool.cli.terminal import bold, dim
from onetool.errors import ToolError

if TYPE_CHECKING:
    from pathlib import Path

    from onetool.app import OneTool

POLL_SECONDS = 0.3


# --- dev ------------------------------------------------------------------------------------------


def _add_dev_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "pack", metavar="PACK", help="name of the pack, or its file, such as tools/times_tools.py"
    )
    parser.add_argument(
        "--once", action="store_true", help="do not watch; the exit status is 1 if anything failed"
    )
    add_effects(parser)


def _develop(options: Namespace) -> int:
    from onetool.cli.pack_session import run_with_pack

    async def develop(app: "OneTool", file: "Path") -> int:
        shown: dict[str, object] = {}
        while True:
            stamp = await asyncio.to_thread(_stamp, file)
            is_ok = await _show_pack(app, file, shown, effects=options.effects)
            if options.once:
                return int(not is_ok)
            print(
                dim(
                    f"watching {file}, the modules beside it and its tests; press Ctrl+C to stop\n"
                ),
                flush=True,
            )
            await _wait_for_change(file, stamp)

    try:
        return run_with_pack(options, develop)
    except KeyboardInterrupt:
        if options.once:
            raise
        return 0


async def _show_pack(
    app: "OneTool", file: "Path", shown: dict[str, object], *, effects: bool
) -> bool:
    """Print help for changed tools and the check outcomes; return whether all passed."""
    from onetool.cli.pack_session import check_pack, find_extension, find_tools

    await app.extensions.refresh()
    extension = find_extension(app, file)
    if extension is None:  # deleted meanwhile
        return False
    print(f"{bold(extension.pack)}  {file}\n")
    for tool in find_tools(app, extension):
        definition = (tool.description, tool.returns, tool.example, dict(tool.input.json))
        if shown.get(tool.name) != definition:
            result = await app.bus.call_tool("ot.help", {"query": tool.name}, app.context())
            print(f"{app.redact(str(result.unwrap()))}\n")
        shown[tool.name] = definition
    report = await check_pack(app, extension, effects=effects)
    report.print(app.redact)
    return report.is_ok


# --- changes --------------------------------------------------------------------------------------


async def _wait_for_change(file: "Path", seen: object) -> None:
    """Wait until the file, a module beside it or a test differs from the stamp `seen`."""
    while True:
        await asyncio.sleep(POLL_SECONDS)
        stamp = await asyncio.to_thread(_stamp, file)
        if stamp is not None and stamp != seen:
            return


def _stamp(file: "Path") -> object:
    """Return a stamp for the pack and its tests; None while an editor replaces a file."""
    from onetool.sources.extensions.backends import stamp_tests
    from onetool.sources.extensions.static_analysis import stamp_file, stamp_siblings

    try:
        return stamp_file(file), stamp_siblings(file), stamp_tests(file)
    except OSError:
        return None


# --- test -----------------------------------------------------------------------------------------


def _add_test_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "pack", metavar="PACK", help="name of the pack, or its file, such as tools/times_tools.py"
    )
    add_effects(parser)


def _test(options: Namespace) -> int:
    from onetool.cli.pack_session import check_pack, find_extension, run_with_pack
    from onetool.util.render import render

    async def test(app: "OneTool", file: "Path") -> int:
        extension = find_extension(app, file)
        assert extension is not None
        report = await check_pack(app, extension, effects=options.effects)
        if not report.problems and not report.outcomes:
            hint = (
                f"add an Example: section to a docstring in {file}, or tests to"
                f" {file.parent / 'tests'}"
            )
            raise ToolError(f"{extension.pack} has no examples and no tests", hint=hint)
        if options.json:
            about = {"pack": extension.pack, "file": str(file)}
            print(app.redact(render({**about, **report.to_json()}, "json")))
        else:
            report.print(app.redact)
        return int(not report.is_ok)

    return run_with_pack(options, test)


DEV_HELP = """\
Develop an extension pack: show what the model sees, run its examples and tests, and repeat this
at each change.

PACK is the name of a pack or its file, which need not be in a directory of packs. The file, the
modules beside it and its tests are watched until Ctrl+C. At each change, only help texts that
changed are printed.
"""
TEST_HELP = """\
Test an extension pack: run the examples in its docstrings, and the tests in tests/ beside it
with pytest.

An example after >>> is compared with the output below it; any other example has to succeed. Examples of tools that need
write, exec or network permission are skipped unless --effects is set. The exit status is 1 if anything failed.
"""
COMMANDS = {
    "dev": Command(DEV_HELP, _add_dev_arguments, main=_develop, without_json={""}),
    "test": Command(TEST_HELP, _add_test_arguments, main=_test),
}
