"""Import of whole documents: JSON, YAML, invalid and hostile input."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from tests.openapi_support import build_document, import_document

from onetool.errors import BundleError
from onetool.sources.bundles.imported import BundleImport
from onetool.sources.bundles.model import BundleDraft, ToolDraft
from onetool.sources.bundles.openapi import to_bundle
from onetool.sources.bundles.openapi.document import MAX_BYTES
from onetool.sources.http.definition import HttpImpl

YAML = """
openapi: 3.1.0
info: {title: Things, version: 012}
servers: [{url: https://api.example.com}]
paths:
  /things:
    get:
      operationId: on
      parameters: &shared
        - {name: q, in: query, schema: {type: string, default: no}}
      responses:
        200: {description: fine}
    post: {parameters: *shared}
"""


def test_yaml_is_read_as_yaml_1_2() -> None:
    found = to_bundle(YAML)
    assert [(slug, version) for slug, version, _ in found.tools] == [
        ("on", "12"),
        ("post-things", "12"),
    ]
    assert found.tools[1][2]["argSchema"]["properties"]["q"]["description"] == 'Default: "no".'


def test_a_byte_order_mark_is_accepted() -> None:
    assert to_bundle(b"\xef\xbb\xbf" + json.dumps(build_document({})).encode()).tools


def test_the_bundle_has_the_metadata_of_the_document() -> None:
    info = {"title": "Things API", "version": "2", "description": "All things."}
    found = import_document(build_document({}, info=info))
    assert found.bundle == {
        "slug": "things",
        "displayName": "Things API",
        "description": "All things.",
        "isEnabled": True,
    }
    assert (found.hosts, found.secrets, found.problems) == (["api.example.com"], [], [])


def test_problems_are_safe_to_print() -> None:
    found = import_document(
        build_document({}, paths={"/\x1b[31m": {"trace": {}}, "/a": {"get": {}}})
    )
    assert found.problems == ["TRACE /: TRACE is not supported, because it reveals credentials"]


def test_a_name_of_the_user_takes_precedence() -> None:
    assert import_document(build_document({}), name="My Things").bundle["slug"] == "my-things"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not an object"),
        ("[]", "not an object"),
        ("a: 1", "neither"),
        ("{", "not valid JSON"),
        ("a: [", "not valid YAML"),
        ('{"openapi": "4.0.0"}', "unsupported OpenAPI version"),
        ('{"openapi": "3.0.0"}', "no operations"),
        ('{"openapi": "3.0.0", "paths": [1]}', "no operations"),
        ('{"openapi": "3.0.0", "paths": {"/a": {"$ref": "other.yaml"}}}', "another document"),
        (b"\xff\xfe", "not UTF-8"),
        ("\ud800", "not UTF-8"),
        ('{"a":' * 150 + "1" + "}" * 150, "nested more than"),
        ("[" * 5_000, "nested more than|not valid"),
        ('{"a":' * 5_000, "not valid JSON"),
        ("&a [" + "*a, " * 3 + "]", "refers to a value that contains it"),
    ],
)
def test_an_invalid_document_is_rejected_with_a_reason(text: str | bytes, reason: str) -> None:
    with pytest.raises(BundleError, match=reason) as caught:
        to_bundle(text)
    assert caught.value.code == "invalid"


def test_an_alias_bomb_is_rejected() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(BundleError, match="too many"):
        to_bundle("\n".join(lines))


def test_a_document_that_is_too_large_is_not_read() -> None:
    with pytest.raises(BundleError, match="at most"):
        to_bundle(b" " * (MAX_BYTES + 1))


def test_a_circular_path_reference_is_a_problem() -> None:
    paths = {"/a": {"$ref": "#/paths/~1b"}, "/b": {"$ref": "#/paths/~1a"}, "/c": {"get": {}}}
    found = import_document(build_document({}, paths=paths))
    assert len(found.tools) == 1
    assert "is circular" in found.problems[0]


def test_webhooks_and_extensions_are_ignored() -> None:
    found = import_document(
        build_document(
            {}, webhooks={"x": {"post": {}}}, paths={"/a": {"get": {}}, "x-b": {"get": {}}}
        )
    )
    assert [slug for slug, _, _ in found.tools] == ["get-a"]


# --- expensive documents --------------------------------------------------------------------------


def schema_ref(name: object) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "schemas",
    [
        {"A": {"anyOf": [schema_ref("A")] * 100}},
        {"A": {"allOf": [schema_ref("A")] * 100, "properties": {"a": {}}}},
        {"A": {"oneOf": [schema_ref("B")] * 100}, "B": {"allOf": [schema_ref("A")] * 100}},
        {"A": {"properties": {f"p{n}": schema_ref("A") for n in range(1_000)}}},
        {"A": schema_ref(0), **{str(n): schema_ref(n + 1) for n in range(10_000)}},
        {"A": {"properties": {f"p{n}": schema_ref(n) for n in range(500)}}}
        | {
            str(n): {"properties": {f"q{m}": schema_ref((n * m) % 500) for m in range(100)}}
            for n in range(500)
        },
    ],
)
def test_exponentially_growing_schemas_are_limited(schemas: Any) -> None:
    places = [{"name": "f", "in": "query", "style": "deepObject", "schema": schema_ref("A")}]
    body = {"content": {"application/x-www-form-urlencoded": {"schema": schema_ref("A")}}}
    json_body = {"content": {"application/json": {"schema": schema_ref("A")}}}
    item = {
        "get": {"parameters": places},
        "post": {"requestBody": body},
        "put": {"requestBody": json_body},
    }
    found = import_document(
        build_document({}, paths={"/a": item, "/b": {"get": {}}}, components={"schemas": schemas})
    )
    assert len(json.dumps(found.tools)) < 2_000_000


@pytest.mark.nightly
@pytest.mark.slow
def test_many_operations_with_one_name_are_renamed_quickly() -> None:
    paths = {f"/{n}": {"get": {"operationId": "x" * 64}} for n in range(3_000)}
    assert (
        len({slug for slug, _, _ in import_document(build_document({}, paths=paths)).tools})
        == 3_000
    )


@pytest.mark.slow
def test_a_small_document_that_expands_too_much_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("onetool.sources.bundles.openapi.schemas.MAX_WORK", 10_000)
    schemas = {"A": {"properties": {f"p{n}": {"type": "string"} for n in range(100)}}}
    operation = {"requestBody": {"content": {"application/json": {"schema": schema_ref("A")}}}}
    paths = {f"/{n}": {"post": operation, "put": operation} for n in range(80)}
    with pytest.raises(BundleError) as caught:
        import_document(build_document({}, paths=paths, components={"schemas": schemas}))
    assert caught.value.code == "too_large"


# --- arbitrary input ------------------------------------------------------------------------------


def is_valid(found: BundleImport) -> bool:
    BundleDraft.of(found.bundle)
    for _, _, tool in found.tools:
        ToolDraft.of(tool)
        implementation = HttpImpl.model_validate(tool["httpImpl"])
        assert implementation.required_secrets <= set(found.secrets)
        assert implementation.arguments <= set(tool["argSchema"]["properties"])
        json.dumps(tool, allow_nan=False).encode()
    return len({slug for slug, _, _ in found.tools}) == len(found.tools)


@given(st.one_of(st.binary(), st.text()))
def test_any_text_is_imported_or_rejected(text: bytes | str) -> None:
    with pytest.raises(BundleError):
        to_bundle(text)


WORDS = st.sampled_from(
    [
        "type",
        "object",
        "string",
        "array",
        "properties",
        "items",
        "$ref",
        "#/components/schemas/A",
        "#/paths/~1a",
        "#",
        "name",
        "in",
        "query",
        "path",
        "header",
        "cookie",
        "body",
        "formData",
        "schema",
        "content",
        "application/json",
        "required",
        "enum",
        "default",
        "allOf",
        "oneOf",
        "style",
        "deepObject",
        "explode",
        "${a}",
        "${secret:B}",
        "{a}",
        "parameters",
        "requestBody",
        "security",
        "servers",
        "url",
        "variables",
        "multipart/form-data",
        "text/plain",
        "application/x-www-form-urlencoded",
        "operationId",
        "tags",
        "summary",
        "\x00",
        "\u2028",
        "ß",
        "/a/{a}",
    ]
)
SCALARS = st.one_of(
    WORDS, st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(WORDS, inner, max_size=5)),
    max_leaves=25,
)
PARAMETER = st.fixed_dictionaries(
    {
        "name": SCALARS,
        "in": st.sampled_from(["query", "path", "header", "cookie", "body", "formData", 3]),
    },
    optional={
        "schema": ANYTHING,
        "content": ANYTHING,
        "style": WORDS,
        "explode": SCALARS,
        "required": SCALARS,
    }
    | {
        "type": WORDS,
        "items": ANYTHING,
        "collectionFormat": WORDS,
        "example": ANYTHING,
        "description": SCALARS,
    },
)
OPERATION = st.fixed_dictionaries(
    {},
    optional={
        "operationId": SCALARS,
        "tags": ANYTHING,
        "summary": SCALARS,
        "description": SCALARS,
        "parameters": st.one_of(st.lists(PARAMETER, max_size=4), ANYTHING),
        "requestBody": st.one_of(
            st.fixed_dictionaries(
                {
                    "content": st.dictionaries(
                        WORDS, st.fixed_dictionaries({"schema": ANYTHING}), max_size=2
                    )
                }
            ),
            ANYTHING,
        ),
        "security": ANYTHING,
        "servers": ANYTHING,
        "responses": ANYTHING,
    },
)
DOCUMENT = st.fixed_dictionaries(
    {
        "paths": st.one_of(
            st.dictionaries(
                st.sampled_from(["/a", "/a/{a}", "/{b}/${c}", "x-a", "", "/?a=1#b", "/..", "/%"]),
                st.one_of(
                    st.dictionaries(
                        st.sampled_from(["get", "post", "trace", "parameters"]), OPERATION
                    ),
                    ANYTHING,
                ),
                max_size=3,
            ),
            ANYTHING,
        )
    },
    optional={
        "info": ANYTHING,
        "components": ANYTHING,
        "definitions": ANYTHING,
        "securityDefinitions": ANYTHING,
    }
    | {
        "security": ANYTHING,
        "servers": ANYTHING,
        "host": SCALARS,
        "basePath": SCALARS,
        "schemes": ANYTHING,
    },
)


@pytest.mark.slow
@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    deadline=None,
)
@given(
    DOCUMENT,
    st.sampled_from([{"openapi": "3.0.0"}, {"openapi": "3.1.0"}, {"swagger": "2.0"}]),
    SCALARS,
)
def test_any_document_is_imported_or_rejected(document: Any, version: Any, title: Any) -> None:
    text = json.dumps({"info": {"title": title, "version": title}, **document, **version})
    found: BundleImport | None = None
    with contextlib.suppress(BundleError):
        found = to_bundle(text, server="https://api.example.com")
    assert found is None or is_valid(found)
