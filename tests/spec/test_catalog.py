"""The catalog is consistent, and every requirement in it has a test."""

import re
from collections import Counter
from pathlib import Path

import pytest
from tests.spec.catalog import LISTED, REQUIREMENTS
from tests.spec.catalog.marks import Claim, find_claims, parse_claims

TESTS = Path(__file__).parents[1]
WORD_PATTERN = "[a-z0-9]+(-[a-z0-9]+)*"


@pytest.fixture(scope="module")
def claims() -> list[Claim]:
    return find_claims(TESTS)


def test_every_id_is_listed_once() -> None:
    assert not [
        identity for identity, count in Counter(each.id for each in LISTED).items() if count > 1
    ]


def test_every_id_is_three_parts_in_kebab_case() -> None:
    assert not [
        identity
        for identity in REQUIREMENTS
        if not re.fullmatch(rf"{WORD_PATTERN}\.{WORD_PATTERN}\.{WORD_PATTERN}", identity)
    ]


def test_every_requirement_has_a_title() -> None:
    assert not [requirement.id for requirement in LISTED if not requirement.title.strip()]


def test_the_147_named_scenarios_are_all_listed() -> None:
    counts = Counter(identity.partition(".")[0] for identity in REQUIREMENTS)
    named = {
        document: counts.pop(document) for document in ("ot-pack", "run-tool", "tool-execution")
    }
    assert named == {"ot-pack": 66, "run-tool": 67, "tool-execution": 14}
    assert sum(named.values()) == 147
    assert counts.keys() == {"bundles", "toolbus"}


def test_every_mark_refers_to_a_requirement(claims: list[Claim]) -> None:
    unknown = [f"{claim.location} {claim.id}" for claim in claims if claim.id not in REQUIREMENTS]
    assert not unknown, "\n".join(["no such id in tests/spec/catalog:", *unknown])


def test_every_requirement_has_a_test(claims: list[Claim]) -> None:
    tested = {claim.id for claim in claims}
    untested = [requirement.id for requirement in LISTED if requirement.id not in tested]
    assert not untested, "\n".join([f"{len(untested)} requirements have no test:", *untested])


@pytest.mark.parametrize(
    "source",
    [
        '@pytest.mark.spec("a.b.c", "a.b.d")\ndef test_x(): ...',
        '@mark.spec("a.b.c")\n@mark.spec("a.b.d")\nasync def test_x(): ...',
        (
            '@pytest.mark.spec("a.b.c")\nclass TestX:\n    @pytest.mark.spec("a.b.d")\n    def'
            " test_x(self): ..."
        ),
        'CASES = [pytest.param(1, marks=[pytest.mark.spec("a.b.c"), pytest.mark.spec("a.b.d")])]',
        'pytestmark = pytest.mark.spec(\n    "a.b.c",\n    "a.b.d",\n)',
    ],
)
def test_marks_are_read_wherever_pytest_accepts_them(source: str) -> None:
    assert sorted(claim.id for claim in parse_claims(source, "test_x.py")) == ["a.b.c", "a.b.d"]


def test_a_claim_has_the_location_of_its_mark() -> None:
    assert list(parse_claims('\n@pytest.mark.spec("a.b.c")\ndef test_x(): ...', "test_x.py")) == [
        Claim("a.b.c", "test_x.py:2")
    ]


def test_marks_in_strings_and_comments_are_ignored() -> None:
    source = '# pytest.mark.spec("a.b.c")\ntext = \'@pytest.mark.spec("a.b.c")\''
    assert not list(parse_claims(source, "test_x.py"))


@pytest.mark.parametrize(
    "arguments", ["", "NAME", "*NAMES", 'f"a.{b}.c"', 'id="a.b.c"', '"a.b.c", NAME']
)
def test_marks_without_plain_strings_are_rejected(arguments: str) -> None:
    with pytest.raises(ValueError, match=r"test_x\.py:1: write the ids as plain strings"):
        list(parse_claims(f"@pytest.mark.spec({arguments})\ndef test_x(): ...", "test_x.py"))


def test_marks_on_functions_that_pytest_does_not_collect_are_rejected() -> None:
    with pytest.raises(ValueError, match="helper carries a spec mark"):
        list(parse_claims('@pytest.mark.spec("a.b.c")\ndef helper(): ...', "test_x.py"))
