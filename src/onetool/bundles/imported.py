"""What an import gives: a bundle and its tools as bodies for the store, and what is left for a person to do.

Nothing is stored here. Both ways in, an OpenAPI document and a ZIP archive, end in the same thing.
"""

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

ToolEntry = tuple[str, str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Imported:
    """`tools` are `(slug, version, body)`; `hosts` belong into http.allowedHosts, `secrets` into secrets.yaml."""

    bundle: dict[str, Any]
    tools: list[ToolEntry]
    hosts: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def warnings(self) -> list[str]:
        """Literal credentials in the tools."""
        from onetool.backends.http_tool import credentials
        from onetool.bundles.model import credential_warning, schema_warning

        bodies = [(f"{slug}@{version}", body.get("httpImpl")) for slug, version, body in self.tools]
        found = [(name, place) for name, impl in bodies for place, _ in credentials.find(impl)]
        schemas = [(f"{slug}@{version}", body.get("argSchema")) for slug, version, body in self.tools]
        in_schemas = [(name, place) for name, schema in schemas for place, _ in credentials.find_in_schema(schema)]
        return [
            *(f"{name}: {credential_warning(self.bundle['slug'], place)}" for name, place in found),
            *(f"{name}: {schema_warning(place)}" for name, place in in_schemas),
        ]


def host_of(url: str) -> str:
    """As http.allowedHosts has it: the port only where it is an unusual one."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    usual = {"https": 443, "http": 80}[parts.scheme]
    return host if parts.port in {None, usual} else f"{host}:{parts.port}"


def most_values(text: bytes) -> int:
    """No more values than this are in a JSON text. It is quickly counted, before anything is made of them."""
    return 1 + sum(text.count(sign) for sign in (b"[", b"{", b","))
