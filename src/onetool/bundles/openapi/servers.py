"""The base URL of an API: the first usable server of the document, with the defaults of its variables.

A relative URL cannot be resolved, because only the user knows where the document came from.
"""

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from onetool.bundles.openapi.document import as_list, as_mapping, as_text
from onetool.bundles.openapi.request import VARIABLE, encode_path
from onetool.bundles.rules import invalid
from onetool.errors import BundleError
from onetool.util.text import quote
from onetool_child.json_types import JsonMapping

_AUTHORITY = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")


class ServerUrls:
    """The base URLs of operations. `override` is a base URL from the user, which replaces those of the document."""

    def __init__(self, override: str | None) -> None:
        self._override = (
            None if override is None else _validate(override if "://" in override else f"https://{override}")
        )

    def find_base_url(self, servers: Iterable[Any]) -> str:
        """Return the base URL without a trailing slash."""
        if self._override is not None:
            return self._override
        urls = [_fill_variables(as_mapping(server)) for server in servers] or ["/"]
        absolute = [url for url in urls if url.startswith(("https://", "http://"))]
        if not absolute:
            path = urls[0].strip("/")
            is_printable = path and re.fullmatch(r"[\w./~-]{0,79}", path)
            example = f"https://api.example.com/{path}" if is_printable else "https://api.example.com"
            reason = f"the document does not declare the host of the API (only {quote(urls[0], 100)})"
            raise invalid(f'{reason}; set server="{example}"', needs="server", example=example, reason=reason)
        return next(filter(None, map(_validate_or_none, absolute)), None) or _validate(absolute[0])


def find_servers(*locations: JsonMapping) -> list[Any]:
    """Return the servers of the operation, else of its path, else of the document."""
    return next((as_list(location["servers"]) for location in locations if as_list(location.get("servers"))), [])


def _fill_variables(server: JsonMapping) -> str:
    variables = as_mapping(server.get("variables"))

    def get_default(match: re.Match[str]) -> str:
        variable = as_mapping(variables.get(match[1]))
        choices = as_list(variable.get("enum"))
        value = variable.get("default", choices[0] if choices else None)
        return str(value) if isinstance(value, str | int) else match[0]

    url = VARIABLE.sub(get_default, as_text(server.get("url")).strip())
    return f"https:{url}" if url.startswith("//") else url


def _validate_or_none(url: str) -> str | None:
    try:
        return _validate(url)
    except BundleError:
        return None


def _validate(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in {"http", "https"} and _AUTHORITY.fullmatch(parts.netloc) and parts.port != 0
    except ValueError:  # a port over 65535, or half of a bracket
        is_valid = False
    if not is_valid:
        raise invalid(
            f"invalid base URL {quote(url, 200)} (expected a URL like https://api.example.com/v1)", needs="server"
        )
    if "{" in parts.path:
        raise invalid(
            f"the base URL {quote(url, 200)} has a variable without default; set the complete URL", needs="server"
        )
    return f"{parts.scheme}://{parts.netloc.lower()}{encode_path(parts.path).rstrip('/')}"
