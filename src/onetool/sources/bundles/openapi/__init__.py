"""Conversion of OpenAPI documents (3.0, 3.1, Swagger 2; JSON or YAML) to bundles of HTTP tools.

Every supported operation becomes a tool, every other one a problem with its reason. `document`
parses the text, resolves `$ref`, creates names, and converts Swagger 2 to OpenAPI 3; `schemas`
translates schemas. `operations` converts an operation to a tool, with parameters and bodies
(`bodies`), which write to a `request`. Nothing is fetched and nothing is stored.
"""

from collections.abc import Iterable
from typing import Any

from onetool.errors import BundleError
from onetool.sources.bundles.imported import BundleImport, ToolEntry, parse_host
from onetool.sources.bundles.openapi.document import (
    MAX_TOOL_LENGTH,
    OpenApiDocument,
    References,
    UniqueNames,
    as_mapping,
    as_text,
    build_bundle_slug,
    build_operation_slug,
    convert_scheme,
    parse_document,
    shorten,
    to_version,
)
from onetool.sources.bundles.openapi.operations import (
    Additions,
    ConvertedTool,
    OperationConverter,
    OperationLocation,
    ServerUrls,
    iterate_operations,
)
from onetool.sources.bundles.openapi.request import SecuritySchemes
from onetool.sources.bundles.rules import invalid
from onetool.util.sanitize import clean
from onetool_child.json_types import JsonObject

__all__ = ["BundleImport", "to_bundle"]


# --- documents ------------------------------------------------------------------------------------


MAX_NAME_LENGTH = 120
MAX_PROBLEM_LENGTH = 1_000
MAX_SHOWN_OPERATIONS = 3


def to_bundle(
    document: bytes | str,
    *,
    name: str = "",
    server: str | None = None,
    auth: str | None = None,
    headers: Iterable[str] = (),
) -> BundleImport:
    """Convert a document.

    `name` becomes the slug of the bundle; `server` replaces the base URL of the API.

    `auth` is the authentication of operations that declare none; `headers` are sent by all tools.
    """
    additions = Additions.parse(auth, headers)
    return _DocumentConverter(parse_document(document), name, server, additions).convert()


class _DocumentConverter:
    def __init__(
        self, document: OpenApiDocument, name: str, server: str | None, additions: Additions
    ) -> None:
        info = document.get_section("info")
        title = shorten(info.get("title"), MAX_NAME_LENGTH)
        self._document = document
        self._bundle = _build_bundle(name, title, info.get("description"))
        self._version = to_version(info.get("version"))
        self._references = References(document.root)
        self._security = SecuritySchemes(
            _list_schemes(document), self._references, self._bundle["slug"], additions.scheme
        )
        self._operations = OperationConverter(
            document, ServerUrls(server), self._security, self._references, additions
        )
        self._slugs = UniqueNames()
        self._tools: dict[str, ConvertedTool] = {}
        self._problems: dict[str, list[str]] = {}  # locations by reason
        self._errors: list[BundleError] = []

    def convert(self) -> BundleImport:
        for location, reason in iterate_operations(self._document, self._references):
            if reason:
                self._add_problem(reason, location)
            else:
                self._add_tool(location)
        if not self._tools:
            raise self._get_no_tools_error()
        tools: list[ToolEntry] = [
            (slug, self._version, {**tool.body, "origin": "openapi"})
            for slug, tool in self._tools.items()
        ]
        problems = [clean(problem, MAX_PROBLEM_LENGTH) for problem in self._list_problems()]
        hosts = dict.fromkeys(parse_host(tool.base) for tool in self._tools.values())
        secrets = dict.fromkeys(secret for tool in self._tools.values() for secret in tool.secrets)
        return BundleImport(self._bundle, tools, list(hosts), list(secrets), problems)

    def _add_tool(self, location: OperationLocation) -> None:
        try:
            tool = self._operations.convert(location)
        except BundleError as error:
            if error.code != "invalid":  # not the fault of this operation
                raise
            self._errors.append(error)
            self._add_problem(error.message, location)
            return
        slug = build_operation_slug(
            as_text(location.operation.get("operationId")), location.method, location.path
        )
        self._tools[self._slugs.claim(slug)] = tool
        for reason in tool.omissions:
            self._add_problem(reason, location)

    def _add_problem(self, reason: str, location: OperationLocation) -> None:
        self._problems.setdefault(reason, []).append(str(location))

    def _get_no_tools_error(self) -> BundleError:
        """Return why no operation is usable: the reason of the first one."""
        if self._errors:
            return self._errors[0]
        if self._problems:
            reason = next(iter(self._problems))
            return invalid(f"no operation of the document can be imported: {reason}")
        return invalid("the document has no operations under `paths`")

    def _list_problems(self) -> list[str]:
        problems = [
            f"{_format_locations(locations)}: {reason}"
            for reason, locations in self._problems.items()
        ]
        if undefined := _format_names(self._security.undefined):
            problems.append(f"undefined security schemes are ignored: {undefined}")
        if unresolved := _format_names(self._operations.unresolved):
            problems.append(f"unresolved or external references accept any value: {unresolved}")
        return problems


def _build_bundle(name: str, title: str, description: Any) -> JsonObject:
    slug = build_bundle_slug(name, title)
    display_name = " ".join((shorten(name, MAX_NAME_LENGTH) or title or slug).split())
    return {
        "slug": slug,
        "displayName": display_name,
        "description": shorten(description, MAX_TOOL_LENGTH),
        "isEnabled": True,
    }


def _list_schemes(document: OpenApiDocument) -> JsonObject:
    if not document.is_swagger:
        return dict(as_mapping(document.get_section("components").get("securitySchemes")))
    return {
        name: convert_scheme(as_mapping(definition))
        for name, definition in document.get_section("securityDefinitions").items()
    }


def _format_names(names: set[str]) -> str:
    return ", ".join(sorted(name[:100] for name in names)[:20])


def _format_locations(locations: list[str]) -> str:
    more = len(locations) - MAX_SHOWN_OPERATIONS
    return ", ".join(locations[:MAX_SHOWN_OPERATIONS]) + (f" and {more} more" if more > 0 else "")
