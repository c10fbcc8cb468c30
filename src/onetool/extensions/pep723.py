"""The header of a script (PEP 723): a block of comments that is TOML. A broken one counts as none."""

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

BLOCK = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
SCRIPT = "script"
OPENING = re.compile(r"(?m)^#[ \t]*///[ \t]*script[ \t]*$")  # also as people write it who do not know the rule
LOCAL_SOURCES = frozenset({"path", "workspace"})
PLACES = frozenset({"find-links", "index", "index-url", "extra-index-url"})
NO_HEADER = "its header is none: the first line is `# /// script`, the last `# ///`, and each between begins with `# `"


@dataclass(frozen=True)
class Header:
    text: str

    @cached_property
    def data(self) -> dict[str, Any]:
        return tomllib.loads(self.text)

    @property
    def as_script(self) -> str:
        """A script that has this header and nothing else."""
        lines = "".join(f"# {line}".rstrip() + "\n" for line in self.text.splitlines())
        return f"# /// {SCRIPT}\n{lines}# ///\n"

    @property
    def digest(self) -> str:
        return sha256(self.text.encode()).hexdigest()[:32]

    @property
    def names_local_files(self) -> bool:
        """Whether it means other things in another folder."""
        tool = self.data.get("tool")
        settings = tool.get("uv") if isinstance(tool, dict) else None
        return isinstance(settings, dict) and any(map(_is_local, settings.items()))


def _is_local(setting: tuple[str, Any]) -> bool:
    """Sources name paths by their keys, indexes by what is no address; anything else of uv's is the same anywhere."""
    name, value = setting
    if name == "sources":
        return bool(LOCAL_SOURCES & set(_keys(value)))
    return name in PLACES and any("://" not in text for text in _texts(value))


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    for inner in _inside(value):
        yield from _keys(inner)


def _texts(value: Any) -> Iterator[str]:
    """Where things are; an index has a name and other words beside its address."""
    if isinstance(value, str):
        yield value
    for inner in [value.get("url", "")] if isinstance(value, dict) else _inside(value):
        yield from _texts(inner)


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def header_of(source: str) -> Header | None:
    """The header, if there is exactly one and it is right."""
    found = blocks(source)
    return Header(found[0]) if found and mistake_in(source) is None else None


def mistake_in(source: str) -> str | None:
    """What is wrong with what looks like a header; None where nothing is."""
    found = blocks(source)
    if len(found) > 1:
        return "it has more than one header"
    try:
        tomllib.loads(found[0] if found else "")
    except tomllib.TOMLDecodeError as error:
        return f"its header is no TOML: {error}"
    return NO_HEADER if not found and OPENING.search(source) else None


def blocks(source: str) -> list[str]:
    """The TOML of each header, without the marks of comments."""
    text = source.replace("\r\n", "\n")
    return [
        "".join(line[2:] if line.startswith("# ") else line[1:] for line in match["content"].splitlines(keepends=True))
        for match in BLOCK.finditer(text)
        if match["type"] == SCRIPT
    ]
