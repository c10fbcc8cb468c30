"""Secrets that the tools of a bundle may send, and where: the setting `bundle_secrets`, which only
an owner changes.

A stored tool can name any secret. OneTool sends the secret only if an owner allowed it for that
bundle and that origin.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from onetool.errors import NetworkError, ToolError
from onetool.net.hosts import parse_target
from onetool.settings.model import Settings
from onetool.util.problem import WARNING, Problem
from onetool_child.json_types import JsonMapping

SECTION = "bundle_secrets"
NOT_BOUND = "secret_not_bound"
# In the JSON of a tool: the parts on which its secrets and their origins depend.
RELEVANT = re.compile(r'\$\{secret:\w+|"urlTemplate":\s*"https?://[^/?#"\\]+', re.ASCII)
REFERENCE = "${secret:"
Bindings = Mapping[str, Sequence[str]]  # origins by secret


class SecretUse(NamedTuple):
    """A secret that tools of a bundle send to an origin, such as `https://api.example.com`."""

    bundle: str
    name: str
    origin: str

    @property
    def command(self) -> str:
        """The command that allows it."""
        return f"onetool secret allow {self.name} --bundle {self.bundle} --host {self.origin}"

    @property
    def problem(self) -> Problem:
        """The problem if it is not allowed."""
        message = (
            f"tools of bundle {self.bundle} may not send the secret {self.name} to {self.origin}"
        )
        return Problem(
            message,
            f"to allow it, an owner can run `{self.command}`",
            code=NOT_BOUND,
            level=WARNING,
        )

    def is_allowed(self, settings: Settings) -> bool:
        bindings: Bindings = settings.bundle_secrets.get(self.bundle, {})
        return normalize_origin(self.origin) in _list_origins(bindings, self.name)

    def require_allowed(self, settings: Settings) -> None:
        """Raise ToolError with the code `secret_not_bound` unless it is allowed."""
        if not self.is_allowed(settings):
            problem = self.problem
            fields = {"secret": self.name, "bundle": self.bundle, "origin": self.origin}
            raise ToolError(problem.message, hint=problem.hint, code=NOT_BOUND, **fields)


def normalize_origin(text: str) -> str:
    """Return the origin of a URL.

    A host alone stands for https. Raise NetworkError if it is invalid.
    """
    return parse_target(text if "://" in text else f"https://{text}").origin


def _list_origins(bindings: Bindings, name: str) -> list[str]:
    origins = []
    for text in bindings.get(name, ()):
        with suppress(NetworkError):
            origins.append(normalize_origin(text))
    return origins


def change_bindings(
    bindings: Bindings | None, use: SecretUse, *, is_allowed: bool
) -> dict[str, list[str]] | None:
    """Return the entry of a bundle with a use added or removed; None if nothing is left."""
    changed = {name: list(origins) for name, origins in (bindings or {}).items()}
    others = [text for text in changed.pop(use.name, []) if text != use.origin]
    origins = [*others, use.origin] if is_allowed else others
    return {**changed, **({use.name: origins} if origins else {})} or None


def find_secret_uses(tools: Iterable[tuple[str, str]]) -> list[SecretUse]:
    """Return the uses of secrets in tools, which are given as the slug of their bundle and their
    JSON.

    Only tools that differ in secrets or origins are parsed. Invalid definitions are left out: their
    calls fail.
    """
    relevant = {(bundle, *RELEVANT.findall(text)): (bundle, text) for bundle, text in tools}
    uses: set[SecretUse] = set()
    for bundle, text in relevant.values():
        uses.update(list_uses(bundle, json.loads(text).get("httpImpl")))
    return sorted(uses)


def list_uses(bundle: str, impl: JsonMapping | None) -> list[SecretUse]:
    """Return the uses of secrets in one definition, which may be invalid."""
    from onetool.sources.http.definition import list_requests

    uses: dict[SecretUse, None] = {}
    for part in list_requests(impl):
        origin = normalize_origin(part.request.url.origin)
        names = [placeholder.name for placeholder in part.placeholders if placeholder.is_secret]
        uses |= dict.fromkeys(SecretUse(bundle, name, origin) for name in names)
    return list(uses)
