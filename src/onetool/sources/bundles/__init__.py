"""The bundle store: packs in JSON files, with versioned tools that can be enabled and disabled.

Import the store from here. It does not depend on the bus, on REST or on calling tools.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onetool.sources.bundles.bundle_store import BundleStore
    from onetool.sources.bundles.model import (
        Bundle,
        BundleDraft,
        Page,
        StoredTool,
        ToolDraft,
        ToolHit,
    )

__all__ = ["Bundle", "BundleDraft", "BundleStore", "Page", "StoredTool", "ToolDraft", "ToolHit"]


def __getattr__(name: str) -> Any:
    """Import names on first use, so that pydantic and SQLite are loaded only when they are needed."""
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "bundle_store" if name == "BundleStore" else "model"
    return getattr(import_module(f"onetool.sources.bundles.{module}"), name)
