"""Errors of the bundle store, one function for each reason, and the checks of values that are sent to it."""

from collections.abc import Callable, Mapping

from onetool.bundles import rules
from onetool.bundles.model import Switch, ToolDraft
from onetool.bundles.records import MAX_FILE_BYTES, ToolFile
from onetool.errors import BundleError
from onetool_child.json_types import JsonMapping

Body = JsonMapping


def bundle_not_found(bundle_id: str) -> BundleError:
    return BundleError(f"bundle {bundle_id} not found", code="not_found", details={"bundle_id": bundle_id})


def tool_not_found(bundle_id: str, slug: str, version: str) -> BundleError:
    details = {"bundle_id": bundle_id, "slug": slug, "version": version}
    return BundleError(f"tool {slug}@{version} not found in bundle {bundle_id}", code="not_found", details=details)


def built_in(bundle_id: str) -> BundleError:
    message = f"bundle {bundle_id} is built in: it can be enabled and disabled, but not changed"
    return BundleError(message, code="builtin_read_only", details={"bundle_id": bundle_id})


def disabled(bundle_id: str, slug: str) -> BundleError:
    message = f"bundle {slug} is disabled; enable it before you change its tools"
    return BundleError(message, code="bundle_disabled", details={"bundle_id": bundle_id})


def not_empty(bundle_id: str, number: int) -> BundleError:
    message = f"bundle {bundle_id} is not empty; delete its tools first"
    return BundleError(message, code="bundle_not_empty", details={"bundle_id": bundle_id, "files": number})


def slug_taken(slug: str, bundle_id: str) -> BundleError:
    message = f"slug {slug!r} is already used by bundle {bundle_id}; a slug is the name of a pack, so choose another"
    return BundleError(message, code="slug_taken", details={"slug": slug, "bundle_id": bundle_id})


def duplicate(number: int, slug: str, version: str) -> BundleError:
    message = f"tool {slug}@{version} already exists; a stored version never changes, so choose another"
    return BundleError(message, code="duplicate", details={"index": number, "slug": slug, "version": version})


def unreadable_file(path: str) -> BundleError:
    message = f"cannot read {path}: fix or move it (ot.health() reports the reason)"
    return BundleError(message, code="duplicate", details={"file": path})


def too_many_tools(stored: int, limit: int) -> BundleError:
    message = f"too many tools: the store holds {stored}, and bundles.maxTools allows {limit}"
    return BundleError(message, code="too_large", details={"tools": stored, "max_tools": limit})


# --- validation --------------------------------------------------------------------------------------------------


def check_pair(number: int, slug: str, version: str) -> tuple[str, str]:
    try:
        return rules.check_slug(slug), rules.check_version_label(version)
    except BundleError as error:
        raise _add_item_details(error, number, slug, version) from None


def check_draft(
    number: int,
    slug: str,
    version: str,
    draft: ToolDraft | Body,
    restore: Callable[[str, Body], Body] = lambda _slug, body: body,
) -> ToolDraft:
    """Return the validated draft. `restore` replaces masks in the body with the stored credentials."""
    try:
        return ToolDraft.of(draft if isinstance(draft, ToolDraft) else restore(slug, draft))
    except BundleError as error:
        raise _add_item_details(error, number, slug, version) from None


def check_content(number: int, file: ToolFile) -> bytes:
    content = file.text()
    if len(content) > MAX_FILE_BYTES:
        message = f"tool {file.slug}@{file.version} is too large: {len(content)} bytes (at most {MAX_FILE_BYTES})"
        details = {"index": number, "slug": file.slug, "version": file.version}
        raise BundleError(message, code="too_large", details=details)
    return content


def check_switch(switch: bool | Switch | Body, *, bundle_id: str, is_built_in: bool) -> bool:
    """Return whether to enable it. For a built-in bundle, any other field is rejected as read-only."""
    if isinstance(switch, bool):
        return switch
    if is_built_in and isinstance(switch, Mapping) and set(switch) - {"isEnabled"}:
        raise built_in(bundle_id)
    return Switch.of(switch).is_enabled


def _add_item_details(error: BundleError, number: int, slug: object, version: object) -> BundleError:
    details = {**error.details, "index": number, "slug": slug, "version": version}
    return BundleError(error.message, code=error.code, details=details)
