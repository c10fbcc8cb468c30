"""Requests of tools that are imported from real documents, such as the GitHub API, validated by
Prism.

Prism validates path, query, headers, body and credentials. A run of CI sends a part of the
operations, spread evenly; the nightly run sends all.
"""

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.cells_support import NIGHTLY
from tests.openapi_support import (
    Sampler,
    build_request,
    examples,
    format_violation,
    github,
    packages,
    run_prism,
)

from onetool.errors import ArgumentError, BundleError
from onetool.sources.bundles.imported import BundleImport
from onetool.sources.bundles.openapi import to_bundle

pytestmark = pytest.mark.slow

OPERATIONS = 1_223
SAMPLE = OPERATIONS if NIGHTLY else 40
REFERENCE = re.compile(r'"\$ref": "#/components/(\w+)/([^"]+)"')
ANY_HOST = "https://api.example.com/base"
# Documents with only webhooks, and without operations.
WITHOUT_TOOLS = {"title", "webhooks"}
# Prism fails on some of the other documents.
VALIDATED_DOCUMENTS = ("3.0/json/security.json", "3.1/json/train-travel.json")
MORE_VALIDATED_DOCUMENTS = (
    "3.0/json/star-trek.json",
    "3.0/json/form-data.json",
    "3.0/json/parameters-extreme.json",
)


@pytest.fixture(scope="module")
def github_import() -> BundleImport:
    return to_bundle(github().read_bytes())


def find_violations(validator: Any, tools: list[dict[str, Any]], base: str = "") -> list[str]:
    found = []
    for tool in tools:
        for include_optional in (True, False):
            args = Sampler(tool["argSchema"]).arguments(include_optional=include_optional)
            validation = validator.validate(build_request(tool, args), base)
            if validation[1]:
                found.append(format_violation(tool, args, validation))
    return found


def test_every_operation_of_github_is_a_tool(github_import: BundleImport) -> None:
    assert len(github_import.tools) == OPERATIONS
    assert github_import.problems == []
    assert github_import.hosts == ["api.github.com", "uploads.github.com"]


@pytest.mark.nightly
def test_the_requests_of_githubs_tools_are_accepted(
    github_import: BundleImport, tmp_path: Path
) -> None:
    chosen = [github_import.tools[n * OPERATIONS // SAMPLE][2] for n in range(SAMPLE)]
    with run_prism(_write_partial_document(chosen, tmp_path / "github.json")) as validator:
        found = find_violations(validator, chosen)
    assert not found, "\n".join(found)


def _write_partial_document(tools: list[dict[str, Any]], file: Path) -> Path:
    """Write the GitHub document with only these paths and their components: Prism is slow with
    large documents.
    """
    document = json.loads(github().read_text(encoding="utf-8"))
    paths = {
        re.sub(r"\$\{(?:\w+:)?\w+\}", "{}", urlsplit(tool["httpImpl"]["urlTemplate"]).path)
        for tool in tools
    }
    kept = {
        path: item
        for path, item in document["paths"].items()
        if re.sub(r"\{[^}]+\}", "{}", path) in paths
    }
    smaller = {
        "paths": kept,
        "components": _collect_components(kept, document["components"]),
        "x-webhooks": {},
    }
    file.write_text(json.dumps({**document, **smaller}), encoding="utf-8")
    return file


def _collect_components(paths: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    """Return the components to which the paths refer, directly or indirectly."""
    kept: dict[str, Any] = {}
    left: list[Any] = [paths]
    while left:
        for kind, name in REFERENCE.findall(json.dumps(left.pop())):
            if name not in kept.setdefault(kind, {}):
                kept[kind][name] = components[kind][name]
                left.append(kept[kind][name])
    return kept


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", (*VALIDATED_DOCUMENTS, *MORE_VALIDATED_DOCUMENTS) if NIGHTLY else VALIDATED_DOCUMENTS
)
def test_the_requests_of_small_documents_are_accepted(name: str) -> None:
    document = packages() / "@readme" / "oas-examples" / name
    tools = [tool for _, _, tool in to_bundle(document.read_bytes(), server=ANY_HOST).tools]
    with run_prism(document) as validator:
        found = find_violations(validator, tools, "/base")
    assert not found, "\n".join(found)


def test_the_validator_accepts_the_pet_store_and_rejects_a_wrong_request() -> None:
    document = packages() / "@readme" / "oas-examples" / "3.0" / "json" / "petstore.json"
    tools = {
        slug: tool for slug, _, tool in to_bundle(document.read_bytes(), server=ANY_HOST).tools
    }
    wrong = {
        **tools["add-pet"],
        "httpImpl": {**tools["add-pet"]["httpImpl"], "body": {"name": "${name}"}},
    }
    with run_prism(document) as validator:
        assert not find_violations(validator, list(tools.values()), "/base")
        assert "photoUrls" in find_violations(validator, [wrong], "/base")[0]


@pytest.mark.nightly
def test_documents_with_edge_cases_become_callable_tools() -> None:
    documents, tool_count, unsampled = examples(), 0, 0
    for document in documents:
        for tool in _import_tools(document):
            tool_count += 1
            try:
                build_request(tool, Sampler(tool["argSchema"]).arguments(include_optional=True))
            except ArgumentError:  # no sample value fits the schema
                unsampled += 1
    assert len(documents) > 100
    assert tool_count > 1_200
    assert unsampled < 25


def _import_tools(document: Path) -> list[dict[str, Any]]:
    try:
        return [tool for _, _, tool in to_bundle(document.read_bytes(), server=ANY_HOST).tools]
    except BundleError:
        assert document.stem in WITHOUT_TOOLS, document
        return []
