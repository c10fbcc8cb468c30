"""The searchable text of stored tools, split into words in the same way as for `ot.search`.

The fields are in the order in which matches count. The index stores exactly these texts, so that search and ranking
never disagree.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from onetool.bundles.records import ToolFile
from onetool.search import SearchDocument
from onetool.search.words import HIDDEN, fold, words

FIELDS: Final = ("slug", "name", "tags", "description", "bundle")
MAX_INDEXED_LENGTH: Final = 4_000  # of a description
MAX_PARTIAL_MATCH_LENGTH: Final = 300  # of a description, that are searched for parts of words


@dataclass(frozen=True, slots=True)
class SearchText:
    slug: str
    name: str
    tags: str
    description: str
    bundle: str

    @classmethod
    def of(cls, tool: ToolFile, bundle: str) -> "SearchText":
        """Return the texts of a tool. `bundle` are the names of its bundle."""
        fields = (tool.slug, tool.display_name, " ".join(tool.tags), tool.description[:MAX_INDEXED_LENGTH], bundle)
        return cls(*(" ".join(words(field)) for field in fields))

    def fields(self) -> tuple[str, str, str, str, str]:
        return self.slug, self.name, self.tags, self.description, self.bundle

    def for_parts(self) -> tuple[str, str, str, str, str]:
        """Return the fields for matches inside words. Names are included a second time without separators."""
        slug, name = (f" {text} {HIDDEN}{text.replace(' ', '')}" for text in (self.slug, self.name))
        return slug, name, f" {self.tags} ", f" {self.description[:MAX_PARTIAL_MATCH_LENGTH]} ", f" {self.bundle} "


def fold_name(text: str) -> str:
    return fold(text.strip())


def to_document(tool: ToolFile, bundle_slug: str) -> SearchDocument:
    """Return the tool as a document for `ot.search`."""
    about = f"{tool.display_name}. {tool.description} {' '.join(tool.tags)}"
    parts = (
        tool.arg_schema["properties"].items()
        if has_valid_structure(tool.arg_schema) and "properties" in tool.arg_schema
        else ()
    )
    arguments = (f"{name} {part.get('description', '')}" if isinstance(part, Mapping) else name for name, part in parts)
    return SearchDocument("tool", f"{bundle_slug}.{tool.slug}", about, " ".join(arguments))


def has_valid_structure(schema: object) -> bool:
    """Return whether a schema has the structure that signatures and searches rely on. It may still be invalid."""
    if not isinstance(schema, Mapping):
        return False
    parts, required = schema.get("properties", {}), schema.get("required", [])
    return isinstance(parts, Mapping) and isinstance(required, list) and all(map(_is_valid_property, parts.values()))


def _is_valid_property(part: object) -> bool:
    if isinstance(part, bool):
        return True
    kinds = {"type": str | list, "enum": list, "description": str}
    return isinstance(part, Mapping) and all(isinstance(part[key], kind) for key, kind in kinds.items() if key in part)
