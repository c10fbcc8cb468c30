"""What there is to find, as documents of the one search: tools, packs, snippets and aliases."""

from collections.abc import Iterator

from ot.config.model import Settings
from ot.registry import Registry
from ot.search import Document
from ot.tool import Tool


def documents(registry: Registry, settings: Settings) -> Iterator[Document]:
    instructions = settings.prompts.packs
    for tool in registry:
        if tool.enabled:
            arguments = _arguments(tool)
            yield Document("tool", tool.name, tool.description, arguments, instructions.get(tool.pack, ""))
    for pack in registry.packs():
        words = " ".join(registry.in_pack(pack))
        yield Document("pack", pack, words, "", instructions.get(pack, ""))
    for name, snippet in settings.snippets.items():
        parameters = " ".join(f"{key} {param.description}" for key, param in snippet.params.items())
        yield Document("snippet", name, snippet.description, parameters)
    for alias, target in settings.aliases.items():
        yield Document("alias", alias, target)


def _arguments(tool: Tool) -> str:
    return " ".join(f"{name} {part.get('description', '')}" for name, part in tool.input.properties.items())
