"""Import of bundles into the store, from an OpenAPI document or an archive. An import is atomic.

A stored version never changes: existing tools stay and new ones are added. A tool that exists with
the same version but other content is rejected, unless the update may choose another version. Local
edits stay in use, unless the update replaces them. The difference between the stored bundle and a
newer document compares each tool with the version that is called by its name, and masks literal
credentials.
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, count, islice, takewhile
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from onetool.errors import BundleError
from onetool.sources.bundles import BundleStore
from onetool.sources.bundles.imported import BundleImport, ToolEntry
from onetool.sources.bundles.model import Bundle, StoredModel, StoredTool, ToolDraft
from onetool.sources.bundles.rules import invalid
from onetool.sources.http import credentials
from onetool.util.sanitize import clean
from onetool_child.json_types import JsonMapping, JsonObject

MAX_VERSION_STEM = 58  # of the 64 characters of a version, to leave room for a numeric suffix
ZIP_MAGIC = b"PK\x03\x04"
MAX_SLUG_STEM = 58  # of the 64 characters of a slug, to leave room for a numeric suffix
_IN_YAML = re.compile(rb"""^["']?(?:openapi|swagger)["']?[ \t]*:""", re.MULTILINE)
_IN_BRACES = re.compile(rb"""[{,\s]["']?(?:openapi|swagger)["']?\s*:\s*["']?[23]""")


# --- the difference between a stored bundle and a newer document ------------------------------------


Part = Literal["request", "parameter", "description", "output"]
Content = StoredTool | ToolDraft
MAX_CHANGES = 100  # of one tool
MAX_VALUE_CHARS = 300
CONTEXT_CHARS = 40  # before the first difference of long values
FIELDS = tuple(name for name in ToolDraft.model_fields if name not in {"is_enabled", "origin"})


class _Part(StoredModel):
    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)


class FieldChange(_Part):
    """A changed part of a tool."""

    part: Part
    name: str
    before: str | None = Field(description="null if it is new")
    after: str | None = Field(description="null if it is removed")


class ToolChange(_Part):
    """A tool that the document changes."""

    slug: str
    version: str = Field(description="Version that is called now")
    new_version: str
    is_edited: bool = Field(
        description="Whether the current version was not imported, but written here"
    )
    changes: list[FieldChange]


class ToolOutline(_Part):
    slug: str
    version: str
    request: str


class BundleDifference(_Part):
    """The changes that the document makes in the bundle."""

    added: list[ToolOutline] = Field(default_factory=list)
    removed: list[ToolOutline] = Field(default_factory=list)
    changed: list[ToolChange] = Field(default_factory=list)
    unchanged: Annotated[int, Field(ge=0)] = 0


def find_current(versions: Iterable[StoredTool]) -> StoredTool:
    """Return the version that is called by the tool's name: the newest enabled one, if any."""
    return max(versions, key=lambda tool: (tool.is_enabled, tool.created_at))


def has_same_content(one: Content, other: Content) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in FIELDS)


def outline_tool(slug: str, version: str, tool: Content) -> ToolOutline:
    impl = _mask(tool)
    request = f"{impl.get('method', 'GET')} {impl.get('urlTemplate', '')}" if impl else tool.type
    return ToolOutline(slug=slug, version=version, request=_shorten(request))


def list_changes(old: Content, new: Content) -> list[FieldChange]:
    """Return what differs between two versions of a tool."""
    parts: Mapping[Part, Callable[[Content], JsonMapping]] = {
        "request": _mask,
        "parameter": _list_parameters,
        "description": _list_texts,
        "output": lambda tool: {"outputSchema": tool.output_schema},
    }
    changes = (_compare(part, read(old), read(new)) for part, read in parts.items())
    return [*islice(chain.from_iterable(changes), MAX_CHANGES)]


def _list_texts(tool: Content) -> dict[str, str | None]:
    tags = ", ".join(tool.tags)
    return {
        "displayName": tool.display_name,
        "description": tool.description or None,
        "tags": tags or None,
    }


def _compare(part: Part, old: JsonMapping, new: JsonMapping) -> Iterator[FieldChange]:
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            texts = (None if side.get(name) is None else _render(side[name]) for side in (old, new))
            before, after = _shorten_pair(*texts)
            yield FieldChange(part=part, name=_shorten(name), before=before, after=after)


def _list_parameters(tool: Content) -> dict[str, str]:
    """Return the parameters with their schemas as text; other parts of the schema are one entry."""
    schema = tool.arg_schema
    properties = schema.get("properties")
    required = schema.get("required")
    needed = set(required) if isinstance(required, list) else set()
    parameters = {
        str(name): f"{_render(part)}{' (required)' if name in needed else ''}"
        for name, part in (properties.items() if isinstance(properties, dict) else ())
    }
    rest = {
        key: value for key, value in schema.items() if key not in {"properties", "required", "type"}
    }
    return {**parameters, **({"(schema)": _render(rest)} if rest else {})}


def _mask(tool: Content) -> JsonObject:
    return credentials.mask(tool.http_impl) or {}


def _render(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _shorten_pair(before: str | None, after: str | None) -> tuple[str | None, str | None]:
    """Return both texts, from shortly before the first difference if they are long."""
    if before is None or after is None:
        return before and _shorten(before), after and _shorten(after)
    start = 0
    if max(len(before), len(after)) > MAX_VALUE_CHARS:
        pairs = takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))
        start = max(0, len(list(pairs)) - CONTEXT_CHARS)
    dots = "…" if start else ""
    return _shorten(dots + before[start:]), _shorten(dots + after[start:])


def _shorten(text: str) -> str:
    return clean(text, MAX_VALUE_CHARS)


# --- updates --------------------------------------------------------------------------------------


class VersionConflict(Exception):
    """Raised if a version exists with other content."""


@dataclass(frozen=True, slots=True)
class UpdateOptions:
    """Options of an import into an existing bundle.

    `renames_versions` stores a changed tool whose version exists under a new version.
    `replaced_edits` are the tools whose local edits the import replaces (None means all).
    `disables_removed` disables tools that the document lacks.
    """

    renames_versions: bool = False
    replaced_edits: frozenset[str] | None = frozenset()
    disables_removed: bool = False


class UpdatePlan:
    """The plan of an update.

    `kept` are the tools whose local edits stay in use; they are not updated.
    """

    def __init__(
        self, imported: BundleImport, stored: Iterable[StoredTool], options: UpdateOptions
    ) -> None:
        self._options = options
        self._stored: dict[str, list[StoredTool]] = {}
        for tool in stored:
            self._stored.setdefault(tool.slug, []).append(tool)
        self.added: list[ToolEntry] = []
        self.kept: list[str] = []
        self.difference = BundleDifference()
        for entry in imported.tools:
            self._add(entry)
        self.difference.removed.extend(self._find_removed(imported))
        self.disabled = [tool.slug for tool in self.difference.removed if options.disables_removed]

    def _add(self, entry: ToolEntry) -> None:
        slug, version, body = entry
        new = ToolDraft.of(body)
        versions = {tool.version: tool for tool in self._stored.get(slug, ())}
        same = versions.get(version)
        if not versions:
            self.difference.added.append(outline_tool(slug, version, new))
            self.added.append(entry)
        elif same is not None and has_same_content(same, new):
            self._count_unchanged()
        elif same is not None and not self._options.renames_versions:
            raise VersionConflict(
                f"already has a different {slug}@{version}; a stored version never changes"
            )
        else:
            self._change(entry, new, versions)

    def _change(self, entry: ToolEntry, new: ToolDraft, versions: dict[str, StoredTool]) -> None:
        slug, version, body = entry
        current = find_current(versions.values())
        free = _find_free_version(version, versions)
        if has_same_content(current, new):
            self._count_unchanged()
            self.added.extend([entry] if free == version else [])
            return
        is_edited = new.origin is not None and current.origin is None
        changes = list_changes(current, new)
        self.difference.changed.append(
            ToolChange(
                slug=slug,
                version=current.version,
                new_version=free,
                is_edited=is_edited,
                changes=changes,
            )
        )
        replaced = self._options.replaced_edits
        if is_edited and replaced is not None and slug not in replaced:
            self.kept.append(slug)
        else:
            self.added.append((slug, free, body))

    def _count_unchanged(self) -> None:
        self.difference = self.difference.model_copy(
            update={"unchanged": self.difference.unchanged + 1}
        )

    def _find_removed(self, imported: BundleImport) -> Iterator[ToolOutline]:
        """Yield the imported tools that a document lacks. An archive removes nothing."""
        if not any(body.get("origin") for _, _, body in imported.tools):
            return
        slugs = {slug for slug, _, _ in imported.tools}
        for slug, versions in self._stored.items():
            current = find_current(versions)
            if slug not in slugs and current.origin is not None and current.is_enabled:
                yield outline_tool(slug, current.version, current)


def _find_free_version(version: str, versions: Collection[str]) -> str:
    candidates = chain([version], (f"{version[:MAX_VERSION_STEM]}-{number}" for number in count(2)))
    return next(candidate for candidate in candidates if candidate not in versions)


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The result of an import.

    `added` are the tools that did not exist before, `kept` those with local edits.
    """

    bundle: Bundle
    is_new: bool
    added: list[ToolEntry] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    disabled: list[str] = field(default_factory=list)
    difference: BundleDifference = field(default_factory=BundleDifference)


def is_bundle(content: bytes) -> bool:
    """Return whether the content is a ZIP archive, or declares itself as OpenAPI or Swagger."""
    if content.startswith(ZIP_MAGIC):
        return True
    text = content.removeprefix(b"\xef\xbb\xbf").lstrip()
    return _declares_version(text) if text.startswith(b"{") else _IN_YAML.search(text) is not None


def _declares_version(text: bytes) -> bool:
    """Return whether the document has a version key: at the top level, or anywhere if not JSON."""
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
    """Read an archive or a document.

    `name`, if given, replaces the slug; the rest applies to documents.
    """
    from onetool.sources.bundles import archive
    from onetool.sources.bundles.openapi import to_bundle
    from onetool.sources.bundles.openapi.document import build_bundle_slug

    if not content.startswith(ZIP_MAGIC):
        return to_bundle(content, name=name, server=server, auth=auth, headers=headers)
    if server or auth or [*headers]:
        raise invalid(
            "a server, authentication and headers can be added to an OpenAPI document, not to an"
            " archive"
        )
    unpacked = archive.unpack(content)
    if name:
        unpacked.bundle["slug"] = build_bundle_slug(name, "")
    return unpacked


def import_bundle(
    store: BundleStore,
    imported: BundleImport,
    options: UpdateOptions | None = None,
    *,
    dry: bool = False,
) -> ImportResult:
    """Store a bundle as a new one, or its tools as new versions in the bundle with its slug.

    With `dry`, nothing is stored.
    """
    existing = store.bundle_by_slug(imported.bundle["slug"])
    if existing is None or existing.slug != imported.bundle["slug"]:
        if dry:
            return ImportResult(_preview(imported), is_new=True, added=imported.tools)
        return _import_new(store, imported)
    _reject_different(store, imported, existing)
    try:
        plan = UpdatePlan(
            imported, store.list_bundle_tools(existing.id), options or UpdateOptions()
        )
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
    """Return a digest of a bundle's versions that changes whenever a difference may change."""
    stored = store.list_bundle_tools(bundle.id)
    tools = sorted((tool.slug, tool.version, tool.is_enabled) for tool in stored)
    content = repr((bundle.id, bundle.is_enabled, tools))
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def _import_new(store: BundleStore, imported: BundleImport) -> ImportResult:
    """Store a new bundle with all its tools. If a tool is rejected, the bundle is deleted again."""
    bundle_id = store.new_id()
    bundle, _ = store.put_bundle(bundle_id, {"isEnabled": True, **imported.bundle})
    try:
        store.put_many(bundle_id, imported.tools, may_be_disabled=True)
    except BaseException:
        store.delete_bundle(bundle_id)
        raise
    return ImportResult(bundle, is_new=True, added=imported.tools)


def _preview(imported: BundleImport) -> Bundle:
    body = {"description": "", **imported.bundle}
    return Bundle.model_construct(
        slug=body["slug"], display_name=body["displayName"], description=body["description"]
    )


def _reject_different(store: BundleStore, imported: BundleImport, existing: Bundle) -> None:
    """Reject a different bundle with the same slug: versions of one bundle have tools in common."""
    slugs = {tool.slug for tool in store.list_bundle_tools(existing.id)}
    if existing.is_built_in:
        raise _slug_error(store, existing, "is built in")
    if slugs and slugs.isdisjoint(slug for slug, _, _ in imported.tools):
        raise _slug_error(store, existing, "already exists, with other tools")


def _slug_error(store: BundleStore, existing: Bundle, reason: str, **more: str) -> BundleError:
    suggestion = find_free_slug(store, existing.slug)
    details = {"slug": existing.slug, "bundleID": existing.id, "suggestion": suggestion, **more}
    return BundleError(f"bundle {existing.slug} {reason}", code="slug_taken", details=details)


def find_free_slug(store: BundleStore, slug: str) -> str:
    candidates = (f"{slug[:MAX_SLUG_STEM].rstrip('-')}-{number}" for number in count(2))
    return next(candidate for candidate in candidates if store.bundle_by_slug(candidate) is None)
