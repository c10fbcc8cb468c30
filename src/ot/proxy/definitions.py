"""What a server offers, as it said when it was last asked: kept on disk, so that nobody waits for it to start."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

VERSION = 1
WRAPPED = "x-fastmcp-wrap-result"  # a value that is no object travels as {"result": value}


@dataclass(frozen=True, slots=True)
class Definition:
    """A tool, in the words of its server."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None = None
    read_only: bool = False

    @classmethod
    def of(cls, tool: Any) -> Self:
        hints = tool.annotations
        return cls(
            tool.name,
            tool.description or tool.title or "",
            tool.input_schema,
            tool.output_schema,
            bool(hints and hints.read_only_hint),
        )

    @property
    def digest(self) -> str:
        return sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    @property
    def is_wrapped(self) -> bool:
        return bool(self.output_schema and self.output_schema.get(WRAPPED))


def key_of(server: Any) -> str:
    """The same as long as the same server is meant; a hash, because there may be secrets in it."""
    facts = [server.command, server.args, dict(server.env), server.cwd, server.url, dict(server.headers)]
    return sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


class Lists:
    """One file for each server."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, key: str) -> tuple[Definition, ...] | None:
        try:
            data = json.loads(self._file(key).read_bytes())
            if data["version"] != VERSION:
                return None
            return tuple(Definition(**each) for each in data["tools"])
        except (OSError, ValueError, TypeError, KeyError, RecursionError):  # it is only a cache
            return None

    def write(self, key: str, definitions: Iterable[Definition]) -> None:
        data = {"version": VERSION, "tools": [asdict(each) for each in definitions]}
        file = self._file(key)
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = file.with_name(f"{file.name}.{os.urandom(4).hex()}.tmp")
        temporary.write_text(json.dumps(data), encoding="utf-8")
        temporary.replace(file)

    def _file(self, key: str) -> Path:
        return self._folder / f"tools-{key}.json"
