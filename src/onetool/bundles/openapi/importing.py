"""Conversion of a whole document to a bundle.

Every supported operation becomes a tool, every other one a problem with its reason.
"""

from typing import Any

from onetool.bundles.imported import BundleImport, ToolEntry, parse_host
from onetool.bundles.openapi import names
from onetool.bundles.openapi.document import OpenApiDocument, as_mapping, as_text, read
from onetool.bundles.openapi.operations import ConvertedTool, OperationLocation, Operations, places
from onetool.bundles.openapi.references import References
from onetool.bundles.openapi.security import Security
from onetool.bundles.openapi.servers import ServerUrls
from onetool.bundles.openapi.swagger import scheme
from onetool.bundles.openapi.texts import MAX_TOOL_LENGTH, shorten
from onetool.bundles.rules import invalid
from onetool.errors import BundleError
from onetool.sanitize import clean

MAX_NAME_LENGTH = 120
MAX_PROBLEM_LENGTH = 1_000
SHOWN_OPERATIONS = 3


def to_bundle(document: bytes | str, *, name: str = "", server: str | None = None) -> BundleImport:
    """Convert a document. `name` becomes the slug of the bundle; `server` replaces the base URL of the API."""
    return _Import(read(document), name, server).all()


class _Import:
    def __init__(self, document: OpenApiDocument, name: str, server: str | None) -> None:
        info = document.section("info")
        title = shorten(info.get("title"), MAX_NAME_LENGTH)
        self._document = document
        self._bundle = _bundle(name, title, info.get("description"))
        self._version = names.version(info.get("version"))
        self._references = References(document.root)
        self._security = Security(_schemes(document), self._references, self._bundle["slug"])
        self._operations = Operations(document, ServerUrls(server), self._security, self._references)
        self._slugs = names.UniqueNames()
        self._tools: dict[str, ConvertedTool] = {}
        self._problems: dict[str, list[str]] = {}  # locations by reason
        self._unusable: list[BundleError] = []

    def all(self) -> BundleImport:
        for place, reason in places(self._document, self._references):
            if reason:
                self._note(reason, place)
            else:
                self._add_tool(place)
        if not self._tools:
            raise self._no_tools_error()
        tools: list[ToolEntry] = [(slug, self._version, made.body) for slug, made in self._tools.items()]
        problems = [clean(problem, MAX_PROBLEM_LENGTH) for problem in self._list_problems()]
        hosts = dict.fromkeys(parse_host(made.base) for made in self._tools.values())
        secrets = dict.fromkeys(secret for made in self._tools.values() for secret in made.secrets)
        return BundleImport(self._bundle, tools, list(hosts), list(secrets), problems)

    def _add_tool(self, place: OperationLocation) -> None:
        try:
            made = self._operations.tool(place)
        except BundleError as error:
            if error.code != "invalid":  # not the fault of this operation
                raise
            self._unusable.append(error)
            self._note(error.message, place)
            return
        wanted = names.operation_slug(as_text(place.operation.get("operationId")), place.method, place.path)
        self._tools[self._slugs.claim(wanted)] = made
        for reason in made.left_out:
            self._note(reason, place)

    def _note(self, reason: str, place: OperationLocation) -> None:
        self._problems.setdefault(reason, []).append(str(place))

    def _no_tools_error(self) -> BundleError:
        """Return the error for a document without usable operations, with the reason of the first one."""
        if self._unusable:
            return self._unusable[0]
        if self._problems:
            return invalid(f"no operation of the document can be imported: {next(iter(self._problems))}")
        return invalid("the document has no operations under `paths`")

    def _list_problems(self) -> list[str]:
        problems = [f"{_list_locations(where)}: {reason}" for reason, where in self._problems.items()]
        undefined = _names(self._security.undefined)
        unresolved = _names(self._operations.unresolved)
        problems += [f"undefined security schemes are ignored: {undefined}"] if undefined else []
        problems += [f"unresolved or external references accept any value: {unresolved}"] if unresolved else []
        return problems


def _bundle(name: str, title: str, description: Any) -> dict[str, Any]:
    slug = names.bundle_slug(name, title)
    shown = " ".join((shorten(name, MAX_NAME_LENGTH) or title or slug).split())
    return {"slug": slug, "displayName": shown, "description": shorten(description, MAX_TOOL_LENGTH), "isEnabled": True}


def _schemes(document: OpenApiDocument) -> dict[str, Any]:
    if not document.is_swagger:
        return dict(as_mapping(document.section("components").get("securitySchemes")))
    return {name: scheme(as_mapping(given)) for name, given in document.section("securityDefinitions").items()}


def _names(found: set[str]) -> str:
    return ", ".join(sorted(name[:100] for name in found)[:20])


def _list_locations(where: list[str]) -> str:
    more = len(where) - SHOWN_OPERATIONS
    return ", ".join(where[:SHOWN_OPERATIONS]) + (f" and {more} more" if more > 0 else "")
