"""What a server offers, as it said when it was last asked: kept on disk, so that nobody waits for it to start.

A server may say anything. What a model is shown of it is cleaned, and a schema that is none is not relied upon.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from ot import atomic
from ot.errors import ArgumentError
from ot.schema import Schema

VERSION = 2
WRAPPED = "x-fastmcp-wrap-result"  # a value that is no object travels as {"result": value}


@dataclass(frozen=True, slots=True)
class Definition:
    """A tool, in the words of its server."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None = None
    is_sound: bool = True  # whether the schema of its arguments is one

    @classmethod
    def of(cls, tool: Any) -> Self:
        return cls(tool.name, tool.description or tool.title or "", tool.input_schema, tool.output_schema)

    @property
    def is_wrapped(self) -> bool:
        """FastMCP marks it; the SDK only names the schema after the function."""
        schema = self.output_schema or {}
        is_only = schema.get("properties", {}).keys() == {"result"}
        return bool(schema.get(WRAPPED)) or (is_only and schema.get("title") == f"{self.name}Output")


class TheirSchema(Schema):
    """The server fills its defaults in itself: those that are written down need not even fit."""

    @cached_property
    def defaults(self) -> Mapping[str, Any]:
        return {}


def sound(definition: Definition) -> Definition:
    """The definition, with a mark where its schema is none, and without a promise that cannot be checked."""
    output = definition.output_schema
    keeps = output if output is not None and _is_schema(output) else None
    return replace(definition, output_schema=keeps, is_sound=_is_schema(definition.input_schema))


def _is_schema(schema: Mapping[str, Any]) -> bool:
    try:
        Schema.from_json(schema).problem({})
    except (ArgumentError, RecursionError):
        return False
    return True


def digest(definitions: Iterable[Definition]) -> str:
    return sha256(json.dumps([asdict(each) for each in definitions], sort_keys=True).encode()).hexdigest()


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
            known = tuple(Definition(**each) for each in data["tools"])
            return known if digest(known) == data["hash"] else None
        except (OSError, ValueError, TypeError, KeyError, RecursionError):  # it is only a cache
            return None

    def write(self, key: str, definitions: Iterable[Definition]) -> None:
        known = list(definitions)
        data = {"version": VERSION, "hash": digest(known), "tools": [asdict(each) for each in known]}
        atomic.write(self._file(key), json.dumps(data))

    def _file(self, key: str) -> Path:
        return self._folder / f"tools-{key}.json"
