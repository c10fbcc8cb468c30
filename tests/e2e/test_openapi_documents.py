"""Real documents against a real judge: what tools of GitHub's API send is what prism, who knows the document, accepts.

Prism validates path, query, headers, body and credentials. A run of CI sends a part of the operations, spread evenly;
the nightly run sends all.
"""

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.cells_support import NIGHTLY
from tests.openapi_support import Sampler, examples, github, packages, prism, request_of, shown

from onetool.bundles.imported import BundleImport
from onetool.bundles.openapi import to_bundle
from onetool.errors import ArgumentError, BundleError

pytestmark = pytest.mark.slow

OPERATIONS = 1_223
SAMPLE = OPERATIONS if NIGHTLY else 80
REFERENCE = re.compile(r'"\$ref": "#/components/(\w+)/([^"]+)"')
ANY_HOST = "https://api.example.com/base"
# Documents of webhooks alone, of nothing, and of files that are uploaded in parts.
WITHOUT_TOOLS = {"title", "webhooks", "schema-encoding-style"}
# Where the judge itself works: it falls over some of the other documents.
JUDGED = ("3.0/json/security.json", "3.1/json/train-travel.json")
MORE_JUDGED = ("3.0/json/star-trek.json", "3.0/json/form-data.json", "3.0/json/parameters-extreme.json")


@pytest.fixture(scope="module")
def of_github() -> BundleImport:
    return to_bundle(github().read_bytes())


def objections(judge: Any, tools: list[dict[str, Any]], base: str = "") -> list[str]:
    found = []
    for tool in tools:
        for all_of_them in (True, False):
            args = Sampler(tool["argSchema"]).arguments(all_of_them=all_of_them)
            verdict = judge.verdict(request_of(tool, args), base)
            if verdict[1]:
                found.append(shown(tool, args, verdict))
    return found


def test_every_operation_of_github_is_a_tool(of_github: BundleImport) -> None:
    assert len(of_github.tools) == OPERATIONS
    assert of_github.problems == []
    assert of_github.hosts == ["api.github.com", "uploads.github.com"]


def test_the_requests_of_githubs_tools_are_accepted(of_github: BundleImport, tmp_path: Path) -> None:
    chosen = [of_github.tools[n * OPERATIONS // SAMPLE][2] for n in range(SAMPLE)]
    with prism(_of_these_paths(chosen, tmp_path / "github.json")) as judge:
        found = objections(judge, chosen)
    assert not found, "\n".join(found)


def _of_these_paths(tools: list[dict[str, Any]], file: Path) -> Path:
    """GitHub's document with these paths and what they refer to: the judge takes its time with each thing in it."""
    document = json.loads(github().read_text(encoding="utf-8"))
    paths = {re.sub(r"\$\{(?:\w+:)?\w+\}", "{}", urlsplit(tool["httpImpl"]["urlTemplate"]).path) for tool in tools}
    kept = {path: item for path, item in document["paths"].items() if re.sub(r"\{[^}]+\}", "{}", path) in paths}
    smaller = {"paths": kept, "components": _referred_to(kept, document["components"]), "x-webhooks": {}}
    file.write_text(json.dumps({**document, **smaller}), encoding="utf-8")
    return file


def _referred_to(paths: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    """The components that the paths cannot do without, however far away."""
    kept: dict[str, Any] = {}
    left: list[Any] = [paths]
    while left:
        for kind, name in REFERENCE.findall(json.dumps(left.pop())):
            if name not in kept.setdefault(kind, {}):
                kept[kind][name] = components[kind][name]
                left.append(kept[kind][name])
    return kept


@pytest.mark.parametrize("name", (*JUDGED, *MORE_JUDGED) if NIGHTLY else JUDGED)
def test_the_requests_of_small_documents_are_accepted(name: str) -> None:
    document = packages() / "@readme" / "oas-examples" / name
    tools = [tool for _, _, tool in to_bundle(document.read_bytes(), server=ANY_HOST).tools]
    with prism(document) as judge:
        found = objections(judge, tools, "/base")
    assert not found, "\n".join(found)


def test_the_judge_accepts_the_pet_store_and_objects_to_a_wrong_request() -> None:
    document = packages() / "@readme" / "oas-examples" / "3.0" / "json" / "petstore.json"
    tools = {slug: tool for slug, _, tool in to_bundle(document.read_bytes(), server=ANY_HOST).tools}
    wrong = {**tools["add-pet"], "httpImpl": {**tools["add-pet"]["httpImpl"], "body": {"name": "${name}"}}}
    with prism(document) as judge:
        assert not objections(judge, list(tools.values()), "/base")
        assert "photoUrls" in objections(judge, [wrong], "/base")[0]


def test_documents_full_of_edge_cases_become_tools_that_can_be_called() -> None:
    documents, made, unsampled = examples(), 0, 0
    for document in documents:
        for tool in _tools_of(document):
            made += 1
            try:
                request_of(tool, Sampler(tool["argSchema"]).arguments(all_of_them=True))
            except ArgumentError:  # a schema that nothing fits, or a pattern that is hard to meet
                unsampled += 1
    assert len(documents) > 100
    assert made > 1_200
    assert unsampled < 20


def _tools_of(document: Path) -> list[dict[str, Any]]:
    try:
        return [tool for _, _, tool in to_bundle(document.read_bytes(), server=ANY_HOST).tools]
    except BundleError:
        assert document.stem in WITHOUT_TOOLS, document
        return []
