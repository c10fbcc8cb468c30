"""Valid slugs and versions, and unique file names for each pair on every file system."""

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from onetool.errors import BundleError
from onetool.sources.bundles import rules
from onetool.sources.bundles.rules import (
    directory_names,
    is_tool_file,
    parse_id,
    tool_file_names,
)

LETTERS = st.characters(categories=["Lu", "Ll", "Lt", "Lm", "Lo", "Nd"]) | st.just("-")
SLUGS = st.text(LETTERS, min_size=1, max_size=64)
VERSIONS = st.text(LETTERS | st.just("."), min_size=1, max_size=64).filter(
    lambda text: text not in {".", ".."}
)
SOME_ID = "0192f0c1-7a10-7c3e-9d2b-3f5a6b7c8d9e"
RESERVED = {
    "con",
    "prn",
    "aux",
    "nul",
    *(f"{port}{number}" for port in ("com", "lpt") for number in range(10)),
}


def fold_name(name: str) -> str:
    return unicodedata.normalize("NFKD", unicodedata.normalize("NFC", name).casefold()).casefold()


@pytest.mark.slow
@settings(deadline=None)
@given(SLUGS)
def test_letters_digits_and_dashes_are_a_valid_slug(slug: str) -> None:
    assert rules.check_slug(slug) == slug


@settings(deadline=None)
@given(VERSIONS)
def test_a_version_may_contain_dots(version: str) -> None:
    assert rules.check_version_label(version) == version


@settings(deadline=None)
@given(st.text(max_size=70))
def test_a_slug_is_valid_if_and_only_if_all_characters_are_allowed(text: str) -> None:
    kinds = {unicodedata.category(letter) for letter in text.replace("-", "")}
    fits = 1 <= len(text) <= 64 and all(kind == "Nd" or kind[0] == "L" for kind in kinds)
    assert (rules.slug_problem(text) is None) == fits


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "a_b",
        "a b",
        "a/b",
        "a\\b",
        "a.b",
        "a\x00",
        "a\n",
        "😀",
        "a" * 65,
        "²",
        "Ⅷ",
        "e\u0301",
        7,
        None,
    ],
)
def test_an_invalid_slug_is_rejected_with_a_reason(wrong: object) -> None:
    with pytest.raises(BundleError, match="invalid slug"):
        rules.check_slug(wrong)


@pytest.mark.parametrize("wrong", ["", ".", "..", "1_0", "1 0", "1/0", "1" * 65, "\ud800", 1.0])
def test_an_invalid_version_is_rejected_with_a_reason(wrong: object) -> None:
    with pytest.raises(BundleError, match="invalid version"):
        rules.check_version_label(wrong)


@pytest.mark.slow
@settings(deadline=None)
@given(st.tuples(SLUGS, VERSIONS), st.tuples(SLUGS, VERSIONS))
def test_two_pairs_never_share_a_file_on_any_file_system(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    if one != other:
        names = {fold_name(name) for name in tool_file_names(*one)}
        assert not names & {fold_name(name) for name in tool_file_names(*other)}
        assert not any(is_tool_file(name, *other) for name in tool_file_names(*one))


@settings(deadline=None)
@given(SLUGS, VERSIONS)
def test_pairs_that_differ_in_case_or_normalization_have_different_files(
    slug: str, version: str
) -> None:
    for twin in {
        slug.upper(),
        slug.lower(),
        unicodedata.normalize("NFD", slug),
        unicodedata.normalize("NFKC", slug),
    } - {slug}:
        if rules.slug_problem(twin) is None:
            ours, theirs = (
                set(map(fold_name, tool_file_names(one, version))) for one in (slug, twin)
            )
            assert not ours & theirs


@settings(deadline=None)
@given(SLUGS, VERSIONS)
def test_file_names_are_short_and_portable_and_survive_normalization(
    slug: str, version: str
) -> None:
    for name in tool_file_names(slug, version):
        assert len(name.encode()) <= 143
        assert name.partition(".")[0].casefold() not in RESERVED
        assert not name.endswith((".", " "))
        assert not set(name) & set('<>:"/\\|?*')
        assert is_tool_file(name, slug, version)
        assert is_tool_file(unicodedata.normalize("NFD", name), slug, version)


@pytest.mark.slow
@settings(deadline=None)
@given(SLUGS)
def test_a_directory_name_contains_the_bundle_id(slug: str) -> None:
    for name in directory_names(slug, SOME_ID):
        assert parse_id(name) == SOME_ID
        assert len(name.encode()) <= 143
        assert name.partition(".")[0].casefold() not in RESERVED


@settings(deadline=None)
@given(st.text(max_size=60))
def test_other_directory_names_have_no_bundle_id(name: str) -> None:
    assert parse_id(name) is None or name.endswith(parse_id(name) or "")


def test_simple_names_are_used_unchanged() -> None:
    assert tool_file_names("read-file", "1.0") == ("read-file@1.0.json",)
    assert directory_names("my-pack", SOME_ID) == (f"my-pack-{SOME_ID}",)


@settings(deadline=None)
@given(slug=SLUGS, version=VERSIONS)
def test_the_file_system_keeps_every_name(
    tmp_path_factory: pytest.TempPathFactory, slug: str, version: str
) -> None:
    directory = tmp_path_factory.mktemp("names")
    for name in tool_file_names(slug, version):
        Path(directory, name).write_text("x")
        assert any(
            is_tool_file(found, slug, version)
            for found in (entry.name for entry in directory.iterdir())
        )
