"""Taking a bundle over into the store: an OpenAPI document or an archive, whole or not at all.

A version never changes. What is there already stays, what is new is added beside it, and a tool that is there with
another content under the same version is refused. Where it comes from is the business of the doors.
"""

import re
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from onetool.bundles.imported import Imported, ToolEntry
from onetool.bundles.model import Bundle, ToolDraft
from onetool.errors import BundleError
from onetool.storage import BundleStorage

START_OF_ZIP: Final = b"PK\x03\x04"
ROOM: Final = 58  # of the 64 characters of a slug, for a number behind them
_IN_YAML = re.compile(rb"""^["']?(?:openapi|swagger)["']?[ \t]*:""", re.MULTILINE)
_IN_BRACES = re.compile(rb"""[{,\s]["']?(?:openapi|swagger)["']?\s*:\s*["']?[23]""")


@dataclass(frozen=True, slots=True)
class Taken:
    """`added` are the tools that were not there before."""

    bundle: Bundle
    is_new: bool
    added: list[ToolEntry] = field(default_factory=list)


def is_bundle(content: bytes) -> bool:
    """Whether this is for us: an archive, or a document that calls itself OpenAPI or Swagger."""
    if content.startswith(START_OF_ZIP):
        return True
    text = content.removeprefix(b"\xef\xbb\xbf").lstrip()
    return _has_its_name(text) if text.startswith(b"{") else _IN_YAML.search(text) is not None


def _has_its_name(text: bytes) -> bool:
    """In JSON only what stands at the top counts. What is no JSON may be YAML, or JSON with comments."""
    import orjson

    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return _IN_BRACES.search(text) is not None
    return isinstance(found, dict) and not {"openapi", "swagger"}.isdisjoint(found)


def read(content: bytes, *, name: str = "", server: str | None = None) -> Imported:
    """What is in an archive or a document. `name` becomes the slug, whatever is said there."""
    from onetool.bundles import archive
    from onetool.bundles.openapi import to_bundle
    from onetool.bundles.openapi.names import bundle_slug

    if not content.startswith(START_OF_ZIP):
        return to_bundle(content, name=name, server=server)
    found = archive.unpack(content)
    if name:
        found.bundle["slug"] = bundle_slug(name, "")
    return found


def take_over(store: BundleStorage, found: Imported, *, dry: bool = False) -> Taken:
    """Have it in the store: as a new bundle, or as new versions in the one that has its name. `dry` only tells."""
    there = store.bundle_by_slug(found.bundle["slug"])
    if there is None or there.slug != found.bundle["slug"]:
        return Taken(_shown(found), is_new=True, added=found.tools) if dry else _as_new(store, found)
    _refuse_other(store, found, there)
    added = _added(store, found, there)
    if added and not dry:
        store.put_many(there.id, added)
    return Taken(there, is_new=False, added=added)


def _as_new(store: BundleStorage, found: Imported) -> Taken:
    """A new bundle with all the tools; nothing is left of it where one of them is refused."""
    bundle_id = store.new_id()
    is_enabled = bool(found.bundle.get("isEnabled", True))
    store.put_bundle(bundle_id, {**found.bundle, "isEnabled": True})
    try:
        store.put_many(bundle_id, found.tools)
    except BaseException:
        store.delete_bundle(bundle_id)
        raise
    bundle = store.set_bundle_enabled(bundle_id, is_enabled)
    return Taken(bundle, is_new=True, added=found.tools)


def _shown(found: Imported) -> Bundle:
    body = {"description": "", **found.bundle}
    return Bundle.model_construct(slug=body["slug"], display_name=body["displayName"], description=body["description"])


def _refuse_other(store: BundleStorage, found: Imported, there: Bundle) -> None:
    """Two things of one name are told apart by their tools: versions of one thing have some in common."""
    slugs = {tool.slug for tool in store.tools_of(there.id)}
    if there.is_built_in:
        raise _taken(store, there, "comes with the program")
    if slugs and slugs.isdisjoint(slug for slug, _, _ in found.tools):
        raise _taken(store, there, "is there already, with other tools")


def _added(store: BundleStorage, found: Imported, there: Bundle) -> list[ToolEntry]:
    known = {(tool.slug, tool.version): tool for tool in store.tools_of(there.id)}
    fields = [name for name in ToolDraft.model_fields if name != "is_enabled"]
    for slug, version, body in (entry for entry in found.tools if entry[:2] in known):
        old, new = known[slug, version], ToolDraft.of(body)
        if any(getattr(old, name) != getattr(new, name) for name in fields):
            raise _taken(store, there, f"has another {slug} of version {version}, and a version never changes")
    return [entry for entry in found.tools if entry[:2] not in known]


def _taken(store: BundleStorage, there: Bundle, reason: str) -> BundleError:
    free = free_slug(store, there.slug)
    details = {"slug": there.slug, "bundleID": there.id, "suggestion": free}
    return BundleError(f"the bundle {there.slug} {reason}", code="slug_taken", details=details)


def free_slug(store: BundleStorage, taken: str) -> str:
    candidates = (f"{taken[:ROOM].rstrip('-')}-{number}" for number in count(2))
    return next(slug for slug in candidates if store.bundle_by_slug(slug) is None)
