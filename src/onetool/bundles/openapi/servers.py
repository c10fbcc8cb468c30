"""Where the API of a document is: the first address that can be used, with the defaults of its variables filled in.

An address that a document gives in relation to itself is known only to the person who imports it.
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
_IN_A_PATH = "/:@!$&'()*+,;=~"


class Servers:
    """`told` is the base URL that a person gave. It replaces that of the document, with its path."""

    def __init__(self, told: str | None) -> None:
        self._told = None if told is None else _checked(told if "://" in told else f"https://{told}")

    def base(self, servers: Iterable[Any]) -> str:
        """Without a slash at its end."""
        if self._told is not None:
            return self._told
        urls = [_filled(as_mapping(server)) for server in servers] or ["/"]
        absolute = [url for url in urls if url.startswith(("https://", "http://"))]
        if not absolute:
            path = urls[0].strip("/")
            can_be_shown = path and re.fullmatch(r"[\w./~-]{0,79}", path)
            example = f"https://api.example.com/{path}" if can_be_shown else "https://api.example.com"
            reason = f"the document does not say on which host the API is (only {urls[0][:100]!r})"
            raise invalid(f'{reason}; say it: server="{example}"', needs="server", example=example, reason=reason)
        return next(filter(None, map(_usable, absolute)), None) or _checked(absolute[0])


def servers_of(*places: Mapping[str, Any]) -> list[Any]:
    """Those of the operation, else of its path, else of the document."""
    return next((as_list(place["servers"]) for place in places if as_list(place.get("servers"))), [])


def _filled(server: Mapping[str, Any]) -> str:
    variables = as_mapping(server.get("variables"))

    def default(found: re.Match[str]) -> str:
        variable = as_mapping(variables.get(found[1]))
        choices = as_list(variable.get("enum"))
        value = variable.get("default", choices[0] if choices else None)
        return str(value) if isinstance(value, str | int) else found[0]

    url = _VARIABLE.sub(default, as_text(server.get("url")).strip())
    return f"https:{url}" if url.startswith("//") else url


def _usable(url: str) -> str | None:
    try:
        return _checked(url)
    except BundleError:
        return None


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and _AUTHORITY.fullmatch(parts.netloc) and parts.port != 0
    except ValueError:  # a port over 65535, or half of a bracket
        usable = False
    if not usable:
        raise invalid(
            f"{url[:200]!r} is no address of an API; it has the form https://api.example.com/v1", needs="server"
        )
    if "{" in parts.path:
        raise invalid(f"the address {url[:200]!r} has a variable without a default; give the whole one", needs="server")
    path = quote(re.sub(r"%(?![0-9A-Fa-f]{2})", "%25", parts.path), safe=f"{_IN_A_PATH}%")
    return f"{parts.scheme}://{parts.netloc.lower()}{path.rstrip('/')}"
