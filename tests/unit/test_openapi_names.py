"""Names that come out of documents: legal for the store, readable, and unique."""

import pytest
from hypothesis import given, strategies as st

from onetool.bundles import rules
from onetool.bundles.openapi import names


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
def test_an_operation_is_called_by_readable_words(operation_id: str, slug: str) -> None:
    assert names.operation_slug(operation_id, "get", "/pets/{petId}") == slug


def test_an_operation_without_any_name_is_called_by_its_method() -> None:
    assert names.operation_slug("", "get", "/") == "get"


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
def test_a_bundle_is_called_as_told_or_by_the_telling_words_of_its_title(name: str, title: str, slug: str) -> None:
    assert names.bundle_slug(name, title) == slug


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
def test_a_version_is_made_legal(given: object, legal: str) -> None:
    assert names.version(given) == legal


def test_tags_are_legal_and_stand_once() -> None:
    given = ["Pull Requests", "pull-requests", "2fa", "Größe", "", "日本", "x" * 70]
    assert names.tags(given) == ["pull-requests", "_2fa", "groe", "x" * 64]


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
def test_an_argument_has_a_name_that_python_can_write(name: str, argument: str) -> None:
    assert names.argument(name, "query", names.UniqueNames("_")) == argument


def test_a_second_argument_of_a_name_says_where_it_stands() -> None:
    taken = names.UniqueNames("_")
    made = [names.argument("id", place, taken) for place in ("path", "header", "body", "body", "body")]
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
def test_a_secret_is_named_after_the_bundle_and_the_scheme(bundle: str, scheme: str, secret: str) -> None:
    assert names.secret(bundle, scheme) == secret


@given(st.text(), st.sampled_from(["get", "post"]), st.text())
def test_slugs_are_legal_whatever_the_document_says(operation_id: str, method: str, path: str) -> None:
    made = names.operation_slug(operation_id, method, path)
    assert rules.slug_problem(made) is None
    assert names.is_callable_name(made)
    assert rules.slug_problem(names.bundle_slug(operation_id, path)) is None


@given(st.text(), st.lists(st.text()))
def test_versions_tags_and_secrets_are_legal_whatever_the_document_says(text: str, many: list[str]) -> None:
    assert rules.version_problem(names.version(text)) is None
    assert rules.tags_problem(names.tags(many)) is None
    assert names.secret(text, text).isidentifier()
    assert names.secret(text, text).isascii()


@given(st.lists(st.text(max_size=70), max_size=20))
def test_names_stay_unique_and_legal_however_many_are_alike(texts: list[str]) -> None:
    for_slugs, for_arguments = names.UniqueNames(), names.UniqueNames("_")
    slugs = [for_slugs.claim(names.operation_slug(text, "get", "/x")) for text in texts * 3]
    arguments = [names.argument(text, "query", for_arguments) for text in texts * 3]
    assert len(set(slugs)) == len(slugs)
    assert len(set(arguments)) == len(arguments)
    assert not [slug for slug in slugs if rules.slug_problem(slug)]
    assert all(argument.isidentifier() for argument in arguments)
