"""REST of the store: the routes under `/tools`, and what the document says of each. What they do is in `handlers`."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from fastapi import FastAPI

from ot.app import OneTool
from ot.faces.http import document as doc
from ot.faces.http.handlers import BundleHandlers
from ot.faces.http.routing import Operation, add

ROOT: Final = "/tools"
WRITES: Final = frozenset({"PUT", "PATCH", "DELETE"})
BUNDLES: Final = f"{ROOT}/bundles"
BUNDLE: Final = f"{BUNDLES}/{{bundleID}}"
TOOL: Final = f"{BUNDLE}/tools/{{toolSlug}}/version/{{version}}"
LISTS: Final = (f"{ROOT}/tools", ROOT)
SEARCHES: Final = (f"{ROOT}/tools/search", f"{ROOT}/search")
INSIDE: Final = ("not_found", "bundle_deleted")
BUNDLE_ITSELF: Final = ("not_found", "permission_denied", "builtin_read_only")
GONE: Final = {204: {"description": "It is gone"}}
PAGE_SIZE: Final = doc.in_query("pageSize", doc.SIZE, doc.SIZE_WORDS)
LISTED_BY: Final = (
    doc.TAGS,
    doc.BUNDLE_IDS,
    doc.in_query("recommendedPageSize", doc.SIZE, f"{doc.SIZE_WORDS}. pageSize is taken too, but not both"),
    *doc.PAGING,
)
WANTED: Final = doc.in_query(
    "q",
    {"type": "string", "pattern": r"\S"},
    "What to look for; case and accents make no difference, and no character has a meaning of its own",
    required=True,
)


def add_routes(web: FastAPI, app: OneTool) -> None:
    handlers = BundleHandlers(app)
    for operation in (*_of_bundles(handlers), *_of_tools(handlers), *_of_all(handlers)):
        add(web, replace(operation, is_conditional=operation.method in WRITES))


def _of_bundles(do: BundleHandlers) -> Iterator[Operation]:
    path = (doc.BUNDLE_ID,)
    listed = {200: doc.given("Bundles", "Some bundles")}
    put = {200: doc.given("Bundle", "The bundle was replaced"), 201: doc.given("Bundle", "The bundle is new")}
    one = {200: doc.given("Bundle", "The bundle")}
    yield Operation("GET", BUNDLES, do.list_bundles, "List bundles", listed, (doc.BUNDLE_IDS, PAGE_SIZE, *doc.PAGING))
    yield Operation("GET", BUNDLE, do.get_bundle, "Get a bundle", one, path, refusals=("not_found",), is_tagged=True)
    yield Operation(
        "PUT",
        BUNDLE,
        do.put_bundle,
        "Create or replace a bundle",
        put,
        path,
        body="BundleDraft",
        refusals=("permission_denied", "builtin_read_only", "slug_taken", "duplicate"),
    )
    yield Operation(
        "PATCH", BUNDLE, do.patch_bundle, "Switch a bundle on or off", one, path, body="Switch", refusals=BUNDLE_ITSELF
    )
    yield Operation(
        "DELETE",
        BUNDLE,
        do.delete_bundle,
        "Delete an empty bundle; a PUT within two days brings it back",
        GONE,
        path,
        refusals=(*BUNDLE_ITSELF, "bundle_not_empty"),
    )


def _of_tools(do: BundleHandlers) -> Iterator[Operation]:
    path = doc.TOOL_PATH
    put, one = {201: doc.given("Tool", "The tool is new")}, {200: doc.given("Tool", "The tool")}
    outcome = {200: doc.given("Outcome", "The tool ran")}
    kept = (*INSIDE, "permission_denied", "builtin_read_only")
    yield Operation("GET", TOOL, do.get_tool, "Get a tool", one, path, refusals=INSIDE, is_tagged=True)
    yield Operation(
        "PUT",
        TOOL,
        do.put_tool,
        "Store a new tool; one that exists is never replaced",
        put,
        path,
        body="ToolDraft",
        refusals=(*kept, "bundle_disabled", "duplicate"),
    )
    yield Operation(
        "PATCH",
        TOOL,
        do.patch_tool,
        "Switch a tool on or off",
        one,
        path,
        body="Switch",
        refusals=(*kept, "bundle_disabled"),
    )
    yield Operation("DELETE", TOOL, do.delete_tool, "Delete a tool for good", GONE, path, refusals=kept)
    yield Operation(
        "POST",
        f"{TOOL}/invoke",
        do.invoke,
        "Call a tool",
        outcome,
        path,
        body="Call",
        refusals=(*INSIDE, "bundle_disabled", "tool_disabled", "permission_denied", "audit_unavailable"),
    )


def _of_all(do: BundleHandlers) -> Iterator[Operation]:
    listed, found = {200: doc.given("Tools", "Some tools")}, {200: doc.given("FoundTools", "The best hits first")}
    for path in LISTS:
        yield Operation("GET", path, do.list_tools, "List the tools of all bundles", listed, LISTED_BY, is_tagged=True)
    for path in SEARCHES:
        yield Operation(
            "GET",
            path,
            do.search,
            "Search the tools of all bundles",
            found,
            (WANTED, PAGE_SIZE, *doc.PAGING),
            is_tagged=True,
        )
