"""What of a tool is searched, as words: folded and taken apart by the one search of the product.

The fields stand in the order in which a match in them counts. The index keeps exactly these texts, so that what
is found and how it is ranked never disagree.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from onetool.bundles.records import ToolFile
from onetool.search import Document
from onetool.search.words import HIDDEN, fold, words

FIELDS: Final = ("slug", "name", "tags", "description", "bundle")
MOST_CHARACTERS: Final = 4_000  # of a description
MOST_FOR_PARTS: Final = 300  # of a description, in which parts of words are looked for


@dataclass(frozen=True, slots=True)
class Texts:
    slug: str
    name: str
    tags: str
    description: str
    bundle: str

    @classmethod
    def of(cls, tool: ToolFile, bundle: str) -> "Texts":
        """`bundle` is what the bundle of the tool is called."""
        fields = (tool.slug, tool.display_name, " ".join(tool.tags), tool.description[:MOST_CHARACTERS], bundle)
        return cls(*(" ".join(words(field)) for field in fields))

    def fields(self) -> tuple[str, str, str, str, str]:
        return self.slug, self.name, self.tags, self.description, self.bundle

    def for_parts(self) -> tuple[str, str, str, str, str]:
        """The same, for matches inside of words: names also with nothing between their words, which is no word."""
        slug, name = (f" {text} {HIDDEN}{text.replace(' ', '')}" for text in (self.slug, self.name))
        return slug, name, f" {self.tags} ", f" {self.description[:MOST_FOR_PARTS]} ", f" {self.bundle} "


def folded(text: str) -> str:
    return fold(text.strip())


def document_of(tool: ToolFile, bundle_slug: str) -> Document:
    """The tool as a document of the search over everything."""
    about = f"{tool.display_name}. {tool.description} {' '.join(tool.tags)}"
    parts = (
        tool.arg_schema["properties"].items() if is_sound(tool.arg_schema) and "properties" in tool.arg_schema else ()
    )
    arguments = (f"{name} {part.get('description', '')}" if isinstance(part, Mapping) else name for name, part in parts)
    return Document("tool", f"{bundle_slug}.{tool.slug}", about, " ".join(arguments))


def is_sound(schema: object) -> bool:
    """Whether a reader finds in a schema what it looks for; whether it is right shows when it is used."""
    if not isinstance(schema, Mapping):
        return False
    parts, required = schema.get("properties", {}), schema.get("required", [])
    return isinstance(parts, Mapping) and isinstance(required, list) and all(map(_is_sound_part, parts.values()))


def _is_sound_part(part: object) -> bool:
    if isinstance(part, bool):
        return True
    kinds = {"type": str | list, "enum": list, "description": str}
    return isinstance(part, Mapping) and all(isinstance(part[key], kind) for key, kind in kinds.items() if key in part)
