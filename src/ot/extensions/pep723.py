"""The header of a script (PEP 723): a block of comments that is TOML. A broken one counts as none."""

import re
import tomllib
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

BLOCK = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
SCRIPT = "script"


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
        sources = self.data.get("tool", {}).get("uv", {}).get("sources", {})
        return "path" in str(sources)


def header_of(source: str) -> Header | None:
    """The header, if there is exactly one and it is right."""
    found = blocks(source)
    if len(found) != 1:
        return None
    try:
        tomllib.loads(found[0])
    except tomllib.TOMLDecodeError:
        return None
    return Header(found[0])


def mistake_in(source: str) -> str | None:
    """What is wrong with what looks like a header; None where nothing is."""
    found = blocks(source)
    if len(found) > 1:
        return "it has more than one header"
    try:
        tomllib.loads(found[0] if found else "")
    except tomllib.TOMLDecodeError as error:
        return f"its header is no TOML: {error}"
    if not found and re.search(rf"(?m)^# /// {SCRIPT}\s*$", source):
        return "its header does not end with `# ///`"
    return None


def blocks(source: str) -> list[str]:
    """The TOML of each header, without the marks of comments."""
    text = source.replace("\r\n", "\n")
    return [
        "".join(line[2:] if line.startswith("# ") else line[1:] for line in match["content"].splitlines(keepends=True))
        for match in BLOCK.finditer(text)
        if match["type"] == SCRIPT
    ]
