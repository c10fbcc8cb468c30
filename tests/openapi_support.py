"""What the tests of OpenAPI documents stand on: the documents, arguments that fit a schema, and prism as the judge.

Documents and prism come from npm, once for all runs. A request is made as a call makes it, and sent to a mock that
knows nothing but the document.
"""

import http.client
import json
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema_rs
from tests.conftest import find_program
from tests.proxy_support import CACHE, _once
from tests.support import eventually

from onetool.backends.http_tool.impl import HttpImpl
from onetool.backends.http_tool.placeholders import Values
from onetool.bundles.imported import BundleImport
from onetool.bundles.openapi import to_bundle
from onetool.net.exchange import Request
from onetool.schema import Schema

NPM = {
    "@octokit/openapi": "23.0.2",
    "@readme/oas-examples": "8.2.2",
    "@stoplight/prism-cli": "5.14.2",
}
TEXTS = {
    "date-time": "2026-11-15T12:00:00Z",
    "date": "2026-11-15",
    "time": "12:00:00Z",
    "uri": "https://example.com/a",
    "email": "someone@example.com",
    "uuid": "0192f0c1-7a10-7c3e-9d2b-3f5a6b7c8d9e",
    "ipv4": "192.0.2.1",
    "hostname": "example.com",
}
MORE_TEXTS: tuple[str, ...] = (
    "text",
    "a" * 32,
    "a" * 40,
    "1",
    "0" * 40,
    "2026-11-15",
    "A1",
    "a.b",
    "a/b",
    "+1",
    "1.2.3",
)
MORE_TEXTS = (*MORE_TEXTS, f"sha256:{'a' * 64}", "ssh-rsa AAAA")
DEEPEST = 12
VIOLATION = re.compile(r'\{"location":\["request"[^}]*"severity":"Error"[^}]*\}')
Verdict = tuple[int, str]


# --- documents -----------------------------------------------------------------------------------------------------


def packages() -> Path:
    """The folder with the packages of npm."""
    folder = CACHE / "openapi"
    wanted = [f"{name}@{version}" for name, version in NPM.items()]
    _once(folder, [find_program("npm"), "install", "--no-audit", "--no-fund", "--prefix", str(folder), *wanted], wanted)
    return folder / "node_modules"


def github() -> Path:
    return packages() / "@octokit" / "openapi" / "generated" / "api.github.com.json"


def examples() -> list[Path]:
    folders = [packages() / "@readme" / "oas-examples" / version for version in ("2.0", "3.0", "3.1")]
    return sorted(path for folder in folders for path in folder.rglob("*.*") if path.suffix in {".json", ".yaml"})


def document_of(
    operation: Mapping[str, Any], path: str = "/things", method: str = "get", **more: Any
) -> dict[str, Any]:
    """The smallest document with this one operation."""
    base = {"openapi": "3.0.3", "info": {"title": "Things", "version": "1.0"}}
    own = {"servers": [{"url": "https://api.example.com/v1"}], "paths": {path: {method: dict(operation)}}}
    return {**base, **own, **more}


def swagger_of(operation: Mapping[str, Any], path: str = "/things", method: str = "get", **more: Any) -> dict[str, Any]:
    base = {"swagger": "2.0", "info": {"title": "Things", "version": "1.0"}, "host": "api.example.com"}
    return {**base, "basePath": "/v1", "paths": {path: {method: dict(operation)}}, **more}


def imported(document: Mapping[str, Any], **how: Any) -> BundleImport:
    return to_bundle(json.dumps(document), **how)


def tool_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """The one tool of a document."""
    [(_, _, tool)] = imported(document).tools
    return tool


# --- arguments that fit --------------------------------------------------------------------------------------------


class Sampler:
    """Values for a schema: its examples, its choices, else something of the right kind."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._definitions = schema.get("$defs", {})
        self._schema = schema

    def arguments(self, *, all_of_them: bool) -> dict[str, Any]:
        required = list(self._schema.get("required", ()))
        for rule in ("anyOf", "oneOf"):
            required += self._schema.get(rule, [{}])[0].get("required", ())
        names = self._schema["properties"] if all_of_them else required
        made = {name: self.value(self._schema["properties"][name]) for name in names}
        if self._fits(made, self._schema):
            return made
        return {name: made[name] if name in made else self.value(self._schema["properties"][name]) for name in required}

    def value(self, schema: Any, depth: int = 0) -> Any:
        if not isinstance(schema, dict) or depth > DEEPEST:  # a value that must hold itself has no end
            return "text"
        if "$ref" in schema:
            return self.value(self._definitions[schema["$ref"].removeprefix("#/$defs/")], depth)
        known = [
            *schema.get("examples", ()),
            *schema.get("enum", ()),
            *([schema["default"]] if "default" in schema else []),
        ]
        fitting = next((value for value in known if self._fits(value, schema)), None)
        return fitting if fitting is not None else self._made(schema, depth)

    def _made(self, schema: Mapping[str, Any], depth: int) -> Any:
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self._alternative(schema, key, depth)
        if "allOf" in schema:
            parts = [self.value(part, depth) for part in schema["allOf"]]
            own = {key: value for key, value in schema.items() if key != "allOf"}
            objects = [part for part in [*parts, self._made(own, depth)] if isinstance(part, dict)]
            return {key: value for part in objects for key, value in part.items()} if objects else parts[0]
        return self._of_kind(_kind(schema), schema, depth)

    def _alternative(self, schema: Mapping[str, Any], key: str, depth: int) -> Any:
        own = {name: value for name, value in schema.items() if name != key}
        for branch in sorted(schema[key], key=lambda branch: _kind(branch) != "string"):  # the same text fits no other
            together = self.value({**own, **branch}, depth) if "$ref" not in branch else self.value(branch, depth)
            if isinstance(together, dict) and "required" in branch and "required" in own:
                together = {**self.value(own, depth), **together}
            if self._fits(together, schema):
                return together
        return self.value(schema[key][0], depth)

    def _of_kind(self, kind: str, schema: Mapping[str, Any], depth: int) -> Any:
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._list(schema, depth)
            case "string":
                return self._text(schema)
            case "integer" | "number":
                return self._number(schema)
        return {"boolean": True, "null": None}.get(kind, "text")

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties", {})
        names = [name for name in properties if depth < 3 or name in schema.get("required", ())]
        names += [name for name in schema.get("required", ()) if name not in names]
        made = {name: self.value(properties.get(name, {}), depth + 1) for name in names}
        more = schema.get("additionalProperties")
        return made or ({"key": self.value(more, depth + 1)} if isinstance(more, dict) else {})

    def _list(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        item = self.value(schema.get("items", {}), depth + 1)
        return [item] * max(1, schema.get("minItems", 1)) if depth < 5 or schema.get("minItems") else []

    def _text(self, schema: Mapping[str, Any]) -> str:
        long: str = "a" * schema.get("minLength", 1)
        texts: list[str] = [TEXTS.get(schema.get("format", ""), long), long, *MORE_TEXTS]
        return next((text for text in texts if self._fits(text, schema)), long)

    @staticmethod
    def _number(schema: Mapping[str, Any]) -> int | float:
        lowest = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
        number: int | float = min(max(lowest, 1), schema.get("maximum", max(lowest, 1)))
        return number

    def _fits(self, value: Any, schema: Mapping[str, Any]) -> bool:
        validator = jsonschema_rs.validator_for({**schema, "$defs": self._definitions}, validate_formats=True)
        return bool(validator.is_valid(value))


def _kind(schema: Mapping[str, Any]) -> str:
    told = schema.get("type", "object" if "properties" in schema or "required" in schema else "")
    kinds = told if isinstance(told, list) else [told]
    return str(next((kind for kind in kinds if kind != "null"), "null"))


# --- requests ------------------------------------------------------------------------------------------------------


def request_of(tool: Mapping[str, Any], args: Mapping[str, Any]) -> Request:
    """The request that a call with these arguments makes, defaults filled in, every secret being the same."""
    schema = Schema.from_json(tool["argSchema"])
    values = Values({**schema.defaults, **schema.check(dict(args))}, schema.required, lambda _: "user:secret")
    return HttpImpl.model_validate(tool["httpImpl"]).request.filled(values)


@dataclass(frozen=True)
class Prism:
    """A mock that says what does not fit its document: in a header, or in an answer of its own."""

    port: int

    def verdict(self, request: Request, base: str = "") -> Verdict:
        """The status, and what is wrong with the request; nothing where prism found nothing."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        parts = urlsplit(request.url)
        target = parts.path.removeprefix(base) + (f"?{parts.query}" if parts.query else "")
        connection.request(request.method, target or "/", request.content, dict(request.headers))
        answer = connection.getresponse()
        found = VIOLATION.findall(answer.getheader("sl-violations") or "")  # cut short where there are many
        text = answer.read().decode(errors="replace")
        connection.close()
        own_error = answer.status >= 400 and "stoplight.io/prism/errors" in text
        return answer.status, f"{found} {text}" if own_error or found else ""


@contextmanager
def prism(document: Path) -> Iterator[Prism]:
    port = free_port()
    script = packages() / "@stoplight" / "prism-cli" / "dist" / "index.js"
    command = [find_program("node"), str(script), "mock", "--port", str(port), "--host", "127.0.0.1", str(document)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            assert eventually(lambda: process.poll() is not None or _answers(port), 90), "prism does not start"
            assert process.poll() is None, "prism ended at once"
            yield Prism(port)
        finally:
            process.kill()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def shown(tool: Mapping[str, Any], args: Mapping[str, Any], verdict: Verdict) -> str:
    implementation = tool["httpImpl"]
    return f"{implementation['method']} {implementation['urlTemplate']} {json.dumps(args)[:500]}\n  {verdict[1][:800]}"
