"""The base URL of an API: the first usable server of the document, with the defaults of its variables.

A relative URL cannot be resolved, because only the user knows where the document came from.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from onetool.bundles.openapi.document import as_list, as_mapping, as_text
from onetool.bundles.rules import invalid
from onetool.errors import BundleError

_VARIABLE = re.compile(r"\{([^{}]*)\}")
_AUTHORITY = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")
_PATH_SAFE = "/:@!$&'()*+,;=~"


class ServerUrls:
    """Finds the base URL. `override` is a base URL from the user, which replaces that of the document."""

    def __init__(self, override: str | None) -> None:
        self._override = (
            None if override is None else _validate(override if "://" in override else f"https://{override}")
        )

    def base(self, servers: Iterable[Any]) -> str:
        """Return the base URL without a trailing slash."""
        if self._override is not None:
            return self._override
        urls = [_fill_variables(as_mapping(server)) for server in servers] or ["/"]
        absolute = [url for url in urls if url.startswith(("https://", "http://"))]
        if not absolute:
            path = urls[0].strip("/")
            can_be_shown = path and re.fullmatch(r"[\w./~-]{0,79}", path)
            example = f"https://api.example.com/{path}" if can_be_shown else "https://api.example.com"
            reason = f"the document does not declare the host of the API (only {urls[0][:100]!r})"
            raise invalid(f'{reason}; set server="{example}"', needs="server", example=example, reason=reason)
        return next(filter(None, map(_validate_or_none, absolute)), None) or _validate(absolute[0])


def find_servers(*places: Mapping[str, Any]) -> list[Any]:
    """Return the servers of the operation, else of its path, else of the document."""
    return next((as_list(place["servers"]) for place in places if as_list(place.get("servers"))), [])


def _fill_variables(server: Mapping[str, Any]) -> str:
    variables = as_mapping(server.get("variables"))

    def default(found: re.Match[str]) -> str:
        variable = as_mapping(variables.get(found[1]))
        choices = as_list(variable.get("enum"))
        value = variable.get("default", choices[0] if choices else None)
        return str(value) if isinstance(value, str | int) else found[0]

    url = _VARIABLE.sub(default, as_text(server.get("url")).strip())
    return f"https:{url}" if url.startswith("//") else url


def _validate_or_none(url: str) -> str | None:
    try:
        return _validate(url)
    except BundleError:
        return None


def _validate(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and _AUTHORITY.fullmatch(parts.netloc) and parts.port != 0
    except ValueError:  # a port over 65535, or half of a bracket
        usable = False
    if not usable:
        raise invalid(
            f"invalid base URL {url[:200]!r} (expected a URL like https://api.example.com/v1)", needs="server"
        )
    if "{" in parts.path:
        raise invalid(
            f"the base URL {url[:200]!r} has a variable without default; set the complete URL", needs="server"
        )
    path = quote(re.sub(r"%(?![0-9A-Fa-f]{2})", "%25", parts.path), safe=f"{_PATH_SAFE}%")
    return f"{parts.scheme}://{parts.netloc.lower()}{path.rstrip('/')}"
