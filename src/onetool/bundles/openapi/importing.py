"""A whole document as a bundle.

Every operation that can be called becomes a tool, every other one a problem with its reason.
"""

from typing import Any

from onetool.bundles.imported import Imported, ToolEntry, host_of
from onetool.bundles.openapi import names
from onetool.bundles.openapi.document import Document, as_mapping, as_text, read
from onetool.bundles.openapi.operations import Made, Operations, Place, places
from onetool.bundles.openapi.references import References
from onetool.bundles.openapi.security import Security
from onetool.bundles.openapi.servers import Servers
from onetool.bundles.openapi.swagger import scheme
from onetool.bundles.openapi.texts import OF_A_TOOL, shortened
from onetool.bundles.rules import invalid
from onetool.errors import BundleError
from onetool.sanitise import clean

LONGEST_NAME = 120
LONGEST_PROBLEM = 1_000
SHOWN_OPERATIONS = 3


def to_bundle(document: bytes | str, *, name: str = "", server: str | None = None) -> Imported:
    """`name` becomes the slug of the bundle, `server` the address of the API where the document does not tell."""
    return _Import(read(document), name, server).all()


class _Import:
    def __init__(self, document: Document, name: str, server: str | None) -> None:
        info = document.section("info")
        title = shortened(info.get("title"), LONGEST_NAME)
        self._document = document
        self._bundle = _bundle(name, title, info.get("description"))
        self._version = names.version(info.get("version"))
        self._references = References(document.root)
        self._security = Security(_schemes(document), self._references, self._bundle["slug"])
        self._operations = Operations(document, Servers(server), self._security, self._references)
        self._slugs = names.Taken()
        self._tools: dict[str, Made] = {}
        self._problems: dict[str, list[str]] = {}  # where it is so, by what is so
        self._unusable: list[BundleError] = []

    def all(self) -> Imported:
        for place, reason in places(self._document, self._references):
            if reason:
                self._note(reason, place)
            else:
                self._take(place)
        if not self._tools:
            raise self._nothing()
        tools: list[ToolEntry] = [(slug, self._version, made.body) for slug, made in self._tools.items()]
        problems = [clean(problem, LONGEST_PROBLEM) for problem in self._told_problems()]
        hosts = dict.fromkeys(host_of(made.base) for made in self._tools.values())
        secrets = dict.fromkeys(secret for made in self._tools.values() for secret in made.secrets)
        return Imported(self._bundle, tools, list(hosts), list(secrets), problems)

    def _take(self, place: Place) -> None:
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

    def _note(self, reason: str, place: Place) -> None:
        self._problems.setdefault(reason, []).append(str(place))

    def _nothing(self) -> BundleError:
        """Where all fail for want of an address, that is the thing to say."""
        if self._unusable:
            return self._unusable[0]
        if self._problems:
            return invalid(f"no operation of the document can be taken over: {next(iter(self._problems))}")
        return invalid("the document has no operations; they stand under `paths`")

    def _told_problems(self) -> list[str]:
        told = [f"{_some(where)}: {reason}" for reason, where in self._problems.items()]
        undefined = _names(self._security.undefined)
        unresolved = _names(self._operations.unresolved)
        told += [f"authentication is left out where the document does not define it: {undefined}"] if undefined else []
        told += (
            [f"any value is taken where the document leads nowhere or elsewhere: {unresolved}"] if unresolved else []
        )
        return told


def _bundle(name: str, title: str, description: Any) -> dict[str, Any]:
    slug = names.bundle_slug(name, title)
    shown = " ".join((shortened(name, LONGEST_NAME) or title or slug).split())
    return {"slug": slug, "displayName": shown, "description": shortened(description, OF_A_TOOL), "isEnabled": True}


def _schemes(document: Document) -> dict[str, Any]:
    if not document.is_swagger:
        return dict(as_mapping(document.section("components").get("securitySchemes")))
    return {name: scheme(as_mapping(given)) for name, given in document.section("securityDefinitions").items()}


def _names(found: set[str]) -> str:
    return ", ".join(sorted(name[:100] for name in found)[:20])


def _some(where: list[str]) -> str:
    more = len(where) - SHOWN_OPERATIONS
    return ", ".join(where[:SHOWN_OPERATIONS]) + (f" and {more} more" if more > 0 else "")
