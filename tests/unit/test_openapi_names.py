"""Names of imported bundles, tools, arguments and secrets: valid, readable and unique."""

import pytest
from hypothesis import given, strategies as st

from onetool.sources.bundles import rules
from onetool.sources.bundles.openapi.document import (
    UniqueNames,
    build_bundle_slug,
    build_operation_slug,
    is_python_name,
    to_argument_name,
    to_secret_name,
    to_tags,
    to_version,
)


@pytest.mark.parametrize(
    ("operation_id", "slug"),
    [
        ("listPets", "list-pets"),
        ("repos/list-for-user", "repos-list-for-user"),
        ("list_all_pets", "list-all-pets"),
        ("pets.list", "pets-list"),
        ("getURLForID", "get-url-for-id"),
        ("GetV2Pets", "get-v2-pets"),
        ("Pets_ListAll", "pets-list-all"),
        ("user's list", "user-list"),
        ("größeÄndern", "größeändern"),
        ("", "get-pets-pet-id"),
        ("!!!", "get-pets-pet-id"),
        ("import", "get-import"),
        ("2faStatus", "get-2fa-status"),
        ("x" * 80, "x" * 64),
        (" ".join(["word"] * 20), "-".join(["word"] * 13)),
    ],
)
def test_an_operation_has_a_readable_slug(operation_id: str, slug: str) -> None:
    assert build_operation_slug(operation_id, "get", "/pets/{petId}") == slug


def test_an_operation_without_a_name_is_named_after_its_method() -> None:
    assert build_operation_slug("", "get", "/") == "get"


@pytest.mark.parametrize(
    ("name", "title", "slug"),
    [
        ("", "Swagger Petstore - OpenAPI 3.0", "petstore"),
        ("", "GitHub v3 REST API", "github"),
        ("", "GitHub's API", "github"),
        ("", "The REST API", "the"),
        ("", "API", "api"),
        ("", "", "api"),
        ("", "1Forge", "api-1forge"),
        ("My Pets", "Swagger Petstore", "my-pets"),
        ("import", "x", "api-import"),
    ],
)
def test_a_bundle_is_named_by_the_user_or_after_its_title(name: str, title: str, slug: str) -> None:
    assert build_bundle_slug(name, title) == slug


@pytest.mark.parametrize(
    ("given", "legal"),
    [
        ("1.0.0", "1.0.0"),
        ("v1 beta", "v1-beta"),
        ("2021-07-16", "2021-07-16"),
        (3, "3"),
        (1.0, "1.0"),
        ("", "1"),
        (None, "1"),
        ("..", "1"),
        ("..x", "..x"),
        ("!", "1"),
        ("x" * 70, "x" * 64),
        ("a/b", "a-b"),
    ],
)
def test_a_version_is_made_valid(given: object, legal: str) -> None:
    assert to_version(given) == legal


def test_tags_are_valid_and_unique() -> None:
    given = ["Pull Requests", "pull-requests", "2fa", "Größe", "", "日本", "x" * 70]
    assert to_tags(given) == ["pull-requests", "_2fa", "groe", "x" * 64]


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("petId", "petId"),
        ("pet-id", "pet_id"),
        ("filter[name]", "filter_name"),
        ("ids[]", "ids"),
        ("$filter", "filter"),
        ("from", "from_"),
        ("2fa", "query_2fa"),
        ("", "query"),
        ("日本", "query"),
        ("__format__", "format"),
    ],
)
def test_an_argument_name_is_a_python_identifier(name: str, argument: str) -> None:
    assert to_argument_name(name, "query", UniqueNames("_")) == argument


def test_a_second_argument_with_a_name_gets_its_location() -> None:
    taken = UniqueNames("_")
    made = [
        to_argument_name("id", location, taken)
        for location in ("path", "header", "body", "body", "body")
    ]
    assert made == ["id", "id_header", "id_body", "id_body_2", "id_body_3"]


@pytest.mark.parametrize(
    ("bundle", "scheme", "secret"),
    [
        ("petstore", "api_key", "PETSTORE_API_KEY"),
        ("petstore", "apiKey", "PETSTORE_API_KEY"),
        ("petstore", "petstore_auth", "PETSTORE_AUTH"),
        ("größe", "token", "GROE_TOKEN"),
        ("日本", "鍵", "API_KEY"),
        ("api-1forge", "key", "API_1FORGE_KEY"),
    ],
)
def test_a_secret_is_named_after_the_bundle_and_the_scheme(
    bundle: str, scheme: str, secret: str
) -> None:
    assert to_secret_name(bundle, scheme) == secret


@given(st.text(), st.sampled_from(["get", "post"]), st.text())
def test_slugs_are_valid_for_any_document(operation_id: str, method: str, path: str) -> None:
    made = build_operation_slug(operation_id, method, path)
    assert rules.slug_problem(made) is None
    assert is_python_name(made)
    assert rules.slug_problem(build_bundle_slug(operation_id, path)) is None


@given(st.text(), st.lists(st.text()))
def test_versions_tags_and_secrets_are_valid_for_any_document(text: str, many: list[str]) -> None:
    assert rules.version_problem(to_version(text)) is None
    assert rules.tags_problem(to_tags(many)) is None
    assert to_secret_name(text, text).isidentifier()
    assert to_secret_name(text, text).isascii()


@given(st.lists(st.text(max_size=70), max_size=20))
def test_many_equal_names_stay_unique_and_valid(texts: list[str]) -> None:
    for_slugs, for_arguments = UniqueNames(), UniqueNames("_")
    slugs = [for_slugs.claim(build_operation_slug(text, "get", "/x")) for text in texts * 3]
    arguments = [to_argument_name(text, "query", for_arguments) for text in texts * 3]
    assert len(set(slugs)) == len(slugs)
    assert len(set(arguments)) == len(arguments)
    assert not [slug for slug in slugs if rules.slug_problem(slug)]
    assert all(argument.isidentifier() for argument in arguments)
