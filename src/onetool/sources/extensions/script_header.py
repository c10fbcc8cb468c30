"""Script headers (PEP 723) of extension files. An invalid header is ignored and reported."""

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

from onetool_child.json_types import JsonObject

BLOCK = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
SCRIPT = "script"
OPENING = re.compile(r"(?m)^#[ \t]*///[ \t]*script[ \t]*$")  # also with the wrong white space
LOCAL_SOURCES = frozenset({"path", "workspace"})
INDEX_SETTINGS = frozenset({"find-links", "index", "index-url", "extra-index-url"})
INVALID_HEADER = "invalid header: expected `# /// script`, lines that start with `# `, and `# ///`"


@dataclass(frozen=True)
class ScriptHeader:
    text: str

    @cached_property
    def data(self) -> JsonObject:
        return tomllib.loads(self.text)

    @property
    def as_script(self) -> str:
        """A script with this header only."""
        lines = "".join(f"# {line}".rstrip() + "\n" for line in self.text.splitlines())
        return f"# /// {SCRIPT}\n{lines}# ///\n"

    @property
    def digest(self) -> str:
        return sha256(self.text.encode()).hexdigest()[:32]

    @property
    def uses_local_files(self) -> bool:
        """Whether it refers to local files, so that it depends on the script's directory."""
        tool = self.data.get("tool")
        settings = tool.get("uv") if isinstance(tool, dict) else None
        return isinstance(settings, dict) and any(map(_is_local, settings.items()))


def _is_local(setting: tuple[str, Any]) -> bool:
    """Return whether a uv setting uses local files: path, workspace or index without a URL."""
    name, value = setting
    if name == "sources":
        return bool(LOCAL_SOURCES & set(_iter_keys(value)))
    return name in INDEX_SETTINGS and any("://" not in text for text in _iter_urls(value))


def _iter_keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    for inner in _iter_values(value):
        yield from _iter_keys(inner)


def _iter_urls(value: Any) -> Iterator[str]:
    """Yield index URLs and ignore their other fields."""
    if isinstance(value, str):
        yield value
    for inner in [value.get("url", "")] if isinstance(value, dict) else _iter_values(value):
        yield from _iter_urls(inner)


def _iter_values(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def parse_header(source: str) -> ScriptHeader | None:
    """Return the header if there is exactly one and it is valid."""
    blocks = extract_blocks(source)
    return ScriptHeader(blocks[0]) if blocks and find_problem(source) is None else None


def find_problem(source: str) -> str | None:
    """Return the problem with a file's header, or None."""
    blocks = extract_blocks(source)
    if len(blocks) > 1:
        return "invalid header: more than one header in the file"
    try:
        tomllib.loads(blocks[0] if blocks else "")
    except tomllib.TOMLDecodeError as error:
        return f"invalid header: not valid TOML: {error}"
    return INVALID_HEADER if not blocks and OPENING.search(source) else None


def extract_blocks(source: str) -> list[str]:
    """Return each header's TOML, without comment markers."""
    text = source.replace("\r\n", "\n")
    return [
        "".join(
            line[2:] if line.startswith("# ") else line[1:]
            for line in match["content"].splitlines(keepends=True)
        )
        for match in BLOCK.finditer(text)
        if match["type"] == SCRIPT
    ]
