"""Errors of the bundle store, one function for each reason, and the checks of values that are sent to it."""

from collections.abc import Iterator
from contextlib import contextmanager

from onetool.bundles.model import Switch
from onetool.bundles.records import MAX_FILE_BYTES, ToolFile
from onetool.bundles.rows import BundleRow
from onetool.errors import BundleError
from onetool_child.json_types import JsonMapping


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


def too_many_tools(stored: int, limit: int) -> BundleError:
    message = f"too many tools: the store holds {stored}, and bundles.maxTools allows {limit}"
    return BundleError(message, code="too_large", details={"tools": stored, "max_tools": limit})


# --- validation --------------------------------------------------------------------------------------------------


@contextmanager
def naming_item(number: int, slug: str, version: str) -> Iterator[None]:
    """Add the tool to the details of an error: its number in the request, its slug and its version."""
    try:
        yield
    except BundleError as error:
        details = {**error.details, "index": number, "slug": slug, "version": version}
        raise BundleError(error.message, code=error.code, details=details) from None


def check_content(number: int, file: ToolFile) -> bytes:
    """Return the content of a new file. Raise if it is too large."""
    content = file.text()
    if len(content) > MAX_FILE_BYTES:
        message = f"tool {file.slug}@{file.version} is too large: {len(content)} bytes (at most {MAX_FILE_BYTES})"
        details = {"index": number, "slug": file.slug, "version": file.version}
        raise BundleError(message, code="too_large", details=details)
    return content


def check_switch(switch: bool | JsonMapping, bundle: BundleRow) -> bool:
    """Return whether to enable a bundle or its tool. Of a built-in one, any other field is rejected as read-only."""
    if isinstance(switch, bool):
        return switch
    if bundle.built_in and set(switch) - {"isEnabled"}:
        raise built_in(bundle.id)
    return Switch.of(switch).is_enabled
