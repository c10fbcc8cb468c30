"""Search for tools, packs, snippets and aliases by name, misspelled name or purpose."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from onetool.cli.app_runner import run_here
from onetool.cli.discovery import show_result
from onetool.cli.options import add_json
from onetool.cli.terminal import CommandOutput
from onetool.core.render import render
from onetool.util.text import quote
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.app import OneTool

DEFAULT_LIMIT = 10


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("query", nargs="+", metavar="QUERY", help="name or keywords, such as: free disk space")
    parser.add_argument(
        "--limit",
        type=int,
        default=DEFAULT_LIMIT,
        metavar="N",
        help=f"maximum number of hits (default: {DEFAULT_LIMIT})",
    )
    add_json(parser)


def main(options: Namespace) -> int:
    _check(options)  # report usage errors before anything is opened
    return run_here(execute, options)


async def execute(app: "OneTool", options: Namespace, output: CommandOutput) -> int:
    def to_text(hits: list[JsonObject]) -> str:
        return render(hits, "json") if options.json else _text(hits, query)

    query = _check(options)
    arguments = {"query": query, "limit": options.limit}
    return await show_result(app, output, "ot.search", arguments, progress="searching", to_text=to_text)


def _check(options: Namespace) -> str:
    query = " ".join(options.query)
    if not query.strip():
        options.usage_error("the query is empty: describe what you need, such as: onetool search free disk space")
    if options.limit < 1:
        options.usage_error(f"invalid limit {options.limit} (expected 1 or more)")
    return query


def _text(hits: list[JsonObject], query: str) -> str:
    if not hits:
        return f"Nothing matches {quote(query)}. Run `onetool tools` to list all tools."
    names = [f"${hit['name']}" if hit["kind"] == "snippet" else str(hit["name"]) for hit in hits]
    return "\n".join(f"{name:24} {hit['description']}" for name, hit in zip(names, hits, strict=True))
