"""The store of bundles: packs kept as JSON files, with versioned tools and an on/off switch.

Whoever needs the store imports it from here. It knows nothing of the bus, of REST or of calling a tool.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onetool.bundles.model import Bundle, BundleDraft, Found, Page, StoredTool, ToolDraft
    from onetool.bundles.store import BundleStore

__all__ = ["Bundle", "BundleDraft", "BundleStore", "Found", "Page", "StoredTool", "ToolDraft"]


def __getattr__(name: str) -> Any:
    """Loaded when asked for: pydantic and SQLite are not wanted by who only passes a store on."""
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"onetool.bundles.{'store' if name == 'BundleStore' else 'model'}"), name)
