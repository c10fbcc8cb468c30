"""Import of bundles into the store, from an OpenAPI document or an archive. An import is atomic.

A stored version never changes: existing tools stay and new ones are added. A tool that exists with the same version but
other content is rejected, unless the update may choose another version. Local edits stay in use, unless the update
replaces them.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

from onetool.bundles import BundleStore
from onetool.bundles.difference import BundleDifference
from onetool.bundles.imported import BundleImport, ToolEntry
from onetool.bundles.model import Bundle
from onetool.bundles.rules import invalid
from onetool.bundles.update_plan import UpdateOptions, UpdatePlan, VersionConflict
from onetool.errors import BundleError

ZIP_MAGIC = b"PK\x03\x04"
MAX_SLUG_STEM = 58  # of the 64 characters of a slug, to leave room for a numeric suffix
_IN_YAML = re.compile(rb"""^["']?(?:openapi|swagger)["']?[ \t]*:""", re.MULTILINE)
_IN_BRACES = re.compile(rb"""[{,\s]["']?(?:openapi|swagger)["']?\s*:\s*["']?[23]""")


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The result of an import. `added` are the tools that did not exist before, `kept` those with local edits."""

    bundle: Bundle
    is_new: bool
    added: list[ToolEntry] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    disabled: list[str] = field(default_factory=list)
    difference: BundleDifference = field(default_factory=BundleDifference)


def is_bundle(content: bytes) -> bool:
    """Return whether the content is a ZIP archive, or a document that declares itself as OpenAPI or Swagger."""
    if content.startswith(ZIP_MAGIC):
        return True
    text = content.removeprefix(b"\xef\xbb\xbf").lstrip()
    return _declares_version(text) if text.startswith(b"{") else _IN_YAML.search(text) is not None


def _declares_version(text: bytes) -> bool:
    """Return whether the document has a version key: at the top level in JSON, else anywhere (YAML, or comments)."""
    import orjson

    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        return _IN_BRACES.search(text) is not None
    return isinstance(document, dict) and not {"openapi", "swagger"}.isdisjoint(document)


def read(
    content: bytes,
    *,
    name: str = "",
    server: str | None = None,
    auth: str | None = None,
    headers: Iterable[str] = (),
) -> BundleImport:
    """Read an archive or a document. `name`, if given, replaces the slug; the rest applies to documents."""
    from onetool.bundles import archive
    from onetool.bundles.openapi import to_bundle
    from onetool.bundles.openapi.names import build_bundle_slug

    if not content.startswith(ZIP_MAGIC):
        return to_bundle(content, name=name, server=server, auth=auth, headers=headers)
    if server or auth or [*headers]:
        raise invalid("a server, authentication and headers can be added to an OpenAPI document, not to an archive")
    unpacked = archive.unpack(content)
    if name:
        unpacked.bundle["slug"] = build_bundle_slug(name, "")
    return unpacked


def import_bundle(
    store: BundleStore, found: BundleImport, options: UpdateOptions | None = None, *, dry: bool = False
) -> ImportResult:
    """Store a bundle as a new one, or its tools as new versions in the bundle with its slug.

    With `dry`, nothing is stored.
    """
    existing = store.bundle_by_slug(found.bundle["slug"])
    if existing is None or existing.slug != found.bundle["slug"]:
        return ImportResult(_preview(found), is_new=True, added=found.tools) if dry else _import_new(store, found)
    _reject_different(store, found, existing)
    try:
        plan = UpdatePlan(found, store.list_bundle_tools(existing.id), options or UpdateOptions())
    except VersionConflict as error:
        raise _slug_error(store, existing, str(error), needs="update") from None
    result = ImportResult(existing, False, plan.added, plan.kept, plan.disabled, plan.difference)
    if not dry:
        _apply_update(store, result)
    return result


def _apply_update(store: BundleStore, result: ImportResult) -> None:
    bundle_id = result.bundle.id
    if result.added:
        store.put_many(bundle_id, result.added)
    for slug in result.disabled:
        for tool in store.list_bundle_tools(bundle_id, slug):
            if tool.is_enabled and tool.origin is not None:
                store.set_tool_enabled(bundle_id, slug, tool.version, False)


def compute_basis(store: BundleStore, bundle: Bundle) -> str:
    """Return a digest of the versions of a bundle, which changes with each change that a difference depends on."""
    tools = sorted((tool.slug, tool.version, tool.is_enabled) for tool in store.list_bundle_tools(bundle.id))
    return hashlib.sha256(repr((bundle.id, bundle.is_enabled, tools)).encode()).hexdigest()[:32]


def _import_new(store: BundleStore, found: BundleImport) -> ImportResult:
    """Store a new bundle with all its tools. If a tool is rejected, the bundle is deleted again."""
    bundle_id = store.new_id()
    bundle, _ = store.put_bundle(bundle_id, {"isEnabled": True, **found.bundle})
    try:
        store.put_many(bundle_id, found.tools, may_be_disabled=True)
    except BaseException:
        store.delete_bundle(bundle_id)
        raise
    return ImportResult(bundle, is_new=True, added=found.tools)


def _preview(found: BundleImport) -> Bundle:
    body = {"description": "", **found.bundle}
    return Bundle.model_construct(slug=body["slug"], display_name=body["displayName"], description=body["description"])


def _reject_different(store: BundleStore, found: BundleImport, existing: Bundle) -> None:
    """Reject a different bundle with the same slug: versions of one bundle have tools in common."""
    slugs = {tool.slug for tool in store.list_bundle_tools(existing.id)}
    if existing.is_built_in:
        raise _slug_error(store, existing, "is built in")
    if slugs and slugs.isdisjoint(slug for slug, _, _ in found.tools):
        raise _slug_error(store, existing, "already exists, with other tools")


def _slug_error(store: BundleStore, existing: Bundle, reason: str, **more: str) -> BundleError:
    suggestion = find_free_slug(store, existing.slug)
    details = {"slug": existing.slug, "bundleID": existing.id, "suggestion": suggestion, **more}
    return BundleError(f"bundle {existing.slug} {reason}", code="slug_taken", details=details)


def find_free_slug(store: BundleStore, slug: str) -> str:
    candidates = (f"{slug[:MAX_SLUG_STEM].rstrip('-')}-{number}" for number in count(2))
    return next(candidate for candidate in candidates if store.bundle_by_slug(candidate) is None)
