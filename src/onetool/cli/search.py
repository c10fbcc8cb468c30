"""Search for tools, packs, snippets and aliases by name, misspelled name or purpose."""

from argparse import ArgumentParser, Namespace
from functools import partial

from onetool.cli.discovery import show_result
from onetool.cli.invocation import Invocation
from onetool.util.text import quote
from onetool_child.json_types import JsonObject

DEFAULT_LIMIT = 10


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "query", nargs="+", metavar="QUERY", help="name or keywords, such as: free disk space"
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=DEFAULT_LIMIT,
        metavar="N",
        help=f"maximum number of hits (default: {DEFAULT_LIMIT})",
    )


async def execute(command: Invocation) -> None:
    query = " ".join(command.options.query)
    arguments = {"query": query, "limit": command.options.limit}
    await show_result(command, "ot.search", arguments, "searching", partial(_render, query))


def check(options: Namespace) -> None:
    if not " ".join(options.query).strip():
        options.usage_error(
            "the query is empty: describe what you need, such as: onetool search free disk space"
        )
    if options.limit < 1:
        options.usage_error(f"invalid limit {options.limit} (expected 1 or more)")


def _render(query: str, hits: list[JsonObject]) -> str:
    if not hits:
        return f"Nothing matches {quote(query)}. Run `onetool tools` to list all tools."
    names = [f"${hit['name']}" if hit["kind"] == "snippet" else str(hit["name"]) for hit in hits]
    return "\n".join(
        f"{name:24} {hit['description']}" for name, hit in zip(names, hits, strict=True)
    )
