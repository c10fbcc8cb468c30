"""Resolution of `$ref` inside one document. Nothing is ever fetched."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from onetool.bundles.rules import invalid

MAX_SHOWN = 200
MAX_CHAIN = 20


class References:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def follow(self, node: Any) -> Any:
        """Return the node, or the target of its chain of references."""
        seen: set[str] = set()
        while (reference := reference_of(node)) is not None:
            if reference in seen:
                raise invalid(f"the reference {reference[:MAX_SHOWN]!r} is circular")
            if len(seen) == MAX_CHAIN:
                raise invalid(f"the reference {reference[:MAX_SHOWN]!r} is a chain of more than {MAX_CHAIN}")
            seen.add(reference)
            node = self.target(reference)
        return node

    def mapping(self, node: Any) -> Mapping[str, Any]:
        found = self.follow(node)
        return found if isinstance(found, dict) else {}

    def target(self, reference: str) -> Any:
        if not reference.startswith("#"):
            raise invalid(f"references to another document are not supported: {reference[:MAX_SHOWN]!r}")
        pointer = unquote(reference[1:])
        if pointer and not pointer.startswith("/"):
            raise invalid(f"the reference {reference[:MAX_SHOWN]!r} cannot be resolved")
        node: Any = self._root
        for part in pointer.split("/")[1:]:
            node = _child(node, part.replace("~1", "/").replace("~0", "~"), reference)
        return node


def reference_of(node: Any) -> str | None:
    reference = node.get("$ref") if isinstance(node, dict) else None
    return reference if isinstance(reference, str) else None


def _child(node: Any, key: str, reference: str) -> Any:
    if isinstance(node, dict) and key in node:
        return node[key]
    if isinstance(node, list) and key.isdecimal() and key.isascii() and len(key) < MAX_SHOWN and int(key) < len(node):
        return node[int(key)]
    raise invalid(f"the reference {reference[:MAX_SHOWN]!r} cannot be resolved")
