"""Resolution of `$ref` inside one document. Nothing is ever fetched."""

from typing import Any
from urllib.parse import unquote

from onetool.bundles.rules import invalid
from onetool.errors import BundleError
from onetool.util.text import quote
from onetool_child.json_types import JsonMapping

MAX_SHOWN_CHARS = 200
MAX_CHAIN_LENGTH = 20


class References:
    def __init__(self, root: JsonMapping) -> None:
        self._root = root

    def follow(self, node: Any) -> Any:
        """Return the node, or the target of its chain of references."""
        seen: set[str] = set()
        while (reference := get_reference(node)) is not None:
            if reference in seen:
                raise invalid(f"the reference {quote(reference, MAX_SHOWN_CHARS)} is circular")
            if len(seen) == MAX_CHAIN_LENGTH:
                raise invalid(
                    f"the reference {quote(reference, MAX_SHOWN_CHARS)} is a chain of more than "
                    f"{MAX_CHAIN_LENGTH} references"
                )
            seen.add(reference)
            node = self.find_target(reference)
        return node

    def resolve_mapping(self, node: Any) -> JsonMapping:
        target = self.follow(node)
        return target if isinstance(target, dict) else {}

    def resolve_or_empty(self, node: Any) -> JsonMapping:
        try:
            return self.resolve_mapping(node)
        except BundleError:
            return {}

    def find_target(self, reference: str) -> Any:
        if not reference.startswith("#"):
            raise invalid(f"references to another document are not supported: {quote(reference, MAX_SHOWN_CHARS)}")
        pointer = unquote(reference[1:])
        if pointer and not pointer.startswith("/"):
            raise invalid(f"the reference {quote(reference, MAX_SHOWN_CHARS)} cannot be resolved")
        node: Any = self._root
        for part in pointer.split("/")[1:]:
            node = _get_child(node, part.replace("~1", "/").replace("~0", "~"), reference)
        return node


def get_reference(node: Any) -> str | None:
    reference = node.get("$ref") if isinstance(node, dict) else None
    return reference if isinstance(reference, str) else None


def _get_child(node: Any, key: str, reference: str) -> Any:
    if isinstance(node, dict) and key in node:
        return node[key]
    if (
        isinstance(node, list)
        and key.isdecimal()
        and key.isascii()
        and len(key) < MAX_SHOWN_CHARS
        and int(key) < len(node)
    ):
        return node[int(key)]
    raise invalid(f"the reference {quote(reference, MAX_SHOWN_CHARS)} cannot be resolved")
