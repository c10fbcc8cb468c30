"""The result of reading an OpenAPI document or a ZIP archive: request bodies for the store, and
remaining steps.

Nothing is stored here.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from onetool.errors import ConfigError, NetworkError
from onetool.net import HostRules
from onetool.net.hosts import parse_target
from onetool.sources.bundles.secret_bindings import SecretUse, find_secret_uses
from onetool_child.json_types import JsonObject

ToolEntry = tuple[str, str, JsonObject]


@dataclass(frozen=True, slots=True)
class BundleImport:
    """A bundle to import.

    `tools` are `(slug, version, body)`; `hosts` belong in http.allowedHosts, `secrets` in
    secrets.yaml.
    """

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
    """Return the host as in http.allowedHosts: with the port only if it is not the default of the
    scheme.
    """
    try:
        return parse_target(url).authority
    except NetworkError:  # its calls are rejected
        return urlsplit(url).netloc


def max_value_count(text: bytes) -> int:
    """Return an upper bound for the number of values in a JSON text, without parsing it."""
    return 1 + sum(text.count(sign) for sign in (b"[", b"{", b","))
