"""Test an extension pack: run the examples in its docstrings, and the tests in tests/ beside it
with pytest.

An example after >>> is compared with the output below it; any other example has to succeed. Examples of tools that need
write, exec or network permission are skipped unless --effects is set. The exit status is 1 if anything failed.
"""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from onetool.cli.options import add_effects
from onetool.errors import ToolError

if TYPE_CHECKING:
    from pathlib import Path

    from onetool.app import OneTool


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "pack", metavar="PACK", help="name of the pack, or its file, such as tools/times_tools.py"
    )
    add_effects(parser)


def main(options: Namespace) -> int:
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
