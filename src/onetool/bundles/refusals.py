"""What the store refuses, in words: one function a reason, so that a reason is always told in the same way."""

from collections.abc import Callable, Mapping
from typing import Any

from onetool.bundles import rules
from onetool.bundles.model import Switch, ToolDraft
from onetool.bundles.records import MOST_BYTES, ToolFile
from onetool.errors import BundleError

Body = Mapping[str, Any]


def no_bundle(bundle_id: str) -> BundleError:
    return BundleError(f"there is no bundle {bundle_id}", code="not_found", details={"bundle_id": bundle_id})


def no_tool(bundle_id: str, slug: str, version: str) -> BundleError:
    details = {"bundle_id": bundle_id, "slug": slug, "version": version}
    return BundleError(f"the bundle {bundle_id} has no tool {slug}@{version}", code="not_found", details=details)


def built_in(bundle_id: str) -> BundleError:
    message = f"the bundle {bundle_id} comes with the program; it can be switched on and off, and not changed"
    return BundleError(message, code="builtin_read_only", details={"bundle_id": bundle_id})


def deleted(bundle_id: str) -> BundleError:
    message = f"the bundle {bundle_id} is deleted; PUT it again to bring it back"
    return BundleError(message, code="bundle_deleted", details={"bundle_id": bundle_id})


def disabled(bundle_id: str, slug: str) -> BundleError:
    message = f"the bundle {slug} is disabled; enable it before you change what is in it"
    return BundleError(message, code="bundle_disabled", details={"bundle_id": bundle_id})


def not_empty(bundle_id: str, number: int) -> BundleError:
    message = f"the bundle {bundle_id} is not empty; delete its tools first"
    return BundleError(message, code="bundle_not_empty", details={"bundle_id": bundle_id, "files": number})


def slug_taken(slug: str, bundle_id: str) -> BundleError:
    message = f"the bundle {bundle_id} has the slug {slug!r}; a slug is the name of a pack, so choose another"
    return BundleError(message, code="slug_taken", details={"slug": slug, "bundle_id": bundle_id})


def duplicate(number: int, slug: str, version: str) -> BundleError:
    message = f"the tool {slug}@{version} is there already; a version never changes, so choose another"
    return BundleError(message, code="duplicate", details={"index": number, "slug": slug, "version": version})


def in_the_way(path: str) -> BundleError:
    message = f"{path} is in the way: it is there, but cannot be used; ot.health() says why. Mend it or move it away"
    return BundleError(message, code="duplicate", details={"file": path})


def too_many(held: int, most: int) -> BundleError:
    message = f"the store holds {held} tools, and bundles.maxTools allows {most}"
    return BundleError(message, code="too_large", details={"tools": held, "max_tools": most})


# --- what is sent --------------------------------------------------------------------------------------------------


def checked_pair(number: int, slug: str, version: str) -> tuple[str, str]:
    try:
        return rules.a_slug(slug), rules.a_version(version)
    except BundleError as error:
        raise _of_item(error, number, slug, version) from None


def checked_draft(
    number: int,
    slug: str,
    version: str,
    draft: ToolDraft | Body,
    restore: Callable[[str, Body], Body] = lambda _slug, body: body,
) -> ToolDraft:
    """`restore` puts back the credentials that the body has masks for."""
    try:
        return ToolDraft.of(draft if isinstance(draft, ToolDraft) else restore(slug, draft))
    except BundleError as error:
        raise _of_item(error, number, slug, version) from None


def checked_content(number: int, file: ToolFile) -> bytes:
    content = file.text()
    if len(content) > MOST_BYTES:
        message = f"the tool {file.slug}@{file.version} takes {len(content)} bytes, and {MOST_BYTES} are the most"
        details = {"index": number, "slug": file.slug, "version": file.version}
        raise BundleError(message, code="too_large", details=details)
    return content


def checked_switch(switch: bool | Switch | Body, *, bundle_id: str, is_built_in: bool) -> bool:
    """A built-in has nothing but its switch: whatever else is sent for it is refused as such."""
    if isinstance(switch, bool):
        return switch
    if is_built_in and isinstance(switch, Mapping) and set(switch) - {"isEnabled"}:
        raise built_in(bundle_id)
    return Switch.of(switch).is_enabled


def _of_item(error: BundleError, number: int, slug: object, version: object) -> BundleError:
    details = {**error.details, "index": number, "slug": slug, "version": version}
    return BundleError(error.message, code=error.code, details=details)
