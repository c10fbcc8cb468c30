"""Builder of one request: its templates, and the arguments that fill them.

Each argument has a unique Python name, wherever its value goes. Defaults of a document describe what its server
assumes; they are documented but not sent, because a change of one field must not set all others. A default is used only
for a required value.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from onetool.bundles.openapi.keywords import JSON
from onetool.bundles.openapi.names import UniqueNames, argument
from onetool.bundles.openapi.schemas import SchemaTranslator
from onetool.bundles.openapi.texts import MAX_ARGUMENT_LENGTH, shorten
from onetool.bundles.rules import invalid

MAX_ARGUMENTS: Final = 1_000
_PATH_SAFE = "/:@!&'()*+,;=~%"  # without a dollar sign, which would escape a following placeholder
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ARGUMENT = re.compile(r"\$\{(?:\w+:)?(\w+)\}")
_VARIABLE = re.compile(r"\{([^{}]*)\}")


@dataclass(slots=True)
class RequestBuilder:
    method: str
    url: str = ""
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    cookies: list[str] = field(default_factory=list)
    body: Any = None
    auth: JSON | None = None
    arguments: dict[str, JSON] = field(default_factory=dict)
    names: UniqueNames = field(default_factory=lambda: UniqueNames("_"))
    required: list[str] = field(default_factory=list)
    rules: JSON = field(default_factory=dict)  # rules over several arguments
    left_out: list[str] = field(default_factory=list)

    def argument(self, name: str, place: str, schema: JSON, *, required: bool, description: Any = "") -> str:
        """Add an argument and return its placeholder."""
        if len(self.arguments) + len(self.left_out) >= MAX_ARGUMENTS:
            raise invalid(f"it has more than {MAX_ARGUMENTS:,} arguments")
        own = argument(name, place, self.names)
        declared = {key: value for key, value in schema.items() if key != "default"}
        choices = schema.get("enum", [])
        default = schema.get("default", choices[0] if required and len(choices) == 1 else None)
        text = shorten(description, MAX_ARGUMENT_LENGTH) or schema.get("description", "")
        if required:
            self.required.append(own)
            declared = declared if default is None else {**declared, "default": default}
        elif default is not None:
            text = f"{text} Default: {json.dumps(default, ensure_ascii=False)}.".strip()
        self.arguments[own] = {**declared, "description": text} if text else declared
        return f"${{{own}}}"

    def leave_out(self, what: str) -> None:
        self.left_out.append(what)
        if len(self.left_out) > MAX_ARGUMENTS:
            raise invalid(f"it has more than {MAX_ARGUMENTS:,} arguments")

    def drop(self, place: str, name: str) -> None:
        """Remove the entry with this name and its argument."""
        entries = self.query if place == "query" else self.headers
        for entry in [entry for entry in entries if entry.lower() == name.lower()]:
            found = _ARGUMENT.fullmatch(entries.pop(entry))
            if found:
                self.arguments.pop(found[1], None)
                self.required = [other for other in self.required if other != found[1]]

    def schema(self, schemas: SchemaTranslator) -> JSON:
        """Return `argSchema`."""
        definitions = schemas.definitions(self.arguments.values())
        arguments = {name: _with_sound_default(part, definitions) for name, part in self.arguments.items()}
        required = [name for name in self.required if "default" not in arguments[name]]
        made: JSON = {"type": "object", "properties": arguments, "additionalProperties": False, **self.rules}
        return {
            **made,
            **({"required": required} if required else {}),
            **({"$defs": definitions} if definitions else {}),
        }

    def implementation(self) -> JSON:
        """Return `httpImpl`."""
        cookies = [f"{self.headers['Cookie']}"] if "Cookie" in self.headers else []
        headers = {**self.headers, "Cookie": "; ".join([*cookies, *self.cookies])} if self.cookies else self.headers
        made = {"method": self.method, "urlTemplate": self.url, "query": self.query, "headers": headers}
        optional = {"body": self.body, "auth": self.auth}
        return {**made, **{key: value for key, value in optional.items() if value is not None}}


def variables(path: str) -> list[str]:
    return list(dict.fromkeys(_VARIABLE.findall(path)))


def url_template(base: str, path: str, placeholders: dict[str, str]) -> str:
    """Return the URL with placeholders for the variables of the path, and everything else percent-encoded."""
    pieces = _VARIABLE.split(path)
    filled = (placeholders[piece] if index % 2 else encoded(piece) for index, piece in enumerate(pieces))
    return f"{base}/{''.join(filled).removeprefix('/')}"


def encoded(text: str) -> str:
    return quote(_BAD_ESCAPE.sub("%25", text), safe=_PATH_SAFE)


def literal(text: str) -> str:
    """Escape a text for a template, so that it contains no placeholder."""
    return re.sub(r"(\$+)(?=\{)", r"\1\1", text)


def _with_sound_default(schema: JSON, definitions: JSON) -> JSON:
    if "default" not in schema:
        return schema
    import jsonschema_rs

    try:
        sound = jsonschema_rs.validator_for({**schema, "$defs": definitions}).is_valid(schema["default"])
    except (ValueError, jsonschema_rs.ValidationError):
        sound = False
    return schema if sound else {key: value for key, value in schema.items() if key != "default"}
