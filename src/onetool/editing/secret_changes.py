"""Plans the edits that let tools of a bundle send a secret to an origin, or no longer let them."""

from collections.abc import Iterable
from typing import Any

from onetool.bundles.rules import check_slug
from onetool.bundles.secret_bindings import SECTION, SecretUse, change_bindings
from onetool.editing.planned_edit import ItemChange, PlannedEdit, check_secret_name
from onetool.editing.settings_editor import SettingsEditor


def plan_secret_use(editor: SettingsEditor, use: SecretUse, *, is_allowed: bool) -> PlannedEdit:
    """Return the edit that allows or disallows one use of a secret."""
    action = "secrets.allow" if is_allowed else "secrets.disallow"
    return editor.plan(action, change_secret_uses(editor, [use], is_allowed=is_allowed), names=[use.name, use.bundle])


def change_secret_uses(editor: SettingsEditor, uses: Iterable[SecretUse], *, is_allowed: bool) -> list[ItemChange]:
    """Return the changed entries of the setting `bundle_secrets`."""
    entries: dict[str, Any] = {}
    for use in uses:
        check_slug(use.bundle)
        check_secret_name(use.name)
        if use.bundle not in entries:
            entries[use.bundle] = editor.find(SECTION, use.bundle).value
        entries[use.bundle] = change_bindings(entries[use.bundle], use, is_allowed=is_allowed)
    return [ItemChange(SECTION, bundle, entry) for bundle, entry in entries.items()]
