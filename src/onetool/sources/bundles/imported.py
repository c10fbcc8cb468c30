"""The result of reading an OpenAPI document or a ZIP archive, and names that an owner disabled.

`BundleImport` has request bodies for the store and remaining steps; nothing is stored here.

The names under which an owner disables stored tools and bundles outlive what they name. A tool or
bundle that is deleted and stored again, by any request or import, stays disabled until an owner
enables it.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from onetool.errors import ConfigError, NetworkError
from onetool.net import HostRules
from onetool.net.hosts import parse_target
from onetool.sources.bundles.stored_tools import SecretUse, find_secret_uses
from onetool.state.document_kinds import EVERYTHING
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.sources.bundles import BundleStore
    from onetool.sources.bundles.model import StoredTool

ToolEntry = tuple[str, str, JsonObject]  # slug, version and body


@dataclass(frozen=True, slots=True)
class BundleImport:
    """A bundle to import. `hosts` belong in http.allowedHosts, `secrets` in secrets.yaml."""

    bundle: JsonObject
    tools: list[ToolEntry]
    hosts: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def secret_uses(self) -> list[SecretUse]:
        """The secrets that the tools send, and where."""
        impls = ({"httpImpl": body.get("httpImpl")} for _, _, body in self.tools)
        return find_secret_uses((self.bundle["slug"], json.dumps(impl)) for impl in impls)

    @property
    def warnings(self) -> list[str]:
        """Warnings about literal credentials in the tools."""
        from onetool.sources.bundles.model import list_warnings

        slug = self.bundle["slug"]
        return [
            f"{tool}@{version}: {warning}"
            for tool, version, body in self.tools
            for warning in list_warnings(slug, body.get("httpImpl"), body.get("argSchema"))
        ]


def list_missing_hosts(hosts: Iterable[str], allowed_hosts: tuple[str, ...]) -> list[str]:
    """Return the hosts that the settings do not allow."""
    rules = HostRules(allowed_hosts, allow_private_addresses=True)
    return [host for host in hosts if not _is_allowed(rules, host)]


def _is_allowed(rules: HostRules, host: str) -> bool:
    try:
        rules.check(f"https://{host}/")
    except (NetworkError, ConfigError):
        return False
    return True


def parse_host(url: str) -> str:
    """Return the host as in http.allowedHosts: with its port, unless that is the default."""
    try:
        return parse_target(url).authority
    except NetworkError:  # its calls are rejected
        return urlsplit(url).netloc


def max_value_count(text: bytes) -> int:
    """Return an upper bound for the number of values in a JSON text, without parsing it."""
    return 1 + sum(text.count(sign) for sign in (b"[", b"{", b","))


# --- owner marks ----------------------------------------------------------------------------------


def list_names(slug: str, tool: str, version: str) -> list[str]:
    """Return the names that cover a version of a tool, whether it exists or not."""
    return [f"{slug}.{tool}", f"{slug}.{tool}@{version}"]


def list_marks(store: "BundleStore", tools: "Sequence[StoredTool]", *, on: bool) -> list[str]:
    """Return what to mark after these versions of a tool were enabled or disabled.

    The name without a version is marked if no version is left, so that no new one takes over.
    Blocks on disk access.
    """
    marks = []
    for tool in tools:
        name, with_version = list_names(tool.bundle_slug, tool.slug, tool.version)
        marks += [tool.id, with_version]
        versions = store.list_bundle_tools(tool.bundle_id, tool.slug)
        if on or not any(version.is_enabled for version in versions):
            marks.append(name)
    return marks


def keep_disabled(imported: BundleImport, marks: Collection[str]) -> BundleImport:
    """Return the import with what an owner disabled stored as disabled."""
    slug = imported.bundle["slug"]
    problems = [*imported.problems]

    def is_marked(*names: str) -> bool:
        return not {EVERYTHING, *names}.isdisjoint(marks)

    bundle = imported.bundle
    if is_marked(slug):
        bundle = {**bundle, "isEnabled": False}
    tools = []
    for tool, version, body in imported.tools:
        is_kept = is_marked(*list_names(slug, tool, version))
        tools.append((tool, version, {**body, "isEnabled": False} if is_kept else body))
        if is_kept:
            problems.append(f"{slug}.{tool}: stored as disabled, because an owner disabled it")
    return replace(imported, bundle=bundle, tools=tools, problems=problems)
