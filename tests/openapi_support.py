"""Support for tests of OpenAPI documents: documents, arguments that fit a schema, and Prism as a
validator.

Documents and Prism are installed from npm once for all runs. A request is built as in a call and
sent to a mock server of the document.
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
from tests.proxy_support import CACHE, install_once
from tests.support import eventually

from onetool.core.schema import Schema
from onetool.net.client import Request
from onetool.sources.bundles.imported import BundleImport
from onetool.sources.bundles.openapi import to_bundle
from onetool.sources.http.body import FileUploads
from onetool.sources.http.definition import HttpImpl
from onetool.sources.http.placeholders import Placeholder, UploadedFile, Values
from onetool.util.context import ToolContext

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
MAX_DEPTH = 12
VIOLATION = re.compile(r'\{"location":\["request"[^}]*"severity":"Error"[^}]*\}')
Validation = tuple[int, str]


# --- documents ------------------------------------------------------------------------------------


def packages() -> Path:
    """Return the directory with the npm packages."""
    directory = CACHE / "openapi"
    requirements = [f"{name}@{version}" for name, version in NPM.items()]
    install_once(
        directory,
        [
            find_program("npm"),
            "install",
            "--no-audit",
            "--no-fund",
            "--prefix",
            str(directory),
            *requirements,
        ],
        requirements,
    )
    return directory / "node_modules"


def github() -> Path:
    return packages() / "@octokit" / "openapi" / "generated" / "api.github.com.json"


def examples() -> list[Path]:
    directories = [
        packages() / "@readme" / "oas-examples" / version for version in ("2.0", "3.0", "3.1")
    ]
    return sorted(
        path
        for directory in directories
        for path in directory.rglob("*.*")
        if path.suffix in {".json", ".yaml"}
    )


def build_document(
    operation: Mapping[str, Any], path: str = "/things", method: str = "get", **more: Any
) -> dict[str, Any]:
    """Return a minimal document with this operation."""
    base = {"openapi": "3.0.3", "info": {"title": "Things", "version": "1.0"}}
    rest = {
        "servers": [{"url": "https://api.example.com/v1"}],
        "paths": {path: {method: dict(operation)}},
    }
    return {**base, **rest, **more}


def build_swagger(
    operation: Mapping[str, Any], path: str = "/things", method: str = "get", **more: Any
) -> dict[str, Any]:
    base = {
        "swagger": "2.0",
        "info": {"title": "Things", "version": "1.0"},
        "host": "api.example.com",
    }
    return {**base, "basePath": "/v1", "paths": {path: {method: dict(operation)}}, **more}


def import_document(document: Mapping[str, Any], **options: Any) -> BundleImport:
    return to_bundle(json.dumps(document), **options)


def import_tool(document: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Return the only tool of a document."""
    [(_, _, tool)] = import_document(document, **options).tools
    return tool


# --- sample arguments -----------------------------------------------------------------------------


class Sampler:
    """Sample values for a schema: its examples and choices, or a value of its type."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._definitions = schema.get("$defs", {})
        self._schema = schema

    def arguments(self, *, include_optional: bool) -> dict[str, Any]:
        required = list(self._schema.get("required", ()))
        for rule in ("anyOf", "oneOf"):
            required += self._schema.get(rule, [{}])[0].get("required", ())
        names = self._schema["properties"] if include_optional else required
        values = {name: self.value(self._schema["properties"][name]) for name in names}
        if self._fits(values, self._schema):
            return values
        return {
            name: values[name] if name in values else self.value(self._schema["properties"][name])
            for name in required
        }

    def value(self, schema: Any, depth: int = 0) -> Any:
        if (
            not isinstance(schema, dict) or depth > MAX_DEPTH
        ):  # a schema that requires itself has no finite value
            return "text"
        if "$ref" in schema:
            return self.value(self._definitions[schema["$ref"].removeprefix("#/$defs/")], depth)
        candidates = [
            *schema.get("examples", ()),
            *schema.get("enum", ()),
            *([schema["default"]] if "default" in schema else []),
        ]
        fitting = next((value for value in candidates if self._fits(value, schema)), None)
        return fitting if fitting is not None else self._build(schema, depth)

    def _build(self, schema: Mapping[str, Any], depth: int) -> Any:
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self._alternative(schema, key, depth)
        if "allOf" in schema:
            parts = [self.value(part, depth) for part in schema["allOf"]]
            rest = {key: value for key, value in schema.items() if key != "allOf"}
            objects = [
                part for part in [*parts, self._build(rest, depth)] if isinstance(part, dict)
            ]
            return (
                {key: value for part in objects for key, value in part.items()}
                if objects
                else parts[0]
            )
        return self._build_type(_get_type(schema), schema, depth)

    def _alternative(self, schema: Mapping[str, Any], key: str, depth: int) -> Any:
        rest = {name: value for name, value in schema.items() if name != key}
        for branch in sorted(
            schema[key], key=lambda branch: _get_type(branch) != "string"
        ):  # the same text fits no other
            combined = (
                self.value({**rest, **branch}, depth)
                if "$ref" not in branch
                else self.value(branch, depth)
            )
            if isinstance(combined, dict) and "required" in branch and "required" in rest:
                combined = {**self.value(rest, depth), **combined}
            if self._fits(combined, schema):
                return combined
        return self.value(schema[key][0], depth)

    def _build_type(self, kind: str, schema: Mapping[str, Any], depth: int) -> Any:
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
        values = {name: self.value(properties.get(name, {}), depth + 1) for name in names}
        more = schema.get("additionalProperties")
        return values or ({"key": self.value(more, depth + 1)} if isinstance(more, dict) else {})

    def _list(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        item = self.value(schema.get("items", {}), depth + 1)
        return (
            [item] * max(1, schema.get("minItems", 1))
            if depth < 5 or schema.get("minItems")
            else []
        )

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
        validator = jsonschema_rs.validator_for(
            {**schema, "$defs": self._definitions}, validate_formats=True
        )
        return bool(validator.is_valid(value))


def _get_type(schema: Mapping[str, Any]) -> str:
    declared = schema.get(
        "type", "object" if "properties" in schema or "required" in schema else ""
    )
    kinds = declared if isinstance(declared, list) else [declared]
    return str(next((kind for kind in kinds if kind != "null"), "null"))


# --- requests -------------------------------------------------------------------------------------


def build_request(tool: Mapping[str, Any], args: Mapping[str, Any]) -> Request:
    """Return the request of a call with these arguments and defaults.

    All secrets have the same value.

    A file that is named by a path contains its path.
    """
    schema = Schema.from_json(tool["argSchema"])
    all_args = {**schema.defaults, **schema.check(dict(args))}
    values = Values(all_args, schema.required, lambda _: "user:secret", read_file=_read_sample)
    return HttpImpl.model_validate(tool["httpImpl"]).request.fill(values)


def _read_sample(value: Any, placeholder: Placeholder) -> UploadedFile:
    if isinstance(value, str):
        return UploadedFile(value.encode(), "sample.txt")
    return FileUploads(ToolContext(), None, None)(value, placeholder)


@dataclass(frozen=True)
class Prism:
    """A mock server that reports violations of its document in a header or in an error response."""

    port: int

    def validate(self, request: Request, base: str = "") -> Validation:
        """Return the status and the violations of the request; an empty string without violations."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        parts = urlsplit(request.url)
        target = parts.path.removeprefix(base) + (f"?{parts.query}" if parts.query else "")
        connection.request(request.method, target or "/", request.content, dict(request.headers))
        answer = connection.getresponse()
        found = VIOLATION.findall(
            answer.getheader("sl-violations") or ""
        )  # truncated if there are many
        text = answer.read().decode(errors="replace")
        connection.close()
        own_error = answer.status >= 400 and "stoplight.io/prism/errors" in text
        return answer.status, f"{found} {text}" if own_error or found else ""


@contextmanager
def run_prism(document: Path) -> Iterator[Prism]:
    port = free_port()
    script = packages() / "@stoplight" / "prism-cli" / "dist" / "index.js"
    command = [
        find_program("node"),
        str(script),
        "mock",
        "--port",
        str(port),
        "--host",
        "127.0.0.1",
        str(document),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            assert eventually(lambda: process.poll() is not None or _is_listening(port), 90), (
                "prism does not start"
            )
            assert process.poll() is None, "prism ended at once"
            yield Prism(port)
        finally:
            process.kill()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def format_violation(
    tool: Mapping[str, Any], args: Mapping[str, Any], validation: Validation
) -> str:
    implementation = tool["httpImpl"]
    return (
        f"{implementation['method']} {implementation['urlTemplate']} {json.dumps(args)[:500]}\n "
        f" {validation[1][:800]}"
    )
