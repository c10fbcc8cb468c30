"""The searchable text of stored tools, split into words in the same way as for `ot.search`.

The fields are in the order in which matches count: slug, display name, tags, description, names of
the bundle.
"""

from collections.abc import Mapping

from onetool.sources.bundles.records import ToolFile
from onetool.sources.search import SearchDocument
from onetool.sources.search.words import HIDDEN, fold, squeeze, words

MAX_INDEXED_LENGTH = 4_000  # of a description


def list_words(tool: ToolFile, bundle: tuple[str, str]) -> list[list[str]]:
    """Return the words of each field. `bundle` are the names of its bundle.

    Names of several words are included without separators too, for matches inside words.
    """
    names = [words(name) for name in (tool.slug, tool.display_name)]
    for name_words, name in zip(names, (tool.slug, tool.display_name), strict=True):
        name_words.append(f"{HIDDEN}{squeeze(name)}")
    others = (" ".join(tool.tags), tool.description[:MAX_INDEXED_LENGTH], " ".join(bundle))
    return [*names, *map(words, others)]


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
    arguments = (
        f"{name} {part.get('description', '')}" if isinstance(part, Mapping) else name
        for name, part in parts
    )
    return SearchDocument("tool", f"{bundle_slug}.{tool.slug}", about, " ".join(arguments))


def has_valid_structure(schema: object) -> bool:
    """Return whether a schema has the structure that signatures and searches rely on.

    It may still be invalid.
    """
    if not isinstance(schema, Mapping):
        return False
    parts = schema.get("properties", {})
    required = schema.get("required", [])
    return (
        isinstance(parts, Mapping)
        and isinstance(required, list)
        and all(map(_is_valid_property, parts.values()))
    )


def _is_valid_property(part: object) -> bool:
    if isinstance(part, bool):
        return True
    kinds = {"type": str | list, "enum": list, "description": str}
    return isinstance(part, Mapping) and all(
        isinstance(part[key], kind) for key, kind in kinds.items() if key in part
    )
