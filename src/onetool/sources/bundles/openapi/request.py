"""Builder of one request: its templates, and the arguments that fill them.

Each argument has a unique Python name, wherever its value is sent. Defaults of a document describe
what its server assumes; they are documented but not sent, because a change of one field must not
set all others. A default is used only for a required value.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from onetool.core.foreign_schema import ForeignSchema
from onetool.errors import ArgumentError
from onetool.sources.bundles.openapi.document import MAX_ARGUMENT_LENGTH, shorten
from onetool.sources.bundles.openapi.names import UniqueNames, to_argument_name
from onetool.sources.bundles.openapi.schemas import SchemaTranslator
from onetool.sources.bundles.rules import invalid
from onetool_child.json_types import JsonObject

MAX_ARGUMENTS = 1_000
_PATH_SAFE = "/:@!&'()*+,;=~%"  # without a dollar sign, which would escape a following placeholder
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ARGUMENT = re.compile(r"\$\{(?:\w+:)?(\w+)\}")
VARIABLE = re.compile(r"\{([^{}]*)\}")


@dataclass(slots=True)
class RequestBuilder:
    """The templates and arguments of one request.

    `omissions` are the reasons for parts that are left out.
    """

    method: str
    schemas: SchemaTranslator
    url: str = ""
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    cookies: list[str] = field(default_factory=list)
    body: Any = None
    auth: JsonObject | None = None
    response: JsonObject = field(default_factory=dict)
    arguments: dict[str, JsonObject] = field(default_factory=dict)
    names: UniqueNames = field(default_factory=lambda: UniqueNames("_"))
    required: list[str] = field(default_factory=list)
    rules: JsonObject = field(default_factory=dict)  # `anyOf` and `oneOf` over several arguments
    omissions: list[str] = field(default_factory=list)

    def add_argument(
        self, name: str, location: str, schema: JsonObject, *, required: bool, description: Any = ""
    ) -> str:
        """Add an argument and return its placeholder."""
        if len(self.arguments) + len(self.omissions) >= MAX_ARGUMENTS:
            raise invalid(f"it has more than {MAX_ARGUMENTS:,} arguments")
        argument_name = to_argument_name(name, location, self.names)
        definition = {key: value for key, value in schema.items() if key != "default"}
        choices = schema.get("enum", [])
        default = schema.get("default", choices[0] if required and len(choices) == 1 else None)
        text = shorten(description, MAX_ARGUMENT_LENGTH) or schema.get("description", "")
        if required:
            self.required.append(argument_name)
            definition = definition if default is None else {**definition, "default": default}
        elif default is not None:
            text = f"{text} Default: {json.dumps(default, ensure_ascii=False)}.".strip()
        self.arguments[argument_name] = {**definition, "description": text} if text else definition
        return f"${{{argument_name}}}"

    def omit(self, reason: str) -> None:
        self.omissions.append(reason)
        if len(self.omissions) > MAX_ARGUMENTS:
            raise invalid(f"it has more than {MAX_ARGUMENTS:,} arguments")

    def remove(self, location: str, name: str) -> None:
        """Remove the entry with this name and its argument."""
        entries = self.query if location == "query" else self.headers
        for entry in [entry for entry in entries if entry.lower() == name.lower()]:
            match = _ARGUMENT.fullmatch(entries.pop(entry))
            if match:
                self.arguments.pop(match[1], None)
                self.required = [other for other in self.required if other != match[1]]

    def build_schema(self) -> JsonObject:
        """Return `argSchema`."""
        definitions = self.schemas.collect_definitions(self.arguments.values())
        arguments = {
            name: _drop_invalid_default(part, definitions) for name, part in self.arguments.items()
        }
        required = [name for name in self.required if "default" not in arguments[name]]
        schema: JsonObject = {
            "type": "object",
            "properties": arguments,
            "additionalProperties": False,
            **self.rules,
        }
        if required:
            schema["required"] = required
        if definitions:
            schema["$defs"] = definitions
        return schema

    def build_implementation(self) -> JsonObject:
        """Return `httpImpl`."""
        cookies = [self.headers["Cookie"]] if "Cookie" in self.headers else []
        headers = (
            {**self.headers, "Cookie": "; ".join([*cookies, *self.cookies])}
            if self.cookies
            else self.headers
        )
        impl = {
            "method": self.method,
            "urlTemplate": self.url,
            "query": self.query,
            "headers": headers,
        }
        optional = {"body": self.body, "auth": self.auth, "response": self.response or None}
        return {**impl, **{key: value for key, value in optional.items() if value is not None}}


def build_url_template(base: str, path: str, placeholders: dict[str, str]) -> str:
    """Return the URL with placeholders for the variables of the path, and everything else
    percent-encoded.
    """
    pieces = VARIABLE.split(path)
    filled = (
        placeholders[piece] if index % 2 else encode_path(piece)
        for index, piece in enumerate(pieces)
    )
    return f"{base}/{''.join(filled).removeprefix('/')}"


def encode_path(text: str) -> str:
    return quote(_BAD_ESCAPE.sub("%25", text), safe=_PATH_SAFE)


def escape_literal(text: str) -> str:
    """Escape a string for a template, so that it contains no placeholder."""
    return re.sub(r"(?<!\$)(\$++)(?=\{)", r"\1\1", text)


def _drop_invalid_default(schema: JsonObject, definitions: JsonObject) -> JsonObject:
    if "default" not in schema:
        return schema
    foreign = ForeignSchema.from_json({**schema, "$defs": definitions})
    try:
        is_valid = (
            not foreign.is_costly(schema["default"]) and foreign.problem(schema["default"]) is None
        )
    except (ArgumentError, ValueError):
        is_valid = False
    return schema if is_valid else {key: value for key, value in schema.items() if key != "default"}
